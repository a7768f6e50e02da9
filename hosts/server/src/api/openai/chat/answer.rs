//! The objects of a chat's answer.
use crate::api::openai::{Head, TokenLogprob};
use serde::Serialize;
use serde_json::Value;

#[derive(Debug, Serialize)]
pub struct ContentLogprobs {
    pub content: Vec<TokenLogprob>,
    pub refusal: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub arguments: String,
}

/// A call, or its next part.
#[derive(Debug, Serialize)]
pub struct CallPart {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    pub function: Function,
}

impl CallPart {
    /// A part in a stream: the first one of a call has its id and name.
    pub fn part(part: &bn::ToolCallPart) -> Self {
        let kind = part.id.is_some().then_some("function");
        let function = Function { name: part.name.clone(), arguments: part.arguments.clone() };
        Self { index: Some(part.index), id: part.id.clone(), kind, function }
    }

    pub fn whole(call: bn::ToolCall) -> Self {
        let function = Function { name: Some(call.name), arguments: call.arguments };
        Self { index: None, id: Some(call.id), kind: Some("function"), function }
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
    pub logprobs: Option<ContentLogprobs>,
    pub finish_reason: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub struct WholeChoice {
    pub index: usize,
    pub message: WholeMessage,
    pub logprobs: Option<ContentLogprobs>,
    pub finish_reason: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub struct WholeMessage {
    pub role: &'static str,
    pub content: Option<String>,
    pub refusal: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<CallPart>,
}

#[derive(Debug, Serialize)]
pub struct Answer<'a, C> {
    #[serde(flatten)]
    pub head: &'a Head,
    pub choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Value>,
    /// As in completions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Value>,
}

impl WholeMessage {
    pub fn new(answer: bn::Answer) -> Self {
        let calls_alone = answer.text.is_empty() && !answer.tool_calls.is_empty();
        Self {
            role: "assistant",
            content: (!calls_alone).then_some(answer.text),
            refusal: None,
            reasoning_content: (!answer.reasoning.is_empty()).then_some(answer.reasoning),
            tool_calls: answer.tool_calls.into_iter().map(CallPart::whole).collect(),
        }
    }
}
