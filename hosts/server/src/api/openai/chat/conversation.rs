//! A conversation in OpenAI's form.
use crate::failure::{Failure, Result};
use crate::fields::Fields;
use crate::request::conversation::{Choice, Content, Conversation, Message, Role, ToolCall};
use crate::request::templating::Templating;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The fields of a conversation, also for `/tokenize`.
pub struct ChatFields {
    own: Own,
    templating: Templating,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Own {
    messages: Option<Vec<Map<String, Value>>>,
    tools: Option<Vec<Map<String, Value>>>,
    tool_choice: Option<Value>,
    functions: Option<Vec<Map<String, Value>>>,
    function_call: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning_effort: Option<Value>,
}

impl ChatFields {
    pub fn take(fields: &mut Fields) -> Result<Self> {
        Ok(Self { own: fields.take()?, templating: fields.take()? })
    }

    pub fn has_messages(&self) -> bool {
        self.own.messages.is_some()
    }
}

/// Templates know three degrees of reasoning, or none.
pub fn effort(field: &str, value: &Value) -> Result<(bool, Option<&'static str>)> {
    match value.as_str() {
        Some("none") => Ok((false, None)),
        Some("minimal" | "low") => Ok((true, Some("low"))),
        Some("medium") => Ok((true, Some("medium"))),
        Some("high" | "xhigh" | "max") => Ok((true, Some("high"))),
        _ => Err(Failure::invalid(format!("'{field}' must be none, minimal, low, medium, high or xhigh"))),
    }
}

/// A conversation in OpenAI's form.
pub fn conversation(ChatFields { own: fields, templating }: ChatFields) -> Result<Conversation> {
    let mut conversation = Conversation::default();
    let messages = fields.messages.unwrap_or_default();
    if messages.is_empty() {
        return Err(Failure::invalid("'messages' must be a list of messages that is not empty"));
    }
    for (i, message) in messages.iter().enumerate() {
        conversation.messages.push(read_message(message, &format!("messages[{i}]"))?);
    }
    templating.apply(&mut conversation);
    if let Some(value) = &fields.reasoning_effort {
        let (on, degree) = effort("reasoning_effort", value)?;
        conversation.think(on, degree);
    }
    conversation.parallel = fields.parallel_tool_calls;
    let old = fields.functions.unwrap_or_default();
    add_tools(&mut conversation, fields.tools.unwrap_or_default(), old)?;
    let choice = fields.tool_choice.as_ref().map(|choice| ("tool_choice", choice));
    if let Some((name, value)) =
        choice.or(fields.function_call.as_ref().map(|choice| ("function_call", choice)))
    {
        choose(&mut conversation, name, value)?;
    }
    Ok(conversation)
}

fn read_message(message: &Map<String, Value>, at: &str) -> Result<Message> {
    let text = |name: &str| message.get(name).and_then(Value::as_str);
    let role = text("role").and_then(Role::named).ok_or_else(|| {
        Failure::invalid(format!("'{at}.role' must be system, developer, user, assistant or tool"))
    })?;
    let content = message.get("content").filter(|content| !content.is_null());
    if content.is_none() && matches!(role, Role::System | Role::User) {
        return Err(Failure::invalid(format!("'{at}.content' is missing")));
    }
    let mut made = Content::read(content, &format!("{at}.content"))?.message(role);
    if role == Role::Tool {
        made.unseen = None; // a result cannot be changed by the client
    }
    let thought = ["reasoning_content", "reasoning", "thinking"].iter().find_map(|name| text(name));
    made.reasoning = thought.map(str::to_owned).or(made.reasoning);
    made.call_id = text("tool_call_id").map(str::to_owned);
    made.name = text("name").map(str::to_owned);
    let calls = message.get("tool_calls").and_then(Value::as_array);
    for (i, call) in calls.into_iter().flatten().enumerate() {
        made.calls.push(read_call(call, &format!("{at}.tool_calls[{i}]"))?);
    }
    if let Some(function) = message.get("function_call").filter(|call| call.is_object()) {
        let name = function.get("name").and_then(Value::as_str);
        made.calls.push(ToolCall::new(None, name, function.get("arguments")));
    }
    if content.is_none() && !made.calls.is_empty() {
        made.content = None;
    }
    Ok(made)
}

fn read_call(call: &Value, at: &str) -> Result<ToolCall> {
    let id = call.get("id").and_then(Value::as_str).map(str::to_owned);
    let function = call.get("function").or(call.get("custom")).filter(|function| function.is_object());
    let function = function.ok_or_else(|| Failure::invalid(format!("'{at}.function' must be an object")))?;
    let name = function.get("name").and_then(Value::as_str);
    if name.is_none() {
        return Err(Failure::invalid(format!("'{at}.function.name' must be a text")));
    }
    Ok(ToolCall::new(id, name, function.get("arguments").or(function.get("input"))))
}

/// Functions are taken, in OpenAI's form or a flat one; tools that only OpenAI's servers have are left out.
fn add_tools(
    to: &mut Conversation,
    tools: Vec<Map<String, Value>>,
    old: Vec<Map<String, Value>>,
) -> Result<()> {
    for (i, tool) in tools.into_iter().enumerate() {
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function");
        let function = match tool.get("function") {
            Some(Value::Object(function)) => function,
            _ if kind == "function" && tool.contains_key("name") => &tool,
            _ if kind == "function" => {
                return Err(Failure::invalid(format!("'tools[{i}].function' must be an object")));
            }
            _ => continue,
        };
        to.tools.push(Conversation::function(function, "parameters"));
    }
    to.tools.extend(old.iter().map(|function| Conversation::function(function, "parameters")));
    Ok(())
}

/// `none`, `auto`, `required`, a function, or `allowed_tools`, which leaves out the others.
fn choose(to: &mut Conversation, field: &str, value: &Value) -> Result<()> {
    let name_in = |value: &Value| value.get("name").and_then(Value::as_str).map(str::to_owned);
    let kind = value.get("type").and_then(Value::as_str);
    to.choice = match (value.as_str(), kind) {
        (Some("none"), _) => Choice::None,
        (Some("auto"), _) => Choice::Auto,
        (Some("required" | "any"), _) => Choice::Required,
        (None, Some("allowed_tools")) => return allow(to, value.get("allowed_tools").unwrap_or(value)),
        (None, Some("function") | None) if value.is_object() => {
            let name = value.get("function").and_then(name_in).or_else(|| name_in(value));
            Choice::Function(
                name.ok_or_else(|| Failure::invalid(format!("'{field}.function.name' must be a text")))?,
            )
        }
        // A tool that was left out cannot be called.
        (None, Some(_)) => Choice::Auto,
        _ => return Err(Failure::invalid(format!("'{field}' must be none, auto, required or a function"))),
    };
    Ok(())
}

/// Keeps the tools that `allowed` names.
pub fn allow(to: &mut Conversation, allowed: &Value) -> Result<()> {
    let name = |tool: &Value| {
        tool.get("function").unwrap_or(tool).get("name").and_then(Value::as_str).map(str::to_owned)
    };
    let list = allowed.get("tools").and_then(Value::as_array);
    let names: Vec<String> = list.into_iter().flatten().filter_map(name).collect();
    to.tools.retain(|tool| name(tool).is_some_and(|own| names.contains(&own)));
    let required = allowed.get("mode").and_then(Value::as_str) == Some("required");
    to.choice = if required && !to.tools.is_empty() { Choice::Required } else { Choice::Auto };
    Ok(())
}
