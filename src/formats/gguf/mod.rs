//! Reads GGUF files, versions 2 and 3, little-endian, without copying tensors.
//!
//! Layout: "GGUF", u32 version, u64 tensors, u64 metadata pairs, the pairs, the tensor infos, padding to
//! `general.alignment`, the tensors' data (github.com/ggml-org/ggml, docs/gguf.md). A model may be split into several
//! files (`split`). Tensor types are those of `DType::IN_FILES`. [`Gguf::matrix`] returns a tensor as it is in the
//! file, [`Gguf::prepared`] as the kernels read it.
//!
//! Files are not trusted: arithmetic is checked, counts are bounded by the number of bytes left, and allocations on
//! opening are bounded by [`MAX_ENTRIES`] records plus the bytes of their names.

mod integers;
mod reader;
mod split;
#[cfg(test)]
mod split_tests;
mod tensor;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod type_tests;
mod value;
pub mod writer;
#[cfg(test)]
mod writer_tests;

pub use tensor::TensorInfo;
pub use value::{FromMetadata, ValueType};

use crate::base::{Bytes, Error, Result, Status, os};
use crate::formats::no_lfs_pointer;
use crate::kernels::pack::tl::{self, Tilings};
use crate::kernels::{DType, Matrix, Pool, pack};
use reader::{MAX_KEY_BYTES, Reader, called};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use value::Value;

/// Maximum number of tensors, and of metadata pairs, in one file: a hundred times what large models have.
pub const MAX_ENTRIES: usize = 1 << 16;
const DEFAULT_ALIGNMENT: u32 = 32;
/// u64 length of the key, u32 type, one byte of value.
const MIN_PAIR_BYTES: usize = 13;
/// u64 length of the name, u32 number of dimensions, u32 type, u64 offset.
const MIN_TENSOR_BYTES: usize = 24;

/// File beside a model with the tilings of its TL1 and TL2 tensors, and the maximum number of its bytes.
const KERNEL_CONFIG: &str = "kernel_config.ini";
const MAX_KERNEL_CONFIG: u64 = 1 << 20;

/// An opened model file, or all files of a split model: metadata and tensors.
pub struct Gguf {
    /// One file, or all files of a split model. The first has the metadata.
    files: Vec<GgufFile>,
    version: u32,
    alignment: usize,
    metadata: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    tilings: Tilings,
}

struct GgufFile {
    bytes: Bytes,
    /// The tensors' data: `bytes` from the aligned end of the header on.
    data: Bytes,
    /// Name of the file in errors.
    what: String,
}

impl Gguf {
    /// Maps the file at `path`. If it is any file of a split model, maps all of them. `Io` if a file can't be opened
    /// or mapped; `BadModel` if it is not a GGUF file, or not the expected part. If there are TL1 or TL2 tensors,
    /// also reads `kernel_config.ini` in the same folder, if it exists.
    ///
    /// The file must not be truncated or rewritten while the engine lives: the system answers a read of missing pages
    /// with SIGBUS, which no check here can foresee. Replace model files by renaming.
    pub fn open(path: &str) -> Result<Self> {
        Self::open_with(path, None)
    }

    /// Like `open`, with the path of the `kernel_config.ini` to read instead of the one beside the file.
    /// `InvalidArgument` for a file that needs none.
    pub fn open_with(path: &str, config: Option<&str>) -> Result<Self> {
        let mut gguf = Self::parse(map(path)?, path)?;
        if gguf.split_count()? > 1 {
            gguf = split::join(path, gguf)?;
        }
        // The file in the model's folder.
        let beside =
            format!("{}{KERNEL_CONFIG}", path.rfind(std::path::is_separator).map_or("", |at| &path[..=at]));
        gguf.tile(config, Some(&beside))?;
        Ok(gguf)
    }

    /// Reads the tilings of TL1 and TL2 tensors, if there are such tensors: from `config` if it is given, else from
    /// `beside` if that exists.
    fn tile(&mut self, config: Option<&str>, beside: Option<&str>) -> Result<()> {
        if !self.tensors.iter().any(|t| matches!(t.dtype(), Some(DType::TL1 | DType::TL2))) {
            return match config {
                None => Ok(()),
                Some(_) => Err(Error::invalid(format!(
                    "kernel_config_path is given, and '{}' has no TL1 or TL2 tensors",
                    self.what()
                ))),
            };
        }
        let tilings = match (config, beside) {
            (Some(config), _) => read_tilings(config)?
                .ok_or_else(|| cannot_open(config, "it does not exist (kernel_config_path)"))?,
            (None, Some(beside)) => read_tilings(beside)?.unwrap_or_default(),
            (None, None) => return Ok(()),
        };
        self.set_tilings(tilings);
        Ok(())
    }

