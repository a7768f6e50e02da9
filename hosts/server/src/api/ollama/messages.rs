//! A conversation in Ollama's form.
use crate::failure::{Failure, Result};
use crate::request::conversation::{Content, Conversation, Message, Role, ToolCall};
use crate::request::passage::Passage;
use crate::request::picture;
use crate::request::tools::{OPENAI, Tools};
use serde_json::{Map, Value};
use std::collections::VecDeque;

/// Calls that wait for their results.
#[derive(Default)]
struct Calls {
    made: usize,
    /// Ids and names of calls.
    open: VecDeque<(String, String)>,
}

impl Calls {
    /// Adds a call. Ollama's calls often have no ids, and some templates require nine letters and digits.
    fn add(&mut self, id: Option<&str>, name: &str) -> String {
        let id = id.map_or_else(|| format!("call{:05}", self.made % 100_000), str::to_owned);
        self.made += 1;
        self.open.push_back((id.clone(), name.to_owned()));
        id
    }

    /// The call of a result that names its id or its tool, or the next one.
    fn answered(&mut self, id: Option<&str>, name: Option<&str>) -> Option<String> {
        let by_id = id.and_then(|id| self.open.iter().position(|(own, _)| own == id));
        let by_name = || name.and_then(|name| self.open.iter().position(|(_, own)| own == name));
        let call = self.open.remove(by_id.or_else(by_name).unwrap_or(0));
        id.map(str::to_owned).or(call.map(|(id, _)| id))
    }
}

/// Reads messages and tools.
pub fn conversation(messages: &[Value], tools: &[Map<String, Value>]) -> Result<Conversation> {
    let (mut conversation, mut calls) = (Conversation::default(), Calls::default());
    for (i, message) in messages.iter().enumerate() {
        conversation.messages.push(read(message, &format!("messages[{i}]"), &mut calls)?);
    }
    Tools::read(tools, OPENAI)?.give(&mut conversation, None)?;
    Ok(conversation)
}

fn read(message: &Value, at: &str, calls: &mut Calls) -> Result<Message> {
    let text = |name: &str| message.get(name).and_then(Value::as_str);
    let role = text("role").and_then(Role::named);
    let role = role.ok_or_else(|| {
        Failure::invalid(format!("'{at}' needs the 'role' system, user, assistant or tool"))
    })?;
    let said = Content::of(role, message.get("content"), &format!("{at}.content"))?;
    let mut content = Content { text: Passage::default(), ..said };
    let images = match message.get("images") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(images)) => images,
        Some(_) => return Err(Failure::invalid(format!("'{at}.images' must be a list"))),
    };
    show(&mut content, images, &format!("{at}.images"));
    content.text.extend(&said.text);
    let mut made = content.message(role);
    if role == Role::Tool {
        made.unseen = None; // a result cannot be changed by the client
        made.name = text("tool_name").or(text("name")).map(str::to_owned);
        made.call_id = calls.answered(text("tool_call_id"), made.name.as_deref());
    }
    made.reasoning = text("thinking").map(str::to_owned).or(made.reasoning);
    for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
        let function = call.get("function").unwrap_or(call);
        let name = function.get("name").and_then(Value::as_str);
        let mut read = ToolCall::new(None, name, function.get("arguments"));
        read.id = Some(calls.add(call.get("id").and_then(Value::as_str), &read.function.name));
        made.calls.push(read);
    }
    Ok(made)
}

/// Adds pictures, which Ollama has in front of the text.
pub fn show(content: &mut Content, images: &[Value], at: &str) {
    for (i, image) in images.iter().enumerate() {
        content.show(picture::of_text(image.as_str(), format!("{at}[{i}]")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pictures_come_first() {
        let message = json!({"role": "user", "content": "see", "images": ["YWJj", "data:;base64,YWJj"]});
        let read = conversation(&[message], &[]).unwrap().messages;
        let image = json!({"type": "image"});
        assert_eq!(json!(read[0].content), json!([image, image, {"type": "text", "text": "see"}]));
        assert_eq!(read[0].content.as_ref().unwrap().pictures().count(), 2);
    }

    #[test]
    fn pictures_are_a_list() {
        let message = json!({"role": "user", "content": "see", "images": "YWJj"});
        let refused = conversation(&[message], &[]).err().unwrap();
        assert!(refused.message.contains("'messages[0].images' must be a list"), "{}", refused.message);
    }

    #[test]
    fn results_belong_to_their_calls() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": "Ro"}});
        let messages = [
            json!({"role": "assistant", "content": null, "tool_calls": [call("a"), call("b"), call("a")]}),
            json!({"role": "tool", "tool_name": "b", "content": "1"}),
            json!({"role": "tool", "content": "2"}),
            json!({"role": "tool", "tool_call_id": "call00002", "content": "3"}),
            json!({"role": "tool", "content": "4"}),
        ];
        let read = conversation(&messages, &[]).unwrap().messages;
        let ids: Vec<_> = read[0].calls.iter().map(|call| call.id.clone().unwrap()).collect();
        assert_eq!(ids, ["call00000", "call00001", "call00002"]);
        let of: Vec<_> = read[1..].iter().map(|message| message.call_id.as_deref()).collect();
        assert_eq!(of, [Some("call00001"), Some("call00000"), Some("call00002"), None]);
    }
}
