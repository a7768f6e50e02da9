//! The pure scheduler: from state to plan, without threads, tensors or any clock but the time passed in.
//!
//! A sequence waits, is admitted, runs the rows of its known tokens in chunks, then decodes one row per step: `submit →
//! Waiting → (plan admits) → Running → cancel`. It takes KV blocks as its rows need them. If none is left, the running
//! sequence with the last rank is preempted: it gives its blocks back, waits again, and later recomputes the positions
//! that the cache no longer has. So the sequence with the first rank always runs to its end.
//!
//! - `order` decides who comes first, `admit` who runs, `fetch` who waits for a prefix from a lower tier of the cache,
//!   `prompts` which prompt rows a step has, and `drafts` which drafts it verifies, from the rates of `acceptance`.
//!   `step_time` predicts how long a step takes.
//! - Waiting sequences are admitted in order, but one that fits may pass another that does not. The other one takes the
//!   room back by preemption once it has waited for `PATIENCE_NS`, or at once from a lower priority.

mod acceptance;
mod admit;
mod decode_time;
mod drafts;
mod fetch;
mod order;
mod prompts;
mod scheduler;
mod sessions;
mod slots;
mod states;
mod step_time;

pub use acceptance::Acceptance;
pub use drafts::{MAX_DRAFT, Offer};
pub use fetch::Destination;
pub use order::Rank;
pub use scheduler::Scheduler;
pub use sessions::Session;
pub use slots::State;
pub use states::Save;
pub use step_time::{StepCost, StepTime, Work};

use crate::base::Result;
use crate::cache::{ContentId, PictureSpan};
use slots::SequenceSlots;
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Maximum number of running sequences; at least 1.
    pub max_batch_size: u32,
    /// Maximum number of rows in a step; at least max_batch_size, so that all decode rows always fit.
    pub max_batch_tokens: u32,
    /// Maximum number of rows of a step that give logits; at least max_batch_size.
    pub max_logits_rows: u32,
    /// Target upper bound for the time of a step with decode rows; at least 1.
    pub max_step_ns: u64,
    /// Target upper bound for the time between two tokens, which limits the number of running sequences. 0: no limit.
    pub target_itl_ns: u64,
    /// Positions per KV block; at least 1.
    pub block_size: u32,
    /// Total number of KV blocks; at least 1.
    pub blocks: u32,
    pub states: StateConfig,
    /// How long the first step of an idle engine waits for more requests.
    pub max_wait_ns: u64,
    /// How much later than a sequence of the lowest priority one of the highest may arrive and still come first.
    pub ageing_ns: u64,
}

/// States of recurrent layers. The default is that of a model without such layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateConfig {
    /// Slots for states, at least max_batch_size.
    pub slots: u32,
    /// Tokens of a prompt between two snapshots of its state, a multiple of block_size; 0: only at the ends of prompts,
    /// and where prompts were seen to diverge.
    pub snapshot_interval: u32,
    /// Maximum number of drafted rows of a step.
    pub drafts: u32,
}

/// Minimum number of positions that are worth waiting for another sequence that computes them, and worth a snapshot.
const WORTH: u32 = 16;

/// How long other sequences may pass a sequence before it may preempt those after it.
pub const PATIENCE_NS: u64 = 1_000_000_000;

/// A slot index that the engine assigns; free for reuse after `cancel`. Those below and those from `SeqId::BRANCHES` on
/// are dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u32);

impl SeqId {
    /// The first id of the branches of requests.
    pub const BRANCHES: u32 = 1 << 31;

    /// Its range, and its index there.
    pub(crate) fn place(self) -> (usize, usize) {
        (usize::from(self.0 >= Self::BRANCHES), (self.0 & (Self::BRANCHES - 1)) as usize)
    }
}

/// How a sequence may use the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Maximum number of positions that may come from the cache. Rows whose results are wanted must be computed.
    pub limit: u32,
    /// False: the sequence neither finds nor leaves anything.
    pub shared: bool,
    /// Sequences with different salts share nothing.
    pub salt: u64,
}

