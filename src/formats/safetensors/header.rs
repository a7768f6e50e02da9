//! Reads the JSON header in one pass into records that borrow nothing, without building a tree.

use super::MAX_TENSORS;
use crate::base::{self, reserve};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// More dimensions than any weight has.
pub(super) const MAX_DIMS: usize = 8;
/// Maximum bytes of a tensor's name; real ones have about 60.
const MAX_NAME: usize = 1 << 10;

pub(super) struct Record {
    pub name: String,
    pub type_name: String,
    pub shape: Vec<usize>,
    pub offsets: (usize, usize),
}

/// Bits per element of the types that the format names; below 8 for packed ones.
pub(super) fn type_bits(name: &str) -> Option<usize> {
    Some(match name {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// Parses the header into all its tensors. The outer error says what is wrong with the file and where. The inner one is
/// `OutOfMemory`, which is not passed as a text, since the file could imitate it.
pub(super) fn parse(header: &[u8]) -> Result<base::Result<Vec<Record>>, String> {
    // The format requires it, while serde_json would also accept an array of entries or leading spaces.
    if header.first() != Some(&b'{') {
        return Err("the header does not begin with '{'; is it a safetensors file?".into());
    }
    let text = std::str::from_utf8(header).map_err(|e| format!("the header is not UTF-8: {e}"))?;
    serde_json::from_str::<Header>(text).map(|header| header.0).map_err(|e| format!("the header: {e}"))
}

struct Header(base::Result<Vec<Record>>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Tensors)
    }
}

struct Tensors;

impl<'de> Visitor<'de> for Tensors {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut records = Vec::new();
        let mut metadata = false;
        while let Some(Text(name)) = map.next_key()? {
            if name == "__metadata__" {
                if std::mem::replace(&mut metadata, true) {
                    return Err(A::Error::custom("'__metadata__' stands there twice"));
                }
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if name.len() > MAX_NAME {
                return Err(A::Error::custom(format_args!("a name of {} bytes", name.len())));
            }
            if records.len() == MAX_TENSORS {
                return Err(A::Error::custom(format_args!("more than {MAX_TENSORS} tensors")));
            }
            let fields: Fields =
                map.next_value().map_err(|e| A::Error::custom(format_args!("tensor '{name}': {e}")))?;
            let Fields { dtype: Text(dtype), shape: Shape(shape), data_offsets } = fields;
            if let Err(refused) = reserve(&mut records, 1, "the list of tensors") {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(Header(Err(refused)));
            }
            records.push(Record {
                name: name.into_owned(),
                type_name: dtype.chars().take(32).collect(),
                shape,
                offsets: data_offsets,
            });
        }
        Ok(Header(Ok(records)))
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object of dtype, shape and data_offsets")]
struct Fields<'a> {
    #[serde(borrow)]
    dtype: Text<'a>,
    shape: Shape,
    data_offsets: (usize, usize),
}

/// A string, borrowed if it has no escapes.
pub(crate) struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Str;
        impl<'de> Visitor<'de> for Str {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Str)
    }
}

/// At most [`MAX_DIMS`] sizes: a long list is refused before it grows.
struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dims;
        impl<'de> Visitor<'de> for Dims {
            type Value = Shape;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an array of sizes")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_DIMS {
                        return Err(A::Error::custom(format_args!(
                            "shape has more than {MAX_DIMS} dimensions"
                        )));
                    }
                    dims.push(dim);
                }
                Ok(Shape(dims))
            }
        }
        deserializer.deserialize_seq(Dims)
    }
}
