//! Reads a decoder from a checkpoint, and checks that it has all necessary tensors and no others.

mod encoder;
mod experts;
mod latent;
mod mamba;
mod score;

use super::checkpoint::Checkpoint;
use super::config::{Block, DecoderConfig, RopeConfig};
use super::decoder::{
    Both, Convolution, Decoder, FeedForward, Gated, GatedDelta, Layer, LayerInput, LayerInputs, Mixer, Mtp,
    Ropes, SelfAttention, Weights,
};
use super::keys::LAYER_SCALE;
use super::options::LoadOptions;
use crate::base::{Error, Result, Status, reserve};
use crate::formats::gguf::expert;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::gemm::ternary::{self, Columns};
use crate::kernels::{DType, Matrix, Pool, isa};
use crate::ops::{Activation, ConvShape, DeltaNet, DeltaShape, Norm, Projections, Rope, ShortConv};
use std::collections::HashSet;
use std::sync::Arc;

/// `norm` with its results times `by`; `norm` itself if that changes nothing.
fn scaled(norm: &Norm, by: f32) -> Norm {
    if by == 1.0 {
        norm.clone()
    } else {
        let all = |vector: &Arc<[f32]>| vector.iter().map(|w| w * by).collect();
        Norm { weight: all(&norm.weight), bias: norm.bias.as_ref().map(all), eps: norm.eps }
    }
}

/// The matrices of layer `index` by their whole names.
fn named(index: usize, products: Vec<(&str, usize)>) -> Vec<(String, usize)> {
    products.into_iter().map(|(part, rows)| (format!("blk.{index}.{part}"), rows)).collect()
}

/// Whether most of a matrix is not used soon, and may never be: experts, and rows of single tokens.
fn seldom(name: &str) -> bool {
    name.contains("_exps.") || name.starts_with("per_layer_token_embd.")
}

/// Divisors of rope frequencies are at least 1 in real files. A tiny one would make angles infinite.
const MIN_ROPE_FACTOR: f32 = 1e-3;

/// The message of a load that the progress callback cancelled.
pub const CANCELLED: &str = "the progress callback gave the load up";

/// The name of the product at the beginning of a block of multi-token prediction.
pub fn join_of(c: &DecoderConfig) -> String {
    format!("blk.{}.nextn.eh_proj.weight", c.layers)
}

/// Takes tensors out of a checkpoint, and remembers which.
pub struct Reader<'a> {
    files: &'a dyn Checkpoint,
    pool: &'a Pool,
    used: HashSet<String>,
    /// Bytes read so far, and bytes in total.
    done: u64,
    all: u64,
    /// Bytes of the matrices so far, mapped or packed, and their maximum (0: any).
    held: u64,
    limit: u64,
    progress: &'a mut dyn FnMut(f32, &str) -> bool,
}

impl<'a> Reader<'a> {
    pub fn new(
        files: &'a dyn Checkpoint,
        limit: u64,
        pool: &'a Pool,
        progress: &'a mut dyn FnMut(f32, &str) -> bool,
    ) -> Self {
        let all = files.tensor_bytes().max(1);
        Self { files, pool, used: HashSet::new(), done: 0, all, held: 0, limit, progress }
    }

    /// Reads a decoder, with `mtp` its block of multi-token prediction too.
    pub fn decoder(mut self, mut config: DecoderConfig, options: &LoadOptions) -> Result<Decoder> {
        let mtp = options.mtp;
        let (hidden, vocab) = (config.hidden, config.vocab_size);
        let embedding = self.dense("token_embd.weight", vocab, hidden)?;
        let tied = !self.files.has("output.weight");
        let head = if tied { embedding.clone() } else { self.dense("output.weight", vocab, hidden)? };
        let final_norm = self.norm(config.family.final_norm.1, hidden, &config)?;
        let inputs = config.layer_inputs.map(|width| self.inputs(width, &config)).transpose()?;
        let mut layers = Vec::new();
        reserve(&mut layers, config.layers + usize::from(mtp), "layers")?;
        (0..config.layers)
            .try_for_each(|index| self.layer(index, &config).map(|layer| layers.push(layer)))?;
        if options.skip_zeros {
            self.copy_columns(&config, &mut layers)?;
        }
        let mtp = match mtp {
            true => {
                config.blocks.push(Block { sparse: config.experts.is_some(), ..Block::default() });
                let mtp = self.mtp(&config, &final_norm)?;
                layers.push(self.layer(config.layers, &config)?);
                Some(mtp)
            }
            false => None,
        };
        let ropes = self.ropes(&config)?;
        let score = self.score_of(&config, &head)?;
        self.nothing_left(&config)?;
        let head_norm = scaled(&final_norm, 1.0 / config.logit_scale);
        let (what, name) = (self.files.what(), if tied { "token_embd.weight" } else { "output.weight" });
        let (mut fold, mut unfold) = (None, None);
        if let Some(rotations) = &config.rotations {
            fold = rotations.of([name].into_iter(), hidden, None, what)?;
            if rotations.embedding {
                unfold = Some(rotations.fold("token_embd.weight", hidden, None, what)?);
            }
        }
        let head = Projections { fold: fold.map(Arc::new), ..[head].into() };
        let weights =
            Weights { embedding, unfold, inputs, layers, mtp, final_norm, head_norm, head, ropes, score };
        Ok(Decoder::new(config, weights, self.files.other_bytes()))
    }

