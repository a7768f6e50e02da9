//! A template's values as text: Python's `str` and `repr`, and `json.dumps`.

use super::text::{Piece, Sink};
use super::value::{ITEM_WORK, Outcome, Run, dict, fail, list};
use minijinja::value::{Value, ValueKind};
use std::borrow::Cow;

/// What `{{ value }}` writes, a string.
pub fn text(run: &Run, value: &Value) -> Outcome<Value> {
    if Piece::of(value).is_some() {
        return Ok(value.clone());
    }
    if value.is_undefined() {
        return Ok(Value::from(""));
    }
    let mut out = Sink::new(run);
    repr(value, &mut out)?;
    out.into_value()
}

/// Python's `repr`.
fn repr(value: &Value, out: &mut Sink) -> Outcome<()> {
    out.run.work(ITEM_WORK)?;
    if let Some(text) = Piece::of(value) {
        return quoted(text, out);
    }
    if let Some(list) = list(value) {
        out.push(if list.is_tuple { "(" } else { "[" })?;
        for (at, item) in list.items.iter().enumerate() {
            out.push(if at == 0 { "" } else { ", " })?;
            repr(item, out)?;
        }
        return out.push(match (list.is_tuple, list.items.len()) {
            (true, 1) => ",)",
            (true, _) => ")",
            (false, _) => "]",
        });
    }
    if let Some(dict) = dict(value) {
        out.push("{")?;
        for (at, (key, item)) in dict.pairs.iter().enumerate() {
            out.push(if at == 0 { "" } else { ", " })?;
            repr(key, out)?;
            out.push(": ")?;
            repr(item, out)?;
        }
        return out.push("}");
    }
    match value.kind() {
        ValueKind::Undefined => out.push("Undefined"),
        ValueKind::None => out.push("None"),
        ValueKind::Bool => out.push(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push(&number(value)),
        // Loops and macros: nothing that a prompt should hold.
        other => Err(fail(format!("a {other} can't be written out"))),
    }
}

fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => python_float(float),
        _ => value.to_string(),
    }
}

fn python_float(float: f64) -> String {
    if float.is_nan() {
        return "nan".into();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent @ -4..16 => {
            let _ = exponent;
            let plain = format!("{float}");
            if plain.contains('.') { plain } else { plain + ".0" }
        }
        exponent => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

fn quoted(text: Piece, out: &mut Sink) -> Outcome<()> {
    out.run.work(ITEM_WORK * text.len())?;
    let quote = if text.contains('\'') && !text.contains('"') { "\"" } else { "'" };
    out.push(quote)?;
    for (part, untrusted) in text.segments() {
        for c in part.chars() {
            let escape: Cow<str> = match c {
                '\n' => "\\n".into(),
                '\r' => "\\r".into(),
                '\t' => "\\t".into(),
                '\\' => "\\\\".into(),
                '\'' if quote == "'" => "\\'".into(),
                c if !is_printable(c) => match c as u32 {
                    code @ 0..0x100 => format!("\\x{code:02x}").into(),
                    code @ 0x100..0x10000 => format!("\\u{code:04x}").into(),
                    code => format!("\\U{code:08x}").into(),
                },
                c => {
                    out.push_char(c, untrusted)?;
                    continue;
                }
            };
            out.push_as(&escape, untrusted)?;
        }
    }
    out.push(quote)
}

/// Whether Python's `repr` leaves it as it is: Rust's escapes agree, but for what combines with a letter before it.
fn is_printable(c: char) -> bool {
    let escaped = || ['a', c].iter().collect::<String>().escape_debug().any(|c| c == '{');
    c == ' ' || c.is_ascii_graphic() || !c.is_ascii() && !escaped()
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`.
pub fn json(run: &Run, value: &Value, indent: Option<usize>) -> Outcome<Value> {
    let mut out = Sink::new(run);
    write_json(value, indent, 0, &mut out)?;
    out.into_value()
}

fn write_json(value: &Value, indent: Option<usize>, level: usize, out: &mut Sink) -> Outcome<()> {
    out.run.work(ITEM_WORK)?;
    if let Some(text) = Piece::of(value) {
        return json_string(text, out);
    }
    let line = |level: usize, out: &mut Sink| match indent {
        None => Ok(()),
        Some(by) => {
            out.push("\n")?;
            (0..by * level).try_for_each(|_| out.push(" "))
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    if let Some(list) = list(value) {
        out.push("[")?;
        for (at, item) in list.items.iter().enumerate() {
            out.push(if at == 0 { "" } else { comma })?;
            line(level + 1, out)?;
            write_json(item, indent, level + 1, out)?;
        }
        if !list.items.is_empty() {
            line(level, out)?;
        }
        return out.push("]");
    }
    if let Some(dict) = dict(value) {
        out.push("{")?;
        for (at, (key, item)) in dict.pairs.iter().enumerate() {
            out.push(if at == 0 { "" } else { comma })?;
            line(level + 1, out)?;
            match Piece::of(key) {
                Some(key) => json_string(key, out)?,
                None => {
                    out.push("\"")?;
                    write_json(key, None, 0, out)?;
                    out.push("\"")?;
                }
            }
            out.push(": ")?;
            write_json(item, indent, level + 1, out)?;
        }
        if !dict.pairs.is_empty() {
            line(level, out)?;
        }
        return out.push("}");
    }
    match value.kind() {
        ValueKind::None => out.push("null"),
        ValueKind::Bool => out.push(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push(match &*number(value) {
            "nan" => "NaN",
            "inf" => "Infinity",
            "-inf" => "-Infinity",
            number => number,
        }),
        other => Err(fail(format!("tojson: a {other} has no JSON"))),
    }
}

fn json_string(text: Piece, out: &mut Sink) -> Outcome<()> {
    out.push("\"")?;
    for (part, untrusted) in text.segments() {
        json_part(part, untrusted, out)?;
    }
    out.push("\"")
}

fn json_part(text: &str, untrusted: bool, out: &mut Sink) -> Outcome<()> {
    out.run.work(4 * text.len())?;
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let escape: Cow<str> = match c {
            '"' => "\\\"".into(),
            '\\' => "\\\\".into(),
            '\n' => "\\n".into(),
            '\r' => "\\r".into(),
            '\t' => "\\t".into(),
            '\u{8}' => "\\b".into(),
            '\u{c}' => "\\f".into(),
            c if (c as u32) < 0x20 => format!("\\u{:04x}", c as u32).into(),
            _ => continue,
        };
        out.push_as(&text[plain..at], untrusted)?;
        out.push_as(&escape, untrusted)?;
        plain = at + c.len_utf8();
    }
    out.push_as(&text[plain..], untrusted)
}
