//! The fields of a JSON object. Each is read with its type and range, and named in errors.

use crate::base::{Error, Result};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Display;

/// Maximum length of values in messages.
const SHOWN: usize = 60;

/// An object of a JSON file. A `null` counts as an absent field, as everywhere in transformers.
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Name of the file in errors.
    what: &'a str,
    /// Prefix of keys in errors: empty, or `rope_scaling.`.
    prefix: String,
    /// Names of keys, and older ones that stand for them where they are missing.
    older: &'static [(&'static str, &'static str)],
    asked: RefCell<HashSet<String>>,
}

impl<'a> Fields<'a> {
    /// `BadModel` if `value` is not an object.
    pub(crate) fn new(value: &'a Value, what: &'a str) -> Result<Self> {
        let map = value.as_object();
        let map = map.ok_or_else(|| Error::bad_model(format!("{what}: it is not a JSON object")))?;
        Ok(Self { map, what, prefix: String::new(), older: &[], asked: RefCell::default() })
    }

    pub(crate) fn what(&self) -> &str {
        self.what
    }

    /// Knows older names of keys.
    pub(crate) fn with_older(self, older: &'static [(&'static str, &'static str)]) -> Self {
        Self { older, ..self }
    }

    /// The file's own name for a key.
    pub(crate) fn own<'k>(&self, key: &'k str) -> &'k str {
        let older = || self.older.iter().find(|(name, older)| *name == key && self.map.contains_key(*older));
        if self.map.contains_key(key) { key } else { older().map_or(key, |(_, older)| older) }
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        let key = self.own(key);
        self.asked.borrow_mut().insert(key.to_owned());
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether the key exists, even as `null`.
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.asked.borrow_mut().insert(key.to_owned());
        self.map.contains_key(key)
    }

    /// All keys, in the file's order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.keys().map(String::as_str)
    }

    /// The key exists and is not `null`.
    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn bad(&self, key: &str, why: impl Display) -> Error {
        let key = self.own(key);
        let value = self.map.get(key).map_or("missing".into(), shown);
        Error::bad_model(format!("{}: '{}{key}' is {value}; {why}", self.what, self.prefix))
    }

    pub(crate) fn unsupported(&self, key: &str, why: impl Display) -> Error {
        Error { status: crate::base::Status::Unsupported, ..self.bad(key, why) }
    }

    fn read<T>(&self, key: &str, kind: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.bad(key, format_args!("it must be {kind}")))
    }

    /// A size; it may also be written as `4096.0`.
    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>> {
        self.read(key, "a whole number from 0 on", |value| match value.as_u64() {
            Some(n) => usize::try_from(n).ok(),
            None => {
                value.as_f64().filter(|f| f.fract() == 0.0 && (0.0..1e15).contains(f)).map(|f| f as usize)
            }
        })
    }

    /// Like `size`, but the file must have the key.
    pub(crate) fn need(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| self.bad(key, "it must be a whole number"))
    }

    /// A finite number.
    pub(crate) fn float(&self, key: &str) -> Result<Option<f32>> {
        let finite = |value: &Value| value.as_f64().map(|f| f as f32).filter(|f| f.is_finite());
        self.read(key, "a number", finite)
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.read(key, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.read(key, "a string", Value::as_str)
    }

    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        let strings = |value: &'a Value| value.as_array()?.iter().map(Value::as_str).collect();
        self.read(key, "an array of strings", strings)
    }

    pub(crate) fn sizes(&self, key: &str) -> Result<Option<Vec<usize>>> {
        let sizes =
            |value: &Value| value.as_array()?.iter().map(|n| n.as_u64().map(|n| n as usize)).collect();
        self.read(key, "an array of whole numbers", sizes)
    }

    /// Finite numbers.
    pub(crate) fn floats(&self, key: &str) -> Result<Option<Vec<f32>>> {
        let finite = |value: &Value| value.as_f64().map(|f| f as f32).filter(|f| f.is_finite());
        self.read(key, "an array of numbers", |value| value.as_array()?.iter().map(finite).collect())
    }

    /// Two numbers. The second may be infinite, which transformers writes as an object.
    pub(crate) fn range(&self, key: &str) -> Result<Option<[f32; 2]>> {
        let infinite = |value: &Value| value.get("__float__").and_then(Value::as_str) == Some("Infinity");
        let number = |value: &Value| value.as_f64().map(|f| f as f32).filter(|f| f.is_finite());
        let end = |value: &Value| if infinite(value) { Some(f32::INFINITY) } else { number(value) };
        self.read(key, "an array of two numbers", |value| match &value.as_array()?[..] {
            [from, to] => Some([number(from)?, end(to)?]),
            _ => None,
        })
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<Fields<'a>>> {
        let map = self.read(key, "an object", Value::as_object)?;
        let prefix = format!("{}{key}.", self.prefix);
        Ok(map.map(|map| Fields { map, what: self.what, prefix, older: &[], asked: RefCell::default() }))
    }

    /// Keys that were never read, in the file's order, without `ignored` ones and nulls.
    pub(crate) fn unknown(&self, ignored: &[&str]) -> Vec<String> {
        let asked = self.asked.borrow();
        let unknown = |(key, value): &(&String, &Value)| {
            !value.is_null() && !asked.contains(*key) && !ignored.contains(&key.as_str())
        };
        let name = |(key, _): (&String, &Value)| format!("{}{}", self.prefix, cut(key.clone()));
        self.map.iter().filter(unknown).map(name).collect()
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("'{}'", cut(text.clone())),
        Value::Array(list) => format!("an array of {}", list.len()),
        Value::Object(map) => format!("an object of {} fields", map.len()),
        other => other.to_string(),
    }
}

fn cut(mut text: String) -> String {
    if text.len() > SHOWN {
        let end = (0..=SHOWN).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
