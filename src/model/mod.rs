//! Decoders on candle tensors through `ops`, their configuration and loader, and the `echo` model.

mod check;
mod config;
mod decoder;
mod echo;
mod loader;

pub use loader::{Source, load, load_gguf, load_with_ops};

use crate::base::Result;
use crate::ops::{KvCache, RaggedBatch};
use crate::text::{ChatTemplate, Tokenizer};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a host may ask about a loaded model; sizes in elements, tokens and bytes.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub architecture: String,
    pub name: String,
    pub vocab_size: usize,
    pub context_length: usize,
    pub layers: usize,
    pub hidden_size: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn_size: usize,
    pub parameters: u64,
    /// Bytes of weights held, mapped or owned.
    pub weight_bytes: u64,
}

/// Shape of the KV cache that a model wants: `layers` tensors `[2, blocks, kv_heads, block_size, head_dim]` f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

/// A model that runs one ragged step at a time. Owned by the engine thread.
pub trait Model: Send {
    fn facts(&self) -> &Facts;
    fn kv_shape(&self) -> KvShape;
    /// An upper bound on scratch bytes of a step of `rows` rows with `logits_rows` logits rows.
    fn workspace_bytes(&self, rows: usize, logits_rows: usize) -> usize;
    /// Runs `batch`, appends K and V, and writes `[logits_rows.len(), vocab_size]` to `logits` (resized).
    /// Looks at `stop` between layers and returns `Status::Cancelled` when it is set.
    fn forward(
        &mut self,
        batch: &Arc<RaggedBatch>,
        kv: &KvCache,
        stop: &AtomicBool,
        logits: &mut Vec<f32>,
    ) -> Result<()>;
}

/// A model and, where its file has them, its tokenizer and chat template.
pub struct Loaded {
    pub model: Box<dyn Model>,
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub chat: Option<Arc<ChatTemplate>>,
}
