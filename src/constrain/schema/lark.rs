//! Schemas embedded in a Lark grammar: `%json {...}`.

use super::{JsonOptions, prepared};
use serde_json::Value;

/// Rewrites the schemas of a grammar for llguidance.
pub(crate) fn lark(text: &str, options: JsonOptions) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(schema) = rest.strip_prefix("%json") {
            let mut values = serde_json::Deserializer::from_str(schema).into_iter::<Value>();
            if let Some(Ok(value)) = values.next() {
                let made = prepared(&value, options).map_err(|refusal| refusal.0)?;
                out.push_str(&format!("%json {made}"));
                rest = &schema[values.byte_offset()..];
                continue;
            }
        }
        let length = match c {
            '"' | '/' if !rest.starts_with("//") => quoted(rest, c),
            '#' | '/' => rest.find('\n').unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    Ok(out)
}

/// Length in bytes of a quoted text or regular expression with both delimiters; the rest of its line if it is
/// not closed.
fn quoted(text: &str, end: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '\n' => return at,
            c if c == end && !escaped => return at + 1,
            c => escaped = c == '\\' && !escaped,
        }
    }
    text.len()
}
