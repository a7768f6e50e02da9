//! JSON from outside as a tree of bounded size that keeps the order of names.

use crate::base::{Error, Result, Status};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Number;
use std::cell::Cell;
use std::fmt;

/// Maximum number of values of a text; names count too.
pub(super) const MAX_VALUES: usize = 1 << 20;
/// Maximum nesting of lists and objects. A chat adds a few levels around arguments and schemas, and a template's
/// values may be 64 deep.
pub(super) const MAX_DEPTH: usize = 48;

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Json>),
    Map(Fields),
}

/// The fields of an object, in the order of the text. If names are equal, the last one counts.
pub(super) type Fields = Vec<(String, Json)>;

impl Json {
    /// Parses a text. Returns the tree and its number of values. `InvalidArgument`, with the place, for invalid
    /// JSON or too deep nesting; `TooLong` above `MAX_VALUES`.
    ///
    /// Recurses as deep as the text nests.
    pub fn parse(text: &str) -> Result<(Self, usize)> {
        let bounds = Bounds {
            values: Cell::new(MAX_VALUES),
            text: Cell::new(usize::MAX),
            name: 1,
            depth: MAX_DEPTH,
            too_much: "too many values".into(),
        };
        let mut from = serde_json::Deserializer::from_str(text);
        let made = bounds.tree().deserialize(&mut from);
        match made.and_then(|tree| from.end().map(|()| tree)) {
            Ok(tree) => Ok((tree, MAX_VALUES - bounds.values.get())),
            Err(_) if bounds.values.get() == 0 => {
                Err(Error::new(Status::TooLong, format!("it has more than {MAX_VALUES} values")))
            }
            Err(error) => Err(Error::invalid(error.to_string())),
        }
    }

    /// The field `name` of an object; None if it is missing or null.
    pub fn get(&self, name: &str) -> Option<&Json> {
        match self {
            Self::Map(fields) => field(fields, name),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Name of the type in messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }
}

/// The last field with this name; None if it is missing or null.
pub(super) fn field<'a>(fields: &'a [(String, Json)], name: &str) -> Option<&'a Json> {
    let found = fields.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value);
    found.filter(|value| **value != Json::Null)
}

/// As compact JSON.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Null => to.serialize_unit(),
            Self::Bool(value) => to.serialize_bool(*value),
            Self::Number(value) => value.serialize(to),
            Self::Text(text) => to.serialize_str(text),
            Self::List(items) => {
                let mut list = to.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| list.serialize_element(item))?;
                list.end()
            }
            Self::Map(fields) => {
                let mut map = to.serialize_map(Some(fields.len()))?;
                fields.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
                map.end()
            }
        }
    }
}

/// Limits of a tree.
pub(super) struct Bounds {
    /// Number of values that are still allowed, of which each name counts as `name`.
    pub values: Cell<usize>,
    pub name: usize,
    /// Number of bytes of texts that are still allowed.
    pub text: Cell<usize>,
    pub depth: usize,
    /// The error beyond `values` or `text`.
    pub too_much: String,
}

impl Bounds {
    /// Deserializes a tree within the limits.
    pub(super) fn tree(&self) -> Tree<'_> {
        Tree { bounds: self, depth: self.depth }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Tree<'a> {
    bounds: &'a Bounds,
    depth: usize,
}

impl Tree<'_> {
    fn spend<E: serde::de::Error>(self, left: &Cell<usize>, n: usize) -> std::result::Result<(), E> {
        left.set(left.get().checked_sub(n).ok_or_else(|| E::custom(&self.bounds.too_much))?);
        Ok(())
    }

    fn copy<E: serde::de::Error>(self, text: &str) -> std::result::Result<String, E> {
        self.spend(&self.bounds.text, text.len())?;
        let mut copy = String::new();
        copy.try_reserve_exact(text.len()).map_err(|_| E::custom("there is no memory for it"))?;
        copy.push_str(text);
        Ok(copy)
    }

    fn below<E: serde::de::Error>(self) -> std::result::Result<Self, E> {
        let most = self.bounds.depth;
        let deeper = || E::custom(format_args!("it is nested more than {most} deep"));
        Ok(Self { depth: self.depth.checked_sub(1).ok_or_else(deeper)?, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Json;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Json, D::Error> {
        self.spend(&self.bounds.values, 1)?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> std::result::Result<Json, E> {
        Ok(Json::Null)
    }
    fn visit_bool<E>(self, value: bool) -> std::result::Result<Json, E> {
        Ok(Json::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> std::result::Result<Json, E> {
        Ok(Json::Number(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> std::result::Result<Json, E> {
        Ok(Json::Number(value.into()))
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> std::result::Result<Json, E> {
        Number::from_f64(value).map(Json::Number).ok_or_else(|| E::custom("a number is not finite"))
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Json, E> {
        self.copy(text).map(Json::Text)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Json, A::Error> {
        let (below, mut items) = (self.below()?, Vec::new());
        while let Some(item) = seq.next_element_seed(below)? {
            grow(&mut items)?;
            items.push(item);
        }
        Ok(Json::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Json, A::Error> {
        let (below, mut fields) = (self.below()?, Vec::new());
        while let Some(name) = map.next_key::<std::borrow::Cow<str>>()? {
            self.spend(&self.bounds.values, self.bounds.name)?;
            grow(&mut fields)?;
            fields.push((self.copy(&name)?, map.next_value_seed(below)?));
        }
        Ok(Json::Map(fields))
    }
}

fn grow<T, E: serde::de::Error>(list: &mut Vec<T>) -> std::result::Result<(), E> {
    list.try_reserve(1).map_err(|_| E::custom("there is no memory for it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_numbers() {
        let text = r#"{"b":1,"a":[null,true,-2,18446744073709551615,1.5,"é\n"],"b":{}}"#;
        let (tree, values) = Json::parse(text).unwrap();
        assert_eq!(tree.to_string(), text);
        assert_eq!(values, 13);
        assert_eq!(tree.get("b"), Some(&Json::Map(Vec::new())));
        assert_eq!(tree.get("c"), None);
    }

    #[test]
    fn refuses_what_is_too_much_or_no_json() {
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(Json::parse(&nested(MAX_DEPTH)).is_ok());
        for (text, part) in [
            (nested(MAX_DEPTH + 1), "nested"),
            (nested(100_000), "nested"),
            ("{\"a\":1} x".into(), "trailing"),
            ("{\"a\":".into(), "EOF"),
            ("\"\\ud800\"".into(), "hex escape"),
            ("{'a': 1}".into(), "line 1"),
            ("1e999".into(), "out of range"),
            (String::new(), "EOF"),
        ] {
            let error = Json::parse(&text).unwrap_err();
            assert_eq!(error.status, Status::InvalidArgument);
            assert!(error.message.contains(part), "{part}: {error}");
        }
        let many = format!("[{}1]", "1,".repeat(MAX_VALUES));
        assert_eq!(Json::parse(&many).unwrap_err().status, Status::TooLong);
    }
}
