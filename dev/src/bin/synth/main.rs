//! Writes a GGUF file of a real model's shape with random weights, to measure loading, memory and speed.
//!
//!   synth SHAPE WEIGHTS HEAD OUT.gguf [LAYERS [DAMPING [ZEROS]]]
//!
//! SHAPE: bitnet-2b (BitNet b1.58 2B-4T), bitnet-2b-silu (the same tensors under the architecture `bitnet`, which is
//! the one that llama.cpp reads; its feed-forward has SiLU for ReLU²), bitnet-large, bitnet-3b, llama-1b (Llama 3.2),
//! bonsai-1.7b and bonsai-8b (Qwen 3; the 8B with YaRN), qwen35-0.8b, qwen35-4b and bonsai-27b (hybrids of Gated
//! DeltaNet and attention), bonsai2-27b, bonsai2-9b, bonsai2-4b and bonsai2-2b (the same with rotated inputs; published
//! in ptq1_0 and pq2_0), maple-20b (256 experts, of which a row has 8). WEIGHTS: the type of the projections. HEAD: the
//! type of the embedding, which is also the head, except in bonsai-8b, maple-20b and the hybrids of 9B and 27B, whose
//! head is a separate tensor of the same type. qwen35-4b-mtp and bonsai2-27b-mtp also have a block of multi-token
//! prediction, qwen35-4b-drafter has that block alone, to draft for qwen35-4b. qwen35-tower and qwen35-0.8b-tower are
//! the vision towers of qwen35-4b and qwen35-0.8b as mmproj files; HEAD is the type of their tables of positions, which
//! converters write in F32.
//! LAYERS: writes only this many layers; they are the same for any number (4 have one of attention in a hybrid).
//! DAMPING: multiplies the updates of layers after the second, by their sub-norms. The first two layers then agree more
//! or less with all, as a draft model may. ZEROS: about this share of each layer's gates is negative, for any token (of
//! BitNets in I2_S); without it half are. Half of each embedding is then the same for all tokens, the gates' weights lean
//! against it, and the updates of all layers are too small to change that: DAMPING is 1 then.

mod fill;
mod metadata;
mod shapes;
mod tower;

use bn_engine::base::Bytes;
use bn_engine::formats::gguf::writer::write_file;
use bn_engine::kernels::gemm::formats::dequantize_row;
use bn_engine::kernels::{DType, Isa, Matrix};
use fill::random;
use shapes::{DELTA_DIM, KERNEL, SHAPES, Shape};
use std::io::Write;
use std::path::Path;
use tower::{TOWERS, Tower};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(message) = run(&args) {
        eprintln!("synth: {message}");
        std::process::exit(1);
    }
}

fn run(args: &[String]) -> std::result::Result<(), String> {
    let usage = "usage: synth SHAPE WEIGHTS HEAD OUT.gguf [LAYERS [DAMPING [ZEROS]]]";
    let [shape, weights, head, out, rest @ ..] = args else { return Err(usage.into()) };
    if rest.len() > 3 {
        return Err(usage.into());
    };
    if let Some(tower) = TOWERS.iter().find(|tower| tower.name == shape) {
        return write_tower(tower, [dtype(weights)?, dtype(head)?], out, rest);
    }
    let names = || SHAPES.iter().map(|s| s.name).chain(TOWERS.iter().map(|t| t.name));
    let known = || names().collect::<Vec<_>>().join(", ");
    let shape = SHAPES.iter().find(|s| s.name == shape).ok_or_else(|| format!("shapes are {}", known()))?;
    let layers = match rest.first() {
        None => shape.layers,
        Some(n) => n.parse().map_err(|_| format!("'{n}' layers"))?,
    };
    let damping = match rest.get(1) {
        None => 1.0,
        Some(_) if !shape.sub_norms => return Err("DAMPING is for shapes with sub-norms".into()),
        Some(x) => x.parse().map_err(|_| format!("a damping of '{x}'"))?,
    };
    let lean = match rest.get(2) {
        None => None,
        Some(zeros) => Some(lean(zeros.parse().map_err(|_| format!("'{zeros}' zeros"))?, shape)?),
    };
    if lean.is_some() && damping != 1.0 {
        return Err("with ZEROS, DAMPING is 1: all updates are small".into());
    }
    let damping = if lean.is_some() { 1e-4 } else { damping };
    let mut file = Tensors { weights: dtype(weights)?, head: dtype(head)?, damping, lean, list: Vec::new() };
    file.of(shape, layers)?;
    if lean.is_some() && file.weights != DType::I2S {
        return Err("ZEROS is for weights in I2_S".into());
    }
    let common = if lean.is_some() { common(&file.list[0]) } else { Vec::new() };
    let tensors: Vec<_> = file.list.iter().map(|t| (t.name.clone(), t.dims.clone())).collect();
    let data =
        |index: usize, out: &mut dyn Write| random(&file.list[index], file.list[index].seed, &common, out);
    let written =
        write_file(Path::new(out), &metadata::of(shape, layers, &tensors), &tensors, data, |_| Ok(()));
    written.map_err(|e| e.message)
}

