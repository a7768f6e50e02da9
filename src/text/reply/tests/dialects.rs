//! Calls in pairs of tags (GLM), in braces (Gemma 4), in frames (DeepSeek, Hunyuan), in fences (MiniCPM) and in lists
//! (Phi-4-mini).

use super::*;
use serde_json::{Map, Value};

/// A call in pairs of tags, with line breaks or without.
pub fn pairs((name, arguments): &(&'static str, Map<String, Value>), tight: bool) -> String {
    let line = if tight { "" } else { "\n" };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let pair = |(key, value): (&String, &Value)| {
        format!("<arg_key>{key}</arg_key>{line}<arg_value>{}</arg_value>{line}", text(value))
    };
    let pairs: String = arguments.iter().map(pair).collect();
    format!("<tool_call>{name}{line}{pairs}</tool_call>{line}")
}

/// A value in Gemma 4's syntax.
fn bare(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(items) => format!("[{}]", items.iter().map(bare).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let fields: Vec<_> = fields.iter().map(|(key, value)| format!("{key}:{}", bare(value))).collect();
            format!("{{{}}}", fields.join(","))
        }
        value => value.to_string(),
    }
}

/// A call in braces, its arguments as the model writes them or as JSON.
pub fn braced((name, arguments): &(&'static str, Map<String, Value>), json: bool) -> String {
    let arguments = Value::Object(arguments.clone());
    let text = if json { arguments.to_string() } else { bare(&arguments) };
    format!("<|tool_call>call:{name}{text}<tool_call|>")
}

#[test]
fn braces() {
    for (text, rest, calls) in [
        (
            "I look.\n<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:[1,2]}<tool_call|>",
            "I look.",
            &[("get_weather", r#"{"city": "Paris", "days": [1, 2]}"#)][..],
        ),
        (
            "<|tool_call>call:f{}<tool_call|><|tool_call>call:a.b-c{}<tool_call|>",
            "",
            &[("f", "{}"), ("a.b-c", "{}")],
        ),
        (
            "<|tool_call>call:f{x:<|\"|>}<tool_call|> [\"<|\"|>,y:{z:true}}<tool_call|>",
            "",
            &[("f", r#"{"x": "}<tool_call|> [\"", "y": {"z": true}}"#)],
        ),
        (
            "<|tool_call>call:f{\"x\": \"}\\\"\", y:<|\"|><|\"|>}<tool_call|>So.",
            "So.",
            &[("f", r#"{"x": "}\"", "y": ""}"#)],
        ),
        ("<|tool_call>call:f{}", "", &[("f", "{}")]),
        (
            "<|tool_call>call:f{x=<|\"|>a=b<|\"|>,y = {\"z\": 'w'},n=3}<tool_call|>",
            "",
            &[("f", r#"{"x": "a=b", "y": {"z": "w"}, "n": 3}"#)],
        ),
        // Texts that are not calls, and calls that are cut off.
        ("<|tool_call>f{}<tool_call|>", "<|tool_call>f{}<tool_call|>", &[]),
        ("<|tool_call>call:a b{}<tool_call|>", "<|tool_call>call:a b{}<tool_call|>", &[]),
        ("<|tool_call>call:f{x:y}<tool_call|>", "<|tool_call>call:f{x:y}<tool_call|>", &[]),
        ("<|tool_call>call:f{x:<|\"|>y}<tool_call|>", "<|tool_call>call:f{x:<|\"|>y}<tool_call|>", &[]),
        ("<|tool_call>call:f{}!", "!", &[("f", "{}")]),
    ] {
        assert_eq!(parse("gemma4", text), parsed(rest, calls), "{text}");
    }
    // With control tokens, as the vocabulary has them.
    let controls = ["<|tool_call>", "<tool_call|>", "<|\"|>"];
    let pieces = ["<|tool_call>", "call:f{x:", "<|\"|>", "y", "<|\"|>", "}", "<tool_call|>"];
    assert_eq!(parse_as(parts("gemma4"), &controls, &pieces), parsed("", &[("f", r#"{"x": "y"}"#)]));
}

#[test]
fn pairs_of_tags() {
    for (text, rest, calls) in [
        (
            "I look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n\
             <arg_value>[1, 2]</arg_value>\n</tool_call>\n",
            "I look.",
            &[("get_weather", r#"{"city": "Paris", "days": [1, 2]}"#)][..],
        ),
        ("<tool_call>f\n</tool_call>", "", &[("f", "{}")]),
        ("<tool_call>f</tool_call>\n<tool_call>a.b-c</tool_call>", "", &[("f", "{}"), ("a.b-c", "{}")]),
        // A text stays a text, whatever it contains, and keeps its blanks; other values are JSON, Python's
        // constants, or text.
        (
            "<tool_call>f<arg_key>t0</arg_key><arg_value>12</arg_value></tool_call>",
            "",
            &[("f", r#"{"t0": "12"}"#)],
        ),
        (
            "<tool_call>f<arg_key>t0</arg_key><arg_value>null</arg_value></tool_call>",
            "",
            &[("f", r#"{"t0": "null"}"#)],
        ),
        (
            "<tool_call>f<arg_key>t0</arg_key><arg_value> \na\n</arg_value></tool_call>",
            "",
            &[("f", r#"{"t0": " \na\n"}"#)],
        ),
        (
            "<tool_call>f<arg_key>x</arg_key><arg_value>12</arg_value></tool_call>",
            "",
            &[("f", r#"{"x": 12}"#)],
        ),
        (
            "<tool_call>f<arg_key>x</arg_key><arg_value>True</arg_value></tool_call>",
            "",
            &[("f", r#"{"x": true}"#)],
        ),
        (
            "<tool_call>f<arg_key>n0</arg_key><arg_value>null</arg_value></tool_call>",
            "",
            &[("f", r#"{"n0": null}"#)],
        ),
        (
            "<tool_call>f<arg_key>t0</arg_key><arg_value>a</arg_value> b</arg_value>\n</tool_call>",
            "",
            &[("f", r#"{"t0": "a</arg_value> b"}"#)],
        ),
        // Texts that are not calls, and calls that are cut off.
        ("<tool_call>two words\n</tool_call>", "<tool_call>two words\n</tool_call>", &[]),
        ("<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>", &[]),
        ("<tool_call>f\ntext", "<tool_call>f\ntext", &[]),
        ("<tool_call>f\n<arg_key>a</arg_key>text", "<tool_call>f\n<arg_key>a</arg_key>text", &[]),
        ("<tool_call>f\n<arg_key>a</arg_key><arg_value>12", "12", &[("f", "{\"a\": ")]),
    ] {
        assert_eq!(parse("glm", text), parsed(rest, calls), "{text}");
    }
}

#[test]
fn frames() {
    let both = [("get_weather", r#"{"city": "Paris"}"#), ("f", "{}")];
    for (format, text, rest, calls) in [
        (
            "deepseek_v3",
            "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```\
             <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "Hm.",
            &both[..],
        ),
        (
            "deepseek_v31",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜>\
             <｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>So.",
            "So.",
            &both,
        ),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>", "", &both[1..]),
        ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "", &both[1..]),
        ("deepseek_v31", "<｜tool▁calls▁begin｜>f{}", "<｜tool▁calls▁begin｜>f{}", &[]),
        (
            "deepseek_v31",
            "<｜tool▁call▁begin｜>a b<｜tool▁sep｜>{}",
            "<｜tool▁call▁begin｜>a b<｜tool▁sep｜>{}",
            &[],
        ),
        (
            "deepseek_v3",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 01}\n```",
            "1}\n```",
            &[("f", "{\"a\": 0")],
        ),
        (
            "hunyuan",
            "<tool_calls>\n<tool_call>get_weather\n```json\n{\"city\": \"Paris\"}\n```\n</tool_call>\n<tool_call>f\n```json\n\
             {}\n```\n</tool_call>\n</tool_calls>",
            "",
            &both,
        ),
        ("hunyuan", "<tool_calls><tool_call>f\n```json\nno", "<tool_calls><tool_call>f\n```json\nno", &[]),
    ] {
        assert_eq!(parse(format, text), parsed(rest, calls), "{format}: {text}");
    }
}

#[test]
fn fences_and_lists() {
    let both = [("get_weather", r#"{"city": "Paris"}"#), ("f", "{}")];
    for (format, text, rest, calls) in [
        (
            "minicpm",
            "<|tool_call_start|>\n```python\nget_weather(city=\"Paris\")\nf()\n```\n<|tool_call_end|>\nDone",
            "Done",
            &both[..],
        ),
        ("minicpm", "<|tool_call_start|>f()<|tool_call_end|>", "", &both[1..]),
        ("olmo3", "<function_calls>get_weather(city='Paris')\nf()</function_calls>", "", &both),
        ("olmo3", "Hm.\n<function_calls>\nf()\n</function_calls>", "Hm.", &both[1..]),
        ("olmo3", "<function_calls>no</function_calls>", "<function_calls>no</function_calls>", &[]),
        (
            "minicpm",
            "<|tool_call_start|>\n```python\nx = 1\n```\n<|tool_call_end|>",
            "<|tool_call_start|>\n```python\nx = 1\n```\n<|tool_call_end|>",
            &[],
        ),
        (
            "phi4_mini",
            "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"f\", \"parameters\": {}}]\
             <|/tool_call|>",
            "",
            &both,
        ),
        ("phi4_mini", "functools[{\"name\": \"f\", \"arguments\": {}}]", "", &both[1..]),
        ("phi4_mini", "import functools[1]", "import functools[1]", &[]),
    ] {
        assert_eq!(parse(format, text), parsed(rest, calls), "{format}: {text}");
    }
}
