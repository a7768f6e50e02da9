//! The fields of a response's request.
use super::items::Items;
use super::tools::{self, Namespaces};
use crate::api::openai::Reasoning;
use crate::failure::{Failure, Result};
use crate::fields::Fields;
use crate::memory::Lease;
use crate::request::constraint::Format;
use crate::request::conversation::{Content, Conversation, Role};
use crate::request::length::NewTokens;
use crate::request::templating::templating;
use crate::store::Kept;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Approximate bytes of a tree of values for each byte of its text.
pub const TREE: usize = 8;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Own {
    pub input: Option<Value>,
    instructions: Option<Value>,
    tools: Option<Vec<Map<String, Value>>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Reasoning>,
    text: Option<Text>,
    pub max_output_tokens: Option<NewTokens>,
    pub stream: Option<bool>,
    pub store: Option<bool>,
    pub previous_response_id: Option<String>,
    /// A conversation or a prompt that is stored by OpenAI's servers.
    conversation: Option<Value>,
    prompt: Option<Value>,
    stream_options: Option<Value>,
    top_logprobs: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Text {
    format: Option<Value>,
}

/// The fields that the answer repeats, with their defaults.
const ECHOED: &[(&str, &str)] = &[
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", "null"),
    ("prompt_cache_key", "null"),
    ("reasoning", r#"{"effort": null, "summary": null}"#),
    ("safety_identifier", "null"),
    ("service_tier", r#""default""#),
    ("text", r#"{"format": {"type": "text"}}"#),
    ("tool_choice", r#""auto""#),
    ("tools", "[]"),
    ("top_logprobs", "0"),
    ("truncation", r#""disabled""#),
    ("user", "null"),
];

/// The fields that the answer repeats.
pub fn echo(fields: &Fields) -> Map<String, Value> {
    let one = |(name, default): &(&str, &str)| {
        let default = || serde_json::from_str(default).unwrap_or_default();
        ((*name).to_owned(), fields.get(name).cloned().unwrap_or_else(default))
    };
    let mut echoed: Map<String, Value> = ECHOED.iter().map(one).collect();
    if let Some(text) = echoed.get_mut("text").and_then(Value::as_object_mut) {
        text.entry("format").or_insert_with(|| json!({"type": "text"}));
    }
    echoed
}

impl Own {
    pub fn take(fields: &mut Fields) -> Result<Self> {
        let own: Self = fields.take()?;
        for (name, value) in [("conversation", &own.conversation), ("prompt", &own.prompt)] {
            if value.is_some() {
                let words = format!("'{name}' is not supported: send the whole conversation");
                return Err(Failure::invalid(words));
            }
        }
        if own.input.is_none() {
            return Err(Failure::invalid("'input' is missing"));
        }
        Ok(own)
    }

    pub fn format(&self) -> Result<Format> {
        let mut format = Format::default();
        if let Some(value) = self.text.as_ref().and_then(|text| text.format.as_ref()) {
            format.format("text.format", value, None)?;
        }
        Ok(format)
    }

    /// The conversation, with its other settings in `fields`. `earlier`: the response that it continues; `lease` counts
    /// the memory of its items while they are read.
    pub fn conversation(
        &self,
        fields: &mut Fields,
        earlier: Option<&Arc<Kept>>,
        lease: &mut Lease,
    ) -> Result<(Conversation, Namespaces)> {
        let mut conversation = Conversation::default();
        let earlier: Value = match earlier {
            None => json!([]),
            Some(kept) => {
                lease.take(TREE * kept.items.len())?;
                serde_json::from_str(&kept.items).unwrap_or_default()
            }
        };
        let parts = [(Some(&earlier), "previous_response_id"), (self.input.as_ref(), "input")];
        let parts = parts.into_iter().filter_map(|(items, at)| Some((items?, at)));
        let (mut tools, mut namespaces) = tools::read(self.tools.as_deref().unwrap_or_default())?;
        for (items, at) in parts.clone() {
            tools::add_of_items(&mut tools, &mut namespaces, items, at)?;
        }
        let instructions = Content::read(self.instructions.as_ref(), "instructions")?;
        if !instructions.text.is_empty() {
            conversation.messages.push(instructions.message(Role::System));
        }
        let mut items = Items::new(&mut conversation.messages, &namespaces);
        for (values, at) in parts {
            items.add(values, at)?;
        }
        let choice = self.tool_choice.clone().map(|choice| namespaces.choice(choice));
        tools.give(&mut conversation, choice.as_ref().map(|choice| ("tool_choice", choice)))?;
        conversation.parallel = self.parallel_tool_calls;
        templating(fields, &mut conversation)?;
        if let Some(reasoning) = &self.reasoning {
            reasoning.apply(&mut conversation)?;
        }
        Ok((conversation, namespaces))
    }
}
