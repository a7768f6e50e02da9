//! The engine's memory (invariant 5): counted before it is allocated; refusals name the setting and the bytes.

use super::free::{CLAIMS, Claim};
use super::states::StatePlan;
use crate::base::{Error, Result, Status, os::memory};
use crate::cache::{self, PrefixCache};
use crate::engine::api::{EngineConfig, RequestParams};
use crate::engine::core::backend::Backend;
use crate::engine::core::disk;
use crate::engine::request::account::{GRANT, RequestBytes};
use crate::engine::request::eyes;
use crate::engine::request::speculation::Drafts;
use crate::engine::watch::kv_events;
use crate::kernels::attention::KvType;
use crate::model::{Loaded, Model};
use crate::ops::StateShape;
use crate::sample::Sampler;
use crate::text::Tokenizer;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

/// Bytes of each part of the engine. All but the requests' share are fixed at create.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryPlan {
    /// Includes the tokenizer's tables and the chat template.
    pub weights: u64,
    pub workspace: u64,
    pub kv: u64,
    /// Bookkeeping of the KV blocks.
    pub index: u64,
    pub kv_type: KvType,
    pub blocks: usize,
    /// States of recurrent layers.
    pub states: StatePlan,
    /// Length of the longest sequence that the blocks hold, at most the configured one.
    pub max_sequence: usize,
    /// 0: none.
    pub limit: u64,
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weights, workspace, kv, index, kv_type, blocks, states, limit, .. } = self;
        let limit = if *limit == 0 { "no limit".into() } else { format!("limit {limit}") };
        write!(
            f,
            "memory in bytes: weights and tables {weights}, workspace {workspace}, KV {kv} and its index {index} in \
             {blocks} blocks of {kv_type:?}, {limit}"
        )?;
        match states {
            StatePlan { slots: 0, drafting: 0, .. } => return Ok(()),
            StatePlan { slots, running, bytes, .. } => {
                write!(f, ", {bytes} for {slots} states, {running} of them of running sequences at most")?
            }
        }
        match states.drafting {
            0 => Ok(()),
            sequences => write!(f, ", and a draft model's of {sequences} sequences"),
        }
    }
}

impl MemoryPlan {
    /// The plan of several devices together. One request is limited by the smallest device.
    pub(crate) fn of_all<'a>(plans: impl Iterator<Item = &'a Self>) -> Option<Self> {
        plans.copied().reduce(|all, one| Self {
            weights: all.weights + one.weights,
            workspace: all.workspace + one.workspace,
            kv: all.kv + one.kv,
            index: all.index + one.index,
            kv_type: one.kv_type,
            blocks: all.blocks + one.blocks,
            states: all.states + one.states,
            max_sequence: all.max_sequence.min(one.max_sequence),
            limit: all.limit + one.limit,
        })
    }

    pub(crate) fn fixed(&self) -> u64 {
        self.weights + self.workspace + self.kv + self.index + self.states.bytes
    }

    /// Bytes that queued prompts and buffered events may take together.
    pub(crate) fn for_requests(&self) -> u64 {
        if self.limit == 0 { u64::MAX } else { self.limit.saturating_sub(self.fixed()) }
    }

    /// Bytes that equal copies on all devices may take together: the device with the least room decides.
    pub(crate) fn for_copies<'a>(plans: impl ExactSizeIterator<Item = &'a Self>) -> u64 {
        let devices = plans.len() as u64;
        plans.map(Self::for_requests).min().unwrap_or(0).saturating_mul(devices)
    }

    /// A warning if the machine is too small for sequences of `asked` tokens.
    pub(crate) fn clamped(&self, asked: usize) -> Option<String> {
        let Self { max_sequence, kv, .. } = self;
        (*max_sequence < asked).then(|| {
            format!(
                "context_length is {max_sequence} instead of the model's {asked}: the KV cache has {kv} bytes, \
                 half of what is free"
            )
        })
    }
}

