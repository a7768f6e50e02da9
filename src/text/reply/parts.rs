//! Determines the parts to look for in the answer to a conversation.

use super::format::{FORMATS, HARMONY, THOUGHTS, format_named, format_of, thoughts_named, thoughts_of};
use super::known::MAX_FIELDS;
use super::{Known, ReplyParts, harmony};
use crate::base::{Error, Result};
use crate::text::chat::{Chat, ChatTemplate, ToolChoice};
use std::cell::Cell;
use std::fmt::Display;

/// The name for "no format".
const NONE: &str = "none";

impl ReplyParts {
    /// The parts of the answer to `prompt`, which `template` made of `chat`. Calls are looked for only if tools
    /// may be called. `InvalidArgument` for unknown names of formats.
    pub fn of(chat: &Chat, template: &ChatTemplate, prompt: &str) -> Result<Self> {
        let template = template.of(chat);
        let source = template.source();
        let format = match chat.tool_format.as_deref() {
            Some(NONE) => None,
            Some(name) => Some(format_named(name).ok_or_else(|| {
                unknown("tool_format", name, &FORMATS.each_ref().map(|format| format.name).join(", "))
            })?),
            None if template.knows_tools() => format_of(source),
            // The prompt describes this format.
            None => format_named("hermes"),
        };
        let thoughts = match chat.reasoning_format.as_deref() {
            Some(NONE) => None,
            Some(name) => Some(thoughts_named(name).ok_or_else(|| {
                unknown("reasoning_format", name, &THOUGHTS.each_ref().map(|tags| tags.name).join(", "))
            })?),
            None => thoughts_of(source),
        };
        let thinking = thoughts.is_some_and(|tags| {
            let continued = chat.prefill().and_then(|text| Some(&text[text.rfind(tags.open)?..]));
            let goes_on = continued.is_some_and(|text| !text.contains(tags.close));
            goes_on || prompt.trim_end().ends_with(tags.open)
        });
        let harmony =
            [format.map(|format| format.name), thoughts.map(|tags| tags.name)].contains(&Some(HARMONY));
        let begun = harmony && harmony::begins_within(prompt);
        let calls = chat.choice != ToolChoice::None;
        let left = Cell::new(MAX_FIELDS);
        Ok(Self {
            format: format.filter(|_| calls),
            thoughts,
            thinking,
            begun,
            tools: chat.tools().filter(|_| calls).map(|tool| Known::of(&tool, &left)).collect(),
            seed: 0,
        })
    }

    /// `Unsupported` if tools may be called but the format of calls is unknown.
    pub fn check(&self, chat: &Chat) -> Result<()> {
        let asked = match &chat.choice {
            ToolChoice::None => false,
            ToolChoice::Auto => chat.tool_format.as_deref() != Some(NONE),
            ToolChoice::Required | ToolChoice::Named(_) => true,
        };
        if self.format.is_some() || !asked {
            return Ok(());
        }
        Err(Error::unsupported("chat.json: tools: how the model writes calls is not known; set tool_format"))
    }
}

fn unknown(field: &str, name: &str, known: &dyn Display) -> Error {
    let name: String = name.chars().take(40).collect();
    Error::invalid(format!("chat.json: {field}: {name} is none of {NONE}, {known}"))
}
