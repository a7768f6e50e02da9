//! JSON in bodies, which is bounded before it is parsed.
use crate::failure::{Failure, Result};
use axum::http::StatusCode;
use serde::Deserialize as _;
use serde_json::{Map, Value};
use std::borrow::Cow;

#[derive(Clone, Copy)]
pub struct Limits {
    /// Nesting of arrays and objects.
    pub depth: usize,
    /// Number of values, names included.
    pub items: usize,
}

/// Bytes that `values` values take that came in `bytes` bytes: each value in a tree, and the texts in the tree,
/// rewritten and joined.
pub fn cost(values: usize, bytes: usize) -> usize {
    const VALUE: usize = 140;
    values.saturating_mul(VALUE).saturating_add(bytes.saturating_mul(3))
}

/// Checks that the bytes can be an object within the limits. Returns an upper bound of the number of its
/// values.
pub fn check(bytes: &[u8], limits: Limits) -> Result<usize> {
    let (mut depth, mut items, mut at) = (0, 0, 0);
    if let Err(error) = std::str::from_utf8(bytes) {
        return Err(wrong(bytes, error.valid_up_to(), "the body is not valid UTF-8"));
    }
    while let Some(byte) = bytes.get(at) {
        match byte {
            0 => return Err(nul(bytes, at)),
            b'"' => at = end_of_string(bytes, at + 1)?,
            b'[' | b'{' => depth += 1,
            // The parser reports an extra bracket.
            b']' | b'}' if depth > 0 => depth -= 1,
            _ => {}
        }
        items += usize::from(matches!(byte, b',' | b':' | b'[' | b'{'));
        if depth > limits.depth {
            return Err(wrong(bytes, at, "the body's JSON is nested too deeply"));
        }
        if items > limits.items {
            return Err(wrong(bytes, at, "the body's JSON has too many values"));
        }
        at += 1;
    }
    Ok(items + 1)
}

/// The closing quote of the string whose first byte is at `at`. The parser reports all errors in it except a NUL.
fn end_of_string(bytes: &[u8], mut at: usize) -> Result<usize> {
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return Ok(at),
            0 => return Err(nul(bytes, at)),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    Ok(bytes.len())
}

fn nul(bytes: &[u8], at: usize) -> Failure {
    wrong(bytes, at, "the body has a NUL character")
}

/// JSON without the NUL characters of its strings, which the engine refuses.
pub fn without_nul(json: &[u8]) -> Cow<'_, [u8]> {
    const NUL: &[u8] = b"\\u0000";
    if !json.windows(NUL.len()).any(|bytes| bytes == NUL) {
        return json.into();
    }
    let (mut out, mut at) = (Vec::with_capacity(json.len()), 0);
    while at < json.len() {
        let escape = json[at] == b'\\';
        if escape && json[at..].starts_with(NUL) {
            at += NUL.len();
            continue;
        }
        let end = json.len().min(at + 1 + usize::from(escape));
        out.extend_from_slice(&json[at..end]);
        at = end;
    }
    out.into()
}

/// Parses an object that `check` has accepted.
pub fn object(bytes: &mut [u8]) -> Result<Map<String, Value>> {
    let parsed = match value(bytes) {
        Err(_) if mend_surrogates(bytes) => value(bytes),
        parsed => parsed,
    };
    match parsed {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(wrong(bytes, 0, "the body must be a JSON object")),
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            let text = error.to_string();
            let why = text.split(" at line ").next().unwrap_or_default();
            Err(at(&format!("the body is not valid JSON: {why}"), line, column.max(1)))
        }
    }
}

fn value(bytes: &[u8]) -> serde_json::Result<Value> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    reader.disable_recursion_limit(); // the depth was checked
    let value = Value::deserialize(&mut reader)?;
    reader.end().map(|()| value)
}

