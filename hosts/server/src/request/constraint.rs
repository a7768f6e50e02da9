//! Formats and grammars of answers: OpenAI's fields, and llama.cpp's and vLLM's names for them.
use crate::failure::{Failure, Result};
use crate::models::Held;
use crate::options::{ClosedSchemas, JsonWhitespace};
use crate::request::conversation::Conversation;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Formats {
    response_format: Option<Value>,
    json_schema: Option<Value>,
    guided_json: Option<Value>,
    guided_regex: Option<String>,
    guided_grammar: Option<String>,
    grammar: Option<String>,
    structured_outputs: Option<Value>,
    json_whitespace: Option<String>,
    unknown_formats: Option<Value>,
}

/// What an answer must match, while the fields that say it are read. Two of them are refused.
#[derive(Debug, Default)]
pub struct Format {
    kind: Option<(bn::ConstraintKind, String)>,
}

impl Format {
    fn set(&mut self, field: &str, kind: bn::ConstraintKind, text: String) -> Result<()> {
        if self.kind.is_some() {
            return Err(Failure::invalid(format!("'{field}' is a second format or grammar of the answer")));
        }
        self.kind = Some((kind, text));
        Ok(())
    }

    /// A schema as an object, as true or false, or as a text.
    pub fn schema(&mut self, field: &str, schema: Option<&Value>) -> Result<()> {
        let text = match schema {
            Some(Value::String(text)) => text.clone(),
            Some(schema @ (Value::Object(_) | Value::Bool(_))) => schema.to_string(),
            _ => return Err(Failure::invalid(format!("'{field}' needs a JSON schema"))),
        };
        self.set(field, bn::ConstraintKind::JsonSchema, text)
    }

    /// A `format` of the type text, json_object or json_schema. `schema_in`: the field with the schema, in OpenAI's older
    /// form. A schema beside json_object counts too, as in llama.cpp.
    pub fn format(&mut self, field: &str, format: &Value, schema_in: Option<&str>) -> Result<()> {
        let given = |value: &Value| value.get("schema").filter(|schema| !schema.is_null()).cloned();
        match format.get("type").and_then(Value::as_str) {
            Some("text") => Ok(()),
            Some("json_object") => match given(format) {
                Some(schema) => self.schema(field, Some(&schema)),
                None => self.object(field),
            },
            Some("json_schema") => {
                let holder = schema_in.and_then(|name| format.get(name)).unwrap_or(format);
                self.schema(field, given(holder).as_ref())
            }
            _ => Err(Failure::invalid(format!(
                "'{field}' must have the type 'text', 'json_object' or 'json_schema'"
            ))),
        }
    }

    /// Any JSON object.
    pub fn object(&mut self, field: &str) -> Result<()> {
        self.set(field, bn::ConstraintKind::JsonObject, String::new())
    }

    /// vLLM's object with one of `json`, `regex` and `grammar`.
    fn structured(&mut self, value: &Value) -> Result<()> {
        let field = "structured_outputs";
        let only =
            value.as_object().filter(|object| object.len() == 1).and_then(|object| object.iter().next());
        match only {
            Some((name, json)) if name == "json" => self.schema(field, Some(json)),
            Some((name, Value::String(text))) if name == "regex" => {
                self.set(field, bn::ConstraintKind::Regex, text.clone())
            }
            Some((name, Value::String(text))) if name == "grammar" => {
                self.set(field, bn::ConstraintKind::Gbnf, text.clone())
            }
            _ => Err(Failure::invalid(format!(
                "'{field}' must be an object with one of 'json', 'regex' and 'grammar'"
            ))),
        }
    }
}

impl Formats {
    /// Adds these fields to `format`, and makes the constraint of it.
    pub fn constraint(
        self,
        held: &Held,
        mut format: Format,
        chat: Option<&Conversation>,
    ) -> Result<Option<bn::Constraint>> {
        if let Some(value) = &self.response_format {
            format.format("response_format", value, Some("json_schema"))?;
        }
        for (field, schema) in [("json_schema", &self.json_schema), ("guided_json", &self.guided_json)] {
            if schema.is_some() {
                format.schema(field, schema.as_ref())?;
            }
        }
        let texts = [
            ("guided_regex", self.guided_regex, bn::ConstraintKind::Regex),
            ("grammar", self.grammar, bn::ConstraintKind::Gbnf),
            ("guided_grammar", self.guided_grammar, bn::ConstraintKind::Gbnf),
        ];
        for (field, text, kind) in texts {
            if let Some(text) = text {
                format.set(field, kind, text)?;
            }
        }
        if let Some(value) = &self.structured_outputs {
            format.structured(value)?;
        }
        let tools = chat.is_some_and(|chat| !chat.tools.is_empty());
        let whitespace = match self.json_whitespace.map(JsonWhitespace::try_from) {
            None => held.options.json_whitespace,
            Some(Ok(whitespace)) => whitespace,
            Some(Err(words)) => return Err(Failure::invalid(format!("'json_whitespace' {words}"))),
        };
        let known_formats = match self.unknown_formats.as_ref().map(Value::as_str) {
            None | Some(Some("ignore")) => false,
            Some(Some("refuse")) => true,
            Some(_) => return Err(Failure::invalid("'unknown_formats' must be 'refuse' or 'ignore'")),
        };
        let closed = match held.options.closed_schemas {
            ClosedSchemas::All => true,
            ClosedSchemas::Tools => tools,
            ClosedSchemas::None => false,
        };
        let json = bn::JsonFlags {
            compact: whitespace == JsonWhitespace::Compact,
            flexible: whitespace == JsonWhitespace::Flexible,
            known_formats,
            closed,
        };
        // An answer that must be a call has no text for the format.
        Ok(match format.kind.filter(|_| !chat.is_some_and(Conversation::calls_only)) {
            Some((kind, text)) => {
                let is_json = matches!(kind, bn::ConstraintKind::JsonSchema | bn::ConstraintKind::JsonObject);
                let json = if is_json || tools { json } else { bn::JsonFlags::default() };
                Some(bn::Constraint { kind, text, json })
            }
            None if tools => {
                Some(bn::Constraint { kind: bn::ConstraintKind::None, text: String::new(), json })
            }
            None => None,
        })
    }
}
