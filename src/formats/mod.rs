//! GGUF files and Hugging Face folders: from mapped bytes to metadata and named tensors.

pub mod gguf;
pub mod hf;
pub mod safetensors;

pub use gguf::{Gguf, TensorInfo};

use crate::base::{Error, Result};

/// Refuses a Git LFS pointer, which a clone without git-lfs has in place of a large file.
fn no_lfs_pointer(bytes: &[u8], what: &str) -> Result<()> {
    match bytes.starts_with(b"version https://git-lfs.github.com/spec/v1") {
        true => Err(Error::bad_model(format!(
            "{what}: this is a git-lfs pointer, not the file itself: run `git lfs pull` where it was cloned"
        ))),
        false => Ok(()),
    }
}
