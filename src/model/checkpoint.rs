//! The source that a decoder is loaded from, whatever its file format.

use super::config::DecoderConfig;
use super::encoder::EncoderConfig;
use crate::base::{Error, Result};
use crate::kernels::{Matrix, Pool};
use crate::text::{ChatTemplate, Tokenizer};
use std::sync::Arc;

/// A model's shape, tensors and tokenizer. Tensors have the names that GGUF gives them (`blk.0.attn_q.weight`,
/// `.bias`; a projection's own norm is `blk.0.attn_q_norm_in.weight`). The rows of q and k are in the order of the
/// configuration's `rope_style`. Oddities that are usable are reported to `warn`, in a sentence that names the file.
pub trait Checkpoint {
    /// Name of the file or folder in errors.
    fn what(&self) -> &str;
    /// The configuration, checked by `DecoderConfig::check`. `Unsupported` for an architecture or feature that we do
    /// not support, `BadModel` for an impossible value. Both name the field and the value.
    fn config(&self, warn: &dyn Fn(&str)) -> Result<DecoderConfig>;
    /// The configuration of an encoder, which has none as a decoder. Errors as for `config`.
    fn encoder(&self, _warn: &dyn Fn(&str)) -> Result<Option<EncoderConfig>> {
        Ok(None)
    }
    /// `None` if the files have no tokenizer; `Unsupported` if they have one that we do not know.
    fn tokenizer(&self, warn: &dyn Fn(&str)) -> Result<Option<Tokenizer>>;
    /// The end tokens that the files name, for a vocabulary of `n` tokens. Only used for models without a tokenizer,
    /// which would know better. `BadModel` for an id outside of the vocabulary.
    fn end_tokens(&self, n: usize) -> Result<Vec<u32>>;
    /// `None` if the files have no template. A template that is not understood is reported to `warn`, and fails when
    /// it is used.
    fn chat(&self, warn: &dyn Fn(&str)) -> Result<Option<ChatTemplate>>;
    /// The template of a pair's prompt, for a decoder that scores pairs. `None`: the tokenizer puts them together.
    fn pair(&self) -> Result<Option<ChatTemplate>> {
        Ok(None)
    }
    fn has(&self, tensor: &str) -> bool;
    /// The `[rows, cols]` weights, in a type that products take: mapped if the file has such a type, otherwise
    /// repacked on `pool`. `BadModel` if the tensor is missing or has another shape, `Unsupported` if its type is not
    /// one of ours.
    fn matrix(&self, pool: &Pool, tensor: &str, rows: usize, cols: usize) -> Result<Matrix>;
    /// As `matrix`, as the file has it, of a tensor with more dimensions: `shape` has the slowest one first.
    fn folded(&self, tensor: &str, _shape: &[usize], _rows: usize, _cols: usize) -> Result<Matrix> {
        Err(Error::internal(format!("{}: tensor '{tensor}' of more than two dimensions", self.what())))
    }
    /// A vector of `len` elements. Errors as for `matrix`.
    fn vector(&self, tensor: &str, len: usize) -> Result<Arc<[f32]>>;
    /// A vector of whole numbers. Errors as for `matrix`.
    fn integers(&self, tensor: &str) -> Result<Vec<i64>> {
        let why = "whole numbers are read from GGUF files alone";
        Err(Error::unsupported(format!("{}: tensor '{tensor}': {why}", self.what())))
    }
    /// The names of all tensors in the files. Tensors without a GGUF name keep their own.
    fn names(&self) -> Result<Vec<String>>;
    /// Bytes of all tensors in the files, and of one tensor. Progress is computed from them.
    fn tensor_bytes(&self) -> u64;
    fn bytes_of(&self, tensor: &str) -> u64;
    /// Bytes of the files that stay mapped but are not tensors (metadata).
    fn other_bytes(&self) -> u64;
}
