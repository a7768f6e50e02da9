//! A decoder's shape, read from GGUF metadata and checked: nothing behind this trusts the file.

use crate::base::{Error, Result};
use crate::formats::gguf::Gguf;
use crate::ops::{Activation, AttentionShape, RopeStyle};

/// What tells one family of decoders from another: data, not code.
struct Family {
    /// `general.architecture`, and the prefix of its keys.
    architecture: &'static str,
    rope: RopeStyle,
    activation: Activation,
    sub_norms: SubNorms,
}

/// Norms in front of the attention's and the feed-forward's output projections.
#[derive(Clone, Copy, PartialEq)]
enum SubNorms {
    Required,
    /// Where the file has them: ternary models in Llama's clothes come in both kinds.
    WherePresent,
}

const FAMILIES: &[Family] = &[
    Family {
        architecture: "bitnet-b1.58",
        rope: RopeStyle::Neox,
        activation: Activation::Relu2,
        sub_norms: SubNorms::Required,
    },
    Family {
        architecture: "bitnet-25",
        rope: RopeStyle::Neox,
        activation: Activation::Relu2,
        sub_norms: SubNorms::Required,
    },
    // 1bitLLM's reproductions (bitnet_b1_58-large, -3B): their configuration says silu where the 2B-4T has relu2.
    Family {
        architecture: "bitnet",
        rope: RopeStyle::Neox,
        activation: Activation::SwiGlu,
        sub_norms: SubNorms::Required,
    },
    Family {
        architecture: "llama",
        rope: RopeStyle::Interleaved,
        activation: Activation::SwiGlu,
        sub_norms: SubNorms::WherePresent,
    },
];

/// Sizes in elements and tokens. Made only by [`DecoderConfig::from_gguf`], so every product of two or three
/// of these fits a usize.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    pub architecture: String,
    pub name: String,
    pub vocab_size: usize,
    pub context_length: usize,
    pub layers: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub attention: AttentionShape,
    pub rms_eps: f32,
    pub rope_base: f32,
    /// Rotated elements of a head; even, at most `attention.head_dim`.
    pub rope_dims: usize,
    pub rope_style: RopeStyle,
    pub activation: Activation,
    pub sub_norms: bool,
}

const MAX_CONTEXT: usize = 1 << 24;
const MAX_LAYERS: usize = 1 << 10;
const MAX_HIDDEN: usize = 1 << 17;
const MAX_FFN: usize = 1 << 19;
const MAX_HEADS: usize = 1 << 10;
const MAX_HEAD_DIM: usize = 1 << 10;
const MAX_VOCAB: usize = 1 << 22;

/// Keys that change the arithmetic in ways that this decoder does not compute, with the one value that is fine.
const NEUTRAL: &[(&str, u32)] = &[
    ("expert_count", 0),
    ("expert_used_count", 0),
    ("attention.sliding_window", 0),
    ("attention.causal", 1),
    ("use_parallel_residual", 0),
];
const NEUTRAL_FLOATS: &[&str] =
    &["rope.scale_linear", "rope.scaling.factor", "logit_scale", "embedding_scale", "residual_scale"];

/// Keys that are read, or that say nothing about the arithmetic.
const KNOWN: &[&str] = &[
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.original_context_length",
    "vocab_size",
    "tensor_data_layout",
];

impl DecoderConfig {
    /// Keys of this architecture that nothing here reads, sorted: worth a warning, for they may mean something.
    pub fn unknown_keys<'a>(&self, gguf: &'a Gguf) -> Vec<&'a str> {
        let known = |key: &str| {
            KNOWN.contains(&key) || NEUTRAL_FLOATS.contains(&key) || NEUTRAL.iter().any(|(k, _)| *k == key)
        };
        let own = |key: &str| {
            key.strip_prefix(&self.architecture)
                .and_then(|key| key.strip_prefix('.'))
                .is_some_and(|key| !known(key))
        };
        let mut keys: Vec<&str> = gguf.keys().filter(|key| own(key)).collect();
        keys.sort_unstable();
        keys
    }

    /// `Unsupported` for an architecture or feature that is not ours, `BadModel` for a value that cannot be;
    /// both name the key and the value.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let architecture: &str = gguf.get("general.architecture")?;
        let family = FAMILIES.iter().find(|f| f.architecture == architecture).ok_or_else(|| {
            let known: Vec<_> = FAMILIES.iter().map(|f| f.architecture).collect();
            Error::unsupported(format!(
                "{}: architecture '{architecture}' is not supported; supported are {}",
                gguf.what(),
                known.join(", ")
            ))
        })?;
        let keys = Keys { gguf, prefix: architecture };
        keys.refuse_features()?;
        let hidden = keys.size("embedding_length", None, 1..=MAX_HIDDEN)?;
        let attention = keys.attention(hidden)?;
        let head_dim = attention.head_dim;
        let rope_dims = keys.size("rope.dimension_count", Some(head_dim), 2..=head_dim)?;
        if rope_dims % 2 != 0 {
            return Err(keys.bad("rope.dimension_count", rope_dims, "it must be even"));
        }
        let sub_norms =
            family.sub_norms == SubNorms::Required || gguf.tensor("blk.0.attn_sub_norm.weight").is_some();
        Ok(Self {
            architecture: architecture.to_owned(),
            name: gguf.find::<&str>("general.name")?.unwrap_or(architecture).to_owned(),
            vocab_size: keys.vocab()?,
            context_length: keys.size("context_length", None, 1..=MAX_CONTEXT)?,
            layers: keys.size("block_count", None, 1..=MAX_LAYERS)?,
            hidden,
            ffn: keys.size("feed_forward_length", None, 1..=MAX_FFN)?,
            attention,
            rms_eps: keys.float("attention.layer_norm_rms_epsilon", None, 1e-12..=1e-1)?,
            // 10000 is the value of the paper and of files that do not say.
            rope_base: keys.float("rope.freq_base", Some(10_000.0), 1.0..=1e12)?,
            rope_dims,
            rope_style: family.rope,
            activation: family.activation,
            sub_norms,
        })
    }

    /// Elements of a row of q, k and v side by side.
    pub fn qkv_width(&self) -> usize {
        (self.attention.heads + 2 * self.attention.kv_heads) * self.attention.head_dim
    }

    /// Elements of a row of attention output.
    pub fn attention_width(&self) -> usize {
        self.attention.heads * self.attention.head_dim
    }

    pub fn kv_width(&self) -> usize {
        self.attention.kv_heads * self.attention.head_dim
    }
}

