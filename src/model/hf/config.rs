//! From `config.json` to a decoder's configuration.

use super::experts;
use super::fields::Fields;
use super::latent;
use super::layers;
use super::multipliers::Multipliers;
use super::ordinary::ORDINARY;
use super::quantization::{Quantization, Weights};
use super::rope::{self, Sizes};
use crate::base::{Error, Result};
use crate::model::config::{Block, DecoderConfig, ExpertsConfig, HEADS, HIDDEN, LAYERS, LatentConfig, Parts};
use crate::model::family::{
    BITNET_1BITLLM, Bias, FAMILIES, Factor, Family, KvHeads, Mutual, Q_NORM, ScaleSizes,
};
use crate::model::keys::{LAYER_INPUTS, SHARED_KV};
use crate::model::layers::short_conv::ConvDefaults;
use crate::model::names::Names;
use crate::model::{Pooling, SamplingDefaults};
use crate::ops::{Activation, AttentionShape};

/// Keys that do not affect the arithmetic of a step.
const IGNORED: &[&str] = &[
    "_sliding_window_pattern",
    "aux_loss_alpha",
    "block_dim",
    "block_mlp_init_scale",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_xavier_init",
    "eod_token_id",
    "ep_size",
    "experts_per_token",
    "initial_context_length",
    "max_window_layers",
    "mlp_only_layers",
    "num_heads",
    "num_logits_to_keep",
    "mtp_use_dedicated_embeddings",
    "output_router_logits",
    "pretraining_tp",
    "residual_dropout",
    "router_aux_loss_coef",
    "router_dtype",
    "rope_local_base_freq",
    "seq_aux",
];

/// Keys that change the arithmetic in ways that this decoder does not compute, with the only accepted value.
const NEUTRAL: &[(&str, f32)] = &[
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("n_routed_experts", 0.0),
    ("num_nextn_predict_layers", 0.0),
    ("num_shared_experts", 0.0),
    ("clip_qkv", 0.0),
    ("moe_layer_freq", 1.0),
    ("embedding_multiplier", 1.0),
    ("residual_multiplier", 1.0),
    ("logits_scaling", 1.0),
    ("logit_scale", 1.0),
    ("scale_emb", 1.0),
];
const BIDIRECTIONAL: &str = "use_bidirectional_attention";
const NEUTRAL_FLAGS: &[(&str, bool)] = &[
    (BIDIRECTIONAL, false),
    ("block_use_swiglu", true),
    ("is_causal", true),
    ("alibi", false),
    ("use_cla", false),
    ("parallel_attn", false),
    ("use_sandwich_norm", true),
    ("use_attention_gate", true),
    ("use_parallel_residual", false),
];
/// Keys that say how weights are stored, where transformers has `quantization_config`.
const STORED: &[&str] = &["compression_config", "hadamard_config"];

/// The contents of a `config.json`.
pub(super) struct Config {
    pub decoder: DecoderConfig,
    pub quantization: Quantization,
    /// Whether the head is the embedding's table.
    pub tied: bool,
    /// Keys that nothing here reads.
    pub unknown: Vec<String>,
}

impl Config {
    /// Reads a configuration. `name` is the model's name, for its facts. All errors name the field.
    pub(super) fn read(config: &Fields, name: &str) -> Result<Self> {
        let whole = config.text("model_type")?.and_then(Family::of_hf_whole);
        if let (Some(family), Some(text)) = (whole, config.object("text_config")?) {
            if text.text("model_type")?.is_some_and(|own| Some(own) != family.hf) {
                return Err(text.unsupported("model_type", format_args!("{} is read there", family.name())));
            }
            let tied = config.flag("tie_word_embeddings")?;
            return Self::of(&text, family, Quantization::read(config)?, tied, name);
        }
        let quantization = Quantization::read(config)?;
        let family = family(config, &quantization)?;
        Self::of(config, family, quantization, None, name)
    }

