//! The chat template of a folder: `chat_template.jinja`, `chat_template.json`, or a field of `tokenizer_config.json`,
//! the first that is there, as transformers takes them.

use super::MAX_TOKENIZER_CONFIG_BYTES;
use crate::base::{Error, Result};
use crate::formats::hf::Folder;
use crate::text::chat::template_of_json;
use crate::text::{ChatTemplate, fields_of};
use serde_json::Value;

const JINJA: &str = "chat_template.jinja";
const JSON: &str = "chat_template.json";
const CONFIG: &str = "tokenizer_config.json";
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;

/// Tokens that templates name.
const TOKENS: &[&str] = &["bos_token", "eos_token", "unk_token", "pad_token", "sep_token"];

pub fn read(folder: &Folder, warn: &dyn Fn(&str)) -> Result<Option<ChatTemplate>> {
    let json = |name: &str| -> Result<Value> {
        let Some(bytes) = folder.read(name, MAX_TOKENIZER_CONFIG_BYTES)? else { return Ok(Value::Null) };
        let bad = |e| Error::bad_model(format!("{}: {e}", folder.path_of(name)));
        fields_of(&bytes, &[&["chat_template"], TOKENS].concat()).map_err(bad)
    };
    let config = json(CONFIG)?;
    let (name, source) = match folder.read(JINJA, MAX_TEMPLATE_BYTES)? {
        Some(bytes) => {
            let text = String::from_utf8(bytes);
            let not_utf8 = |_| Error::bad_model(format!("{}: it is not UTF-8", folder.path_of(JINJA)));
            (JINJA, Some(text.map_err(not_utf8)?))
        }
        None => match template(folder, JSON, &json(JSON)?)? {
            Some(source) => (JSON, Some(source)),
            None => (CONFIG, template(folder, CONFIG, &config)?),
        },
    };
    let Some(source) = source else { return Ok(None) };
    let what = folder.path_of(name);
    let warn = |message: &str| warn(&format!("{what}: {message}"));
    Ok(Some(ChatTemplate::keep(&source, tokens(&config), &warn)))
}

fn template(folder: &Folder, name: &str, file: &Value) -> Result<Option<String>> {
    let at = |e: Error| Error::new(e.status, format!("{}: {}", folder.path_of(name), e.message));
    Ok(template_of_json(file).map_err(at)?.map(str::to_owned))
}

/// A token is a string, or an object that has it as `content`.
fn tokens(config: &Value) -> Vec<(String, String)> {
    let text = |name: &str| {
        let token = config.get(name)?;
        token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
    };
    TOKENS.iter().filter_map(|name| Some(((*name).to_owned(), text(name)?))).collect()
}
