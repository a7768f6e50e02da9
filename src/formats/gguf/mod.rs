//! GGUF files, versions 2 and 3, little-endian, without copying a tensor.
//!
//! Layout: "GGUF", u32 version, u64 tensors, u64 metadata pairs, the pairs, the tensor infos, padding to
//! `general.alignment`, the tensors' data (github.com/ggml-org/ggml, docs/gguf.md).
//!
//! A file is not trusted: arithmetic is checked, counts are bounded by the bytes left, and what is allocated
//! on opening is bounded by [`MAX_ENTRIES`] records plus the bytes of their names.

mod reader;
mod tensor;
#[cfg(test)]
mod tests;
mod value;
pub mod writer;
#[cfg(test)]
mod writer_tests;

pub use tensor::TensorInfo;
pub use value::{FromMetadata, ValueType};

use crate::base::{Bytes, Error, Result, Status};
use crate::kernels::{DType, Matrix};
use reader::Reader;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use value::Value;

/// Most tensors, and most metadata pairs, of one file: a hundred times what large models have.
pub const MAX_ENTRIES: usize = 1 << 16;
const DEFAULT_ALIGNMENT: u32 = 32;
/// u64 key length, u32 type, one byte of value.
const MIN_PAIR_BYTES: usize = 13;
/// u64 name length, u32 dimension count, u32 type, u64 offset.
const MIN_TENSOR_BYTES: usize = 24;

/// An opened file: its metadata and its tensors.
pub struct Gguf {
    bytes: Bytes,
    /// The tensors' data: `bytes` from the aligned end of the header on.
    data: Bytes,
    /// The file, as errors call it.
    what: String,
    version: u32,
    alignment: usize,
    metadata: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Gguf {
    /// Maps the file at `path`. `Io` where it can't be opened or mapped, `BadModel` where it is no GGUF file.
    ///
    /// The file must not be truncated or rewritten while the engine lives: the kernel answers a read of
    /// missing pages with SIGBUS, which no check here can foresee. Replace model files by renaming.
    pub fn open(path: &str) -> Result<Self> {
        let io_error = |e: io::Error| Error::new(Status::Io, format!("cannot open model file '{path}': {e}"));
        // O_NONBLOCK: opening a FIFO must not wait for a writer. It means nothing for regular files.
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(io_error)?;
        let stat = file.metadata().map_err(io_error)?;
        if !stat.is_file() {
            let kind = if stat.is_dir() { "a directory" } else { "not a regular file" };
            return Err(Error::new(Status::Io, format!("cannot open model file '{path}': it is {kind}")));
        }
        if stat.len() == 0 {
            return Err(Error::bad_model(format!("model file '{path}' is empty")));
        }
        // SAFETY: the mapping is private and read-only and outlives every view of it (`Bytes` owns it).
        // That nobody truncates or rewrites the file meanwhile is asked of the caller above.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io_error)?;
        Self::from_bytes(Bytes::of_file(map), path)
    }

    /// Parses `bytes`; errors call them `what`.
    pub fn from_bytes(bytes: Bytes, what: &str) -> Result<Self> {
        let mut r = Reader::new(&bytes, what);
        let version = header(&mut r)?;
        let n_tensors = entries(&mut r, MIN_TENSOR_BYTES, "tensor count")?;
        let n_pairs = entries(&mut r, MIN_PAIR_BYTES, "metadata count")?;
        let metadata = parse_metadata(&mut r, n_pairs)?;
        let (tensors, by_name) = parse_tensors(&mut r, n_tensors)?;
        let end = r.pos();
        let mut gguf = Self {
            data: bytes.clone(),
            bytes: bytes.clone(),
            what: what.to_owned(),
            version,
            alignment: 0,
            metadata,
            tensors,
            by_name,
        };
        gguf.place_data(end)?;
        Ok(gguf)
    }

    /// Finds the data section behind the header's `end` and checks that every tensor lies in it.
    fn place_data(&mut self, end: usize) -> Result<()> {
        let alignment = self.find::<u32>("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() || alignment < 8 {
            return Err(
                self.error(format_args!("general.alignment is {alignment}, not a power of two from 8 on"))
            );
        }
        self.alignment = alignment as usize;
        let start = end.checked_next_multiple_of(self.alignment).unwrap_or(usize::MAX);
        // A file without tensors may end with its header.
        let start = if self.tensors.is_empty() { start.min(self.bytes.len()) } else { start };
        self.data = self.bytes.slice(start..self.bytes.len()).ok_or_else(|| {
            self.error(format_args!(
                "the file ends at byte {} before its tensors' data, at {start}",
                self.bytes.len()
            ))
        })?;
        for tensor in &self.tensors {
            if tensor.offset % self.alignment != 0 {
                return Err(self.error(format_args!(
                    "tensor '{}' starts at {}, not at a multiple of the alignment {}",
                    tensor.name, tensor.offset, self.alignment
                )));
            }
            // A type that we don't know has a length that we don't know; its start can be checked.
            let end = tensor.offset.checked_add(tensor.byte_len.unwrap_or(0));
            if end.is_none_or(|end| end > self.data.len()) {
                return Err(self.error(format_args!(
                    "tensor '{}' ({} bytes at {}) lies beyond the file's {} bytes of data; is the file truncated?",
                    tensor.name,
                    tensor.byte_len.unwrap_or(0),
                    tensor.offset,
                    self.data.len()
                )));
            }
        }
        Ok(())
    }

    fn error(&self, message: impl std::fmt::Display) -> Error {
        Error::bad_model(format!("{}: {message}", self.what))
    }

    /// The file, as errors call it.
    pub fn what(&self) -> &str {
        &self.what
    }

    pub fn version(&self) -> u32 {
        self.version
    }

    /// `general.alignment`, or 32.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of all tensors whose type we know.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().filter_map(|t| t.byte_len).map(|n| n as u64).sum()
    }

