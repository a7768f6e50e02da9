//! The fields of a request's body. Each part of the server takes the fields that it knows as a struct, and none needs
//! to know all of them. The fields that are left in the end are unknown.
use crate::failure::{Failure, Result};
use crate::request::passed_over::PASSED_OVER;
use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use serde_json::{Map, Value};

/// Groups of names for one field, each with the path of the object that has them. The first name that is present
/// counts; the API's own precedes others'.
const NAMES: &[(&str, &[&str])] = &[
    ("", &["repetition_penalty", "repeat_penalty"]),
    ("options", &["repeat_penalty", "repetition_penalty"]),
    ("", &["max_reasoning_tokens", "thinking_token_budget", "thinking_budget", "reasoning_budget"]),
    ("", &["add_special_tokens", "add_special"]),
];

/// The object of a body. A field that is null is not set.
#[derive(Debug, Default)]
pub struct Fields {
    map: Map<String, Value>,
    /// Path of the object in the body; empty: it is the body.
    path: &'static str,
}

impl Fields {
    pub fn new(map: Map<String, Value>) -> Self {
        Self::within("", map)
    }

    /// The fields of an object in the body.
    pub fn within(path: &'static str, mut map: Map<String, Value>) -> Self {
        map.retain(|_, value| !value.is_null());
        let mut fields = Self { map, path };
        fields.settle();
        fields
    }

    /// Keeps one name of each field.
    fn settle(&mut self) {
        for (_, names) in NAMES.iter().filter(|(path, _)| *path == self.path) {
            let there: Vec<_> = names.iter().filter(|name| self.map.contains_key(**name)).collect();
            for other in there.into_iter().skip(1) {
                self.map.remove(*other);
            }
        }
    }

    /// Takes the fields of `T`. A failure names the field and its valid values.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut own = Map::new();
        for name in names_of::<T>() {
            if let Some(value) = self.map.remove(*name) {
                own.insert((*name).to_owned(), value);
            }
        }
        read(Value::Object(own), self.path)
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.map.get_mut(name)
    }

    /// Takes one field unchanged.
    pub fn take_value(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name)
    }

    pub fn take_number(&mut self, name: &str, bounds: Bounds) -> Result<Option<f64>> {
        let Some(value) = self.map.remove(name) else { return Ok(None) };
        let number = bounds.number(&value);
        number.map(Some).map_err(|words| Failure::invalid(format!("'{}' {words}", self.place(name))))
    }

    pub fn insert(&mut self, name: &str, value: Value) {
        self.map.insert(name.to_owned(), value);
        self.settle();
    }

    /// Path of a field in the body.
    fn place(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Adds the unknown fields of an inner object to those of this one.
    pub fn leave(&mut self, inner: Self) {
        let names: Vec<_> = inner.map.keys().map(|name| inner.place(name)).collect();
        self.map.extend(names.into_iter().zip(inner.map.into_values()));
    }

    /// The fields that nothing has taken, except those that may be ignored.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str).filter(|name| !PASSED_OVER.contains(name))
    }
}

/// Reads `value`, which is at `path` of the body.
pub fn read<T: DeserializeOwned>(value: Value, path: &str) -> Result<T> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let inner = error.path().to_string();
        let at = match (path, inner.as_str()) {
            ("", inner) => inner.to_owned(),
            (path, ".") => path.to_owned(),
            (path, inner) if inner.starts_with('[') => format!("{path}{inner}"),
            (path, inner) => format!("{path}.{inner}"),
        };
        Failure::invalid(format!("'{at}' {}", words(&error.into_inner().to_string())))
    })
}

/// Rewords those of serde's messages that can occur.
fn words(message: &str) -> String {
    match message.strip_prefix("invalid type: ").and_then(|rest| rest.split_once(", expected ")) {
        Some((_, wanted)) => format!("must be {}", kind(wanted)),
        None => message.to_owned(),
    }
}

