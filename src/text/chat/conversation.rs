//! A conversation with tools, as JSON in the shape of OpenAI's API. Checks it and brings it into the form that
//! templates expect.

use super::parts::{PictureSource, content, text_part};
use super::{MAX_INPUT, MAX_MESSAGES, RENDER_STACK};
use crate::base::{Error, Result, Status, threads};
use crate::text::json::{Fields, Json, field};
use std::collections::HashSet;
use std::fmt::Display;

/// Maximum length of a tool's name in bytes.
const MAX_NAME: usize = 128;

/// Names of a message's reasoning; templates read the first one.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Variables that are set by other means.
const RESERVED: [&str; 10] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
];

/// A checked conversation and its options.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// Objects without nulls. The arguments of a call are an object. A content is one text, or with pictures a list of
    /// parts of type text and image.
    pub messages: Vec<Json>,
    /// The pictures of all messages, in order.
    pub pictures: Vec<PictureSource>,
    /// The tools as given.
    pub tools: Vec<Json>,
    pub choice: ToolChoice,
    /// The answer may have more than one call; None if the host does not say.
    pub parallel: Option<bool>,
    /// Variables for the template, by name.
    pub variables: Fields,
    pub documents: Option<Json>,
    pub add_generation_prompt: bool,
    /// The last message is to be continued.
    pub continue_final: bool,
    /// Formats of calls and reasoning; None: as the template implies.
    pub tool_format: Option<String>,
    pub reasoning_format: Option<String>,
    /// Size of the source text in bytes, and number of values in it.
    pub bytes: usize,
    pub values: usize,
}

/// Which tools the answer may or must call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    None,
    #[default]
    Auto,
    Required,
    Named(String),
}

/// A function of `tools`.
#[derive(Clone, Copy, Debug)]
pub struct Tool<'a> {
    pub name: &'a str,
    /// A JSON schema; None: any object.
    pub parameters: Option<&'a Json>,
    /// The arguments must match the schema.
    pub strict: bool,
}

pub(super) type At<'a> = &'a dyn Display;

pub(super) fn wrong(at: At, what: impl Display) -> Error {
    Error::invalid(format!("chat.json: {at}: {what}"))
}

pub(super) fn not(at: At, wanted: &str, got: &Json) -> Error {
    wrong(at, format_args!("must be {wanted}, not {}", got.kind()))
}

pub(super) fn text<'a>(at: At, value: &'a Json) -> Result<&'a str> {
    value.as_str().ok_or_else(|| not(at, "a text", value))
}

fn boolean(at: At, value: &Json) -> Result<bool> {
    match value {
        Json::Bool(value) => Ok(*value),
        other => Err(not(at, "true or false", other)),
    }
}

fn list(at: At, value: Json) -> Result<Vec<Json>> {
    match value {
        Json::List(items) => Ok(items),
        other => Err(not(at, "a list", &other)),
    }
}

fn object(at: At, value: Json) -> Result<Fields> {
    match value {
        Json::Map(fields) => Ok(fields),
        other => Err(not(at, "an object", &other)),
    }
}

impl Chat {
    /// Parses JSON. `InvalidArgument` naming the place; `TooLong` above `MAX_INPUT` or `MAX_MESSAGES`, or for too
    /// many values.
    pub fn parse(source: &str) -> Result<Self> {
        threads::run_on_stack("bn-template", RENDER_STACK, || Self::of(source))?
    }

