//! LoRA adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.

use super::fields::Fields;
use super::{MAX_CONFIG_BYTES, Place, config};
use crate::base::{Error, Result, Status, reserve};
use crate::formats::hf::Folder;
use crate::formats::safetensors::{ElementType, SafeTensors, TensorInfo};
use crate::kernels::{DType, Matrix};
use crate::model::adapter::{AdapterFile, Part};
use serde_json::Value;

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";

/// Keys that, if set, make a product more than its low-rank update.
const FEATURES: &[&str] = &[
    "alora_invocation_tokens",
    "arrow_config",
    "fan_in_fan_out",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
];

pub fn read(folder: &Folder) -> Result<AdapterFile> {
    let what = folder.path_of(CONFIG);
    let missing = |file: &str| {
        let pickled = if folder.has("adapter_model.bin") { "; pickled weights are not read" } else { "" };
        let message = format!("cannot open adapter '{}': it has no {file}{pickled}", folder.what());
        Error::new(Status::Io, message)
    };
    let json = folder.read(CONFIG, MAX_CONFIG_BYTES)?.ok_or_else(|| missing(CONFIG))?;
    let json = config::parse(&json, &what)?;
    let scales = Scales::read(&json, &Fields::new(&json, &what)?)?;
    let bytes = folder.map(TENSORS)?.ok_or_else(|| missing(TENSORS))?;
    let file = SafeTensors::from_bytes(bytes, &folder.path_of(TENSORS))?;
    let mut parts = Vec::new();
    for tensor in file.tensors() {
        let Some(module) = tensor.name.strip_suffix(".lora_A.weight") else {
            pair_of_b(&file, tensor)?;
            continue;
        };
        reserve(&mut parts, 1, "an adapter's tensors")?;
        parts.push(part(&file, module, tensor, &scales)?);
    }
    Ok(AdapterFile { what: folder.what().to_owned(), architecture: None, rope: None, parts })
}

/// Fails with `Unsupported` for a tensor that is not a B with a matching A.
fn pair_of_b(file: &SafeTensors, tensor: &TensorInfo) -> Result<()> {
    let a = tensor.name.strip_suffix(".lora_B.weight").map(|module| format!("{module}.lora_A.weight"));
    match a.is_some_and(|a| file.tensor(&a).is_some()) {
        true => Ok(()),
        false => {
            let at = Place { file: file.what(), tensor: &tensor.name };
            Err(at.unsupported("is no pair of a LoRA's (lora_A.weight, lora_B.weight)"))
        }
    }
}

fn part(file: &SafeTensors, module: &str, a: &TensorInfo, scales: &Scales) -> Result<Part> {
    let at = Place { file: file.what(), tensor: &a.name };
    let module = module.strip_prefix("base_model.model.").unwrap_or(module);
    let b_name = a.name.replace(".lora_A.weight", ".lora_B.weight");
    let b = file.tensor(&b_name).ok_or_else(|| at.bad(&format!("has no '{b_name}' beside it")))?;
    let matrix = |tensor: &TensorInfo| -> Result<Matrix> {
        let at = Place { file: file.what(), tensor: &tensor.name };
        let &[rows, cols] = &tensor.shape[..] else { return Err(at.bad("is no matrix")) };
        let dtype = match tensor.ty {
            ElementType::F32 => DType::F32,
            ElementType::F16 => DType::F16,
            ElementType::BF16 => DType::BF16,
            _ => return Err(at.not_float(tensor)),
        };
        Matrix::new(file.data(tensor)?, dtype, rows, cols).map_err(|e| at.of(e))
    };
    let (a, b) = (matrix(a)?, matrix(b)?);
    Ok(Part { name: module.to_owned(), scale: scales.of(module, a.rows), a, b })
}

/// The scaling of updates in the configuration.
struct Scales {
    alpha: f32,
    /// Alphas by the end of modules' names.
    patterns: Vec<(String, f32)>,
    /// Whether scaling is rank-stabilized (Kalajdzievski 2023, "A rank stabilization scaling factor for fine-tuning
    /// with LoRA").
    stabilized: bool,
}

impl Scales {
    fn read(json: &Value, fields: &Fields) -> Result<Self> {
        if fields.text("peft_type")?.is_none_or(|kind| kind != "LORA") {
            return Err(fields.unsupported("peft_type", "only LORA is supported"));
        }
        let set = |key: &&&str| match &json[**key] {
            Value::Null | Value::Bool(false) => false,
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
            _ => true,
        };
        if let Some(key) = FEATURES.iter().find(set) {
            return Err(fields.unsupported(key, "this is not supported"));
        }
        if fields.text("bias")?.is_some_and(|bias| bias != "none") {
            return Err(fields.unsupported("bias", "only 'none' is supported"));
        }
        let mut patterns = Vec::new();
        for (pattern, alpha) in json["alpha_pattern"].as_object().into_iter().flatten() {
            // PEFT takes patterns as regular expressions.
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
            let Some(alpha) = alpha.as_f64().filter(|_| pattern.chars().all(plain)) else {
                return Err(fields.unsupported("alpha_pattern", "modules' names and numbers are supported"));
            };
            patterns.push((pattern.clone(), alpha as f32));
        }
        let alpha = fields.float("lora_alpha")?;
        let alpha = alpha.ok_or_else(|| fields.bad("lora_alpha", "it must be a number"))?;
        Ok(Self { alpha, patterns, stabilized: fields.flag("use_rslora")?.unwrap_or(false) })
    }

    fn of(&self, module: &str, rank: usize) -> f32 {
        let ends = |pattern: &str| {
            module.strip_suffix(pattern).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let own = self.patterns.iter().find(|(pattern, _)| ends(pattern));
        let alpha = own.map_or(self.alpha, |(_, alpha)| *alpha);
        alpha / if self.stabilized { (rank as f32).sqrt() } else { rank as f32 }
    }
}
