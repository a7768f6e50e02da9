//! Reads a file back before it gets its name, and compares what it says with the configuration it was made of. A key
//! that GGUF lacks, or that the reader takes for something else, would change the model in silence.

use crate::base::{Error, Result};
use crate::formats::gguf::Gguf;
use crate::model::Checkpoint;
use crate::model::config::{Block, DecoderConfig, RopeConfig};
use crate::model::family::Family;
use crate::ops::AttentionShape;
use std::fmt::Debug;
use std::path::Path;

/// Largest relative difference of numbers that a file has in another form, such as YaRN's factor on cos and sin.
const ROUNDING: f32 = 1e-6;

/// Compares the file at `path` with `config`, of the checkpoint `what`. `Unsupported`, naming the field and both
/// values, if they differ.
pub(super) fn check(path: &Path, config: &DecoderConfig, what: &str) -> Result<()> {
    let name = path.to_str().ok_or_else(|| Error::invalid(format!("{} is no Unicode", path.display())))?;
    let file = Gguf::open(name)?;
    let read = Checkpoint::config(&file, &|_| ())?;
    let factors = match file.has("rope_freqs.weight") {
        true => Some(file.vector("rope_freqs.weight", read.described().dims / 2)?),
        false => None,
    };
    compare(config, &read, factors.as_deref(), what)
}

/// `factors` divide the file's frequencies.
fn compare(of: &DecoderConfig, file: &DecoderConfig, factors: Option<&[f32]>, what: &str) -> Result<()> {
    let same = Same { what };
    macro_rules! equal {
        ($($field:ident),*) => { $( same.value(stringify!($field), &of.$field, &file.$field)?; )* };
    }
    same.family(of.family, file.family)?;
    // All fields but names, those that are refused before (`limits`), and what is written in the file's own order or
    // form: rows, norms' offsets, blocks behind the layers.
    equal!(vocab_size, context_length, layers, hidden, ffn, experts, latent, layer_inputs, rms_eps);
    equal!(
        activation,
        embedding_scale,
        residual_scale,
        logit_scale,
        logit_cap,
        parts,
        pooling,
        score,
        sampling
    );
    same.attention(&of.attention, &file.attention)?;
    same.value("global", &of.global.is_some(), &file.global.is_some())?;
    let recurrent = |c: &DecoderConfig| c.recurrent.as_ref().map(|layers| layers.kept());
    same.value("recurrent", &recurrent(of), &recurrent(file))?;
    of.blocks.iter().zip(&file.blocks).enumerate().try_for_each(|(layer, (block, other))| {
        same.layer(layer, of, file)?;
        match block.recurrent {
            true => Ok(()),
            false => same.rope(layer, &of.ropes[block.rope], &file.ropes[other.rope], factors, file),
        }
    })
}

struct Same<'a> {
    what: &'a str,
}

