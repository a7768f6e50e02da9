//! A decoder's configuration, read from GGUF metadata and checked before anything is allocated by it.

use crate::base::{Error, Result};
use crate::formats::gguf::Gguf;
use crate::ops::{Activation, RopeStyle};

/// What one architecture does differently; a new family is a row here.
pub struct Family {
    /// GGUF's `general.architecture`, and the prefix of its keys.
    pub architecture: &'static str,
    pub rope: RopeStyle,
    pub activation: Activation,
    /// RMSNorms before the output and down projections (BitNet b1.58 2B-4T).
    pub sub_norms: bool,
}

/// `bitnet-b1.58` is microsoft's name, `bitnet` 1bitLLM's, `bitnet-25` an early upload's.
pub const FAMILIES: [Family; 4] = [
    Family {
        architecture: "bitnet-b1.58",
        rope: RopeStyle::Neox,
        activation: Activation::Relu2,
        sub_norms: true,
    },
    Family {
        architecture: "bitnet-25",
        rope: RopeStyle::Neox,
        activation: Activation::Relu2,
        sub_norms: true,
    },
    Family { architecture: "bitnet", rope: RopeStyle::Neox, activation: Activation::SwiGlu, sub_norms: true },
    Family {
        architecture: "llama",
        rope: RopeStyle::Interleaved,
        activation: Activation::SwiGlu,
        sub_norms: false,
    },
];

pub struct DecoderConfig {
    pub family: &'static Family,
    pub name: String,
    pub context_length: usize,
    pub vocab_size: usize,
    pub hidden: usize,
    pub layers: usize,
    pub ffn: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub eps: f32,
    pub rope_base: f32,
    /// Elements of a head that rotate; the rest pass.
    pub rope_dims: usize,
}

/// Bounds far beyond any model, so that products of two of them stay small in 64 bits.
const MAX_WIDTH: usize = 1 << 20;
const MAX_LAYERS: usize = 1 << 12;
const MAX_CONTEXT: usize = 1 << 24;

/// Reads `<architecture>.<key>` and names it in every error.
struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
}

impl Keys<'_> {
    fn bad(&self, key: &str, value: impl std::fmt::Display, wanted: &str) -> Error {
        Error::bad_model(format!(
            "{}: {}.{key} = {value}; it must be {wanted}",
            self.gguf.what(),
            self.architecture
        ))
    }

    fn within(&self, key: &str, value: usize, max: usize) -> Result<usize> {
        match (1..=max).contains(&value) {
            true => Ok(value),
            false => Err(self.bad(key, value, &format!("1 to {max}"))),
        }
    }

    fn size(&self, key: &str, max: usize) -> Result<usize> {
        let value: u64 = self.gguf.get(&format!("{}.{key}", self.architecture))?;
        self.within(key, usize::try_from(value).unwrap_or(usize::MAX), max)
    }

    fn size_or(&self, key: &str, default: usize, max: usize) -> Result<usize> {
        let value: Option<u64> = self.gguf.find(&format!("{}.{key}", self.architecture))?;
        let value = value.map_or(default, |value| usize::try_from(value).unwrap_or(usize::MAX));
        self.within(key, value, max)
    }

    fn float(&self, key: &str, default: Option<f32>, low: f32, high: f32) -> Result<f32> {
        let name = format!("{}.{key}", self.architecture);
        let value = match default {
            None => self.gguf.get(&name)?,
            Some(default) => self.gguf.find(&name)?.unwrap_or(default),
        };
        match value >= low && value <= high {
            true => Ok(value),
            false => Err(self.bad(key, value, &format!("{low} to {high}"))),
        }
    }
}

impl DecoderConfig {
    /// Sizes, heads and rope of the model in `gguf`; `Unsupported` for another architecture or a rope scaling,
    /// `BadModel` for a value that cannot be.
    pub fn read(gguf: &Gguf) -> Result<Self> {
        let architecture: &str = gguf.get("general.architecture")?;
        let family = FAMILIES.iter().find(|family| family.architecture == architecture).ok_or_else(|| {
            let known: Vec<_> = FAMILIES.iter().map(|family| family.architecture).collect();
            let known = known.join(", ");
            Error::unsupported(format!("{}: architecture '{architecture}'; supported: {known}", gguf.what()))
        })?;
        let keys = Keys { gguf, architecture };
        refuse_scaling(gguf, architecture)?;
        let heads = keys.size("attention.head_count", MAX_WIDTH)?;
        let kv_heads = keys.size_or("attention.head_count_kv", heads, heads)?;
        if heads % kv_heads != 0 {
            return Err(keys.bad(
                "attention.head_count_kv",
                kv_heads,
                &format!("a divisor of head_count = {heads}"),
            ));
        }
        let hidden = keys.size("embedding_length", MAX_WIDTH)?;
        let head_dim = keys.size_or("attention.key_length", hidden / heads, MAX_WIDTH)?;
        let value_dim = keys.size_or("attention.value_length", head_dim, MAX_WIDTH)?;
        if value_dim != head_dim {
            return Err(keys.bad(
                "attention.value_length",
                value_dim,
                &format!("the key length, {head_dim}"),
            ));
        }
        if head_dim % 2 != 0 || head_dim * heads > MAX_WIDTH {
            return Err(keys.bad(
                "attention.key_length",
                head_dim,
                &format!("even, and at most {MAX_WIDTH} in all heads"),
            ));
        }
        let rope_dims = keys.size_or("rope.dimension_count", head_dim, head_dim)?;
        if rope_dims % 2 != 0 {
            return Err(keys.bad("rope.dimension_count", rope_dims, "even"));
        }
        let embedding = gguf.tensor("token_embd.weight").map_or(0, |tensor| tensor.dims[1]);
        Ok(Self {
            family,
            name: gguf.find::<&str>("general.name")?.unwrap_or(architecture).to_string(),
            context_length: keys.size("context_length", MAX_CONTEXT)?,
            vocab_size: keys.size_or("vocab_size", embedding, MAX_CONTEXT)?,
            hidden,
            layers: keys.size("block_count", MAX_LAYERS)?,
            ffn: keys.size("feed_forward_length", MAX_WIDTH)?,
            heads,
            kv_heads,
            head_dim,
            eps: keys.float("attention.layer_norm_rms_epsilon", None, 0.0, 1.0)?,
            rope_base: keys.float("rope.freq_base", Some(10_000.0), 1.0, 1e12)?,
            rope_dims,
        })
    }
}

fn refuse_scaling(gguf: &Gguf, architecture: &str) -> Result<()> {
    for (key, harmless) in [("rope.scaling.type", "none"), ("rope.type", "")] {
        let key = format!("{architecture}.{key}");
        if let Some(value) = gguf.find::<&str>(&key)?.filter(|value| *value != harmless) {
            return Err(Error::unsupported(format!("{}: {key} = {value} is not supported", gguf.what())));
        }
    }
    let key = format!("{architecture}.expert_count");
    match gguf.find::<u64>(&key)?.unwrap_or(0) {
        0 => Ok(()),
        n => Err(Error::unsupported(format!(
            "{}: {key} = {n}: mixtures of experts are not supported",
            gguf.what()
        ))),
    }
}