fn write_tower(
    tower: &Tower,
    [weights, head]: [DType; 2],
    out: &str,
    rest: &[String],
) -> std::result::Result<(), String> {
    let layers = match rest {
        [] => tower.layers,
        [n] => n.parse().map_err(|_| format!("'{n}' layers"))?,
        _ => return Err("DAMPING is for shapes with sub-norms".into()),
    };
    let mut file = Tensors { weights, head, damping: 1.0, lean: None, list: Vec::new() };
    file.tower(tower, layers)?;
    let tensors: Vec<_> = file.list.iter().map(|t| (t.name.clone(), t.dims.clone())).collect();
    let data = |index: usize, out: &mut dyn Write| {
        // A kernel's rows are longer than its first dimension.
        let tensor = &file.list[index];
        let dims = match tensor.dims[..] {
            [width, height, colors, rows] => vec![width * height * colors, rows],
            _ => tensor.dims.clone(),
        };
        random(&Tensor { name: String::new(), dims, ..*tensor }, tensor.seed, &[], out)
    };
    let written = write_file(Path::new(out), &tower::metadata(tower, layers), &tensors, data, |_| Ok(()));
    written.map_err(|e| e.message)
}

/// How often a gate's weight is against the part of embeddings that all tokens share: a normal distribution with a
/// deviation of `sqrt(2/3 hidden)` is shifted so far that `zeros` of it are negative.
fn lean(zeros: f32, s: &Shape) -> std::result::Result<f32, String> {
    if !(0.5..0.99).contains(&zeros) || !s.sub_norms {
        return Err("ZEROS is 0.5 to 0.99, for shapes with sub-norms".into());
    }
    // The logistic function that is nearest to the normal distribution's. 1.25: what is left of the lean after norms,
    // as measured.
    let deviations = 1.25 * (zeros / (1.0 - zeros)).ln() / 1.702;
    // Values of the shared half are uniform: their mean size is sqrt(3)/2 of their deviation.
    Ok(deviations * (2.0 / 3.0 * s.hidden as f32).sqrt() / (s.hidden as f32 / 2.0 * 0.866))
}

/// The first embedding.
fn common(table: &Tensor) -> Vec<f32> {
    let (dtype, cols) = (table.dtype, table.dims[0] as usize);
    let mut row = Vec::new();
    let one = Tensor { name: String::new(), dims: vec![cols as u64, 1], lean: None, ..*table };
    random(&one, 0, &[], &mut row).expect("a vector takes all bytes");
    let mut values = vec![0.0; cols];
    let row = Matrix::new(Bytes::new(row), dtype, 1, cols).expect("a row of a type that files have");
    dequantize_row(Isa::Scalar, &row, 0, &mut values);
    values
}

