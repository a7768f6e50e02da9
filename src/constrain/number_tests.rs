//! Numbers under schemas, checked against decimal arithmetic.

use super::ConstraintKind::JsonSchema;
use super::hostile_random::Random;
use super::tests::{grammars, guide, guides_of, matches};
use serde_json::{Map, Value, json};

#[test]
fn a_bound_that_is_excluded_does_not_come() {
    let large = 9_007_199_254_740_992i64;
    for (schema, good, bad) in [
        (json!({"exclusiveMinimum": 0, "maximum": 0.5}), vec!["0.5", "0.01"], vec!["0", "-0", "0.0", "0.6"]),
        (
            json!({"exclusiveMinimum": 1, "exclusiveMaximum": 1.5}),
            vec!["1.25"],
            vec!["1", "1.0", "1.00", "1.5"],
        ),
        (json!({"minimum": -0.5, "exclusiveMaximum": 0}), vec!["-0.5", "-0.25"], vec!["-0", "0", "-0.0"]),
        (json!({"minimum": -1.5, "exclusiveMaximum": -1}), vec!["-1.25", "-1.5"], vec!["-1", "-1.0"]),
        (
            json!({"allOf": [{"exclusiveMinimum": 2}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"maximum": 2.5}}}),
            vec!["2.5", "2.1"],
            vec!["2", "2.0"],
        ),
        (
            json!({"minimum": -0.5, "maximum": 0.5, "not": {"const": 0}}),
            vec!["0.25", "-0.25"],
            vec!["0", "-0", "0.0"],
        ),
        (json!({"exclusiveMinimum": large}), vec!["9007199254740994"], vec!["9007199254740992"]),
        (
            json!({"type": "integer", "exclusiveMinimum": large}),
            vec!["9007199254740994"],
            vec!["9007199254740992", "9007199254740991"],
        ),
        (
            json!({"type": "integer", "exclusiveMaximum": -large}),
            vec!["-9007199254740994"],
            vec!["-9007199254740992", "-9007199254740991"],
        ),
        (
            json!({"type": "integer", "not": {"const": large}}),
            vec!["9007199254740990", "9007199254740994"],
            vec!["9007199254740992"],
        ),
        (json!({"type": "integer", "exclusiveMinimum": 0, "maximum": 1.5}), vec!["1"], vec!["0", "2"]),
    ] {
        let mut schema = schema;
        schema.as_object_mut().unwrap().entry("type").or_insert(json!("number"));
        let (grammars, text) = (grammars(), schema.to_string());
        let guides = guides_of(&grammars, JsonSchema, &text).unwrap();
        for (texts, wanted) in [(good, true), (bad, false)] {
            for text in texts {
                assert_eq!(matches(&mut guides(), text).unwrap(), wanted, "{schema}: {text}");
            }
        }
    }
    let error = guide(JsonSchema, r#"{"type":"number","exclusiveMinimum":1,"maximum":1.0000000000000002}"#);
    assert!(error.err().unwrap().message.contains("exclusiveMinimum is 1"));
}

#[test]
fn multiples_that_meet_are_one_or_refused() {
    let schema = r#"{"type":"integer","allOf":[{"multipleOf":100000},{"allOf":[{"multipleOf":300000}]}]}"#;
    for (text, wanted) in [("300000", true), ("-600000", true), ("42301", false), ("100000", false)] {
        assert_eq!(matches(&mut guide(JsonSchema, schema).unwrap(), text).unwrap(), wanted, "{text}");
    }
    let apart =
        json!({"properties": {"a": {"type": "integer", "multipleOf": 100_000}, "b": {"multipleOf": 0.001}}});
    guide(JsonSchema, &apart.to_string()).unwrap();
    let defs = json!({"a": {"type": "integer", "multipleOf": 100_000}});
    for (schema, why) in [
        (json!({"$ref": "#/$defs/a", "multipleOf": 300_000, "$defs": defs}), "too large together"),
        (
            json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": defs}),
            "too large together",
        ),
        (
            json!({"properties": {"ab": defs["a"]}, "patternProperties": {"^a": {"multipleOf": 70_000}}}),
            "too large together",
        ),
        (json!({"multipleOf": 500_000_000}), "multipleOf is 500000000"),
        (json!({"multipleOf": 0}), "multipleOf is 0"),
        (json!({"multipleOf": -3}), "multipleOf is -3"),
        (json!({"multipleOf": "3"}), "multipleOf is \"3\""),
    ] {
        let error = guide(JsonSchema, &schema.to_string()).err().unwrap();
        assert!(error.message.contains(why), "{schema}: {error}");
    }
}

/// The number in millionths.
fn exact(text: &str) -> i128 {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().unwrap();
    let exponent = 6 + exponent.parse::<i32>().unwrap() - fraction.len() as i32;
    digits * 10i128.pow(exponent.try_into().unwrap())
}

