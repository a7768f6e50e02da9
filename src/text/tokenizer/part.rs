//! Parts of a tokenizer's files as trees of bounded size, however long the files are: a tree takes about eighty
//! times its text.

use crate::base::{self, panics};
use crate::text::json::{Bounds, Json};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

/// Maximum number of values of one part; real ones have about sixty. A post-processor of n
/// values makes up to n^2 / 32 tokens.
const MAX_VALUES: usize = 1000;
/// Maximum number of bytes of all its texts; the longest one, a table of characters, has half a MiB.
const MAX_TEXT: usize = 1 << 20;

pub(super) fn bad(what: &str, field: &str, message: impl std::fmt::Display) -> base::Error {
    base::Error::bad_model(format!("{what}: '{field}': {message}"))
}

/// Calls a function of the package, whose panics and errors are the file's fault.
pub(super) fn guarded<T, E: std::fmt::Display>(
    what: &str,
    field: &str,
    f: impl FnOnce() -> Result<T, E>,
) -> base::Result<T> {
    panics::catch(f).map_err(|text| bad(what, field, text))?.map_err(|e| bad(what, field, e))
}

/// A normalizer, pre-tokenizer, post-processor or decoder. Null counts as none.
pub(super) fn tree<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    match bounds().tree().deserialize(deserializer)? {
        Json::Null => Ok(None),
        tree => serde_json::to_value(tree).map(Some).map_err(D::Error::custom),
    }
}

/// The fields `names` of the JSON object `json`, including nulls; other fields are dropped.
pub fn fields_of(json: &[u8], names: &[&str]) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = Top(&bounds(), names).deserialize(&mut deserializer)?;
    deserializer.end().map(|()| value)
}

fn bounds() -> Bounds {
    Bounds {
        values: Cell::new(MAX_VALUES),
        name: 0,
        text: Cell::new(MAX_TEXT),
        depth: usize::MAX,
        too_much: format!("a tokenizer's part has more than {MAX_VALUES} values or {MAX_TEXT} bytes"),
    }
}

struct Top<'a>(&'a Bounds, &'a [&'a str]);

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
            if !self.1.contains(&&*key) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let tree = map.next_value_seed(self.0.tree())?;
            fields.insert(key.into_owned(), serde_json::to_value(tree).map_err(A::Error::custom)?);
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
