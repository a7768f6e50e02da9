//! Reads a template's source, and checks it before it is parsed.

use super::value::{Outcome, fail};
use super::{ChatTemplate, MAX_SOURCE};
use crate::base::{Error, Result};
use crate::formats::Gguf;
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use serde_json::Value as Json;

/// Maximum number of tokens in one tag, since a chain of that length nests expressions.
const MAX_TAG_TOKENS: usize = 2048;
/// Maximum length of a line in bytes: minijinja's columns are 16 bits wide, and an error at the last one overflows
/// them.
const MAX_LINE: usize = 60_000;
/// Maximum number of `elif`s in a template, since each nests in the one before.
const MAX_ELIFS: usize = 512;

const KEY: &str = "tokenizer.chat_template";
const FOR_TOOLS: &str = "tool_use";

pub(super) fn from_gguf(gguf: &Gguf, log: &dyn Fn(&str)) -> Result<Option<ChatTemplate>> {
    let mut source = None;
    for key in [KEY.to_owned(), format!("{KEY}.default")] {
        if source.is_none() {
            source = gguf.find::<&str>(&key)?;
        }
    }
    let Some(source) = source else { return Ok(None) };
    let texts: Vec<&str> = gguf.find("tokenizer.ggml.tokens")?.unwrap_or_default();
    let mut tokens = Vec::new();
    for (name, key) in
        [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"), ("sep", "seperator")]
    {
        let id: Option<u32> = gguf.find(&format!("tokenizer.ggml.{key}_token_id"))?;
        if let Some(text) = id.and_then(|id| texts.get(id as usize)) {
            tokens.push((format!("{name}_token"), (*text).to_owned()));
        }
    }
    let keep = |source: &str| {
        ChatTemplate::keep(source, tokens.clone(), &|message| log(&format!("{}: {message}", gguf.what())))
    };
    let for_tools = gguf.find::<&str>(&format!("{KEY}.{FOR_TOOLS}"))?;
    Ok(Some(keep(source).with_tools(for_tools.map(keep))))
}

/// The template for conversations with tools, if there is one besides that of `template_of_json`.
pub fn template_for_tools(file: &Json) -> Option<&str> {
    let entries = file.get("chat_template")?.as_array()?;
    let entry = entries.iter().find(|entry| entry.get("name").and_then(Json::as_str) == Some(FOR_TOOLS))?;
    entry.get("template")?.as_str()
}

/// The default template of `chat_template` in a `tokenizer_config.json` or `chat_template.json`: a string, or a
/// list of names and templates. None if there is none; `BadModel` if it is something else.
pub fn template_of_json(file: &Json) -> Result<Option<&str>> {
    let bad = || Error::bad_model("chat_template is neither a string nor a list of name and template");
    match file.get("chat_template") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(template)) => Ok(Some(template)),
        Some(Json::Array(entries)) => {
            let field = |entry: &'_ Json, name| Some(entry.get(name)?.as_str()?.to_owned());
            let names = entries.iter().map(|entry| field(entry, "template").and(field(entry, "name")));
            let names: Vec<String> = names.collect::<Option<_>>().ok_or_else(bad)?;
            // The other templates are for tools (`template_for_tools`) and retrieval.
            let chosen = names.iter().position(|name| name == "default");
            let chosen = chosen.or_else(|| (names.len() == 1).then_some(0));
            Ok(chosen.and_then(|at| entries[at].get("template")?.as_str()))
        }
        Some(_) => Err(bad()),
    }
}

pub(super) fn check_size(source: &str) -> Outcome<()> {
    match source.len() > MAX_SOURCE {
        true => Err(fail(format!("it has {} bytes, at most {MAX_SOURCE} are read", source.len()))),
        false => Ok(()),
    }
}

/// The source for the parser: lines and nesting are checked, line ends are normalized as in Jinja, and
/// transformers' `{% generation %}`, which only marks its body, becomes a block without effect.
pub(super) fn prepare(source: &str, syntax: &SyntaxConfig) -> Outcome<String> {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if let Some(line) = text.split('\n').position(|line| line.len() > MAX_LINE) {
        return Err(fail(format!("line {} has more than {MAX_LINE} bytes", line + 1)));
    }
    let (mut in_tag, mut elifs) = (0, 0);
    let mut first = false;
    let mut marks = Vec::new();
    for token in tokenize(&text, false, syntax.clone()) {
        let (token, span) = token?;
        let begins = std::mem::replace(&mut first, false);
        match token {
            Token::BlockStart => (first, in_tag) = (true, 0),
            Token::VariableStart => in_tag = 0,
            Token::Ident("elif") if begins => elifs += 1,
            Token::Ident(name @ ("generation" | "endgeneration")) if begins => {
                let block = if name == "generation" { "with" } else { "endwith" };
                marks.push((span.start_offset as usize..span.end_offset as usize, block));
            }
            _ => {}
        }
        in_tag += 1;
        if in_tag > MAX_TAG_TOKENS || elifs > MAX_ELIFS {
            let what = format!("more than {MAX_TAG_TOKENS} words in a tag or {MAX_ELIFS} elifs");
            return Err(fail(format!("{what} (line {})", span.start_line)));
        }
    }
    for (range, block) in marks.into_iter().rev() {
        text.replace_range(range, block);
    }
    Ok(text)
}