/// Bytes that the hub, the engine thread and the scheduler keep for each slot of the queue once it was used: two
/// event frames, the keys of a few blocks and some words (760 bytes measured).
const SLOT_BYTES: u64 = 1024;

/// Element type of K and V: the model's own if it has one, else the configured one.
pub(crate) fn kv_type(config: &EngineConfig, model: &dyn Model) -> Result<KvType> {
    match (model.kv_shape().kind, config.kv_type) {
        (None, asked) => Ok(asked),
        (Some(own), asked) if asked == own || asked == KvType::default() => Ok(own),
        (Some(own), asked) => Err(Error::invalid(format!(
            "kv_type is {asked:?}, and {} keeps something else than keys and values, in {own:?}",
            model.facts().name
        ))),
    }
}

/// The inputs of the size calculation, in bytes; `max_sequence` and `block_size` are in tokens.
#[derive(Clone, Copy)]
struct Need {
    /// Name of the machine or device, for messages.
    place: &'static str,
    kv_type: KvType,
    weights: u64,
    workspace: u64,
    /// States of recurrent layers, those of a draft model too, and hidden states.
    states: u64,
    block: u64,
    /// Bookkeeping of a block.
    index: u64,
    /// 0: none.
    limit: u64,
    /// Free bytes of the machine or the device, after the workspace.
    free: u64,
    /// Bytes of a queue full of short requests.
    requests: u64,
    /// Bytes kept free for adapters.
    adapters: u64,
    max_sequence: usize,
    /// Maximum size of KV; 0: as much as there is.
    kv_cache: u64,
    /// The host has set `context_length`.
    explicit: bool,
    block_size: usize,
    batch: usize,
}

/// Divides the limit on one device of `devices`: weights and workspace first, a share for requests, the rest for
/// KV. Without a limit, KV may take half of the free memory. `lacking`: bytes that weights will still take on the
/// device. `OutOfMemory` if these do not fit, `MemoryLimit` if the rest does not.
pub(crate) fn plan(
    config: &EngineConfig,
    loaded: &Loaded,
    backend: &Backend,
    devices: usize,
    max_sequence: usize,
    lacking: u64,
) -> Result<(MemoryPlan, Claim)> {
    let need = Need::new(config, loaded, backend, devices, max_sequence, lacking)?;
    let (untouched, claimed): (u64, fn(u64) -> u64) = match backend.on_device {
        // A device allocates memory at once; the CPU's memory counts as used when it is first written.
        true => (0, |_| 0),
        false => (need.block, |others| others),
    };
    let states = Cell::new(StatePlan::default());
    let (blocks, claim) = CLAIMS.claim(untouched, &|| states.get().bytes, |others| {
        let (plan, blocks) = need.divide(config, loaded.model.state_shape(), claimed(others))?;
        states.set(plan);
        Ok(blocks)
    })?;
    let plan = MemoryPlan {
        weights: need.weights,
        workspace: need.workspace,
        kv: blocks as u64 * need.block,
        index: blocks as u64 * need.index,
        kv_type: need.kv_type,
        blocks,
        states: states.get(),
        max_sequence: max_sequence.min(blocks.saturating_mul(need.block_size)),
        limit: need.limit,
    };
    Ok((plan, claim))
}

/// Free bytes of a device after the weights that are still to come.
fn beside_weights(free: u64, lacking: u64) -> Result<u64> {
    free.checked_sub(lacking).ok_or_else(|| {
        Error::new(
            Status::OutOfMemory,
            format!("the weights take {lacking} bytes on the device, and {free} bytes are free there"),
        )
    })
}

/// Assumed free memory if the system does not report it.
const FALLBACK: u64 = 8 << 30;

/// Bytes that the process may still take: free memory, and no more than its own limits leave.
fn free_memory() -> u64 {
    let pages = memory::free_pages().unwrap_or(FALLBACK);
    memory::free_addresses().map_or(pages, |left| left.min(pages))
}

