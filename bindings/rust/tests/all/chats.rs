//! Conversations, tools and reasoning.
use crate::support::{ECHO, demo, generate, open, wants};
use bn::{Chat, ErrorKind, FinishReason, Message, Request, Sampling, Tokenize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[test]
fn the_models_template_formats_messages() {
    // 6
    const WANTED: &str = "system: Echo.\nuser: hello\nassistant: ";
    let engine = open(ECHO);
    let messages = vec![Message::system("Echo."), Message::user("hello")];
    assert_eq!(generate(&engine, &Request::chat(messages.clone())).text, WANTED);
    let (model, chat) = (engine.model(), Chat::Messages(messages));
    let tokens = model.chat_tokenize(&chat).unwrap();
    assert_eq!(model.chat_format(&chat).unwrap(), WANTED);
    assert_eq!(model.detokenize(&tokens).unwrap(), WANTED);
    assert_eq!(generate(&engine, &Request::prompt(tokens)).text, WANTED);
    assert_eq!(generate(&demo(), &Request::chat(vec![Message::user("17+25=")])).text, "42");
}

#[test]
fn json_is_a_conversation_too() {
    let engine = open(ECHO);
    let model = engine.model();
    let chat = Chat::Json(json!({"messages": [{"role": "user", "content": "<a> & b"}]}).to_string());
    assert_eq!(model.chat_format(&chat).unwrap(), "user: <a> & b\nassistant: ");
    let same = Chat::from(vec![Message::user("<a> & b")]);
    assert_eq!(model.chat_tokenize(&chat).unwrap(), model.chat_tokenize(&same).unwrap());
    let long = Chat::from(vec![Message::user("x".repeat(20_000))]); // longer than the first guess
    let tokens = model.chat_tokenize(&long).unwrap();
    assert!(tokens.len() > 20_000 && model.detokenize(&tokens).unwrap() == model.chat_format(&long).unwrap());
    let wrong = Request::prompt(Chat::Json(r#"{"messages": [{}]}"#.into()));
    wants(engine.generate(&wrong), ErrorKind::InvalidArgument, "messages[0].role");
}

/// Makes the echo model, which answers with its prompt, say what a role does.
fn conversation(role: &str, content: &str) -> Value {
    json!({
        "messages": [{"role": role, "content": content}], "add_generation_prompt": false,
        "tool_format": "hermes", "reasoning_format": "think",
    })
}

fn parsed(chat: &Value) -> Request {
    Request { parse_output: true, max_new_tokens: 0, ..Request::prompt(Chat::Json(chat.to_string())) }
}

#[test]
fn reasoning_calls_and_text_are_told_apart() {
    // 12
    const CALL: &str = r#"<tool_call>{"name": "f", "arguments": {"unit": "C"}}</tool_call>"#;
    let engine = open("builtin:echo?us_per_token=20");
    let mut chat = conversation("Both", &format!("{CALL}\n{CALL}\ndone"));
    chat["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    let request = parsed(&chat);
    let whole = generate(&engine, &request);
    assert_eq!((whole.tool_calls.len(), whole.finish.tool_calls_total), (2, 2));
    assert_ne!(whole.tool_calls[0].id, whole.tool_calls[1].id);
    for call in &whole.tool_calls {
        assert_eq!(
            (call.name.as_str(), call.arguments.as_str(), call.id.len()),
            ("f", r#"{"unit": "C"}"#, 9)
        );
    }
    let mut stream = engine.submit(&request).unwrap();
    let (mut text, mut arguments, mut parts) = (String::new(), BTreeMap::<u32, String>::new(), 0);
    while let Some(event) = stream.recv() {
        text += &event.text;
        for part in event.tool_calls {
            *arguments.entry(part.index).or_default() += &part.arguments;
            parts += 1;
        }
    }
    assert_eq!(text, whole.text);
    assert!(parts >= 2 && arguments.len() == 2 && arguments.values().all(|all| all == r#"{"unit": "C"}"#));
    let streamed = engine.submit(&request).unwrap().answer();
    assert_eq!(streamed.tool_calls, whole.tool_calls);
    let before: Vec<_> = whole.tool_calls.iter().map(|call| &whole.text[..call.text_before]).collect();
    assert!(before.iter().all(|text| text.ends_with("Both: ")), "{before:?}");
    let answer = generate(&engine, &parsed(&conversation("<think>\nhm\n</think>\n\nYes", "a")));
    assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), ("hm", "Yes: a\n"));
}

#[test]
fn a_tool_is_called_where_it_must_be() {
    let engine = open(ECHO);
    let schema = json!({
        "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": false,
    });
    let mut chat = conversation("user", "Hi");
    chat["tools"] = json!([{"type": "function", "function": {"name": "f", "parameters": schema}}]);
    chat["tool_choice"] = json!("required");
    chat["parallel_tool_calls"] = json!(false);
    chat["add_generation_prompt"] = json!(true);
    chat["reasoning_format"] = json!("none");
    let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
    let answer = generate(&engine, &Request { max_new_tokens: 500, sampling, ..parsed(&chat) });
    assert_eq!((answer.tool_calls.len(), answer.finish.reason), (1, FinishReason::Stop));
    let arguments: Value = serde_json::from_str(&answer.tool_calls[0].arguments).unwrap();
    assert!(arguments["on"].is_boolean());
}

#[test]
fn reasoning_is_bounded() {
    let engine = open(ECHO);
    let chat = json!({
        "messages": [{"role": "user", "content": "x".repeat(40)}, {"role": "assistant", "content": "<think>\n"}],
        "continue_final_message": true, "reasoning_format": "think",
    });
    let request = Request { ignore_eos: true, max_new_tokens: 60, ..parsed(&chat) };
    for (most, wanted) in [(5, "user:"), (0, "")] {
        let answer = generate(&engine, &Request { max_reasoning_tokens: Some(most), ..request.clone() });
        let tokens = (wanted.len() + "</think>".len()) as u32;
        assert_eq!((answer.reasoning.as_str(), answer.finish.usage.reasoning_tokens), (wanted, tokens));
        assert!(!answer.text.is_empty());
    }
    assert_eq!(generate(&engine, &request).finish.usage.reasoning_tokens, 60);
}

#[test]
fn control_tokens_are_parsed_where_asked_for() {
    let model = demo().model();
    let end = *model.info().end_tokens.first().unwrap();
    let name = String::from_utf8(model.token_bytes(end).unwrap()).unwrap();
    let parse = Tokenize { parse_special: true, ..Tokenize::default() };
    assert_eq!(model.tokenize(&name, parse).unwrap(), [end]);
    assert!(!model.tokenize(&name, Tokenize::default()).unwrap().contains(&end));
    let begun = model.tokenize("a", Tokenize { add_special: true, ..Tokenize::default() }).unwrap();
    assert_eq!(begun.first().copied(), model.info().bos_token);
}