    /// Recurses as deep as the text nests, within `text::json::MAX_DEPTH`.
    fn of(source: &str) -> Result<Self> {
        if source.len() > MAX_INPUT {
            let message = format!("chat.json has {} bytes; at most {MAX_INPUT} are taken", source.len());
            return Err(Error::new(Status::TooLong, message));
        }
        let (tree, values) = Json::parse(source)
            .map_err(|error| Error::new(error.status, format!("chat.json: {}", error.message)))?;
        let Json::Map(fields) = tree else {
            return Err(Error::invalid(format!("chat.json must be an object, not {}", tree.kind())));
        };
        let mut chat = Self { bytes: source.len(), values, ..Self::default() };
        let (mut prompt, mut choice, mut messages) = (None, None, None);
        for (name, value) in fields {
            let at: At = &name;
            match &*name {
                _ if value == Json::Null => {}
                "messages" => messages = Some(list(at, value)?),
                "tools" => chat.tools = list(at, value)?,
                "tool_choice" => choice = Some(value),
                "parallel_tool_calls" => chat.parallel = Some(boolean(at, &value)?),
                "chat_template_kwargs" => chat.variables = object(at, value)?,
                "documents" => chat.documents = Some(documents(value)?),
                "add_generation_prompt" => prompt = Some(boolean(at, &value)?),
                "continue_final_message" => chat.continue_final = boolean(at, &value)?,
                "tool_format" => chat.tool_format = Some(text(at, &value)?.to_owned()),
                "reasoning_format" => chat.reasoning_format = Some(text(at, &value)?.to_owned()),
                _ => return Err(wrong(at, "is no field of a chat")),
            }
        }
        chat.add_generation_prompt = prompt.unwrap_or(!chat.continue_final);
        chat.messages = messages.ok_or_else(|| wrong(&"messages", "is missing"))?;
        chat.check(choice)?;
        Ok(chat)
    }

    fn check(&mut self, choice: Option<Json>) -> Result<()> {
        if self.messages.len() > MAX_MESSAGES {
            let message = format!("{} messages; at most {MAX_MESSAGES} are taken", self.messages.len());
            return Err(Error::new(Status::TooLong, message));
        }
        for (i, message) in self.messages.iter_mut().enumerate() {
            let fields = object(&format_args!("messages[{i}]"), std::mem::replace(message, Json::Null))?;
            *message = Json::Map(checked(i, fields, &mut self.values, &mut self.pictures)?);
        }
        check_tools(&self.tools)?;
        self.choice = self.choice_of(choice)?;
        if let Some((name, _)) = self.variables.iter().find(|(name, _)| RESERVED.contains(&&**name)) {
            return Err(wrong(&format_args!("chat_template_kwargs.{name}"), "is set by other means"));
        }
        if self.continue_final {
            let at: At = &"continue_final_message";
            if self.add_generation_prompt {
                return Err(wrong(at, "add_generation_prompt would begin another message"));
            }
            if self.messages.last().and_then(|last| last.get("content")?.as_str()).is_none() {
                return Err(wrong(at, "the last message has no content to go on with"));
            }
        }
        Ok(())
    }

    fn choice_of(&self, choice: Option<Json>) -> Result<ToolChoice> {
        let at: At = &"tool_choice";
        let choice = match &choice {
            None if self.tools.is_empty() => ToolChoice::None,
            None => ToolChoice::Auto,
            Some(Json::Text(word)) => match &**word {
                "none" => ToolChoice::None,
                "auto" if self.tools.is_empty() => ToolChoice::None,
                "auto" => ToolChoice::Auto,
                "required" => ToolChoice::Required,
                _ => return Err(wrong(at, "must be none, auto, required or a function")),
            },
            Some(value) => {
                let name = value.get("function").and_then(|function| function.get("name")?.as_str());
                let name = name.ok_or_else(|| wrong(&"tool_choice.function.name", "must be a text"))?;
                ToolChoice::Named(name.to_owned())
            }
        };
        let known = match &choice {
            ToolChoice::Named(name) => self.tools().any(|tool| tool.name == name),
            ToolChoice::Required => !self.tools.is_empty(),
            ToolChoice::None | ToolChoice::Auto => true,
        };
        if known { Ok(choice) } else { Err(wrong(at, "asks for a call, and tools has no such function")) }
    }