fn weight_bytes(loaded: &Loaded) -> u64 {
    let tokenizer = loaded.tokenizer.as_ref().map_or(0, |t| t.table_bytes()) as u64;
    let templates = [&loaded.chat, &loaded.pair].into_iter().flatten();
    let tables = tokenizer + templates.map(|template| template.table_bytes() as u64).sum::<u64>();
    let tower = loaded.sight.as_ref().map_or(0, |sight| sight.tower.facts().weight_bytes);
    loaded.model.facts().weight_bytes.saturating_add(tables).saturating_add(tower)
}

/// Maximum number of logits rows in a step: one for each sequence, and more if few of them run.
pub(crate) fn logits_rows(config: &EngineConfig) -> usize {
    config.max_batch_size.max(config.max_batch_tokens.min(MANY_LOGITS)) as usize
}

/// Number of logits rows that a step of few sequences may have.
const MANY_LOGITS: u32 = 64;

fn workspace_bytes(config: &EngineConfig, loaded: &Loaded, backend: &Backend, max_sequence: usize) -> u64 {
    let (model, facts) = (&*loaded.model, loaded.model.facts());
    let (logits, tokens) = (logits_rows(config), config.max_batch_tokens as usize);
    let samplers = backend.samplers(config);
    let sampling = logits
        .saturating_mul(facts.vocab_size * 4)
        .saturating_add(samplers.saturating_mul(Sampler::bytes(facts.vocab_size, max_sequence)));
    let hidden = tokens.saturating_mul(facts.hidden_size * 4);
    let passes =
        model.workspace_bytes(&*backend.ops, tokens, logits).saturating_add(sampling).saturating_add(hidden);
    let events = kv_events::bytes(config.kv_events_capacity);
    (passes as u64).saturating_add(config.queue_capacity as u64 * SLOT_BYTES + events)
}

/// Memory of a draft model, in bytes.
#[derive(Default)]
pub(crate) struct DraftBytes {
    /// 0 if the model drafts for itself.
    weights: u64,
    workspace: u64,
    block: u64,
}

impl DraftBytes {
    fn new(config: &EngineConfig, target: &Loaded, draft: &Loaded, backend: &Backend) -> Result<Self> {
        let model = &*draft.model;
        let (rows, logits) = (config.max_batch_tokens as usize, config.max_batch_size as usize);
        let scratch = model.workspace_bytes(&*backend.ops, rows, logits);
        let same = Arc::ptr_eq(&target.model, &draft.model);
        let (kind, block_size) = (kv_type(config, model)?, config.kv_block_size as usize);
        Ok(Self {
            weights: if same { 0 } else { weight_bytes(draft) },
            workspace: scratch.saturating_add(Self::logits(config, model)) as u64,
            block: cache::bytes_per_block(model.kv_shape(), kind, block_size)?,
        })
    }

    /// Memory of a model that drafts for itself, beside its weights and KV, which are counted already.
    fn of_itself(config: &EngineConfig, model: &dyn Model) -> Self {
        let hidden = 2 * size_of::<f32>() * model.state_shape().hidden;
        let rows = (config.max_batch_size as usize).saturating_mul(hidden);
        let workspace = Self::logits(config, model).saturating_add(rows) as u64;
        Self { workspace: if model.drafts() { workspace } else { 0 }, ..Self::default() }
    }

    /// Bytes of the logits of a pass.
    pub(crate) fn logits(config: &EngineConfig, model: &dyn Model) -> usize {
        (config.max_batch_size as usize).saturating_mul(model.facts().vocab_size * size_of::<f32>())
    }
}

