//! Converts items of the Responses API to messages. Consecutive items of the assistant become one message.
use super::tools::Namespaces;
use crate::failure::{Failure, Result};
use crate::request::conversation::{Content, Message, Role, ToolCall};
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

/// Adds items to a conversation.
pub struct Items<'a> {
    messages: &'a mut Vec<Message>,
    namespaces: &'a Namespaces,
    /// The last message is the assistant's, and the assistant's next item is added to it.
    open: bool,
}

fn text_in<'a>(item: &'a Object, name: &str) -> Option<&'a str> {
    item.get(name).and_then(Value::as_str)
}

impl<'a> Items<'a> {
    pub fn new(messages: &'a mut Vec<Message>, namespaces: &'a Namespaces) -> Self {
        Self { messages, namespaces, open: false }
    }

    /// Adds the items at `at` in the body: a list, or the user's text.
    pub fn add(&mut self, items: &Value, at: &str) -> Result<()> {
        match items {
            Value::String(text) => self.messages.push(Message::new(Role::User, text.clone())),
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.add_item(item, &format!("{at}[{i}]"))?;
                }
            }
            _ => return Err(Failure::invalid(format!("'{at}' must be a text or a list of items"))),
        }
        Ok(())
    }

    /// Adds an item. Items that are neither text, reasoning nor calls are left out: references to items that are not
    /// kept, and actions of OpenAI's servers.
    fn add_item(&mut self, item: &Value, at: &str) -> Result<()> {
        let item = item.as_object().ok_or_else(|| Failure::invalid(format!("'{at}' must be an object")))?;
        match text_in(item, "type").unwrap_or("message") {
            "message" => self.said(item, at),
            "reasoning" => self.thought(item, at),
            "additional_tools" => Ok(()), // `tools::add_of_items` has taken them
            "tool_search_output" => {
                self.result(item, Some(&found_tools(item)), at);
                Ok(())
            }
            kind if kind.ends_with("_call_output") => {
                self.result(item, item.get("output"), at);
                Ok(())
            }
            kind @ ("function_call" | "mcp_call") => self.called(item, kind, at),
            kind if kind.ends_with("_call") && item.contains_key("call_id") => self.called(item, kind, at),
            _ if item.contains_key("role") => self.said(item, at),
            _ => Ok(()),
        }
    }

    /// The assistant's open message, or a new one.
    fn turn(&mut self) -> &mut Message {
        if !std::mem::replace(&mut self.open, true) {
            self.messages.push(Message::new(Role::Assistant, None));
        }
        let at = self.messages.len() - 1;
        &mut self.messages[at]
    }

    fn said(&mut self, item: &Object, at: &str) -> Result<()> {
        let role = text_in(item, "role").and_then(Role::named).ok_or_else(|| {
            Failure::invalid(format!("'{at}.role' must be system, developer, user or assistant"))
        })?;
        let said = Content::of(role, item.get("content"), &format!("{at}.content"))?;
        if role != Role::Assistant {
            self.open = false;
            let mut message = said.message(role);
            message.call_id = text_in(item, "tool_call_id").map(str::to_owned);
            self.messages.push(message);
            return Ok(());
        }
        let message = self.turn();
        let content = message.content.get_or_insert_default();
        if !content.is_empty() && !content.ends_with('\n') && !said.text.is_empty() {
            content.push_str("\n");
        }
        content.extend(&said.text);
        if let Some(thought) = said.reasoning {
            think(message, &thought);
        }
        Ok(())
    }

    /// Reasoning. A summary is not the model's own reasoning, and encrypted content cannot be read.
    fn thought(&mut self, item: &Object, at: &str) -> Result<()> {
        let content = Content::read(item.get("content"), &format!("{at}.content"))?;
        if !content.text.is_empty() {
            think(self.turn(), &content.text);
        }
        Ok(())
    }

    fn called(&mut self, item: &Object, kind: &str, at: &str) -> Result<()> {
        let id = text_in(item, "call_id").or(text_in(item, "id")).map(str::to_owned);
        let name = text_in(item, "name").unwrap_or_else(|| kind.trim_end_matches("_call"));
        let shown = self.namespaces.shown(text_in(item, "namespace"), name).to_owned();
        let freely = item.get("input").map(|input| json!({ "input": input }));
        let given = ["arguments", "action", "operation"].iter().find_map(|name| item.get(*name));
        self.turn().calls.push(ToolCall::new(id, Some(&shown), given.or(freely.as_ref())));
        if kind == "mcp_call" {
            // The result of the call is in the same item.
            let output = ["output", "error"].iter().find_map(|name| item.get(*name).filter(|v| !v.is_null()));
            self.result(item, output, at);
        }
        Ok(())
    }

    fn result(&mut self, item: &Object, output: Option<&Value>, at: &str) {
        self.open = false;
        let call_id = text_in(item, "call_id").or(text_in(item, "id")).map(str::to_owned);
        self.messages.push(Message { call_id, ..Content::result(output, at).message(Role::Tool) });
    }
}

/// The result of a search for tools, in words.
fn found_tools(item: &Object) -> Value {
    let tools = item.get("tools").and_then(Value::as_array).into_iter().flatten();
    tools.map(|tool| json!({"type": "tool_reference", "tool_name": tool.get("name")})).collect()
}

fn think(message: &mut Message, text: &str) {
    let mut content = Content { reasoning: message.reasoning.take(), ..Content::default() };
    content.think(text);
    message.reasoning = content.reasoning;
}
