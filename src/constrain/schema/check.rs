//! Decides whether a value is valid: yes, no, or unknown.

use super::normal::{DEFINITION, Fields};
use crate::text::watch;
use serde_json::Value;

/// JSON Schema's equality: 1.0 equals 1, and the order of keys does not count.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

pub(super) fn is_of_type(value: &Value, name: &str) -> bool {
    match (name, value) {
        ("null", Value::Null)
        | ("boolean", Value::Bool(_))
        | ("number", Value::Number(_))
        | ("string", Value::String(_))
        | ("array", Value::Array(_))
        | ("object", Value::Object(_)) => true,
        ("integer", Value::Number(n)) => n.as_f64().is_some_and(|n| n.fract() == 0.0),
        _ => false,
    }
}

/// `type` as a list of names.
pub(super) fn types(of: &Value) -> Vec<&str> {
    match of {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// No if any is no; yes if all are yes.
fn all(checks: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    let mut known = Some(true);
    for check in checks {
        match check {
            Some(false) => return Some(false),
            None => known = None,
            Some(true) => {}
        }
    }
    known
}

fn any(checks: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    all(checks.into_iter().map(|check| check.map(|yes| !yes))).map(|no| !no)
}

pub(super) struct Checker<'a> {
    pub definitions: &'a [Value],
    /// Number of schemas that may still be visited.
    pub steps: u32,
    pub depth: u32,
}

/// Limit on nested schemas, references included.
const DEEPEST: u32 = 200;

impl<'a> Checker<'a> {
    pub(super) fn definition(&self, reference: &Value) -> Option<&'a Value> {
        let number = reference.as_str()?.strip_prefix(DEFINITION)?;
        self.definitions.get(number.parse::<usize>().ok()?)
    }

    pub(super) fn step(&mut self) -> Option<()> {
        self.steps_of(1)
    }

    /// Also returns None when the time is up; the rewrite then ends at its next step.
    pub(super) fn steps_of(&mut self, count: usize) -> Option<()> {
        if watch::is_over() {
            self.steps = 0;
        }
        let left = u32::try_from(count).ok().and_then(|count| self.steps.checked_sub(count));
        self.steps = left.unwrap_or(0);
        left.map(drop)
    }

    /// Spends the steps of copying `value`.
    pub(super) fn copies(&mut self, value: &Value) -> Option<()> {
        match value {
            Value::Array(all) => all.iter().try_for_each(|one| self.copies(one)),
            Value::Object(fields) => fields.values().try_for_each(|one| self.copies(one)),
            Value::String(text) => self.steps_of(1 + text.len() / 64),
            _ => self.step(),
        }
    }

    /// Runs `look` one level deeper, unless that is too deep.
    pub(super) fn deeper<T>(&mut self, look: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.step().filter(|()| self.depth < DEEPEST)?;
        self.depth += 1;
        let found = look(self);
        self.depth -= 1;
        found
    }

    /// Returns yes if every value that is not an object is valid.
    pub(super) fn of_objects(&mut self, schema: &Value) -> bool {
        let all = |checker: &mut Self, (keyword, of): (&String, &Value)| match keyword.as_str() {
            "$ref" => checker.definition(of).is_some_and(|schema| checker.of_objects(schema)),
            "allOf" => of.as_array().is_some_and(|all| all.iter().all(|one| checker.of_objects(one))),
            keyword => type_of(keyword) == Some("object"),
        };
        let fields = |checker: &mut Self| Some(schema.as_object()?.iter().all(|field| all(checker, field)));
        self.deeper(fields) == Some(true)
    }

    pub(super) fn valid(&mut self, schema: &Value, value: &Value) -> Option<bool> {
        self.deeper(|checker| checker.all_valid(schema, value))
    }

    fn all_valid(&mut self, schema: &Value, value: &Value) -> Option<bool> {
        match schema {
            Value::Bool(yes) => Some(*yes),
            Value::Object(fields) => {
                let checks: Vec<_> =
                    fields.iter().map(|(keyword, of)| self.keyword(fields, keyword, of, value)).collect();
                all(checks)
            }
            _ => None,
        }
    }

    fn each(&mut self, schemas: &Value, value: &Value) -> Vec<Option<bool>> {
        schemas.as_array().into_iter().flatten().map(|one| self.valid(one, value)).collect()
    }

    fn keyword(&mut self, fields: &Fields, keyword: &str, of: &Value, value: &Value) -> Option<bool> {
        match keyword {
            "type" => Some(types(of).iter().any(|name| is_of_type(value, name))),
            "const" => Some(equal(of, value)),
            "enum" => {
                self.steps_of(of.as_array()?.len() / 8)?;
                Some(of.as_array()?.iter().any(|one| equal(one, value)))
            }
            "$ref" => {
                let schema = self.definition(of)?;
                self.valid(schema, value)
            }
            "allOf" => all(self.each(of, value)),
            "anyOf" => any(self.each(of, value)),
            "oneOf" => {
                let each = self.each(of, value);
                let yes = each.iter().filter(|check| **check == Some(true)).count();
                let known = each.iter().all(Option::is_some);
                if yes > 1 { Some(false) } else { known.then_some(yes == 1) }
            }
            "not" => self.valid(of, value).map(|yes| !yes),
            _ => match value {
                Value::Number(number) => compared(keyword, of, number.as_f64()?),
                Value::String(text) => text_keyword(keyword, of, text),
                Value::Array(items) => self.items(fields, keyword, of, items),
                Value::Object(members) => self.members(fields, keyword, of, members),
                _ => type_of(keyword).is_some().then_some(true),
            },
        }
    }

    fn items(&mut self, fields: &Fields, keyword: &str, of: &Value, items: &[Value]) -> Option<bool> {
        let count = items.len() as u64;
        match keyword {
            "minItems" => Some(count >= of.as_u64()?),
            "maxItems" => Some(count <= of.as_u64()?),
            "prefixItems" => {
                let pairs: Vec<_> =
                    of.as_array()?.iter().zip(items).map(|(of, item)| self.valid(of, item)).collect();
                all(pairs)
            }
            "items" => {
                let before = fields.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
                let rest: Vec<_> = items.iter().skip(before).map(|item| self.valid(of, item)).collect();
                all(rest)
            }
            _ => other(keyword, "array"),
        }
    }

    fn members(&mut self, fields: &Fields, keyword: &str, of: &Value, members: &Fields) -> Option<bool> {
        let count = members.len() as u64;
        match keyword {
            "minProperties" => Some(count >= of.as_u64()?),
            "maxProperties" => Some(count <= of.as_u64()?),
            "required" => {
                Some(of.as_array()?.iter().filter_map(Value::as_str).all(|k| members.contains_key(k)))
            }
            "properties" => {
                let named = of.as_object()?.iter().filter_map(|(key, of)| Some((of, members.get(key)?)));
                let checks: Vec<_> = named.map(|(of, member)| self.valid(of, member)).collect();
                all(checks)
            }
            "additionalProperties" if !fields.contains_key("patternProperties") => {
                let named = fields.get("properties").and_then(Value::as_object);
                let free =
                    members.iter().filter(|(key, _)| !named.is_some_and(|named| named.contains_key(*key)));
                let checks: Vec<_> = free.map(|(_, member)| self.valid(of, member)).collect();
                all(checks)
            }
            _ if members.is_empty() && matches!(keyword, "patternProperties" | "additionalProperties") => {
                Some(true)
            }
            _ => other(keyword, "object"),
        }
    }
}

