//! The objects of Ollama's answers: a whole one, or a line of a stream.
use super::messages;
use crate::api::openai::TokenLogprob;
use serde::Serialize;
use serde_json::Value;
use std::time::{Duration, SystemTime};

#[derive(Debug, Serialize)]
pub struct Line<'a> {
    pub model: &'a str,
    pub created_at: String,
    #[serde(flatten)]
    pub said: Said,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogprob>>,
    pub done: bool,
    #[serde(flatten)]
    pub end: Option<End>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Said {
    Chat {
        message: Message,
    },
    Generate {
        response: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        thinking: Option<String>,
    },
}

#[derive(Debug, Serialize)]
pub struct Message {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
}

/// Why an answer ended, in its last line.
#[derive(Debug, Serialize)]
pub struct End {
    done_reason: &'static str,
    #[serde(flatten)]
    counts: Option<Counts>,
}

/// Tokens, and times in nanoseconds.
#[derive(Debug, Serialize)]
struct Counts {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u32,
    prompt_eval_duration: u64,
    eval_count: u32,
    eval_duration: u64,
}

pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Said {
    pub fn new(chat: bool, text: &str, reasoning: &str, tool_calls: Vec<Value>) -> Self {
        let thinking = (!reasoning.is_empty()).then(|| reasoning.to_owned());
        match chat {
            true => {
                let (role, content) = ("assistant", text.to_owned());
                Self::Chat { message: Message { role, content, thinking, tool_calls } }
            }
            false => Self::Generate { response: text.to_owned(), thinking },
        }
    }

    pub fn nothing(chat: bool) -> Self {
        Self::new(chat, "", "", Vec::new())
    }
}

impl End {
    /// `loading`: how long it waited for its model.
    pub fn of(finish: &bn::Finish, loading: Duration) -> Self {
        let stopped = matches!(finish.reason, bn::FinishReason::Stop | bn::FinishReason::StopString);
        let (usage, times) = (&finish.usage, &finish.times);
        let counts = Counts {
            total_duration: nanoseconds(times.total.saturating_add(loading)),
            load_duration: nanoseconds(loading),
            prompt_eval_count: usage.prompt_tokens,
            prompt_eval_duration: nanoseconds(times.prefill),
            eval_count: usage.generated_tokens,
            eval_duration: nanoseconds(times.decode),
        };
        Self { done_reason: if stopped { "stop" } else { "length" }, counts: Some(counts) }
    }

    /// Of a request that loads its model alone, or lets go of it.
    pub fn of_model(done_reason: &'static str) -> Self {
        Self { done_reason, counts: None }
    }
}

impl<'a> Line<'a> {
    pub fn new(model: &'a str, said: Said, end: Option<End>) -> Self {
        let created_at = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        Self { model, created_at, said, logprobs: None, done: end.is_some(), end }
    }
}

/// A call of a stream until it is whole.
#[derive(Debug)]
pub struct Call {
    name: String,
    arguments: String,
}

impl Call {
    /// Adds a part. Returns the call before it once a new one begins.
    pub fn add(held: &mut Option<Self>, part: &bn::ToolCallPart) -> Option<Value> {
        let before = if part.id.is_some() { held.take().map(Self::whole) } else { None };
        let call = held.get_or_insert_with(|| Self {
            name: part.name.clone().unwrap_or_default(),
            arguments: String::new(),
        });
        call.arguments.push_str(&part.arguments);
        before
    }

    pub fn whole(self) -> Value {
        messages::call(&self.name, &self.arguments)
    }
}
