//! Random JSON schemas, and validity by definition: written for this test, independently of the engine's
//! code.

use serde_json::{Map, Value, json};

pub use crate::common::Rng as Random;

const NAMES: [&str; 12] =
    ["id", "name", "a b", "tag", "größe", "x/y", "q\"q", "items", "left", "n", "__", "value"];
const PATTERNS: [&str; 5] = ["^[a-z]{2,4}$", "^\\d{3}-\\d{2}$", "^(on|off)$", "^[A-F0-9]+x$", "^a.c$"];

/// A schema, some with a recursive definition.
pub fn schema(random: &mut Random) -> Value {
    if random.one_in(12) {
        let node = json!({
            "type": "object",
            "properties": {"v": part(random, 1), "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["v", "next"], "additionalProperties": false,
        });
        return json!({"$ref": "#/$defs/node", "$defs": {"node": node}});
    }
    match random.below(4) {
        0 => array(random, 3),
        _ => object(random, 3),
    }
}

fn part(random: &mut Random, depth: u64) -> Value {
    match random.below(if depth == 0 { 8 } else { 12 }) {
        0 => json!({"type": "boolean"}),
        1 => json!({"type": "null"}),
        2 => integer(random),
        3 => {
            let low = random.below(200) as i64 - 100;
            json!({"type": "number", "minimum": low, "maximum": low + 1 + random.below(50) as i64})
        }
        4 => string(random),
        5 => json!({"type": "string", "pattern": PATTERNS[random.below(5)]}),
        6 => {
            let values = [json!("red"), json!(7), json!(null), json!("a\nb"), json!(-2.5), json!(true)];
            let first = random.below(4);
            json!({"enum": values[first..first + 1 + random.below(3)]})
        }
        7 => json!({"const": NAMES[random.below(12)]}),
        8 => array(random, depth - 1),
        9 => json!({"anyOf": [part(random, depth - 1), part(random, depth - 1)]}),
        _ => object(random, depth - 1),
    }
}

fn integer(random: &mut Random) -> Value {
    let mut schema = Map::from_iter([("type".to_owned(), json!("integer"))]);
    let low = random.below(2000) as i64 - 1000;
    let high = low + random.below(300) as i64;
    match random.below(4) {
        0 => schema.extend([("minimum".to_owned(), json!(low)), ("maximum".to_owned(), json!(high))]),
        1 => schema.extend([
            ("exclusiveMinimum".to_owned(), json!(low)),
            ("exclusiveMaximum".to_owned(), json!(high + 2)),
        ]),
        2 => schema.extend([
            ("minimum".to_owned(), json!(0)),
            ("maximum".to_owned(), json!(90)),
            ("multipleOf".to_owned(), json!(1 + random.below(9))),
        ]),
        _ => {}
    }
    Value::Object(schema)
}

fn string(random: &mut Random) -> Value {
    let least = random.below(4);
    match random.below(3) {
        0 => json!({"type": "string", "maxLength": 12}),
        _ => json!({"type": "string", "minLength": least, "maxLength": least + random.below(6)}),
    }
}

fn array(random: &mut Random, depth: u64) -> Value {
    let (least, more) = (random.below(3), random.below(3));
    let items = part(random, depth.saturating_sub(1));
    match random.below(4) {
        0 => {
            json!({"type": "array", "prefixItems": [items, part(random, 0)], "items": false, "minItems": 2})
        }
        _ => json!({"type": "array", "items": items, "minItems": least, "maxItems": least + more}),
    }
}

fn object(random: &mut Random, depth: u64) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for _ in 0..1 + random.below(4) {
        let name = NAMES[random.below(12)];
        if properties.insert(name.into(), part(random, depth.saturating_sub(1))).is_none()
            && !random.one_in(3)
        {
            required.push(name);
        }
    }
    json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    })
}

/// The reason why `value` is not valid under `schema`, a part of `root`; None if it is valid.
pub fn fault(value: &Value, schema: &Value, root: &Value) -> Option<String> {
    let Value::Object(rules) = schema else {
        return (schema != &json!(true)).then(|| format!("{value} is where nothing is allowed"));
    };
    rules.iter().find_map(|(rule, of)| broken(value, rule, of, rules, root))
}

fn broken(value: &Value, rule: &str, of: &Value, rules: &Map<String, Value>, root: &Value) -> Option<String> {
    let number = |v: &Value| v.as_f64().unwrap_or(f64::NAN);
    let length = value.as_str().map(|s| s.chars().count() as f64);
    let count = value.as_array().map(|a| a.len() as f64);
    let valid = match rule {
        "type" => is_type(value, of.as_str()?),
        "enum" => of.as_array()?.iter().any(|one| same(one, value)),
        "const" => same(of, value),
        "minimum" => !value.is_number() || number(value) >= number(of),
        "maximum" => !value.is_number() || number(value) <= number(of),
        "exclusiveMinimum" => !value.is_number() || number(value) > number(of),
        "exclusiveMaximum" => !value.is_number() || number(value) < number(of),
        "multipleOf" => !value.is_number() || number(value) % number(of) == 0.0,
        "minLength" => length.is_none_or(|n| n >= number(of)),
        "maxLength" => length.is_none_or(|n| n <= number(of)),
        "minItems" => count.is_none_or(|n| n >= number(of)),
        "maxItems" => count.is_none_or(|n| n <= number(of)),
        "pattern" => {
            let pattern = fancy_regex::Regex::new(of.as_str()?).unwrap();
            value.as_str().is_none_or(|s| pattern.is_match(s).unwrap())
        }
        "required" => {
            let has = |name: &Value| value.get(name.as_str().unwrap()).is_some();
            !value.is_object() || of.as_array()?.iter().all(has)
        }
        "anyOf" => of.as_array()?.iter().any(|one| fault(value, one, root).is_none()),
        "$ref" => return fault(value, &root["$defs"]["node"], root),
        "prefixItems" => {
            return value.as_array()?.iter().zip(of.as_array()?).find_map(|(v, s)| fault(v, s, root));
        }
        "items" => {
            let first = rules.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
            return value.as_array()?.iter().skip(first).find_map(|v| fault(v, of, root));
        }
        "properties" => {
            return value.as_object()?.iter().find_map(|(name, v)| fault(v, of.get(name)?, root));
        }
        "additionalProperties" => {
            value.as_object().is_none_or(|o| o.keys().all(|name| rules["properties"].get(name).is_some()))
        }
        "$defs" => true,
        _ => panic!("{rule} is not generated"),
    };
    (!valid).then(|| format!("{value}: {rule} is {of}"))
}

fn is_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        _ => false,
    }
}

fn same(a: &Value, b: &Value) -> bool {
    a == b || a.is_number() && a.as_f64() == b.as_f64()
}
