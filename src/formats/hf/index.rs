//! `model.safetensors.index.json`: which file each tensor lies in. Other keys (`metadata`) are passed over.

use super::MAX_SHARDS;
use crate::base::{Error, REFUSED, Result, Status};
use crate::formats::safetensors::{MAX_TENSORS, Text};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

pub struct Index<'a> {
    /// Plain file names, each once.
    pub files: Vec<String>,
    /// Each tensor with its place in `files`.
    pub tensors: Vec<(Cow<'a, str>, usize)>,
}

/// `BadModel` for what is no index, naming `what`, and for file names that could leave the folder.
pub fn parse<'a>(json: &'a [u8], what: &str) -> Result<Index<'a>> {
    let top: Top =
        serde_json::from_slice(json).map_err(|e| Error::failed(Status::BadModel, format!("{what}: {e}")))?;
    Ok(top.weight_map)
}

#[derive(serde::Deserialize)]
#[serde(expecting = "an object with a weight_map")]
struct Top<'a> {
    #[serde(borrow)]
    weight_map: Index<'a>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Index<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMap)
    }
}

struct WeightMap;

impl<'de> Visitor<'de> for WeightMap {
    type Value = Index<'de>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensor names and file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Index<'de>, A::Error> {
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
            index
                .tensors
                .try_reserve(1)
                .map_err(|_| A::Error::custom(format_args!("{REFUSED} the list of tensors")))?;
            index.tensors.push((name, place));
        }
        Ok(index)
    }
}

/// A name in an error message.
fn cut(name: &str) -> &str {
    name.char_indices().nth(100).map_or(name, |(end, _)| &name[..end])
}

/// A name of a file in this very folder, and of nothing else.
fn plain(file: &str) -> std::result::Result<(), &'static str> {
    if file.contains(['/', '\\', '\0']) || file == ".." || file == "." || file.len() > 255 {
        return Err("which must be the plain name of a file in the folder,");
    }
    match file.ends_with(".safetensors") {
        true => Ok(()),
        false => Err("which must be a .safetensors file,"),
    }
}
