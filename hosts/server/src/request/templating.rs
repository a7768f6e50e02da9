//! Fields of conversations that are passed to the template and the engine unchanged, under vLLM's and the
//! engine's names.
use super::conversation::Conversation;
use crate::failure::Result;
use crate::fields::{self, Fields};
use serde_json::Value;

const NAMES: &[&str] =
    &["documents", "add_generation_prompt", "continue_final_message", "tool_format", "reasoning_format"];

/// llama.cpp's values of `reasoning_format` that leave the format to the template.
const TEMPLATES_OWN: &[&str] = &["", "auto", "deepseek", "deepseek-legacy"];

/// Takes the fields. Explicit variables take precedence over those that other fields imply.
pub fn templating(fields: &mut Fields, to: &mut Conversation) -> Result<()> {
    if let Some(variables) = fields.take_value("chat_template_kwargs") {
        to.variables = fields::read(variables, "chat_template_kwargs")?;
        to.variables.retain(|_, value| !value.is_null());
    }
    let word = fields.get("reasoning_format").and_then(Value::as_str);
    if word.is_some_and(|word| TEMPLATES_OWN.contains(&word)) {
        fields.take_value("reasoning_format");
    }
    for name in NAMES {
        to.more.extend(fields.take_value(name).map(|value| ((*name).to_owned(), value)));
    }
    Ok(())
}
