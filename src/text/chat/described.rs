//! Describes tools in words for templates that know none, in the style of Hermes, whose format the answer then
//! has.

use super::conversation::Chat;
use super::parts::text_part;
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
        let is_result = field(fields, "role").and_then(Json::as_str) == Some("tool");
        if is_result {
            let result = around("<tool_response>\n", content(fields), "\n</tool_response>");
            match made.last_mut().filter(|_| results) {
                Some(Json::Map(last)) => change(last, |known| joined(known, "\n", result)),
                _ => made.push(say("user", result)),
            }
        } else {
            made.push(Json::Map(with_calls(fields)));
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
            change(first, |known| match role {
                "user" => around(&format!("{tools}\n\n"), known, ""),
                _ => around("", known, &format!("\n\n{tools}")),
            });
        }
        _ => made.insert(0, say(role, Json::Text(tools))),
    }
    made
}

fn say(role: &str, content: Json) -> Json {
    Json::Map(vec![("role".into(), Json::Text(role.into())), ("content".into(), content)])
}

/// A message's content: a text, or parts.
fn content(fields: &Fields) -> Json {
    field(fields, "content").cloned().unwrap_or_else(|| Json::Text(String::new()))
}

/// Changes the content.
fn change(fields: &mut Fields, change: impl FnOnce(Json) -> Json) {
    let made = change(content(fields));
    match fields.iter_mut().rfind(|(name, _)| name == "content") {
        Some((_, value)) => *value = made,
        None => fields.push(("content".into(), made)),
    }
}

/// A content between two texts.
fn around(before: &str, content: Json, after: &str) -> Json {
    match content {
        Json::List(parts) => {
            let side = |text: &str| (!text.is_empty()).then(|| text_part(text.to_owned()));
            Json::List(side(before).into_iter().chain(parts).chain(side(after)).collect())
        }
        text => Json::Text(format!("{before}{}{after}", text.as_str().unwrap_or_default())),
    }
}

/// Two contents, with a text between them.
fn joined(first: Json, between: &str, second: Json) -> Json {
    match (first, second) {
        (Json::Text(first), Json::Text(second)) => Json::Text(format!("{first}{between}{second}")),
        (first, second) => {
            let parts = |content| match content {
                Json::List(parts) => parts,
                text => vec![text_part(text.as_str().unwrap_or_default().to_owned())],
            };
            let second = parts(around(between, second, ""));
            Json::List(parts(first).into_iter().chain(second).collect())
        }
    }
}

/// A message with its calls as part of its content.
fn with_calls(fields: &Fields) -> Fields {
    let mut kept: Fields = fields.iter().filter(|(name, _)| name != "tool_calls").cloned().collect();
    let Some(Json::List(calls)) = field(fields, "tool_calls") else { return kept };
    for call in calls {
        let part = |name| call.get("function").and_then(|function| function.get(name));
        let name = part("name").unwrap_or(&Json::Null);
        let arguments = part("arguments").unwrap_or(&Json::Null);
        let call = format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>");
        change(&mut kept, |known| {
            let between = if known == Json::Text(String::new()) { "" } else { "\n" };
            joined(known, between, Json::Text(call))
        });
    }
    kept
}
