//! Grammars for calls that are written in tags.

use super::*;

const TOOL: &str = r##"{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "unit": {"enum": ["C", "°F"]}, "code": {"$ref": "#/$defs/Code"},
    "days": {"type": "array", "items": {"$ref": "#/$defs/Day"}}, "note": {"anyOf": [{"const": "x"}, {"type": "null"}]},
    "on": {"type": "boolean"}, "never": false},
    "required": ["city", "days"], "additionalProperties": false,
    "$defs": {"Code": {"type": "string", "minLength": 1, "maxLength": 3}, "Day": {"type": "integer"}}}}}"##;

fn with(tool: &str, more: &str) -> Chat {
    let now = r#"{"type": "function", "function": {"name": "now"}}"#;
    Chat::parse(&format!(r#"{{"messages": [], "tools": [{tool}, {now}], {more}}}"#)).unwrap()
}

fn required(tool: &str) -> Chat {
    with(tool, r#""tool_choice": "required""#)
}

fn call(name: &str, parameters: &[(&str, &str)]) -> String {
    let parameter = |(name, value): &(&str, &str)| format!("<parameter={name}>\n{value}\n</parameter>\n");
    let parameters: String = parameters.iter().map(parameter).collect();
    format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
}

#[test]
fn required_calls_keep_their_schema() {
    let grammar = lark(&required(TOOL), &parts("qwen3_coder")).unwrap();
    let days = ("days", "[1, 2]");
    for parameters in [
        &[("city", "P"), days][..],
        &[("city", ""), ("days", "[]")],
        &[("city", "a\n\"b\" <c>\n\n </function> <parameter=x>"), days],
        &[("city", "P"), ("unit", "°F"), ("code", "éé"), days, ("note", "x"), ("on", "true")],
        &[("city", "P"), days, ("note", "null")],
    ] {
        let call = call("f", parameters);
        assert!(accepts(&grammar, &call), "{call}: {grammar}");
    }
    for parameters in [
        &[days][..],
        &[("city", "P")],
        &[days, ("city", "P")],
        &[("city", "P"), days, ("x", "1")],
        &[("city", "P"), ("unit", "K"), days],
        &[("city", "P"), ("code", ""), days],
        &[("city", "P"), ("code", "abcd"), days],
        &[("city", "P"), ("days", "[\"1\"]")],
        &[("city", "P"), ("days", "P")],
        &[("city", "P"), days, ("note", "y")],
        &[("city", "P"), days, ("on", "True")],
        &[("city", "P"), days, ("never", "1")],
        &[("city", "a</parameter>b"), days],
        &[("city", "a\n<parameter=unit>"), days],
        &[("city", "a\n</function>"), days],
    ] {
        let call = call("f", parameters);
        assert!(!accepts(&grammar, &call), "{call}: {grammar}");
    }
    let now = call("now", &[("anything", "at\nall"), ("b", "[")]);
    assert!(accepts(&grammar, &call("now", &[])) && accepts(&grammar, &now), "{grammar}");
    let good = call("f", &[("city", "P"), days]);
    for wrong in [call("other", &[]), format!("I {good}"), String::new(), good.replace("</function>\n", "")] {
        assert!(!accepts(&grammar, &wrong), "{wrong}");
    }
    let two = format!("{good}\n{now}");
    let several = with(TOOL, r#""tool_choice": "required", "parallel_tool_calls": true"#);
    let several = lark(&several, &parts("qwen3_coder")).unwrap();
    assert!(accepts(&several, &two) && !accepts(&grammar, &two));
}

#[test]
fn texts_keep_patterns_formats_and_choices() {
    let tool = r##"{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "p": {"type": "string", "pattern": "^a/|b$", "maxLength": 4}, "d": {"type": "string", "format": "date"},
        "u": {"type": "string", "format": "of no name"}, "o": {"oneOf": [{"const": "x"}, {"enum": ["y", "z"]}]},
        "n": {"oneOf": [{"type": "string", "minLength": 2}, {"type": "null"}]},
        "r": {"allOf": [{"$ref": "#/$defs/R"}], "description": "r"}}, "$defs": {"R": {"enum": ["s"]}}}}}"##;
    let grammar = lark(&required(tool), &parts("qwen3_coder")).unwrap();
    for (name, good, bad) in [
        ("p", "a/cd", "ca/"),
        ("p", "cb", "a/cde"),
        ("p", "b", "a"),
        ("d", "2024-02-29", "2023-02-29"),
        ("u", "anything", "</parameter>"),
        ("o", "z", "xy"),
        ("n", "null", "a"),
        ("n", "ab", ""),
        ("r", "s", "t"),
    ] {
        assert!(accepts(&grammar, &call("f", &[(name, good)])), "{name} {good}: {grammar}");
        assert!(!accepts(&grammar, &call("f", &[(name, bad)])), "{name} {bad}: {grammar}");
    }
}

