//! Fields of conversations that go to the template and the engine as they are, by vLLM's and the engine's names.
use super::conversation::Conversation;
use crate::failure::Result;
use crate::fields::{self, Fields};

const NAMES: &[&str] =
    &["documents", "add_generation_prompt", "continue_final_message", "tool_format", "reasoning_format"];

/// Takes the fields. Variables that are there count before those that other fields stand for.
pub fn templating(fields: &mut Fields, to: &mut Conversation) -> Result<()> {
    if let Some(variables) = fields.take_value("chat_template_kwargs") {
        to.variables = fields::read(variables, "chat_template_kwargs")?;
    }
    for name in NAMES {
        to.more.extend(fields.take_value(name).map(|value| ((*name).to_owned(), value)));
    }
    Ok(())
}
