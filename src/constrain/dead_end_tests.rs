//! Random schemas whose outputs never get stuck, whichever of the allowed tokens a model prefers.

use super::ConstraintKind::JsonSchema;
use super::hostile_random::Random;
use super::tests::guide;
use serde_json::{Map, Value, json};

/// The tokens that a model prefers, the first of them most.
const TASTES: [&[u8]; 5] = [b"", b",:", b"\",", b"{[\"ab:", b"]}-.0"];

/// Takes tokens until the output ends. Fails with the output at which nothing was allowed; a schema without any value
/// allows nothing at first.
fn walk(schema: &str, taste: &[u8], random: &mut Random) -> Result<(), String> {
    let Ok(mut guide) = guide(JsonSchema, schema) else { return Ok(()) };
    let mut output = Vec::new();
    while output.len() < 120 {
        let shown = |why: &str| format!("{:?}: {why}", String::from_utf8_lossy(&output));
        let mask = match guide.mask() {
            Ok(mask) => mask,
            Err(_) if output.is_empty() => return Ok(()),
            Err(error) => return Err(shown(&error.message)),
        };
        let allows = |token: u32| mask.bits()[token as usize / 32] >> (token % 32) & 1 == 1;
        let allowed: Vec<u32> = (0..256).filter(|token| allows(*token)).collect();
        let liked = taste.iter().map(|byte| u32::from(*byte)).find(|token| allows(*token));
        let ends = allows(256) && (allowed.is_empty() || random.below(4) == 0);
        if ends {
            return Ok(());
        }
        if allowed.is_empty() {
            return Err(shown("nothing is allowed"));
        }
        let other = allowed[random.below(allowed.len())];
        let token = liked.filter(|_| random.below(5) > 0).unwrap_or(other);
        guide.push(token).map_err(|error| shown(&error.message))?;
        output.push(token as u8);
    }
    Ok(())
}

fn text(random: &mut Random) -> Value {
    let mut all = Map::new();
    all.insert("type".into(), json!("string"));
    for _ in 0..random.below(3) {
        match random.below(6) {
            0 => drop(all.insert("minLength".into(), json!(random.below(4)))),
            1 => drop(all.insert("maxLength".into(), json!(random.below(4)))),
            2 => drop(all.insert("enum".into(), json!(["a", "bc", ""][random.below(3)..]))),
            3 => drop(all.insert("format".into(), json!(random.any(&["date", "ipv4", "uuid", "hostname"])))),
            _ => drop(all.insert(
                "pattern".into(),
                json!(random.any(&["^aa$", "a", "^[ab]*$", "^$", "^a|b$", "\\d"])),
            )),
        }
    }
    Value::Object(all)
}

fn number(random: &mut Random) -> Value {
    let mut all = Map::new();
    all.insert("type".into(), json!(random.any(&["integer", "number"])));
    for name in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
        if random.below(3) == 0 {
            all.insert(name.into(), json!(random.below(40) as f64 / 4.0 - 5.0));
        }
    }
    if random.below(3) == 0 {
        all.insert("multipleOf".into(), json!([2.0, 3.0, 0.5, 7.0, 0.25][random.below(5)]));
    }
    Value::Object(all)
}

fn array(random: &mut Random, depth: usize) -> Value {
    let mut all = Map::new();
    all.insert("type".into(), json!("array"));
    if random.below(2) == 0 {
        all.insert("items".into(), schema(random, depth - 1));
    }
    if random.below(2) == 0 {
        let places: Vec<Value> = (0..=random.below(3)).map(|_| schema(random, depth - 1)).collect();
        all.insert("prefixItems".into(), json!(places));
    }
    if random.below(3) == 0 {
        all.insert("minItems".into(), json!(random.below(4)));
    }
    if random.below(3) == 0 {
        all.insert("maxItems".into(), json!(random.below(4)));
    }
    Value::Object(all)
}

const PATTERNS: [&str; 10] =
    ["^a$", "^(a|b)$", "^[a-c]$", "", "^x", "^.{0,1}$", "^[^]*$", "^a|^[^a]", "^$", "b$"];

