//! Writes a GGUF file of a real model's shape with random weights, to measure loading, memory and speed.
//!
//!   synth SHAPE WEIGHTS HEAD OUT.gguf [LAYERS [DAMPING [ZEROS]]]
//!
//! SHAPE: bitnet-2b (BitNet b1.58 2B-4T), bitnet-2b-silu (the same tensors under the architecture `bitnet`, which is
//! the one that llama.cpp reads; its feed-forward has SiLU for ReLU²), bitnet-large, bitnet-3b, llama-1b (Llama 3.2),
//! bonsai-1.7b and bonsai-8b (Qwen 3; the 8B with YaRN), qwen35-4b and bonsai-27b (hybrids of Gated DeltaNet and
//! attention), maple-20b (256 experts, of which a row has 8). WEIGHTS: the type of the projections. HEAD: the type of
//! the embedding, which is also the head, except in bonsai-8b, bonsai-27b and maple-20b, whose head is a separate
//! tensor of the same type. qwen35-4b-mtp also has a block of multi-token prediction. LAYERS: writes only this many
//! layers; they are the same for any number. DAMPING: multiplies the updates of layers after the second, by their
//! sub-norms. The first two layers then agree more or less with all, as a draft model may. ZEROS: about this share of
//! each layer's gates is negative, for any token (of BitNets in I2_S); without it half are. Half of each embedding is
//! then the same for all tokens, the gates' weights lean against it, and the updates of all layers are too small to
//! change that: DAMPING is 1 then.

use bn_dev::SplitMix;
use bn_engine::base::Bytes;
use bn_engine::base::Result;
use bn_engine::formats::gguf::writer::{Meta, write_file};
use bn_engine::kernels::gemm::formats::dequantize_row;
use bn_engine::kernels::{DType, Isa, Matrix};
use half::f16;
use std::io::Write;
use std::path::Path;

struct Shape {
    name: &'static str,
    architecture: &'static str,
    hidden: usize,
    ffn: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    /// 0: hidden / heads.
    head_dim: usize,
    /// Key and value heads of 128 of the layers of Gated DeltaNet, which are three of four; 0: there are none.
    delta: (usize, usize),
    /// Number of experts, how many of them a row has, and their width; 0: layers are dense.
    experts: (usize, usize, usize),
    vocab: usize,
    context: u32,
    rope_base: f32,
    eps: f32,
    sub_norms: bool,
    qk_norms: bool,
    tied: bool,
    /// Whether a block of multi-token prediction stands after the layers.
    mtp: bool,
    /// YaRN's factor and the context that it stretches.
    yarn: Option<(f32, u32)>,
}

const BITNET_2B: Shape = Shape {
    name: "bitnet-2b",
    architecture: "bitnet-b1.58",
    hidden: 2560,
    ffn: 6912,
    layers: 30,
    heads: 20,
    kv_heads: 5,
    head_dim: 0,
    delta: (0, 0),
    experts: (0, 0, 0),
    vocab: 128_256,
    context: 4096,
    rope_base: 500_000.0,
    eps: 1e-5,
    sub_norms: true,
    qk_norms: false,
    tied: true,
    mtp: false,
    yarn: None,
};

const LLAMA_1B: Shape = Shape {
    name: "llama-1b",
    architecture: "llama",
    hidden: 2048,
    ffn: 8192,
    layers: 16,
    heads: 32,
    kv_heads: 8,
    vocab: 128_256,
    context: 8192,
    rope_base: 500_000.0,
    sub_norms: false,
    ..BITNET_2B
};

const BONSAI: Shape = Shape {
    name: "bonsai-1.7b",
    architecture: "qwen3",
    hidden: 2048,
    ffn: 6144,
    layers: 28,
    heads: 16,
    kv_heads: 8,
    head_dim: 0,
    delta: (0, 0),
    experts: (0, 0, 0),
    vocab: 151_936,
    context: 32_768,
    rope_base: 1e6,
    eps: 1e-6,
    sub_norms: false,
    qk_norms: true,
    tied: true,
    mtp: false,
    yarn: None,
};

const QWEN35: Shape = Shape {
    name: "qwen35-4b",
    architecture: "qwen35",
    hidden: 2560,
    ffn: 9216,
    layers: 32,
    heads: 16,
    kv_heads: 4,
    head_dim: 256,
    delta: (16, 32),
    vocab: 248_320,
    context: 262_144,
    rope_base: 1e7,
    ..BONSAI
};