/// `<architecture>.<key>` of one file.
struct Keys<'a> {
    gguf: &'a Gguf,
    prefix: &'a str,
}

impl Keys<'_> {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn bad(&self, key: &str, value: impl std::fmt::Display, why: &str) -> Error {
        Error::bad_model(format!("{}: metadata key '{}' is {value}; {why}", self.gguf.what(), self.full(key)))
    }

    fn unsupported(&self, key: &str, value: impl std::fmt::Display) -> Error {
        let message = format!(
            "{}: metadata key '{}' is {value}, which is not supported",
            self.gguf.what(),
            self.full(key)
        );
        Error::unsupported(message)
    }

    /// An integer within `range`; `default` where the key may be absent.
    fn size(
        &self,
        key: &str,
        default: Option<usize>,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<usize> {
        let full = self.full(key);
        let value = match (self.gguf.find::<u64>(&full)?, default) {
            (Some(value), _) => value,
            (None, Some(default)) => default as u64,
            (None, None) => self.gguf.get(&full)?,
        };
        usize::try_from(value).ok().filter(|v| range.contains(v)).ok_or_else(|| {
            self.bad(key, value, &format!("it must lie within {} and {}", range.start(), range.end()))
        })
    }

    fn float(&self, key: &str, default: Option<f32>, range: std::ops::RangeInclusive<f32>) -> Result<f32> {
        let full = self.full(key);
        let value = match (self.gguf.find::<f32>(&full)?, default) {
            (Some(value), _) => value,
            (None, Some(default)) => default,
            (None, None) => self.gguf.get(&full)?,
        };
        // A NaN lies in no range.
        if !range.contains(&value) {
            let why = format!("it must lie within {:e} and {:e}", range.start(), range.end());
            return Err(self.bad(key, value, &why));
        }
        Ok(value)
    }

    fn attention(&self, hidden: usize) -> Result<AttentionShape> {
        let heads = self.size("attention.head_count", None, 1..=MAX_HEADS)?;
        let kv_heads = self.size("attention.head_count_kv", Some(heads), 1..=heads)?;
        if heads % kv_heads != 0 {
            let why = format!("it must divide attention.head_count, {heads}");
            return Err(self.bad("attention.head_count_kv", kv_heads, &why));
        }
        let given = self.gguf.contains(&self.full("attention.key_length"));
        if !given && !hidden.is_multiple_of(heads) {
            let why =
                format!("it must divide embedding_length, {hidden}, where there is no attention.key_length");
            return Err(self.bad("attention.head_count", heads, &why));
        }
        let head_dim = self.size("attention.key_length", Some(hidden / heads), 2..=MAX_HEAD_DIM)?;
        if head_dim % 2 != 0 {
            return Err(self.bad(
                "attention.key_length",
                head_dim,
                "a head must have an even number of elements",
            ));
        }
        let value_dim = self.size("attention.value_length", Some(head_dim), 1..=MAX_HEAD_DIM)?;
        if value_dim != head_dim {
            return Err(self.unsupported(
                "attention.value_length",
                format_args!("{value_dim} beside keys of {head_dim}"),
            ));
        }
        Ok(AttentionShape { heads, kv_heads, head_dim })
    }

    /// The key, or the embedding's rows in files that leave it out.
    fn vocab(&self) -> Result<usize> {
        let rows = self.gguf.tensor("token_embd.weight").map(|t| t.dims[1]);
        let vocab = self.size("vocab_size", rows, 1..=MAX_VOCAB)?;
        Ok(vocab)
    }

    /// Refuses what would load and compute something else than the model's authors did.
    fn refuse_features(&self) -> Result<()> {
        for &(key, fine) in NEUTRAL {
            let full = self.full(key);
            let value = match self.gguf.find::<bool>(&full) {
                Ok(value) => value.map(u32::from),
                Err(_) => self.gguf.find::<u32>(&full)?,
            };
            if let Some(value) = value.filter(|&v| v != fine) {
                return Err(self.unsupported(key, value));
            }
        }
        for key in NEUTRAL_FLOATS {
            if let Some(value) = self.gguf.find::<f32>(&self.full(key))?.filter(|&v| v != 1.0) {
                return Err(self.unsupported(key, value));
            }
        }
        // Converters write "linear" with a factor of 1 (checked above), which scales nothing.
        match self.gguf.find::<&str>(&self.full("rope.scaling.type"))? {
            None | Some("none" | "linear") => Ok(()),
            Some(other) => Err(self.unsupported("rope.scaling.type", format_args!("'{other}'"))),
        }
    }
}