/// Bytes of a queue full of short requests, and of a full batch of them while they run.
fn requests_bytes(config: &EngineConfig, loaded: &Loaded) -> u64 {
    let longest = longest_token(loaded);
    let speculation = Some(config.speculates(&*loaded.model));
    let params = RequestParams { speculation, ..RequestParams::default() };
    let facts = loaded.model.facts();
    let mut one = RequestBytes::new(&params, SHORT_PROMPT, longest, facts.hidden_size);
    one.prompt += Drafts::bytes(&params, SHORT_PROMPT, params.max_new_tokens, facts.vocab_size);
    let (queued, running) = (one.reserved(), u64::from(GRANT) * one.token);
    let queued = queued.saturating_mul(config.queue_capacity.into());
    queued.saturating_add(3 * running.saturating_mul(config.max_batch_size.into()))
}

/// Prompt tokens of a short request, of which many may wait.
const SHORT_PROMPT: usize = 64;

/// Number of bytes of the longest token.
pub(crate) fn longest_token(loaded: &Loaded) -> usize {
    loaded.tokenizer.as_deref().map_or(0, Tokenizer::longest_token)
}

impl Need {
    /// See `plan`.
    fn new(
        config: &EngineConfig,
        loaded: &Loaded,
        backend: &Backend,
        devices: usize,
        max_sequence: usize,
        lacking: u64,
    ) -> Result<Self> {
        let (model, block_size) = (&*loaded.model, config.kv_block_size as usize);
        let kv_type = kv_type(config, model)?;
        let block = cache::bytes_per_block(model.kv_shape(), kv_type, block_size)?;
        let draft = config.draft_model.as_ref().map(|draft| DraftBytes::new(config, loaded, draft, backend));
        let draft = draft.transpose()?.unwrap_or_else(|| DraftBytes::of_itself(config, model));
        let tier = disk::bytes(config, block, model.state_shape().slot_bytes().unwrap_or(0));
        let eyes =
            if backend.on_device { 0 } else { eyes::workspace_bytes(config, loaded, &*backend.ops) as u64 };
        let workspace =
            workspace_bytes(config, loaded, backend, max_sequence) + draft.workspace + tier + eyes;
        let free = match backend.ops.free_bytes() {
            Some(free) => beside_weights(free? as u64, lacking)?,
            None => free_memory(),
        };
        Ok(Self {
            place: if backend.on_device { "the device" } else { "this machine" },
            kv_type,
            weights: weight_bytes(loaded) + draft.weights,
            workspace,
            states: 0,
            block: block + draft.block,
            index: PrefixCache::block_bytes(block_size) as u64
                + kv_events::block_bytes(config.kv_events_capacity, devices)
                + u64::from(config.draft_model.is_some()),
            limit: config.memory_limit_bytes,
            free: free.saturating_sub(workspace),
            requests: requests_bytes(config, loaded),
            adapters: config.adapter_bytes,
            kv_cache: config.kv_cache_bytes,
            max_sequence,
            explicit: config.context_length != 0,
            block_size,
            batch: config.max_batch_size as usize,
        })
    }

    fn one_sequence(&self) -> usize {
        self.max_sequence.div_ceil(self.block_size)
    }

    /// The fewest KV blocks: those of the longest sequence if its length or a limit was set.
    fn least(&self) -> usize {
        if self.limit == 0 && !self.explicit { 1 } else { self.one_sequence() }
    }

    /// Number of KV blocks, if other engines have claimed `claimed` bytes and not touched them yet.
    fn blocks(&self, claimed: u64) -> Result<usize> {
        let free = self.free.saturating_sub(claimed).saturating_sub(self.states);
        let room = if self.limit == 0 { free / 2 } else { self.kv_share().min(free) };
        let wanted = self.one_sequence().saturating_mul(self.batch).min(u32::MAX as usize) as u64;
        let room = room.checked_div(self.block + self.index).unwrap_or(wanted);
        let fits = wanted.min(self.asked().unwrap_or(wanted)).min(room) as usize;
        let least = self.least();
        if fits < least { Err(self.too_small(fits, free)) } else { Ok(fits) }
    }

