//! GGUF: mapped bytes to metadata and named tensors.

pub mod gguf;

pub use gguf::{Gguf, TensorInfo};
