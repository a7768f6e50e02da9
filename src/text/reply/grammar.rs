//! Grammars for answers that must call tools, in llguidance's dialect of Lark.

mod parameters;

use super::format::{Format, Written};
use super::known::{MAX_FIELDS, Schemas};
use super::{ReplyParts, Thoughts};
use crate::base::{Error, Result};
use crate::text::chat::{Chat, Json, Tool, ToolChoice};
use crate::text::json::Fields;
use serde_json::Value;
use std::cell::Cell;
use std::fmt::Write;

/// How to treat the schemas of tools that are not strict if a call must come. They help a model, and nobody relies
/// on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    Taken,
    /// Arguments may be any object.
    Left,
}

/// The grammar that `chat` asks for. If the choice requires a call, the answer must be one. Otherwise there is a
/// grammar only if a tool is strict or calls may not be parallel, or for an answer that is calls or else JSON under
/// `schema`. None if there is nothing to enforce.
///
/// `control` returns the id of a marker that is a control token of the vocabulary. `Unsupported` if calls are
/// asked for and their format is unknown, or cannot keep a strict tool's schema.
pub fn grammar(
    chat: &Chat,
    parts: &ReplyParts,
    schema: Option<&str>,
    advice: Advice,
    control: &dyn Fn(&str) -> Option<u32>,
) -> Result<Option<String>> {
    let must = match &chat.choice {
        ToolChoice::None => return Ok(None),
        ToolChoice::Required | ToolChoice::Named(_) => true,
        ToolChoice::Auto => false,
    };
    let formed = schema.is_some() && chat.tools().next().is_some();
    let needed = must || chat.parallel == Some(false) || chat.tools().any(|tool| tool.strict);
    if !needed && (!formed || parts.format.is_none()) {
        return Ok(None);
    }
    parts.check(chat)?;
    let Some(format) = parts.format else { return Ok(None) };
    let wanted: Vec<Tool> = match &chat.choice {
        ToolChoice::Named(name) => chat.tools().filter(|tool| tool.name == name).collect(),
        _ => chat.tools().collect(),
    };
    let advised = must && advice == Advice::Taken;
    let writer = Writer { format, thoughts: parts.thoughts, control };
    // Required calls end with the first unless the host allows more, because small models go on calling. A named
    // function is called once.
    let several = chat.parallel.unwrap_or(!must) && !matches!(chat.choice, ToolChoice::Named(_));
    let mut out = String::new();
    let _ = writeln!(out, "start: {}answer", writer.thoughts(parts));
    match (must, schema) {
        (true, _) => out.push_str("answer: calls\n"),
        (false, Some(schema)) => {
            // Parse the schema first, because text after it would become part of the grammar.
            let schema: Value = serde_json::from_str(schema)
                .map_err(|e| Error::invalid(format!("constraint: not a JSON schema: {e}")))?;
            let text = writer.terminals(writer.format.text);
            let _ = writeln!(out, "answer: {text}form | calls\nform: %json {schema}");
        }
        (false, None) => {
            let text = writer.terminals(writer.format.text);
            let _ = writeln!(out, "answer: {text}TEXT | {}calls", writer.text_before());
            let _ = writeln!(out, "TEXT: {}", writer.text());
        }
    }
    writer.thought_rule(parts, &mut out);
    writer.calls(&wanted, advised, several, &mut out)?;
    Ok(Some(out))
}

struct Writer<'a> {
    format: &'static Format,
    thoughts: Option<&'static Thoughts>,
    control: &'a dyn Fn(&str) -> Option<u32>,
}