/// Parses a type's usual name, in any case: q4_k, i2_s.
fn dtype(name: &str) -> std::result::Result<DType, String> {
    let spelled = |d: &DType| match d {
        DType::I2S => "i2_s".into(),
        DType::Q2_0_128 => "pq2_0".into(),
        d => format!("{d:?}").to_lowercase(),
    };
    // The look-up-table types need a tiling.
    let mut known = DType::IN_FILES.into_iter().filter(|d| !matches!(d, DType::TL1 | DType::TL2));
    let names = known.clone().map(|d| spelled(&d)).collect::<Vec<_>>().join(", ");
    known.find(|d| spelled(d) == name.to_lowercase()).ok_or_else(|| format!("types are {names}"))
}

struct Tensors {
    weights: DType,
    head: DType,
    damping: f32,
    lean: Option<f32>,
    list: Vec<Tensor>,
}

struct Tensor {
    name: String,
    dims: Vec<u64>,
    /// The same for a tensor of the same name in shapes with other parts.
    seed: u64,
    dtype: DType,
    /// Size of a norm's weights.
    norm: f32,
    /// For embeddings: half of each row is the first row's. For gates: how often weights oppose that half.
    lean: Option<f32>,
}

impl Tensors {
    fn add(
        &mut self,
        name: String,
        dtype: DType,
        rows: usize,
        cols: usize,
    ) -> std::result::Result<(), String> {
        dtype.byte_len(rows, cols).ok_or_else(|| format!("{name}: {dtype:?} rows of {cols}"))?;
        let dims = if rows == 1 { vec![cols as u64] } else { vec![cols as u64, rows as u64] };
        let leans = name == "token_embd.weight" || name.ends_with("ffn_gate.weight");
        let (seed, lean) = (self.list.len() as u64, self.lean.filter(|_| leans));
        self.list.push(Tensor { name, dims, dtype, seed, norm: 1.0, lean });
        Ok(())
    }

    fn of(&mut self, s: &Shape, layers: usize) -> std::result::Result<(), String> {
        self.add("token_embd.weight".into(), self.head, s.vocab, s.hidden)?;
        self.add("output_norm.weight".into(), DType::F32, 1, s.hidden)?;
        if !s.tied {
            self.add("output.weight".into(), self.head, s.vocab, s.hidden)?;
        }
        let head_dim = s.head_dim();
        let kv = head_dim * s.kv_heads;
        for layer in 0..layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            if s.delta.1 > 0 {
                self.hybrid(s, layer, (layer + 1).is_multiple_of(4))?;
                continue;
            }
            for (part, width, there) in [
                ("attn_norm", s.hidden, true),
                ("ffn_norm", s.hidden, true),
                ("attn_sub_norm", s.hidden, s.sub_norms),
                ("ffn_sub_norm", s.ffn, s.sub_norms),
                ("attn_q_norm", head_dim, s.qk_norms),
                ("attn_k_norm", head_dim, s.qk_norms),
            ] {
                if there {
                    self.add(name(part), DType::F32, 1, width)?;
                }
                if let Some(tensor) = self
                    .list
                    .last_mut()
                    .filter(|_| (layer > 1 || self.lean.is_some()) && part.ends_with("sub_norm"))
                {
                    tensor.norm = self.damping;
                }
            }
            let dense =
                [("ffn_gate", s.ffn, s.hidden), ("ffn_up", s.ffn, s.hidden), ("ffn_down", s.hidden, s.ffn)];
            for (part, rows, cols) in [
                ("attn_q", s.hidden, s.hidden),
                ("attn_k", kv, s.hidden),
                ("attn_v", kv, s.hidden),
                ("attn_output", s.hidden, s.hidden),
            ]
            .into_iter()
            .chain(dense.into_iter().filter(|_| s.experts.0 == 0))
            {
                self.add(name(part), self.weights, rows, cols)?;
            }
            self.mixture(s, &name)?;
        }
        if s.mtp {
            self.further(s, layers)?;
        }
        if s.alone {
            self.list.retain(|tensor| tensor.name.starts_with(&format!("blk.{layers}.")));
        }
        Ok(())
    }

    /// A block of multi-token prediction, whose layer is of attention.
    fn further(&mut self, s: &Shape, index: usize) -> std::result::Result<(), String> {
        let name = |part: &str| format!("blk.{index}.nextn.{part}.weight");
        self.add(name("eh_proj"), self.weights, s.hidden, 2 * s.hidden)?;
        for norm in ["enorm", "hnorm", "shared_head_norm"] {
            self.add(name(norm), DType::F32, 1, s.hidden)?;
        }
        self.hybrid(s, index, true)
    }
}

