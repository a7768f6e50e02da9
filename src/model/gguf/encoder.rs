//! GGUF metadata as an encoder's configuration.

use super::score::RANK;
use super::{number, size};
use crate::base::{Error, Result};
use crate::formats::gguf::Gguf;
use crate::model::Pooling;
use crate::model::config::LAYERS;
use crate::model::encoder::family::{EncoderFamily, Positions};
use crate::model::encoder::{EncoderConfig, HeadActivation};
use crate::model::names::Names;
use crate::ops::{Activation, AttentionShape};

/// The configuration; `None` if the file's architecture is not an encoder's.
pub(super) fn read(gguf: &Gguf, warn: &dyn Fn(&str)) -> Result<Option<EncoderConfig>> {
    let architecture: &str = gguf.get("general.architecture")?;
    let Some(family) = EncoderFamily::of_gguf(architecture) else { return Ok(None) };
    crate::model::namespaces::check(gguf, &[architecture], warn)?;
    let key = |key: &str| match key {
        "token_type_count" => format!("tokenizer.ggml.{key}"),
        key => format!("{architecture}.{key}"),
    };
    let names = Names { what: gguf.what(), key: &key };
    let keys = Keys { gguf, names: &names };
    if gguf.find::<bool>(&key("attention.causal"))? == Some(true) {
        return Err(names.unsupported("attention.causal", true));
    }
    let hidden = keys.size("embedding_length", None)?;
    let heads = keys.size("attention.head_count", None)?;
    let layers = keys.size("block_count", None)?;
    names.within("block_count", layers, LAYERS)?;
    let rows = |tensor: &str| gguf.tensor(tensor).map(|t| t.dims[1]);
    let head_dim = match gguf.contains(&key("attention.key_length")) {
        true => keys.size("attention.key_length", None)?,
        false => EncoderConfig::head_dim(&names, hidden, heads)?,
    };
    let (pooling, score) = keys.pooling(family)?;
    let kv_heads = keys.size("attention.head_count_kv", Some(heads))?;
    let dims = if matches!(family.positions, Positions::Rotated(_)) { head_dim } else { 0 };
    let every = keys.every(family)?;
    let seeing = family.windows.map_or(0, |windows| windows.seeing);
    let window = gguf.find::<u64>(&key("attention.sliding_window"))?.map(|window| window as usize);
    let sees = |index: usize| index % every == if seeing == 0 { 0 } else { every - 1 };
    let (ropes, blocks) = family.layers(dims, keys.bases(family), layers, window, sees);
    let mut attention = AttentionShape::new(heads, kv_heads, head_dim);
    attention.scale = gguf.find(&key("attention.scale"))?.unwrap_or(attention.scale);
    let eps_key =
        if family.rms_norms { "attention.layer_norm_rms_epsilon" } else { "attention.layer_norm_epsilon" };
    let config = EncoderConfig {
        family,
        architecture: architecture.to_owned(),
        name: gguf.find::<&str>("general.name")?.unwrap_or(architecture).to_owned(),
        vocab_size: keys.size("vocab_size", rows("token_embd.weight"))?,
        context_length: keys.size("context_length", None)?,
        layers,
        hidden,
        ffn: keys.size("feed_forward_length", None)?,
        attention,
        eps: if gguf.contains(&key(eps_key)) { gguf.get(&key(eps_key))? } else { keys.other_eps(eps_key)? },
        activation: keys.activation(family)?,
        embedding_scale: family.embedding_scale(hidden),
        norm_offset: 0.0,
        // Converters leave the rows of padding out.
        position_offset: 0,
        types: rows("token_types.weight").unwrap_or(0),
        ropes,
        blocks,
        pooling,
        // There is no key for it.
        raw_embeddings: false,
        score,
        dense: keys.dense(),
    };
    config.check(&names)?;
    Ok(Some(config))
}

