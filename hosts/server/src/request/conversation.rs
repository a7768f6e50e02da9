//! One conversation for all APIs. They translate theirs into it; the engine gets it as JSON (docs/chat.md).
use super::roles::Manners;
use crate::failure::{Failure, Result};
use serde_json::{Map, Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Message {
    pub role: Role,
    /// None: an answer of calls alone.
    pub content: Option<String>,
    pub reasoning: Option<String>,
    pub calls: Vec<ToolCall>,
    /// The call that a tool's result belongs to.
    pub call_id: Option<String>,
    pub name: Option<String>,
    /// The kind of a part that the model cannot see, and where it stands.
    pub unseen: Option<String>,
}

impl Message {
    pub fn new(role: Role, content: impl Into<Option<String>>) -> Self {
        let (call_id, name) = (None, None);
        Self {
            role,
            content: content.into(),
            reasoning: None,
            calls: Vec::new(),
            call_id,
            name,
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

    fn to_json(&self) -> Value {
        let mut message = Map::new();
        message.insert("role".into(), self.role.name().into());
        let content = self.content.as_deref().map_or(Value::Null, Value::from);
        message.insert(
            "content".into(),
            if self.calls.is_empty() && content.is_null() { "".into() } else { content },
        );
        let texts =
            [("reasoning_content", &self.reasoning), ("tool_call_id", &self.call_id), ("name", &self.name)];
        for (name, text) in texts {
            if let Some(text) = text {
                message.insert(name.into(), text.as_str().into());
            }
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".into(), self.calls.iter().map(ToolCall::to_json).collect());
        }
        Value::Object(message)
    }
}

/// A call in an earlier answer.
#[derive(Clone, Debug)]
pub struct ToolCall {
    pub id: Option<String>,
    pub name: String,
    pub arguments: Map<String, Value>,
}

impl ToolCall {
    /// A history cannot be changed by the client, so it always renders: arguments that are no object stay as a text.
    pub fn new(id: Option<String>, name: Option<&str>, arguments: Option<&Value>) -> Self {
        let name = name.filter(|name| !name.is_empty()).unwrap_or("unknown").to_owned();
        Self { id, name, arguments: arguments.map(object_of).unwrap_or_default() }
    }

    fn to_json(&self) -> Value {
        let mut call = Map::new();
        if let Some(id) = &self.id {
            call.insert("id".into(), id.as_str().into());
        }
        call.insert("type".into(), "function".into());
        call.insert("function".into(), json!({"name": self.name, "arguments": self.arguments}));
        Value::Object(call)
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

/// What a conversation's last answer may be.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Choice {
    #[default]
    Unset,
    None,
    Auto,
    Required,
    /// A call of this function.
    Function(String),
}

#[derive(Clone, Debug, Default)]
pub struct Conversation {
    pub messages: Vec<Message>,
    /// Functions as OpenAI's chats have them.
    pub tools: Vec<Value>,
    pub choice: Choice,
    pub parallel: Option<bool>,
    /// The template's variables.
    pub variables: Map<String, Value>,
    /// The fields that the engine takes as they are: `documents`, `continue_final_message` and others.
    pub more: Map<String, Value>,
}

impl Conversation {
    /// A function of these parts.
    pub fn function(tool: &Map<String, Value>, schema: &str) -> Value {
        let mut function = Map::new();
        for (from, to) in
            [("name", "name"), ("description", "description"), (schema, "parameters"), ("strict", "strict")]
        {
            if let Some(value) = tool.get(from).filter(|value| !value.is_null()) {
                function.insert(to.into(), value.clone());
            }
        }
        json!({"type": "function", "function": function})
    }

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
        !self.tools.is_empty() && matches!(self.choice, Choice::Required | Choice::Function(_))
    }

    /// The engine's JSON, with the roles as the model's template takes them. A part of the last turn that the model cannot
    /// see is refused: the answer would be wrong without it. In earlier turns a placeholder stands for it.
    pub fn into_json(mut self, manners: Manners) -> Result<String> {
        let turn =
            self.messages.iter().rposition(|message| message.role == Role::Assistant).map_or(0, |at| at + 1);
        if let Some(unseen) = self.messages[turn..].iter().find_map(|message| message.unseen.as_deref()) {
            return Err(Failure::invalid(unseen));
        }
        self.messages = manners.arrange(std::mem::take(&mut self.messages));
        let mut chat = self.more;
        chat.insert("messages".into(), self.messages.iter().map(Message::to_json).collect());
        if !self.tools.is_empty() {
            chat.insert("tools".into(), Value::Array(self.tools));
        }
        let choice = match self.choice {
            Choice::Unset => None,
            Choice::None => Some("none".into()),
            Choice::Auto => Some("auto".into()),
            Choice::Required => Some("required".into()),
            Choice::Function(name) => Some(json!({"type": "function", "function": {"name": name}})),
        };
        if let Some(choice) = choice {
            chat.insert("tool_choice".into(), choice);
        }
        if let Some(parallel) = self.parallel {
            chat.insert("parallel_tool_calls".into(), parallel.into());
        }
        if !self.variables.is_empty() {
            chat.insert("chat_template_kwargs".into(), Value::Object(self.variables));
        }
        Ok(Value::Object(chat).to_string())
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
    fn a_picture_is_refused_in_the_last_turn_alone() {
        let picture =
            || read(json!([{"type": "image_url", "image_url": {"url": "data:"}}])).message(Role::User);
        let chat =
            |messages| Conversation { messages, ..Conversation::default() }.into_json(Manners::default());
        let error = chat(vec![picture()]).unwrap_err();
        assert!(
            error.message.starts_with("'messages[0].content[0]' is of the type image"),
            "{}",
            error.message
        );
        let answer = Message::new(Role::Assistant, "a".to_owned());
        let text = chat(vec![picture(), answer, Message::new(Role::User, "b".to_owned())]).unwrap();
        assert!(text.contains("[image: not shown, as this model reads text only]"), "{text}");
    }

    #[test]
    fn arguments_that_are_no_object_stay_as_a_text() {
        let arguments = |value: Value| Value::Object(ToolCall::new(None, Some("f"), Some(&value)).arguments);
        for whole in [json!({"a": 1}), json!("{\"a\": 1}")] {
            assert_eq!(arguments(whole), json!({"a": 1}));
        }
        for nothing in [json!(""), json!(" "), json!(null)] {
            assert_eq!(arguments(nothing), json!({}));
        }
        assert_eq!(arguments(json!("{\"a\": \"b")), json!({"invalid_json": "{\"a\": \"b"}));
        assert_eq!(arguments(json!([1])), json!({"invalid_json": "[1]"}));
        assert_eq!(ToolCall::new(None, Some(""), None).name, "unknown");
    }
}
