use super::answer::{COMPLETED, item};
use super::fields::Own;
use super::tools::Namespaces;
use crate::api::pieces::{Kind, Piece};
use crate::fields::Fields;
use crate::memory::Memory;
use crate::request::picture::Sight;
use crate::request::roles::Manners;
use serde_json::{Value, json};

/// The engine's JSON of a conversation.
fn made(body: Value) -> (Value, Namespaces) {
    let mut fields = Fields::new(body.as_object().unwrap().clone());
    let own = Own::take(&mut fields).unwrap();
    let mut lease = Memory::new(1 << 20).lease();
    let (mut conversation, namespaces) = own.conversation(&mut fields, None, &mut lease).unwrap();
    assert_eq!(fields.unknown().count(), 0);
    conversation.arrange(Manners::default(), Sight::Sees).unwrap();
    (json!(conversation), namespaces)
}

fn chat(body: Value) -> Value {
    made(body).0
}

fn messages(input: Value) -> Value {
    chat(json!({ "input": input }))["messages"].clone()
}

fn call(id: &str, name: &str, arguments: Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

#[test]
fn items_of_the_assistant_are_one_message() {
    let given = json!([
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "x"}]},
        {"type": "message", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"n\": 1}", "namespace": null},
        {"role": "assistant", "content": "c"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "2"}, {"type": "output_text", "text": "5"}]},
        {"role": "assistant", "content": "d"},
    ]);
    let wanted = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b\nc", "reasoning_content": "x", "tool_calls": [call("c1", "f", json!({"n": 1}))]},
        {"role": "tool", "content": "25", "tool_call_id": "c1"},
        {"role": "assistant", "content": "d"},
    ]);
    assert_eq!(messages(given), wanted);
}

#[test]
fn items_of_servers_and_of_other_tools() {
    let given = json!([
        {"role": "user", "content": "a"},
        {"type": "reasoning", "summary": [], "content": null, "encrypted_content": "?"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "item_reference", "id": "msg_1"},
        {"type": "compaction", "encrypted_content": "?"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
        {"type": "local_shell_call", "call_id": "c2", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "c2", "output": [{"stdout": "x"}]},
        {"type": "mcp_call", "id": "c3", "name": "f", "arguments": "{", "output": null, "error": "e"},
        {"type": "function_call", "call_id": null, "name": null, "arguments": null},
    ]);
    let wanted = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "tool_calls": [call("c1", "apply_patch", json!({"input": "x"}))]},
        {"role": "tool", "content": "done", "tool_call_id": "c1"},
        {"role": "assistant", "content": null, "tool_calls": [call("c2", "local_shell", json!({"type": "exec", "command": ["ls"]}))]},
        {"role": "tool", "content": "[{\"stdout\":\"x\"}]", "tool_call_id": "c2"},
        {"role": "assistant", "content": null, "tool_calls": [call("c3", "f", json!({"invalid_json": "{"}))]},
        {"role": "tool", "content": "e", "tool_call_id": "c3"},
        {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "function", "arguments": {}}}]},
    ]);
    assert_eq!(messages(given), wanted);
}

#[test]
fn there_is_always_something_to_answer() {
    assert_eq!(messages(json!([])), json!([{"role": "user", "content": ""}]));
    let probe = chat(json!({"instructions": "x", "input": []}));
    assert_eq!(
        probe["messages"],
        json!([{"role": "system", "content": "x"}, {"role": "user", "content": ""}])
    );
}

#[test]
fn functions_of_namespaces_are_taken() {
    let function = |name: &str| json!({"type": "function", "name": name, "parameters": null, "strict": null});
    let tools = json!([{"type": "web_search"}, {"type": "namespace", "name": "files", "tools": [function("read"), function("f")]},
        {"type": "custom", "name": "patch"}, function("f")]);
    let input = json!([{"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "c", "namespace": "files", "name": "f", "arguments": "{}"}]);
    let ask = |choice: Value| made(json!({"input": input, "tools": tools, "tool_choice": choice}));
    let (chat, namespaces) = ask(json!({"type": "custom", "name": "patch"}));
    let names: Vec<_> =
        chat["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names, ["f", "read", "files__f"]);
    assert_eq!(chat["tool_choice"], "auto");
    assert_eq!(chat["messages"][1]["tool_calls"][0]["function"]["name"], "files__f");
    let called = |name: &str| {
        let kind = Kind::Call { id: "c".to_owned(), name: name.to_owned() };
        let piece = Piece { index: 0, kind, text: "{}".to_owned() };
        item("fc_1", &piece, COMPLETED, &namespaces)
    };
    let made = json!({"type": "function_call", "id": "fc_1", "call_id": "c", "namespace": "files", "name": "f", "arguments": "{}", "status": "completed"});
    assert_eq!(called("files__f"), made);
    assert_eq!((called("f").get("namespace"), &called("f")["name"]), (None, &json!("f")));
    let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [function("read"), {"type": "web_search"}]});
    let (chat, _) = ask(allowed);
    assert_eq!((chat["tools"].as_array().unwrap().len(), &chat["tool_choice"]), (1, &json!("required")));
}

#[test]
fn pictures_of_users_and_of_results_are_shown() {
    let url = "data:image/png;base64,YWJj";
    let given = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": url}]},
        {"type": "computer_call", "call_id": "c", "action": {"type": "screenshot"}},
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": url}},
        {"type": "function_call", "call_id": "f", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "f", "output": [
            {"type": "input_text", "text": "b"}, {"type": "input_image", "image_url": url}]},
    ]);
    let messages = messages(given);
    let (text, image) = (|text: &str| json!({"type": "text", "text": text}), json!({"type": "image"}));
    assert_eq!(messages[0]["content"], json!([text("a"), image]));
    assert_eq!(messages[2]["content"], json!([image]));
    assert_eq!(messages[4]["content"], json!([text("b"), image]));
}
