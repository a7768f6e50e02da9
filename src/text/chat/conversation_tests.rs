use super::conversation::{Chat, ToolChoice};
use super::*;

fn refused(source: &str) -> String {
    let error = Chat::parse(source).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument, "{error}");
    error.message
}

#[test]
fn mistakes_are_named_by_their_place() {
    let call = |call: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "a"}}, {{"role": "assistant", "tool_calls": [{call}]}}]}}"#
        )
    };
    let tool = |tool: &str, more: &str| format!(r#"{{"messages": [], "tools": [{tool}]{more}}}"#);
    let f = r#"{"type": "function", "function": {"name": "f"}}"#;
    for (source, message) in [
        ("[]".to_owned(), "chat.json must be an object, not a list"),
        ("{".to_owned(), "chat.json: EOF while parsing an object at line 1 column 1"),
        ("{}".to_owned(), "chat.json: messages: is missing"),
        (r#"{"messages": null}"#.to_owned(), "chat.json: messages: is missing"),
        (r#"{"messages": {}}"#.to_owned(), "chat.json: messages: must be a list, not an object"),
        (r#"{"messages": [1]}"#.to_owned(), "chat.json: messages[0]: must be an object, not a number"),
        (r#"{"messages": [{"content": "a"}]}"#.to_owned(), "chat.json: messages[0].role: is missing"),
        (
            r#"{"messages": [{"role": 5}]}"#.to_owned(),
            "chat.json: messages[0].role: must be a text, not a number",
        ),
        (
            r#"{"messages": [{"role": "user", "content": 5}]}"#.to_owned(),
            "chat.json: messages[0].content: must be a text or a list of parts, not a number",
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#.to_owned(),
            "chat.json: messages[0].content[0].image_url: is missing",
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "text"}]}]}"#.to_owned(),
            "chat.json: messages[0].content[0].text: is missing",
        ),
        (call("5"), "chat.json: messages[1].tool_calls[0]: must be an object, not a number"),
        (call(r#"{"id": 1}"#), "chat.json: messages[1].tool_calls[0].id: must be a text, not a number"),
        (call(r#"{"type": "custom"}"#), "chat.json: messages[1].tool_calls[0].type: must be function"),
        (call("{}"), "chat.json: messages[1].tool_calls[0].function: must be an object"),
        (call(r#"{"function": {}}"#), "chat.json: messages[1].tool_calls[0].function.name: is missing"),
        (
            call(r#"{"function": {"name": "f", "arguments": "[1]"}}"#),
            "chat.json: messages[1].tool_calls[0].function.arguments: must be an object or the JSON of one",
        ),
        (
            call(r#"{"function": {"name": "f", "arguments": "{a"}}"#),
            "chat.json: messages[1].tool_calls[0].function.arguments: key must be a string at line 1 column 2",
        ),
        (tool("5", ""), "chat.json: tools[0]: must be an object, not a number"),
        (tool(r#"{"type": "web_search"}"#, ""), "chat.json: tools[0].type: must be function"),
        (tool(r#"{"function": {}}"#, ""), "chat.json: tools[0].function.name: is missing"),
        (
            tool(r#"{"function": {"name": "a b"}}"#, ""),
            "chat.json: tools[0].function.name: must be 1 to 128 letters, digits or any of _-.:/",
        ),
        (tool(&format!("{f}, {f}"), ""), "chat.json: tools[1].function.name: f is there twice"),
        (
            tool(r#"{"function": {"name": "f", "parameters": []}}"#, ""),
            "chat.json: tools[0].function.parameters: must be an object, not a list",
        ),
        (
            tool(r#"{"function": {"name": "f", "strict": 1}}"#, ""),
            "chat.json: tools[0].function.strict: must be true or false, not a number",
        ),
        (
            tool(f, r#", "tool_choice": "f""#),
            "chat.json: tool_choice: must be none, auto, required or a function",
        ),
        (tool(f, r#", "tool_choice": {}"#), "chat.json: tool_choice.function.name: must be a text"),
        (
            tool(f, r#", "tool_choice": {"function": {"name": "g"}}"#),
            "chat.json: tool_choice: asks for a call, and tools has no such function",
        ),
        (
            tool("", r#", "tool_choice": "required""#),
            "chat.json: tool_choice: asks for a call, and tools has no such function",
        ),
        (tool("", r#", "documents": ["x"]"#), "chat.json: documents[0]: must be an object, not a text"),
        (tool("", r#", "extra": 1"#), "chat.json: extra: is no field of a chat"),
        (
            tool("", r#", "chat_template_kwargs": {"bos_token": "x"}"#),
            "chat.json: chat_template_kwargs.bos_token: is set by other means",
        ),
        (
            tool("", r#", "continue_final_message": true"#),
            "chat.json: continue_final_message: the last message has no content to go on with",
        ),
        (
            tool("", r#", "continue_final_message": true, "add_generation_prompt": true"#),
            "chat.json: continue_final_message: add_generation_prompt would begin another message",
        ),
    ] {
        assert_eq!(refused(&source), message, "{source}");
    }
}

#[test]
fn choices_are_read() {
    let f = r#"{"type": "function", "function": {"name": "f"}}"#;
    let choice = |tools: &str, choice: &str| {
        let source = format!(r#"{{"messages": [], "tools": [{tools}], "tool_choice": {choice}}}"#);
        Chat::parse(&source).unwrap().choice
    };
    assert_eq!(choice("", "null"), ToolChoice::None);
    assert_eq!(choice("", "\"auto\""), ToolChoice::None);
    assert_eq!(choice(f, "null"), ToolChoice::Auto);
    assert_eq!(choice(f, "\"none\""), ToolChoice::None);
    assert_eq!(choice(f, "\"required\""), ToolChoice::Required);
    let named = r#"{"type": "function", "function": {"name": "f"}}"#;
    assert_eq!(choice(f, named), ToolChoice::Named("f".into()));
}

#[test]
fn sizes_are_bounded() {
    let status = |source: &str| Chat::parse(source).unwrap_err().status;
    assert_eq!(status(&" ".repeat(MAX_INPUT + 1)), Status::TooLong);
    let many = r#"{"role":"user"},"#.repeat(MAX_MESSAGES) + r#"{"role":"user"}"#;
    assert_eq!(status(&format!(r#"{{"messages": [{many}]}}"#)), Status::TooLong);
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    assert!(refused(&format!(r#"{{"messages": {deep}}}"#)).contains("nested"));
}

/// The shortest text of a value must not cost more work than its share of the budget.
#[test]
fn values_pay_for_themselves() {
    let source =
        "{% for m in messages %}{{ m.x | tojson }}{{ m.x == messages[0].x }}{% endfor %}{{ tools | tojson }}";
    let template = ChatTemplate::new(source, Vec::new()).unwrap();
    for x in ["[1]", "{}", "[]", "\"\"", "{\"a\":\"b\"}", "[[[[[[1]]]]]]"] {
        let list = vec![x; 100_000].join(",");
        let chat = format!(r#"{{"messages": [{{"role": "user", "x": [{list}]}}]}}"#);
        let made = template.render_chat(&Chat::parse(&chat).unwrap());
        assert!(made.is_ok(), "{x}: {:?}", made.err());
    }
}

#[test]
fn tools_are_described_to_templates_that_know_none() {
    let source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    let strict =
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}".to_owned() + source;
    let chat = r#"{"messages": [{"role": "user", "content": "Q"},
        {"role": "assistant", "content": "Hm.", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "content": "r1"}, {"role": "tool", "content": "r2"}, {"role": "assistant", "content": "A"}],
        "tools": [{"type": "function", "function": {"name": "f"}}]}"#;
    let chat = Chat::parse(chat).unwrap();
    let render = |source: &str| ChatTemplate::new(source, Vec::new()).unwrap().render_chat(&chat).unwrap();
    let rest = "[assistant]Hm.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>[user]<tool_response>\nr1\n\
                </tool_response>\n<tool_response>\nr2\n</tool_response>[assistant]A";
    let made = render(source);
    let tool = r#"{"type":"function","function":{"name":"f"}}"#;
    assert!(made.text.starts_with("[system]# Tools\n") && made.text.contains(tool), "{}", made.text);
    assert!(made.text.ends_with(&format!("tags.[user]Q{rest}")), "{}", made.text);
    let own: String = made.own_parts().unwrap().into_iter().map(|(_, part)| part).collect();
    assert_eq!(
        own, "[system][user][assistant][user][assistant]",
        "what describes tools is no control token either"
    );
    let made = render(&strict);
    assert!(
        made.text.starts_with("[user]# Tools\n") && made.text.ends_with(&format!("tags.\n\nQ{rest}")),
        "{}",
        made.text
    );
}
