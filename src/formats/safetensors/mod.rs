//! Reads safetensors files: from mapped bytes to named tensors, without copying any.
//!
//! Layout: u64 length of the header, the header (JSON: name to `dtype`, `shape`, `data_offsets`, and `__metadata__`),
//! the tensors' data without holes (github.com/huggingface/safetensors, README).
//!
//! Files are not trusted: arithmetic is checked, and allocations on opening are bounded by [`MAX_TENSORS`] records
//! plus the bytes of their names.

mod header;
#[cfg(test)]
mod tests;

pub(crate) use header::Text;

use crate::base::{Bytes, Error, Result, reserve, reserved};
use header::Record;
use std::collections::HashMap;

/// Maximum number of tensors in one file: a hundred times what large dense models have.
pub const MAX_TENSORS: usize = 1 << 16;
/// The format's own limit for the header.
const MAX_HEADER: usize = 100_000_000;
const LENGTH_BYTES: usize = 8;

/// Element types. For types that no weights have, only the size is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    F32,
    F16,
    BF16,
    /// Floats of one byte: four bits of exponent and three of mantissa, without infinities.
    F8E4M3,
    U8,
    I8,
    I32,
    I64,
    /// A type that is not read; its name is in [`TensorInfo::type_name`].
    Other,
}

/// A tensor of the file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub name: String,
    pub ty: ElementType,
    /// The type as the file spells it, for errors.
    pub type_name: String,
    /// The slowest dimension comes first; empty for a scalar.
    pub shape: Vec<usize>,
    start: usize,
    end: usize,
}

impl TensorInfo {
    pub fn byte_len(&self) -> usize {
        self.end - self.start
    }

    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// An opened file.
pub struct SafeTensors {
    data: Bytes,
    what: String,
    header_bytes: usize,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl SafeTensors {
    /// Parses `bytes`, which errors call `what`. `BadModel` for anything that the format does not allow, including
    /// data that overlap or leave holes.
    pub fn from_bytes(bytes: Bytes, what: &str) -> Result<Self> {
        let error = |message: String| Error::bad_model(format!("{what}: {message}"));
        let length = bytes.first_chunk::<LENGTH_BYTES>().map(|b| u64::from_le_bytes(*b));
        let length = length.ok_or_else(|| {
            error(format!("the file has {} bytes, not the 8 of a header's length", bytes.len()))
        })?;
        let fits = |n: &usize| *n <= MAX_HEADER && *n <= bytes.len() - LENGTH_BYTES;
        let header_len = usize::try_from(length).ok().filter(fits).ok_or_else(|| {
            error(format!(
                "the header's length is {length}, more than the file's {} bytes or the format's {MAX_HEADER}; \
                 is it a safetensors file?",
                bytes.len()
            ))
        })?;
        let start = LENGTH_BYTES + header_len;
        let records = header::parse(&bytes[LENGTH_BYTES..start]).map_err(error)??;
        let data = bytes
            .slice(start..bytes.len())
            .ok_or_else(|| Error::internal("a checked header lies beyond its file"))?;
        let mut by_name = HashMap::new();
        let table = records.len().saturating_mul(size_of::<(String, usize)>());
        reserved(by_name.try_reserve(records.len()), "a table of tensors", table)?;
        let mut list = Vec::new();
        reserve(&mut list, records.len(), "a list of tensors")?;
        let tensors = tensors(records, list, &mut by_name).map_err(error)?;
        covers(&tensors, data.len()).map_err(error)?;
        Ok(Self { data, what: what.to_owned(), header_bytes: start, tensors, by_name })
    }

    /// Name of the file in errors.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Bytes before the tensors' data.
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// All tensors, in the order of their data.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// The tensor's bytes, little-endian, not copied.
    pub fn data(&self, tensor: &TensorInfo) -> Result<Bytes> {
        self.data
            .slice(tensor.start..tensor.end)
            .ok_or_else(|| Error::internal(format!("tensor '{}' was not checked on opening", tensor.name)))
    }
}

/// Checks each record by itself, sorts the tensors by place, and enters their names. `tensors` is empty and has room.
fn tensors(
    records: Vec<Record>,
    mut tensors: Vec<TensorInfo>,
    by_name: &mut HashMap<String, usize>,
) -> std::result::Result<Vec<TensorInfo>, String> {
    for record in records {
        tensors.push(info(record)?);
    }
    tensors.sort_unstable_by_key(|t| (t.start, t.end));
    for (i, tensor) in tensors.iter().enumerate() {
        if by_name.insert(tensor.name.clone(), i).is_some() {
            return Err(format!("tensor '{}' stands there twice", tensor.name));
        }
    }
    Ok(tensors)
}

fn info(record: Record) -> std::result::Result<TensorInfo, String> {
    let Record { name, type_name, shape, offsets: (start, end) } = record;
    if name.is_empty() {
        return Err("a tensor has an empty name".into());
    }
    let ty = match type_name.as_str() {
        "F32" => ElementType::F32,
        "F16" => ElementType::F16,
        "BF16" => ElementType::BF16,
        "F8_E4M3" => ElementType::F8E4M3,
        "U8" => ElementType::U8,
        "I8" => ElementType::I8,
        "I32" => ElementType::I32,
        "I64" => ElementType::I64,
        _ => ElementType::Other,
    };
    let bits = header::type_bits(&type_name);
    // Zeros are left out of the product: a 0 must not hide an overflow from `elements`.
    let bound = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
    let bound = bound.and_then(|n| n.checked_mul(bits.unwrap_or(1).max(8)));
    if bound.is_none() {
        return Err(format!("tensor '{name}' has the shape {shape:?}, too large to be"));
    }
    let len = end.checked_sub(start).ok_or_else(|| {
        format!("tensor '{name}' has data_offsets [{start}, {end}], which end before they begin")
    })?;
    let elements: usize = shape.iter().product();
    // The length of a tensor of unknown type is not checked: such a tensor is refused when it is read.
    if let Some(bits) = bits
        && elements * bits != len.saturating_mul(8)
    {
        return Err(format!("tensor '{name}' ({type_name}, shape {shape:?}) has {len} bytes of data"));
    }
    Ok(TensorInfo { name, ty, type_name, shape, start, end })
}

/// Checks that the tensors' data, in order, cover all of the file's `len` bytes of data, each byte once.
fn covers(tensors: &[TensorInfo], len: usize) -> std::result::Result<(), String> {
    let mut at = 0;
    for tensor in tensors {
        if tensor.start != at {
            let fault =
                if tensor.start < at { "overlap those of the tensor before it" } else { "leave a hole" };
            return Err(format!("the data of tensor '{}', at {}, {fault}", tensor.name, tensor.start));
        }
        at = tensor.end;
    }
    match at == len {
        true => Ok(()),
        false => Err(format!(
            "its tensors have {at} bytes of data, and {len} follow the header; is the file truncated?"
        )),
    }
}