/// Bounds close to each other; a schema draws from one of these rows.
const BOUNDS: [&[&str]; 5] = [
    &["0", "0.5", "-0.5", "1", "-1"],
    &["1", "1.5", "2", "1.25", "0.5"],
    &["-1", "-1.5", "-2", "-1.25", "0"],
    &["10", "9.99", "10.5", "-10"],
    &["0", "1", "-2.01", "10", "-10", "3"],
];
const MULTIPLES: [&str; 9] = ["1", "2", "3", "5", "0.5", "0.25", "0.1", "0.3", "1.5"];
const LOW: [&str; 2] = ["minimum", "exclusiveMinimum"];
const HIGH: [&str; 2] = ["maximum", "exclusiveMaximum"];

/// A keyword with its number.
type Condition = (&'static str, &'static str);

/// A range, or one side of it, and multiples.
fn conditions(random: &mut Random) -> Vec<Condition> {
    let (bounds, mut all) = (random.any(&BOUNDS), Vec::new());
    let (a, b) = (random.any(bounds), random.any(bounds));
    let (low, high) = if exact(a) <= exact(b) { (a, b) } else { (b, a) };
    let (one_sided, divided) = (random.below(5), random.below(8));
    if one_sided != 0 {
        all.push((random.any(&LOW), low));
    }
    if one_sided != 1 {
        all.push((random.any(&HIGH), high));
    }
    all.extend((0..3 - divided.clamp(1, 3)).map(|_| ("multipleOf", random.any(&MULTIPLES))));
    all
}

/// Combines the conditions side by side, in `allOf`, after references or negated.
fn schema(integer: bool, conditions: &[Condition], random: &mut Random) -> Value {
    let turned = |keyword| match keyword {
        "minimum" => "exclusiveMaximum",
        "exclusiveMinimum" => "maximum",
        "maximum" => "exclusiveMinimum",
        _ => "minimum",
    };
    let (mut own, mut all, mut definitions) = (Map::new(), Vec::new(), Map::new());
    own.insert("type".into(), if integer { "integer" } else { "number" }.into());
    for (n, &(keyword, value)) in conditions.iter().enumerate() {
        let one =
            |keyword: &str| Map::from_iter([(keyword.to_owned(), serde_json::from_str(value).unwrap())]);
        match random.below(4) {
            0 if !own.contains_key(keyword) => own.extend(one(keyword)),
            1 => {
                all.push(json!({"$ref": format!("#/$defs/d{n}")}));
                definitions.insert(format!("d{n}"), one(keyword).into());
            }
            2 if keyword != "multipleOf" => all.push(json!({"not": one(turned(keyword))})),
            _ => all.push(one(keyword).into()),
        }
    }
    own.insert("allOf".into(), all.into());
    own.insert("$defs".into(), definitions.into());
    own.into()
}

fn is_valid(integer: bool, conditions: &[Condition], number: i128) -> bool {
    let holds = |(keyword, of): &Condition| match *keyword {
        "minimum" => number >= exact(of),
        "maximum" => number <= exact(of),
        "exclusiveMinimum" => number > exact(of),
        "exclusiveMaximum" => number < exact(of),
        _ => number % exact(of) == 0,
    };
    (!integer || number % exact("1") == 0) && conditions.iter().all(holds)
}

/// Every spelling that is accepted is valid, and every valid number is accepted in its shortest spelling,
/// except for multiples of 0.25: derivre requires both digits.
#[test]
fn random_ranges_and_multiples_are_kept() {
    let near = ["", ".0", ".00", ".1", ".5", ".25", ".3", ".99", ".010", ".001", "e0", "E-1"];
    let (mut served, mut accepted) = (0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (integer, conditions) = (random.below(4) == 0, conditions(&mut random));
        let schema = schema(integer, &conditions, &mut random);
        let (grammars, text) = (grammars(), schema.to_string());
        let Ok(guides) = guides_of(&grammars, JsonSchema, &text) else { continue };
        served += 1;
        for whole in ["0", "-0", "1", "-1", "2", "-2", "3", "9", "10", "-10", "-11", "12"] {
            for tail in ["", random.any(&near), random.any(&near)] {
                let (spelled, number) = (format!("{whole}{tail}"), exact(&format!("{whole}{tail}")));
                let valid = is_valid(integer, &conditions, number);
                let accepts = matches(&mut guides(), &spelled).unwrap();
                accepted += usize::from(accepts);
                assert!(valid || !accepts, "seed {seed}, {schema}: {spelled} is accepted");
                let shortest = !spelled.contains(['e', 'E']) && (tail.is_empty() || !tail.ends_with('0'));
                let shortest = shortest && number != 0 || spelled == "0";
                let shortest = shortest && !conditions.contains(&("multipleOf", "0.25"));
                assert!(accepts || !(valid && shortest), "seed {seed}, {schema}: {spelled} is not accepted");
            }
        }
        grammars.stop();
    }
    assert!(served > 50 && accepted > 200, "{served} served, {accepted} accepted");
}