fn object(random: &mut Random, depth: usize) -> Value {
    let mut all = Map::new();
    all.insert("type".into(), json!("object"));
    let names = ["a", "b", "c", "xa"];
    if random.below(4) > 0 {
        let some = (0..random.below(4)).map(|_| (random.any(&names).to_owned(), schema(random, depth - 1)));
        all.insert("properties".into(), Value::Object(some.collect()));
    }
    if random.below(2) == 0 {
        let mut required = vec![random.any(&names), random.any(&names)];
        required.dedup();
        all.insert("required".into(), json!(required));
    }
    if random.below(2) == 0 {
        let count = 1 + random.below(2);
        let some = (0..count).map(|_| (random.any(&PATTERNS).to_owned(), schema(random, depth - 1)));
        all.insert("patternProperties".into(), Value::Object(some.collect()));
    }
    match random.below(4) {
        0 => {}
        1 => drop(all.insert("additionalProperties".into(), schema(random, depth - 1))),
        _ => drop(all.insert("additionalProperties".into(), json!(false))),
    }
    match random.below(10) {
        0 | 1 => drop(all.insert("propertyNames".into(), json!({"pattern": random.any(&PATTERNS)}))),
        2 => drop(all.insert("propertyNames".into(), json!({"maxLength": random.below(3)}))),
        3 => drop(all.insert("minProperties".into(), json!(random.below(3)))),
        4 => drop(all.insert("maxProperties".into(), json!(random.below(3)))),
        _ => {}
    }
    Value::Object(all)
}

fn schema(random: &mut Random, depth: usize) -> Value {
    match (random.below(9), depth) {
        (0, _) => json!({"type": "boolean"}),
        (1, _) => json!(random.below(3) > 0),
        (2 | 3, _) | (_, 0) => text(random),
        (4, _) => number(random),
        (5, _) => array(random, depth),
        (6, _) => {
            let keyword = random.any(&["allOf", "anyOf", "oneOf"]);
            json!({keyword: [schema(random, depth - 1), schema(random, depth - 1)]})
        }
        _ => object(random, depth),
    }
}

fn stuck(seeds: std::ops::Range<u64>) -> Vec<String> {
    let mut all = Vec::new();
    for seed in seeds {
        let schema = schema(&mut Random::new(seed), 3).to_string();
        for (n, taste) in TASTES.iter().enumerate() {
            let mut random = Random::new(seed ^ (n as u64) << 32);
            all.extend(
                walk(&schema, taste, &mut random)
                    .err()
                    .map(|why| format!("seed {seed}: {schema}\n  at {why}")),
            );
        }
    }
    all
}

#[test]
fn a_comma_comes_only_where_a_key_can_follow() {
    let boolean = json!({"type": "boolean"});
    let base = json!({"properties": {"a": boolean}, "required": ["a"], "additionalProperties": false});
    let with = |more: Value| {
        let mut all = base.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all.to_string()
    };
    let open = json!({"properties": {"a": boolean}, "required": ["a"]});
    for schema in [
        with(json!({"patternProperties": {"^a$": boolean}})),
        with(json!({"patternProperties": {"^(a|b)$": boolean}})),
        with(json!({"patternProperties": {"": false}, "additionalProperties": true})),
        with(json!({"propertyNames": {"pattern": "^a$"}, "additionalProperties": true})),
        with(json!({"propertyNames": {"maxLength": 0}, "additionalProperties": true})),
        json!({"allOf": [open, {"patternProperties": {"^a$": boolean}, "additionalProperties": false}]})
            .to_string(),
    ] {
        for taste in TASTES {
            walk(&schema, taste, &mut Random::new(1)).unwrap_or_else(|why| panic!("{schema} at {why}"));
        }
    }
    let mut guide = guide(JsonSchema, &with(json!({"patternProperties": {"^a$": boolean}}))).unwrap();
    assert!(super::tests::matches(&mut guide, r#"{"a": true}"#).unwrap());
}

#[test]
fn outputs_of_random_schemas_do_not_get_stuck() {
    let stuck = stuck(0..150);
    assert!(stuck.is_empty(), "{}", stuck.join("\n"));
}

/// `cargo test --release --lib constrain::dead_end_tests -- --ignored`
#[test]
#[ignore = "takes minutes"]
fn outputs_of_many_random_schemas_do_not_get_stuck() {
    let stuck = stuck(0..5000);
    assert!(stuck.is_empty(), "{}", stuck.join("\n"));
}
