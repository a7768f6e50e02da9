//! Writes GGUF files, version 3: in memory, or tensor by tensor to a file.

use super::ValueType;
use crate::base::{Error, Result, Status};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

const ALIGNMENT: usize = 32;

/// A metadata value to write.
#[derive(Clone, Debug)]
pub enum Meta {
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
    /// Type number and payload, written unchanged.
    Raw(u32, Vec<u8>),
}

impl From<&str> for Meta {
    fn from(s: &str) -> Self {
        Meta::Str(s.into())
    }
}

/// A tensor's entry in the header.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    /// In ggml's order, with the contiguous dimension first.
    dims: Vec<u64>,
    /// GGUF's number of the type.
    type_id: u32,
    bytes: usize,
}

/// Everything before the tensors' data, including padding.
fn header(version: u32, alignment: usize, pairs: &[(String, Meta)], entries: &[Entry]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(version.to_le_bytes());
    out.extend((entries.len() as u64).to_le_bytes());
    out.extend((pairs.len() as u64).to_le_bytes());
    for (key, value) in pairs {
        string(&mut out, key);
        write_value(&mut out, value);
    }
    let mut offset = 0;
    for entry in entries {
        string(&mut out, &entry.name);
        out.extend((entry.dims.len() as u32).to_le_bytes());
        entry.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(entry.type_id.to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        offset += entry.bytes.next_multiple_of(alignment);
    }
    if !entries.is_empty() {
        out.resize(out.len().next_multiple_of(alignment), 0);
    }
    out
}

/// A file with metadata only.
pub fn metadata_only(pairs: &[(String, Meta)]) -> Vec<u8> {
    header(3, ALIGNMENT, pairs, &[])
}

/// Writes a file with `tensors` (name, dims in ggml's order). `data(index, out)` is called for each in order; it writes
/// the data and returns GGUF's number of the type. Until it is complete and accepted by `check`, the file has a
/// temporary name in the same folder, which `check` gets; then it is renamed to `path`.
pub fn write_file(
    path: &Path,
    pairs: &[(String, Meta)],
    tensors: &[(String, Vec<u64>)],
    data: impl FnMut(usize, &mut dyn Write) -> Result<u32>,
    check: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let failed = |e: io::Error| Error::new(Status::Io, format!("cannot write '{}': {e}", path.display()));
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let file = File::create(&unfinished).map_err(failed)?;
    let result = write_to(file, &failed, pairs, tensors, data)
        .and_then(|()| check(Path::new(&unfinished)))
        .and_then(|()| std::fs::rename(&unfinished, path).map_err(failed));
    if result.is_err() {
        // The failure above is the error to report, not this one.
        let _ = std::fs::remove_file(&unfinished);
    }
    result
}

fn write_to(
    file: File,
    failed: &dyn Fn(io::Error) -> Error,
    pairs: &[(String, Meta)],
    tensors: &[(String, Vec<u64>)],
    mut data: impl FnMut(usize, &mut dyn Write) -> Result<u32>,
) -> Result<()> {
    let entry = |(name, dims): &(String, Vec<u64>)| Entry {
        name: name.clone(),
        dims: dims.clone(),
        type_id: 0,
        bytes: 0,
    };
    let mut entries: Vec<_> = tensors.iter().map(entry).collect();
    let mut out = Counted { inner: BufWriter::with_capacity(1 << 20, file), bytes: 0 };
    // Types and offsets are written again later, which does not change the header's length.
    out.write_all(&header(3, ALIGNMENT, pairs, &entries)).map_err(failed)?;
    for (index, entry) in entries.iter_mut().enumerate() {
        let start = out.bytes;
        entry.type_id = data(index, &mut out)?;
        entry.bytes = out.bytes - start;
        let padding = entry.bytes.next_multiple_of(ALIGNMENT) - entry.bytes;
        out.write_all(&[0; ALIGNMENT][..padding]).map_err(failed)?;
    }
    let mut file = out.inner.into_inner().map_err(|e| failed(e.into_error()))?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    file.write_all(&header(3, ALIGNMENT, pairs, &entries)).map_err(failed)
}

struct Counted<W> {
    inner: W,
    bytes: usize,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.bytes += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn string(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

fn array(out: &mut Vec<u8>, elem: ValueType, count: usize) {
    out.extend((ValueType::Array as u32).to_le_bytes());
    out.extend((elem as u32).to_le_bytes());
    out.extend((count as u64).to_le_bytes());
}

fn write_value(out: &mut Vec<u8>, value: &Meta) {
    let mut scalar = |ty: ValueType, payload: &[u8]| {
        out.extend((ty as u32).to_le_bytes());
        out.extend(payload);
    };
    match value {
        Meta::U32(v) => scalar(ValueType::U32, &v.to_le_bytes()),
        Meta::I32(v) => scalar(ValueType::I32, &v.to_le_bytes()),
        Meta::U64(v) => scalar(ValueType::U64, &v.to_le_bytes()),
        Meta::F32(v) => scalar(ValueType::F32, &v.to_le_bytes()),
        Meta::Bool(v) => scalar(ValueType::Bool, &[*v as u8]),
        Meta::Str(s) => {
            scalar(ValueType::String, &[]);
            string(out, s);
        }
        Meta::Strs(items) => {
            array(out, ValueType::String, items.len());
            items.iter().for_each(|s| string(out, s));
        }
        Meta::Bools(items) => {
            array(out, ValueType::Bool, items.len());
            out.extend(items.iter().map(|v| u8::from(*v)));
        }
        Meta::I32s(items) => {
            array(out, ValueType::I32, items.len());
            items.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        Meta::F32s(items) => {
            array(out, ValueType::F32, items.len());
            items.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        Meta::Raw(ty, payload) => {
            out.extend(ty.to_le_bytes());
            out.extend(payload);
        }
    }
}

/// A file in memory, for tests. Pairs and tensors keep their order. Tests may falsify the fields before `build`.
#[cfg(test)]
#[derive(Clone)]
pub(crate) struct Writer {
    pub version: u32,
    pub alignment: usize,
    pub pairs: Vec<(String, Meta)>,
    /// Name, dims in ggml's order, type number, data.
    pub tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

#[cfg(test)]
impl Writer {
    pub fn new() -> Self {
        Self { version: 3, alignment: ALIGNMENT, pairs: Vec::new(), tensors: Vec::new() }
    }

    pub fn meta(mut self, key: &str, value: impl Into<Meta>) -> Self {
        self.pairs.push((key.into(), value.into()));
        self
    }

    pub fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, data: &[u8]) -> Self {
        self.tensors.push((name.into(), dims.into(), type_id, data.into()));
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let entry = |(name, dims, type_id, data): &(String, Vec<u64>, u32, Vec<u8>)| Entry {
            name: name.clone(),
            dims: dims.clone(),
            type_id: *type_id,
            bytes: data.len(),
        };
        let entries: Vec<_> = self.tensors.iter().map(entry).collect();
        let mut out = header(self.version, self.alignment, &self.pairs, &entries);
        for (.., data) in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(data);
        }
        out
    }

    pub fn bytes(&self) -> crate::base::Bytes {
        crate::base::Bytes::new(self.build())
    }
}