    /// Parses `bytes`, which errors call `what`. `Unsupported` if they are one of several parts.
    pub fn from_bytes(bytes: Bytes, what: &str) -> Result<Self> {
        Self::from_bytes_with(bytes, what, None)
    }

    /// Like `from_bytes`, with the path of a `kernel_config.ini` to read, as in `open_with`.
    pub fn from_bytes_with(bytes: Bytes, what: &str, config: Option<&str>) -> Result<Self> {
        let mut gguf = Self::parse(bytes, what)?;
        gguf.tile(config, None)?;
        match gguf.split_count()? {
            0 | 1 => Ok(gguf),
            count => Err(Error::unsupported(format!(
                "{what}: split.count is {count}: the parts of a split model are opened by a path"
            ))),
        }
    }

    /// Like `from_bytes`, but accepts any part of a split model.
    fn parse(bytes: Bytes, what: &str) -> Result<Self> {
        let mut r = Reader::new(&bytes, what);
        no_lfs_pointer(&bytes, what)?;
        let version = header(&mut r)?;
        let n_tensors = entries(&mut r, MIN_TENSOR_BYTES, "tensor count")?;
        let n_pairs = entries(&mut r, MIN_PAIR_BYTES, "metadata count")?;
        let metadata = parse_metadata(&mut r, n_pairs)?;
        let (tensors, by_name) = parse_tensors(&mut r, n_tensors)?;
        let end = r.pos();
        let file = GgufFile { data: bytes.clone(), bytes: bytes.clone(), what: what.to_owned() };
        let mut gguf = Self {
            files: vec![file],
            version,
            alignment: 0,
            metadata,
            tensors,
            by_name,
            tilings: Tilings::default(),
        };
        gguf.place_data(end)?;
        Ok(gguf)
    }

