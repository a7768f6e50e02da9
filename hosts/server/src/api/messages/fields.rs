//! The fields of Anthropic's messages.
use super::conversation;
use crate::api::openai::{effort, thinks};
use crate::failure::{Failure, Result};
use crate::fields::{EXACT, Fields, U32, Whole};
use crate::request::constraint::Format;
use crate::request::conversation::Conversation;
use crate::request::templating::templating;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Fields of a conversation, also where it is only counted.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conversing {
    messages: Option<Vec<Map<String, Value>>>,
    system: Option<Value>,
    tools: Option<Vec<Map<String, Value>>>,
    tool_choice: Option<Value>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    /// The older place of `output_config.format`.
    output_format: Option<Value>,
    thread: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Thinking {
    #[serde(rename = "type")]
    kind: Option<String>,
    budget_tokens: Option<Whole<-1, EXACT>>,
    display: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OutputConfig {
    effort: Option<Value>,
    format: Option<Value>,
}

/// Fields of a message that is generated.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Generating {
    /// 0: only fill the cache.
    pub max_tokens: Option<Whole<-1, U32>>,
    pub stop_sequences: Option<Value>,
    pub stream: Option<bool>,
}

/// The options that a conversation's fields ask for.
pub struct Asked {
    pub conversation: Conversation,
    pub format: Format,
    /// The bound on reasoning; -1: none.
    pub budget: Option<i64>,
    /// Thinking blocks are sent without their text.
    pub hides_thinking: bool,
}

impl Asked {
    /// Takes the fields.
    pub fn take(fields: &mut Fields) -> Result<Self> {
        let own: Conversing = fields.take()?;
        if own.thread.is_some() {
            // On this code, Anthropic's clients send the whole conversation.
            let words = "'thread' is not supported: send the whole conversation";
            return Err(Failure::new(StatusCode::BAD_REQUEST, "thread_unsupported_request", words));
        }
        let messages = own.messages.ok_or_else(|| Failure::invalid("'messages' is missing"))?;
        let mut conversation = conversation::read(own.system.as_ref(), &messages)?;
        conversation::read_tools(
            &mut conversation,
            &own.tools.unwrap_or_default(),
            own.tool_choice.as_ref(),
        )?;
        templating(fields, &mut conversation)?;
        let output = own.output_config.unwrap_or_default();
        let mut format = Format::default();
        let formats = [("output_config.format", output.format), ("output_format", own.output_format)];
        // If both names are given, the newer one counts.
        if let Some((name, value)) = formats.into_iter().find_map(|(name, value)| Some((name, value?))) {
            format.format(name, &value, None)?;
        }
        let thinking = own.thinking.unwrap_or_default();
        let thinks = thinks(thinking.kind.as_deref())?;
        think(&mut conversation, thinks, output.effort.as_ref())?;
        Ok(Self {
            conversation,
            format,
            budget: thinking.budget_tokens.filter(|_| thinks != Some(false)).map(|tokens| tokens.0),
            hides_thinking: thinking.display.as_deref() == Some("omitted"),
        })
    }
}

/// An effort alone does not turn thinking on.
fn think(to: &mut Conversation, thinks: Option<bool>, degree: Option<&Value>) -> Result<()> {
    let degree = degree.map(|value| effort("output_config.effort", value)).transpose()?.flatten();
    let (on, word) = degree.unwrap_or((true, None));
    match thinks.or((!on).then_some(false)) {
        Some(true) => to.think(on, word),
        Some(false) => to.think(false, None),
        None => {
            if let Some(word) = word {
                to.variables.entry("reasoning_effort").or_insert(word.into());
            }
        }
    }
    Ok(())
}