#[test]
fn calls_that_may_come_are_sound() {
    let one = lark(&with(TOOL, r#""parallel_tool_calls": false"#), &parts("qwen3_coder")).unwrap();
    let call = call("f", &[("days", "P")]);
    for good in [&*call, "Hello {\n} <functional>"] {
        assert!(accepts(&one, good), "{good}: {one}");
    }
    for wrong in [format!("{call}\n{call}"), "Hello <function=f>".into(), "Hello <tool_call>, you".into()] {
        assert!(!accepts(&one, &wrong), "{wrong}: {one}");
    }
    let strict = TOOL.replace("\"name\"", "\"strict\": true, \"name\"");
    let strict = lark(&with(&strict, r#""tool_choice": "auto""#), &parts("qwen3_coder")).unwrap();
    assert!(accepts(&strict, "Hello") && !accepts(&strict, &call), "{strict}");
}

#[test]
fn what_cannot_be_kept_is_refused_by_name() {
    for (root, what) in [
        (r#"{"properties": {"a": {"type": "string", "not": {"const": "x"}}}}"#, "parameters.a: not"),
        (
            r#"{"properties": {"a": {"type": "string", "oneOf": [{"minLength": 1}, {"maxLength": 2}]}}}"#,
            "parameters.a: oneOf",
        ),
        (
            r#"{"properties": {"a": {"anyOf": [{"type": "string", "pattern": "(?=x)"}]}}}"#,
            r#"parameters.a: the pattern "(?=x)" has (?=, which looks around"#,
        ),
        (
            r#"{"properties": {"a": {"type": "string", "enum": ["</parameter>"]}}}"#,
            "parameters.a: a text with tags",
        ),
        (
            r#"{"properties": {"a": {"enum": ["a"], "minLength": 2}}}"#,
            "parameters.a: enum beside other assertions",
        ),
        (r##"{"properties": {"a": {"items": {"$ref": "#"}}}}"##, "parameters.a: $ref to #"),
        (r#"{"properties": {"a>b": {"type": "string"}}}"#, "the name of parameters.a>b"),
        (r#"{"properties": {"a": false}, "required": ["a"]}"#, "parameters.a"),
        (r#"{"anyOf": [{"required": ["a"]}]}"#, "parameters: anyOf"),
        (r#"{"minProperties": 1}"#, "parameters: minProperties"),
    ] {
        let tool = |strict: bool| {
            format!(
                r#"{{"type": "function", "function": {{"name": "f", "strict": {strict}, "parameters": {root}}}}}"#
            )
        };
        let made = |chat: &Chat| grammar(chat, &parts("qwen3_coder"), None, Advice::Taken, &|_| None);
        let error = made(&required(&tool(true))).unwrap_err();
        let message = format!("chat.json: tools: f: {what} cannot be kept in calls of qwen3_coder");
        assert_eq!((error.status, error.message), (Status::Unsupported, message));
        let advised = made(&required(&tool(false))).unwrap().unwrap();
        assert!(accepts(&advised, &call("f", &[("any", "x")])), "{what}: only what is strict must be kept");
        assert!(made(&with(&tool(false), r#""parallel_tool_calls": false"#)).is_ok(), "{what}");
    }
}

#[test]
fn only_the_block_is_made_of_control_tokens() {
    let ids =
        |mark: &str| ["<tool_call>", "</tool_call>"].iter().position(|m| *m == mark).map(|at| 10 + at as u32);
    let made = grammar(&required(TOOL), &parts("qwen3_coder"), None, Advice::Taken, &ids).unwrap().unwrap();
    assert!(
        made.contains("call_1: <[10]> \"\\n<function=now>\\n\" PARAMETER_1* \"</function>\\n\" <[11]>"),
        "{made}"
    );
}