    /// Finds the data section after the header's `end`, and checks that all tensors are within it.
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
        let bytes = &self.files[0].bytes;
        let start = if self.tensors.is_empty() { start.min(bytes.len()) } else { start };
        let data = bytes.slice(start..bytes.len()).ok_or_else(|| {
            self.error(format_args!(
                "the file ends at byte {} before its tensors' data, at {start}",
                bytes.len()
            ))
        })?;
        let end = data.len();
        self.files[0].data = data;
        self.set_extents(end)?;
        for tensor in &self.tensors {
            if tensor.offset % self.alignment != 0 {
                return Err(self.error(format_args!(
                    "tensor '{}' starts at {}, not at a multiple of the alignment {}",
                    tensor.name, tensor.offset, self.alignment
                )));
            }
            // The length of a tensor of unknown type is unknown too, but its start can be checked.
            if tensor.end().is_none_or(|last| last > end) {
                return Err(self.error(format_args!(
                    "tensor '{}' ({} bytes at {}) lies beyond the file's {end} bytes of data; is the file truncated?",
                    tensor.name,
                    tensor.byte_len.unwrap_or(0),
                    tensor.offset,
                )));
            }
        }
        self.check_overlap()
    }

    /// Refuses two tensors that share bytes. A tensor of unknown type counts with its first byte.
    fn check_overlap(&self) -> Result<()> {
        let mut order: Vec<&TensorInfo> = Vec::new();
        order.try_reserve_exact(self.tensors.len()).map_err(|_| self.too_many())?;
        order.extend(self.tensors.iter().filter(|tensor| tensor.byte_len != Some(0)));
        order.sort_unstable_by_key(|tensor| tensor.offset);
        match order.windows(2).find(|pair| pair[0].end().is_none_or(|end| end > pair[1].offset)) {
            None => Ok(()),
            Some(pair) => {
                let [first, second] =
                    [pair[0], pair[1]].map(|t| (&t.name, t.byte_len.unwrap_or(1), t.offset));
                Err(self.error(format_args!(
                    "tensors '{}' ({} bytes at {}) and '{}' ({} bytes at {}) share bytes",
                    first.0, first.1, first.2, second.0, second.1, second.2
                )))
            }
        }
    }

    fn too_many(&self) -> Error {
        Error::out_of_memory(self.what(), self.tensors.len().saturating_mul(size_of::<TensorInfo>()))
    }

    /// Sets each tensor's number of bytes up to the next tensor, or to the `end` of the data.
    fn set_extents(&mut self, end: usize) -> Result<()> {
        let mut starts: Vec<usize> = Vec::new();
        starts.try_reserve_exact(self.tensors.len()).map_err(|_| self.too_many())?;
        starts.extend(self.tensors.iter().map(|t| t.offset));
        starts.sort_unstable();
        for tensor in &mut self.tensors {
            let next = starts.partition_point(|start| *start <= tensor.offset);
            let next = starts.get(next).copied().unwrap_or(end);
            tensor.set_extent(next.saturating_sub(tensor.offset));
        }
        Ok(())
    }

    /// `split.count`, or 0 if the file is not one of several.
    fn split_count(&self) -> Result<u32> {
        Ok(self.find::<u32>("split.count")?.unwrap_or(0))
    }

    /// Sets the tilings of TL1 and TL2 tensors, which replace the built-in ones.
    pub fn set_tilings(&mut self, tilings: Tilings) {
        self.tilings = tilings;
    }

    fn error(&self, message: impl std::fmt::Display) -> Error {
        Error::bad_model(format!("{}: {message}", self.what()))
    }

    /// Name of the file, or of the first of several, in errors.
    pub fn what(&self) -> &str {
        &self.files[0].what
    }

    pub fn version(&self) -> u32 {
        self.version
    }

    /// `general.alignment`, or 32.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// Bytes of the file, or of all files together.
    pub fn file_bytes(&self) -> usize {
        self.files.iter().map(|file| file.bytes.len()).sum()
    }

    /// Whether `data` is in a mapped file, so that it was not copied.
    pub fn maps(&self, data: &[u8]) -> bool {
        let inside = |file: &GgufFile| file.bytes.as_ptr_range().contains(&data.as_ptr());
        data.is_empty() || self.files.iter().any(inside)
    }

    /// Bytes of all tensors of known types.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().filter_map(|t| t.byte_len).map(|n| n as u64).sum()
    }

    pub fn contains(&self, key: &str) -> bool {
        self.metadata.contains_key(key)
    }

    /// Metadata keys, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys().map(String::as_str)
    }

    /// The type of a key's value; None if the key is absent.
    pub fn value_type(&self, key: &str) -> Option<ValueType> {
        self.metadata.get(key).map(|value| value.ty)
    }

    /// The value of a key that must exist: `u32`, `u64`, `i32`, `f32`, `bool`, `&str`, or a `Vec` of `&str`, `u32`,
    /// `i32` or `f32`. Integers of any width convert if the value fits. `BadModel` names the key, the type found and
    /// the type wanted.
    pub fn get<'a, T: FromMetadata<'a>>(&'a self, key: &str) -> Result<T> {
        self.find(key)?
            .ok_or_else(|| self.error(format_args!("metadata key '{key}' ({}) is missing", T::WANTED)))
    }

    /// Like [`Self::get`], but `None` if the key is absent.
    pub fn find<'a, T: FromMetadata<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        let payload = &self.files[0].bytes[value.start..value.end];
        let found = match value.array {
            Some((elem, count)) => T::from_array(elem, count, payload)?,
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

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// The `[rows, cols]` matrix `name`, as it is in the file, not copied. `BadModel` if it is missing or has another
    /// shape, `Unsupported` if its type is not one of ours.
    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let (dtype, data) = match expert(name) {
            Some((all, n)) => self.expert_of(&all, n, [cols, rows])?,
            None => self.data_of(name, [cols, rows, 1, 1])?,
        };
        Matrix::new(data, dtype, rows, cols).map_err(|e| self.of_tensor(name, e))
    }

    /// As [`Self::matrix`], of a tensor with more dimensions: `shape` has the slowest one first.
    pub fn folded_matrix(&self, name: &str, shape: &[usize], rows: usize, cols: usize) -> Result<Matrix> {
        let mut dims = [1; 4];
        dims.iter_mut().zip(shape.iter().rev()).for_each(|(dim, own)| *dim = *own);
        let (dtype, data) = self.data_of(name, dims)?;
        Matrix::new(data, dtype, rows, cols).map_err(|e| self.of_tensor(name, e))
    }

    /// Matrix `n` of a tensor that has one for each expert.
    fn expert_of(&self, name: &str, n: usize, [cols, rows]: [usize; 2]) -> Result<(DType, Bytes)> {
        let count = self.tensor(name).map_or(1, |info| info.dims[2]);
        let (dtype, data) = self.data_of(name, [cols, rows, count, 1])?;
        let bytes = dtype.byte_len(rows, cols).filter(|bytes| bytes.checked_mul(count) == Some(data.len()));
        let Some(bytes) = bytes else {
            let why = format!("experts of type {dtype:?} are not supported");
            return Err(self.of_tensor(name, Error::unsupported(why)));
        };
        match (0..count).contains(&n).then(|| data.slice(n * bytes..(n + 1) * bytes)).flatten() {
            Some(data) => Ok((dtype, data)),
            None => {
                Err(self
                    .error(format_args!("tensor '{name}' has {count} experts, and number {n} is asked for")))
            }
        }
    }

    /// Like [`Self::matrix`], in the form that the kernels read (`pack::prepare`); TL1 and TL2 by their tilings.
    /// Packed weights have memory of their own, see [`Self::maps`].
    pub fn prepared(&self, pool: &Pool, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let m = self.matrix(name, rows, cols)?;
        let prepare = || match m.dtype {
            DType::TL1 | DType::TL2 => {
                let tiling = self.tilings.find(m.dtype, rows, cols)?;
                tl::unpack(pool, &m, tiling, self.scale_of(name)?)
            }
            _ => pack::prepare(pool, m.clone()),
        };
        prepare().map_err(|e| self.of_tensor(name, e))
    }

    /// Whether the tensor `name` is the scale of a TL1 or TL2 tensor, which `prepared` reads with that tensor.
    pub fn is_scale(&self, name: &str) -> bool {
        let scaled = name.strip_suffix("_scale").and_then(|name| self.tensor(name));
        scaled.is_some_and(|t| matches!(t.dtype(), Some(DType::TL1 | DType::TL2)))
    }

    /// The scale of a TL1 or TL2 tensor. The converter writes a tensor `<name>_scale` after it. Without one, the
    /// scale is where bitnet.cpp's reader expects it: in the 4 bytes that follow the packed ones, at a multiple of 32
    /// (bitnet.cpp, convert-hf-to-gguf-bitnet.py and ggml_bitnet_transform_tensor).
    fn scale_of(&self, name: &str) -> Result<f32> {
        let beside = format!("{name}_scale");
        if self.tensor(&beside).is_some() {
            return Ok(self.vector_f32(&beside, 1)?[0]);
        }
        let scale = self.tensor(name).and_then(|info| {
            let at = info.byte_len?.checked_next_multiple_of(32)?;
            let end = at.checked_add(4).filter(|end| *end <= info.extent)?;
            let bytes = self.files[info.part].data.get(info.offset + at..info.offset + end)?;
            Some(f32::from_le_bytes(bytes.try_into().ok()?))
        });
        scale.ok_or_else(|| Error::bad_model(format!("it has no scale: there is no tensor '{beside}'")))
    }

    fn of_tensor(&self, name: &str, e: Error) -> Error {
        let stacked = expert(name).map(|(all, _)| all);
        let part = self.tensor(stacked.as_deref().unwrap_or(name)).map_or(0, |info| info.part);
        Error::new(e.status, format!("{}: tensor '{name}': {}", self.files[part].what, e.message))
    }

    /// The vector `name` of `len` elements, from F32, F16 or BF16. Errors as for [`Self::matrix`].
    pub fn vector_f32(&self, name: &str, len: usize) -> Result<Arc<[f32]>> {
        self.vector_of(name, [len, 1])
    }

    /// As `vector_f32`, for the elements of a matrix.
    pub fn vector_of(&self, name: &str, [columns, rows]: [usize; 2]) -> Result<Arc<[f32]>> {
        let len = columns.saturating_mul(rows);
        let (dtype, data) = self.data_of(name, [columns, rows, 1, 1])?;
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
                    self.what()
                )));
            }
        }
        Ok(out.into())
    }

    fn data_of(&self, name: &str, dims: [usize; 4]) -> Result<(DType, Bytes)> {
        let info = self.tensor(name).ok_or_else(|| self.error(format_args!("tensor '{name}' is missing")))?;
        let dtype = info.supported().map_err(|e| {
            let what = &self.files[info.part].what;
            Error::new(e.status, format!("{what}: {}", e.message))
        })?;
        if info.dims != dims {
            return Err(self.error(format_args!(
                "tensor '{name}' has dimensions {:?} where the model's metadata ask for {dims:?}",
                info.dims
            )));
        }
        let data = info.range().and_then(|range| self.files[info.part].data.slice(range));
        let data =
            data.ok_or_else(|| Error::internal(format!("tensor '{name}' was not checked on opening")))?;
        Ok((dtype, data))
    }
}

