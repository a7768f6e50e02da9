//! Parts of a tokenizer's files as trees of bounded size, however long the files are: a tree takes about eighty
//! times its text.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

/// Maximum number of values of one part; real ones have about sixty. A post-processor of n
/// values makes up to n^2 / 32 tokens.
const MAX_VALUES: usize = 1000;
/// Maximum number of bytes of all its texts; the longest one, a table of characters, has half a MiB.
const MAX_TEXT: usize = 1 << 20;

/// A normalizer, pre-tokenizer, post-processor or decoder. Null counts as none.
pub(super) fn tree<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let value = Tree(&Budget::new()).deserialize(deserializer)?;
    Ok(Some(value).filter(|value| !value.is_null()))
}

/// The fields `names` of the JSON object `json`, including nulls; other fields are dropped.
pub fn fields_of(json: &[u8], names: &[&str]) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = Top(&Budget::new(), names).deserialize(&mut deserializer)?;
    deserializer.end().map(|()| value)
}

/// The number of values and bytes that are still allowed.
struct Budget {
    values: Cell<usize>,
    text: Cell<usize>,
}

impl Budget {
    fn new() -> Self {
        Self { values: Cell::new(MAX_VALUES), text: Cell::new(MAX_TEXT) }
    }
}

struct Top<'a>(&'a Budget, &'a [&'a str]);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<Cow<str>>()? {
            match self.1.iter().find(|name| **name == key) {
                Some(name) => drop(fields.insert((*name).to_owned(), map.next_value_seed(Tree(self.0))?)),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(fields.into())
    }
}

fn spend<E: Error>(left: &Cell<usize>, n: usize) -> Result<(), E> {
    let rest = left.get().checked_sub(n).ok_or_else(|| {
        E::custom(format_args!("a tokenizer's part has more than {MAX_VALUES} values or {MAX_TEXT} bytes"))
    })?;
    left.set(rest);
    Ok(())
}

#[derive(Clone, Copy)]
struct Tree<'a>(&'a Budget);

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        spend(&self.0.values, 1)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a part of a tokenizer")
    }
    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        spend(&self.0.text, text.len())?;
        Ok(text.into())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            list.push(value);
        }
        Ok(list.into())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            spend(&self.0.text, key.len())?;
            let value = map.next_value_seed(self)?;
            fields.insert(key, value);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(text: &str) -> serde_json::Result<Option<Value>> {
        tree(&mut serde_json::Deserializer::from_str(text))
    }

    #[test]
    fn a_tree_as_it_is_and_no_more_than_may_be() {
        let text = r#"{"type": "Split", "n": [1, -2, 0.5, true, null, {"ü": []}]}"#;
        assert_eq!(part(text).unwrap(), Some(serde_json::from_str(text).unwrap()));
        assert_eq!(part("null").unwrap(), None);
        let list = |n: usize| format!("[{}0]", "0,".repeat(n - 1));
        assert!(part(&list(MAX_VALUES - 1)).is_ok());
        for long in [list(MAX_VALUES), format!("\"{}\"", "x".repeat(MAX_TEXT + 1)), list(1 << 20)] {
            let error = part(&long).expect_err("refused");
            assert!(error.to_string().contains("more than 1000 values"), "{error}");
        }
    }

    #[test]
    fn only_the_fields_that_are_asked_for() {
        let json = format!(r#"{{"a": [1], "b": null, "c": [{}1], "d": "x"}}"#, "1,".repeat(5000));
        let fields = fields_of(json.as_bytes(), &["a", "b", "e"]).unwrap();
        assert_eq!(fields, serde_json::json!({"a": [1], "b": null}));
        for (bad, word) in [("[]", "a JSON object"), ("{} 1", "trailing"), (r#"{"a": 1"#, "EOF")] {
            let error = fields_of(bad.as_bytes(), &["a"]).expect_err("refused");
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(fields_of(json.as_bytes(), &["c"]).is_err());
    }
}
