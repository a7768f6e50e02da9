//! Builds GGUF files in memory, for tests.

use super::ValueType;
use crate::base::Bytes;

/// A metadata value to write.
#[derive(Clone)]
pub(crate) enum Meta {
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    /// Type number and payload as they are.
    Raw(u32, Vec<u8>),
}

impl From<&str> for Meta {
    fn from(s: &str) -> Self {
        Meta::Str(s.into())
    }
}

/// Pairs and tensors in the order given; the fields may be bent before `build`.
#[derive(Clone)]
pub(crate) struct Writer {
    pub version: u32,
    pub alignment: usize,
    pub pairs: Vec<(String, Meta)>,
    /// Name, dims in ggml's order, type number, data.
    pub tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl Writer {
    pub fn new() -> Self {
        Self { version: 3, alignment: 32, pairs: Vec::new(), tensors: Vec::new() }
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
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            string(&mut out, key);
            write_value(&mut out, value);
        }
        let mut offset = 0;
        for (name, dims, type_id, data) in &self.tensors {
            string(&mut out, name);
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(type_id.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += data.len().next_multiple_of(self.alignment);
        }
        for (.., data) in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(data);
        }
        out
    }

    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.build())
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
