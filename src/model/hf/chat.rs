//! The chat template of a folder: `chat_template.jinja`, `chat_template.json`, or a field of `tokenizer_config.json`,
//! the first that is there, as transformers takes them.

use super::MAX_TOKENIZER_CONFIG_BYTES;
use crate::base::{Error, Result};
use crate::formats::hf::Folder;
use crate::text::chat::template_of_json;
use crate::text::{ChatTemplate, fields_of, token_text};
use serde_json::Value;

const JINJA: &str = "chat_template.jinja";
const JSON: &str = "chat_template.json";
const CONFIG: &str = "tokenizer_config.json";
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;

/// Tokens that templates name.
const TOKENS: &[&str] = &["bos_token", "eos_token", "unk_token", "pad_token", "sep_token"];

pub fn read(folder: &Folder, warn: &dyn Fn(&str)) -> Result<Option<ChatTemplate>> {
    let Some((name, source)) = source(folder)? else { return Ok(None) };
    let what = folder.path_of(name);
    let warn = |message: &str| warn(&format!("{what}: {message}"));
    Ok(Some(ChatTemplate::keep(&source, tokens(&json(folder, CONFIG)?), &warn)))
}

/// The file that has the template, and its text.
pub fn source(folder: &Folder) -> Result<Option<(&'static str, String)>> {
    if let Some(bytes) = folder.read(JINJA, MAX_TEMPLATE_BYTES)? {
        let text = String::from_utf8(bytes);
        let not_utf8 = |_| Error::bad_model(format!("{}: it is not UTF-8", folder.path_of(JINJA)));
        return Ok(Some((JINJA, text.map_err(not_utf8)?)));
    }
    for name in [JSON, CONFIG] {
        if let Some(source) = template(folder, name, &json(folder, name)?)? {
            return Ok(Some((name, source)));
        }
    }
    Ok(None)
}

/// What is read of a side file; `null` where there is no such file.
fn json(folder: &Folder, name: &str) -> Result<Value> {
    let Some(bytes) = folder.read(name, MAX_TOKENIZER_CONFIG_BYTES)? else { return Ok(Value::Null) };
    let bad = |e| Error::bad_model(format!("{}: {e}", folder.path_of(name)));
    fields_of(&bytes, &[&["chat_template"], TOKENS].concat()).map_err(bad)
}

fn template(folder: &Folder, name: &str, file: &Value) -> Result<Option<String>> {
    let at = |e: Error| Error::new(e.status, format!("{}: {}", folder.path_of(name), e.message));
    Ok(template_of_json(file).map_err(at)?.map(str::to_owned))
}

fn tokens(config: &Value) -> Vec<(String, String)> {
    let token = |name: &&str| Some(((*name).to_owned(), token_text(config, name)?.to_owned()));
    TOKENS.iter().filter_map(token).collect()
}
