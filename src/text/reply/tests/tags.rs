//! Calls that are written in tags: the ends of values, and their types.

use super::*;
use serde_json::{Map, Value};

/// A call in one of two ways: with line breaks and JSON, or without and with Python's constants. `block` has the call,
/// and may begin without its tag if it is `tool_call`.
pub fn written((name, arguments): &(&'static str, Map<String, Value>), tight: bool, block: &str) -> String {
    let line = if tight { "" } else { "\n" };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        value if tight => python(value),
        value => value.to_string(),
    };
    let parameter = |(key, value): (&String, &Value)| {
        format!("<parameter={key}>{line}{}{line}</parameter>\n", text(value))
    };
    let parameters: String = arguments.iter().map(parameter).collect();
    let open = if tight && block == "tool_call" { String::new() } else { format!("<{block}>\n") };
    format!("{open}<function={name}>\n{parameters}</function>\n</{block}>\n")
}

/// The answer with one call of `f` that has these parameters.
fn call(parameters: &str) -> String {
    format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>")
}

#[test]
fn values_are_text_or_json() {
    for (parameter, value, json) in [
        ("t0", "\nParis\n", "\"Paris\""),
        ("t0", "Paris", "\"Paris\""),
        ("t0", "\n12\n", "\"12\""),
        ("t0", "\nnull\n", "\"null\""),
        ("t0", "", "\"\""),
        ("t0", "\n\n", "\"\""),
        ("t0", "\n\n\n", "\"\\n\""),
        ("t0", "\n\n  a\\b \"c\"\t\n\n", "\"\\n  a\\\\b \\\"c\\\"\\t\\n\""),
        ("t0", "\n<b>x</b>\n", "\"<b>x</b>\""),
        ("n0", "\nnull\n", "null"),
        ("n0", "\nNone\n", "null"),
        ("n0", "\n \"null\" \n", "\" \\\"null\\\" \""),
        ("x", "\n12\n", "12"),
        ("x", " -1.5e3 ", "-1.5e3"),
        ("x", "\n[1, {\"a\": \"</parameter>\"}]\n", "[1, {\"a\": \"</parameter>\"}]"),
        ("x", "\nTrue\n", "true"),
        ("x", "\nfalse\n", "false"),
        ("x", "\nNone\n", "null"),
        ("x", "\n{'a': [True, 'b']}\n", "{\"a\": [true, \"b\"]}"),
        ("x", "\n\"a\"\n", "\"a\""),
        ("x", "\n'a'\n", "\"'a'\""),
        ("x", "\n[1,\n", "\"[1,\""),
        ("x", "\n 1, 2\n", "\" 1, 2\""),
        ("x", "\nParis\n\n", "\"Paris\\n\""),
        ("x", "", "\"\""),
        ("\"é\\", "1", "1"),
    ] {
        let answer = call(&format!("<parameter={parameter}>{value}</parameter>\n"));
        let arguments = format!("{{{}: {json}}}", serde_json::to_string(parameter).unwrap());
        assert_eq!(parse("qwen3_coder", &answer), parsed("", &[("f", &arguments)]), "{answer}");
        serde_json::from_str::<Value>(&arguments).unwrap();
    }
}