impl Same<'_> {
    fn differs(&self, field: &str, of: &dyn Debug, file: &dyn Debug) -> Error {
        Error::unsupported(format!(
            "{}: no key in GGUF keeps its '{field}': {of:?} would be read as {file:?}",
            self.what
        ))
    }

    fn value<T: PartialEq + Debug>(&self, field: &str, of: &T, file: &T) -> Result<()> {
        if of == file { Ok(()) } else { Err(self.differs(field, of, file)) }
    }

    fn numbers(&self, field: &str, of: &[f32], file: &[f32]) -> Result<()> {
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= ROUNDING * a.abs().max(b.abs());
        match of.len() == file.len() && of.iter().zip(file).all(near) {
            true => Ok(()),
            false => Err(self.differs(field, &of, &file)),
        }
    }

    /// The fields of a family that change the arithmetic and are not in the configuration.
    fn family(&self, of: &Family, file: &Family) -> Result<()> {
        self.value("qk_norm", &of.qk_norm, &file.qk_norm)?;
        self.value("layer_norms", &of.layer_norms, &file.layer_norms)?;
        self.value("attention_gate", &of.attention_gate, &file.attention_gate)?;
        self.value("head_gates", &of.head_gates, &file.head_gates)?;
        self.value("sinks", &of.sinks, &file.sinks)?;
        self.value("layer_scales", &of.layer_scales, &file.layer_scales)?;
        self.value("ternary", &of.ternary, &file.ternary)
    }

    fn attention(&self, of: &AttentionShape, file: &AttentionShape) -> Result<()> {
        let AttentionShape {
            heads,
            kv_heads,
            head_dim,
            scale,
            norms_last,
            temperature,
            cap,
            value_eps,
            keys_are_values,
            joint,
        } = *of;
        self.value("attention.heads", &heads, &file.heads)?;
        self.value("attention.kv_heads", &kv_heads, &file.kv_heads)?;
        self.value("attention.head_dim", &head_dim, &file.head_dim)?;
        self.numbers("attention.scale", &[scale], &[file.scale])?;
        self.value("attention.norms_last", &norms_last, &file.norms_last)?;
        self.value("attention.temperature", &temperature, &file.temperature)?;
        self.value("attention.cap", &cap, &file.cap)?;
        self.value("attention.value_eps", &value_eps, &file.value_eps)?;
        self.value("attention.keys_are_values", &keys_are_values, &file.keys_are_values)?;
        self.value("attention.joint", &joint, &file.joint)
    }

    fn layer(&self, layer: usize, of: &DecoderConfig, file: &DecoderConfig) -> Result<()> {
        let at = |part: &str| format!("layer {layer}, {part}");
        // Ropes are compared by what they do.
        let block = |c: &DecoderConfig| Block { rope: 0, ffn: Some(c.ffn_of(layer)), ..c.blocks[layer] };
        self.value(&at("block"), &block(of), &block(file))?;
        let norms = |c: &DecoderConfig| {
            let width = |name: &&'static str| Some((*name, c.norm_width_of(layer, name)?));
            let mut norms: Vec<_> = c.norms.iter().filter_map(width).collect();
            norms.sort_unstable();
            norms
        };
        self.value(&at("norms"), &norms(of), &norms(file))
    }

    fn rope(
        &self,
        layer: usize,
        of: &RopeConfig,
        file: &RopeConfig,
        factors: Option<&[f32]>,
        c: &DecoderConfig,
    ) -> Result<()> {
        let at = |part: &str| format!("layer {layer}, rope.{part}");
        self.value(&at("dims"), &of.dims, &file.dims)?;
        let mut frequencies = file.inv_freq();
        if std::ptr::eq(file, c.described()) {
            let divide = |(frequency, factor): (&mut f32, &f32)| *frequency /= factor;
            frequencies.iter_mut().zip(factors.unwrap_or_default()).for_each(divide);
        }
        self.numbers(&at("frequencies"), &of.inv_freq(), &frequencies)?;
        self.numbers(&at("attention_factor"), &[of.attention_factor()], &[file.attention_factor()])?;
        let long = |rope: &RopeConfig| rope.long().unwrap_or_default();
        self.value(&at("original_context"), &long(of).0, &long(file).0)?;
        self.numbers(&at("long frequencies"), &long(of).1, &long(file).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HfFolder;
    use crate::model::config::RopeScaling;
    use crate::ops::{Activation, Temperature};

    fn config(name: &str) -> DecoderConfig {
        let path = format!("{}/tests/golden/models/{name}", env!("CARGO_MANIFEST_DIR"));
        HfFolder::open(&path).unwrap().config(&|_| ()).unwrap()
    }

    /// Each change of a file's configuration is found and named.
    #[test]
    fn what_differs_is_named() {
        let of = config("qwen3moe");
        assert!(compare(&of, &of.clone(), None, "m").is_ok());
        type Change = fn(&mut DecoderConfig);
        let changes: [(&str, Change); 22] = [
            ("qk_norm", |c| c.family = config("olmo2").family),
            ("vocab_size", |c| c.vocab_size += 1),
            ("context_length", |c| c.context_length += 1),
            ("hidden", |c| c.hidden += 1),
            ("ffn", |c| c.ffn += 1),
            ("experts", |c| c.experts.as_mut().unwrap().choice.renormalize = None),
            ("attention.heads", |c| c.attention.heads *= 2),
            ("attention.kv_heads", |c| c.attention.kv_heads *= 2),
            ("attention.scale", |c| c.attention.scale *= 1.00001),
            ("attention.temperature", |c| {
                c.attention.temperature = Some(Temperature { scale: 0.1, length: 9 })
            }),
            ("attention.cap", |c| c.attention.cap = Some(50.0)),
            ("rms_eps", |c| c.rms_eps *= 2.0),
            ("activation", |c| c.activation = Activation::Relu2),
            ("embedding_scale", |c| c.embedding_scale = 2.0),
            ("residual_scale", |c| c.residual_scale = 2.0),
            ("logit_scale", |c| c.logit_scale = 2.0),
            ("logit_cap", |c| c.logit_cap = Some(30.0)),
            ("parts", |c| c.parts.qkv_bias = true),
            ("pooling", |c| c.pooling = crate::model::Pooling::Mean),
            ("sampling", |c| c.sampling.top_k = Some(7)),
            ("layer 1, block", |c| c.blocks[1].window = Some(16)),
            ("layer 0, norms", |c| c.norms.retain(|name| *name != "attn_q_norm")),
        ];
        for (field, change) in changes {
            let mut file = of.clone();
            change(&mut file);
            let error = compare(&of, &file, None, "m").expect_err(field);
            assert!(error.message.contains(&format!("keeps its '{field}'")), "{field}: {error}");
        }
    }

    #[test]
    fn ropes_are_compared_by_what_they_do() {
        let scaled = config("llama-llama3");
        let mut file = scaled.clone();
        file.ropes[0].scaling = RopeScaling::None;
        let field = |file: &DecoderConfig, factors: Option<&[f32]>| {
            compare(&scaled, file, factors, "m").map_err(|e| e.message)
        };
        assert!(field(&file, None).unwrap_err().contains("rope.frequencies"));
        let factors: Vec<f32> = file.ropes[0]
            .inv_freq()
            .iter()
            .zip(scaled.ropes[0].inv_freq())
            .map(|(plain, own)| plain / own)
            .collect();
        assert_eq!(field(&file, Some(&factors)), Ok(()));
        file.ropes[0].base *= 2.0;
        assert!(field(&file, Some(&factors)).unwrap_err().contains("rope.frequencies"));
        let yarn = config("llama-yarn-factor");
        let mut file = yarn.clone();
        let RopeScaling::Yarn { attention_factor, .. } = &mut file.ropes[0].scaling else {
            panic!("{file:?}")
        };
        *attention_factor *= 1.01;
        let error = compare(&yarn, &file, None, "m").unwrap_err();
        assert!(error.message.contains("rope.attention_factor"), "{error}");
    }
}
