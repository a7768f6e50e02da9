//! A model with f32 weights and f32 activations.

use bn_engine::base::{Bytes, Error, Result};
use bn_engine::formats::Gguf;
use bn_engine::kernels::gemm::formats::dequantize_row;
use bn_engine::kernels::{DType, Matrix, Pool, isa};
use bn_engine::model::{Checkpoint, DecoderConfig, HfFolder, Loaded, load_checkpoint};
use bn_engine::text::{ChatTemplate, Tokenizer};
use std::path::Path;
use std::sync::Arc;

/// Loads a decoder from a GGUF file or a folder.
pub fn load(path: &str, pool: &Pool) -> Result<Loaded> {
    let files: Box<dyn Checkpoint> = match Path::new(path).is_dir() {
        true => Box::new(HfFolder::open(path)?),
        false => Box::new(Gguf::open(path)?),
    };
    load_checkpoint(&Exact(files), pool, &|_, _| (), &mut |_, _| false)
}

struct Exact(Box<dyn Checkpoint>);

impl Checkpoint for Exact {
    fn what(&self) -> &str {
        self.0.what()
    }

    fn config(&self, warn: &dyn Fn(&str)) -> Result<DecoderConfig> {
        self.0.config(warn)
    }

    fn tokenizer(&self, warn: &dyn Fn(&str)) -> Result<Option<Tokenizer>> {
        self.0.tokenizer(warn)
    }

    fn end_tokens(&self, n: usize) -> Result<Vec<u32>> {
        self.0.end_tokens(n)
    }

    fn chat(&self, warn: &dyn Fn(&str)) -> Result<Option<ChatTemplate>> {
        self.0.chat(warn)
    }

    fn has(&self, tensor: &str) -> bool {
        self.0.has(tensor)
    }

    fn matrix(&self, pool: &Pool, tensor: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let packed = self.0.matrix(pool, tensor, rows, cols)?;
        let mut row = vec![0.0; cols];
        let mut bytes = Vec::with_capacity(size_of_val(&row[..]) * rows);
        for index in 0..rows {
            dequantize_row(isa(), &packed, index, &mut row);
            bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        }
        packed.data.release_pages();
        Matrix::new(Bytes::new(bytes), DType::F32, rows, cols).map_err(|e| Error::internal(e.to_string()))
    }

    fn vector(&self, tensor: &str, len: usize) -> Result<Arc<[f32]>> {
        self.0.vector(tensor, len)
    }

    fn names(&self) -> Result<Vec<String>> {
        self.0.names()
    }

    fn tensor_bytes(&self) -> u64 {
        self.0.tensor_bytes()
    }

    fn bytes_of(&self, tensor: &str) -> u64 {
        self.0.bytes_of(tensor)
    }

    fn other_bytes(&self) -> u64 {
        self.0.other_bytes()
    }
}
