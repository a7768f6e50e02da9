//! `model.safetensors.index.json`: the file of each tensor. Other keys (`metadata`) are ignored.

use super::MAX_SHARDS;
use crate::base::{Error, Result, reserve};
use crate::formats::safetensors::{MAX_TENSORS, Text};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

pub struct Index<'a> {
    /// Plain file names without duplicates.
    pub files: Vec<String>,
    /// Tensors, each with the index of its file in `files`.
    pub tensors: Vec<(Cow<'a, str>, usize)>,
}

/// Parses an index, which errors call `what`. `BadModel` for anything else, and for file names that could leave the
/// folder.
pub fn parse<'a>(json: &'a [u8], what: &str) -> Result<Index<'a>> {
    let top: Top = serde_json::from_slice(json).map_err(|e| Error::bad_model(format!("{what}: {e}")))?;
    top.weight_map.0
}

#[derive(serde::Deserialize)]
#[serde(expecting = "an object with a weight_map")]
struct Top<'a> {
    #[serde(borrow)]
    weight_map: Made<'a>,
}

/// An index, or `OutOfMemory`. The error is not passed as a text, which the file could imitate.
struct Made<'a>(Result<Index<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Made<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMap)
    }
}

struct WeightMap;

impl<'de> Visitor<'de> for WeightMap {
    type Value = Made<'de>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensor names and file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Made<'de>, A::Error> {
        let mut index = Index { files: Vec::new(), tensors: Vec::new() };
        let mut places: HashMap<Cow<'de, str>, usize> = HashMap::new();
        while let Some(Text(name)) = map.next_key()? {
            if index.tensors.len() == MAX_TENSORS {
                return Err(A::Error::custom(format_args!("weight_map has more than {MAX_TENSORS} tensors")));
            }
            let Text(file) = map.next_value()?;
            let place = match places.get(&file) {
                Some(place) => *place,
                None => {
                    plain(&file).map_err(|why| {
                        let (name, file) = (cut(&name), cut(&file));
                        A::Error::custom(format_args!("weight_map['{name}'] is '{file}', {why}"))
                    })?;
                    if index.files.len() == MAX_SHARDS {
                        return Err(A::Error::custom(format_args!(
                            "weight_map has more than {MAX_SHARDS} files"
                        )));
                    }
                    index.files.push(file.clone().into_owned());
                    places.insert(file, index.files.len() - 1);
                    index.files.len() - 1
                }
            };
            if let Err(refused) = reserve(&mut index.tensors, 1, "the list of tensors") {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(Made(Err(refused)));
            }
            index.tensors.push((name, place));
        }
        Ok(Made(Ok(index)))
    }
}

/// Shortens a name for an error message.
fn cut(name: &str) -> &str {
    name.char_indices().nth(100).map_or(name, |(end, _)| &name[..end])
}

/// Accepts only the name of a file in this very folder.
fn plain(file: &str) -> std::result::Result<(), &'static str> {
    if file.contains(['/', '\\', '\0']) || file == ".." || file == "." || file.len() > 255 {
        return Err("which must be the plain name of a file in the folder,");
    }
    match file.ends_with(".safetensors") {
        true => Ok(()),
        false => Err("which must be a .safetensors file,"),
    }
}
