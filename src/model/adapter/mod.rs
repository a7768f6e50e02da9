//! LoRA adapters (Hu et al. 2021) from PEFT folders and GGUF files.

mod fit;
mod gguf;

use super::hf::peft;
use crate::base::Result;
use crate::formats::gguf::Gguf;
use crate::formats::hf::Folder;
use crate::kernels::Matrix;
use crate::ops::{Lora, RopeStyle};
use std::path::Path;

pub(super) use fit::fit;

/// The contents of a file, before it is matched with a model.
pub struct AdapterFile {
    /// Name of the file in errors.
    pub what: String,
    /// GGUF's name of the architecture that it is for, if the file has it.
    pub architecture: Option<String>,
    /// Order of the rows in B of q and k. `None`: that of the family's Hugging Face files.
    pub rope: Option<RopeStyle>,
    pub parts: Vec<Part>,
}

/// The low-rank update of one matrix.
pub struct Part {
    /// GGUF's name of the matrix, without `.weight`: `blk.0.attn_q`. In a file without an architecture, PEFT's of the
    /// module.
    pub name: String,
    /// `[rank, cols]`, and for `b` `[rows, rank]`, in the file's own type.
    pub a: Matrix,
    pub b: Matrix,
    pub scale: f32,
}

/// An adapter that fits a model.
pub struct Adapter {
    pub lora: Lora,
    /// Bytes of its pairs, which are copies.
    pub bytes: u64,
    /// Maximum sum of the ranks in one product: how many numbers each row has between A and B.
    pub ranks: usize,
    /// The most columns of a product that it updates.
    pub widest: usize,
    /// XXH64 of all its contents.
    pub fingerprint: u64,
}

impl AdapterFile {
    /// Bytes of an adapter made of this file.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| (part.a.data.len() + part.b.data.len()) as u64).sum()
    }

    /// Opens a PEFT folder (`adapter_config.json`, `adapter_model.safetensors`) or a GGUF file. `Io` if it cannot be
    /// opened, `BadModel` if it is malformed, `Unsupported` for features beyond LoRA.
    pub fn open(path: &str) -> Result<Self> {
        match Path::new(path).is_dir() {
            true => peft::read(&Folder::open(path)?),
            false => gguf::read(&Gguf::open(path)?),
        }
    }
}
