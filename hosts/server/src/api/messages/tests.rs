use super::answer::block;
use super::fields::Asked;
use crate::api::pieces::{Kind, Piece};
use crate::fields::Fields;
use crate::request::picture::Sight;
use crate::request::roles::Manners;
use serde_json::{Value, json};

/// The words of a picture whose bytes are "abc".
const SEEN: &str = "YWJj";

fn asked(body: Value) -> Result<Asked, String> {
    let mut fields = Fields::new(body.as_object().unwrap().clone());
    let asked = Asked::take(&mut fields).map_err(|failure| failure.message)?;
    assert_eq!(fields.unknown().count(), 0);
    Ok(asked)
}

/// The engine's JSON of a conversation.
fn chat(body: Value) -> Value {
    let mut conversation = asked(body).unwrap().conversation;
    conversation.arrange(Manners::default(), Sight::Refuses).unwrap();
    json!(conversation)
}

fn messages(messages: Value) -> Value {
    chat(json!({ "messages": messages }))["messages"].clone()
}

fn call(id: &str, arguments: Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}})
}

#[test]
fn blocks_become_messages() {
    let given = json!([
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "x", "signature": ""}, {"type": "redacted_thinking", "data": "?"},
            {"type": "thinking", "thinking": "y", "signature": ""}, {"type": "text", "text": "b", "citations": null},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"n": 1}, "caller": {"type": "direct"}},
            {"type": "tool_use", "id": "t2", "name": "f", "input": null}, {"type": "text", "text": "c"}]},
        {"role": "user", "content": [
            {"type": "text", "text": "d"}, {"type": "tool_result", "tool_use_id": "t1", "content": "21"},
            {"type": "tool_result", "tool_use_id": "t2", "is_error": true,
             "content": [{"type": "text", "text": "2"}, {"type": "text", "text": "5"}]}]},
    ]);
    let wanted = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b\nc", "reasoning_content": "x\ny",
         "tool_calls": [call("t1", json!({"n": 1})), call("t2", json!({}))]},
        {"role": "tool", "content": "21", "tool_call_id": "t1"},
        {"role": "tool", "content": "25", "tool_call_id": "t2"},
        {"role": "user", "content": "d"},
    ]);
    assert_eq!(messages(given), wanted);
}

#[test]
fn what_servers_did_is_left_out() {
    let given = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
            {"type": "mcp_tool_use", "id": "m1", "name": "f", "server_name": "x", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "m1", "content": [{"type": "text", "text": "r"}]},
            {"type": "text", "text": "b"}]},
        {"role": "user", "content": []},
        {"role": "assistant"},
        {"role": "user", "content": null},
    ]);
    let wanted = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "tool_calls": [call("m1", json!({}))]},
        {"role": "tool", "content": "r", "tool_call_id": "m1"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ""},
    ]);
    assert_eq!(messages(given), wanted);
}

#[test]
fn pictures_are_refused_in_the_last_turn() {
    let picture = json!({"type": "image", "source": {"type": "url", "url": "x"}});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [picture]});
    let said = json!({"role": "user", "content": [{"type": "text", "text": "a"}, picture]});
    let mut refused = asked(json!({"messages": [said]})).unwrap();
    let error = refused.conversation.arrange(Manners::default(), Sight::Refuses).unwrap_err().message;
    assert!(error.starts_with("'messages[0].content[1]' is of the type image"), "{error}");
    let shown = messages(json!([{"role": "user", "content": [result]}]));
    assert_eq!(shown[0]["content"], "[image: not shown, as this model reads text only]\n");
    let mut left_out = asked(json!({"messages": [said]})).unwrap().conversation;
    left_out.arrange(Manners::default(), Sight::LeavesOut).unwrap();
    let content = "a\n[image: not shown, as this model reads text only]\n";
    assert_eq!(json!(left_out)["messages"][0]["content"], content);
}

#[test]
fn pictures_keep_their_places_for_a_model_that_sees() {
    let picture =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": SEEN}});
    let text = |text: &str| json!({"type": "text", "text": text});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [text("shot"), picture]});
    let gone = json!({"type": "image", "source": {"type": "url", "url": "https://a.example/x"}});
    let body = json!({"messages": [
        {"role": "user", "content": [picture, text("a"), gone]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [result, text("b"), picture, text("c")]},
    ]});
    let mut conversation = asked(body).unwrap().conversation;
    conversation.arrange(Manners::default(), Sight::Sees).unwrap();
    let messages = json!(conversation)["messages"].clone();
    let image = json!({"type": "image"});
    let unread = text("a\n[image: not shown, as this server cannot read it]\n");
    assert_eq!(messages[0]["content"], json!([image, unread]));
    assert_eq!(messages[2]["content"], json!([text("shot"), image]));
    assert_eq!(messages[3]["content"], json!([text("b"), image, text("c")]));
    let contents = conversation.messages.iter().filter_map(|message| message.content.as_ref());
    assert_eq!(contents.flat_map(|content| content.pictures()).count(), 3);
}

