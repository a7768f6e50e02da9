//! A conversation in Anthropic's form.
use crate::failure::{Failure, Result};
use crate::request::conversation::{Content, Conversation, Message, Role, ToolCall};
use crate::request::passage::Passage;
use crate::request::tools::{ANTHROPIC, Tools};
use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// Reads `system` and `messages`.
pub fn read(system: Option<&Value>, messages: &[Object]) -> Result<Conversation> {
    if messages.is_empty() {
        return Err(Failure::invalid("'messages' must be a list of messages that is not empty"));
    }
    let mut conversation = Conversation::default();
    let system = Content::read(system, "system")?;
    if !system.text.is_empty() {
        conversation.messages.push(system.message(Role::System));
    }
    for (i, message) in messages.iter().enumerate() {
        add_message(&mut conversation.messages, message, &format!("messages[{i}]"))?;
    }
    Ok(conversation)
}

fn add_message(to: &mut Vec<Message>, message: &Object, at: &str) -> Result<()> {
    let role = match message.get("role").and_then(Value::as_str) {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("system" | "developer") => Role::System,
        _ => return Err(Failure::invalid(format!("'{at}.role' must be user, assistant or system"))),
    };
    let at = format!("{at}.content");
    match message.get("content") {
        Some(Value::Array(blocks)) => {
            let mut turn = Turn { role, content: Content::default(), calls: Vec::new(), apart: false };
            for (i, block) in blocks.iter().enumerate() {
                turn.add(to, block, &format!("{at}[{i}]"))?;
            }
            turn.end(to);
        }
        content => to.push(Content::read(content, &at)?.message(role)),
    }
    Ok(())
}

/// A message of blocks that is being read.
struct Turn {
    role: Role,
    content: Content,
    calls: Vec<ToolCall>,
    /// A call came, and no text after it.
    apart: bool,
}

impl Turn {
    fn add(&mut self, to: &mut Vec<Message>, block: &Value, at: &str) -> Result<()> {
        let text = |name: &str| block.get(name).and_then(Value::as_str);
        match text("type").unwrap_or_default() {
            "tool_use" | "mcp_tool_use" => {
                let id = text("id").map(str::to_owned);
                self.calls.push(ToolCall::new(id, text("name"), block.get("input")));
                self.apart = true;
            }
            "tool_result" => to.push(result(block, at)),
            // The result is in the answer itself, after its call.
            "mcp_tool_result" => {
                self.end(to);
                to.push(result(block, at));
            }
            "tool_addition" | "tool_removal" => {} // the tools are those of the request
            // Tools of Anthropic's servers, whose findings are in the answer's text.
            kind if kind == "server_tool_use" || kind.ends_with("_tool_result") => {}
            _ => {
                let before = self.content.text.len();
                self.content.add(block, at)?;
                self.set_apart(before);
            }
        }
        Ok(())
    }

    /// Puts texts before and after calls on lines of their own. The last text begins at `from`.
    fn set_apart(&mut self, from: usize) {
        let (before, new) = self.content.text.split_at(from);
        if new.is_empty() || !std::mem::take(&mut self.apart) {
            return;
        }
        let joined = !before.is_empty() && !before.ends_with(char::is_whitespace);
        if joined && !new.starts_with(char::is_whitespace) {
            self.content.text.insert(from, '\n');
        }
    }

    /// Adds the collected content as a message.
    fn end(&mut self, to: &mut Vec<Message>) {
        let content = std::mem::take(&mut self.content);
        let calls = std::mem::take(&mut self.calls);
        if content.text.is_empty() && content.reasoning.is_none() && calls.is_empty() {
            return;
        }
        let mut message = content.message(self.role);
        if message.content.as_ref().is_some_and(Passage::is_empty) && !calls.is_empty() {
            message.content = None;
        }
        message.calls = calls;
        to.push(message);
    }
}

fn result(block: &Value, at: &str) -> Message {
    let content = Content::result(block.get("content"), &format!("{at}.content"));
    let call_id = block.get("tool_use_id").and_then(Value::as_str).map(str::to_owned);
    Message { call_id, ..content.message(Role::Tool) }
}

/// Reads `tools` and `tool_choice`.
pub fn read_tools(to: &mut Conversation, given: &[Object], choice: Option<&Value>) -> Result<()> {
    let kind = choice.map(|choice| choice.get("type").and_then(Value::as_str).unwrap_or_default());
    if kind.is_some_and(|kind| !["auto", "any", "tool", "none"].contains(&kind)) {
        return Err(Failure::invalid("'tool_choice.type' must be auto, any, tool or none"));
    }
    if choice.is_some_and(|choice| choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true))) {
        to.parallel = Some(false);
    }
    Tools::read(given, ANTHROPIC)?.give(to, choice.map(|choice| ("tool_choice", choice)))
}