impl Default for Reuse {
    fn default() -> Self {
        Self { limit: u32::MAX, shared: true, salt: 0 }
    }
}

/// The scheduler's view of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// At least 1.
    pub prompt_len: u32,
    /// At least 1.
    pub max_new: u32,
    /// 255 is the most urgent.
    pub priority: u8,
    pub arrived_ns: u64,
    /// The waiting sequence is given up once its first token can no longer be expected by this time; 0: never.
    pub first_by_ns: u64,
    pub reuse: Reuse,
    /// The prompt's rows from this position on give logits. `None`: only the last row does.
    pub logits_from: Option<u32>,
    /// The prompt runs in one step, at most `max_batch_tokens` long, and has no KV: an encoder's.
    pub whole: bool,
}

/// Access to the contents of sequences.
pub trait Tokens {
    /// The token, or given vector, at a position of the prompt or of the output.
    fn content(&self, seq: SeqId, position: u32) -> ContentId;

    /// The positions that run in one step, if rows of the prompt that see each other in both directions are on both
    /// sides of the beginning of `position`. Neither a chunk nor a cached prefix ends there.
    fn undivided(&self, _seq: SeqId, _position: u32) -> Option<Range<u32>> {
        None
    }

    /// The pictures among the first `positions` positions, in order.
    fn pictures(&self, _seq: SeqId, _positions: u32) -> Result<Vec<PictureSpan>> {
        Ok(Vec::new())
    }
}

/// One sequence's rows in a step: positions `start..start + rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanEntry {
    pub seq: SeqId,
    pub start: u32,
    pub rows: u32,
    /// Number of rows at the end that give logits; at least one if a token is sampled.
    pub logits: u32,
    /// Whether a token is sampled from the last row. With drafts, a token is sampled from the row before them and
    /// then from each of theirs, as long as the sampled tokens are the drafted ones.
    pub sample: bool,
    /// Whether its first row is of the token sampled last. The other rows are of drafts then.
    pub decode: bool,
    /// Number of rows at the end that are of drafted tokens.
    pub drafts: u32,
    /// Number of leading drafts that were equal to the sampled tokens. The sampler sets it before `commit`.
    pub accepted: u32,
    /// Whether its token could not be sampled in this step. It must leave the plan before `commit`.
    pub late: bool,
}

/// A sequence that begins to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    pub seq: SeqId,
    /// Number of positions that the cache had.
    pub cached: u32,
    /// Whether it ran before, and was preempted or paused.
    pub resumed: bool,
}

/// Reason why a step carries no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeldBack {
    /// The batch is full, and no sequence waits.
    #[default]
    Nothing,
    /// The batch has room, and no sequence waits.
    Queue,
    /// Sequences wait: `max_batch_size` of them run.
    Slots,
    /// Sequences wait for KV blocks.
    Blocks,
    /// Prompts wait: the step has `max_batch_tokens` rows.
    Rows,
    /// Sequences or prompts wait: the step would pass its time.
    Time,
    /// Sequences wait for a prefix that another one computes now.
    Prefix,
    /// Sequences wait for a prefix that is read from a lower tier of the cache.
    Lower,
}

impl PlanEntry {
    /// The entry of the token sampled last, whose position is `start`.
    pub fn decode(seq: SeqId, start: u32) -> Self {
        Self {
            seq,
            start,
            rows: 1,
            logits: 1,
            sample: true,
            decode: true,
            drafts: 0,
            accepted: 0,
            late: false,
        }
    }

    /// Number of rows of known tokens.
    pub fn known(&self) -> u32 {
        self.rows - self.drafts
    }

    /// Number of rows whose positions stay computed.
    pub fn kept(&self) -> u32 {
        self.known() + self.accepted
    }
}

impl HeldBack {
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Nothing, "nothing"),
        (Self::Queue, "an empty queue"),
        (Self::Slots, "max_batch_size"),
        (Self::Blocks, "KV blocks"),
        (Self::Rows, "max_batch_tokens"),
        (Self::Time, "time"),
        (Self::Prefix, "a prefix on its way"),
        (Self::Lower, "a prefix from disk"),
    ];
}