    /// `tied`: what the whole file says of the head, if it says anything.
    fn of(
        config: &Fields,
        family: &'static Family,
        quantization: Quantization,
        tied: Option<bool>,
        name: &str,
    ) -> Result<Self> {
        refuse_features(config, family)?;
        let decoder = decoder(config, family, &quantization, name)?;
        let interleaved = family.experts.is_some_and(|experts| experts.interleaved);
        if quantization.weights == Weights::Mxfp4 && !interleaved {
            return Err(config.unsupported("quantization_config", "of this family mxfp4 is not read"));
        }
        if quantization.weights.is_ternary() {
            if family.fused.qkv || family.recurrent.is_some_and(|kind| !kind.takes_ternary()) {
                let why = "of this family no ternary weights are read";
                return Err(config.unsupported("quantization_config", why));
            }
            if decoder.experts.is_some() {
                let why = "of mixtures of experts no ternary weights are read";
                return Err(config.unsupported("quantization_config", why));
            }
        }
        // LFM2's files call it so.
        let own = config.flag("tie_embedding")?.filter(|_| family.recurrent_as::<ConvDefaults>().is_some());
        let own = match own {
            None => config.flag("tie_word_embeddings")?,
            own => own,
        };
        let tied = tied.or(own).unwrap_or(family.defaults.tied);
        let ignored = family.recurrent.map_or(&[] as &[_], |kind| kind.ignored_keys());
        let unknown = config.unknown(&[ORDINARY, IGNORED, ignored].concat());
        Ok(Self { decoder, quantization, tied, unknown })
    }
}

impl Config {
    /// Marks this as one of BitNet's embedding models. Their `config.json` does not say so; they are recognized by
    /// the norms before their projections. Their weights become ternary at every step, as with online `autobitlinear`
    /// and `use_rms_norm` (microsoft/BitNet, utils/convert-bitnet-embedding-to-gguf.py).
    pub(super) fn is_bitnet_embedding(&mut self, what: &str) -> Result<()> {
        if self.quantization.weights != Weights::Plain {
            return Err(Error::unsupported(format!(
                "{what}: it has a quantization_config, and the tensors have norms as BitNet's embedding models do, \
                 which have none"
            )));
        }
        let eps = self.decoder.rms_eps;
        self.quantization = Quantization { weights: Weights::Online, projection_norms: Some(eps) };
        self.decoder.parts.projection_norms = true;
        self.decoder.projection_eps = eps;
        Ok(())
    }
}

/// Refuses features that would load, but compute something other than the model's authors intended.
fn refuse_features(config: &Fields, family: &Family) -> Result<()> {
    for &(key, fine) in NEUTRAL {
        let blocks = family.mtp && key == "num_nextn_predict_layers";
        let experts = family.experts.is_some_and(|experts| experts.count == key);
        if blocks || experts || family.factor_keys().any(|(hf, _)| hf == key) {
            continue;
        }
        if config.float(key)?.is_some_and(|value| value != fine) {
            return Err(config.unsupported(key, "this decoder has no such part"));
        }
    }
    for &(key, fine) in NEUTRAL_FLAGS {
        if key == BIDIRECTIONAL && family.mutual == Mutual::Windowed {
            // Between the tokens of an image.
            if config.text(key)?.is_some_and(|which| which != "vision") {
                return Err(config.unsupported(key, "attention here is causal"));
            }
            continue;
        }
        if config.flag(key)?.is_some_and(|value| value != fine) {
            return Err(config.unsupported(key, "this decoder has no such part"));
        }
    }
    let normed = family.norms.iter().any(|(_, gguf)| *gguf == Q_NORM.1);
    for key in ["qk_layernorm", "use_qk_norm"] {
        if config.flag(key)?.is_some_and(|value| value != normed) {
            let why = if normed { "always norms q and k" } else { "never norms q and k" };
            return Err(config.unsupported(key, format_args!("{} {why}", family.name())));
        }
    }
    for key in STORED {
        if config.is_set(key) {
            return Err(config.unsupported(key, "weights stored in this way are not read"));
        }
    }
    Ok(())
}

/// The family that `model_type` names.
fn family(config: &Fields, quantization: &Quantization) -> Result<&'static Family> {
    for part in ["text_config", "vision_config", "audio_config"] {
        if config.object(part)?.is_some() {
            return Err(config.unsupported(part, "multimodal models are not read, nor their text part alone"));
        }
    }
    let classes = config.texts("architectures")?.unwrap_or_default();
    let encodes = |class: &&&str| class.contains("Bidirectional") || class.ends_with("ForMaskedLM");
    if let Some(class) = classes.iter().find(encodes) {
        let why = format!("in a {class} tokens see later ones, and attention here is causal");
        return Err(config.unsupported("architectures", why));
    }
    let class = classes.first().and_then(|class| class.strip_suffix("ForCausalLM"));
    let named = config.text("model_type")?.map(str::to_owned);
    // Maple's files name the class alone.
    let Some(model_type) = named.or(class.map(str::to_ascii_lowercase)) else {
        return Err(config.bad("model_type", "it must name the architecture"));
    };
    let model_type = &*model_type;
    let family = Family::of_hf(model_type).ok_or_else(|| {
        let known: Vec<_> = FAMILIES.iter().filter_map(|family| family.hf).collect();
        config.unsupported("model_type", format_args!("supported are {}", known.join(", ")))
    })?;
    let without = family.experts.is_some() && config.size("num_local_experts")? == Some(0);
    let family = family.dense.filter(|_| without).unwrap_or(family);
    // 1bitLLM's class is recognized by widths that `Quantization` has checked.
    let one_bit = quantization.weights == Weights::Online && config.size("weight_bits")?.is_some();
    match (one_bit, model_type) {
        (false, _) => Ok(family),
        (true, "llama" | "bitnet") => Ok(&BITNET_1BITLLM),
        (true, _) => Err(config.unsupported("model_type", "of that class it is llama or bitnet")),
    }
}

