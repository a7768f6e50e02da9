//! A template's values as text: Python's `str` and `repr`, and `json.dumps`.

use super::ops::sort;
use super::text::{Piece, Sink};
use super::value::{ITEM_WORK, Outcome, Run, dict, fail, list};
use minijinja::value::{Value, ValueKind};

/// The output of `{{ value }}`, as a string.
pub(super) fn text(run: &Run, value: &Value) -> Outcome<Value> {
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
        // Loops and macros, which do not belong in a prompt.
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
    out.push_escaped(text, |c| {
        Some(match c {
            '\n' => "\\n".into(),
            '\r' => "\\r".into(),
            '\t' => "\\t".into(),
            '\\' => "\\\\".into(),
            '\'' if quote == "'" => "\\'".into(),
            c if is_printable(c) => return None,
            c => match c as u32 {
                code @ 0..0x100 => format!("\\x{code:02x}").into(),
                code @ 0x100..0x10000 => format!("\\u{code:04x}").into(),
                code => format!("\\U{code:08x}").into(),
            },
        })
    })?;
    out.push(quote)
}

/// Returns whether Python's `repr` leaves the character unescaped. Rust's escapes agree, except for characters
/// that combine with a letter before them.
fn is_printable(c: char) -> bool {
    let escaped = || ['a', c].iter().collect::<String>().escape_debug().any(|c| c == '{');
    c == ' ' || c.is_ascii_graphic() || !c.is_ascii() && !escaped()
}

/// The style of `json.dumps`, by the names of its arguments.
pub(super) struct JsonStyle<'a> {
    /// Written before a line, once for each level; None: all on one line.
    pub indent: Option<Piece<'a>>,
    /// Written after an item, and after a key.
    pub separators: [Piece<'a>; 2],
    pub ensure_ascii: bool,
    pub sort_keys: bool,
}

/// `json.dumps(value, ...)`.
pub(super) fn json(run: &Run, value: &Value, style: &JsonStyle) -> Outcome<Value> {
    let mut out = Sink::new(run);
    style.write(value, 0, &mut out)?;
    out.into_value()
}

impl JsonStyle<'_> {
    fn write(&self, value: &Value, level: usize, out: &mut Sink) -> Outcome<()> {
        out.run.work(ITEM_WORK)?;
        if let Some(text) = Piece::of(value) {
            return self.string(text, out);
        }
        if let Some(list) = list(value) {
            out.push("[")?;
            for (at, item) in list.items.iter().enumerate() {
                self.begin(at, level + 1, out)?;
                self.write(item, level + 1, out)?;
            }
            if !list.items.is_empty() {
                self.line(level, out)?;
            }
            return out.push("]");
        }
        if let Some(dict) = dict(value) {
            out.push("{")?;
            let sorted = if self.sort_keys { Some(sorted(out.run, &dict.pairs)?) } else { None };
            for at in 0..dict.pairs.len() {
                let (key, item) = sorted.as_ref().map_or(&dict.pairs[at], |sorted| sorted[at]);
                self.begin(at, level + 1, out)?;
                match Piece::of(key) {
                    Some(key) => self.string(key, out)?,
                    None => {
                        out.push("\"")?;
                        self.write(key, 0, out)?;
                        out.push("\"")?;
                    }
                }
                out.push_piece(self.separators[1])?;
                self.write(item, level + 1, out)?;
            }
            if !dict.pairs.is_empty() {
                self.line(level, out)?;
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

    /// Writes the indentation before the item at `at`.
    fn begin(&self, at: usize, level: usize, out: &mut Sink) -> Outcome<()> {
        if at > 0 {
            out.run.work(self.separators[0].len())?;
            out.push_piece(self.separators[0])?;
        }
        self.line(level, out)
    }

    fn line(&self, level: usize, out: &mut Sink) -> Outcome<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        out.run.work(level * indent.len())?;
        out.push("\n")?;
        (0..level).try_for_each(|_| out.push_piece(indent))
    }

    fn string(&self, text: Piece, out: &mut Sink) -> Outcome<()> {
        out.run.work(4 * text.len())?;
        out.push("\"")?;
        out.push_escaped(text, |c| {
            Some(match c {
                '"' => "\\\"".into(),
                '\\' => "\\\\".into(),
                '\n' => "\\n".into(),
                '\r' => "\\r".into(),
                '\t' => "\\t".into(),
                '\u{8}' => "\\b".into(),
                '\u{c}' => "\\f".into(),
                c if (c as u32) < 0x20 => format!("\\u{:04x}", c as u32).into(),
                // Written as in UTF-16: a character beyond 16 bits becomes two units.
                c if self.ensure_ascii && c >= '\u{7f}' => {
                    c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
                }
                _ => return None,
            })
        })?;
        out.push("\"")
    }
}

/// Sorts the pairs by their keys, which must have an order.
fn sorted<'a>(run: &Run, pairs: &'a [(Value, Value)]) -> Outcome<Vec<&'a (Value, Value)>> {
    let mut sorted = run.list(pairs.len())?;
    sorted.extend(pairs);
    sort(run, &mut sorted, |pair| &pair.0, false)?;
    Ok(sorted)
}