    pub fn contains(&self, key: &str) -> bool {
        self.metadata.contains_key(key)
    }

    /// Metadata keys, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys().map(String::as_str)
    }

    /// The value of a key that must be there: `u32`, `u64`, `i32`, `f32`, `bool`, `&str`, or a `Vec` of
    /// `&str`, `u32`, `i32` or `f32`. Integers of any width convert where the value fits.
    /// `BadModel`, naming the key, the type found and the type wanted.
    pub fn get<'a, T: FromMetadata<'a>>(&'a self, key: &str) -> Result<T> {
        self.find(key)?
            .ok_or_else(|| self.error(format_args!("metadata key '{key}' ({}) is missing", T::WANTED)))
    }

    /// Like [`Self::get`], None where the key is absent.
    pub fn find<'a, T: FromMetadata<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        let payload = &self.bytes[value.start..value.end];
        let found = match value.array {
            Some((elem, count)) => T::from_array(elem, count, payload),
            None => T::from_scalar(value.ty, payload),
        };
        match found {
            Some(found) => Ok(Some(found)),
            None => Err(self.error(format_args!(
                "metadata key '{key}' is of type {}, its value does not convert to {}",
                value.type_name(),
                T::WANTED
            ))),
        }
    }

    /// Elements of the array at `key`; None where there is no such key or it is no array.
    pub fn array_len(&self, key: &str) -> Option<usize> {
        self.metadata.get(key)?.array.map(|(_, count)| count)
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// The `[rows, cols]` matrix `name`, in file layout, not copied. `BadModel` where it is missing or has
    /// another shape, `Unsupported` where its type is none of ours.
    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let (dtype, data) = self.data_of(name, [cols, rows, 1, 1])?;
        Matrix::new(data, dtype, rows, cols)
            .map_err(|e| Error::new(e.status, format!("{}: tensor '{name}': {}", self.what, e.message)))
    }

    /// The vector `name` of `len` elements, from F32, F16 or BF16. Errors as for [`Self::matrix`].
    pub fn vector_f32(&self, name: &str, len: usize) -> Result<Arc<[f32]>> {
        let (dtype, data) = self.data_of(name, [len, 1, 1, 1])?;
        let mut out: Vec<f32> = Vec::new();
        out.try_reserve_exact(len).map_err(|_| Error::out_of_memory(name, len.saturating_mul(4)))?;
        let halves = data.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        match dtype {
            DType::F32 => {
                out.extend(data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            }
            DType::F16 => out.extend(halves.map(|h| half::f16::from_bits(h).to_f32())),
            DType::BF16 => out.extend(halves.map(|h| half::bf16::from_bits(h).to_f32())),
            _ => {
                return Err(Error::unsupported(format!(
                    "{}: vector '{name}' is of type {dtype:?}; only F32, F16 and BF16 vectors are read",
                    self.what
                )));
            }
        }
        Ok(out.into())
    }

    fn data_of(&self, name: &str, dims: [usize; 4]) -> Result<(DType, Bytes)> {
        let info = self.tensor(name).ok_or_else(|| self.error(format_args!("tensor '{name}' is missing")))?;
        let dtype =
            info.supported().map_err(|e| Error::new(e.status, format!("{}: {}", self.what, e.message)))?;
        if info.dims != dims {
            return Err(self.error(format_args!(
                "tensor '{name}' has dimensions {:?} where the model's metadata ask for {dims:?}",
                info.dims
            )));
        }
        let data = info.range().and_then(|range| self.data.slice(range));
        let data =
            data.ok_or_else(|| Error::internal(format!("tensor '{name}' was not checked on opening")))?;
        Ok((dtype, data))
    }
}

