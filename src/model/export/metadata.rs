//! The metadata of a decoder's file.

use crate::base::{Error, Result};
use crate::formats::gguf::writer::Meta;
use crate::model::Pooling;
use crate::model::config::{DecoderConfig, ExpertsConfig, RopeScaling};
use crate::model::family::{Family, Rotation, ScaleSizes, Scales, Windows};
use crate::model::keys::SECTIONS;
use crate::model::sampling::{GGUF_KEYS, SamplingDefaults};
use crate::model::score::{ScoreRows, names_qwen3_reranker};
use crate::ops::{Activation, Temperature};

/// Also the length by which queries grow.
const ORIGINAL_CONTEXT: &str = "rope.scaling.original_context_length";

/// The model's name, by which readers of the file know a Qwen3-Reranker that a folder's card makes known.
fn name(c: &DecoderConfig) -> String {
    match c.score {
        Some(ScoreRows::Words) if !names_qwen3_reranker(&c.name) => format!("Qwen3-Reranker ({})", c.name),
        _ => c.name.clone(),
    }
}

/// The metadata of the decoder `c`, under the architecture of `family`. `Unsupported` if no key can express a field.
pub(super) fn metadata(c: &DecoderConfig, family: &Family) -> Result<Vec<(String, Meta)>> {
    let architecture = family.gguf[0];
    let key = |key: &str| format!("{architecture}.{key}");
    let a = &c.attention;
    let sizes = [
        ("context_length", c.context_length),
        ("embedding_length", c.hidden),
        ("block_count", c.layers),
        ("feed_forward_length", c.ffn),
        ("attention.head_count", a.heads),
        ("attention.head_count_kv", a.kv_heads),
        ("attention.key_length", a.head_dim),
        ("attention.value_length", a.head_dim),
        ("rope.dimension_count", c.described().dims),
        ("vocab_size", c.vocab_size),
    ];
    let mut pairs: Vec<(String, Meta)> = vec![
        ("general.architecture".into(), architecture.into()),
        ("general.name".into(), name(c).as_str().into()),
        (key(family.eps_key()), Meta::F32(c.rms_eps)),
        (key("rope.freq_base"), Meta::F32(c.described().base)),
    ];
    pairs.extend(sizes.map(|(name, n)| (key(name), Meta::U32(n as u32))));
    let recurrent = match (&c.recurrent, family.recurrent) {
        (Some(layers), _) => layers.write_keys(c, family)?,
        (None, kind) => kind.map(|kind| kind.keys_without()).unwrap_or_default(),
    };
    for (name, value) in recurrent {
        pairs.retain(|(own, _)| *own != key(name));
        pairs.push((key(name), value));
    }
    pairs.extend(scaling(&c.described().scaling)?.into_iter().map(|(name, value)| (key(name), value)));
    pairs.extend(windows(c, family)?.into_iter().map(|(name, value)| (key(name), value)));
    pairs.extend(sections(c, family).map(|value| (key(SECTIONS), value)));
    if let Some(ExpertsConfig { count, width, shared, choice, .. }) = c.experts {
        if c.blocks.iter().any(|block| !block.sparse) {
            return Err(Error::unsupported("layers with experts beside others have no key in GGUF"));
        }
        let sizes = [
            ("expert_count", count),
            ("expert_used_count", choice.used),
            ("expert_feed_forward_length", width),
        ];
        pairs.extend(sizes.map(|(name, n)| (key(name), Meta::U32(n as u32))));
        pairs.push((key("expert_weights_norm"), Meta::Bool(choice.renormalize.is_some())));
        let shared = shared.map(|width| Meta::U32(width as u32));
        pairs.extend(shared.map(|width| (key("expert_shared_feed_forward_length"), width)));
    }
    pairs.extend(factors(c, family).into_iter().map(|(name, value)| (key(name), value)));
    if let Some(Temperature { scale, length }) = a.temperature {
        pairs.push((key("attention.temperature_scale"), Meta::F32(scale)));
        pairs.retain(|(name, _)| *name != key(ORIGINAL_CONTEXT));
        pairs.push((key(ORIGINAL_CONTEXT), Meta::U32(length as u32)));
    }
    let sizes = ScaleSizes { layers: c.layers, hidden: c.hidden, heads: a.heads, head_dim: a.head_dim };
    if a.scale != (family.scales.scores.gguf)(&sizes) {
        pairs.push((key("attention.scale"), Meta::F32(a.scale)));
    }
    pairs.extend(pooling(c.pooling).map(|n| (key("pooling_type"), Meta::U32(n))));
    let SamplingDefaults { temperature, top_k, top_p, min_p, repetition_penalty } = c.sampling;
    let top_k = top_k.map(|k| Meta::I32(k.min(i32::MAX as u32) as i32));
    let [temperature, top_p, min_p, penalty] =
        [temperature, top_p, min_p, repetition_penalty].map(|value| value.map(Meta::F32));
    let sampling = GGUF_KEYS.into_iter().zip([temperature, top_k, top_p, min_p, penalty]);
    pairs.extend(sampling.filter_map(|(key, value)| Some((key.to_owned(), value?))));
    Ok(pairs)
}

