//! The tokens of prompts, and the outputs that the grammars of `tool_choice` allow.

mod tags;

use super::*;
use crate::base::Bytes;
use crate::constrain::{Constraint, ConstraintKind, Grammars, JsonOptions, LazyVocabulary, uncounted};
use crate::engine::api::EmbeddingParams;
use crate::formats::Gguf;
use crate::formats::gguf::writer::{self, Meta};
use crate::text::reply::{format_named, thoughts_named};
use crate::text::{ChatTemplate, Tokenizer};

const TOOLS: &str = r#"[
    {"type": "function", "function": {"name": "get-weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}}, "required": ["city"],
        "additionalProperties": false}}},
    {"type": "function", "function": {"name": "now"}}]"#;

fn chat(more: &str) -> Chat {
    Chat::parse(&format!(r#"{{"messages": [], "tools": {TOOLS}, {more}}}"#)).unwrap()
}

fn lark(chat: &Chat, parts: &ReplyParts) -> Option<String> {
    grammar(chat, parts, None, Advice::Taken, &|_| None).unwrap()
}

/// Returns whether `text` is allowed byte by byte, with an end after it.
fn accepts(grammar: &str, text: &str) -> bool {
    let bytes = Tokenizer::bytes().unwrap();
    let vocabulary = LazyVocabulary::new();
    let vocabulary = vocabulary.get(Some(&bytes), bytes.vocab_size(), bytes.end_tokens(), || None).unwrap();
    let constraint =
        Constraint { kind: ConstraintKind::Lark, text: grammar.into(), json: JsonOptions::default() };
    let grammars = Grammars::new(1, u64::MAX, || None);
    let mut guide = grammars
        .guide(vocabulary, &constraint, u64::MAX, &uncounted)
        .unwrap_or_else(|e| panic!("{e}: {grammar}"));
    let tokens = text.bytes().map(u32::from).chain([256]);
    let all = tokens.into_iter().all(|token| {
        let allowed = guide.mask().unwrap().bits()[token as usize / 32] >> (token % 32) & 1 == 1;
        if allowed && token < 256 {
            guide.push(token).unwrap();
        }
        allowed
    });
    grammars.stop();
    all
}

fn parts(format: &str) -> ReplyParts {
    ReplyParts { format: format_named(format), ..ReplyParts::default() }
}

const WEATHER: [(&str, &str); 16] = [
    (
        "harmony",
        "<|channel|>commentary to=functions.get-weather <|constrain|>json<|message|>{\"city\": \"P\", \"days\": [1, 2]}",
    ),
    (
        "phi4_mini",
        "<|tool_call|>[{\"name\": \"get-weather\", \"arguments\": {\"city\": \"P\", \"days\": [1, 2]}}]<|/tool_call|>",
    ),
    (
        "minicpm",
        "<|tool_call_start|>[{\"name\": \"get-weather\", \"arguments\": {\"city\": \"P\", \"days\": [1, 2]}}]\
         <|tool_call_end|>",
    ),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get-weather\n```json\n{\"city\": \"P\", \"days\": \
         [1, 2]}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get-weather<｜tool▁sep｜>{\"city\": \"P\", \"days\": [1, 2]}\
         <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "hunyuan",
        "<tool_calls>\n<tool_call>get-weather\n```json\n{\"city\": \"P\", \"days\": [1, 2]}\n```\n</tool_call>\n</tool_calls>",
    ),
    (
        "hermes",
        "<tool_call>\n{\"name\": \"get-weather\", \"arguments\": {\"city\": \"P\", \"days\": [1, 2]}}\n</tool_call>",
    ),
    ("llama3", "{\"name\": \"get-weather\", \"parameters\": {\"city\": \"P\", \"days\": [1, 2]}}"),
    ("gemma", "{\"name\": \"get-weather\", \"parameters\": {\"city\": \"P\", \"days\": [1, 2]}}"),
    (
        "mistral",
        "[TOOL_CALLS] [{\"name\": \"get-weather\", \"arguments\": {\"city\": \"P\", \"days\": [1, 2]}}]",
    ),
    (
        "granite",
        "<|tool_call|>[{\"name\": \"get-weather\", \"arguments\": {\"city\": \"P\", \"days\": [1, 2]}}]",
    ),
    (
        "lfm2",
        "<|tool_call_start|>[{\"name\": \"get-weather\", \"arguments\": {\"city\": \"P\", \"days\": [1, 2]}}]\
         <|tool_call_end|>",
    ),
    (
        "hunyuan_a13b",
        "<tool_calls>[{\"name\": \"get-weather\", \"arguments\": {\"city\": \"P\", \"days\": [1, 2]}}]</tool_calls>",
    ),
    (
        "olmo3",
        "<function_calls>[{\"name\": \"get-weather\", \"arguments\": {\"city\": \"P\", \"days\": [1, 2]}}]\
         </function_calls>",
    ),
    ("gemma4", "<|tool_call>call:get-weather{\"city\": \"P\", \"days\": [1, 2]}<tool_call|>"),
    ("mistral11", "[TOOL_CALLS]get-weather[ARGS]{\"city\": \"P\", \"days\": [1, 2]}"),
];

#[test]
fn a_required_call_comes_in_its_format() {
    for (format, call) in WEATHER {
        let required = lark(&chat(r#""tool_choice": "required""#), &parts(format)).unwrap();
        assert!(accepts(&required, call), "{format}: {required}");
        let now = call.replace("get-weather", "now").replace("\"city\": \"P\", \"days\": [1, 2]", "");
        assert!(accepts(&required, &now), "{format}: {now}");
        for wrong in [
            call.replace("get-weather", "other"),
            call.replace("\"P\"", "5"),
            call.replace("\"city\": \"P\", ", ""),
            call.replace("[1, 2]", "[1, 2], \"x\": 1"),
            format!("I {call}"),
            String::new(),
        ] {
            assert!(!accepts(&required, &wrong), "{format}: {wrong}");
        }
        let choice = r#""tool_choice": {"type": "function", "function": {"name": "now"}}"#;
        let named = lark(&chat(choice), &parts(format)).unwrap();
        assert!(accepts(&named, &now) && !accepts(&named, call), "{format}: {named}");
    }
}

#[test]
fn several_calls_come_where_they_may() {
    for (format, call) in WEATHER {
        let two = match format {
            "hermes" => format!("{call}\n{call}"),
            "deepseek_v3" => call.replace(
                "<｜tool▁calls▁end｜>",
                "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
            "deepseek_v31" => call.replace(
                "<｜tool▁calls▁end｜>",
                "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
            "hunyuan" => {
                call.replace("\n</tool_calls>", "\n<tool_call>now\n```json\n{}\n```\n</tool_call>\n</tool_calls>")
            }
            "mistral" | "granite" | "lfm2" | "olmo3" | "hunyuan_a13b" | "phi4_mini" | "minicpm" => {
                call.replace("}]", "}, {\"name\": \"now\", \"arguments\": {}}]")
            }
            "mistral11" | "gemma4" => format!("{call}{call}"),
            _ => format!("{call}; {call}"),
        };
        let allows = |more: &str| accepts(&lark(&chat(more), &parts(format)).unwrap(), &two);
        let several = !matches!(format, "llama3" | "gemma" | "harmony");
        let parallel = r#""tool_choice": "required", "parallel_tool_calls": true"#;
        assert_eq!(allows(parallel), several, "{format}: {two}");
        assert!(!allows(r#""tool_choice": "required""#), "{format}: one unless more are asked for");
        assert!(!allows(r#""tool_choice": "required", "parallel_tool_calls": false"#), "{format}");
    }
}

#[test]
fn an_answer_that_may_call_is_text_or_a_sound_call() {
    for (format, call) in WEATHER {
        assert_eq!(lark(&chat(r#""tool_choice": "auto""#), &parts(format)), None);
        assert_eq!(
            lark(&chat(r#""tool_choice": "none", "parallel_tool_calls": false"#), &parts(format)),
            None
        );
        let one = lark(&chat(r#""parallel_tool_calls": false"#), &parts(format)).unwrap();
        let say = |text: &str| match format {
            "harmony" => format!("<|channel|>final<|message|>{text}"),
            _ => text.to_owned(),
        };
        assert!(accepts(&one, call) && accepts(&one, &say("Hello {\n}")), "{format}: {one}");
        let anything = call.replace("\"P\"", "5");
        assert!(accepts(&one, &anything), "{format}: only strict tools keep their schema");
        let source = format!(r#"{{"messages": [], "tools": {TOOLS}}}"#)
            .replace("\"name\"", "\"strict\": true, \"name\"");
        let strict = lark(&Chat::parse(&source).unwrap(), &parts(format)).unwrap();
        assert!(accepts(&strict, call) && accepts(&strict, &say("Hello")), "{format}: {strict}");
        assert!(!accepts(&strict, &anything), "{format}: {strict}");
        let markers = format_named(format).unwrap().blocks[0].open;
        assert!(!accepts(&strict, &say(&format!("Hello {markers}, you"))), "{format}: {strict}");
    }
}

#[test]
fn thoughts_come_first() {
    let (format, call) = *WEATHER.iter().find(|(format, _)| *format == "hermes").unwrap();
    let required = chat(r#""tool_choice": "required""#);
    let with = |thinking| ReplyParts { thoughts: thoughts_named("think"), thinking, ..parts(format) };
    let begun = lark(&required, &with(true)).unwrap();
    assert!(accepts(&begun, &format!("hm\n</think>\n\n{call}")) && !accepts(&begun, call), "{begun}");
    let free = lark(&required, &with(false)).unwrap();
    assert!(accepts(&free, &format!("<think>hm</think>{call}")) && accepts(&free, call), "{free}");
    assert!(!accepts(&free, &format!("hm</think>{call}")), "{free}");
}

#[test]
fn messages_of_thoughts_come_first() {
    let (format, call) = WEATHER[0];
    let parts = ReplyParts { thoughts: thoughts_named("harmony"), ..parts(format) };
    let made = lark(&chat(r#""tool_choice": "required""#), &parts).unwrap();
    let thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    assert!(accepts(&made, &format!("{thought}{call}")) && accepts(&made, call), "{made}");
    assert!(!accepts(&made, &format!("<|channel|>analysis<|message|>Hm.{call}")), "{made}");
    let ids =
        |mark: &str| ["<|channel|>", "<|message|>", "<|end|>", "<|start|>"].iter().position(|m| *m == mark);
    let made = grammar(&chat(r#""tool_choice": "required""#), &parts, None, Advice::Taken, &|mark| {
        ids(mark).map(|at| 10 + at as u32)
    });
    let made = made.unwrap().unwrap();
    assert!(made.contains("opened: <[10]> \"analysis\" <[11]>"), "{made}");
    assert!(made.contains("thought: /(?s:.*)/ <[12]> <[13]> \"assistant\" BREAKS"), "{made}");
}

/// Control tokens are matched by their ids.
#[test]
fn markers_that_are_control_tokens_are_no_text() {
    let required = chat(r#""tool_choice": "required""#);
    let ids = |mark: &str| {
        ["[TOOL_CALLS]", "[ARGS]", "[/THINK]"].iter().position(|m| *m == mark).map(|at| 10 + at as u32)
    };
    let parts = ReplyParts { thoughts: thoughts_named("mistral"), ..parts("mistral11") };
    let made = grammar(&required, &parts, None, Advice::Taken, &ids).unwrap().unwrap();
    assert!(made.contains("call_1: <[10]> \"now\" <[11]> args_1"), "{made}");
    assert!(made.contains("thought: /(?s:.*)/ <[12]>") && made.contains("opened: \"[THINK]\""), "{made}");
}

/// An answer consists of calls, or else is JSON under the request's schema.
#[test]
fn a_schema_leaves_room_for_calls() {
    let chat = chat(r#""tool_choice": "auto""#);
    let parts = ReplyParts { thoughts: thoughts_named("think"), ..parts("hermes") };
    let schema = r#"{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}"#;
    let made = grammar(&chat, &parts, Some(schema), Advice::Taken, &|_| None).unwrap().unwrap();
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    for text in [r#"{"a": 7}"#, "<think>Hm.</think>{\"a\": 7}", call] {
        assert!(accepts(&made, text), "{text}: {made}");
    }
    for text in ["Hello.", r#"{"a": "b"}"#] {
        assert!(!accepts(&made, text), "{text}: {made}");
    }
    let none = Chat::parse(r#"{"messages": []}"#).unwrap();
    assert_eq!(grammar(&none, &parts, Some(schema), Advice::Taken, &|_| None).unwrap(), None);
    // Without a format for calls, the schema alone is the grammar.
    assert_eq!(grammar(&chat, &ReplyParts::default(), Some(schema), Advice::Taken, &|_| None).unwrap(), None);
    let error = grammar(&chat, &parts, Some("{} | /.*/"), Advice::Taken, &|_| None).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument, "{error}");
}

#[test]
fn calls_need_a_format() {
    let required = chat(r#""tool_choice": "required""#);
    let error = grammar(&required, &ReplyParts::default(), None, Advice::Taken, &|_| None).unwrap_err();
    assert!(error.message.contains("set tool_format"), "{error}");
}

#[test]
fn parts_follow_template_and_chat() {
    let of = |template: &str, chat: &str, prompt: &str| {
        let template = ChatTemplate::new(template, Vec::new()).unwrap();
        ReplyParts::of(&Chat::parse(chat).unwrap(), &template, prompt)
    };
    let tools = |more: &str| {
        format!(
            r#"{{"messages": [{{"role": "assistant", "content": "<think>hm"}}], "tools": {TOOLS}{more}}}"#
        )
    };
    let format = |parts: ReplyParts| parts.format.map(|format| format.name);
    let qwen = "{{ tools }}<tool_call> </think>";
    let parts = of(qwen, &tools(""), "x<think>\n").unwrap();
    assert_eq!((parts.tools.len(), parts.thinking), (2, true));
    assert_eq!(format(parts), Some("hermes"));
    let coder = "{{ tools }}<tool_call>\\n<function=";
    assert_eq!(format(of(coder, &tools(""), "").unwrap()), Some("qwen3_coder"));
    let parts = of(qwen, &tools(r#", "tool_choice": "none""#), "<think>x</think>").unwrap();
    assert_eq!((parts.tools.len(), parts.thinking, parts.format), (0, false, None));
    assert!(of(qwen, &tools(r#", "continue_final_message": true"#), "x").unwrap().thinking);
    assert_eq!(
        format(of("{{ messages }}", &tools(""), "").unwrap()),
        Some("hermes"),
        "as the prompt describes it"
    );
    assert_eq!(format(of("{{ tools }}", &tools(""), "").unwrap()), None);
    assert_eq!(format(of(qwen, &tools(r#", "tool_format": "llama3""#), "").unwrap()), Some("llama3"));
    let none = of(qwen, &tools(r#", "tool_format": "none", "reasoning_format": "none""#), "<think>").unwrap();
    assert!(none.format.is_none() && none.thoughts.is_none() && !none.thinking);
    for field in ["tool_format", "reasoning_format"] {
        let error = of(qwen, &tools(&format!(r#", "{field}": "x""#)), "").unwrap_err();
        assert!(error.message.starts_with(&format!("chat.json: {field}: x is none of none, ")), "{error}");
    }
}

#[test]
fn only_texts_to_embed_end_with_eos() {
    let pair = |key: &str, value: Meta| (format!("tokenizer.ggml.{key}"), value);
    let tokens = ["<unk>", "<s>", "</s>", "\u{2581}", "a"].map(String::from);
    let pairs = [
        pair("model", "llama".into()),
        pair("tokens", Meta::Strs(tokens.to_vec())),
        pair("scores", Meta::F32s(vec![0.0; 5])),
        pair("token_type", Meta::I32s(vec![2, 3, 3, 1, 1])),
        pair("add_eos_token", Meta::Bool(true)),
    ];
    let gguf = Gguf::from_bytes(Bytes::new(writer::metadata_only(&pairs)), "x").unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf, &|_| {}).unwrap().unwrap();
    let tokenizer = Some(&tokenizer);
    let limits = RequestLimits {
        whole: None,
        scores: false,
        vocab_size: 5,
        hidden_size: 8,
        max_sequence: 4,
        new_tokens: 0,
        tokenizer,
        chat: None,
        pair: None,
        room: u64::MAX,
        eyes: None,
        until_ns: u64::MAX,
    };
    let ids = |prompt: Prompt, embedding: Option<EmbeddingParams>| {
        limits.prompt(&RequestParams { prompt, embedding, ..Default::default() }).map(|made| made.ids)
    };
    let text = |text: &'static str| Prompt::Text(text.into());
    let embedding = || Some(EmbeddingParams::default());
    assert_eq!(ids(text("a"), None).unwrap(), [1, 3, 4]);
    assert_eq!(ids(text("a"), embedding()).unwrap(), [1, 3, 4, 2]);
    assert_eq!(ids(Prompt::Tokens(vec![4].into()), embedding()).unwrap(), [4]);
    // Tokens appended after a text count too.
    assert_eq!(ids(text("aa"), None).unwrap().len(), 4);
    assert_eq!(ids(text("aa"), embedding()).unwrap_err().status, Status::TooLong);
}
