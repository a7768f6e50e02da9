//! What a request asks for, checked before llguidance sees it.

use super::gbnf;
use crate::base::{Error, Result};
use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};
use std::borrow::Cow;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConstraintKind {
    /// A JSON value that is valid under this schema.
    JsonSchema,
    /// Any JSON object; the text is empty.
    JsonObject,
    /// All of the output matches this regular expression (Rust's syntax, without look-around and back references).
    Regex,
    /// A grammar in llguidance's dialect of Lark.
    Lark,
    /// A grammar as llama.cpp's.
    Gbnf,
}

/// A grammar that an output must match.
#[derive(Clone, Debug, PartialEq)]
pub struct Constraint<'a> {
    pub kind: ConstraintKind,
    pub text: Cow<'a, str>,
}

/// Bytes of a constraint's text.
pub const MAX_BYTES: usize = 512 << 10;
/// Open brackets in a grammar; JSON may be nested 127 deep.
const MAX_DEPTH: usize = 256;
/// Rules of a grammar: llguidance recurses from each to those that it names.
const MAX_RULES: usize = 10_000;

/// White space between JSON tokens: enough to indent, and no endless lines.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,32}";

impl Constraint<'_> {
    /// `InvalidArgument` for a text that is too long, too deep, or no JSON where it has to be.
    pub(super) fn grammar(&self) -> Result<TopLevelGrammar> {
        let text: &str = &self.text;
        if text.len() > MAX_BYTES {
            return Err(refused(format!("its text has {} bytes, more than {MAX_BYTES}", text.len())));
        }
        match self.kind {
            ConstraintKind::JsonSchema => Ok(TopLevelGrammar::from_json_schema(schema(text)?)),
            ConstraintKind::JsonObject if text.is_empty() => {
                Ok(TopLevelGrammar::from_json_schema(spaced(json!({"type": "object"}))))
            }
            ConstraintKind::JsonObject => Err(refused("BN_CONSTRAINT_JSON_OBJECT takes no text")),
            ConstraintKind::Regex => {
                bounded(text)?;
                Ok(TopLevelGrammar::from_regex(text))
            }
            ConstraintKind::Lark => {
                bounded(text)?;
                Ok(TopLevelGrammar::from_lark(text.to_owned()))
            }
            ConstraintKind::Gbnf => {
                bounded(text)?;
                let lark = gbnf::to_lark(text).map_err(refused)?;
                Ok(TopLevelGrammar::from_lark(lark))
            }
        }
    }
}

pub(super) fn refused(why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("constraint: {why}"))
}

fn schema(text: &str) -> Result<Value> {
    let schema: Value = serde_json::from_str(text).map_err(|e| refused(format!("no JSON schema: {e}")))?;
    let mut multiples = Vec::new();
    numbers(&schema, &mut multiples)?;
    multiples.sort_unstable();
    multiples.dedup();
    let common = multiples.iter().try_fold(1u64, |all, of| all.checked_mul(*of));
    match common {
        Some(..=MOST_MULTIPLE) => Ok(spaced(schema)),
        _ => Err(refused("its values of multipleOf are too large together")),
    }
}

/// llguidance counts in i64 and u32.
const MOST_BOUND: f64 = 9e18;
const MOST_MULTIPLE: u64 = 1_000_000_000;

/// Refuses bounds beyond integers, and lists the digits of each `multipleOf`.
fn numbers(schema: &Value, multiples: &mut Vec<u64>) -> Result<()> {
    const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
    match schema {
        Value::Object(fields) => fields.iter().try_for_each(|(name, of)| {
            if BOUNDS.contains(&name.as_str()) && of.as_f64().is_some_and(|bound| bound.abs() > MOST_BOUND) {
                return Err(refused(format!("{name} is {of}, beyond the range of integers")));
            }
            if let ("multipleOf", Value::Number(of)) = (name.as_str(), of) {
                let digits = of.to_string().replace('.', "");
                let digits = digits.trim_end_matches('0').parse();
                multiples.push(digits.map_err(|_| refused(format!("multipleOf is {of}")))?);
            }
            numbers(of, multiples)
        }),
        Value::Array(all) => all.iter().try_for_each(|one| numbers(one, multiples)),
        _ => Ok(()),
    }
}

/// With white space as JSON has it here, unless the schema says how llguidance is to have it.
fn spaced(mut schema: Value) -> Value {
    if let Value::Object(fields) = &mut schema
        && !fields.contains_key("x-guidance")
    {
        fields.insert("x-guidance".into(), json!({"whitespace_pattern": WHITE_SPACE}));
    }
    schema
}

fn bounded(text: &str) -> Result<()> {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > MAX_DEPTH {
        return Err(refused(format!("{deepest} brackets are open at once, more than {MAX_DEPTH}")));
    }
    let rules = text.bytes().filter(|&byte| byte == b':').count();
    if rules > MAX_RULES {
        return Err(refused(format!("it has {rules} colons, more than {MAX_RULES}")));
    }
    Ok(())
}
