//! Formats and grammars of answers: OpenAI's fields, and llama.cpp's and vLLM's names for them.
use crate::failure::{Failure, Result};
use crate::fields::Fields;
use crate::models::Held;
use crate::options::{ClosedSchemas, JsonWhitespace};
use crate::request::conversation::Conversation;
use serde::Deserialize;
use serde_json::Value;

type Add = fn(&mut Format, &str, &Value) -> Result<()>;

/// Fields that hold only a format or a grammar: llama.cpp's, vLLM's and SGLang's.
const FORMATS: &[(&str, Add)] = &[
    ("json_schema", Format::schema),
    ("guided_json", Format::schema),
    ("guided_regex", Format::regex),
    ("guided_choice", Format::choice),
    ("guided_grammar", Format::grammar),
    ("grammar", Format::grammar),
    ("regex", Format::regex),
    ("ebnf", Format::grammar),
];

/// The fields of vLLM's `structured_outputs`.
const STRUCTURED: &[(&str, Add)] = &[
    ("json", Format::schema),
    ("json_object", |format, field, on| if *on == true { format.object(field) } else { Ok(()) }),
    ("regex", Format::regex),
    ("choice", Format::choice),
    ("grammar", Format::grammar),
    // These select vLLM's implementation, or where white space may be.
    ("backend", |_, _, _| Ok(())),
    ("disable_fallback", |_, _, _| Ok(())),
    ("disable_any_whitespace", |_, _, _| Ok(())),
    ("disable_additional_properties", |_, _, _| Ok(())),
    ("whitespace_pattern", |_, _, _| Ok(())),
];

/// An empty text and an empty list are not set, as null is not.
fn is_set(value: &Value) -> bool {
    !value.is_null() && *value != "" && value.as_array().is_none_or(|list| !list.is_empty())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Own {
    response_format: Option<Value>,
    structured_outputs: Option<Value>,
    json_whitespace: Option<String>,
    unknown_formats: Option<Value>,
}

/// The constraint of an answer, collected from the fields. Two different ones are refused.
#[derive(Debug, Default)]
pub struct Format {
    kind: Option<(bn::ConstraintKind, String)>,
}

impl Format {
    fn set(&mut self, field: &str, kind: bn::ConstraintKind, text: String) -> Result<()> {
        let new = (kind, text);
        if self.kind.as_ref().is_some_and(|own| *own != new) {
            return Err(Failure::invalid(format!("'{field}' is a second format or grammar of the answer")));
        }
        self.kind = Some(new);
        Ok(())
    }

    /// Adds a schema: an object, true or false, or a text.
    pub fn schema(&mut self, field: &str, schema: &Value) -> Result<()> {
        let text = match schema {
            Value::String(text) if !text.is_empty() => text.clone(),
            Value::Object(_) | Value::Bool(_) => schema.to_string(),
            _ => return Err(Failure::invalid(format!("'{field}' needs a JSON schema"))),
        };
        self.set(field, bn::ConstraintKind::JsonSchema, text)
    }

    fn text(&mut self, field: &str, kind: bn::ConstraintKind, value: &Value) -> Result<()> {
        let text = value.as_str().ok_or_else(|| Failure::invalid(format!("'{field}' must be a text")))?;
        self.set(field, kind, text.to_owned())
    }

    fn regex(&mut self, field: &str, value: &Value) -> Result<()> {
        self.text(field, bn::ConstraintKind::Regex, value)
    }

    fn grammar(&mut self, field: &str, value: &Value) -> Result<()> {
        self.text(field, bn::ConstraintKind::Gbnf, value)
    }

    /// Adds a choice of several texts.
    fn choice(&mut self, field: &str, value: &Value) -> Result<()> {
        let texts =
            value.as_array().and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        let texts = texts.ok_or_else(|| Failure::invalid(format!("'{field}' must be a list of texts")))?;
        let alternatives: Vec<_> = texts.into_iter().map(literal).collect();
        self.set(field, bn::ConstraintKind::Regex, alternatives.join("|"))
    }

    /// Adds the constraint to any JSON object.
    pub fn object(&mut self, field: &str) -> Result<()> {
        self.set(field, bn::ConstraintKind::JsonObject, String::new())
    }

    /// A `format` of the type text, json_object or json_schema. `schema_in`: the field with the schema, in OpenAI's
    /// older form. A schema beside json_object counts too, as in llama.cpp.
    pub fn format(&mut self, field: &str, format: &Value, schema_in: Option<&str>) -> Result<()> {
        match format.get("type").and_then(Value::as_str) {
            Some("text") => Ok(()),
            Some("json_object") if format["schema"].is_null() => self.object(field),
            Some("json_object") => self.schema(field, &format["schema"]),
            Some("json_schema") => {
                let inner = schema_in.and_then(|name| format.get(name)).filter(|inner| !inner.is_null());
                let holder = inner.unwrap_or(format);
                self.schema(field, &holder["schema"])
            }
            _ => Err(Failure::invalid(format!(
                "'{field}' must have the type 'text', 'json_object' or 'json_schema'"
            ))),
        }
    }

    fn structured(&mut self, field: &str, value: &Value) -> Result<()> {
        let members =
            value.as_object().ok_or_else(|| Failure::invalid(format!("'{field}' must be an object")))?;
        for (name, value) in members.iter().filter(|(_, value)| is_set(value)) {
            let place = format!("{field}.{name}");
            let (_, add) = STRUCTURED.iter().find(|(known, _)| known == name).ok_or_else(|| {
                Failure::invalid(format!(
                    "'{place}' is not supported: 'json', 'regex', 'choice' and 'grammar' are"
                ))
            })?;
            add(self, &place, value)?;
        }
        Ok(())
    }

    /// Adds the fields that all APIs share, and returns the constraint.
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
        for (field, add) in FORMATS {
            if let Some(value) = fields.take_value(field).filter(is_set) {
                add(&mut self, field, &value)?;
            }
        }
        if let Some(value) = &own.structured_outputs {
            self.structured("structured_outputs", value)?;
        }
        let tools = chat.is_some_and(|chat| !chat.tools.is_empty());
        let json = own.flags(held, tools)?;
        // If the answer must be a call, there is no text for the format.
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

/// A regular expression for this text.
fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
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
