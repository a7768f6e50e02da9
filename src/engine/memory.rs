//! What the engine may hold (invariant 5): counted before it is allocated, refused by name and number.

use super::api::{EngineConfig, RequestParams};
use super::embedding::Pooler;
use super::event::Event;
use crate::base::{Error, Result, Status};
use crate::cache;
use crate::kernels::attention::KvType;
use crate::model::{Loaded, Model};
use crate::ops::OpSet;
use crate::sample::Sampler;
use std::fmt;

/// Where the bytes go. All but the requests' share are fixed at create.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPlan {
    /// The tokenizer's tables and the chat template included.
    pub weights: u64,
    pub workspace: u64,
    pub kv: u64,
    pub kv_type: KvType,
    pub blocks: usize,
    /// 0: none.
    pub limit: u64,
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weights, workspace, kv, kv_type, blocks, limit } = self;
        let limit = if *limit == 0 { "no limit".into() } else { format!("limit {limit}") };
        write!(
            f,
            "memory in bytes: weights and tables {weights}, workspace {workspace}, KV {kv} in {blocks} blocks of \
             {kv_type:?}, {limit}"
        )
    }
}

impl MemoryPlan {
    pub fn fixed(&self) -> u64 {
        self.weights + self.workspace + self.kv
    }

    /// Bytes that queued prompts and buffered events may take together.
    pub fn for_requests(&self) -> u64 {
        if self.limit == 0 { u64::MAX } else { self.limit.saturating_sub(self.fixed()) }
    }
}

/// What the hub, the engine thread and the scheduler keep of each slot of the queue once it was used: two event
/// frames and some words (475 bytes measured).
const SLOT_BYTES: u64 = 768;

/// What K and V are stored in: the model's own type where it has one, else what the host asks for.
fn kv_type(config: &EngineConfig, model: &dyn Model) -> Result<KvType> {
    match (model.kv_shape().kind, config.kv_type) {
        (None, asked) => Ok(asked),
        (Some(own), asked) if asked == own || asked == KvType::default() => Ok(own),
        (Some(own), asked) => Err(Error::invalid(format!(
            "kv_type is {asked:?}, and {} keeps something else than keys and values, in {own:?}",
            model.facts().name
        ))),
    }
}

/// Divides the limit: weights and workspace first, a share for requests, the rest for KV.
pub fn plan(
    config: &EngineConfig,
    loaded: &Loaded,
    ops: &dyn OpSet,
    max_sequence: usize,
) -> Result<MemoryPlan> {
    let model = &*loaded.model;
    let overflow = || Error::new(Status::MemoryLimit, "the KV cache's size overflows; lower max_batch_size");
    let (batch, tokens) = (config.max_batch_size as usize, config.max_batch_tokens as usize);
    let block_size = config.kv_block_size as usize;
    let tokenizer = loaded.tokenizer.as_ref().map_or(0, |t| t.table_bytes()) as u64;
    let tables = tokenizer + loaded.chat.as_ref().map_or(0, |chat| chat.table_bytes()) as u64;
    let weights = model.facts().weight_bytes.saturating_add(tables);
    let vocab = model.facts().vocab_size;
    let sampling = batch.saturating_mul(vocab * 4).saturating_add(Sampler::bytes(vocab));
    let hidden = tokens.saturating_mul(model.facts().hidden_size * 4);
    let workspace = model.workspace_bytes(ops, tokens, batch).saturating_add(sampling).saturating_add(hidden)
        as u64
        + config.queue_capacity as u64 * SLOT_BYTES;
    let kv_type = kv_type(config, model)?;
    let block_bytes = cache::bytes_per_block(model.kv_shape(), kv_type, block_size)?;
    let one_sequence = max_sequence.div_ceil(block_size);
    let wanted = one_sequence.checked_mul(batch).ok_or_else(overflow)?;
    let room = match config.memory_limit_bytes {
        0 => default_kv_bytes(),
        limit => {
            let left = limit.saturating_sub(weights.saturating_add(workspace));
            left - (left / 16).min(64 << 20)
        }
    };
    let fits = room.checked_div(block_bytes).map_or(wanted, |n| n.min(wanted as u64) as usize);
    if config.memory_limit_bytes != 0 && fits < one_sequence {
        return Err(Error::new(
            Status::MemoryLimit,
            format!(
                "memory_limit_bytes = {} is too small: weights {weights}, workspace {workspace}, and one sequence of \
                 {max_sequence} tokens needs {one_sequence} KV blocks of {block_bytes} bytes where {fits} fit; raise \
                 the limit or lower max_sequence_length or max_batch_tokens",
                config.memory_limit_bytes
            ),
        ));
    }
    let blocks = fits.max(one_sequence).min(u32::MAX as usize);
    let kv = (blocks as u64).checked_mul(block_bytes).ok_or_else(overflow)?;
    Ok(MemoryPlan { weights, workspace, kv, kv_type, blocks, limit: config.memory_limit_bytes })
}

/// Without a limit the KV cache takes at most half of what the machine has free now.
fn default_kv_bytes() -> u64 {
    const FALLBACK: u64 = 4 << 30;
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map_or(FALLBACK, |kib| kib * 512)
}

/// The most that a request can hold from submit to release: its prompt, its output and its buffered events.
///
/// Output ids are held twice: by the sequence, and by events. `hidden_size` is the width of an embedding.
pub fn request_bytes(
    params: &RequestParams,
    prompt_tokens: usize,
    max_new: u32,
    longest_token: usize,
    hidden_size: usize,
) -> u64 {
    // Two events, one pending and one polled with its lease.
    let fixed = 2 * size_of::<Event>() as u64 + 1024;
    if params.embedding.is_some() {
        return fixed + 4 * prompt_tokens as u64 + Pooler::bytes(hidden_size);
    }
    let logprobs = if params.sampling.logprobs { 1 + params.sampling.top_logprobs as u64 } else { 0 };
    let echoed = if params.echo_prompt { prompt_tokens as u64 } else { 0 };
    let delivered = max_new as u64 + echoed;
    // A byte that is no UTF-8 becomes three.
    let per_token = 4 + 8 * logprobs + 3 * longest_token as u64;
    // A stop string, its pattern's copy, four bytes of fallback for each of its bytes, and what is held back.
    let stops: usize = params.stop_strings.iter().map(|s| 8 * s.len() + 160).sum();
    let fixed = fixed + stops as u64 + 8 * params.stop_tokens.len() as u64;
    // Three times: a vector that grows is copied to one twice as long while the old one is still there.
    fixed + 4 * prompt_tokens as u64 + 2 * 4 * max_new as u64 + 3 * delivered * per_token
}
