//! The objects of Ollama's answers: a whole one, or a line of a stream.
use serde_json::{Map, Value, json};
use std::time::{Duration, SystemTime};

/// The content of an answer, or a part of it.
#[derive(Debug, Default)]
pub struct Said<'a> {
    pub text: &'a str,
    pub reasoning: &'a str,
    pub calls: Vec<Value>,
}

impl Said<'_> {
    fn put(self, chat: bool, to: &mut Value) {
        let inner = match chat {
            true => {
                to["message"] = json!({"role": "assistant", "content": self.text});
                &mut to["message"]
            }
            false => {
                to["response"] = self.text.into();
                to
            }
        };
        if !self.reasoning.is_empty() {
            inner["thinking"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            inner["tool_calls"] = self.calls.into();
        }
    }
}

pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Why an answer ended, its tokens, and its times in nanoseconds. `loading`: how long it waited for its model.
pub fn end(finish: &bn::Finish, loading: Duration) -> Value {
    let stopped = matches!(finish.reason, bn::FinishReason::Stop | bn::FinishReason::StopString);
    let (usage, times) = (&finish.usage, &finish.times);
    json!({
        "done_reason": if stopped { "stop" } else { "length" },
        "total_duration": nanoseconds(times.total.saturating_add(loading)),
        "load_duration": nanoseconds(loading),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": nanoseconds(times.prefill),
        "eval_count": usage.generated_tokens,
        "eval_duration": nanoseconds(times.decode),
    })
}

/// An object of an answer. `end`: the last one's fields.
pub fn line(model: &str, chat: bool, said: Said, end: Option<Value>) -> Value {
    let created_at = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
    let mut line = json!({"model": model, "created_at": created_at});
    said.put(chat, &mut line);
    line["done"] = end.is_some().into();
    if let (Value::Object(line), Some(Value::Object(end))) = (&mut line, end) {
        line.extend(end);
    }
    line
}

/// A function call of an answer. Arguments are an object there; a call that was cut has none.
pub fn call(id: &str, name: &str, arguments: &str) -> Value {
    let arguments: Map<String, Value> = serde_json::from_str(arguments).unwrap_or_default();
    json!({"id": id, "function": {"name": name, "arguments": arguments}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_cut_has_no_arguments() {
        let made = |arguments: Value| json!({"id": "c", "function": {"name": "f", "arguments": arguments}});
        assert_eq!(call("c", "f", "{\"a\": 1}"), made(json!({"a": 1})));
        assert_eq!(call("c", "f", "{\"a\": "), made(json!({})));
    }
}