impl Writer<'_> {
    /// Converts `text` to terminals. Markers that are control tokens become their ids.
    fn terminals(&self, text: &str) -> String {
        let (mut out, mut rest) = (String::new(), text);
        let markers = || {
            let blocks = self.format.blocks.iter().flat_map(|block| [block.open, block.close]);
            let thoughts = self.thoughts.iter().flat_map(|tags| [tags.open, tags.close]);
            blocks.chain(self.format.inner.iter().copied()).chain(thoughts)
        };
        let next = |rest: &str| {
            let found = markers().filter(|marker| !marker.is_empty());
            let found =
                found.filter_map(|marker| Some((rest.find(marker)?, marker, (self.control)(marker)?)));
            found.min_by_key(|(at, ..)| *at)
        };
        while let Some((at, marker, id)) = next(rest) {
            literal(&rest[..at], &mut out);
            let _ = write!(out, "<[{id}]> ");
            rest = &rest[at + marker.len()..];
        }
        literal(rest, &mut out);
        out
    }

    /// The rule for reasoning before the answer.
    fn thoughts(&self, parts: &ReplyParts) -> &'static str {
        match (parts.thoughts, parts.thinking) {
            (None, _) => "",
            (Some(_), true) => "thought ",
            (Some(_), false) => "(opened thought)? ",
        }
    }

    fn thought_rule(&self, parts: &ReplyParts, out: &mut String) {
        let Some(tags) = parts.thoughts else { return };
        let close = self.terminals(tags.close);
        match close.starts_with('<') {
            true => {
                let _ = writeln!(out, "thought: /(?s:.*)/ {close}BREAKS");
            }
            false => {
                let _ = writeln!(out, "thought: until BREAKS\nuntil[lazy]: /(?s:.*){}/", escaped(tags.close));
            }
        }
        out.push_str("BREAKS: /\\n{0,2}/\n");
        if !parts.thinking {
            let _ = writeln!(out, "opened: {}", self.terminals(tags.open));
        }
    }

    /// Text without a call: it contains no marker, and does not begin like a call.
    fn text(&self) -> String {
        let first = if self.format.bare == 0 { "/(?s:.+)/" } else { "/[^\\s{\\[](?s:.*)/" };
        let written = self.format.blocks.iter().filter(|block| (self.control)(block.open).is_none());
        written.fold(first.to_owned(), |text, block| {
            text + &format!(" & ~/(?s:.*){}(?s:.*)/", escaped(block.open))
        })
    }

    /// Text may come before calls, unless they are written without a marker.
    fn text_before(&self) -> &'static str {
        let marked = self.format.bare == 0 || !self.format.written.begin.is_empty();
        if marked && self.format.text.is_empty() { "TEXT? " } else { "" }
    }

    fn calls(&self, tools: &[Tool], advised: bool, several: bool, out: &mut String) -> Result<()> {
        let Written { begin, call: [before, between, behind], parameter, separator, end } =
            &self.format.written;
        let more = match separator {
            Some(separator) if several => format!("({}call)*", self.terminals(separator)),
            _ => String::new(),
        };
        let _ = writeln!(out, "calls: {}call {more} {}", self.terminals(begin), self.terminals(end));
        let names: Vec<String> = (0..tools.len()).map(|i| format!("call_{i}")).collect();
        let _ = writeln!(out, "call: {}", names.join(" | "));
        let left = Cell::new(MAX_FIELDS);
        for (i, tool) in tools.iter().enumerate() {
            let head = self.terminals(&format!("{before}{}{between}", tool.name));
            let kept = tool.parameters.filter(|_| advised || tool.strict);
            let arguments = match parameter {
                Some(parameter) => {
                    let from = out.len();
                    let schemas = Schemas { root: kept, left: &left };
                    match parameters::rules(i, &schemas, parameter, out) {
                        Ok(rules) => rules,
                        Err(what) if tool.strict => return Err(self.refused(tool.name, &what)),
                        Err(_) => {
                            out.truncate(from);
                            parameters::any_rule(i, parameter, out)
                        }
                    }
                }
                None => {
                    let _ = writeln!(out, "args_{i}: %json {}", schema(kept));
                    format!("args_{i} ")
                }
            };
            let _ = writeln!(out, "call_{i}: {head}{arguments}{}", self.terminals(behind));
        }
        Ok(())
    }

    /// The error for a tool whose schema cannot be kept because of `what`.
    fn refused(&self, tool: &str, what: &str) -> Error {
        let format = self.format.name;
        Error::unsupported(format!("chat.json: tools: {tool}: {what} cannot be kept in calls of {format}"))
    }
}

/// The schema of the arguments, with exactly the blanks that templates write in arguments.
fn schema(parameters: Option<&Json>) -> Json {
    let any = || vec![("type".to_owned(), Json::Text("object".to_owned()))];
    let mut fields = match parameters {
        Some(Json::Map(fields)) => fields.clone(),
        _ => any(),
    };
    if !fields.iter().any(|(name, _)| name == "type") {
        fields.extend(any());
    }
    spaced(fields)
}

/// A schema whose JSON has the blanks of templates.
fn spaced(mut schema: Fields) -> Json {
    let text = |text: &str| Json::Text(text.to_owned());
    let blanks = vec![
        ("whitespace_flexible".to_owned(), Json::Bool(false)),
        ("item_separator".to_owned(), text(", ")),
        ("key_separator".to_owned(), text(": ")),
    ];
    schema.push(("x-guidance".to_owned(), Json::Map(blanks)));
    Json::Map(schema)
}

/// Appends a quoted literal and a space.
fn literal(text: &str, out: &mut String) {
    if !text.is_empty() {
        let _ = write!(out, "{} ", Json::Text(text.to_owned()));
    }
}

/// Escapes a text for a regular expression between slashes.
fn escaped(text: &str) -> String {
    let special = |c: char| r".+*?()|[]{}^$\/".contains(c);
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}
