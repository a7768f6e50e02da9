//! Decoders on candle tensors through `ops`, their configuration and loader, and the `echo` model.

mod adapter;
mod check;
mod checkpoint;
mod config;
mod decoder;
mod drafter;
mod echo;
mod encoder;
mod export;
mod facts;
mod family;
mod fused;
mod gguf;
mod hf;
mod keys;
mod layers;
mod loader;
mod names;
mod namespaces;
mod options;
mod pooling;
mod reader;
mod requantized;
mod rope;
mod rotation;
mod sampling;
mod score;
mod sight;
mod stop;
mod tower;

pub use adapter::{Adapter, AdapterFile};
pub use checkpoint::Checkpoint;
pub use config::{Block, DecoderConfig, ExpertsConfig, Parts, RopeConfig, RopeScaling};
pub use export::{ExportTypes, export};
pub use facts::Facts;
pub use hf::{HfFolder, check_config};
pub use loader::{Source, load, load_checkpoint, load_tower};
pub use options::{LoadOptions, WeightType};
pub use pooling::Pooling;
pub use sampling::SamplingDefaults;
pub use sight::{PictureTokens, Sight};
pub use tower::{Tower, TowerRun};

use crate::base::{Error, Result};
use crate::constrain::{LazyVocabulary, Vocabulary};
use crate::kernels::attention::KvType;
pub use crate::ops::Outputs;
use crate::ops::pass::Program;
use crate::ops::{Accepted, KvLayers, KvLayout, Memory, OpSet, RaggedBatch, StateShape};
use crate::text::{ChatTemplate, Tokenizer};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use stop::check_stop;

/// The shape of K and V that a model needs (`ops::KvLayout`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Layers of another shape, after those.
    pub others: Option<KvLayers>,
    /// V is K, and stored once.
    pub joint: bool,
    /// `None`: stored in the type that the host asks for.
    pub kind: Option<KvType>,
}

impl KvShape {
    /// The layout of a cache of this shape, in `kind` unless the model has a type of its own.
    pub fn layout(self, kind: KvType, blocks: usize, block_size: usize) -> KvLayout {
        let Self { layers, kv_heads, head_dim, others, joint, kind: own } = self;
        let kind = own.unwrap_or(kind);
        KvLayout { kind, layers, kv_heads, head_dim, others, joint, blocks, block_size }
    }
}

/// Immutable weights, and the code that runs them. Any number of threads may run a model at the same time, each with
/// operations and a memory of its own.
pub trait Model: Send + Sync {
    fn facts(&self) -> &Facts;
    fn kv_shape(&self) -> KvShape;
    /// The size of a sequence's state.
    fn state_shape(&self) -> StateShape {
        StateShape::default()
    }
    /// Advances states by rows of drafts of the last `forward` that turned out right. Other drafted rows leave no
    /// trace.
    fn advance(&self, _: &dyn OpSet, _: &mut dyn Memory, _: &[Accepted]) -> Result<()> {
        Ok(())
    }
    /// Whether it has a block that predicts further tokens (multi-token prediction) or a head that does (EAGLE-3), for
    /// `draft`.
    fn drafts(&self) -> bool {
        false
    }
    /// Drafts the token that follows each row of `batch`: `out.logits` `[rows, vocab_size]`. Sequences have one row
    /// each, all of them in `logits_rows` and `hidden_rows`. `before` `[rows, state_shape().hidden]` has the hidden
    /// states of the tokens before the rows: that of the sequence's state (`Memory::read_hidden`), or `out.hidden` of
    /// the draft pass before. Changes no state.
    fn draft(
        &self,
        _: &dyn OpSet,
        _batch: &RaggedBatch,
        _before: &[f32],
        _: &mut dyn Memory,
        _: &mut Outputs,
    ) -> Result<()> {
        Err(Error::internal("drafts of a model without a block that predicts them"))
    }
    /// Upper bound of scratch bytes on `ops` for a step of `rows` rows with `logits_rows` logits rows, if the hidden
    /// state of every row may be wanted.
    fn workspace_bytes(&self, ops: &dyn OpSet, rows: usize, logits_rows: usize) -> usize;
    /// Turns a pooled hidden state into the model's result: an embedding or, with `score`, one number within 0 and 1.
    /// `None`: the state is the embedding.
    fn after_pooling(&self, _: &dyn OpSet, _score: bool, _pooled: &[f32]) -> Result<Option<Vec<f32>>> {
        Ok(None)
    }
    /// Fits the adapter of `file` to this model. `Unsupported` if the model takes none, `BadModel` if it belongs to
    /// another model.
    fn adapter(&self, file: &AdapterFile) -> Result<Adapter> {
        Err(Error::unsupported(format!("{}: {} takes no adapters", file.what, self.facts().name)))
    }
    /// The programs that together have all operations and weights.
    fn programs(&self) -> Vec<&Program> {
        Vec::new()
    }
    /// Runs `batch` on `ops`, appends K and V, and writes the results that `batch` asks for to `out` (resized). Calls
    /// `stop` on this thread between layers and before the head; true ends the pass with `Status::Cancelled`.
    fn forward(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        memory: &mut dyn Memory,
        stop: &mut dyn FnMut() -> bool,
        out: &mut Outputs,
    ) -> Result<()>;
}

/// A model with its tokenizer and chat template, if its files have them. Clones share them.
#[derive(Clone)]
pub struct Loaded {
    pub model: Arc<dyn Model>,
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The tokenizer's end tokens or, without a tokenizer, those that the files name.
    pub end_tokens: Vec<u32>,
    pub chat: Option<Arc<ChatTemplate>>,
    /// Makes the prompt of a pair of texts. `None`: the tokenizer puts them together.
    pub pair: Option<Arc<ChatTemplate>>,
    /// None: the model sees no pictures.
    pub sight: Option<Arc<Sight>>,
    /// The part of the tokenizer that grammars need, made for the first grammar.
    pub vocabulary: Arc<LazyVocabulary>,
    /// Number of engine threads that have requests for the model.
    pub users: Arc<AtomicUsize>,
}

impl Loaded {
    /// A model alone.
    pub fn of(model: Arc<dyn Model>) -> Self {
        let (vocabulary, users) = (Arc::default(), Arc::default());
        let (tokenizer, chat, pair, sight) = (None, None, None, None);
        Self { model, tokenizer, end_tokens: Vec::new(), chat, pair, sight, vocabulary, users }
    }

    /// The part of the tokenizer that grammars need. `Unsupported` if the model has no tokenizer or no end token;
    /// `OutOfMemory` if it does not fit in the bytes of `room`.
    pub fn vocabulary(&self, room: fn() -> Option<u64>) -> Result<&Arc<Vocabulary>> {
        let vocab_size = self.model.facts().vocab_size;
        self.vocabulary.get(self.tokenizer.as_deref(), vocab_size, &self.end_tokens, room)
    }
}
