//! A conversation in OpenAI's form.
use crate::failure::{Failure, Result};
use crate::fields::Fields;
use crate::request::conversation::{Content, Conversation, Message, Role, ToolCall};
use crate::request::templating::templating;
use crate::request::tools::{OPENAI, Tools};
use serde::Deserialize;
use serde_json::{Map, Value};

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

/// Templates know three degrees of reasoning, or none. None: the model's own.
pub fn effort(field: &str, value: &Value) -> Result<Option<(bool, Option<&'static str>)>> {
    Ok(Some(match value.as_str() {
        Some("" | "default") => return Ok(None),
        Some("none") => (false, None),
        Some("minimal" | "low") => (true, Some("low")),
        Some("medium") => (true, Some("medium")),
        Some("high" | "xhigh" | "max") => (true, Some("high")),
        _ => {
            let words = format!("'{field}' must be none, minimal, low, medium, high or xhigh");
            return Err(Failure::invalid(words));
        }
    }))
}

/// Takes a conversation in OpenAI's form, also for `/tokenize`.
pub fn conversation(fields: &mut Fields) -> Result<Conversation> {
    let own: Own = fields.take()?;
    let mut conversation = Conversation::default();
    let messages = own.messages.unwrap_or_default();
    if messages.is_empty() {
        return Err(Failure::invalid("'messages' must be a list of messages that is not empty"));
    }
    for (i, message) in messages.iter().enumerate() {
        conversation.messages.push(read_message(message, &format!("messages[{i}]"))?);
    }
    templating(fields, &mut conversation)?;
    if let Some(value) = &own.reasoning_effort
        && let Some((on, degree)) = effort("reasoning_effort", value)?
    {
        conversation.think(on, degree);
    }
    conversation.parallel = own.parallel_tool_calls;
    let mut tools = Tools::read(&own.tools.unwrap_or_default(), OPENAI)?;
    let mut functions = own.functions.unwrap_or_default(); // the older name of `tools`, which count
    functions.retain(|own| !own.get("name").and_then(Value::as_str).is_some_and(|name| tools.has(name)));
    tools.add_all("functions", &functions, OPENAI)?;
    let choices = [("tool_choice", &own.tool_choice), ("function_call", &own.function_call)];
    let choice = choices.into_iter().find_map(|(name, value)| Some((name, value.as_ref()?)));
    tools.give(&mut conversation, choice)?;
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