    /// Puts a question at the end of the last message, after an empty line, or into a message of its own if the last
    /// one is not a user's text. `InvalidArgument` if that is to be continued.
    pub fn ask(&mut self, question: &str) -> Result<()> {
        if self.continue_final {
            return Err(wrong(&"continue_final_message", "a question follows the last message"));
        }
        let user = |message: &Json| message.get("role").and_then(Json::as_str) == Some("user");
        let last = match self.messages.last_mut().filter(|last| user(last)) {
            Some(Json::Map(fields)) => fields.iter_mut().find(|(name, _)| name == "content"),
            _ => None,
        };
        self.bytes += question.len();
        match last.map(|(_, content)| content) {
            Some(Json::Text(content)) => {
                content.push_str("\n\n");
                content.push_str(question);
                return Ok(());
            }
            Some(Json::List(parts)) => {
                parts.push(text_part(format!("\n\n{question}")));
                self.values += 3;
                return Ok(());
            }
            _ => {}
        }
        let fields = [("role", "user"), ("content", question)];
        let fields = fields.map(|(name, value)| (name.to_owned(), Json::Text(value.to_owned())));
        self.values += 3;
        self.messages.push(Json::Map(fields.into()));
        Ok(())
    }

    /// The functions of `tools`.
    pub fn tools(&self) -> impl Iterator<Item = Tool<'_>> {
        self.tools.iter().filter_map(|tool| {
            let function = tool.get("function")?;
            Some(Tool {
                name: function.get("name")?.as_str()?,
                parameters: function.get("parameters"),
                strict: function.get("strict") == Some(&Json::Bool(true)),
            })
        })
    }

    /// Returns whether the conversation has tools, calls or results.
    pub fn has_tools(&self) -> bool {
        let is_one = |message: &Json| {
            message.get("tool_calls").is_some() || message.get("role").and_then(Json::as_str) == Some("tool")
        };
        !self.tools.is_empty() || self.messages.iter().any(is_one)
    }

    /// Returns whether the role of the first message is `role`.
    pub fn begins_with(&self, role: &str) -> bool {
        self.messages.first().and_then(|first| first.get("role")?.as_str()) == Some(role)
    }

    /// The text that the answer continues, if any.
    pub fn prefill(&self) -> Option<&str> {
        self.messages.last().filter(|_| self.continue_final)?.get("content")?.as_str()
    }
}

fn documents(value: Json) -> Result<Json> {
    let items = list(&"documents", value)?;
    for (i, item) in items.iter().enumerate() {
        if !matches!(item, Json::Map(_)) {
            return Err(not(&format_args!("documents[{i}]"), "an object", item));
        }
    }
    Ok(Json::List(items))
}

fn check_tools(tools: &[Json]) -> Result<()> {
    let mut names = HashSet::new();
    for (i, tool) in tools.iter().enumerate() {
        let function = match (tool, tool.get("type").map_or(Some("function"), Json::as_str)) {
            (Json::Map(_), Some("function")) => tool.get("function"),
            (Json::Map(_), _) => return Err(wrong(&format_args!("tools[{i}].type"), "must be function")),
            _ => return Err(not(&format_args!("tools[{i}]"), "an object", tool)),
        };
        let at: At = &format_args!("tools[{i}].function");
        let name = function.and_then(|function| function.get("name"));
        let name = name.ok_or_else(|| wrong(&format_args!("{at}.name"), "is missing"))?;
        let name = text(&format_args!("{at}.name"), name)?;
        if !is_name(name) {
            let what = format_args!("must be 1 to {MAX_NAME} letters, digits or any of _-.:/");
            return Err(wrong(&format_args!("{at}.name"), what));
        }
        if !names.insert(name) {
            return Err(wrong(&format_args!("{at}.name"), format_args!("{name} is there twice")));
        }
        match function.and_then(|function| function.get("parameters")) {
            None | Some(Json::Map(_)) => {}
            Some(other) => return Err(not(&format_args!("{at}.parameters"), "an object", other)),
        }
        if let Some(strict) = function.and_then(|function| function.get("strict")) {
            boolean(&format_args!("{at}.strict"), strict)?;
        }
    }
    Ok(())
}

