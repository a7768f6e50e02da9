//! What a decoder is loaded from, whatever files it lies in.

use super::config::DecoderConfig;
use crate::base::Result;
use crate::kernels::{Matrix, Pool};
use crate::text::{ChatTemplate, Tokenizer};
use std::sync::Arc;

/// A model's shape, tensors and tokenizer. Tensors go by the names that GGUF gives them (`blk.0.attn_q.weight`,
/// `.bias`; a projection's own norm is `blk.0.attn_q_norm_in.weight`), q and k rows in the order that the
/// configuration's `rope_style` says. What is odd but usable goes to `warn`, as a sentence that names the file.
pub trait Checkpoint {
    /// The file or folder, as errors call it.
    fn what(&self) -> &str;
    /// Checked (`DecoderConfig::check`). `Unsupported` for an architecture or feature that is not ours,
    /// `BadModel` for a value that cannot be; both name the field and the value.
    fn config(&self, warn: &dyn Fn(&str)) -> Result<DecoderConfig>;
    /// None where there is none in the files; `Unsupported` where there is one that we do not know.
    fn tokenizer(&self, warn: &dyn Fn(&str)) -> Result<Option<Tokenizer>>;
    /// What the files name as end tokens, of a vocabulary of `n`: for models whose tokenizer, which knows better, is
    /// not there. `BadModel` for an id outside.
    fn end_tokens(&self, n: usize) -> Result<Vec<u32>>;
    /// None where there is none. One that is not understood is told to `warn` and fails when it is used.
    fn chat(&self, warn: &dyn Fn(&str)) -> Result<Option<ChatTemplate>>;
    fn has(&self, tensor: &str) -> bool;
    /// `[rows, cols]` weights, in a type that the products know: mapped where the file holds such a type,
    /// otherwise repacked on `pool`. `BadModel` where it is missing or has another shape, `Unsupported` where
    /// its type is none of ours.
    fn matrix(&self, pool: &Pool, tensor: &str, rows: usize, cols: usize) -> Result<Matrix>;
    /// `len` elements. Errors as for `matrix`.
    fn vector(&self, tensor: &str, len: usize) -> Result<Arc<[f32]>>;
    /// Every tensor of the files, by those names (a name of the files' own where it has none).
    fn names(&self) -> Result<Vec<String>>;
    /// Bytes of all tensors in the files, and of one of them: what progress is told by.
    fn tensor_bytes(&self) -> u64;
    fn bytes_of(&self, tensor: &str) -> u64;
    /// Bytes of the files that stay mapped and are no tensors (metadata).
    fn other_bytes(&self) -> u64;
}