impl Tensors {
    /// A layer's experts.
    fn mixture(&mut self, s: &Shape, name: &dyn Fn(&str) -> String) -> std::result::Result<(), String> {
        let (count, _, width) = s.experts;
        if count == 0 {
            return Ok(());
        }
        self.add(name("ffn_gate_inp"), DType::F32, count, s.hidden)?;
        for (part, rows, cols) in [
            ("ffn_gate_exps", width, s.hidden),
            ("ffn_up_exps", width, s.hidden),
            ("ffn_down_exps", s.hidden, width),
        ] {
            self.add(name(part), self.weights, rows, cols)?;
            self.list.last_mut().into_iter().for_each(|tensor| tensor.dims.push(count as u64));
        }
        Ok(())
    }

    /// A layer of Qwen 3.5, of attention or of Gated DeltaNet.
    fn hybrid(&mut self, s: &Shape, layer: usize, attends: bool) -> std::result::Result<(), String> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (q, kv, (key_heads, value_heads)) = (s.head_dim() * s.heads, s.head_dim() * s.kv_heads, s.delta);
        let values = value_heads * DELTA_DIM;
        let channels = 2 * key_heads * DELTA_DIM + values;
        let mut add = |part: &str, dtype, rows, cols, norm| {
            self.add(name(part), dtype, rows, cols)?;
            self.list.last_mut().into_iter().for_each(|tensor| tensor.norm = norm);
            Ok::<_, String>(())
        };
        add("attn_norm.weight", DType::F32, 1, s.hidden, 1.0)?;
        add("post_attention_norm.weight", DType::F32, 1, s.hidden, 1.0)?;
        let mut products = vec![
            ("ffn_gate.weight", s.ffn, s.hidden),
            ("ffn_up.weight", s.ffn, s.hidden),
            ("ffn_down.weight", s.hidden, s.ffn),
        ];
        if attends {
            add("attn_q_norm.weight", DType::F32, 1, s.head_dim(), 1.0)?;
            add("attn_k_norm.weight", DType::F32, 1, s.head_dim(), 1.0)?;
            products.extend([
                ("attn_q.weight", 2 * q, s.hidden),
                ("attn_k.weight", kv, s.hidden),
                ("attn_v.weight", kv, s.hidden),
                ("attn_output.weight", s.hidden, q),
            ]);
        } else {
            add("ssm_conv1d.weight", DType::F32, channels, KERNEL, 1.0)?;
            add("ssm_beta.weight", DType::F32, value_heads, s.hidden, 1.0)?;
            add("ssm_alpha.weight", DType::F32, value_heads, s.hidden, 1.0)?;
            add("ssm_a", DType::F32, 1, value_heads, -0.2)?;
            add("ssm_dt.bias", DType::F32, 1, value_heads, -1.0)?;
            add("ssm_norm.weight", DType::F32, 1, DELTA_DIM, 1.0)?;
            products.extend([
                ("attn_qkv.weight", channels, s.hidden),
                ("attn_gate.weight", values, s.hidden),
                ("ssm_out.weight", s.hidden, values),
            ]);
        }
        products.into_iter().try_for_each(|(part, rows, cols)| self.add(name(part), self.weights, rows, cols))
    }
}
