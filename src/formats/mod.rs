//! GGUF: mapped bytes to metadata and named tensors.