/// Magic and version.
fn header(r: &mut Reader) -> Result<u32> {
    let magic = r.take(4, "the magic bytes")?;
    if magic != b"GGUF" {
        let shown = magic.escape_ascii();
        return Err(r.error(format_args!("not a GGUF file: it starts with \"{shown}\", not \"GGUF\"")));
    }
    match r.u32("the version")? {
        version @ (2 | 3) => Ok(version),
        // Version 1 used 32-bit counts and lived for a month.
        1 => Err(Error::unsupported(r.error("GGUF version 1; convert it to version 3").message)),
        version if version.swap_bytes() < 1 << 16 => Err(Error::unsupported(
            r.error("a big-endian GGUF file; only little-endian ones are read").message,
        )),
        version => Err(Error::unsupported(
            r.error(format_args!("GGUF version {version}; versions 2 and 3 are read")).message,
        )),
    }
}

fn entries(r: &mut Reader, min_bytes: usize, item: &str) -> Result<usize> {
    let n = r.count(min_bytes, item)?;
    if n > MAX_ENTRIES {
        return Err(r.error(format_args!("{item} is {n}; at most {MAX_ENTRIES} are read")));
    }
    Ok(n)
}

fn parse_metadata(r: &mut Reader, n: usize) -> Result<HashMap<String, Value>> {
    let mut metadata = HashMap::new();
    for _ in 0..n {
        let key = r.name("a metadata key")?;
        let value = Value::parse(r, key)?;
        if metadata.insert(key.to_owned(), value).is_some() {
            return Err(r.error(format_args!("metadata key '{key}' stands there twice")));
        }
    }
    Ok(metadata)
}

fn parse_tensors(r: &mut Reader, n: usize) -> Result<(Vec<TensorInfo>, HashMap<String, usize>)> {
    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut by_name = HashMap::new();
    for i in 0..n {
        let info = TensorInfo::parse(r)?;
        if by_name.insert(info.name.clone(), i).is_some() {
            return Err(r.error(format_args!("tensor '{}' stands there twice", info.name)));
        }
        tensors.push(info);
    }
    Ok((tensors, by_name))
}