struct Keys<'a> {
    gguf: &'a Gguf,
    names: &'a Names<'a>,
}

impl Keys<'_> {
    fn size(&self, key: &str, default: Option<usize>) -> Result<usize> {
        size(self.gguf, &(self.names.key)(key), default)
    }

    /// The eps by its other key, which converters derive from Hugging Face's: ModernBERT's `norm_eps` is RMSNorm's
    /// there.
    fn other_eps(&self, own: &str) -> Result<f32> {
        let other = self.gguf.find(&(self.names.key)("attention.layer_norm_rms_epsilon"))?;
        other.map_or_else(|| self.gguf.get(&(self.names.key)(own)), Ok)
    }

    fn bases(&self, family: &EncoderFamily) -> [f32; 2] {
        let base = |key: &str, own| number(self.gguf, &(self.names.key)(key)).map_or(own, |base| base as f32);
        let [global, local] = family.bases;
        [base("rope.freq_base", global), base("rope.freq_base_swa", local)]
    }

    /// The number of layers between two without a window.
    fn every(&self, family: &EncoderFamily) -> Result<usize> {
        const KEY: &str = "attention.sliding_window_pattern";
        let default = family.windows.map_or(1, |windows| windows.every);
        match self.size(KEY, Some(default))? {
            0 => Err(self.names.bad(KEY, 0, "it must be at least 1")),
            every => Ok(every),
        }
    }

    fn activation(&self, family: &EncoderFamily) -> Result<Activation> {
        let Some(name) = self.gguf.find::<&str>(&(self.names.key)("hidden_activation"))? else {
            return Ok(family.activation);
        };
        let known = EncoderConfig::activation(name, family.activation.gated());
        known.ok_or_else(|| self.names.unsupported("hidden_activation", name))
    }

    /// The products after pooling, by their rows.
    fn dense(&self) -> Vec<(usize, HeadActivation)> {
        let rows = |n: usize| Some(self.gguf.tensor(&format!("dense_{n}.weight"))?.dims[1]);
        (2..4).map_while(rows).map(|rows| (rows, HeadActivation::None)).collect()
    }

    /// Which states a classifier takes, in the same numbers as other pooling.
    fn head_pooling(&self, family: &EncoderFamily) -> Result<Pooling> {
        const KEY: &str = "classifier.pooling_type";
        match self.gguf.find::<u32>(&(self.names.key)(KEY))? {
            None => Ok(family.head_pooling),
            Some(1) => Ok(Pooling::Mean),
            Some(2) => Ok(Pooling::First),
            Some(other) => Err(self.names.unsupported(KEY, other)),
        }
    }

    /// In llama.cpp's numbers, and the head of a file that ranks.
    fn pooling(&self, family: &EncoderFamily) -> Result<(Pooling, Option<(Pooling, HeadActivation)>)> {
        let pooling = match self.gguf.find::<u32>(&(self.names.key)("pooling_type"))? {
            // Not pooled there: as sentence-transformers does by default.
            None | Some(0 | 1) => Pooling::Mean,
            Some(2 | RANK) => Pooling::First,
            Some(3) => Pooling::Last,
            Some(other) => return Err(self.names.unsupported("pooling_type", other)),
        };
        let has = |name: &str| self.gguf.tensor(name).is_some();
        match [has("cls.weight"), has("cls.output.weight")] {
            [true, true] => Ok((pooling, Some((self.head_pooling(family)?, family.head)))),
            [false, false] => Ok((pooling, None)),
            [false, true] => Err(Error::unsupported(format!(
                "{}: the classifier lacks its first product, cls.weight, which llama.cpp's converter leaves out of \
                 BERT's files (the pooler); without it scores are not the model's. Its folder has it",
                self.gguf.what()
            ))),
            [true, false] => Err(Error::unsupported(format!(
                "{}: the classifier lacks its second product, cls.output.weight",
                self.gguf.what()
            ))),
        }
    }
}
