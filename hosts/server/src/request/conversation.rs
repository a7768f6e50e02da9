//! One conversation for all APIs. They translate theirs into it; the engine gets it as JSON (docs/chat.md).
use super::roles::Manners;
use crate::api::write;
use crate::failure::{Failure, Result};
use serde::Serialize;
use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// `developer` is OpenAI's newer name of the system, `function` the older one of a tool.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "system" | "developer" => Some(Self::System),
            "user" => Some(Self::User),
            "assistant" | "model" => Some(Self::Assistant),
            "tool" | "function" => Some(Self::Tool),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Message {
    pub role: Role,
    /// None: an answer of calls alone.
    pub content: Option<String>,
    #[serde(rename = "reasoning_content", skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The call that a tool's result belongs to.
    #[serde(rename = "tool_call_id", skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(rename = "tool_calls", skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ToolCall>,
    /// The kind of a part that the model cannot see, and where it stands.
    #[serde(skip)]
    pub unseen: Option<String>,
}

impl Message {
    pub fn new(role: Role, content: impl Into<Option<String>>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning: None,
            call_id: None,
            name: None,
            calls: Vec::new(),
            unseen: None,
        }
    }

    /// Adds text behind a blank line.
    pub fn append(&mut self, text: &str) {
        let content = self.content.get_or_insert_default();
        if !content.is_empty() && !text.is_empty() {
            content.push_str("\n\n");
        }
        content.push_str(text);
    }
}

/// A call in an earlier answer.
#[derive(Clone, Debug, Serialize)]
pub struct ToolCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    r#type: &'static str,
    pub function: Function,
}

#[derive(Clone, Debug, Serialize)]
pub struct Function {
    pub name: String,
    arguments: Map<String, Value>,
}

impl ToolCall {
    /// A history cannot be changed by the client, so it always renders: arguments that are no object stay as a text.
    pub fn new(id: Option<String>, name: Option<&str>, arguments: Option<&Value>) -> Self {
        let name = name.filter(|name| !name.is_empty()).unwrap_or("unknown").to_owned();
        let function = Function { name, arguments: arguments.map(object_of).unwrap_or_default() };
        Self { id, r#type: "function", function }
    }
}

fn object_of(arguments: &Value) -> Map<String, Value> {
    let text = match arguments {
        Value::Object(object) => return object.clone(),
        Value::Null => return Map::new(),
        Value::String(text) if text.trim().is_empty() => return Map::new(),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::Object(object)) => return object,
            _ => text.clone(),
        },
        other => other.to_string(),
    };
    Map::from_iter([("invalid_json".to_owned(), Value::String(text))])
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Conversation {
    pub messages: Vec<Message>,
    /// Functions as OpenAI's chats have them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// Whether the answer may or must be a call, and of which function, as OpenAI's chats have it.
    #[serde(rename = "tool_choice", skip_serializing_if = "Option::is_none")]
    pub choice: Option<Value>,
    #[serde(rename = "parallel_tool_calls", skip_serializing_if = "Option::is_none")]
    pub parallel: Option<bool>,
    /// The template's variables.
    #[serde(rename = "chat_template_kwargs", skip_serializing_if = "Map::is_empty")]
    pub variables: Map<String, Value>,
    /// The fields that the engine takes as they are: `documents`, `continue_final_message` and others.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Conversation {
    /// Turns reasoning on or off, for templates that know that. `effort` is the template's.
    pub fn think(&mut self, on: bool, effort: Option<&str>) {
        self.variables.entry("enable_thinking").or_insert(on.into());
        if let Some(effort) = effort {
            self.variables.entry("reasoning_effort").or_insert(effort.into());
        }
    }

    /// Adds an empty question where there is nothing to answer, as in probes of agents: many templates refuse that.
    pub fn complete(&mut self) {
        if self.messages.iter().all(|message| message.role == Role::System) {
            self.messages.push(Message::new(Role::User, String::new()));
        }
    }

    /// Whether the answer must be a call.
    pub fn calls_only(&self) -> bool {
        let must = |choice: &Value| choice == "required" || choice.is_object();
        !self.tools.is_empty() && self.choice.as_ref().is_some_and(must)
    }

    /// The engine's JSON, with the roles as the model's template takes them. A part of the last turn that the model cannot
    /// see is refused: the answer would be wrong without it. In earlier turns a placeholder stands for it.
    pub fn into_json(mut self, manners: Manners) -> Result<String> {
        let turn =
            self.messages.iter().rposition(|message| message.role == Role::Assistant).map_or(0, |at| at + 1);
        if let Some(unseen) = self.messages[turn..].iter().find_map(|message| message.unseen.as_deref()) {
            return Err(Failure::invalid(unseen));
        }
        self.messages = manners.arrange(self.messages);
        for message in self.messages.iter_mut().filter(|message| message.calls.is_empty()) {
            message.content.get_or_insert_default();
        }
        Ok(write::json(&self))
    }
}

/// A content: a text, or parts that become one text.
#[derive(Debug, Default)]
pub struct Content {
    pub text: String,
    pub reasoning: Option<String>,
    /// As `Message::unseen`.
    pub unseen: Option<String>,
}

