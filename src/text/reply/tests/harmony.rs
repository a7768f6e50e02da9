//! Answers that are sequences of messages: headers, channels, and the ends of messages.

use super::*;

/// Messages of reasoning and text, as far as there are any.
pub fn before(thought: &str, text: &str) -> String {
    let message = |channel: &str, text: &str| match text {
        "" => String::new(),
        text => format!("<|channel|>{channel}<|message|>{text}<|end|>"),
    };
    let (thought, text) = (message("analysis", thought), message("final", text));
    let start = if thought.is_empty() || text.is_empty() { "" } else { "<|start|>assistant" };
    format!("{thought}{start}{text}")
}

fn of(reasoning: &str, text: &str, calls: &[(&str, &str)]) -> Parsed {
    Parsed { reasoning: reasoning.into(), ..parsed(text, calls) }
}

#[test]
fn channels_tell_the_kind() {
    let f = [("f", "{\"a\": 1}")];
    for (answer, expected) in [
        ("<|channel|>final<|message|>Yes.\n", of("", "Yes.\n", &[])),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes<|return|>",
            of("Hm.", "Yes", &[]),
        ),
        ("<|channel|>analysis<|message|>Hm", of("Hm", "", &[])),
        (
            "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary to=functions.f \
             <|constrain|>json<|message|>{\"a\": 1}<|call|>",
            of("Look.", "", &f),
        ),
        ("<|channel|>commentary to=functions.f<|message|>{\"a\": 1}", of("", "", &f)),
        (" to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|>", of("", "", &f)),
        (" to=functions.f<|channel|>analysis<|message|>{\"a\": 1}", of("", "", &f)),
        ("<|channel|>commentary to=f code<|message|>\n{\"a\": 1}\n", of("", "", &f)),
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f \
             <|constrain|>json<|message|>{}<|call|>",
            of("", "I look.", &[("f", "{}")]),
        ),
        ("<|channel|>commentary to=functions.f<|message|><|call|>", of("", "", &[("f", "{}")])),
        (
            "<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>assistant<|channel|>commentary \
             to=functions.a.b-c<|message|>{}<|call|>",
            of("", "", &[("f", "{}"), ("a.b-c", "{}")]),
        ),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>\
             <|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant<|channel|>final<|message|>d",
            of("a\nb", "c\nd", &[]),
        ),
        // Messages of another tool, and messages without a header.
        ("<|channel|>commentary to=browser.search<|message|>{\"q\": 1}<|call|>", of("", "{\"q\": 1}", &[])),
        ("<|channel|>analysis to=python code<|message|>1 + 1", of("1 + 1", "", &[])),
        ("<|message|>Yes", of("", "Yes", &[])),
        ("Just text < here.", of("", "Just text < here.", &[])),
        ("Just text<|return|>", of("", "Just text", &[])),
        // A header that is cut off, and markers that models leave out.
        ("<|channel|>comment", of("", "", &[])),
        ("<|channel|>analysis<|message|>Hm<|channel|>final<|message|>Yes", of("Hm", "Yes", &[])),
        (
            "<|channel|>analysis<|message|>Hm<|start|>assistant<|channel|>final<|message|>Yes",
            of("Hm", "Yes", &[]),
        ),
    ] {
        assert_eq!(parse("harmony", answer), expected, "{answer}");
    }
}

#[test]
fn calls_that_go_wrong() {
    let call =
        |body: &str| parse("harmony", &format!("<|channel|>commentary to=functions.f<|message|>{body}"));
    assert_eq!(call("no JSON"), of("", "no JSON", &[]));
    assert_eq!(call("{\"a\": 01}"), of("", "1}", &[("f", "{\"a\": 0")]));
    assert_eq!(call("{} and"), of("", "and", &[("f", "{}")]));
    assert_eq!(call("{\"a\": [1"), of("", "", &[("f", "{\"a\": [1")]));
    let long = format!("<|channel|>{}", "x".repeat(600));
    assert!(parse("harmony", &long).text.ends_with(&"x".repeat(600)));
}

#[test]
fn formats_that_are_not_looked_for_are_text() {
    let answer = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}";
    let harmony = || ReplyParts { thoughts: thoughts_named("harmony"), ..parts("harmony") };
    assert_eq!(parse_parts(ReplyParts { format: None, ..harmony() }, answer), of("Hm", "{}", &[]));
    assert_eq!(parse_parts(ReplyParts { thoughts: None, ..harmony() }, answer), of("", "Hm", &[("f", "{}")]));
}

#[test]
fn prompts_may_have_begun_a_message() {
    use crate::text::reply::harmony::begins_within;
    assert!(!begins_within("<|start|>user<|message|>Hi<|end|><|start|>assistant"));
    assert!(begins_within("<|start|>assistant<|channel|>final<|message|>The weather"));
    assert!(!begins_within("none"));
    let go_on = |thinking| ReplyParts { begun: true, thinking, ..parts("harmony") };
    assert_eq!(parse_parts(go_on(false), " is<|return|>"), of("", " is", &[]));
    let thinking = ReplyParts { thoughts: thoughts_named("harmony"), ..go_on(true) };
    let rest = "so<|end|><|start|>assistant<|channel|>final<|message|>Yes";
    assert_eq!(parse_parts(thinking, rest), of("so", "Yes", &[]));
}

#[test]
fn control_tokens_are_the_only_markers() {
    let controls = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"];
    let parsed = parse_as(
        parts("harmony"),
        &controls,
        &[
            "<|channel|>",
            "final",
            "<|message|>",
            "a <|end|> b",
            "<|end|>",
            "<|start|>",
            "assistant",
            "<|channel|>",
            "analysis",
            "<|message|>",
            "c",
        ],
    );
    assert_eq!((&*parsed.text, &*parsed.reasoning), ("a <|end|> b", "c"));
}
