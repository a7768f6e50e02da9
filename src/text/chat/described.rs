//! Describes tools in words for templates that know none, in the style of Hermes, whose format the answer then
//! has.

use super::conversation::Chat;
use crate::text::json::{Fields, Json, field};

const HEAD: &str = "# Tools\n\nYou may call functions to answer. Each line between the <tools> tags describes one, with a JSON schema of its \
     parameters:\n<tools>\n";
const TAIL: &str = "</tools>\n\nTo call functions, write one such block for each call, and nothing after the last one:\n<tool_call>\n\
     {\"name\": \"the function's name\", \"arguments\": {\"a parameter\": \"its value\"}}\n</tool_call>\n\n\
     The results then come between <tool_response> tags.";

/// The messages of `chat`, with tools, calls and results as texts. The tools go to the first message if its role
/// is `role`, or else to a new message.
pub(super) fn described(chat: &Chat, role: &str) -> Vec<Json> {
    let mut made: Vec<Json> = Vec::new();
    let mut results = false;
    for message in &chat.messages {
        let Json::Map(fields) = message else { continue };
        let content = field(fields, "content").and_then(Json::as_str).unwrap_or_default();
        let is_result = field(fields, "role").and_then(Json::as_str) == Some("tool");
        if is_result {
            let text = format!("<tool_response>\n{content}\n</tool_response>");
            match made.last_mut().filter(|_| results) {
                Some(Json::Map(last)) => set(last, "content", |known| format!("{known}\n{text}")),
                _ => made.push(say("user", text)),
            }
        } else {
            made.push(Json::Map(with_calls(fields, content)));
        }
        results = is_result;
    }
    if chat.tools.is_empty() {
        return made;
    }
    let tools: String = chat.tools.iter().map(|tool| format!("{tool}\n")).collect();
    let tools = format!("{HEAD}{tools}{TAIL}");
    match made.first_mut() {
        Some(Json::Map(first)) if field(first, "role").and_then(Json::as_str) == Some(role) => {
            // The tools come after a system message, but before a question.
            let behind = role == "user";
            set(first, "content", |known| match behind {
                true => format!("{tools}\n\n{known}"),
                false => format!("{known}\n\n{tools}"),
            });
        }
        _ => made.insert(0, say(role, tools)),
    }
    made
}

fn say(role: &str, content: String) -> Json {
    Json::Map(vec![("role".into(), Json::Text(role.into())), ("content".into(), Json::Text(content))])
}

/// Changes the last field with this name, or adds it.
fn set(fields: &mut Fields, name: &str, change: impl FnOnce(&str) -> String) {
    let text = Json::Text(change(field(fields, name).and_then(Json::as_str).unwrap_or_default()));
    match fields.iter_mut().rfind(|(n, _)| n == name) {
        Some((_, value)) => *value = text,
        None => fields.push((name.into(), text)),
    }
}

/// A message with its calls as part of its content.
fn with_calls(fields: &Fields, content: &str) -> Fields {
    let mut kept: Fields = fields.iter().filter(|(name, _)| name != "tool_calls").cloned().collect();
    if let Some(Json::List(calls)) = field(fields, "tool_calls") {
        let mut text = content.to_owned();
        for call in calls {
            let part = |name| call.get("function").and_then(|function| function.get(name));
            let name = part("name").unwrap_or(&Json::Null);
            let arguments = part("arguments").unwrap_or(&Json::Null);
            let between = if text.is_empty() { "" } else { "\n" };
            text += &format!(
                "{between}<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
            );
        }
        set(&mut kept, "content", |_| text);
    }
    kept
}