/// A closing tag needs another tag after it, and a tag may be missing where the next one leaves no doubt.
#[test]
fn what_ends_a_value() {
    for (parameters, arguments) in [
        ("<parameter=t0>\na </parameter> b\n</parameter>\n", r#"{"t0": "a </parameter> b"}"#),
        ("<parameter=t0>\na\n</parameter>\n</parameter>\n", r#"{"t0": "a\n</parameter>"}"#),
        ("<parameter=t0>\na\n</function>\nb\n</parameter>\n", r#"{"t0": "a\n</function>\nb"}"#),
        ("<parameter=t0>\na\n<parameter=y>\n</parameter>\n", r#"{"t0": "a\n<parameter=y>"}"#),
        ("<parameter=t0>\na <parameter=t1>\n</parameter>\n", r#"{"t0": "a <parameter=t1>"}"#),
        ("<parameter=t0>\n<tool_call>\n</tool_call>\n</parameter>", r#"{"t0": "<tool_call>\n</tool_call>"}"#),
        ("<parameter=t0>\na\n</parameter><parameter=x>1</parameter>", r#"{"t0": "a", "x": 1}"#),
        ("<parameter=t0>\na\n<parameter=t1>\nb\n", r#"{"t0": "a", "t1": "b"}"#),
        ("<parameter=x>\n1\n<parameter=n0>\nNone\n", r#"{"x": 1, "n0": null}"#),
        ("<parameter=t0>\na\n</parameter\n", r#"{"t0": "a\n</parameter"}"#),
    ] {
        assert_eq!(parse("qwen3_coder", &call(parameters)), parsed("", &[("f", arguments)]), "{parameters}");
    }
    let open = "<tool_call><function=f><parameter=t0>a</parameter>\n</tool_call>b";
    assert_eq!(parse("qwen3_coder", open), parsed("b", &[("f", r#"{"t0": "a"}"#)]));
    let far = format!("<parameter=t0>a</parameter>{}", " ".repeat(65));
    let json = format!(r#"{{"t0": "a</parameter>{}"}}"#, " ".repeat(65));
    assert_eq!(parse("qwen3_coder", &call(&format!("{far}</parameter>"))), parsed("", &[("f", &json)]));
}

#[test]
fn a_known_function_needs_no_block() {
    let f = [("f", r#"{"x": 1}"#)];
    let inner = "<function=f><parameter=x>1</parameter></function>";
    for (text, rest) in [
        (inner.to_owned(), ""),
        (format!("{inner}\n</tool_call>"), ""),
        (format!("Let me look.\n\n{inner}\n</tool_call>\n"), "Let me look."),
        (format!("#include <functional>\n{inner}\nSo."), "#include <functional>\nSo."),
        (format!("<function=g>{inner}"), "<function=g>"),
    ] {
        assert_eq!(parse("qwen3_coder", &text), parsed(rest, &f), "{text}");
    }
    for text in [
        "<function=g><parameter=x>1</parameter></function>\n</tool_call>",
        "<function=f>",
        "<function=f>{\"x\": 1}</function>",
        "<function=f",
        "a <function= f>",
        "<tool_call>\n<function=g h></function>\n</tool_call>",
        "<tool_call>\n<function=></function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=>1</parameter>\n</function>",
        "<tool_call>\n<function=f>\n<parameter=a<b>1</parameter>\n</function>",
        "<tool_call>\n<function=f>\n</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n<parameter=x>1</parameter>\n</tool_call>",
    ] {
        assert_eq!(parse("qwen3_coder", text), parsed(text, &[]), "{text}");
    }
    // In a block, any function is called, and several may be.
    let two = "<tool_call><function=g></function>\n<function=f>\n</function></tool_call>";
    assert_eq!(parse("qwen3_coder", two), parsed("", &[("g", "{}"), ("f", "{}")]));
}

#[test]
fn calls_that_are_cut_off_keep_what_was_told() {
    for (text, rest, arguments) in [
        // A line break there would belong to the closing tag.
        ("<tool_call><function=f><parameter=t0>\nab\n", "", "{\"t0\": \"ab"),
        ("<tool_call><function=f><parameter=t0>\nab</param", "</param", "{\"t0\": \"ab"),
        ("<tool_call><function=f><parameter=t0>\nab</parameter>\n", "</parameter>\n", "{\"t0\": \"ab"),
        ("<tool_call><function=f><parameter=x>\n[1, 2", "[1, 2", "{\"x\": "),
        ("<tool_call><function=f><parameter=x>1</parameter></function>\n</tool", "</tool", "{\"x\": 1}"),
        ("<tool_call><function=f></function>\nDone", "Done", "{}"),
        ("<tool_call><function=f></function></function>", "</function>", "{}"),
    ] {
        assert_eq!(parse("qwen3_coder", text), parsed(rest, &[("f", arguments)]), "{text}");
    }
}

/// Text arrives while the model writes it.
#[test]
fn text_streams_within_a_parameter() {
    let mut reply = Reply::new(parts("qwen3_coder"), &|_| false);
    let mut parsed = Parsed::default();
    let mut arguments = Vec::new();
    for piece in
        ["<tool_call>\n<function=f>", "\n<parameter=t0>", "\nHel", "lo\n", "</", "b>", "\n</parameter>\n</f"]
    {
        reply.push(piece, &mut parsed);
        arguments.push(parsed.calls.first().map(|(_, arguments)| arguments.clone()));
    }
    let steps = [
        None,
        Some("{\"t0\": \""),
        Some("{\"t0\": \"Hel"),
        Some("{\"t0\": \"Hello"),
        Some("{\"t0\": \"Hello"),
        Some("{\"t0\": \"Hello\\n</b>"),
        Some("{\"t0\": \"Hello\\n</b>"),
    ];
    assert_eq!(arguments.iter().map(Option::as_deref).collect::<Vec<_>>(), steps);
}

#[test]
fn control_tokens_in_a_value_are_its_text() {
    let controls = ["<tool_call>", "</tool_call>", "<think>", "</think>"];
    let parse = |pieces: &[&str]| parse_as(parts("qwen3_coder"), &controls, pieces);
    let (open, close) = ("\n<function=f>\n<parameter=t0>\na", "b\n</parameter>\n</function>\n");
    let whole = |pieces: &[&str]| parse(&[&["<tool_call>", open], pieces, &[close, "</tool_call>"]].concat());
    assert_eq!(whole(&[]), parsed("", &[("f", r#"{"t0": "ab"}"#)]));
    assert_eq!(
        whole(&["<tool_call>", "</think>", "\n"]),
        parsed("", &[("f", r#"{"t0": "a<tool_call></think>\nb"}"#)])
    );
    // Without the parameter's closing tag, too.
    assert_eq!(
        parse(&["<tool_call>", open, "\n</function>\n", "</tool_call>", "c"]),
        parsed("c", &[("f", r#"{"t0": "a"}"#)])
    );
    // Spelled out, the marker is text.
    assert_eq!(
        parse(&["<tool_", "call>\n<function=g></function>"]),
        parsed("<tool_call>\n<function=g></function>", &[])
    );
    // A marker where none is expected begins another call.
    let f = "\n<function=f></function>";
    assert_eq!(parse(&["<tool_call>", f, "\n", "<tool_call>", f]), parsed("", &[("f", "{}"), ("f", "{}")]));
    assert_eq!(parse(&["<tool_call>", "<tool_call>", f]), parsed("<tool_call>", &[("f", "{}")]));
    assert_eq!(
        parse(&["<tool_call>", "\n<func", "<tool_call>", f]),
        parsed("<tool_call>\n<func", &[("f", "{}")])
    );
    let thought = parse(&["hm</think>", "<think>", "hm", "</think>"]);
    assert_eq!(thought.text, "hm</think>hm");
}
