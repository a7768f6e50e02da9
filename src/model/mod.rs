//! Decoders on candle tensors through `ops`, their configuration and loader, and the `echo` model.

mod adapter;
mod check;
mod checkpoint;
mod config;
mod decoder;
mod echo;
mod export;
mod family;
mod gguf;
mod hf;
mod loader;
mod options;
mod pooling;
mod products;
mod reader;
mod requantized;
mod rope;
mod sampling;

pub use adapter::{Adapter, AdapterFile};
pub use checkpoint::Checkpoint;
pub use config::{DecoderConfig, LayerSpan, Parts, RopeConfig, RopeScaling};
pub use export::{ExportTypes, export};
pub use hf::HfFolder;
pub use loader::{Source, load, load_checkpoint};
pub use options::{LoadOptions, WeightType};
pub use pooling::Pooling;
pub use sampling::SamplingDefaults;

use crate::base::{Error, Result, Status};
use crate::constrain::{LazyVocabulary, Vocabulary};
use crate::kernels::attention::KvType;
use crate::ops::{KvCache, KvLayout, OpSet, RaggedBatch, Weight};
use crate::text::{ChatTemplate, Tokenizer};
use std::sync::Arc;

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
    /// How its embeddings are made where a request doesn't say; they have `hidden_size` elements.
    pub pooling: Pooling,
    /// What its files advise for requests that do not say.
    pub sampling: SamplingDefaults,
}

/// Shape of the KV cache that a model wants, as `ops::KvCache` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// None: stored as the host asks for.
    pub kind: Option<KvType>,
}

impl KvShape {
    /// A cache of this shape, of `kind` where the model has no kind of its own.
    pub fn layout(self, kind: KvType, blocks: usize, block_size: usize) -> KvLayout {
        let Self { layers, kv_heads, head_dim, kind: own } = self;
        KvLayout { kind: own.unwrap_or(kind), layers, kv_heads, head_dim, blocks, block_size }
    }
}

/// What a step gives; kept from step to step for its memory.
#[derive(Debug, Default)]
pub struct Outputs {
    /// `[logits_rows.len(), vocab_size]`; see `ops::Head`.
    pub logits: Vec<f32>,
    /// Tokens drawn from them: empty, or one for each of `logits_rows`.
    pub tokens: Vec<i32>,
    /// The words of what `batch.draws` has told of the rows besides.
    pub reports: Vec<u64>,
    /// `[hidden_rows.len(), hidden_size]`.
    pub hidden: Vec<f32>,
}

/// Immutable weights and how to run them. Any number of threads may run it at a time, each on operations and a KV cache
/// of its own.
pub trait Model: Send + Sync {
    fn facts(&self) -> &Facts;
    fn kv_shape(&self) -> KvShape;
    /// An upper bound on scratch bytes on `ops` of a step of `rows` rows with `logits_rows` logits rows, where the
    /// hidden state of every row may be wanted.
    fn workspace_bytes(&self, ops: &dyn OpSet, rows: usize, logits_rows: usize) -> usize;
    /// The adapter of `file` for this model. `Unsupported` where the model takes none, `BadModel` where it is another
    /// model's.
    fn adapter(&self, file: &AdapterFile) -> Result<Adapter> {
        Err(Error::unsupported(format!("{}: {} takes no adapters", file.what, self.facts().name)))
    }
    /// Shows each weight, for operations that hold them where they work (`OpSet::hold`).
    fn weights(&self, _: &mut dyn FnMut(Weight) -> Result<()>) -> Result<()> {
        Ok(())
    }
    /// Runs `batch` on `ops`, appends K and V, and writes what `batch` asks for to `out` (resized).
    /// Calls `stop` on this thread between layers and before the head; true ends the pass with `Status::Cancelled`.
    fn forward(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        kv: &KvCache,
        stop: &mut dyn FnMut() -> bool,
        out: &mut Outputs,
    ) -> Result<()>;
}

fn check_stop(stop: &mut dyn FnMut() -> bool) -> Result<()> {
    if stop() {
        return Err(Error::new(Status::Cancelled, "the step was stopped"));
    }
    Ok(())
}

/// A model and, where its file has them, its tokenizer and chat template. A clone shares them.
#[derive(Clone)]
pub struct Loaded {
    pub model: Arc<dyn Model>,
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The tokenizer's; without one, those that the files name.
    pub end_tokens: Vec<u32>,
    pub chat: Option<Arc<ChatTemplate>>,
    /// What grammars need of the tokenizer, made when the first one comes.
    pub vocabulary: Arc<LazyVocabulary>,
}

impl Loaded {
    /// What grammars need of the tokenizer. `Unsupported` where the model has none, or no end token.
    pub fn vocabulary(&self) -> Result<&Vocabulary> {
        let vocab_size = self.model.facts().vocab_size;
        self.vocabulary.get(self.tokenizer.as_deref(), vocab_size, &self.end_tokens)
    }
}
