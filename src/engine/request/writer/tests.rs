use super::*;
use crate::base::Bytes;
use crate::formats::Gguf;
use crate::formats::gguf::writer::{self, Meta};
use crate::text::reply::{Known, Reply, ReplyParts, format_named};

const TOKENS: [&str; 10] = ["<unk>", "<s>", "</s>", "[TOOL_CALLS]", "[ARGS]", "f", "{", "}", "a", "\u{2581}"];

fn tokenizer() -> Tokenizer {
    let pair = |key: &str, value: Meta| (format!("tokenizer.ggml.{key}"), value);
    let pairs = [
        pair("model", "llama".into()),
        pair("tokens", Meta::Strs(TOKENS.map(String::from).to_vec())),
        pair("scores", Meta::F32s(vec![0.0; TOKENS.len()])),
        pair("token_type", Meta::I32s(vec![2, 3, 3, 3, 3, 1, 1, 1, 1, 1])),
    ];
    let gguf = Gguf::from_bytes(Bytes::new(writer::metadata_only(&pairs)), "x").unwrap();
    Tokenizer::from_gguf(&gguf, &|_| {}).unwrap().unwrap()
}

/// The text and calls in the events of an output with these tokens, and the finish reason.
fn told(output: &str, stop_strings: &[&'static str]) -> (String, Vec<(String, String)>, FinishReason) {
    let tokenizer = tokenizer();
    let tools = vec![Known { name: "f".into(), ..Known::default() }];
    let parts = ReplyParts { format: format_named("mistral11"), tools, ..ReplyParts::default() };
    let stop_strings = stop_strings.iter().map(|text| (*text).into()).collect();
    let params = RequestParams { stop_strings, ..RequestParams::default() };
    let mut writer = Writer::new(&params, &[2]).unwrap();
    let control = |mark: &str| tokenizer.control_token(mark).is_some();
    writer.answer = Some(Answer::new(Reply::new(parts, &control), None));
    let mut event = Event::default();
    for written in output.split(' ') {
        let token = TOKENS.iter().position(|known| *known == written).unwrap() as u32;
        writer.push(token, false, Some(&tokenizer), &mut event).unwrap();
        if event.finish != FinishReason::None {
            break;
        }
    }
    let calls = event.calls.texts().iter().map(|call| (call.name.clone(), call.arguments.clone()));
    (event.text, calls.collect(), event.finish)
}

#[test]
fn control_tokens_begin_calls() {
    let call = [("f".to_owned(), "{}".to_owned())];
    let (text, calls, finish) = told("a a [TOOL_CALLS] f [ARGS] { } </s>", &[]);
    assert_eq!((&*text, &*calls, finish), ("aa", &call[..], FinishReason::Stop));
    // A stop string holds text back, but does not match across the marker.
    let (text, calls, finish) = told("a [TOOL_CALLS] f { } </s>", &["af", "x"]);
    assert_eq!((&*text, &*calls, finish), ("a", &call[..], FinishReason::Stop));
    // Inside a call, a stop string ends the output too.
    let (text, calls, finish) = told("a [TOOL_CALLS] f [ARGS] { } a", &["{}"]);
    assert_eq!((&*text, calls.len(), finish), ("a[TOOL_CALLS]f[ARGS]", 0, FinishReason::StopString));
    // A control token without a meaning here is left out of the text.
    let (text, calls, _) = told("a [ARGS] a <s> f </s>", &[]);
    assert_eq!((&*text, calls.len()), ("aaf", 0));
}

#[test]
fn only_control_tokens_are_found_by_their_texts() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.control_token("[ARGS]"), Some(4));
    assert_eq!(
        (tokenizer.control_token("f"), tokenizer.control_token("[ARGS]x"), tokenizer.control_token("")),
        (None, None, None)
    );
}