impl Content {
    /// Reads a content of any API. `at` is its place in the client's body. Parts that are no text become words: a document its
    /// text, a picture a placeholder.
    pub fn read(value: Option<&Value>, at: &str) -> Result<Self> {
        let mut content = Self::default();
        match value {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => content.text.clone_from(text),
            Some(Value::Array(parts)) => {
                for (i, part) in parts.iter().enumerate() {
                    content.add(part, &format!("{at}[{i}]"))?;
                }
            }
            Some(Value::Object(_)) => content.add(value.unwrap_or(&Value::Null), at)?,
            Some(_) => return Err(Failure::invalid(format!("'{at}' must be a text or a list of parts"))),
        }
        Ok(content)
    }

    /// The whole content as a message.
    pub fn message(self, role: Role) -> Message {
        let mut message = Message::new(role, self.text);
        (message.reasoning, message.unseen) = (self.reasoning, self.unseen);
        message
    }

    /// Adds a part.
    pub fn add(&mut self, part: &Value, at: &str) -> Result<()> {
        if let Value::String(text) = part {
            self.text.push_str(text);
            return Ok(());
        }
        let text = |name: &str| part.get(name).and_then(Value::as_str);
        let kind = text("type").unwrap_or(if part.get("text").is_some() { "text" } else { "" });
        match kind {
            "text" | "input_text" | "output_text" | "reasoning_text" | "summary_text" => match text("text") {
                Some(text) => self.text.push_str(text),
                None => return Err(Failure::invalid(format!("'{at}.text' must be a text"))),
            },
            "refusal" => self.text.push_str(text("refusal").unwrap_or_default()),
            "thinking" => self.think(text("thinking").unwrap_or_default()),
            "redacted_thinking" => {}
            "document" | "search_result" => self.document(part, at)?,
            "compaction" => self.paragraph(text("content").unwrap_or_default()),
            "tool_reference" => {
                self.paragraph(&format!("[tool: {}]", text("tool_name").unwrap_or("unknown")))
            }
            "" => return Err(Failure::invalid(format!("'{at}.type' must be a text"))),
            kind => self.unseen(kind, at),
        }
        Ok(())
    }

    /// Adds reasoning. Several parts become one.
    pub fn think(&mut self, text: &str) {
        let reasoning = self.reasoning.get_or_insert_default();
        if !reasoning.is_empty() && !text.is_empty() {
            reasoning.push('\n');
        }
        reasoning.push_str(text);
    }

    fn paragraph(&mut self, text: &str) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// Anthropic's documents and search results: the title, then the text.
    fn document(&mut self, part: &Value, at: &str) -> Result<()> {
        for name in ["title", "context"] {
            if let Some(text) = part.get(name).and_then(Value::as_str) {
                self.paragraph(text);
            }
        }
        let source = part.get("source").filter(|source| source.is_object());
        match source.and_then(|source| source.get("type")).and_then(Value::as_str) {
            Some("text") => {
                self.paragraph(source.and_then(|s| s.get("data")).and_then(Value::as_str).unwrap_or_default())
            }
            Some("content") | None => {
                let holder = source.unwrap_or(part);
                let inner = Self::read(holder.get("content"), &format!("{at}.content"))?;
                self.paragraph(&inner.text);
                self.unseen = self.unseen.take().or(inner.unseen);
            }
            Some(_) => self.unseen("document", at),
        }
        Ok(())
    }

    /// A picture, a sound, a file: nothing that a model of text can see.
    fn unseen(&mut self, kind: &str, at: &str) {
        let plain = kind.trim_start_matches("input_").trim_end_matches("_url");
        let plain: String =
            plain.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(40).collect();
        self.paragraph(&format!("[{plain}: not shown, as this model reads text only]"));
        self.unseen.get_or_insert_with(|| {
            format!("'{at}' is of the type {plain}: this server takes only parts of type text, no images, audio or files")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Content {
        Content::read(Some(&value), "messages[0].content").unwrap()
    }

    #[test]
    fn parts_become_a_text() {
        let content = read(json!([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}, "c",
            {"type": "thinking", "thinking": "x"}, {"type": "thinking", "thinking": "y"}]));
        assert_eq!((content.text.as_str(), content.reasoning.as_deref()), ("abc", Some("x\ny")));
        let document = json!([{"type": "document", "title": "t", "source": {"type": "text", "data": "d"}}]);
        assert_eq!(read(document).text, "t\nd\n");
        let found =
            json!([{"type": "search_result", "title": "t", "content": [{"type": "text", "text": "d"}]}]);
        assert_eq!(read(found).text, "t\nd\n");
        assert!(Content::read(Some(&json!(5)), "x").is_err());
    }

    #[test]
    fn arguments_that_are_no_object_stay_as_a_text() {
        let arguments =
            |value: Value| Value::Object(ToolCall::new(None, Some("f"), Some(&value)).function.arguments);
        for whole in [json!({"a": 1}), json!("{\"a\": 1}")] {
            assert_eq!(arguments(whole), json!({"a": 1}));
        }
        for nothing in [json!(""), json!(" "), json!(null)] {
            assert_eq!(arguments(nothing), json!({}));
        }
        assert_eq!(arguments(json!("{\"a\": \"b")), json!({"invalid_json": "{\"a\": \"b"}));
        assert_eq!(arguments(json!([1])), json!({"invalid_json": "[1]"}));
        assert_eq!(ToolCall::new(None, Some(""), None).function.name, "unknown");
    }
}