#[test]
fn tools_of_servers_are_left_out() {
    let tools = json!([{"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        {"type": "custom", "name": "f", "input_schema": {"type": "object"}, "defer_loading": true}]);
    let with = |choice: Value| {
        chat(json!({"messages": [{"role": "user", "content": "a"}], "tools": tools, "tool_choice": choice}))
    };
    let made = with(json!({"type": "tool", "name": "web_search", "disable_parallel_tool_use": true}));
    let function = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    assert_eq!(made["tools"], json!([function]));
    assert_eq!((&made["tool_choice"], &made["parallel_tool_calls"]), (&json!("auto"), &json!(false)));
    assert_eq!(with(json!({"type": "any"}))["tool_choice"], "required");
    let choice = with(json!({"type": "tool", "name": "f"}))["tool_choice"].clone();
    assert_eq!(choice, json!({"type": "function", "function": {"name": "f"}}));
}

#[test]
fn thinking_and_efforts() {
    let variables = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        chat(body)["chat_template_kwargs"].clone()
    };
    let on = json!({"enable_thinking": true, "reasoning_effort": "high"});
    let effort = json!({"effort": "max", "task_budget": {"type": "tokens", "total": 9}});
    assert_eq!(variables(json!({"thinking": {"type": "adaptive"}, "output_config": effort})), on);
    assert_eq!(variables(json!({"output_config": effort})), json!({"reasoning_effort": "high"}));
    let off = json!({"enable_thinking": false});
    assert_eq!(variables(json!({"thinking": {"type": "disabled"}, "output_config": effort})), off);
    assert_eq!(variables(json!({"betas": ["x"], "context_management": {"edits": []}})), Value::Null);
    let thinking = json!({"type": "enabled", "budget_tokens": 1024, "display": "omitted"});
    let asked = asked(json!({"messages": [{"role": "user", "content": "a"}], "thinking": thinking})).unwrap();
    assert_eq!((asked.budget, asked.hides_thinking), (Some(1024), true));
}

#[test]
fn mistakes_are_told_by_their_places() {
    let said = json!([{"role": "user", "content": "a"}]);
    for (body, words) in [
        (json!({}), "'messages' is missing"),
        (json!({"messages": []}), "'messages' must be a list of messages that is not empty"),
        (json!({"messages": [{"role": "critic"}]}), "'messages[0].role' must be user, assistant or system"),
        (
            json!({"messages": [{"role": "user", "content": 5}]}),
            "'messages[0].content' must be a text or a list of parts",
        ),
        (
            json!({"messages": said, "thinking": {"type": "hard"}}),
            "'thinking.type' must be enabled, adaptive, between_tools or disabled",
        ),
        (
            json!({"messages": said, "tool_choice": {"type": "some"}}),
            "'tool_choice.type' must be auto, any, tool or none",
        ),
        (
            json!({"messages": said, "tools": [{"name": "f f"}]}),
            "'tools[0].name' must be 1 to 128 letters, digits or any of _-.:/",
        ),
        (
            json!({"messages": said, "output_config": {"format": {"type": "xml"}}}),
            "'output_config.format' must have the type 'text', 'json_object' or 'json_schema'",
        ),
        (
            json!({"messages": said, "thread": {"id": "x"}}),
            "'thread' is not supported: send the whole conversation",
        ),
    ] {
        assert_eq!(asked(body).err().as_deref(), Some(words));
    }
}

#[test]
fn blocks_of_an_answer() {
    let called = |input: &str| {
        let kind = Kind::Call { id: "t".to_owned(), name: "f".to_owned() };
        block(&Piece { index: 0, kind, text: input.to_owned() })
    };
    let use_of = |input: Value| json!({"type": "tool_use", "id": "t", "name": "f", "input": input});
    assert_eq!(called(r#"{"a": 1}"#), use_of(json!({"a": 1})));
    for cut in ["", r#"{"a": "b"#, "[1]"] {
        assert_eq!(called(cut), use_of(json!({})));
    }
}
