//! The objects of a chat's answer.
use serde::Serialize;
use serde_json::{Value, json};

#[derive(Debug, Serialize)]
struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

/// A part of a call: the first one has its id and name.
#[derive(Debug, Serialize)]
pub struct CallPart {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: Function,
}

impl CallPart {
    pub fn new(part: &bn::ToolCallPart) -> Self {
        let kind = part.id.is_some().then_some("function");
        let function = Function { name: part.name.clone(), arguments: part.arguments.clone() };
        Self { index: part.index, id: part.id.clone(), kind, function }
    }
}

#[derive(Debug, Default, Serialize)]
pub struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<CallPart>,
}

#[derive(Debug, Serialize)]
pub struct Chunk {
    pub index: usize,
    pub delta: Delta,
    pub logprobs: Option<Value>,
    pub finish_reason: Option<&'static str>,
}

/// The message of a whole answer.
pub fn message(answer: bn::Answer) -> Value {
    let calls_alone = answer.text.is_empty() && !answer.tool_calls.is_empty();
    let content = (!calls_alone).then_some(answer.text);
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !answer.reasoning.is_empty() {
        message["reasoning_content"] = answer.reasoning.into();
    }
    if !answer.tool_calls.is_empty() {
        let call = |call: &bn::ToolCall| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        };
        message["tool_calls"] = answer.tool_calls.iter().map(call).collect();
    }
    message
}