    /// The states and the number of KV blocks, if other engines have claimed `claimed` bytes and not touched them yet.
    fn divide(
        mut self,
        config: &EngineConfig,
        shape: StateShape,
        claimed: u64,
    ) -> Result<(StatePlan, usize)> {
        let draft = config.draft_model.as_ref().map(|draft| draft.model.state_shape()).unwrap_or_default();
        let (left, kv) = (self.left(claimed), self.kv_of_one());
        let states = StatePlan::new(config, shape, left, kv, self.block)?;
        let states = states.with_draft(config, draft, left, kv, self.block)?;
        self.states = states.bytes;
        Ok((states, self.blocks(claimed)?))
    }

    /// Bytes that weights and workspace leave to states and KV.
    fn left(&self, claimed: u64) -> u64 {
        let free = self.free.saturating_sub(claimed);
        match self.limit {
            0 => free / 2,
            limit => limit.saturating_sub(self.fixed()).min(free),
        }
    }

    fn fixed(&self) -> u64 {
        let Self { weights, workspace, states, adapters, .. } = self;
        weights.saturating_add(*workspace).saturating_add(*states).saturating_add(*adapters)
    }

    /// Bytes of KV of the longest sequence, which always fits if the length or a limit is given.
    fn kv_of_one(&self) -> u64 {
        (self.least() as u64).saturating_mul(self.block + self.index)
    }

    /// Blocks that `kv_cache_bytes` holds.
    fn asked(&self) -> Option<u64> {
        if self.kv_cache == 0 { None } else { self.kv_cache.checked_div(self.block) }
    }

    /// KV's part of the limit. Requests get room for a short one in each place of the queue, but at most half, and
    /// less if KV could not hold one sequence otherwise.
    fn kv_share(&self) -> u64 {
        let left = self.limit.saturating_sub(self.fixed());
        let least = (left / 16).min(64 << 20);
        let kv = left - self.requests.min(left / 2).max(least);
        let one_sequence = (self.one_sequence() as u64).saturating_mul(self.block + self.index);
        if kv >= one_sequence { kv } else { left - least }
    }

