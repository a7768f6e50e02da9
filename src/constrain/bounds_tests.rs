use super::bounds::{schema, text};
use serde_json::{Map, Value, json};

fn of(n: usize, one: impl Fn(usize) -> (String, Value)) -> Value {
    Value::Object((0..n).map(one).collect::<Map<_, _>>())
}

fn names(n: usize) -> Value {
    of(n, |n| (format!("p{n}"), json!(true)))
}

fn patterns(n: usize) -> Value {
    json!({"patternProperties": of(n, |n| (format!("^(a|b)*x{n}$"), json!(true)))})
}

fn refused(of: &Value) -> String {
    schema(of).unwrap_err().message
}

/// Each of these took seconds to minutes, or a gibibyte, before there were bounds.
#[test]
fn what_would_take_long_is_refused_by_name() {
    let big = json!((0..2000).map(|n| format!("a value of {n}")).collect::<Vec<_>>());
    let pairs = |n: usize| (0..n).map(|n| json!({"required": [format!("p{n}")]})).collect::<Vec<_>>();
    let needy = |n: usize| json!({"minProperties": 1, "additionalProperties": false, "properties": names(n)});
    let large = json!({"enum": big});
    for (of, why) in [
        (patterns(400), "400 patternProperties in an object, more than 200"),
        (json!({"allOf": [patterns(150), {"items": true}, patterns(120)]}), "270 patternProperties"),
        (json!({"properties": names(3001)}), "3001 properties in an object"),
        (json!({"required": (0..3001).map(|n| n.to_string()).collect::<Vec<_>>()}), "3001 properties"),
        (
            json!({"allOf": [{"properties": names(2000)}, {"required": ["q"]}, {"$ref": "#/$defs/a"}],
            "$defs": {"a": {"properties": of(2000, |n| (format!("q{n}"), json!(true)))}}}),
            "4001 properties",
        ),
        (needy(101), "101 optional properties in an object that needs one"),
        (json!({"properties": names(1500), "allOf": [patterns(150)]}), "225000 properties times patterns"),
        (
            json!({"allOf": [{"additionalProperties": large}, {"properties": names(2000)}]}),
            "more than 200000 schemas",
        ),
        (
            json!({"allOf": (0..18).map(|n| json!({"anyOf": [{"minLength": n}, {"maxLength": 99}]})).collect::<Vec<_>>()}),
            "more than 200000 schemas",
        ),
        (json!({"properties": {"deep": {"items": {"oneOf": pairs(5000)}}}}), "alternatives of a oneOf"),
    ] {
        let message = refused(&of);
        assert!(message.contains(why), "{message}, not {why}");
    }
    assert!(text(&r"\w".repeat(10_001)).unwrap_err().message.contains("10001 classes"));
    assert!(text(&"\"a\" ".repeat(40_001)).unwrap_err().message.contains("80002 quotes"));
}

/// References, including cycles, are followed as often as llguidance copies their targets.
#[test]
fn references_are_followed() {
    let chain = |alone: bool| {
        let to = |n: usize| match (alone, n) {
            (_, 20) => patterns(150),
            (true, _) => json!({"properties": {"a": {"$ref": format!("#/$defs/d{}", n + 1)}}}),
            (false, _) => {
                json!({"items": true, "anyOf": [{"$ref": format!("#/$defs/d{}", n + 1)}, {"$ref": format!("#/$defs/d{}", n + 1)}]})
            }
        };
        json!({"$ref": "#/$defs/d0", "$defs": of(21, |n| (format!("d{n}"), to(n)))})
    };
    assert!(schema(&chain(true)).is_ok());
    assert!(refused(&chain(false)).contains("more than 200000 schemas"));
    let endless = json!({"$ref": "#/$defs/a", "items": true, "$defs": {"a": {"$ref": "#", "minLength": 1}}});
    assert!(schema(&endless).is_err());
    let nullable = json!({"anyOf": [{"$ref": "#", "title": "t"}, {"type": "null"}], "description": "d"});
    assert!(schema(&nullable).unwrap() < 100);
    let tree =
        json!({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#/"}, "x": {"$ref": "#/none"}}});
    assert!(schema(&tree).unwrap() < 100);
}

#[test]
fn schemas_within_grammars_are_counted() {
    let inner = patterns(300);
    let grammar = format!("start: \"x\" a\na: %json {inner} | %json {{\"type\":\"null\"}} | %json none");
    assert!(text(&grammar).unwrap_err().message.contains("300 patternProperties"));
}

#[test]
fn what_people_write_costs_little() {
    let words = (0..5000).map(|n| format!("word {n}")).collect::<Vec<_>>();
    for (of, most) in [
        (json!({"type": "object", "properties": names(200), "required": ["p1"]}), 1000),
        (json!({"type": "string", "enum": words}), 20_000),
        (
            json!({"oneOf": (0..300).map(|n| json!({"properties": {"kind": {"const": n}}})).collect::<Vec<_>>()}),
            3000,
        ),
        (
            json!({"anyOf": (0..500).map(|n| json!({"$ref": format!("#/$defs/d{n}")})).collect::<Vec<_>>(),
            "$defs": of(500, |n| (format!("d{n}"), json!({"properties": names(20)})))}),
            30_000,
        ),
    ] {
        let steps = schema(&of).unwrap();
        assert!(steps < most, "{steps} of {most}");
    }
}