fn compared(keyword: &str, of: &Value, number: f64) -> Option<bool> {
    match keyword {
        "minimum" => Some(number >= of.as_f64()?),
        "maximum" => Some(number <= of.as_f64()?),
        "exclusiveMinimum" => Some(number > of.as_f64()?),
        "exclusiveMaximum" => Some(number < of.as_f64()?),
        _ => other(keyword, "number"),
    }
}

fn text_keyword(keyword: &str, of: &Value, text: &str) -> Option<bool> {
    match keyword {
        "minLength" => Some(text.chars().count() as u64 >= of.as_u64()?),
        "maxLength" => Some(text.chars().count() as u64 <= of.as_u64()?),
        _ => other(keyword, "string"),
    }
}

/// The type to which a keyword applies; it does not restrict values of other types.
pub(super) fn type_of(keyword: &str) -> Option<&'static str> {
    match keyword {
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => Some("number"),
        "minLength" | "maxLength" | "pattern" | "format" => Some("string"),
        "prefixItems" | "items" | "contains" | "minContains" | "maxContains" | "minItems" | "maxItems"
        | "uniqueItems" | "unevaluatedItems" => Some("array"),
        "properties"
        | "patternProperties"
        | "additionalProperties"
        | "propertyNames"
        | "required"
        | "minProperties"
        | "maxProperties"
        | "dependentRequired"
        | "dependentSchemas"
        | "unevaluatedProperties" => Some("object"),
        _ => None,
    }
}

fn other(keyword: &str, of: &str) -> Option<bool> {
    type_of(keyword).is_some_and(|keyword| keyword != of).then_some(true)
}
