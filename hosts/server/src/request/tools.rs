//! The functions that a client offers, and its choice among them.
use super::conversation::Conversation;
use crate::failure::{Failure, Result};
use serde_json::{Map, Value, json};
use std::slice;

type Object = Map<String, Value>;
type Fits = fn(&Value) -> bool;

/// Bytes of a function's name.
const MOST_NAME: usize = 128;

/// The form of clients' functions in an API. Tools of other types run on its owner's servers, or are known only to its
/// models, and are left out.
#[derive(Clone, Copy)]
pub struct Form {
    /// The type of functions, which is optional.
    kind: &'static str,
    /// The field with the parameters.
    schema: &'static str,
}

pub const OPENAI: Form = Form { kind: "function", schema: "parameters" };
pub const ANTHROPIC: Form = Form { kind: "custom", schema: "input_schema" };

/// A client's tools while they are read.
#[derive(Debug, Default)]
pub struct Tools {
    /// The functions in the engine's form.
    functions: Vec<Value>,
    /// Names and types of tools that only other servers have.
    left_out: Vec<String>,
}

fn text<'a>(object: &'a Object, field: &str) -> Option<&'a str> {
    object.get(field).and_then(Value::as_str)
}

/// The name of a function, which the engine's grammars must be able to write.
pub fn name_of<'a>(tool: &'a Object, at: &str) -> Result<&'a str> {
    let sign = |c: u8| c.is_ascii_alphanumeric() || b"_-.:/".contains(&c);
    let name = text(tool, "name").unwrap_or_default();
    if (1..=MOST_NAME).contains(&name.len()) && name.bytes().all(sign) {
        return Ok(name);
    }
    let words = format!("'{at}.name' must be 1 to {MOST_NAME} letters, digits or any of _-.:/");
    Err(Failure::invalid(words))
}

fn shown_name(function: &Value) -> &str {
    function["function"]["name"].as_str().unwrap_or_default()
}

impl Tools {
    /// Reads the field `tools`.
    pub fn read(given: &[Object], form: Form) -> Result<Self> {
        let mut tools = Self::default();
        tools.add_all("tools", given, form)?;
        Ok(tools)
    }

    pub fn add_all(&mut self, field: &str, given: &[Object], form: Form) -> Result<()> {
        for (i, tool) in given.iter().enumerate() {
            if text(tool, "type").is_some_and(|kind| kind != form.kind) {
                self.leave_out(tool);
                continue;
            }
            // OpenAI's chats and Ollama have the function in an inner object.
            let at = format!("{field}[{i}]");
            let (function, at) = match tool.get("function") {
                Some(Value::Object(function)) => (function, format!("{at}.function")),
                _ => (tool, at),
            };
            self.add(function, name_of(function, &at)?, form, &at)?;
        }
        Ok(())
    }

    pub fn has(&self, name: &str) -> bool {
        self.functions.iter().any(|own| shown_name(own) == name)
    }

    /// Adds the function at `at` in the body, under its own name or another.
    pub fn add(&mut self, function: &Object, name: &str, form: Form, at: &str) -> Result<()> {
        if self.has(name) {
            return Err(Failure::invalid(format!("'{at}.name' is there twice: {name}")));
        }
        let mut made = json!({ "name": name });
        let fields: [(_, _, Fits, _); 3] = [
            ("description", "description", Value::is_string, "a text"),
            (form.schema, "parameters", Value::is_object, "an object"),
            ("strict", "strict", Value::is_boolean, "true or false"),
        ];
        for (field, to, fits, words) in fields {
            let Some(value) = function.get(field).filter(|value| !value.is_null()) else { continue };
            if !fits(value) {
                return Err(Failure::invalid(format!("'{at}.{field}' must be {words}")));
            }
            made[to] = value.clone();
        }
        self.functions.push(json!({"type": "function", "function": made}));
        Ok(())
    }

    /// Skips a tool that is not a function of the client, with all its contents.
    pub fn leave_out(&mut self, tool: &Object) {
        for (field, value) in tool {
            let values = value.as_array().map_or(slice::from_ref(value), Vec::as_slice);
            values.iter().filter_map(Value::as_object).for_each(|inner| self.leave_out(inner));
            if let ("name" | "type", Value::String(name)) = (field.as_str(), value) {
                self.left_out.push(name.clone());
            }
        }
    }

    /// Adds the functions to the conversation, with the choice among them, which is in a field.
    pub fn give(mut self, to: &mut Conversation, choice: Option<(&str, &Value)>) -> Result<()> {
        to.choice = choice.map(|(field, value)| self.chosen(field, value)).transpose()?;
        to.tools = self.functions;
        Ok(())
    }

