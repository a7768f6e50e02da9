//! From a path to a model: which one, what its file must hold, and that it holds nothing else.

use super::config::DecoderConfig;
use super::decoder::{Decoder, Layer, Weights};
use super::echo::Echo;
use super::{Facts, Loaded, Model};
use crate::base::{Error, Result, Status};
use crate::formats::gguf::Gguf;
use crate::kernels::{Matrix, Pool, ternary};
use crate::ops::{FusedOps, Norm, OpSet, Rope};
use crate::text::{ChatTemplate, Tokenizer};
use std::collections::HashSet;
use std::sync::Arc;

/// Severities that `load` logs with; the C API's numbers.
const WARN: i32 = 2;
const INFO: i32 = 3;

/// Divisors of rope frequencies are 1 and more in real files; a tiny one would make angles infinite.
const MIN_ROPE_FACTOR: f32 = 1e-3;

const MAX_ECHO_US: u32 = 1_000_000;

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The demo model inside the library.
    Embedded,
    Echo {
        us_per_token: u32,
    },
    File(String),
}

impl Source {
    /// None is the embedded model; `builtin:echo`, `builtin:echo?us_per_token=N`, or a path.
    pub fn parse(path: Option<&str>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::Embedded) };
        if path.is_empty() {
            return Err(Error::invalid("model_path is empty; NULL means the embedded model"));
        }
        let Some(name) = path.strip_prefix("builtin:") else { return Ok(Self::File(path.into())) };
        let (name, option) = match name.split_once('?') {
            Some((name, option)) => (name, Some(option)),
            None => (name, None),
        };
        if name != "echo" {
            return Err(Error::invalid(format!("model path 'builtin:{name}': there is only builtin:echo")));
        }
        let Some(option) = option else { return Ok(Self::Echo { us_per_token: 0 }) };
        let value = option.strip_prefix("us_per_token=").and_then(|value| value.parse().ok());
        let us_per_token = value.filter(|value| *value <= MAX_ECHO_US).ok_or_else(|| {
            Error::invalid(format!(
                "model path option '{option}': builtin:echo takes us_per_token=0 to {MAX_ECHO_US}"
            ))
        })?;
        Ok(Self::Echo { us_per_token })
    }
}