fn decoder(config: &Fields, family: &'static Family, q: &Quantization, name: &str) -> Result<DecoderConfig> {
    let key = |gguf: &str| {
        let eps = (family.defaults.eps_key, family.eps_key());
        let own = family.factor_keys().chain([eps]).find(|(_, key)| *key == gguf).map(|(hf, _)| hf);
        let own = own.or_else(|| latent::key(gguf).filter(|_| family.latent));
        let own = own.or_else(|| family.recurrent.and_then(|kind| kind.key(gguf)));
        own.map_or_else(|| key(gguf), str::to_owned)
    };
    let names = Names { what: config.what(), key: &key };
    let hidden = config.need("hidden_size")?;
    names.within("embedding_length", hidden, HIDDEN)?;
    let layers = config.need("num_hidden_layers")?;
    names.within("block_count", layers, LAYERS)?;
    let context = need(config, family, "max_position_embeddings")?;
    let rms_eps = config.float(family.defaults.eps_key)?.unwrap_or(family.defaults.rms_eps);
    let (latent, mut attention) = heads_of(config, family, [hidden, layers], &names)?;
    let (scales, multipliers) = (&family.scales, Multipliers::read(config, family.multipliers)?);
    attention.scale *= multipliers.scores;
    attention.value_eps = Some(rms_eps).filter(|_| family.global_heads);
    let global = layers::global(config, family, &attention, layers)?;
    let head_dim = latent.map_or(attention.head_dim, |latent| latent.shape.rope);
    let scale_sizes = ScaleSizes { layers, hidden, heads: attention.heads, head_dim };
    let global_dim = global.as_ref().map(|global| global.head_dim);
    let sizes = Sizes { layers, head_dim, global_dim, rotated: head_dim, context };
    let (ropes, mut blocks) = rope::read(config, family, &sizes)?;
    let kind = family.recurrent;
    let recurrent = kind.map_or(Ok(None), |kind| kind.read_folder(config, family, hidden, &mut blocks))?;
    let experts = experts::read(config, family, &mut blocks)?;
    let ffn = ffn(config, family, experts, &blocks)?;
    layers::share(config, family, &mut blocks, ffn, &names)?;
    let mutual = family.mutual == Mutual::Windowed && config.text(BIDIRECTIONAL)? == Some("vision");
    Block::mark_mutual(&mut blocks, family.mutual, mutual);
    let decoder = DecoderConfig {
        family,
        architecture: family.name().to_owned(),
        name: name.to_owned(),
        vocab_size: need(config, family, "vocab_size")?,
        context_length: context,
        layers,
        further: if family.mtp { config.size("mtp_num_hidden_layers")?.unwrap_or(1).max(1) } else { 0 },
        hidden,
        ffn,
        experts,
        attention,
        latent,
        global,
        layer_inputs: layers::inputs(config, family)?,
        recurrent,
        blocks,
        ropes,
        rope_style: latent::rope_style(config, family)?,
        axes: rope::axes(config, family)?,
        rms_eps,
        projection_eps: q.projection_norms.unwrap_or(rms_eps),
        norm_offset: family.norm_offset,
        activation: multipliers.activation(config, activation(config, family)?)?,
        embedding_scale: factor(config, &scales.embedding, &scale_sizes)?,
        residual_scale: factor(config, &scales.residual, &scale_sizes)? * multipliers.attention,
        logit_scale: factor(config, &scales.logits, &scale_sizes)?,
        logit_cap: cap(config, &scales.logit_cap, &scale_sizes)?,
        norms: family.norms.iter().map(|(_, gguf)| *gguf).collect(),
        parts: parts(config, family, q)?,
        pooling: Pooling::Last,
        raw_embeddings: false,
        score: None,
        rotations: None,
        sampling: SamplingDefaults::default(),
    };
    decoder.check(&names).map(|()| decoder)
}