    fn too_small(&self, fits: usize, free: u64) -> Error {
        let Self { weights, workspace, states, block, limit, max_sequence, .. } = self;
        let states = if *states > 0 { format!(", states {states}") } else { String::new() };
        let (what, raise) = match limit {
            0 => (format!("half of {free} free bytes"), "set memory_limit_bytes to let KV take more"),
            _ => (format!("memory_limit_bytes = {limit}"), "raise the limit"),
        };
        let (what, raise) = match self.asked() {
            Some(asked) if asked == fits as u64 => {
                (format!("kv_cache_bytes = {}", self.kv_cache), "raise it")
            }
            _ => (what, raise),
        };
        let beside = if *limit > 0 && free < self.kv_share() {
            format!(" ({free} bytes are free on {})", self.place)
        } else {
            String::new()
        };
        Error::new(
            Status::MemoryLimit,
            format!(
                "{what} is too small: weights {weights}, workspace {workspace}{states}, and one sequence of {max_sequence} \
                 tokens needs {} KV blocks of {block} bytes where {fits} fit{beside}; {raise}, or lower \
                 context_length or max_batch_tokens",
                self.one_sequence()
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// 8 sequences of 1000 tokens, and blocks of 32 tokens and 1 MiB.
    fn need() -> Need {
        Need {
            kv_type: KvType::default(),
            place: "this machine",
            weights: 100 * MIB,
            workspace: 20 * MIB,
            states: 0,
            block: MIB,
            limit: 0,
            free: 1000 * MIB,
            requests: 10 * MIB,
            adapters: 0,
            kv_cache: 0,
            index: 0,
            max_sequence: 1000,
            explicit: false,
            block_size: 32,
            batch: 8,
        }
    }

    fn refused(need: Need, claimed: u64) -> String {
        let error = need.blocks(claimed).unwrap_err();
        assert_eq!(error.status, Status::MemoryLimit);
        error.message
    }

    #[test]
    fn without_a_limit_kv_takes_half_of_what_is_free_and_unclaimed() {
        assert_eq!(need().blocks(0).unwrap(), 8 * 32, "all that the batch can use");
        assert_eq!(Need { free: 100 * MIB, ..need() }.blocks(0).unwrap(), 50);
        assert_eq!(need().blocks(900 * MIB).unwrap(), 50);
        assert_eq!(Need { block: 0, free: 0, ..need() }.blocks(0).unwrap(), 8 * 32, "a model without KV");
    }

    #[test]
    fn a_sequence_that_does_not_fit_is_shortened_or_refused() {
        let small = || Need { free: 20 * MIB, ..need() };
        assert_eq!(small().blocks(0).unwrap(), 10);
        assert!(refused(Need { free: MIB, ..need() }, 0).contains("where 0 fit"));
        assert!(refused(small(), 19 * MIB).contains("half of 1048576 free bytes is too small"));
        let both = Need { kv_cache: 2 * MIB, explicit: true, ..small() };
        assert!(refused(both, 0).starts_with("kv_cache_bytes = 2097152 is too small"));
        let both = Need { kv_cache: 200 * MIB, explicit: true, ..small() };
        assert!(refused(both, 0).starts_with("half of 20971520 free bytes is too small"));
        let message = refused(Need { explicit: true, ..small() }, 0);
        assert!(
            message.contains("one sequence of 1000 tokens needs 32 KV blocks of 1048576 bytes where 10 fit")
        );
    }

    #[test]
    fn four_engines_of_a_long_context_take_no_more_than_there_is() {
        let need = Need { max_sequence: 512 << 10, free: 23 << 30, batch: 32, ..need() };
        let mut claimed = 0;
        for _ in 0..4 {
            claimed += need.blocks(claimed).unwrap() as u64 * need.block;
        }
        assert!(claimed < need.free, "{claimed}");
    }

    #[test]
    fn a_limit_leaves_room_for_a_queue_of_short_requests() {
        let limited = |left: u64, requests: u64| Need { limit: 120 * MIB + left, requests, ..need() };
        // Requests get at least a sixteenth.
        assert_eq!(limited(160 * MIB, 10 * MIB).kv_share(), 150 * MIB);
        assert_eq!(limited(160 * MIB, 15 * MIB).blocks(0).unwrap(), 145);
        assert_eq!(limited(160 * MIB, MIB).kv_share(), 150 * MIB);
        assert_eq!(limited(160 * MIB, 1000 * MIB).kv_share(), 80 * MIB, "half at most");
        // KV of one sequence takes 32 MiB.
        assert_eq!(limited(47 * MIB, 15 * MIB).kv_share(), 32 * MIB);
        assert_eq!(limited(46 * MIB, 15 * MIB).kv_share(), 46 * MIB - 46 * MIB / 16);
        let message = refused(limited(32 * MIB, 0), 0);
        assert!(
            message.starts_with("memory_limit_bytes = 159383552 is too small") && message.contains("30 fit;")
        );
    }

    #[test]
    fn copies_are_bounded_by_the_smallest_device() {
        let plan = |limit, kv| MemoryPlan {
            weights: 10,
            workspace: 5,
            kv,
            index: 1,
            kv_type: KvType::F16,
            blocks: 1,
            states: StatePlan::default(),
            max_sequence: 1,
            limit,
        };
        assert_eq!(MemoryPlan::for_copies([plan(100, 60), plan(100, 80), plan(100, 40)].iter()), 3 * 4);
        assert_eq!(MemoryPlan::for_copies([plan(100, 60)].iter()), 24);
        assert_eq!(MemoryPlan::for_copies([plan(0, 60), plan(0, 80)].iter()), u64::MAX, "no limit");
    }

    #[test]
    fn a_limit_above_what_is_free_makes_no_more() {
        let need = Need { limit: 10_000 * MIB, free: 100 * MIB, ..need() };
        assert_eq!(need.blocks(0).unwrap(), 100);
        assert!(refused(need, 80 * MIB).contains("(20971520 bytes are free on this machine)"));
    }
}