/// Elements of a key and of a value in Gated DeltaNet, and tokens that its convolution sees.
const DELTA_DIM: usize = 128;
const KERNEL: usize = 4;

const SHAPES: [Shape; 12] = [
    BITNET_2B,
    // The only BitNet architecture that llama.cpp has.
    Shape { name: "bitnet-2b-silu", architecture: "bitnet", ..BITNET_2B },
    Shape {
        name: "bitnet-large",
        architecture: "bitnet",
        hidden: 1536,
        ffn: 4096,
        layers: 24,
        heads: 16,
        kv_heads: 16,
        vocab: 32_002,
        context: 2048,
        rope_base: 10_000.0,
        ..BITNET_2B
    },
    Shape {
        name: "bitnet-3b",
        architecture: "bitnet",
        hidden: 3200,
        ffn: 8640,
        layers: 26,
        heads: 32,
        kv_heads: 32,
        vocab: 32_002,
        context: 2048,
        rope_base: 10_000.0,
        ..BITNET_2B
    },
    LLAMA_1B,
    Shape { name: "llama-8b", hidden: 4096, ffn: 14_336, layers: 32, tied: false, ..LLAMA_1B },
    BONSAI,
    Shape {
        name: "bonsai-8b",
        hidden: 4096,
        ffn: 12_288,
        layers: 36,
        heads: 32,
        context: 65_536,
        tied: false,
        yarn: Some((4.0, 16_384)),
        ..BONSAI
    },
    QWEN35,
    Shape { name: "qwen35-4b-mtp", mtp: true, ..QWEN35 },
    Shape {
        name: "bonsai-27b",
        hidden: 5120,
        ffn: 17_408,
        layers: 64,
        heads: 24,
        delta: (16, 48),
        tied: false,
        ..QWEN35
    },
    Shape {
        name: "maple-20b",
        architecture: "maple",
        ffn: 512,
        layers: 24,
        kv_heads: 4,
        experts: (256, 8, 512),
        context: 131_072,
        tied: false,
        ..BONSAI
    },
];

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
    let known = || SHAPES.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
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
    let data = |index: usize, out: &mut dyn Write| random(&file.list[index], index as u64, &common, out);
    let written = write_file(Path::new(out), &metadata(shape, layers), &tensors, data, |_| Ok(()));
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
    let spelled = |d: &DType| if *d == DType::I2S { "i2_s".into() } else { format!("{d:?}").to_lowercase() };
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
        self.list.push(Tensor { name, dims, dtype, norm: 1.0, lean: self.lean.filter(|_| leans) });
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
        if s.mtp { self.further(s, layers) } else { Ok(()) }
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

impl Shape {
    /// Elements of a head that are rotated.
    fn rotated(&self) -> usize {
        self.head_dim()
            / if self.delta.1 > 0 {
                4
            } else if self.experts.0 > 0 {
                2
            } else {
                1
            }
    }

    fn head_dim(&self) -> usize {
        if self.head_dim == 0 { self.hidden / self.heads } else { self.head_dim }
    }
}