    /// The part of multi-token prediction beside its layer.
    fn mtp(&mut self, c: &DecoderConfig, final_norm: &Norm) -> Result<Mtp> {
        let name = |part: &str| format!("blk.{}.nextn.{part}", c.layers);
        let own_norm = name("shared_head_norm");
        let norm = match self.files.has(&format!("{own_norm}.weight")) {
            true => self.norm(&own_norm, c.hidden, c)?,
            false => final_norm.clone(),
        };
        Ok(Mtp {
            norms: [self.norm(&name("enorm"), c.hidden, c)?, self.norm(&name("hnorm"), c.hidden, c)?],
            join: [self.matrix(&join_of(c), c.hidden, 2 * c.hidden)?].into(),
            head_norm: scaled(&norm, 1.0 / c.logit_scale),
            norm,
        })
    }

    fn layer(&mut self, index: usize, c: &DecoderConfig) -> Result<Layer> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let (hidden, parts) = (c.hidden, c.parts);
        let attn_norm = self.layer_norm(index, "attn_norm", c)?;
        let recurrent = c.blocks[index].recurrent;
        let (mixer, (output, from)) = match (c.delta, c.conv, &c.mamba) {
            (Some(shape), ..) if recurrent => (self.recurrent(index, shape, c)?, ("ssm_out", shape.values())),
            (_, Some(shape), _) if recurrent => {
                (self.short_conv(index, shape, c)?, ("shortconv.out_proj", shape.channels))
            }
            (.., Some(mamba)) if recurrent => {
                (Mixer::Mamba(self.mamba(index, mamba, c)?), ("ssm_out", mamba.shape.inner()))
            }
            _ => match &c.latent {
                Some(latent) => (
                    Mixer::Latent(Box::new(self.latent(index, latent, c)?)),
                    ("attn_output", latent.shape.values()),
                ),
                None => {
                    let shape = c.attention_of(index);
                    (self.attention(index, c)?, ("attn_output", shape.heads * shape.head_dim))
                }
            },
        };
        let beside = match c.mamba.as_ref().filter(|_| c.blocks[index].beside) {
            Some(mamba) => Some(self.beside(index, mamba, c)?),
            None => None,
        };
        let ffn_norm = c.family.ffn_norm;
        let post_norm = Some("post_attention_norm").filter(|name| *name != ffn_norm);
        Ok(Layer {
            attn_norm,
            mixer,
            place: c.place(index),
            attn_sub_norm: self.layer_norm(index, "attn_sub_norm", c)?,
            // Those of recurrent layers never have one.
            output: self.projections(&[(name(output), hidden)], from, parts.output_bias && !recurrent, c)?,
            beside,
            attn_post_norm: post_norm.map_or(Ok(None), |name| self.layer_norm(index, name, c))?,
            ffn_norm: self.layer_norm(index, ffn_norm, c)?,
            feed_forward: self.feed_forward(index, c)?,
            ffn_post_norm: self.layer_norm(index, "post_ffw_norm", c)?,
            input: c.layer_inputs.map(|width| self.input(index, width, c)).transpose()?,
            scale: None,
        })
        .and_then(|layer| self.scale(index, layer, c))
    }

    fn feed_forward(&mut self, index: usize, c: &DecoderConfig) -> Result<FeedForward> {
        let beside = c.family.experts.is_some_and(|experts| experts.beside);
        Ok(match c.experts.filter(|_| c.blocks[index].sparse) {
            None => FeedForward::Gated(self.gated(index, c)?),
            Some(experts) if beside => {
                let name = |part: &str| format!("blk.{index}.{part}");
                FeedForward::Both(Box::new(Both {
                    dense: self.gated(index, c)?,
                    experts: self.experts(index, &experts, c)?,
                    experts_norm: self.norm(&name("pre_ffw_norm_2"), c.hidden, c)?,
                    post_norms: [
                        self.norm(&name("post_ffw_norm_1"), c.hidden, c)?,
                        self.norm(&name("post_ffw_norm_2"), c.hidden, c)?,
                    ],
                }))
            }
            Some(experts) => FeedForward::Experts(Box::new(self.experts(index, &experts, c)?)),
        })
    }

    fn gated(&mut self, index: usize, c: &DecoderConfig) -> Result<Gated> {
        let (ffn, bias, down) = (c.ffn_of(index), c.parts.ffn_bias, format!("blk.{index}.ffn_down"));
        Ok(Gated {
            gate_up: self.projections(&named(index, c.gate_up_products(ffn)), c.hidden, bias, c)?,
            sub_norm: self.layer_norm(index, "ffn_sub_norm", c)?,
            down: self.projections(&[(down, c.hidden)], ffn, bias, c)?,
        })
    }

    /// Copies the down projections by columns.
    fn copy_columns(&mut self, c: &DecoderConfig, layers: &mut [Layer]) -> Result<()> {
        for layer in layers {
            let down = match &mut layer.feed_forward {
                FeedForward::Gated(gated) if c.activation == Activation::Relu2 => &mut gated.down,
                _ => return Err(self.no_zeros("its feed-forward has no ReLU²")),
            };
            let [matrix] = &down.matrices[..] else { continue };
            if !Columns::takes(matrix.dtype) {
                return Err(self.no_zeros(&format!("its weights are {:?}", matrix.dtype)));
            }
            self.hold(Columns::bytes(matrix.rows, matrix.cols))?;
            down.columns = Some(Arc::new(Columns::new(self.pool, matrix)?));
        }
        Ok(())
    }

    fn no_zeros(&self, why: &str) -> Error {
        let what = self.files.what();
        Error::unsupported(format!(
            "{what}: skip_zeros is set, which is for ternary BitNet models with ReLU²: {why}"
        ))
    }

    /// The inputs of single layers. Both parts are halved in power, and the product is divided by the root of its
    /// width.
    fn inputs(&mut self, width: usize, c: &DecoderConfig) -> Result<LayerInputs> {
        let all = c.layers * width;
        let half = std::f32::consts::FRAC_1_SQRT_2;
        let norm = self.norm("per_layer_proj_norm", width, c)?;
        // The root is left out before the norm, so its eps is that of larger rows.
        let norm = Norm { eps: norm.eps * c.hidden as f32, ..scaled(&norm, half) };
        Ok(LayerInputs {
            table: self.dense("per_layer_token_embd.weight", c.vocab_size, all)?,
            scale: (width as f32).sqrt() * half,
            projection: self.projections(&[("per_layer_model_proj".into(), all)], c.hidden, false, c)?,
            norm,
        })
    }

    /// How a layer takes its input.
    fn input(&mut self, index: usize, width: usize, c: &DecoderConfig) -> Result<LayerInput> {
        let name = |part: &str| format!("blk.{index}.{part}");
        Ok(LayerInput {
            gate: self.projections(&[(name("inp_gate"), width)], c.hidden, false, c)?,
            output: self.projections(&[(name("proj"), c.hidden)], width, false, c)?,
            post_norm: self.norm(&name("post_norm"), c.hidden, c)?,
        })
    }

    /// Adds the scale of a layer, if the files have one, to the residual and to the norm of the layer's last update.
    fn scale(&mut self, index: usize, mut layer: Layer, c: &DecoderConfig) -> Result<Layer> {
        let name = format!("blk.{index}.{LAYER_SCALE}.weight");
        if !c.family.layer_scales || !self.files.has(&name) {
            return Ok(layer);
        }
        let by = self.vector(&name, 1)?[0];
        match (&mut layer.input, &mut layer.ffn_post_norm) {
            (Some(LayerInput { post_norm, .. }), _) | (None, Some(post_norm)) => {
                *post_norm = scaled(post_norm, by);
            }
            (None, None) => return Err(Error::internal("the scale of a layer whose update has no norm")),
        }
        layer.scale = Some(by).filter(|by| *by != 1.0);
        Ok(layer)
    }

    fn attention(&mut self, index: usize, c: &DecoderConfig) -> Result<Mixer> {
        let qkv = named(index, c.qkv_products_of(index));
        let (shape, shared) = (c.attention_of(index), c.blocks[index].shares.is_some());
        let q_norm = self.layer_norm(index, "attn_q_norm", c)?;
        let k_norm = if shared { q_norm.clone() } else { self.layer_norm(index, "attn_k_norm", c)? };
        let ones = |eps| Norm { weight: vec![1.0; shape.head_dim].into(), bias: None, eps };
        let sinks = match c.family.sinks {
            true => Some(self.vector(&format!("blk.{index}.attn_sinks.weight"), c.attention.heads)?),
            false => None,
        };
        Ok(Mixer::Attention(SelfAttention {
            qkv: self.projections(&qkv, c.hidden, c.parts.qkv_bias, c)?,
            gate: match c.family.head_gates {
                true => {
                    let gate = [(format!("blk.{index}.attn_gate"), c.attention.heads)];
                    Some(self.projections(&gate, c.hidden, false, c)?)
                }
                false => None,
            },
            qk_norms: if let (Some(q), Some(k)) = (q_norm, k_norm) { Some([q, k]) } else { None },
            value_norm: shape.value_eps.map(ones),
            shared,
            sinks,
        }))
    }

    fn recurrent(&mut self, index: usize, shape: DeltaShape, c: &DecoderConfig) -> Result<Mixer> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let inputs = [(name("attn_qkv"), shape.channels()), (name("attn_gate"), shape.values())];
        let heads = shape.value_heads;
        let gates = [(name("ssm_beta"), heads), (name("ssm_alpha"), heads)];
        let a = self.vector(&name("ssm_a"), heads)?;
        if a.iter().any(|a| *a > 0.0) {
            let what = self.files.what();
            return Err(Error::bad_model(format!("{what}: tensor '{}' makes a state grow", name("ssm_a"))));
        }
        let weight = self.vector(&name("ssm_norm.weight"), shape.value_dim)?;
        Ok(Mixer::DeltaNet(GatedDelta {
            inputs: self.projections(&inputs, c.hidden, false, c)?,
            gates: self.projections(&gates, c.hidden, false, c)?,
            net: DeltaNet {
                shape,
                conv: self.convolution(&name("ssm_conv1d.weight"), shape.channels(), shape.kernel)?,
                a,
                dt_bias: self.vector(&name("ssm_dt.bias"), heads)?,
                norm: Norm { weight, bias: None, eps: c.rms_eps },
            },
        }))
    }

    fn short_conv(&mut self, index: usize, shape: ConvShape, c: &DecoderConfig) -> Result<Mixer> {
        let name = |part: &str| format!("blk.{index}.shortconv.{part}");
        let weights = self.convolution(&name("conv.weight"), shape.channels, shape.kernel)?;
        Ok(Mixer::ShortConv(Convolution {
            input: self.projections(&[(name("in_proj"), 3 * shape.channels)], c.hidden, false, c)?,
            net: ShortConv { shape, weights },
        }))
    }

    /// The weights of a short convolution, `[kernel, channels]`. Files have them by channel.
    fn convolution(&mut self, name: &str, channels: usize, kernel: usize) -> Result<Arc<[f32]>> {
        let rows = self.rows(name, channels, kernel)?;
        Ok((0..channels * kernel).map(|at| rows[at % channels * kernel + at / channels]).collect())
    }

    /// A small matrix as f32.
    fn rows(&mut self, name: &str, count: usize, cols: usize) -> Result<Vec<f32>> {
        let matrix = self.files.matrix(self.pool, name, count, cols)?;
        if !matches!(matrix.dtype, DType::F32 | DType::F16 | DType::BF16) {
            let why = format!("is {:?}; F32, F16 and BF16 are read here", matrix.dtype);
            return Err(Error::unsupported(format!("{}: tensor '{name}' {why}", self.files.what())));
        }
        self.hold(matrix.data.len())?;
        let mut rows: Vec<f32> = Vec::new();
        reserve(&mut rows, count * cols, "a small matrix")?;
        rows.resize(count * cols, 0.0);
        for (n, row) in rows.chunks_exact_mut(cols).enumerate() {
            dequantize_row(isa(), &matrix, n, row);
        }
        if let Some(value) = rows.iter().find(|value| !value.is_finite()) {
            return Err(Error::bad_model(format!("{}: tensor '{name}' holds {value}", self.files.what())));
        }
        self.took(name, self.files.bytes_of(name))?;
        Ok(rows)
    }

    /// A norm of a layer, if the model has it.
    fn layer_norm(&mut self, index: usize, part: &str, c: &DecoderConfig) -> Result<Option<Norm>> {
        let width = c.norm_width_of(index, part);
        width.map(|width| self.norm(&format!("blk.{index}.{part}"), width, c)).transpose()
    }

    /// Reads matrices (name, rows) of `cols` columns that are multiplied with the same activations, with their biases
    /// and norms. `Unsupported` if some are ternary and others are not.
    fn projections(
        &mut self,
        wanted: &[(String, usize)],
        cols: usize,
        bias: bool,
        c: &DecoderConfig,
    ) -> Result<Projections> {
        let (mut matrices, mut norms, mut biases) = (Vec::new(), Vec::new(), Vec::new());
        for (name, rows) in wanted {
            matrices.push(self.matrix(&format!("{name}.weight"), *rows, cols)?);
            if c.parts.projection_norms {
                // LlamaRMSNorm for any body, so without the body's offset.
                let weight = self.vector(&format!("{name}_norm_in.weight"), cols)?;
                norms.push(Norm { weight, bias: None, eps: c.projection_eps });
            }
            if bias {
                biases.extend_from_slice(&self.vector(&format!("{name}.bias"), *rows)?);
            }
        }
        let odd = |m: &Matrix| m.dtype.is_ternary() != matrices[0].dtype.is_ternary();
        if let Some(odd) = matrices.iter().position(odd) {
            return Err(Error::unsupported(format!(
                "{}: '{}.weight' is {:?} and '{}.weight' is {:?}; they have to be both ternary or both not",
                self.files.what(),
                wanted[0].0,
                matrices[0].dtype,
                wanted[odd].0,
                matrices[odd].dtype
            )));
        }
        let fold = match &c.rotations {
            Some(rotations) => {
                let names: Vec<_> = wanted.iter().map(|(name, _)| format!("{name}.weight")).collect();
                rotations.of(names.iter().map(String::as_str), cols, c.delta.as_ref(), self.files.what())?
            }
            None => None,
        };
        Ok(Projections {
            matrices,
            norms,
            bias: bias.then(|| biases.into()),
            fold: fold.map(Arc::new),
            columns: None,
        })
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let matrix = self.files.matrix(self.pool, name, rows, cols)?;
        self.hold(matrix.data.len())?;
        if matrix.dtype.is_ternary() {
            ternary::validate(self.pool, &matrix)
                .map_err(|e| Error::new(e.status, format!("{}: tensor '{name}': {e}", self.files.what())))?;
        } else if matrix.data.len() as u64 == self.files.bytes_of(name) && !seldom(name) {
            self.prefault(name, &matrix.data)?;
            return Ok(matrix);
        }
        self.took(name, self.files.bytes_of(name))?;
        Ok(matrix)
    }

    /// Refuses weights that exceed the limit before more of them are packed.
    fn hold(&mut self, bytes: usize) -> Result<()> {
        self.held += bytes as u64;
        if self.limit == 0 || self.held <= self.limit {
            return Ok(());
        }
        Err(Error::new(
            Status::MemoryLimit,
            format!(
                "{}: memory_limit_bytes = {} is too small for its weights",
                self.files.what(),
                self.limit
            ),
        ))
    }

    /// Reads the embedding or the head. It may not be ternary: no model that we know was trained with such a one.
    fn dense(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let matrix = self.matrix(name, rows, cols)?;
        match matrix.dtype.is_ternary() {
            false => Ok(matrix),
            true => Err(Error::unsupported(format!(
                "{}: tensor '{name}' is {:?}; an embedding or output head must not be ternary",
                self.files.what(),
                matrix.dtype
            ))),
        }
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Arc<[f32]>> {
        let vector = self.files.vector(name, len)?;
        if let Some(value) = vector.iter().find(|value| !value.is_finite()) {
            return Err(Error::bad_model(format!("{}: tensor '{name}' holds {value}", self.files.what())));
        }
        self.took(name, self.files.bytes_of(name))?;
        Ok(vector)
    }

    /// The weights of a norm, to which `offset` is added.
    fn norm_weight(&mut self, name: &str, len: usize, offset: f32) -> Result<Arc<[f32]>> {
        let weight = self.vector(&format!("{name}.weight"), len)?;
        Ok(if offset == 0.0 { weight } else { weight.iter().map(|w| w + offset).collect() })
    }

    /// The norm whose weights are the tensor `name` with `.weight`.
    fn norm(&mut self, name: &str, len: usize, c: &DecoderConfig) -> Result<Norm> {
        let weight = self.norm_weight(name, len, c.norm_offset)?;
        let part = name.rsplit('.').next().unwrap_or(name);
        let bias = match c.family.layer_norms {
            true => Some(self.vector(&format!("{name}.bias"), len)?),
            false => None,
        };
        Ok(Norm { weight, bias, eps: c.norm_eps(part) })
    }

    /// The configuration's frequencies, divided by the file's own factors if it has them (GGUF's form of Llama 3.1's
    /// scaling). Of two ropes the first that rotates is scaled.
    fn ropes(&mut self, c: &DecoderConfig) -> Result<Vec<Ropes>> {
        let mut ropes: Vec<_> =
            c.ropes.iter().map(|rope| (rope.inv_freq(), rope.attention_factor())).collect();
        if self.files.has("rope_freqs.weight") {
            let scaled = ropes.iter().position(|(inv_freq, _)| !inv_freq.is_empty()).unwrap_or(0);
            let inv_freq = &mut ropes[scaled].0;
            let factors = self.vector("rope_freqs.weight", inv_freq.len())?;
            for (freq, factor) in inv_freq.iter_mut().zip(factors.iter()) {
                if *factor < MIN_ROPE_FACTOR {
                    let what = self.files.what();
                    return Err(Error::bad_model(format!("{what}: rope_freqs.weight holds {factor}")));
                }
                *freq /= factor;
            }
        }
        let rope =
            |inv_freq: Vec<f32>, factor| Rope { inv_freq: inv_freq.into(), style: c.rope_style, factor };
        let both = |(of, (inv_freq, factor)): (&RopeConfig, _)| Ropes {
            rope: rope(inv_freq, factor),
            long: of
                .long()
                .filter(|(above, _)| c.context_length > *above)
                .map(|(above, inv_freq)| (above, rope(inv_freq, factor))),
        };
        Ok(c.ropes.iter().zip(ropes).map(both).collect())
    }

    fn took(&mut self, name: &str, bytes: u64) -> Result<()> {
        // A GGUF file has the experts of a layer in one tensor.
        let stacked = expert(name).map(|(all, _)| all).filter(|all| self.files.has(all));
        let used = stacked.as_deref().unwrap_or(name);
        if !self.used.contains(used) {
            let made = self.used.try_reserve(1);
            made.map_err(|_| Error::out_of_memory("tensor names", 24 * self.used.len()))?;
            self.used.insert(used.into());
        }
        self.done += bytes;
        let fraction = (self.done as f64 / self.all as f64).min(1.0);
        match (self.progress)(fraction as f32, name) {
            true => Err(Error::new(Status::Cancelled, CANCELLED)),
            false => Ok(()),
        }
    }

    /// Refuses tensors that are not used: they belong to a model that we do not know, so its answers would be wrong.
    /// Blocks that predict further tokens may be left.
    fn nothing_left(&self, c: &DecoderConfig) -> Result<()> {
        let unread = c.further > 0 && c.blocks.len() == c.layers;
        let block = |name: &str| name.strip_prefix("blk.")?.split_once('.')?.0.parse::<usize>().ok();
        let further = |name: &str| unread && block(name).is_some_and(|block| block >= c.layers);
        // Files may have the products that shared K and V replace.
        let replaced = |name: &str| {
            let part = name.splitn(3, '.').nth(2).unwrap_or_default();
            block(name).is_some_and(|block| c.blocks.get(block).is_some_and(|block| block.shares.is_some()))
                && ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"].contains(&part)
        };
        self.all_used(&|name| further(name) || replaced(name))
    }

    /// Refuses tensors that are not used, but for those that may be left.
    fn all_used(&self, may_be_left: &dyn Fn(&str) -> bool) -> Result<()> {
        let left = |name: &&String| !self.used.contains(*name) && !may_be_left(name);
        match self.files.names()?.iter().find(left) {
            None => Ok(()),
            Some(name) => Err(Error::unsupported(format!(
                "{}: tensor '{name}' belongs to no part of the model that this build knows",
                self.files.what()
            ))),
        }
    }

    /// Reads a byte of every page, so that the first step does not wait for the disk.
    fn prefault(&mut self, name: &str, data: &[u8]) -> Result<()> {
        const PAGE: usize = 4096;
        // Often enough for a quick cancel even on a slow disk.
        for part in data.chunks(16 << 20) {
            let sum = part.iter().step_by(PAGE).fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            std::hint::black_box(sum);
            self.took(name, part.len() as u64)?;
        }
        Ok(())
    }
}
