//! The chat template of a folder: the first that exists of `chat_template.jinja`, `chat_template.json` and a field of
//! `tokenizer_config.json`, as in transformers.

use super::files::MAX_TOKENIZER_CONFIG_BYTES;
use crate::base::{Error, Result};
use crate::formats::hf::Folder;
use crate::text::chat::{template_for_tools, template_of_json};
use crate::text::{ChatTemplate, fields_of, token_text};
use serde_json::Value;

const JINJA: &str = "chat_template.jinja";
const JSON: &str = "chat_template.json";
const CONFIG: &str = "tokenizer_config.json";
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;

/// Tokens that templates refer to by name.
const TOKENS: &[&str] = &["bos_token", "eos_token", "unk_token", "pad_token", "sep_token"];

pub(super) fn read(folder: &Folder, warn: &dyn Fn(&str)) -> Result<Option<ChatTemplate>> {
    let Some(Source { name, text, for_tools }) = source(folder)? else { return Ok(None) };
    let what = folder.path_of(name);
    let warn = |message: &str| warn(&format!("{what}: {message}"));
    let tokens = tokens(&json(folder, CONFIG)?);
    let keep = |source: &str| ChatTemplate::keep(source, tokens.clone(), &warn);
    Ok(Some(keep(&text).with_tools(for_tools.as_deref().map(keep))))
}

/// A template, and another one for conversations with tools.
pub(super) struct Source {
    /// Name of the file.
    name: &'static str,
    pub text: String,
    pub for_tools: Option<String>,
}

/// The templates, from the first file that has any.
pub(super) fn source(folder: &Folder) -> Result<Option<Source>> {
    if let Some(bytes) = folder.read(JINJA, MAX_TEMPLATE_BYTES)? {
        let text = String::from_utf8(bytes);
        let not_utf8 = |_| Error::bad_model(format!("{}: it is not UTF-8", folder.path_of(JINJA)));
        return Ok(Some(Source { name: JINJA, text: text.map_err(not_utf8)?, for_tools: None }));
    }
    for name in [JSON, CONFIG] {
        let file = json(folder, name)?;
        if let Some(text) = template(folder, name, &file)? {
            let for_tools = template_for_tools(&file).map(str::to_owned);
            return Ok(Some(Source { name, text, for_tools }));
        }
    }
    Ok(None)
}

/// The fields of a side file that are needed; `null` if there is no such file.
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