/// A size that the file gives, or the family.
fn need(config: &Fields, family: &Family, key: &str) -> Result<usize> {
    let default = family.defaults.sizes.iter().find(|(own, _)| *own == key).map(|(_, size)| *size);
    config.size(key)?.or(default).map_or_else(|| config.need(key), Ok)
}

/// How layers attend, and of what their heads are made if attention is latent.
fn heads_of(
    config: &Fields,
    family: &Family,
    [hidden, layers]: [usize; 2],
    names: &Names,
) -> Result<(Option<LatentConfig>, AttentionShape)> {
    let heads = need(config, family, "num_attention_heads")?;
    names.within("attention.head_count", heads, HEADS)?;
    Ok(match latent::read(config, family, heads)? {
        Some((latent, scale)) => (Some(latent), latent.shape.attention(scale)),
        None => (None, attention(config, family, [hidden, layers, heads])?),
    })
}

/// The family's activation, with the file's numbers if the family reads them.
fn limited(config: &Fields, family: &Family) -> Result<Activation> {
    let Activation::SteepSwiGlu { alpha, limit } = family.activation else { return Ok(family.activation) };
    Ok(Activation::SteepSwiGlu {
        alpha: config.float("swiglu_alpha")?.unwrap_or(alpha),
        limit: config.float("swiglu_limit")?.unwrap_or(limit),
    })
}

/// The width of dense layers. A file without such layers need not give it, and then it is that of an expert.
fn ffn(config: &Fields, family: &Family, experts: Option<ExpertsConfig>, blocks: &[Block]) -> Result<usize> {
    if let Some(width) = family.recurrent.map_or(Ok(None), |kind| kind.ffn(config))? {
        return Ok(width);
    }
    let beside = family.experts.is_some_and(|experts| experts.beside);
    match experts.filter(|_| !beside && blocks.iter().all(|block| block.sparse)) {
        Some(experts) => Ok(config.size("intermediate_size")?.unwrap_or(experts.width)),
        None => config.need(family.defaults.ffn_key),
    }
}

/// The activation of feed-forwards.
fn activation(config: &Fields, family: &Family) -> Result<Activation> {
    let key = family.defaults.activation_key;
    let steep = matches!(family.activation, Activation::SteepSwiGlu { .. });
    let fixed = steep || family.recurrent.is_some();
    match config.text(key)? {
        None => limited(config, family),
        Some("silu" | "swish") if steep => limited(config, family),
        // The limit has no key.
        Some("silu") if matches!(family.activation, Activation::ClampedSwiGlu { .. }) => {
            Ok(family.activation)
        }
        // Recurrent layers have it too, and gpt-oss's class has its own whatever the file says.
        Some(name) if fixed && named(name) != Some(Activation::SwiGlu) => {
            Err(config.unsupported(key, format_args!("{} is computed with silu alone", family.name())))
        }
        Some("gelu_pytorch_tanh") if !family.activation.gated() => Ok(Activation::Gelu),
        Some(_) if !family.activation.gated() => {
            Err(config.unsupported(key, "without a gate only gelu_pytorch_tanh is known"))
        }
        Some(name) => {
            named(name).ok_or_else(|| config.unsupported(key, format_args!("known are {ACTIVATIONS}")))
        }
    }
}

/// The activation with this name, if we know it.
fn named(name: &str) -> Option<Activation> {
    match name {
        "silu" | "swish" => Some(Activation::SwiGlu),
        "relu2" => Some(Activation::Relu2),
        "gelu_pytorch_tanh" => Some(Activation::GeGlu),
        _ => None,
    }
}

const ACTIVATIONS: &str = "silu, relu2 and gelu_pytorch_tanh";

/// A factor of the family, by the file's number.
fn factor(config: &Fields, factor: &Factor, sizes: &ScaleSizes) -> Result<f32> {
    let given = factor.keys.map_or(Ok(None), |(key, _)| config.float(key))?;
    Ok((factor.of)(given.unwrap_or(factor.default), sizes))
}

/// A soft cap. `null` means that there is none.
fn cap(config: &Fields, cap: &Factor, sizes: &ScaleSizes) -> Result<Option<f32>> {
    match cap.keys {
        Some((key, _)) if config.contains(key) && !config.is_set(key) => Ok(None),
        _ => Ok(Some(factor(config, cap, sizes)?).filter(|cap| *cap != 0.0)),
    }
}

