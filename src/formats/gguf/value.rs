//! Metadata values: their extent is checked when the file is opened, and they are decoded on request.

use super::reader::Reader;
use crate::base::{Result, reserve};

/// Maximum nesting of arrays; real files use one level.
const MAX_ARRAY_DEPTH: u32 = 4;

/// GGUF's value types with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    fn from_id(id: u32) -> Option<Self> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64]
            .into_iter()
            .find(|t| *t as u32 == id)
    }

    /// Bytes of a scalar; for strings and arrays, the minimum.
    fn min_bytes(self) -> usize {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => 1,
            U16 | I16 => 2,
            U32 | I32 | F32 => 4,
            U64 | I64 | F64 | String => 8,
            Array => 12,
        }
    }
}

/// Place of a value's payload in the file. The payload of an array is its elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    pub ty: ValueType,
    /// Element type and count of an array.
    pub array: Option<(ValueType, usize)>,
    pub start: usize,
    pub end: usize,
}

impl Value {
    /// Reads a type and skips the value after it. Errors call the value `key`.
    pub(super) fn parse(r: &mut Reader, key: &str) -> Result<Self> {
        let ty = value_type(r, key)?;
        if ty == ValueType::Array {
            let (elem, count) = array_header(r, key)?;
            let start = r.pos();
            skip_elements(r, key, elem, count, 1)?;
            return Ok(Self { ty, array: Some((elem, count)), start, end: r.pos() });
        }
        let start = r.pos();
        skip(r, key, ty)?;
        Ok(Self { ty, array: None, start, end: r.pos() })
    }

    /// Name of the type in errors: `U32`, `array of String`.
    pub(super) fn type_name(&self) -> String {
        match self.array {
            Some((elem, _)) => format!("array of {elem:?}"),
            None => format!("{:?}", self.ty),
        }
    }
}

fn value_type(r: &mut Reader, key: &str) -> Result<ValueType> {
    let id = r.u32(key)?;
    ValueType::from_id(id).ok_or_else(|| r.error(format_args!("{key} has the unknown value type {id}")))
}

fn array_header(r: &mut Reader, key: &str) -> Result<(ValueType, usize)> {
    let elem = value_type(r, key)?;
    let count = r.count(elem.min_bytes(), &format!("the array length of {key}"))?;
    Ok((elem, count))
}

fn skip(r: &mut Reader, key: &str, ty: ValueType) -> Result<()> {
    match ty {
        ValueType::String => r.string(key).map(|_| ()),
        _ => r.take(ty.min_bytes(), key).map(|_| ()),
    }
}

fn skip_elements(r: &mut Reader, key: &str, elem: ValueType, count: usize, depth: u32) -> Result<()> {
    match elem {
        ValueType::String => (0..count).try_for_each(|_| skip(r, key, elem)),
        ValueType::Array if depth >= MAX_ARRAY_DEPTH => {
            Err(r.error(format_args!("{key} nests arrays deeper than {MAX_ARRAY_DEPTH}")))
        }
        ValueType::Array => (0..count).try_for_each(|_| {
            let (elem, count) = array_header(r, key)?;
            skip_elements(r, key, elem, count, depth + 1)
        }),
        // `array_header` bounded the count by the bytes left, so this cannot overflow.
        _ => r.take(count * elem.min_bytes(), key).map(|_| ()),
    }
}

/// A Rust type that metadata can be read as; see [`super::Gguf::get`].
pub trait FromMetadata<'a>: Sized {
    /// Name of the type in errors.
    const WANTED: &'static str;
    /// Converts a scalar, given its type and payload. `None` if it is of another type or out of range.
    fn from_scalar(ty: ValueType, payload: &'a [u8]) -> Option<Self>;
    /// Converts an array, given its elements. `Ok(None)` if the element type does not fit. `OutOfMemory`.
    fn from_array(_elem: ValueType, _count: usize, _payload: &'a [u8]) -> Result<Option<Self>> {
        Ok(None)
    }
}

