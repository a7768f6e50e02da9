//! Reads `quantization_config`: the form of weights in the files.

use super::fields::Fields;
use super::quantized::{self, Quantized};
use crate::base::{Error, Result, Status};
use crate::model::family::BITNET_1BITLLM_CLASS;

/// Form of the projections in all layers. In ternary models embedding, head and norms are never quantized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Weights {
    /// In the type of their tensors.
    Plain,
    /// uint8 with four rows in one, and a scale. The codes are divided by it (`bitlinear`) or multiplied by it
    /// (`autobitlinear`).
    Packed { divide: bool },
    /// Experts in blocks of MXFP4, all else in the type of its tensors (`hf/interleaved.rs`).
    Mxfp4,
    /// Floats that every step rounds to ternary weights, by mean |w|.
    Online,
    /// Quantized by another tool, those products that have its tensors.
    Quantized(Quantized),
}

impl Weights {
    pub(super) fn is_ternary(self) -> bool {
        matches!(self, Self::Packed { .. } | Self::Online)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Quantization {
    pub weights: Weights,
    /// The eps of a norm before each projection (`use_rms_norm`), if there is one.
    pub projection_norms: Option<f32>,
}

impl Quantization {
    /// Reads it from a whole `config.json`. `Unsupported` for methods that are not known, by name.
    pub(super) fn read(config: &Fields) -> Result<Self> {
        if config.is_set("quantization") {
            return Err(config.unsupported("quantization", "MLX's weights are not read"));
        }
        let plain = Self { weights: Weights::Plain, projection_norms: None };
        let one_bit =
            config.texts("architectures")?.is_some_and(|names| names.contains(&BITNET_1BITLLM_CLASS));
        let q = config.object("quantization_config")?;
        if one_bit {
            return Self::one_bit(config, q.is_some());
        }
        // transformers' own classes ignore the widths of weights, while users take them for ternary weights.
        for key in ["weight_bits", "input_bits"] {
            if config.size(key)?.is_some() {
                let why = format!("it is known of the class {BITNET_1BITLLM_CLASS} only");
                return Err(config.unsupported(key, why));
            }
        }
        let Some(q) = q else { return Ok(plain) };
        match q.text("quant_method")? {
            Some("bitnet") => {}
            Some("mxfp4") => return Self::mxfp4(config, &q),
            Some(method) => {
                let Some(quantized) = quantized::read_config(method, &q)? else {
                    let why = "bitnet, mxfp4, compressed-tensors, fp8, gptq and awq are read: give a folder of one of them, the \
                               unquantized model, or a GGUF file";
                    return Err(q.unsupported("quant_method", why));
                };
                return Ok(Self { weights: Weights::Quantized(quantized), ..plain });
            }
            None => return Err(q.bad("quant_method", "it must name the method")),
        }
        modules(&q)?;
        let mode = q.text("quantization_mode")?.unwrap_or("offline");
        if !["offline", "online"].contains(&mode) {
            return Err(q.unsupported("quantization_mode", "it is offline or online"));
        }
        let weights = match q.text("linear_class")? {
            // The class that Falcon3, Falcon-E and Llama3-8B-1.58 were made with. It ignores the mode.
            None | Some("bitlinear") => Weights::Packed { divide: true },
            Some("autobitlinear") if mode == "online" => Weights::Online,
            Some("autobitlinear") => Weights::Packed { divide: false },
            Some(_) => return Err(q.unsupported("linear_class", "it is bitlinear or autobitlinear")),
        };
        let norms = q.flag("use_rms_norm")?.unwrap_or(false);
        let eps = q.float("rms_norm_eps")?.unwrap_or(1e-6);
        if let Some(key) = q.unknown(&["_load_in_8bit", "_load_in_4bit"]).first() {
            let message = format!("{}: '{key}' is not known; it may change what is computed", config.what());
            return Err(Error::new(Status::Unsupported, message));
        }
        Ok(Self { weights, projection_norms: norms.then_some(eps) })
    }

    /// Which tensors are blocks is told by their names.
    fn mxfp4(config: &Fields, q: &Fields) -> Result<Self> {
        if let Some(key) = q.unknown(&["modules_to_not_convert", "dequantize"]).first() {
            let message = format!("{}: '{key}' is not known; it may change what is computed", config.what());
            return Err(Error::new(Status::Unsupported, message));
        }
        Ok(Self { weights: Weights::Mxfp4, projection_norms: None })
    }

    /// 1bitLLM's class. Its code knows these widths, and ignores a `quantization_config`.
    fn one_bit(config: &Fields, quantized: bool) -> Result<Self> {
        for (key, bits) in [("weight_bits", 1), ("input_bits", 8)] {
            if config.size(key)? != Some(bits) {
                return Err(config.unsupported(
                    key,
                    format_args!("of the class {BITNET_1BITLLM_CLASS} only {bits} is read"),
                ));
            }
        }
        if quantized {
            let why = format!("with the class {BITNET_1BITLLM_CLASS} it is not read");
            return Err(config.unsupported("quantization_config", why));
        }
        Ok(Self { weights: Weights::Online, projection_norms: None })
    }
}

/// Only the head may stay unconverted. A list without it, or with a part of a layer, belongs to some other model.
fn modules(q: &Fields) -> Result<()> {
    let Some(modules) = q.texts("modules_to_not_convert")? else { return Ok(()) };
    let dense = ["lm_head", "model.embed_tokens", "embed_tokens", "model.norm", "norm"];
    if let Some(other) = modules.iter().find(|name| !dense.contains(name)) {
        let why = format!(
            "'{}' names a part of which only ternary weights are read",
            other.chars().take(60).collect::<String>()
        );
        return Err(q.unsupported("modules_to_not_convert", why));
    }
    match modules.contains(&"lm_head") {
        true => Ok(()),
        false => Err(q.unsupported("modules_to_not_convert", "without 'lm_head' in it the head is ternary")),
    }
}