fn kind(wanted: &str) -> &str {
    match wanted {
        "a string" => "a text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "f64" => "a number",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

/// The names of a struct's fields, from its own `Deserialize`.
fn names_of<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Names<'a>(&'a mut &'static [&'static str]);
    impl<'de> Deserializer<'de> for Names<'_> {
        type Error = de::value::Error;

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> std::result::Result<V::Value, Self::Error> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> std::result::Result<V::Value, Self::Error> {
            Err(de::Error::custom("names alone"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }
    let mut names: &'static [&'static str] = &[];
    let _ = T::deserialize(Names(&mut names));
    names
}

/// The numbers that a field accepts.
#[derive(Clone, Copy)]
pub struct Bounds {
    low: i64,
    high: i64,
    whole: bool,
}

pub const fn real(low: i64, high: i64) -> Bounds {
    Bounds { low, high, whole: false }
}

pub const fn whole(low: i64, high: i64) -> Bounds {
    Bounds { low, high, whole: true }
}

impl Bounds {
    /// Err: what the value must be.
    fn number(self, value: &Value) -> std::result::Result<f64, String> {
        let Self { low, high, whole } = self;
        let fits = |v: &f64| *v >= low as f64 && *v <= high as f64 && (!whole || v.fract() == 0.0);
        value.as_f64().filter(fits).ok_or_else(|| {
            let kind = if whole { "whole number" } else { "number" };
            format!("must be a {kind} from {low} to {high}")
        })
    }
}

/// The largest whole number that every double below it can tell apart: 2^53.
pub const EXACT: i64 = 1 << 53;
pub const U32: i64 = u32::MAX as i64;

/// A whole number from `LOW` to `HIGH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole<const LOW: i64, const HIGH: i64>(pub i64);

impl<'de, const LOW: i64, const HIGH: i64> de::Deserialize<'de> for Whole<LOW, HIGH> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let number = whole(LOW, HIGH).number(&de::Deserialize::deserialize(from)?);
        number.map(|number| Self(number as i64)).map_err(de::Error::custom)
    }
}

impl<const LOW: i64, const HIGH: i64> Whole<LOW, HIGH> {
    pub fn u32(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    pub fn u64(self) -> u64 {
        self.0 as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, Default, serde::Deserialize)]
    #[serde(default)]
    struct Subset {
        n: Option<Whole<1, 128>>,
        #[serde(alias = "heat")]
        heats: Option<Whole<0, 100>>,
        stream: Option<bool>,
        list: Option<Vec<String>>,
    }

    fn fields(value: Value) -> Fields {
        Fields::new(value.as_object().unwrap().clone())
    }

    #[test]
    fn a_subset_takes_its_fields_and_leaves_the_others() {
        let mut fields = fields(json!({"n": 2, "heat": 5, "other": 1, "nothing": null}));
        let taken: Subset = fields.take().unwrap();
        assert_eq!((taken.n, taken.heats), (Some(Whole(2)), Some(Whole(5))));
        assert!(taken.stream.is_none() && taken.list.is_none());
        assert_eq!(fields.unknown().collect::<Vec<_>>(), ["other"]);
    }

    #[test]
    fn of_several_names_of_one_thing_the_apis_own_counts() {
        let both = json!({"repeat_penalty": 1.5, "add_special": true, "repetition_penalty": 2, "add_special_tokens": null});
        let left = |fields: Fields| {
            let mut names: Vec<_> = fields.unknown().map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(left(fields(both.clone())), ["add_special", "repetition_penalty"]);
        let options = Fields::within("options", both.as_object().unwrap().clone());
        assert_eq!(left(options), ["add_special", "repeat_penalty"]);
    }

    #[test]
    fn a_wrong_value_is_refused_by_its_name() {
        for (value, words) in [
            (json!({"n": 0}), "'n' must be a whole number from 1 to 128"),
            (json!({"n": 1.5}), "'n' must be a whole number from 1 to 128"),
            (json!({"heats": "hot"}), "'heats' must be a whole number from 0 to 100"),
            (json!({"stream": 1}), "'stream' must be true or false"),
            (json!({"list": ["a", 1]}), "'list[1]' must be a text"),
            (json!({"list": {}}), "'list' must be a list"),
        ] {
            let failure = fields(value).take::<Subset>().unwrap_err();
            assert_eq!(failure.message, words);
        }
    }
}