/// Replaces lone surrogates by \ufffd, since JavaScript may cut a text between two. Returns true if there
/// were some.
fn mend_surrogates(bytes: &mut [u8]) -> bool {
    let (mut at, mut found) = (0, false);
    while at < bytes.len() {
        let step = match (bytes[at], unit(bytes, at), unit(bytes, at + 6)) {
            (_, Some(0xD800..0xDC00), Some(0xDC00..0xE000)) => 12,
            (_, Some(0xD800..0xE000), _) => {
                bytes[at..at + 6].copy_from_slice(b"\\ufffd");
                found = true;
                6
            }
            (b'\\', ..) => 2,
            _ => 1,
        };
        at += step;
    }
    found
}

/// The number of an escape like \u1234 at this position.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn wrong(bytes: &[u8], place: usize, what: &str) -> Failure {
    let before = &bytes[..place.min(bytes.len())];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
    at(what, line, column)
}

fn at(what: &str, line: usize, column: usize) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "invalid_json", format!("{what} (line {line}, column {column})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { depth: 4, items: 20 };

    fn read(text: &[u8]) -> Result<Map<String, Value>> {
        check(text, LIMITS)?;
        object(&mut text.to_vec())
    }

    #[test]
    fn what_is_wrong_has_a_place() {
        for (text, words) in [
            (&b""[..], "the body is not valid JSON: EOF while parsing a value (line 1, column 1)"),
            (b"{", "the body is not valid JSON: EOF while parsing an object (line 1, column 1)"),
            (b"]", "the body is not valid JSON: expected value (line 1, column 1)"),
            (b"[]", "the body must be a JSON object (line 1, column 1)"),
            (b"{\"a\": 1,\n \"n\": }", "the body is not valid JSON: expected value (line 2, column 7)"),
            (b"{\"a\": 1} x", "the body is not valid JSON: trailing characters (line 1, column 10)"),
            (b"{\"a\": \"\0\"}", "the body has a NUL character (line 1, column 8)"),
            (b"{\"a\":\n\0}", "the body has a NUL character (line 2, column 1)"),
            (b"{\"a\": \"\xff\"}", "the body is not valid UTF-8 (line 1, column 8)"),
            (b"{\"a\": [[[[1]]]]}", "the body's JSON is nested too deeply (line 1, column 10)"),
            (b"[,,,,,,,,,,,,,,,,,,,,]", "the body's JSON has too many values (line 1, column 21)"),
        ] {
            assert_eq!(read(text).unwrap_err().message, words, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn nuls_are_left_out() {
        for (json, without) in [
            (r#"{"a": "x\u0000y", "\u0000": 1}"#, r#"{"a": "xy", "": 1}"#),
            (r#""\\u0000 \\\u0000""#, r#""\\u0000 \\""#),
            (r#""\u0000\u0000"#, r#"""#),
            (r#"\u0000\"#, r#"\"#),
        ] {
            assert_eq!(without_nul(json.as_bytes()), without.as_bytes());
        }
    }

    #[test]
    fn half_a_character_is_replaced() {
        for (text, expected) in [
            (r#"{"a": "x\ud83d"}"#, "x\u{fffd}"),
            (r#"{"a": "\uDE00\ud83d\u0041\ud83d\ud83d\ude00"}"#, "\u{fffd}\u{fffd}A\u{fffd}\u{1f600}"),
            (r#"{"a": "\\ud83d\ud83dx"}"#, "\\ud83d\u{fffd}x"),
        ] {
            assert_eq!(read(text.as_bytes()).unwrap()["a"], expected, "{text}");
        }
        assert!(read(br#"{"a": "\ud83d", }"#).is_err());
    }

    #[test]
    fn what_only_looks_wrong_is_taken() {
        for text in [
            r#"{"a": "[[[[[[[[\\"}"#,
            r#"{"a": "\"{{{{{{\\u0000"}"#,
            r#"{"a": "\u0000"}"#,
            r#"{"a": [], "b": [[]], "c": {}}"#,
        ] {
            assert!(read(text.as_bytes()).is_ok(), "{text}");
        }
    }
}
