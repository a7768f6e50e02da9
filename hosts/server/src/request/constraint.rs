//! Formats and grammars of answers: OpenAI's fields, and llama.cpp's and vLLM's names for them.
use crate::failure::{Failure, Result};
use crate::fields::Fields;
use crate::models::Held;
use crate::options::{ClosedSchemas, JsonWhitespace};
use crate::request::conversation::Conversation;
use serde::Deserialize;
use serde_json::Value;

/// Fields with a format or a grammar alone.
const FORMATS: &[(&str, bn::ConstraintKind)] = &[
    ("json_schema", bn::ConstraintKind::JsonSchema),
    ("guided_json", bn::ConstraintKind::JsonSchema),
    ("guided_regex", bn::ConstraintKind::Regex),
    ("grammar", bn::ConstraintKind::Gbnf),
    ("guided_grammar", bn::ConstraintKind::Gbnf),
];

/// The fields of vLLM's `structured_outputs`, which has one of them.
const STRUCTURED: &[(&str, bn::ConstraintKind)] = &[
    ("json", bn::ConstraintKind::JsonSchema),
    ("regex", bn::ConstraintKind::Regex),
    ("grammar", bn::ConstraintKind::Gbnf),
];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Own {
    response_format: Option<Value>,
    structured_outputs: Option<Value>,
    json_whitespace: Option<String>,
    unknown_formats: Option<Value>,
}

/// The form of an answer, while the fields that say it are read. Two of them are refused.
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

    /// A grammar as a text, or a schema as an object, as true or false, or as a text.
    fn add(&mut self, field: &str, kind: bn::ConstraintKind, value: &Value) -> Result<()> {
        let is_schema = kind == bn::ConstraintKind::JsonSchema;
        match value {
            Value::String(text) => self.set(field, kind, text.clone()),
            Value::Object(_) | Value::Bool(_) if is_schema => self.set(field, kind, value.to_string()),
            _ if is_schema => Err(Failure::invalid(format!("'{field}' needs a JSON schema"))),
            _ => Err(Failure::invalid(format!("'{field}' must be a text"))),
        }
    }

    pub fn schema(&mut self, field: &str, schema: &Value) -> Result<()> {
        self.add(field, bn::ConstraintKind::JsonSchema, schema)
    }

    /// Any JSON object.
    pub fn object(&mut self, field: &str) -> Result<()> {
        self.set(field, bn::ConstraintKind::JsonObject, String::new())
    }

    /// A `format` of the type text, json_object or json_schema. `schema_in`: the field with the schema, in OpenAI's older
    /// form. A schema beside json_object counts too, as in llama.cpp.
    pub fn format(&mut self, field: &str, format: &Value, schema_in: Option<&str>) -> Result<()> {
        match format.get("type").and_then(Value::as_str) {
            Some("text") => Ok(()),
            Some("json_object") if format["schema"].is_null() => self.object(field),
            Some("json_object") => self.schema(field, &format["schema"]),
            Some("json_schema") => {
                let holder = schema_in.and_then(|name| format.get(name)).unwrap_or(format);
                self.schema(field, &holder["schema"])
            }
            _ => Err(Failure::invalid(format!(
                "'{field}' must have the type 'text', 'json_object' or 'json_schema'"
            ))),
        }
    }

    fn structured(&mut self, field: &str, value: &Value) -> Result<()> {
        let only =
            value.as_object().filter(|object| object.len() == 1).and_then(|object| object.iter().next());
        let kind = only.and_then(|(name, _)| STRUCTURED.iter().find(|(known, _)| known == name));
        let ((_, value), (_, kind)) = only.zip(kind).ok_or_else(|| {
            Failure::invalid(format!("'{field}' must be an object with one of 'json', 'regex' and 'grammar'"))
        })?;
        self.add(field, *kind, value)
    }

    /// Adds what the fields that all APIs share say, and makes the constraint of it all.
    pub fn constraint(
        mut self,
        held: &Held,
        fields: &mut Fields,
        chat: Option<&Conversation>,
    ) -> Result<Option<bn::Constraint>> {
        let own: Own = fields.take()?;
        if let Some(value) = &own.response_format {
            self.format("response_format", value, Some("json_schema"))?;
        }
        for (field, kind) in FORMATS {
            if let Some(value) = fields.take_value(field) {
                self.add(field, *kind, &value)?;
            }
        }
        if let Some(value) = &own.structured_outputs {
            self.structured("structured_outputs", value)?;
        }
        let tools = chat.is_some_and(|chat| !chat.tools.is_empty());
        let json = own.flags(held, tools)?;
        // An answer that must be a call has no text for the format.
        Ok(match self.kind.filter(|_| !chat.is_some_and(Conversation::calls_only)) {
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

impl Own {
    fn flags(self, held: &Held, tools: bool) -> Result<bn::JsonFlags> {
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
        Ok(bn::JsonFlags {
            compact: whitespace == JsonWhitespace::Compact,
            flexible: whitespace == JsonWhitespace::Flexible,
            known_formats,
            closed,
        })
    }
}