/// Ends of the names of tensors that have a matrix for each expert, or for each head.
const STACKED: [&str; 3] = ["_exps", ".attn_k_b", ".attn_v_b"];

/// The tensor and the index that `blk.0.ffn_up_exps.7.weight` means: the eighth matrix of `blk.0.ffn_up_exps.weight`.
pub fn expert(name: &str) -> Option<(String, usize)> {
    let (all, n) = name.strip_suffix(".weight")?.rsplit_once('.')?;
    STACKED.iter().any(|end| all.ends_with(end)).then_some(())?;
    Some((format!("{all}.weight"), n.parse().ok()?))
}

fn cannot_open(path: &str, why: impl std::fmt::Display) -> Error {
    Error::new(Status::Io, format!("cannot open '{path}': {why}"))
}

/// Opens a regular file. Returns it with its number of bytes, or the reason why it is not a regular file.
fn open_regular(path: &str) -> io::Result<std::result::Result<(File, u64), &'static str>> {
    let file = os::open(path.as_ref())?;
    let stat = file.metadata()?;
    Ok(match stat.is_file() {
        true => Ok((file, stat.len())),
        false if stat.is_dir() => Err("it is a directory"),
        false => Err("it is not a regular file"),
    })
}

/// Maps the file at `path`.
fn map(path: &str) -> Result<Bytes> {
    let (file, len) =
        open_regular(path).map_err(|e| cannot_open(path, e))?.map_err(|why| cannot_open(path, why))?;
    map_open(&file, len, path)
}

