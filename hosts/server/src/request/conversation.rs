//! The form of conversations that all APIs translate to. The engine gets it as JSON (docs/chat.md).
use super::passage::{Passage, Shown};
use super::picture::{self, Sight};
use super::roles::Manners;
use crate::api::write;
use crate::body::without_nul;
use crate::failure::{Failure, Result};
use serde::Serialize;
use serde_json::{Map, Value};
use std::{mem, slice};

/// Maximum nesting of arguments: the engine accepts 48 levels, some of which are around them.
const MOST_DEPTH: usize = 40;

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
    pub content: Option<Passage>,
    #[serde(rename = "reasoning_content", skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The call that a tool's result belongs to.
    #[serde(rename = "tool_call_id", skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(rename = "tool_calls", skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ToolCall>,
    /// The kind of a part that the model cannot see, and its path.
    #[serde(skip)]
    pub unseen: Option<String>,
}

impl Message {
    pub fn new(role: Role, content: impl Into<Option<String>>) -> Self {
        Self {
            role,
            content: content.into().map(Passage::from),
            reasoning: None,
            call_id: None,
            name: None,
            calls: Vec::new(),
            unseen: None,
        }
    }

    /// A user's message.
    pub fn of_user(content: Passage) -> Self {
        Self { content: Some(content), ..Self::new(Role::User, None) }
    }

    /// Appends text after a blank line.
    pub fn append(&mut self, text: &str) {
        self.content.get_or_insert_default().append(&text.into());
    }

    /// Appends the content of another message after a blank line.
    pub fn join(&mut self, other: &Self) {
        let content = self.content.get_or_insert_default();
        other.content.iter().for_each(|other| content.append(other));
    }

