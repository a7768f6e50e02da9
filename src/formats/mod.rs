//! GGUF and Hugging Face folders: mapped bytes to metadata and named tensors.

pub mod gguf;
pub mod hf;
pub mod safetensors;

pub use gguf::{Gguf, TensorInfo};
