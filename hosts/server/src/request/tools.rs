//! The functions that a client offers, and its choice among them.
use super::conversation::{Choice, Conversation};
use crate::failure::{Failure, Result};
use serde_json::{Map, Value};

/// Bytes of a function's name.
const MOST_NAME: usize = 128;

/// A client's tools while they are read.
#[derive(Debug, Default)]
pub struct Tools {
    functions: Vec<Value>,
    names: Vec<String>,
    /// Names and types of those that only others' servers have.
    left_out: Vec<String>,
}

/// The name of a function, which the engine's grammars must be able to write.
pub fn name_of<'a>(tool: &'a Map<String, Value>, at: &str) -> Result<&'a str> {
    let sign = |c: u8| c.is_ascii_alphanumeric() || b"_-.:/".contains(&c);
    let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
    if (1..=MOST_NAME).contains(&name.len()) && name.bytes().all(sign) {
        return Ok(name);
    }
    let words = format!("'{at}.name' must be 1 to {MOST_NAME} letters, digits or any of _-.:/");
    Err(Failure::invalid(words))
}

impl Tools {
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }

    /// Adds the function that stands at `at` of the body, under its own name or another. `schema`: its field with the
    /// parameters.
    pub fn add(&mut self, tool: &Map<String, Value>, name: &str, schema: &str, at: &str) -> Result<()> {
        let wrong = |field: &str, words: &str| Failure::invalid(format!("'{at}.{field}' {words}"));
        let given = |field: &str| tool.get(field).filter(|value| !value.is_null());
        if self.has(name) {
            return Err(wrong("name", &format!("is there twice: {name}")));
        }
        if given(schema).is_some_and(|schema| !schema.is_object()) {
            return Err(wrong(schema, "must be an object"));
        }
        if given("strict").is_some_and(|strict| !strict.is_boolean()) {
            return Err(wrong("strict", "must be true or false"));
        }
        if given("description").is_some_and(|text| !text.is_string()) {
            return Err(wrong("description", "must be a text"));
        }
        let mut function = Conversation::function(tool, schema);
        function["function"]["name"] = name.into();
        self.functions.push(function);
        self.names.push(name.to_owned());
        Ok(())
    }

    /// Passes over a tool that is no function of the client's.
    pub fn leave_out(&mut self, tool: &Map<String, Value>) {
        let text = |field: &str| tool.get(field).and_then(Value::as_str).map(str::to_owned);
        self.left_out.extend(["name", "type"].into_iter().filter_map(text));
    }

    /// Gives the functions to the conversation, with what is left of the choice: tools that were left out cannot be called.
    pub fn give(self, to: &mut Conversation, choice: Choice) -> Result<()> {
        to.choice = match choice {
            Choice::Function(name) if self.left_out.contains(&name) && !self.has(&name) => Choice::Auto,
            Choice::Function(name) if !self.has(&name) => {
                let name: String = name.chars().take(MOST_NAME).collect();
                return Err(Failure::invalid(format!(
                    "'tool_choice' asks for '{name}', and 'tools' has no such function"
                )));
            }
            Choice::Required if self.functions.is_empty() && self.left_out.is_empty() => {
                return Err(Failure::invalid(
                    "'tool_choice' asks for a call, and 'tools' has no such function",
                ));
            }
            Choice::Required if self.functions.is_empty() => Choice::Auto,
            choice => choice,
        };
        to.tools = self.functions;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn chosen(choice: Choice, functions: &[&str], left_out: &[&str]) -> std::result::Result<Choice, String> {
        let mut tools = Tools::default();
        for name in functions {
            tools.add(&object(json!({"name": name})), name, "parameters", "tools[0]").unwrap();
        }
        for kind in left_out {
            tools.leave_out(&object(json!({"type": kind, "name": "server"})));
        }
        let mut conversation = Conversation::default();
        tools.give(&mut conversation, choice).map_err(|failure| failure.message)?;
        Ok(conversation.choice)
    }

    #[test]
    fn a_choice_of_what_was_left_out_is_none() {
        let function = |name: &str| Choice::Function(name.to_owned());
        assert_eq!(chosen(function("a"), &["a"], &["x"]), Ok(function("a")));
        assert_eq!(chosen(function("server"), &["a"], &["x"]), Ok(Choice::Auto));
        assert_eq!(chosen(Choice::Required, &[], &["x"]), Ok(Choice::Auto));
        assert_eq!(chosen(Choice::Required, &["a"], &["x"]), Ok(Choice::Required));
        assert!(chosen(function("b"), &["a"], &[]).unwrap_err().ends_with("no such function"));
        assert!(chosen(Choice::Required, &[], &[]).unwrap_err().ends_with("no such function"));
    }

    #[test]
    fn a_mistake_is_told_by_its_place() {
        let mut tools = Tools::default();
        let mut add = |tool: Value| {
            let tool = object(tool);
            name_of(&tool, "tools[1]").and_then(|name| tools.add(&tool, name, "input_schema", "tools[1]"))
        };
        add(json!({"name": "f", "input_schema": null, "strict": null, "description": null})).unwrap();
        for (tool, words) in [
            (json!({}), "'tools[1].name' must be 1 to 128 letters, digits or any of _-.:/"),
            (json!({"name": "f f"}), "'tools[1].name' must be 1 to 128 letters, digits or any of _-.:/"),
            (json!({"name": "f"}), "'tools[1].name' is there twice: f"),
            (json!({"name": "g", "input_schema": []}), "'tools[1].input_schema' must be an object"),
            (json!({"name": "g", "strict": 1}), "'tools[1].strict' must be true or false"),
        ] {
            assert_eq!(add(tool).unwrap_err().message, words);
        }
    }
}