/// The value of any of GGUF's integer types.
fn integer(ty: ValueType, p: &[u8]) -> Option<i128> {
    Some(match ty {
        ValueType::U8 => u8::from_le_bytes(p.try_into().ok()?).into(),
        ValueType::I8 => i8::from_le_bytes(p.try_into().ok()?).into(),
        ValueType::U16 => u16::from_le_bytes(p.try_into().ok()?).into(),
        ValueType::I16 => i16::from_le_bytes(p.try_into().ok()?).into(),
        ValueType::U32 => u32::from_le_bytes(p.try_into().ok()?).into(),
        ValueType::I32 => i32::from_le_bytes(p.try_into().ok()?).into(),
        ValueType::U64 => u64::from_le_bytes(p.try_into().ok()?).into(),
        ValueType::I64 => i64::from_le_bytes(p.try_into().ok()?).into(),
        _ => return None,
    })
}

macro_rules! integers {
    ($($t:ty => $wanted:literal),*) => {$(
        /// Accepts any integer type if the value fits, because converters disagree about widths.
        impl<'a> FromMetadata<'a> for $t {
            const WANTED: &'static str = $wanted;
            fn from_scalar(ty: ValueType, payload: &'a [u8]) -> Option<Self> {
                integer(ty, payload)?.try_into().ok()
            }
        }
    )*};
}
integers!(u32 => "an unsigned 32-bit integer", u64 => "an unsigned 64-bit integer", i32 => "a signed 32-bit integer");

impl<'a> FromMetadata<'a> for f32 {
    const WANTED: &'static str = "a 32-bit float";
    fn from_scalar(ty: ValueType, payload: &'a [u8]) -> Option<Self> {
        match ty {
            ValueType::F32 => Some(f32::from_le_bytes(payload.try_into().ok()?)),
            ValueType::F64 => Some(f64::from_le_bytes(payload.try_into().ok()?) as f32),
            _ => None,
        }
    }
}

impl<'a> FromMetadata<'a> for bool {
    const WANTED: &'static str = "a bool (0 or 1)";
    fn from_scalar(ty: ValueType, payload: &'a [u8]) -> Option<Self> {
        match (ty, payload) {
            (ValueType::Bool, [0]) => Some(false),
            (ValueType::Bool, [1]) => Some(true),
            _ => None,
        }
    }
}

impl<'a> FromMetadata<'a> for &'a str {
    const WANTED: &'static str = "a UTF-8 string";
    fn from_scalar(ty: ValueType, payload: &'a [u8]) -> Option<Self> {
        match ty {
            // The text follows the u64 length.
            ValueType::String => std::str::from_utf8(payload.get(8..)?).ok(),
            _ => None,
        }
    }
}

macro_rules! arrays {
    ($($t:ty => $wanted:literal),*) => {$(
        impl<'a> FromMetadata<'a> for Vec<$t> {
            const WANTED: &'static str = $wanted;
            fn from_scalar(_: ValueType, _: &'a [u8]) -> Option<Self> {
                None
            }
            fn from_array(elem: ValueType, count: usize, payload: &'a [u8]) -> Result<Option<Self>> {
                // `count` is at most the number of the payload's bytes, so this stays within a small multiple of the
                // file.
                let mut out = Vec::new();
                reserve(&mut out, count, "metadata")?;
                Ok(elements(&mut out, elem, count, payload).map(|()| out))
            }
        }
    )*};
}
arrays!(
    &'a str => "an array of UTF-8 strings",
    bool => "an array of bools",
    u32 => "an array of unsigned 32-bit integers",
    i32 => "an array of signed 32-bit integers",
    f32 => "an array of 32-bit floats"
);

/// Decodes an array whose extent `Value::parse` has checked.
fn elements<'a, T: FromMetadata<'a>>(
    out: &mut Vec<T>,
    elem: ValueType,
    count: usize,
    payload: &'a [u8],
) -> Option<()> {
    let mut rest = payload;
    for _ in 0..count {
        let size = match elem {
            ValueType::String => {
                8usize.checked_add(integer(ValueType::U64, rest.get(..8)?)?.try_into().ok()?)?
            }
            ValueType::Array => return None,
            _ => elem.min_bytes(),
        };
        let (item, behind) = rest.split_at_checked(size)?;
        out.push(T::from_scalar(elem, item)?);
        rest = behind;
    }
    Some(())
}