/// Returns whether `name` is valid for a function.
pub fn is_name(name: &str) -> bool {
    let sign = |c: u8| c.is_ascii_alphanumeric() || b"_-.:/".contains(&c);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(sign)
}

/// Message `i` as templates expect it: without nulls (as in transformers), the content as `parts::content` makes it,
/// the arguments of calls as objects (as in vLLM), the reasoning under the names that templates read (as in
/// transformers).
fn checked(
    i: usize,
    mut fields: Fields,
    values: &mut usize,
    pictures: &mut Vec<PictureSource>,
) -> Result<Fields> {
    fields.retain(|(_, value)| *value != Json::Null);
    let at: At = &format_args!("messages[{i}]");
    if field(&fields, "role").is_none() {
        return Err(wrong(&format_args!("{at}.role"), "is missing"));
    }
    for (name, value) in &mut fields {
        let at: At = &format_args!("{at}.{name}");
        match &**name {
            "role" | "name" | "tool_call_id" | "reasoning_content" | "reasoning" | "thinking" => {
                text(at, value)?;
            }
            "content" => *value = content(at, std::mem::replace(value, Json::Null), pictures)?,
            "tool_calls" => {
                let calls = list(at, std::mem::replace(value, Json::Null))?;
                let calls = calls.into_iter().enumerate();
                let calls = calls.map(|(n, call)| checked_call(&format_args!("{at}[{n}]"), call, values));
                *value = Json::List(calls.collect::<Result<_>>()?);
            }
            _ => {}
        }
    }
    fields.retain(|(name, value)| name != "tool_calls" || *value != Json::List(Vec::new()));
    if let Some(reasoning) = REASONING.iter().find_map(|name| field(&fields, name)).cloned() {
        if field(&fields, "thinking").is_none() {
            fields.insert(0, ("thinking".into(), reasoning.clone()));
        }
        match fields.iter_mut().find(|(name, _)| name == REASONING[0]) {
            Some((_, value)) => *value = reasoning,
            None => fields.push((REASONING[0].into(), reasoning)),
        }
    }
    Ok(fields)
}

/// Returns a call whose arguments are an object.
fn checked_call(at: At, call: Json, values: &mut usize) -> Result<Json> {
    let mut fields = object(at, call)?;
    if let Some(id) = field(&fields, "id") {
        text(&format_args!("{at}.id"), id)?;
    }
    if field(&fields, "type").is_some_and(|kind| kind.as_str() != Some("function")) {
        return Err(wrong(&format_args!("{at}.type"), "must be function"));
    }
    let function = fields.iter_mut().find(|(name, _)| name == "function");
    let at: At = &format_args!("{at}.function");
    let Some((_, Json::Map(function))) = function else {
        return Err(wrong(at, "must be an object"));
    };
    match field(function, "name") {
        Some(name) => text(&format_args!("{at}.name"), name)?,
        None => return Err(wrong(&format_args!("{at}.name"), "is missing")),
    };
    let given = function.iter().rposition(|(name, _)| name == "arguments");
    let at: At = &format_args!("{at}.arguments");
    let arguments = match given.map(|n| &function[n].1) {
        None | Some(Json::Null) => Json::Map(Vec::new()),
        Some(Json::Text(text)) if text.is_empty() => Json::Map(Vec::new()),
        Some(Json::Text(text)) => {
            let (tree, more) = Json::parse(text)
                .map_err(|error| Error::new(error.status, format!("chat.json: {at}: {}", error.message)))?;
            *values += more;
            tree
        }
        Some(other) => other.clone(),
    };
    if !matches!(arguments, Json::Map(_)) {
        return Err(wrong(at, "must be an object or the JSON of one"));
    }
    match given {
        Some(n) => function[n].1 = arguments,
        None => function.push(("arguments".into(), arguments)),
    }
    Ok(Json::Map(fields))
}
