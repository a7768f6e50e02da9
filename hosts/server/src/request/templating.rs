//! Fields of conversations that go to the template and the engine as they are, by vLLM's and the engine's names.
use super::conversation::Conversation;
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Templating {
    chat_template_kwargs: Option<Map<String, Value>>,
    documents: Option<Value>,
    add_generation_prompt: Option<Value>,
    continue_final_message: Option<Value>,
    tool_format: Option<Value>,
    reasoning_format: Option<Value>,
}

impl Templating {
    /// Variables that are there count before those that other fields stand for.
    pub fn apply(self, to: &mut Conversation) {
        to.variables = self.chat_template_kwargs.unwrap_or_default();
        let named = [
            ("documents", self.documents),
            ("add_generation_prompt", self.add_generation_prompt),
            ("continue_final_message", self.continue_final_message),
            ("tool_format", self.tool_format),
            ("reasoning_format", self.reasoning_format),
        ];
        to.more.extend(named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }
}