fn metadata(s: &Shape, layers: usize) -> Vec<(String, Meta)> {
    let key = |k: &str| format!("{}.{k}", s.architecture);
    let u32s = [
        ("context_length", s.context),
        ("embedding_length", s.hidden as u32),
        ("block_count", layers as u32 + u32::from(s.mtp)),
        ("feed_forward_length", s.ffn as u32),
        ("attention.head_count", s.heads as u32),
        ("attention.head_count_kv", s.kv_heads as u32),
        ("attention.key_length", s.head_dim() as u32),
        ("attention.value_length", s.head_dim() as u32),
        ("rope.dimension_count", s.rotated() as u32),
        ("vocab_size", s.vocab as u32),
    ];
    let mut pairs: Vec<(String, Meta)> = vec![
        ("general.architecture".into(), s.architecture.into()),
        ("general.name".into(), Meta::Str(format!("synthetic {}", s.name))),
        (key("attention.layer_norm_rms_epsilon"), Meta::F32(s.eps)),
        (key("rope.freq_base"), Meta::F32(s.rope_base)),
    ];
    pairs.extend(u32s.map(|(k, v)| (key(k), Meta::U32(v))));
    if s.mtp {
        pairs.push((key("nextn_predict_layers"), Meta::U32(1)));
    }
    let (key_heads, value_heads) = s.delta;
    if value_heads > 0 {
        let sizes = [
            ("full_attention_interval", 4),
            ("ssm.conv_kernel", KERNEL),
            ("ssm.state_size", DELTA_DIM),
            ("ssm.group_count", key_heads),
            ("ssm.time_step_rank", value_heads),
            ("ssm.inner_size", value_heads * DELTA_DIM),
        ];
        pairs.extend(sizes.map(|(k, v)| (key(k), Meta::U32(v as u32))));
        pairs.push((key("rope.dimension_sections"), Meta::I32s(vec![11, 11, 10, 0])));
    }
    let (count, used, width) = s.experts;
    if count > 0 {
        let sizes = [
            ("expert_count", count),
            ("expert_used_count", used),
            ("expert_feed_forward_length", width),
            ("attention.sliding_window", 512),
        ];
        pairs.extend(sizes.map(|(k, v)| (key(k), Meta::U32(v as u32))));
        let windowed = (1..=layers).map(|layer| !layer.is_multiple_of(4)).collect();
        pairs.push((key("attention.sliding_window_pattern"), Meta::Bools(windowed)));
        pairs.push((key("swiglu_clamp_exp"), Meta::F32s(vec![7.0; layers])));
    }
    if let Some((factor, context)) = s.yarn {
        pairs.extend([
            (key("rope.scaling.type"), "yarn".into()),
            (key("rope.scaling.factor"), Meta::F32(factor)),
            (key("rope.scaling.original_context_length"), Meta::U32(context)),
        ]);
    }
    pairs.extend(tokenizer(s.vocab));
    pairs
}

/// A token for each byte, two control tokens, and fillers: a tokenizer of the model's size without a training text.
fn tokenizer(vocab: usize) -> Vec<(String, Meta)> {
    // GPT-2's stand-ins: printable bytes are themselves, the others follow from U+0100 on.
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let mut tokens: Vec<String> = (0..256u32)
        .map(|b| {
            let c = if printable(b) { b } else { next };
            next += u32::from(!printable(b));
            char::from_u32(c).map(String::from).unwrap_or_default()
        })
        .collect();
    tokens.extend(["<|begin|>".into(), "<|end|>".into()]);
    tokens.extend((tokens.len()..vocab).map(|i| format!("<|filler_{i}|>")));
    let types = (0..vocab)
        .map(|i| {
            if i < 256 {
                1
            } else if i < 258 {
                3
            } else {
                5
            }
        })
        .collect();
    let key = |k: &str| format!("tokenizer.ggml.{k}");
    vec![
        (key("model"), "gpt2".into()),
        (key("pre"), "gpt-2".into()),
        (key("tokens"), Meta::Strs(tokens)),
        (key("token_type"), Meta::I32s(types)),
        (key("merges"), Meta::Strs(Vec::new())),
        (key("bos_token_id"), Meta::U32(256)),
        (key("eos_token_id"), Meta::U32(257)),
    ]
}

/// Random blocks of about the size that trained weights have: mean square 1 over the columns.
fn random(tensor: &Tensor, seed: u64, common: &[f32], out: &mut dyn Write) -> Result<u32> {
    let (dtype, cols) = (tensor.dtype, tensor.dims[0] as usize);
    let rows = tensor.dims[1..].iter().product::<u64>() as usize;
    let scale = 1.0 / (cols as f32).sqrt();
    let mut rng = SplitMix(seed);
    let (elements, block) = dtype.block();
    let mut row = vec![0; dtype.row_prefix() + cols / elements * block];
    // I2_S is flattened; 3B's rows end within its blocks.
    if dtype == DType::I2S {
        row.resize(cols / 4, 0);
    }
    let mut first = Vec::new();
    for n in 0..rows {
        let (prefix, blocks) = row.split_at_mut(dtype.row_prefix());
        match prefix.len() {
            2 => prefix.copy_from_slice(&f16::from_f32(scale).to_le_bytes()),
            4 => prefix.copy_from_slice(&scale.to_le_bytes()),
            _ => {}
        }
        let norm = (rows == 1).then_some(tensor.norm);
        fill(dtype, scale, &mut rng, blocks, norm);
        match tensor.lean {
            Some(lean) if dtype == DType::I2S => against(&common[..cols / 2], lean, &mut rng, blocks),
            Some(_) if n == 0 => first.extend_from_slice(&blocks[..blocks.len() / block / 2 * block]),
            Some(_) => blocks[..first.len()].copy_from_slice(&first),
            None => {}
        }
        write(out, &row)?;
    }
    if dtype == DType::I2S {
        let mut tail = [0; 32];
        tail[..4].copy_from_slice(&scale.to_le_bytes());
        write(out, &tail)?;
    }
    Ok(dtype.file_id())
}

