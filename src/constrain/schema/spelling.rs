//! JSON's spelling: white space and escapes. A schema's `x-guidance` overrides a request's options.

use super::Refusal;
use super::normal::Fields;
use serde_json::{Value, json};

/// White space between JSON's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhiteSpace {
    /// At most one space after `:` and `,`; anywhere, a line break followed by up to 32 spaces or 16 tabs.
    #[default]
    Tight,
    /// No white space.
    Compact,
    /// Up to 32 white-space characters anywhere.
    Flexible,
}

/// A request's options for its schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct JsonOptions {
    pub white_space: WhiteSpace,
    /// Unknown formats are refused; otherwise they are ignored.
    pub known_formats: bool,
    /// Objects have no other keys than their `properties`, see `closed.rs`.
    pub closed: bool,
}

impl WhiteSpace {
    fn fields(self) -> Value {
        match self {
            Self::Tight => json!({
                "whitespace_pattern": "\n(?: {0,32}|\t{1,16})", "item_separator": ", ?", "key_separator": ": ?"
            }),
            Self::Compact => json!({"whitespace_flexible": false}),
            Self::Flexible => json!({"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,32}"}),
        }
    }
}

/// Fields of `x-guidance` that control white space.
const BLANKS: [&str; 4] = ["whitespace_pattern", "whitespace_flexible", "item_separator", "key_separator"];
/// Escapes that give each character one spelling: a key then has one spelling.
const SHORT_ESCAPES: &str = "nrbtf\\\"";

pub(super) struct Guidance {
    fields: Fields,
    pub known_formats: bool,
    pub coerce: bool,
    pub lenient: bool,
}

impl Guidance {
    pub(super) fn of(guidance: Option<&Value>, options: JsonOptions) -> Result<Self, Refusal> {
        let mut fields = match guidance {
            None => Fields::new(),
            Some(Value::Object(fields)) => fields.clone(),
            Some(_) => return Err(Refusal::new("x-guidance is not an object")),
        };
        let known_formats = match fields.shift_remove("unknown_formats") {
            None => options.known_formats,
            Some(Value::String(what)) if what == "ignore" => false,
            Some(Value::String(what)) if what == "refuse" => true,
            Some(other) => {
                return Err(Refusal::new(format!(
                    "unknown_formats is {other}, not \"ignore\" or \"refuse\""
                )));
            }
        };
        if !BLANKS.iter().any(|name| fields.contains_key(*name))
            && let Value::Object(blanks) = options.white_space.fields()
        {
            fields.extend(blanks);
        }
        let is = |name: &str| fields.get(name) == Some(&Value::Bool(true));
        let (lenient, coerce) = (is("lenient"), is("lenient") || is("coerce_one_of"));
        Ok(Self { known_formats, coerce, lenient, fields })
    }

    /// With `free_keys`, an unlisted key must not be another spelling of a listed one.
    pub(super) fn spelling(mut self, free_keys: bool, controls: bool) -> Result<Fields, Refusal> {
        let general = self.fields.get("json_allow_general_unicode_escapes") == Some(&Value::Bool(true));
        let escapes = self.fields.get("json_allowed_escapes").and_then(Value::as_str);
        match (free_keys, escapes) {
            (true, escapes) if general || escapes.is_some_and(|escapes| escapes.contains('u')) => {
                Err(Refusal::new("x-guidance lets keys that are listed be spelled like others"))
            }
            (true, None) if controls => Err(Refusal::new(
                "a constant has a control character, and an object has keys that are not listed",
            )),
            (true, None) => {
                self.fields.insert("json_allowed_escapes".to_owned(), SHORT_ESCAPES.into());
                Ok(self.fields)
            }
            _ => Ok(self.fields),
        }
    }
}
