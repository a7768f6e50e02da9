//! Rewrites a normal schema into one that llguidance supports.

use super::Refusal;
use super::budget::Budget;
use super::check::{Checker, types};
use super::keywords::each_below;
use super::normal::Fields;
use super::prove::texts;
use super::ranges::Ranges;
use super::rules::RULES;
use serde_json::Value;

/// Step limit of one proof.
const PROOF: u32 = 10_000;
/// Parsed JSON is nested at most 127 deep; rewriting deepens it.
const DEEPEST: u32 = 300;

pub(super) struct Rewriter<'a> {
    pub definitions: &'a [Value],
    pub budget: &'a mut Budget,
    pub depth: u32,
    /// Unknown formats are refused.
    pub known_formats: bool,
    /// The schema waives exactness: alternatives of `oneOf` may overlap.
    pub coerce: bool,
    /// The schema waives exactness: unsupported keywords are dropped.
    pub lenient: bool,
    /// An object has keys that are listed or match a pattern, and free ones as well.
    pub free_keys: bool,
    /// A constant contains a control character that JSON can spell only in hexadecimal.
    pub controls: bool,
    pub ranges: Ranges,
}

impl<'a> Rewriter<'a> {
    pub(super) fn refuse(&self, why: impl Into<String>) -> Result<(), Refusal> {
        if self.lenient { Ok(()) } else { Err(Refusal::new(why)) }
    }

    /// Runs `look` and counts its steps, which are cheaper than those of a rewrite.
    pub(super) fn check<T>(&mut self, look: impl FnOnce(&mut Checker<'a>) -> T) -> Result<T, Refusal> {
        let mut checker = Checker { definitions: self.definitions, steps: PROOF, depth: 0 };
        let found = look(&mut checker);
        self.budget.spend((PROOF - checker.steps) as usize / 8 + 1)?;
        Ok(found)
    }

    pub(super) fn empty(&mut self, schemas: &[&Value]) -> Result<bool, Refusal> {
        self.check(|checker| checker.empty(schemas))
    }

    pub(super) fn negated(&mut self, schema: &Value) -> Result<Option<Value>, Refusal> {
        self.check(|checker| checker.negated(schema))
    }

    pub(super) fn schema(&mut self, schema: Value) -> Result<Value, Refusal> {
        self.budget.spend(1)?;
        if self.depth == DEEPEST {
            return Err(Refusal::new("it is too deep when it is rewritten"));
        }
        self.depth += 1;
        let rewritten = self.rewritten(schema);
        self.depth -= 1;
        rewritten
    }

    fn rewritten(&mut self, schema: Value) -> Result<Value, Refusal> {
        let Value::Object(mut fields) = schema else { return Ok(schema) };
        for rule in RULES {
            rule(self, &mut fields)?;
        }
        if fields.get("enum").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            return Ok(Value::Bool(false));
        }
        self.look(&fields);
        together(&mut fields);
        each_below(&mut fields, &mut |one| {
            *one = self.schema(std::mem::take(one))?;
            Ok(())
        })?;
        Ok(Value::Object(fields))
    }

    /// Records properties that are decided for the whole schema.
    fn look(&mut self, fields: &Fields) {
        self.ranges.note(fields);
        self.controls |=
            ["const", "enum"].iter().filter_map(|keyword| fields.get(*keyword)).any(has_controls);
        let has =
            |keyword: &str| fields.get(keyword).and_then(Value::as_object).is_some_and(|of| !of.is_empty());
        let named = fields.get("properties").and_then(Value::as_object);
        let mut names = named
            .into_iter()
            .flat_map(|of| of.keys().map(String::as_str))
            .chain(texts(fields.get("required")));
        let patterns = has("patternProperties");
        let free = fields.get("additionalProperties") != Some(&Value::Bool(false));
        let listed = has("properties") || patterns || texts(fields.get("required")).next().is_some();
        let object = fields.get("type").is_none_or(|of| types(of).contains(&"object"));
        self.free_keys |=
            object && (free && listed || patterns && names.any(|name| name.chars().any(is_control)));
    }
}

fn is_control(c: char) -> bool {
    c.is_ascii_control()
}

fn has_controls(value: &Value) -> bool {
    match value {
        Value::String(text) => text.chars().any(|c| is_control(c) && !"\u{8}\t\n\u{c}\r".contains(c)),
        Value::Array(all) => all.iter().any(has_controls),
        Value::Object(fields) => fields.values().any(has_controls),
        _ => false,
    }
}

/// llguidance processes keywords in order, up to one that applies other schemas. This keeps keywords together
/// that depend on each other.
fn together(fields: &mut Fields) {
    if !fields.contains_key("patternProperties") || !fields.contains_key("additionalProperties") {
        return;
    }
    for keyword in ["properties", "patternProperties", "additionalProperties"] {
        if let Some((keyword, value)) = fields.shift_remove_entry(keyword) {
            fields.insert(keyword, value);
        }
    }
}
