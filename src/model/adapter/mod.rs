//! LoRA adapters (Hu et al. 2021) from their files: PEFT's folders and GGUF files.

mod fit;
mod gguf;

use super::hf::peft;
use crate::base::Result;
use crate::formats::gguf::Gguf;
use crate::formats::hf::Folder;
use crate::kernels::Matrix;
use crate::ops::{Lora, RopeStyle};
use std::path::Path;

pub use fit::fit;

/// What a file holds, before anybody knows whether it fits a model.
pub struct AdapterFile {
    /// As errors call it.
    pub what: String,
    /// GGUF's name of the models that it is for, where it says so.
    pub architecture: Option<String>,
    /// How the rows of q's and k's B lie.
    pub rope: RopeStyle,
    pub parts: Vec<Part>,
}

/// The update of one matrix.
pub struct Part {
    /// GGUF's name of the matrix, without `.weight`: `blk.0.attn_q`.
    pub name: String,
    /// `[rank, cols]` and `[rows, rank]`, in the file's own type.
    pub a: Matrix,
    pub b: Matrix,
    pub scale: f32,
}

/// An adapter that fits a model.
pub struct Adapter {
    pub lora: Lora,
    /// Of its pairs, which lie in memory of their own.
    pub bytes: u64,
    /// Of all matrices of one product, at most: how many numbers a row has between A and B.
    pub ranks: usize,
    /// XXH64 of all that it is made of.
    pub fingerprint: u64,
}

impl AdapterFile {
    /// Of an adapter of it, before it is made.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| (part.a.data.len() + part.b.data.len()) as u64).sum()
    }

    /// A folder of PEFT's (`adapter_config.json`, `adapter_model.safetensors`) or a GGUF file. `Io` where it cannot be
    /// opened, `BadModel` where it is not sound, `Unsupported` for what is more than LoRA.
    pub fn open(path: &str) -> Result<Self> {
        match Path::new(path).is_dir() {
            true => peft::read(&Folder::open(path)?),
            false => gguf::read(&Gguf::open(path)?),
        }
    }
}