/// Maps an open file, which errors call `what`. The caller may close it afterwards. `Io` if it is not a regular file
/// or cannot be read. The file must not be changed, as for `Gguf::open`.
pub fn map_file(file: &File, what: &str) -> Result<Bytes> {
    let stat = file.metadata().map_err(|e| cannot_open(what, e))?;
    match stat.is_file() {
        true => map_open(file, stat.len(), what),
        false => Err(cannot_open(what, "it is not a regular file")),
    }
}

fn map_open(file: &File, len: u64, what: &str) -> Result<Bytes> {
    if len == 0 {
        return Err(Error::bad_model(format!("model file '{what}' is empty")));
    }
    // SAFETY: the mapping is private and read-only and outlives every view of it (`Bytes` owns it). The
    // caller must ensure that the file is not truncated or rewritten meanwhile.
    let map = unsafe { memmap2::Mmap::map(file) }.map_err(|e| cannot_open(what, e))?;
    Ok(Bytes::of_file(map))
}

fn read_tilings(path: &str) -> Result<Option<Tilings>> {
    let (file, len) = match open_regular(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => result.map_err(|e| cannot_open(path, e))?.map_err(|why| cannot_open(path, why))?,
    };
    let mut text = String::new();
    if len > MAX_KERNEL_CONFIG {
        return Err(Error::bad_model(format!(
            "{path} has {len} bytes; at most {MAX_KERNEL_CONFIG} are read"
        )));
    }
    match file.take(MAX_KERNEL_CONFIG).read_to_string(&mut text) {
        Ok(_) => Tilings::parse(&text, path).map(Some),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            Err(Error::bad_model(format!("{path} is not UTF-8")))
        }
        Err(e) => Err(cannot_open(path, e)),
    }
}

/// Reads the magic and the version.
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
    metadata.try_reserve(n).map_err(|_| r.no_memory(n * size_of::<(String, Value)>()))?;
    for _ in 0..n {
        let key = r.name(MAX_KEY_BYTES, "a metadata key")?;
        let value = Value::parse(r, &called(key))?;
        if metadata.insert(r.owned(key)?, value).is_some() {
            return Err(r.error(format_args!("{} stands there twice", called(key))));
        }
    }
    Ok(metadata)
}

fn parse_tensors(r: &mut Reader, n: usize) -> Result<(Vec<TensorInfo>, HashMap<String, usize>)> {
    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut by_name: HashMap<String, usize> = HashMap::new();
    let bytes = n * (size_of::<TensorInfo>() + size_of::<(String, usize)>());
    tensors.try_reserve_exact(n).map_err(|_| r.no_memory(bytes))?;
    by_name.try_reserve(n).map_err(|_| r.no_memory(bytes))?;
    for i in 0..n {
        let info = TensorInfo::parse(r)?;
        if by_name.insert(r.owned(&info.name)?, i).is_some() {
            return Err(r.error(format_args!("tensor '{}' stands there twice", info.name)));
        }
        tensors.push(info);
    }
    Ok((tensors, by_name))
}
