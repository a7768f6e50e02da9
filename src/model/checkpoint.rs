//! A model's tensors and shape, whatever files they come from.

use super::config::DecoderConfig;
use crate::base::Result;
use crate::kernels::{Matrix, Pool};
use std::sync::Arc;

/// Tensors go by the names that GGUF gives them (`blk.0.attn_q.weight`), q and k rows in the order that the
/// configuration's `rope_style` says.
pub trait Checkpoint {
    /// The file or folder, as errors call it.
    fn what(&self) -> &str;
    fn config(&self) -> Result<DecoderConfig>;
    fn has(&self, name: &str) -> bool;
    /// `[rows, cols]` weights, in a type that the products know: mapped where the file holds such a type,
    /// otherwise repacked on `pool`. `BadModel` where it is missing or has another shape.
    fn matrix(&self, pool: &Pool, name: &str, rows: usize, cols: usize) -> Result<Matrix>;
    fn vector(&self, name: &str, len: usize) -> Result<Arc<[f32]>>;
    /// Every tensor of the file, by those names (a name of the file's own where it has none).
    fn names(&self) -> Vec<String>;
    /// Bytes of all tensors in the file, and of this one: what progress is told by.
    fn tensor_bytes(&self) -> u64;
    fn bytes_of(&self, name: &str) -> u64;
    /// Bytes of the file that stay mapped and are no tensors (metadata).
    fn other_bytes(&self) -> u64;
}
