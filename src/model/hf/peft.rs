//! LoRA adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.

use super::config;
use super::fields::Fields;
use super::files::MAX_CONFIG_BYTES;
use super::place::Place;
use crate::base::{Error, Result, Status, reserve};
use crate::formats::hf::Folder;
use crate::formats::safetensors::{ElementType, SafeTensors, TensorInfo};
use crate::kernels::{DType, Matrix};
use crate::model::adapter::{AdapterFile, Part};
use serde_json::Value;

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
const HEAD: &str = "lm_head";

/// Initializations that leave the base model as it is. With others (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA) PEFT subtracts
/// the first update from its weights whenever it loads the adapter.
const INITS: &[&str] = &["eva", "gaussian", "mica", "orthogonal"];

/// Limits of `alpha_pattern`, whose expressions are untrusted.
const MAX_EXPRESSIONS: usize = 256;
const MAX_EXPRESSION_BYTES: usize = 1 << 18;
const MAX_STEPS: usize = 10_000;

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

pub(crate) fn read(folder: &Folder) -> Result<AdapterFile> {
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
            beside_a(&file, tensor)?;
            continue;
        };
        reserve(&mut parts, 1, "an adapter's tensors")?;
        parts.push(part(&file, module, tensor, &scales)?);
    }
    Ok(AdapterFile { what: folder.what().to_owned(), architecture: None, rope: None, parts })
}

/// Fails with `Unsupported` for a tensor that is neither a B with a matching A nor the base model's own head, which
/// PEFT saves beside the update of it.
fn beside_a(file: &SafeTensors, tensor: &TensorInfo) -> Result<()> {
    let head = tensor.name.strip_suffix(".base_layer.weight").filter(|module| module.ends_with(HEAD));
    let module = tensor.name.strip_suffix(".lora_B.weight").or(head);
    match module.is_some_and(|module| file.tensor(&format!("{module}.lora_A.weight")).is_some()) {
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
    Ok(Part { name: module.to_owned(), scale: scales.of(module, a.rows)?, a, b })
}

/// The scaling of updates in the configuration.
struct Scales {
    alpha: f32,
    patterns: Vec<(Pattern, f32)>,
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
        if let Some(init) = json["init_lora_weights"].as_str().filter(|init| !INITS.contains(init)) {
            let why = format!(
                "with {init} the base model's weights change too; save the adapter with \
                 path_initial_model_for_weight_conversion"
            );
            return Err(fields.unsupported("init_lora_weights", why));
        }
        if fields.text("bias")?.is_some_and(|bias| bias != "none") {
            return Err(fields.unsupported("bias", "only 'none' is supported"));
        }
        let mut patterns = Vec::new();
        for (pattern, alpha) in json["alpha_pattern"].as_object().into_iter().flatten() {
            let wrong = |why: String| fields.unsupported("alpha_pattern", why);
            let alpha = alpha.as_f64().ok_or_else(|| wrong(format!("'{pattern}' in it has no number")))?;
            let of = Pattern::new(pattern).map_err(|why| wrong(format!("'{pattern}' in it: {why}")))?;
            patterns.push((of, alpha as f32));
        }
        let expressions = patterns.iter().filter(|(of, _)| matches!(of, Pattern::Expression(_))).count();
        if expressions > MAX_EXPRESSIONS {
            let why = format!("{expressions} regular expressions are more than {MAX_EXPRESSIONS}");
            return Err(fields.unsupported("alpha_pattern", why));
        }
        let alpha = fields.float("lora_alpha")?;
        let alpha = alpha.ok_or_else(|| fields.bad("lora_alpha", "it must be a number"))?;
        Ok(Self { alpha, patterns, stabilized: fields.flag("use_rslora")?.unwrap_or(false) })
    }

    fn of(&self, module: &str, rank: usize) -> Result<f32> {
        let mut alpha = self.alpha;
        for (pattern, own) in &self.patterns {
            if pattern.is_of(module)? {
                alpha = *own;
                break;
            }
        }
        Ok(alpha / if self.stabilized { (rank as f32).sqrt() } else { rank as f32 })
    }
}

/// Modules whose names end like this, from a dot on. PEFT takes them as regular expressions.
enum Pattern {
    Name(String),
    Expression(Box<fancy_regex::Regex>),
}

impl Pattern {
    /// The error is the reason why it is refused.
    fn new(pattern: &str) -> std::result::Result<Self, String> {
        if pattern.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.') {
            return Ok(Self::Name(pattern.to_owned()));
        }
        let expression = fancy_regex::RegexBuilder::new(&format!(r"^(.*\.)?({pattern})$"))
            .backtrack_limit(MAX_STEPS)
            .delegate_size_limit(MAX_EXPRESSION_BYTES)
            .build();
        expression.map(|expression| Self::Expression(Box::new(expression))).map_err(|e| e.to_string())
    }

    fn is_of(&self, module: &str) -> Result<bool> {
        match self {
            Self::Name(name) => {
                let rest = module.strip_suffix(name.as_str());
                Ok(rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
            }
            Self::Expression(expression) => expression.is_match(module).map_err(|e| {
                Error::unsupported(format!("'alpha_pattern' {:?} on '{module}': {e}", expression.as_str()))
            }),
        }
    }
}
