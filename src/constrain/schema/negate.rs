//! Negates a schema, if the result can be expressed.

use super::check::{Checker, type_of, types};
use super::prove::texts;
use serde_json::{Value, json};
use std::fmt::Write;

const ALL: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Limit on the characters of all excluded texts.
const MOST_TEXT: usize = 2000;

impl Checker<'_> {
    /// None if the schema cannot be negated.
    pub(super) fn negated(&mut self, schema: &Value) -> Option<Value> {
        self.deeper(|checker| checker.some_broken(schema))
    }

    fn some_broken(&mut self, schema: &Value) -> Option<Value> {
        let fields = match schema {
            Value::Bool(yes) => return Some(Value::Bool(!yes)),
            Value::Object(fields) => fields,
            _ => return None,
        };
        let mut ways = Vec::new();
        for (keyword, of) in fields {
            ways.extend(self.broken(keyword, of)?);
        }
        ways.retain(|way| *way != Value::Bool(false));
        Some(match ways.len() {
            0 => Value::Bool(false),
            1 => ways.remove(0),
            _ => json!({"anyOf": ways}),
        })
    }

    fn all_negated(&mut self, schemas: &Value) -> Option<Vec<Value>> {
        schemas.as_array()?.iter().map(|one| self.negated(one)).collect()
    }

    /// The alternative ways to violate a keyword.
    fn broken(&mut self, keyword: &str, of: &Value) -> Option<Vec<Value>> {
        if !matches!(keyword, "allOf" | "anyOf" | "properties" | "prefixItems") {
            self.copies(of)?;
        }
        let size = of.as_u64();
        let of_type = |rest: Value| {
            let mut schema = json!({"type": type_of(keyword)?});
            schema.as_object_mut()?.extend(rest.as_object()?.clone());
            Some(vec![schema])
        };
        match keyword {
            "type" => not_types(of),
            "const" => not_values(std::slice::from_ref(of)),
            "enum" => not_values(of.as_array()?),
            "not" => Some(vec![of.clone()]),
            "allOf" => self.all_negated(of),
            "anyOf" => Some(vec![json!({"allOf": self.all_negated(of)?})]),
            "$ref" => {
                let schema = self.definition(of)?;
                Some(vec![self.negated(schema)?])
            }
            "minimum" => of_type(json!({"exclusiveMaximum": of})),
            "maximum" => of_type(json!({"exclusiveMinimum": of})),
            "exclusiveMinimum" => of_type(json!({"maximum": of})),
            "exclusiveMaximum" => of_type(json!({"minimum": of})),
            "minLength" | "minItems" | "minProperties" if size? == 0 => Some(Vec::new()),
            "minLength" => of_type(json!({"maxLength": size? - 1})),
            "minItems" => of_type(json!({"maxItems": size? - 1})),
            "minProperties" => of_type(json!({"maxProperties": size? - 1})),
            "maxLength" => of_type(json!({"minLength": size? + 1})),
            "maxItems" => of_type(json!({"minItems": size? + 1})),
            "maxProperties" => of_type(json!({"minProperties": size? + 1})),
            "required" => Some(
                texts(Some(of)).map(|name| json!({"type": "object", "properties": {name: false}})).collect(),
            ),
            "properties" => {
                let mut ways = Vec::new();
                for (name, of) in of.as_object()? {
                    let broken = self.negated(of)?;
                    if broken != Value::Bool(false) {
                        ways.push(
                            json!({"type": "object", "properties": {name: broken}, "required": [name]}),
                        );
                    }
                }
                Some(ways)
            }
            "prefixItems" => {
                let mut ways = Vec::new();
                for (at, broken) in self.all_negated(of)?.into_iter().enumerate() {
                    let mut items = vec![Value::Bool(true); at];
                    items.push(broken);
                    ways.push(json!({"type": "array", "prefixItems": items, "minItems": at + 1}));
                }
                Some(ways)
            }
            "uniqueItems" if *of == Value::Bool(false) => Some(Vec::new()),
            "additionalProperties" | "items" if *of == Value::Bool(true) => Some(Vec::new()),
            _ => None,
        }
    }
}

fn not_types(of: &Value) -> Option<Vec<Value>> {
    let names = types(of);
    if names.contains(&"integer") && !names.contains(&"number") {
        return None;
    }
    let rest: Vec<&str> = ALL.into_iter().filter(|name| !names.contains(name)).collect();
    Some(if rest.is_empty() { Vec::new() } else { vec![json!({"type": rest})] })
}

/// Schemas of everything but `values`.
fn not_values(values: &[Value]) -> Option<Vec<Value>> {
    let mut ways = Vec::new();
    let has = |one: &Value| values.contains(one);
    if !has(&Value::Null) {
        ways.push(json!({"type": "null"}));
    }
    let booleans: Vec<bool> = [false, true].into_iter().filter(|yes| !has(&Value::Bool(*yes))).collect();
    if !booleans.is_empty() {
        ways.push(json!({"enum": booleans}));
    }
    let mut numbers: Vec<&Value> = values.iter().filter(|value| value.is_number()).collect();
    numbers.sort_by(|a, b| a.as_f64().unwrap_or_default().total_cmp(&b.as_f64().unwrap_or_default()));
    let mut low = json!({"type": "number"});
    for number in numbers {
        let mut way = low;
        way["exclusiveMaximum"] = number.clone();
        ways.push(way);
        low = json!({"type": "number", "exclusiveMinimum": number});
    }
    ways.push(low);
    let mut words: Vec<Vec<char>> =
        values.iter().filter_map(|value| Some(value.as_str()?.chars().collect())).collect();
    if words.iter().map(Vec::len).sum::<usize>() > MOST_TEXT {
        return None;
    }
    words.sort();
    words.dedup();
    let words: Vec<&[char]> = words.iter().map(Vec::as_slice).collect();
    match words.is_empty() {
        true => ways.push(json!({"type": "string"})),
        false => ways.push(json!({"type": "string", "pattern": format!("^{}$", other_than(&words))})),
    }
    let lists: Vec<&Value> = values.iter().filter(|value| value.is_array()).collect();
    let maps: Vec<&Value> = values.iter().filter(|value| value.is_object()).collect();
    for (name, found, least) in [("array", lists, "minItems"), ("object", maps, "minProperties")] {
        match found[..] {
            [] => ways.push(json!({"type": name})),
            // Anything but the empty one.
            [one] if *one == json!([]) || *one == json!({}) => ways.push(json!({"type": name, least: 1})),
            _ => return None,
        }
    }
    Some(ways)
}

/// A pattern that matches every text except these sorted ones.
fn other_than(words: &[&[char]]) -> String {
    let spelled = |c: char| format!("\\u{{{:x}}}", u32::from(c));
    let ends = words.first().is_some_and(|word| word.is_empty());
    let longer = if ends { &words[1..] } else { words };
    let mut out = "(?:".to_owned();
    let mut firsts = String::new();
    for group in longer.chunk_by(|a, b| a[0] == b[0]) {
        let rest: Vec<&[char]> = group.iter().map(|word| &word[1..]).collect();
        let first = spelled(group[0][0]);
        let _ = write!(out, "{first}{}|", other_than(&rest));
        firsts.push_str(&first);
    }
    let _ = write!(out, "[^{firsts}][^]*)");
    if !ends {
        out.push('?');
    }
    out
}