/// A step: decode rows first, then prompt chunks. The memory is reused from step to step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub entries: Vec<PlanEntry>,
    /// Sequences that left the queue with this plan, in order.
    pub admitted: Vec<Admission>,
    /// Blocks to copy, as (from, to), in this order. They are copied before anything else, even if the step does not
    /// run.
    pub copies: Vec<(u32, u32)>,
    /// The same for slots of states.
    pub state_copies: Vec<(u32, u32)>,
    /// Sequences that will miss `first_by_ns`. They stay in the queue until `cancel`.
    pub late: Vec<SeqId>,
    /// Sequence for whose block table the system has no memory. It stays in the queue.
    pub refused: Option<SeqId>,
    pub work: Work,
    /// Number of entries that decode, each with one row and its drafts.
    pub decode_rows: u32,
    pub held_back: HeldBack,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.admitted.clear();
        self.copies.clear();
        self.state_copies.clear();
        self.late.clear();
        (self.refused, self.held_back) = (None, HeldBack::Nothing);
        (self.work, self.decode_rows) = (Work::default(), 0);
    }

    fn push(&mut self, entry: PlanEntry) {
        self.work.add(Work::span(entry.start, entry.rows));
        self.decode_rows += u32::from(entry.decode);
        self.entries.push(entry);
    }

    /// Removes all but the first `drafts` drafts of an entry.
    pub fn cut_drafts(&mut self, at: usize, drafts: u32) {
        let entry = &mut self.entries[at];
        let less = entry.drafts - drafts;
        self.work.sub(Work::span(entry.start, entry.rows));
        (entry.rows, entry.logits, entry.drafts) = (entry.rows - less, entry.logits - less, drafts);
        self.work.add(Work::span(entry.start, entry.rows));
    }

    /// Removes the entries for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&PlanEntry) -> bool) {
        let (work, decode_rows) = (&mut self.work, &mut self.decode_rows);
        self.entries.retain(|entry| {
            let kept = keep(entry);
            if !kept {
                work.sub(Work::span(entry.start, entry.rows));
                *decode_rows -= u32::from(entry.decode);
            }
            kept
        });
    }

    /// Removes the rows of a sequence that was preempted.
    fn drop_seq(&mut self, seq: SeqId) {
        self.retain(|entry| entry.seq != seq);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub waiting: usize,
    pub paused: usize,
    pub running: usize,
    /// Blocks held by running sequences and by sessions.
    pub blocks_used: usize,
    /// Blocks without holders whose contents a later sequence may reuse.
    pub blocks_cached: usize,
    pub blocks_total: usize,
}

/// Counts of events since the scheduler was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    pub preemptions: u64,
    /// Preemptions for a sequence of higher priority, or for one that was passed too long.
    pub preempted_for_others: u64,
    pub pauses: u64,
    pub resumed: u64,
    /// Positions that first admissions found in the cache.
    pub cached_positions: u64,
    /// Positions of all first admissions.
    pub prompt_positions: u64,
    /// Rows that were computed again after a preemption or a pause.
    pub recomputed_rows: u64,
    /// Blocks copied because a sequence continued within them.
    pub copies: u64,
    /// Admissions put off for a prefix that another sequence was computing.
    pub followed: u64,
    /// Prefixes ordered from a lower tier of the cache, positions that arrived, and those not waited for to the end.
    pub fetches: u64,
    pub fetched_positions: u64,
    pub given_up_fetches: u64,
    /// Admissions before an earlier sequence that did not fit.
    pub passed: u64,
    /// Sessions dropped for newer ones, or for a sequence that runs alone.
    pub dropped_sessions: u64,
}

/// All counts at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub counts: Counts,
    pub events: Events,
    pub cache: crate::cache::CacheCounts,
    pub sessions: usize,
    pub session_blocks: usize,
}

#[cfg(test)]
mod tests;