fn attention(
    config: &Fields,
    family: &Family,
    [hidden, layers, heads]: [usize; 3],
) -> Result<AttentionShape> {
    let kv_heads = match (config.size("num_key_value_heads")?, family.defaults.kv_heads) {
        (Some(kv_heads), _) => kv_heads,
        (None, KvHeads::Heads) => heads,
        // null means as many as there are heads, in all classes.
        (None, KvHeads::Needed) if config.contains("num_key_value_heads") => heads,
        (None, KvHeads::Needed) => need(config, family, "num_key_value_heads")?,
    };
    let head_dim = match config.size("head_dim")?.or(family.defaults.head_dim) {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let why = format!("it must divide hidden_size, {hidden}, where there is no head_dim");
            return Err(config.bad("num_attention_heads", why));
        }
    };
    let mut shape = family.attention(heads, kv_heads, head_dim);
    let sizes = ScaleSizes { layers, hidden, heads, head_dim };
    shape.temperature = rope::temperature(config, family)?;
    shape.cap = cap(config, &family.scales.score_cap, &sizes)?;
    shape.scale = factor(config, &family.scales.scores, &sizes)?;
    Ok(shape)
}

fn parts(config: &Fields, family: &Family, q: &Quantization) -> Result<Parts> {
    let has = |bias| match bias {
        Bias::Never => Ok(false),
        Bias::Always => Ok(true),
        Bias::Key { key, default } => Ok::<_, Error>(config.flag(key)?.unwrap_or(default)),
    };
    Ok(Parts {
        projection_norms: q.projection_norms.is_some(),
        qkv_bias: has(family.biases.qkv)?,
        output_bias: has(family.biases.output)?,
        ffn_bias: has(family.biases.ffn)?,
    })
}

/// Maps GGUF's key to the key of this file.
pub(super) fn key(gguf: &str) -> String {
    let name = match gguf {
        "context_length" => "max_position_embeddings",
        "block_count" => "num_hidden_layers",
        "embedding_length" => "hidden_size",
        "feed_forward_length" => "intermediate_size",
        "attention.head_count" => "num_attention_heads",
        "attention.head_count_kv" => "num_key_value_heads",
        "attention.key_length" | "rope.dimension_count" => "head_dim",
        "projection_epsilon" => "quantization_config.rms_norm_eps",
        "attention.sliding_window" => "sliding_window",
        "nextn_predict_layers" => "mtp_num_hidden_layers",
        "swiglu_clamp_exp" => "swiglu_limit",
        "expert_weights_scale" => "routed_scaling_factor",
        "expert_count" => "num_experts",
        "expert_used_count" => "num_experts_per_tok",
        "expert_feed_forward_length" => "moe_intermediate_size",
        "expert_shared_feed_forward_length" => "shared_expert_intermediate_size",
        "rope.freq_base" => "rope_theta",
        SHARED_KV => "num_kv_shared_layers",
        LAYER_INPUTS => "hidden_size_per_layer_input",
        "rope.scaling.original_context_length" => "rope_scaling.original_max_position_embeddings",
        "rope.scaling.yarn_beta_fast" => "rope_scaling.beta_fast",
        "rope.scaling.yarn_beta_slow" => "rope_scaling.beta_slow",
        "attention.temperature_scale" => "rope_scaling.llama_4_scaling_beta",
        "rope.scaling.attn_factor" => "rope_scaling.attention_factor",
        other => match other.strip_prefix("rope.scaling.") {
            Some(key) => return format!("rope_scaling.{key}"),
            None => other,
        },
    };
    name.to_owned()
}

/// Parses the file's JSON, whatever it holds. Python writes an infinite number as `Infinity`, which JSON does not have.
pub(super) fn parse(json: &[u8], what: &str) -> Result<serde_json::Value> {
    let parsed = serde_json::from_slice(json);
    let again = |e| serde_json::from_slice(&without_infinity(json)).map_err(|_| e);
    parsed.or_else(again).map_err(|e: serde_json::Error| Error::bad_model(format!("{what}: {e}")))
}

/// The text with each `Infinity` outside of strings as transformers 5 spells it.
fn without_infinity(json: &[u8]) -> Vec<u8> {
    const WORD: &[u8] = b"Infinity";
    let (mut out, mut rest, mut quoted) = (Vec::new(), json, false);
    while let Some((&byte, tail)) = rest.split_first() {
        if !quoted && rest.starts_with(WORD) {
            out.extend_from_slice(br#"{"__float__":"Infinity"}"#);
            rest = &rest[WORD.len()..];
            continue;
        }
        let escape = usize::from(quoted && byte == b'\\' && !tail.is_empty());
        quoted ^= byte == b'"';
        out.extend_from_slice(&rest[..1 + escape]);
        rest = &tail[escape..];
    }
    out
}