/// llama.cpp's number. `None`: the default.
fn pooling(pooling: Pooling) -> Option<u32> {
    match pooling {
        Pooling::Last => None,
        Pooling::Mean => Some(1),
        Pooling::First => Some(2),
    }
}

/// Factors that the family's files may give, and a limit of gates.
fn factors(c: &DecoderConfig, family: &Family) -> Vec<(&'static str, Meta)> {
    let Scales { embedding, residual, logits, score_cap, logit_cap, .. } = &family.scales;
    let values = [
        (embedding, c.embedding_scale),
        (residual, c.residual_scale),
        (logits, c.logit_scale),
        (score_cap, c.attention.cap.unwrap_or(0.0)),
        (logit_cap, c.logit_cap.unwrap_or(0.0)),
    ];
    let given = values.into_iter().filter_map(|(factor, value)| Some((factor.keys?.1, Meta::F32(value))));
    let limit = match c.activation {
        Activation::ClampedSwiGlu { limit } => Some(("swiglu_clamp_exp", Meta::F32s(vec![limit; c.layers]))),
        _ => None,
    };
    given.chain(limit).collect()
}

/// The pairs of a head that rotate by time, height and width in turn.
fn sections(c: &DecoderConfig, family: &Family) -> Option<Meta> {
    let pairs_of = |axis| ((c.ropes[0].dims / 2 + 2 - axis) / 3) as i32;
    family.rope_sections.then(|| Meta::I32s(vec![pairs_of(0), pairs_of(1), pairs_of(2), 0]))
}

fn scaling(scaling: &RopeScaling) -> Result<Vec<(&'static str, Meta)>> {
    match *scaling {
        // Llama 3's scaling is in rope_freqs.weight.
        RopeScaling::None | RopeScaling::Llama3 { .. } => Ok(Vec::new()),
        RopeScaling::Linear { factor } => {
            Ok(vec![("rope.scaling.type", "linear".into()), ("rope.scaling.factor", Meta::F32(factor))])
        }
        RopeScaling::Long { original_context, attention_factor, .. } => Ok(vec![
            ("rope.scaling.type", "longrope".into()),
            (ORIGINAL_CONTEXT, Meta::U32(original_context as u32)),
            ("rope.scaling.attn_factor", Meta::F32(attention_factor)),
        ]),
        RopeScaling::Proportional { .. } => {
            Err(Error::unsupported("rotations of a part of a head's pairs are not written"))
        }
        RopeScaling::Yarn { truncate: false, .. } => {
            Err(Error::unsupported("YaRN with truncate = false has no key in GGUF"))
        }
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, .. } => {
            Ok(vec![
                ("rope.scaling.type", "yarn".into()),
                ("rope.scaling.factor", Meta::F32(factor)),
                (ORIGINAL_CONTEXT, Meta::U32(original_context as u32)),
                ("rope.scaling.yarn_beta_fast", Meta::F32(beta_fast)),
                ("rope.scaling.yarn_beta_slow", Meta::F32(beta_slow)),
                (
                    "rope.scaling.attn_factor",
                    Meta::F32(attention_factor / RopeScaling::yarn_attention(factor)),
                ),
            ])
        }
    }
}

/// The sliding window, if the family's files can express which layers use it and which rotate.
fn windows(c: &DecoderConfig, family: &Family) -> Result<Vec<(&'static str, Meta)>> {
    let rotates: Vec<bool> = c.blocks.iter().map(|block| c.ropes[block.rope].dims > 0).collect();
    let other = || Error::unsupported("sliding windows in these layers have no key in GGUF");
    let Some(window) = c.blocks.iter().find_map(|span| span.window) else {
        return match rotates {
            _ if family.rotates_in_windows_only() => Err(other()),
            rotates if rotates == family.rotating(c.layers) => Ok(Vec::new()),
            rotates if family.may_stand_still && !rotates.contains(&true) => {
                Ok(vec![("rope.scaling.finetuned", Meta::Bool(false))])
            }
            _ => Err(Error::unsupported("which layers rotate has no key in GGUF")),
        };
    };
    let size = ("attention.sliding_window", Meta::U32(window as u32));
    let full: Vec<usize> = (0..c.layers).filter(|&i| c.blocks[i].window.is_none()).collect();
    match family.windows {
        Windows::AllInGguf | Windows::All { .. } if full.is_empty() => Ok(vec![size]),
        Windows::AllBut {
            rotation: Rotation::WindowedOnly | Rotation::WindowedIfAny, own_beside, ..
        } => {
            let windowed = c.blocks.iter().map(|block| block.window.is_some());
            let size = Meta::U32((window - usize::from(own_beside)) as u32);
            let pattern = ("attention.sliding_window_pattern", Meta::Bools(windowed.collect()));
            Ok(vec![("attention.sliding_window", size), pattern])
        }
        Windows::AllBut { .. } => {
            let every = full.first().map_or(c.layers + 1, |first| first + 1);
            if (0..c.layers).any(|i| c.blocks[i].window.is_none() != ((i + 1) % every == 0)) {
                return Err(other());
            }
            let base = c.ropes.get(1).map_or(c.ropes[0].base, |rope| rope.base);
            Ok(vec![
                size,
                ("attention.sliding_window_pattern", Meta::U32(every as u32)),
                ("rope.freq_base_swa", Meta::F32(base)),
            ])
        }
        _ => Err(other()),
    }
}
