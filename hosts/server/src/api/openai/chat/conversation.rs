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
    reasoning: Option<Reasoning>,
    enable_thinking: Option<bool>,
    thinking: Option<Thinking>,
}

/// OpenRouter's field, and that of OpenAI's responses.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Reasoning {
    effort: Option<Value>,
    enabled: Option<bool>,
}

/// The field of Anthropic's messages.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Thinking {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// Templates know three degrees of reasoning, or none. None: the model's default.
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

impl Reasoning {
    pub fn apply(&self, to: &mut Conversation) -> Result<()> {
        if let Some(value) = &self.effort
            && let Some((on, degree)) = effort("reasoning.effort", value)?
        {
            to.think(on, degree);
        }
        if let Some(on) = self.enabled {
            to.think(on, None);
        }
        Ok(())
    }
}

/// Whether the field `thinking` turns reasoning on or off. None: it leaves that to the model.
pub fn thinks(kind: Option<&str>) -> Result<Option<bool>> {
    match kind {
        None | Some("auto") => Ok(None),
        Some("enabled" | "adaptive" | "between_tools") => Ok(Some(true)), // the model chooses the amount
        Some("disabled") => Ok(Some(false)),
        Some(_) => {
            Err(Failure::invalid("'thinking.type' must be enabled, adaptive, between_tools or disabled"))
        }
    }
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
    own.reasoning.unwrap_or_default().apply(&mut conversation)?;
    for on in [own.enable_thinking, thinks(own.thinking.unwrap_or_default().kind.as_deref())?] {
        on.into_iter().for_each(|on| conversation.think(on, None));
    }
    conversation.parallel = own.parallel_tool_calls;
    let mut tools = Tools::read(&own.tools.unwrap_or_default(), OPENAI)?;
    let mut functions = own.functions.unwrap_or_default(); // the older name of `tools`; the newer one takes precedence
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
    let mut made = Content::of(role, content, &format!("{at}.content"))?.message(role);
    let thought = ["reasoning_content", "reasoning", "thinking"].iter().find_map(|name| text(name));
    made.reasoning = thought.map(str::to_owned).or(made.reasoning);
    made.call_id = text("tool_call_id").map(str::to_owned);
    made.name = text("name").map(str::to_owned);
    let calls = message.get("tool_calls").and_then(Value::as_array);
    made.calls.extend(calls.into_iter().flatten().map(read_call));
    if let Some(function) = message.get("function_call").filter(|call| call.is_object()) {
        let name = function.get("name").and_then(Value::as_str);
        made.calls.push(ToolCall::new(None, name, function.get("arguments")));
    }
    if content.is_none() && !made.calls.is_empty() {
        made.content = None;
    }
    Ok(made)
}

fn read_call(call: &Value) -> ToolCall {
    let id = call.get("id").and_then(Value::as_str).map(str::to_owned);
    let field = |name: &str| ["function", "custom"].iter().find_map(|kind| call.get(kind)?.get(name));
    ToolCall::new(id, field("name").and_then(Value::as_str), field("arguments").or(field("input")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pictures_stand_between_the_texts() {
        let url = json!({"url": "data:image/png;base64,YWJj", "detail": "high"});
        let parts = json!([
            {"type": "text", "text": "a"},
            {"type": "image_url", "image_url": url},
            {"type": "text", "text": "b"},
        ]);
        let message = json!({"role": "user", "content": parts});
        let read = read_message(message.as_object().unwrap(), "messages[0]").unwrap();
        let text = |text: &str| json!({"type": "text", "text": text});
        assert_eq!(json!(read.content), json!([text("a"), {"type": "image"}, text("b")]));
        let pictures: Vec<_> = read.content.iter().flat_map(|content| content.pictures()).collect();
        assert_eq!(pictures, [&bn::Picture::new(*b"abc")]);
    }

    #[test]
    fn reasoning_is_turned_off_by_any_name() {
        let variables = |more: Value| {
            let mut body = Map::from_iter([("messages".to_owned(), json!([{"role": "user"}]))]);
            body.extend(more.as_object().unwrap().clone());
            let mut fields = Fields::new(body);
            let made = conversation(&mut fields).map(|made| Value::Object(made.variables));
            assert_eq!(fields.unknown().count(), 0);
            made.map_err(|failure| failure.message)
        };
        for (more, on) in [
            (json!({"reasoning": {"effort": "none"}}), Some(false)),
            (json!({"reasoning": {"enabled": false, "exclude": true}}), Some(false)),
            (json!({"enable_thinking": false}), Some(false)),
            (json!({"thinking": {"type": "disabled"}}), Some(false)),
            (json!({"thinking": {"type": "adaptive"}}), Some(true)),
            (json!({"chat_template_kwargs": {"enable_thinking": null}, "enable_thinking": true}), Some(true)),
            (json!({"reasoning": {"effort": null}, "thinking": {"type": "auto"}}), None),
        ] {
            let wanted = on.map_or(json!({}), |on| json!({ "enable_thinking": on }));
            assert_eq!(variables(more.clone()), Ok(wanted), "{more}");
        }
        let high = json!({"enable_thinking": true, "reasoning_effort": "high"});
        assert_eq!(variables(json!({"reasoning": {"effort": "high"}, "enable_thinking": false})), Ok(high));
        assert!(variables(json!({"thinking": {"type": "hard"}})).unwrap_err().starts_with("'thinking.type'"));
    }
}