    /// The choice in the engine's form. Tools that were left out cannot be called.
    fn chosen(&mut self, field: &str, value: &Value) -> Result<Value> {
        let word = value.as_str().or_else(|| value.get("type")?.as_str());
        let allowed = value.get("allowed_tools").unwrap_or(value);
        match word {
            Some(word @ ("none" | "auto")) => Ok(word.into()),
            Some("required" | "any") if !self.functions.is_empty() => Ok("required".into()),
            Some("required" | "any") if !self.left_out.is_empty() => Ok("auto".into()),
            Some("required" | "any") => {
                Err(Failure::invalid(format!("'{field}' asks for a call, and 'tools' has no such function")))
            }
            Some("allowed_tools") if allowed["tools"].is_array() => Ok(self.allow(allowed)),
            Some("function" | "tool") | None if value.is_object() => self.function(field, value),
            Some(word) if value.is_object() && word != "allowed_tools" => Ok("auto".into()),
            _ => Err(Failure::invalid(format!(
                "'{field}' must be none, auto, required, a function or a list of allowed tools"
            ))),
        }
    }

    fn function(&self, field: &str, value: &Value) -> Result<Value> {
        let name = value.get("function").unwrap_or(value).get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| Failure::invalid(format!("'{field}.name' must be a text")))?;
        if self.has(name) {
            return Ok(json!({"type": "function", "function": {"name": name}}));
        }
        if self.left_out.iter().any(|own| own == name) {
            return Ok("auto".into());
        }
        let name: String = name.chars().take(MOST_NAME).collect();
        Err(Failure::invalid(format!("'{field}' asks for '{name}', and 'tools' has no such function")))
    }

    /// Keeps the functions that are allowed.
    fn allow(&mut self, allowed: &Value) -> Value {
        let name =
            |tool: &Value| tool.get("function").unwrap_or(tool).get("name")?.as_str().map(str::to_owned);
        let names: Vec<_> = allowed["tools"].as_array().into_iter().flatten().filter_map(name).collect();
        self.functions.retain(|function| names.iter().any(|name| name == shown_name(function)));
        let required = allowed.get("mode").is_some_and(|mode| mode == "required");
        if required && !self.functions.is_empty() { "required".into() } else { "auto".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(choice: Value, tools: &Value) -> std::result::Result<Value, String> {
        let given: Vec<Object> = serde_json::from_value(tools.clone()).unwrap();
        let mut conversation = Conversation::default();
        let tools = Tools::read(&given, OPENAI).map_err(|failure| failure.message)?;
        tools.give(&mut conversation, Some(("tool_choice", &choice))).map_err(|failure| failure.message)?;
        Ok(conversation.choice.unwrap())
    }

    #[test]
    fn a_choice_of_what_was_left_out_is_none() {
        let function = |name: &str| json!({"type": "function", "function": {"name": name}});
        let flat = |name: &str| json!({"type": "tool", "name": name});
        let (left_out, both) = (
            json!([{"type": "x", "name": "server"}]),
            json!([{"name": "a"}, {"type": "x", "name": "server", "tools": [{"custom": {"name": "inner"}}]}]),
        );
        for choice in [function("a"), flat("a")] {
            assert_eq!(chosen(choice, &both), Ok(function("a")));
        }
        for (choice, tools, word) in [
            (function("server"), &both, "auto"),
            (function("inner"), &both, "auto"),
            (json!({"type": "x"}), &both, "auto"),
            (json!("required"), &left_out, "auto"),
            (json!({"type": "any"}), &both, "required"),
            (
                json!({"type": "allowed_tools", "mode": "required", "tools": [{"name": "a"}]}),
                &both,
                "required",
            ),
            (json!({"type": "allowed_tools", "mode": "required", "tools": []}), &both, "auto"),
        ] {
            assert_eq!(chosen(choice, tools), Ok(word.into()));
        }
        assert!(chosen(function("b"), &both).unwrap_err().ends_with("no such function"));
        assert!(chosen(json!("required"), &json!([])).unwrap_err().ends_with("no such function"));
    }

    #[test]
    fn a_mistake_is_told_by_its_place() {
        let plain = json!({"name": "f", "input_schema": null, "strict": null, "description": null});
        for (tool, words) in [
            (json!({}), "'tools[1].name' must be 1 to 128 letters, digits or any of _-.:/"),
            (json!({"name": "f f"}), "'tools[1].name' must be 1 to 128 letters, digits or any of _-.:/"),
            (json!({"name": "f"}), "'tools[1].name' is there twice: f"),
            (json!({"name": "g", "input_schema": []}), "'tools[1].input_schema' must be an object"),
            (json!({"name": "g", "strict": 1}), "'tools[1].strict' must be true or false"),
            (
                json!({"function": {}}),
                "'tools[1].function.name' must be 1 to 128 letters, digits or any of _-.:/",
            ),
        ] {
            let given: Vec<Object> = serde_json::from_value(json!([plain, tool])).unwrap();
            assert_eq!(Tools::read(&given, ANTHROPIC).unwrap_err().message, words);
        }
    }
}