/// Loads a model whose steps run on `pool`. `progress` hears (fraction, tensor) and may give up by true.
pub fn load(
    source: &Source,
    pool: Arc<Pool>,
    log: &dyn Fn(i32, &str),
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<Loaded> {
    load_with_ops(source, Arc::new(FusedOps::new(pool)), log, progress)
}

/// As `load`, on any set of operations.
pub fn load_with_ops(
    source: &Source,
    ops: Arc<dyn OpSet>,
    log: &dyn Fn(i32, &str),
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<Loaded> {
    let gguf = match source {
        Source::Echo { us_per_token } => {
            let model = Box::new(Echo::new(*us_per_token));
            let tokenizer = Some(Arc::new(Tokenizer::bytes()?));
            return Ok(Loaded { model, tokenizer, chat: Some(Arc::new(Echo::chat_template()?)) });
        }
        Source::Embedded => embedded()?,
        Source::File(path) => Gguf::open(path)?,
    };
    load_gguf(&gguf, ops, log, progress)
}

/// As `load`, of a file already opened.
pub fn load_gguf(
    gguf: &Gguf,
    ops: Arc<dyn OpSet>,
    log: &dyn Fn(i32, &str),
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<Loaded> {
    let config = DecoderConfig::from_gguf(gguf)?;
    for key in config.unknown_keys(gguf) {
        log(WARN, &format!("{}: metadata key '{key}' is not known and not used", gguf.what()));
    }
    let tokenizer = tokenizer(gguf, config.vocab_size, log)?;
    let chat = ChatTemplate::from_gguf(gguf, &|message| log(WARN, message))?;
    let model = Reader { gguf, used: HashSet::new(), done: 0, owned: 0, progress }.decoder(config, ops)?;
    let Facts { architecture, name, parameters, layers, hidden_size, context_length, .. } = model.facts();
    let size = format!("{parameters} parameters, {layers} layers of {hidden_size}, context {context_length}");
    log(INFO, &format!("loaded {}: {name} ({architecture}), {size}", gguf.what()));
    Ok(Loaded { model: Box::new(model), tokenizer: tokenizer.map(Arc::new), chat: chat.map(Arc::new) })
}

#[cfg(feature = "demo-model")]
fn embedded() -> Result<Gguf> {
    /// Tensors in the file are aligned to 32 bytes from its start.
    #[repr(align(64))]
    struct Aligned<T: ?Sized>(T);
    static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../../models/bn-demo.gguf"));
    Gguf::from_bytes(crate::base::Bytes::new(&FILE.0), "the embedded model")
}

#[cfg(not(feature = "demo-model"))]
fn embedded() -> Result<Gguf> {
    Err(Error::unsupported(
        "no model_path, and this library was built without the feature demo-model: give a path",
    ))
}

/// A file without a tokenizer that we know still runs, on token ids.
fn tokenizer(gguf: &Gguf, vocab_size: usize, log: &dyn Fn(i32, &str)) -> Result<Option<Tokenizer>> {
    match Tokenizer::from_gguf(gguf, &|message| log(WARN, message)) {
        Ok(Some(tokenizer)) if tokenizer.vocab_size() > vocab_size => Err(Error::bad_model(format!(
            "{}: the tokenizer has {} tokens, the model {vocab_size}",
            gguf.what(),
            tokenizer.vocab_size()
        ))),
        Err(error) if error.status == Status::Unsupported => {
            log(WARN, &format!("prompts must be token ids: {error}"));
            Ok(None)
        }
        Ok(None) => {
            log(WARN, &format!("{}: there is no tokenizer in it; prompts must be token ids", gguf.what()));
            Ok(None)
        }
        result => result,
    }
}

/// Takes tensors out of a file, remembering which.
struct Reader<'a> {
    gguf: &'a Gguf,
    used: HashSet<String>,
    /// Bytes read so far, and those of them that were copied.
    done: u64,
    owned: u64,
    progress: &'a mut dyn FnMut(f32, &str) -> bool,
}

impl Reader<'_> {
    fn decoder(mut self, config: DecoderConfig, ops: Arc<dyn OpSet>) -> Result<Decoder> {
        let (hidden, vocab) = (config.hidden, config.vocab_size);
        let embedding = self.dense("token_embd.weight", vocab, hidden)?;
        let head = match self.gguf.tensor("output.weight") {
            Some(_) => self.dense("output.weight", vocab, hidden)?,
            None => embedding.clone(),
        };
        let final_norm = self.norm("output_norm.weight", hidden, &config)?;
        let layers = (0..config.layers).map(|index| self.layer(index, &config)).collect::<Result<_>>()?;
        let rope = self.rope(&config)?;
        self.nothing_left()?;
        let weights = Weights { embedding, layers, final_norm, head: [head], rope };
        Ok(Decoder::new(config, weights, self.gguf.file_bytes() as u64 + self.owned, ops))
    }

    fn layer(&mut self, index: usize, c: &DecoderConfig) -> Result<Layer> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let (q, kv) = (c.attention_width(), c.kv_width());
        Ok(Layer {
            attn_norm: self.norm(&name("attn_norm"), c.hidden, c)?,
            qkv: self.alike([
                (name("attn_q"), q, c.hidden),
                (name("attn_k"), kv, c.hidden),
                (name("attn_v"), kv, c.hidden),
            ])?,
            attn_sub_norm: self.sub_norm(&name("attn_sub_norm"), q, c)?,
            output: [self.matrix(&name("attn_output"), c.hidden, q)?],
            ffn_norm: self.norm(&name("ffn_norm"), c.hidden, c)?,
            gate_up: self.alike([(name("ffn_gate"), c.ffn, c.hidden), (name("ffn_up"), c.ffn, c.hidden)])?,
            ffn_sub_norm: self.sub_norm(&name("ffn_sub_norm"), c.ffn, c)?,
            down: [self.matrix(&name("ffn_down"), c.hidden, c.ffn)?],
        })
    }

    /// Matrices that are multiplied with the same activations: all ternary (int8 rows) or all dense (f32 rows).
    fn alike<const N: usize>(&mut self, wanted: [(String, usize, usize); N]) -> Result<[Matrix; N]> {
        let mut out = Vec::with_capacity(N);
        for (name, rows, cols) in &wanted {
            out.push(self.matrix(name, *rows, *cols)?);
        }
        if let Some(odd) = out.iter().position(|m: &Matrix| m.dtype.is_ternary() != out[0].dtype.is_ternary())
        {
            return Err(Error::unsupported(format!(
                "{}: '{}' is {:?} and '{}' is {:?}; they have to be both ternary or both not",
                self.gguf.what(),
                wanted[0].0,
                out[0].dtype,
                wanted[odd].0,
                out[odd].dtype
            )));
        }
        out.try_into().map_err(|_| Error::internal("one matrix for each name"))
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let matrix = self.gguf.matrix(name, rows, cols)?;
        if matrix.dtype.is_ternary() {
            ternary::validate(&matrix)
                .map_err(|e| Error::new(e.status, format!("{}: tensor '{name}': {e}", self.gguf.what())))?;
            self.took(name, matrix.data.len())?;
        } else {
            self.prefault(name, &matrix.data)?;
        }
        Ok(matrix)
    }

    /// The embedding and the head: quantizing their inputs to int8 is nothing that a model was trained for.
    fn dense(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let matrix = self.matrix(name, rows, cols)?;
        match matrix.dtype.is_ternary() {
            false => Ok(matrix),
            true => Err(Error::unsupported(format!(
                "{}: tensor '{name}' is {:?}; an embedding or output head must not be ternary",
                self.gguf.what(),
                matrix.dtype
            ))),
        }
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Arc<[f32]>> {
        let vector = self.gguf.vector_f32(name, len)?;
        if let Some(value) = vector.iter().find(|value| !value.is_finite()) {
            return Err(Error::bad_model(format!("{}: tensor '{name}' holds {value}", self.gguf.what())));
        }
        self.owned += 4 * len as u64;
        self.took(name, self.gguf.tensor(name).and_then(|t| t.byte_len).unwrap_or(0))?;
        Ok(vector)
    }

    fn norm(&mut self, name: &str, len: usize, c: &DecoderConfig) -> Result<Norm> {
        Ok(Norm { weight: self.vector(name, len)?, eps: c.rms_eps })
    }

    fn sub_norm(&mut self, name: &str, len: usize, c: &DecoderConfig) -> Result<Option<Norm>> {
        if c.sub_norms { self.norm(name, len, c).map(Some) } else { Ok(None) }
    }

    /// `theta^(-2i/d)` for pair i, divided by the file's own factors where it has them (Llama 3.1's scaling).
    fn rope(&mut self, c: &DecoderConfig) -> Result<Rope> {
        let pairs = c.rope_dims / 2;
        let mut inv_freq: Vec<f32> = (0..pairs)
            .map(|i| (c.rope_base as f64).powf(-2.0 * i as f64 / c.rope_dims as f64) as f32)
            .collect();
        if self.gguf.tensor("rope_freqs.weight").is_some() {
            let factors = self.vector("rope_freqs.weight", pairs)?;
            for (freq, factor) in inv_freq.iter_mut().zip(factors.iter()) {
                if *factor < MIN_ROPE_FACTOR {
                    let what = self.gguf.what();
                    return Err(Error::bad_model(format!("{what}: rope_freqs.weight holds {factor}")));
                }
                *freq /= factor;
            }
        }
        Ok(Rope { inv_freq: inv_freq.into(), style: c.rope_style })
    }

    fn took(&mut self, name: &str, bytes: usize) -> Result<()> {
        self.used.insert(name.into());
        self.done += bytes as u64;
        let fraction = self.done as f32 / self.gguf.tensor_bytes().max(1) as f32;
        match (self.progress)(fraction.min(1.0), name) {
            true => Err(Error::new(Status::Cancelled, "the progress callback gave the load up")),
            false => Ok(()),
        }
    }

    /// A tensor that we do not use means a model that we do not know: its answers would be wrong.
    fn nothing_left(&self) -> Result<()> {
        match self.gguf.tensors().iter().find(|tensor| !self.used.contains(&tensor.name)) {
            None => Ok(()),
            Some(tensor) => Err(Error::unsupported(format!(
                "{}: tensor '{}' belongs to no part of the model that this build knows",
                self.gguf.what(),
                tensor.name
            ))),
        }
    }

    /// Reads a byte of every page, so that the first step does not wait for the disk.
    fn prefault(&mut self, name: &str, data: &[u8]) -> Result<()> {
        const PAGE: usize = 4096;
        // Often enough that giving up takes a moment even on a slow disk.
        for part in data.chunks(16 << 20) {
            let sum = part.iter().step_by(PAGE).fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            std::hint::black_box(sum);
            self.took(name, part.len())?;
        }
        Ok(())
    }
}
