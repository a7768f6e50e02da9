//! Describes a Hugging Face folder by its configuration and the shapes of its tensors.
use super::About;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Maximum size of a JSON file, or of the header of a file of tensors.
const LONG: u64 = 64 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    model_type: String,
    architectures: Option<Vec<String>>,
    quantization_config: Option<Quantization>,
    /// A multimodal model has a separate configuration for text.
    text_config: Option<Box<Config>>,
    max_position_embeddings: Option<u64>,
    hidden_size: Option<u64>,
    num_hidden_layers: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Quantization {
    quant_method: String,
}

#[derive(Debug, Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
}

fn json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let mut text = Vec::new();
    File::open(path)?.take(LONG).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

pub fn read(folder: &Path) -> Result<About> {
    let config: Config = json(&folder.join("config.json"))?;
    let inner = config.text_config.as_deref().unwrap_or(&config);
    let family = [&inner.model_type, &config.model_type].into_iter().find(|family| !family.is_empty());
    let architecture = bn_hub::printable(family.map_or("", String::as_str)).into_owned();
    let method = config.quantization_config.as_ref().map_or("", |of| &of.quant_method);
    let sizes = sizes(folder)?;
    // Ternary weights are four in a byte.
    let times = |kind: &str| if method.eq_ignore_ascii_case("bitnet") && kind == "U8" { 4 } else { 1 };
    let elements = |(kind, size): (&String, &u64)| size.saturating_mul(times(kind));
    let template = template(folder);
    let numbers = [("embedding_length", inner.hidden_size), ("block_count", inner.num_hidden_layers)];
    let values = numbers
        .into_iter()
        .filter_map(|(name, value)| Some((format!("{architecture}.{name}"), value?.into())));
    Ok(About {
        parameters: sizes.iter().map(elements).fold(0, u64::saturating_add),
        quantization: quantization(method, &sizes),
        context_length: inner.max_position_embeddings.unwrap_or_default(),
        embeds: folder.join("modules.json").exists() || !generates(&config),
        chats: !template.is_empty(),
        template,
        values: values.collect(),
        architecture,
        ..About::default()
    })
}

fn generates(config: &Config) -> bool {
    let ends = ["CausalLM", "LMHeadModel", "ConditionalGeneration"];
    let names = config.architectures.as_deref().unwrap_or_default();
    names.is_empty() || names.iter().any(|name| ends.iter().any(|end| name.ends_with(end)))
}

/// The method, or the type of most weights.
fn quantization(method: &str, sizes: &HashMap<String, u64>) -> String {
    let most = sizes.iter().max_by_key(|(_, size)| **size).map_or("", |(kind, _)| kind);
    bn_hub::printable(if method.is_empty() { most } else { method }).to_uppercase()
}

/// Elements of all tensors, by their types.
fn sizes(folder: &Path) -> Result<HashMap<String, u64>> {
    let mut sizes = HashMap::new();
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.path().extension().is_none_or(|end| end != "safetensors") {
            continue;
        }
        for tensor in tensors(&entry.path())? {
            let elements = tensor.shape.iter().fold(1, |product: u64, side| product.saturating_mul(*side));
            let size: &mut u64 = sizes.entry(tensor.dtype).or_default();
            *size = size.saturating_add(elements);
        }
    }
    Ok(sizes)
}

fn tensors(path: &Path) -> Result<Vec<Tensor>> {
    let mut file = File::open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LONG {
        return Err(Error::from(ErrorKind::InvalidData));
    }
    let mut head = Vec::new();
    file.take(length).read_to_end(&mut head)?;
    let mut all: HashMap<String, Value> = serde_json::from_slice(&head)?;
    all.remove("__metadata__");
    Ok(all.into_values().filter_map(|tensor| serde_json::from_value(tensor).ok()).collect())
}

/// The chat template, from a file of its own or from the tokenizer's. If there are several, all of them.
fn template(folder: &Path) -> String {
    if let Ok(text) = fs::read_to_string(folder.join("chat_template.jinja")) {
        return text;
    }
    let files = ["tokenizer_config.json", "chat_template.json"].map(|name| folder.join(name));
    let read = |path: &std::path::PathBuf| {
        let mut config: Map<String, Value> = json(path).ok()?;
        config.remove("chat_template").filter(|template| !template.is_null())
    };
    match files.iter().find_map(read) {
        Some(Value::String(text)) => text,
        Some(several) => several.to_string(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_folder_says_what_it_is() {
        let folder = std::env::temp_dir().join(format!("bn-server-{}-folder", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let config = json!({"model_type": "llama", "architectures": ["LlamaForCausalLM"], 
            "max_position_embeddings": 4096, "quantization_config": {"quant_method": "bitnet"}});
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let template = json!({"chat_template": "{{ messages }}"});
        fs::write(folder.join("tokenizer_config.json"), template.to_string()).unwrap();
        let head = json!({"__metadata__": {"format": "pt"}, "a": {"dtype": "U8", "shape": [2, 8], "data_offsets": [0, 16]},
            "b": {"dtype": "BF16", "shape": [5], "data_offsets": [16, 26]}});
        let head = head.to_string().into_bytes();
        fs::write(folder.join("m.safetensors"), [&(head.len() as u64).to_le_bytes()[..], &head].concat())
            .unwrap();
        let about = read(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!((about.architecture.as_str(), about.quantization.as_str()), ("llama", "BITNET"));
        assert_eq!((about.parameters, about.context_length), (69, 4096));
        assert_eq!(about.capabilities(), ["completion", "tools"]);
        assert_eq!(quantization("", &HashMap::from([("F32".to_owned(), 1), ("bf16".to_owned(), 2)])), "BF16");
    }
}