/// Makes some weights of a row of I2_S the negative sign of `common`.
fn against(common: &[f32], lean: f32, rng: &mut SplitMix, row: &mut [u8]) {
    for (column, value) in common.iter().enumerate() {
        if (rng.draw() % 10_000) as f32 >= 10_000.0 * lean {
            continue;
        }
        let (byte, shift) = (column / 128 * 32 + column % 32, 6 - 2 * (column % 128 / 32));
        let code = if *value > 0.0 { 0 } else { 2 };
        row[byte] = row[byte] & !(3 << shift) | code << shift;
    }
}

fn write(out: &mut dyn Write, bytes: &[u8]) -> Result<()> {
    out.write_all(bytes).map_err(|e| bn_engine::base::Error::new(bn_engine::base::Status::Io, e.to_string()))
}

/// Offsets of the f16 scales in a quantized block.
fn scales(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::TQ1_0 => &[52],
        DType::TQ2_0 => &[64],
        DType::PTQ1_0 => &[26],
        DType::MXFP4 => &[],
        _ => &[0],
    }
}

fn fill(dtype: DType, scale: f32, rng: &mut SplitMix, buffer: &mut [u8], norm: Option<f32>) {
    // Four codes 0, 1, 2 in a byte.
    let trits = |rng: &mut SplitMix| {
        let n = rng.draw() % 81;
        ((n % 3) | ((n / 3 % 3) << 2) | ((n / 9 % 3) << 4) | ((n / 27) << 6)) as u8
    };
    let value = |rng: &mut SplitMix| (rng.draw() % 4096) as f32 / 2048.0 - 1.0;
    if matches!(dtype, DType::I2S | DType::IQ2_BN) {
        return buffer.iter_mut().for_each(|b| *b = trits(rng));
    }
    for block in buffer.chunks_exact_mut(dtype.block().1) {
        match dtype {
            DType::F32 => {
                let x = value(rng);
                let x = norm.map_or(scale * x, |size| size * (1.0 + 0.1 * x));
                block.copy_from_slice(&x.to_le_bytes());
            }
            DType::F16 => block.copy_from_slice(&f16::from_f32(scale * value(rng)).to_le_bytes()),
            DType::BF16 => block.copy_from_slice(&half::bf16::from_f32(scale * value(rng)).to_le_bytes()),
            _ => {
                // ceil(n * 256 / 243): five trits.
                let byte = |rng: &mut SplitMix| match dtype {
                    DType::TQ2_0 | DType::Q2_0 | DType::Q2_0_128 => trits(rng),
                    DType::TQ1_0 | DType::PTQ1_0 | DType::IQ1_BN => {
                        ((rng.draw() % 243 * 256).div_ceil(243)) as u8
                    }
                    _ => rng.draw() as u8,
                };
                block.iter_mut().for_each(|b| *b = byte(rng));
                use DType::{PTQ1_0, Q1_0, Q2_0, Q2_0_128, TQ1_0, TQ2_0};
                let ternary = matches!(dtype, TQ1_0 | PTQ1_0 | TQ2_0 | Q1_0 | Q2_0 | Q2_0_128);
                // Sub-blocks of K-quants have scales of up to 63 of their own, codes go to 127.
                let step = f16::from_f32(if ternary { scale } else { scale / 256.0 }).to_le_bytes();
                if dtype == DType::MXFP4 {
                    // A power of two near the scale's twentieth: codes go to 12.
                    block[0] = ((scale / 10.0).to_bits() >> 23) as u8;
                }
                if dtype != DType::IQ1_BN {
                    scales(dtype).iter().for_each(|&at| block[at..at + 2].copy_from_slice(&step));
                }
            }
        }
    }
}
