//! A folder's chat template: a file of its own, or `tokenizer_config.json`'s.

use super::MAX_TOKENIZER_CONFIG_BYTES;
use crate::base::{Error, Result};
use crate::formats::hf::Folder;
use crate::text::ChatTemplate;
use crate::text::chat::template_of_json;
use serde_json::Value;

const MAX_TEMPLATE_BYTES: u64 = 1 << 20;
const JINJA: &str = "chat_template.jinja";
const CONFIG: &str = "tokenizer_config.json";

/// transformers' order: a file of its own comes first.
pub fn template(folder: &Folder, warn: &dyn Fn(&str)) -> Result<Option<ChatTemplate>> {
    let config = json(folder, CONFIG, MAX_TOKENIZER_CONFIG_BYTES)?;
    let warn = |message: &str| warn(&format!("{}: {message}", folder.what()));
    let tokens = config.as_ref().map(tokens).unwrap_or_default();
    if let Some(bytes) = folder.read(JINJA, MAX_TEMPLATE_BYTES)? {
        let source = std::str::from_utf8(&bytes)
            .map_err(|e| Error::bad_model(format!("{}: it is no UTF-8: {e}", folder.path_of(JINJA))))?;
        return Ok(Some(ChatTemplate::keep(source, tokens, &warn)));
    }
    for (name, file) in
        [("chat_template.json", json(folder, "chat_template.json", MAX_TEMPLATE_BYTES)?), (CONFIG, config)]
    {
        let Some(file) = file else { continue };
        let found = template_of_json(&file)
            .map_err(|e| Error::new(e.status, format!("{}: {}", folder.path_of(name), e.message)))?;
        if let Some(source) = found {
            return Ok(Some(ChatTemplate::keep(source, tokens, &warn)));
        }
    }
    Ok(None)
}

fn json(folder: &Folder, name: &str, max: u64) -> Result<Option<Value>> {
    let Some(bytes) = folder.read(name, max)? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes)
        .map_err(|e| Error::bad_model(format!("{}: it is no JSON: {e}", folder.path_of(name))))?;
    Ok(Some(value))
}

/// `bos_token` and its like: strings, or objects with their `content`.
fn tokens(config: &Value) -> Vec<(String, String)> {
    let Some(config) = config.as_object() else { return Vec::new() };
    let text = |value: &Value| value.get("content").unwrap_or(value).as_str().map(String::from);
    let named = config.iter().filter(|(key, _)| key.ends_with("_token") && !key.starts_with("add_"));
    named.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
}