    /// A tool's result as a user's message.
    pub fn in_words(&self, name: Option<&str>) -> Self {
        let name = name.or(self.name.as_deref()).map_or(String::new(), |name| format!(" of {name}"));
        let mut made = Passage::from(format!("[result{name}]\n"));
        self.content.iter().for_each(|content| made.extend(content));
        Self::of_user(made)
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
    pub arguments: Map<String, Value>,
}

impl ToolCall {
    /// A call of the history. The client cannot change that, so it must render: arguments that are not an object, or
    /// too deep, stay a text.
    pub fn new(id: Option<String>, name: Option<&str>, arguments: Option<&Value>) -> Self {
        let name = name.filter(|name| !name.is_empty()).unwrap_or("unknown").to_owned();
        let function = Function { name, arguments: arguments.map(object_of).unwrap_or_default() };
        Self { id, r#type: "function", function }
    }
}

fn object_of(arguments: &Value) -> Map<String, Value> {
    let text = match arguments {
        Value::Object(_) if is_within(arguments, MOST_DEPTH) => {
            return arguments.as_object().cloned().unwrap_or_default();
        }
        Value::Null => return Map::new(),
        Value::String(text) if text.trim().is_empty() => return Map::new(),
        Value::String(text) => match serde_json::from_slice(&without_nul(text.as_bytes())) {
            Ok(Value::Object(object)) if object.values().all(|value| is_within(value, MOST_DEPTH - 1)) => {
                return object;
            }
            _ => text.clone(),
        },
        other => other.to_string(),
    };
    Map::from_iter([("invalid_json".to_owned(), Value::String(text))])
}

/// Whether a value is nested at most `depth` deep.
fn is_within(value: &Value, depth: usize) -> bool {
    let inner = |value| depth > 0 && is_within(value, depth - 1);
    match value {
        Value::Array(values) => depth > 0 && values.iter().all(inner),
        Value::Object(map) => depth > 0 && map.values().all(inner),
        _ => true,
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Conversation {
    pub messages: Vec<Message>,
    /// Functions in the form of OpenAI's chats.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// Whether the answer may or must be a call, and of which function, in the form of OpenAI's chats.
    #[serde(rename = "tool_choice", skip_serializing_if = "Option::is_none")]
    pub choice: Option<Value>,
    #[serde(rename = "parallel_tool_calls", skip_serializing_if = "Option::is_none")]
    pub parallel: Option<bool>,
    /// The template's variables.
    #[serde(rename = "chat_template_kwargs", skip_serializing_if = "Map::is_empty")]
    pub variables: Map<String, Value>,
    /// The fields that the engine gets unchanged: `documents`, `continue_final_message` and others.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Conversation {
    /// Turns reasoning on or off, for templates that support that. `effort` is the template's value.
    pub fn think(&mut self, on: bool, effort: Option<&str>) {
        self.variables.entry("enable_thinking").or_insert(on.into());
        if let Some(effort) = effort {
            self.variables.entry("reasoning_effort").or_insert(effort.into());
        }
    }

    /// Whether the answer must be a call.
    pub fn calls_only(&self) -> bool {
        let must = |choice: &Value| choice == "required" || choice.is_object();
        !self.tools.is_empty() && self.choice.as_ref().is_some_and(must)
    }

    /// Changes the roles to those that the model's template accepts. A part of the last turn that the model cannot see
    /// is refused: the answer would be wrong without it. In earlier turns a placeholder stands for it.
    pub fn arrange(&mut self, manners: Manners, sight: Sight) -> Result<()> {
        let turn =
            self.messages.iter().rposition(|message| message.role == Role::Assistant).map_or(0, |at| at + 1);
        if let Some(unseen) = self.messages[turn..].iter().find_map(|message| message.unseen.as_deref()) {
            return Err(Failure::invalid(unseen));
        }
        for (at, message) in self.messages.iter_mut().enumerate() {
            let asked = at >= turn && message.role != Role::Tool;
            message.content.iter_mut().try_for_each(|content| sight.look(content, asked))?;
        }
        self.complete();
        self.messages = manners.arrange(mem::take(&mut self.messages));
        for message in self.messages.iter_mut().filter(|message| message.calls.is_empty()) {
            message.content.get_or_insert_default();
        }
        Ok(())
    }

    /// Adds an empty question if there is nothing to answer, as in probes of agents, because many templates refuse
    /// that.
    pub fn complete(&mut self) {
        if self.messages.iter().all(|message| message.role == Role::System) {
            self.messages.push(Message::new(Role::User, String::new()));
        }
    }
}

/// Words in the types of parts that are not text.
const MEDIA: [&str; 6] = ["image", "audio", "video", "file", "document", "media"];

/// The content of a message: a text, or parts that become one text.
#[derive(Debug, Default)]
pub struct Content {
    pub text: Passage,
    pub reasoning: Option<String>,
    /// See `Message::unseen`.
    pub unseen: Option<String>,
}

impl Content {
    /// Reads a content of any API. `at` is its path in the client's body. Other parts become text too: a document its
    /// text, a sound a placeholder.
    pub fn read(value: Option<&Value>, at: &str) -> Result<Self> {
        let mut content = Self::default();
        match value {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => content.text = text.as_str().into(),
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

    /// Reads the content of a message.
    pub fn of(role: Role, value: Option<&Value>, at: &str) -> Result<Self> {
        if role == Role::Tool { Ok(Self::result(value, at)) } else { Self::read(value, at) }
    }

    /// Reads a tool's result. The client cannot change it, so any form is accepted: a value that is neither a text nor
    /// content parts becomes its JSON. Sounds and files in it become placeholders.
    pub fn result(value: Option<&Value>, at: &str) -> Self {
        let parts =
            value.map_or(&[][..], |value| value.as_array().map_or(slice::from_ref(value), Vec::as_slice));
        let kind = |part: &Value| part.get("type").and_then(Value::as_str).map(str::to_owned);
        let shown = |kind: String| MEDIA.iter().any(|media| kind.contains(media));
        match Self::read(value, at) {
            Ok(content) if content.unseen.is_none() || parts.iter().filter_map(kind).any(shown) => {
                Self { unseen: None, ..content }
            }
            _ => Self { text: write::json(&value).into(), ..Self::default() },
        }
    }

    /// The whole content as a message.
    pub fn message(self, role: Role) -> Message {
        let content = Some(self.text);
        Message { content, reasoning: self.reasoning, unseen: self.unseen, ..Message::new(role, None) }
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
            "text" | "input_text" | "output_text" | "reasoning_text" | "summary_text" => {
                match part.get("text") {
                    Some(Value::String(text)) => self.text.push_str(text),
                    None | Some(Value::Null) => {}
                    Some(_) => return Err(Failure::invalid(format!("'{at}.text' must be a text"))),
                }
            }
            "refusal" => self.text.push_str(text("refusal").unwrap_or_default()),
            "thinking" => self.think(text("thinking").unwrap_or_default()),
            "redacted_thinking" => {}
            "document" | "search_result" => self.document(part, at)?,
            "compaction" => self.paragraph(text("content").unwrap_or_default()),
            "tool_reference" => {
                self.paragraph(&format!("[tool: {}]", text("tool_name").unwrap_or("unknown")))
            }
            "" => return Err(Failure::invalid(format!("'{at}.type' must be a text"))),
            kind if picture::KINDS.contains(&kind) => self.show(picture::of_part(part, at)),
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

    /// Adds a picture.
    pub fn show(&mut self, shown: Shown) {
        self.text.show(shown);
    }

    fn paragraph(&mut self, text: &str) {
        self.text.paragraph(&text.into());
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
                self.text.paragraph(&inner.text);
                self.unseen = self.unseen.take().or(inner.unseen);
            }
            Some(_) => self.unseen("document", at),
        }
        Ok(())
    }

    /// Adds a placeholder for a sound, film or file, which no model here takes.
    fn unseen(&mut self, kind: &str, at: &str) {
        let plain = kind.trim_start_matches("input_").trim_end_matches("_url");
        let plain: String =
            plain.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(40).collect();
        self.paragraph(&format!("[{plain}: not shown, as this model does not take it]"));
        self.unseen.get_or_insert_with(|| {
            format!(
                "'{at}' is of the type {plain}: this server takes texts and images, no audio, video or files"
            )
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
        assert_eq!((&*content.text, content.reasoning.as_deref()), ("abc", Some("x\ny")));
        let document = json!([{"type": "document", "title": "t", "source": {"type": "text", "data": "d"}}]);
        assert_eq!(&*read(document).text, "t\nd\n");
        let found =
            json!([{"type": "search_result", "title": "t", "content": [{"type": "text", "text": "d"}]}]);
        assert_eq!(&*read(found).text, "t\nd\n");
        assert_eq!(&*read(json!([{"type": "text", "text": null}, {"type": "text"}])).text, "");
        for wrong in [json!(5), json!([{"type": "text", "text": 5}])] {
            assert!(Content::read(Some(&wrong), "x").is_err());
        }
    }

    #[test]
    fn results_are_taken_in_any_form() {
        for (value, text) in [
            (json!(null), ""),
            (json!("a"), "a"),
            (json!([{"type": "text", "text": "a"}, {"text": "b"}]), "ab"),
            (json!(5), "5"),
            (json!(true), "true"),
            (json!({"n": 1}), r#"{"n":1}"#),
            (json!([{"n": 1}, {"n": 2}]), r#"[{"n":1},{"n":2}]"#),
            (json!({"type": "FeatureCollection"}), r#"{"type":"FeatureCollection"}"#),
            (json!({"type": "input_audio"}), "[audio: not shown, as this model does not take it]\n"),
        ] {
            let content = Content::result(Some(&value), "x");
            assert_eq!((&*content.text, content.unseen), (text, None));
        }
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
        assert_eq!(arguments(json!(r#"{"a": "b\u0000"}"#)), json!({"a": "b"}));
        let nested = |depth: usize| (1..depth).fold(json!({}), |inner, _| json!({ "a": inner }));
        for (depth, whole) in [(MOST_DEPTH, true), (MOST_DEPTH + 1, false), (100, false), (200, false)] {
            let (given, text) = (nested(depth), nested(depth).to_string());
            let wanted = if whole { given.clone() } else { json!({ "invalid_json": text }) };
            assert_eq!((arguments(given), arguments(json!(text))), (wanted.clone(), wanted), "{depth}");
        }
        assert_eq!(ToolCall::new(None, Some(""), None).function.name, "unknown");
    }
}
