//! The pure scheduler: state to plan. No threads, no tensors, no clock but the one passed in.
//!
//! A sequence waits, is admitted, runs the rows of its known tokens in chunks, then decodes one row a step:
//! `submit → Waiting → (plan admits) → Running → cancel`. It takes KV blocks as its rows need them. Where none is left,
//! the running sequence that is last in line is preempted: it gives its blocks back, waits again, and computes later what
//! the cache does not have of it any more. So the sequence that is first in line always runs to its end.
//!
//! - `order`: who comes first. `admit`: who runs. `prompts`: whose rows a step has. `drafts`: what it verifies beside
//!   them. `step_time`: what a step takes.
//! - Waiting sequences are admitted in their order; one that fits may pass another that does not. That one takes the room
//!   back by preemption, once it has waited for `PATIENCE_NS`, or at once from a lower priority.

mod admit;
mod decode_time;
mod drafts;
mod order;
mod prompts;
mod scheduler;
mod sessions;
mod slots;
mod step_time;

pub use drafts::{MAX_DRAFT, Offer};
pub use order::Rank;
pub use scheduler::Scheduler;
pub use sessions::Session;
pub use slots::State;
pub use step_time::{StepCost, StepTime, Work};

use slots::Slots;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Sequences running at a time; at least 1.
    pub max_batch_size: u32,
    /// Rows in a step; at least max_batch_size, so that every decode row always fits.
    pub max_batch_tokens: u32,
    /// Rows of a step that yield logits; at least max_batch_size.
    pub max_logits_rows: u32,
    /// Target upper bound of a step that carries decode rows; at least 1.
    pub max_step_ns: u64,
    /// Target upper bound of the time between two tokens: no more sequences run than it allows; 0: as many as fit.
    pub target_itl_ns: u64,
    /// Positions per KV block; at least 1.
    pub block_size: u32,
    /// KV blocks in all; at least 1.
    pub blocks: u32,
    /// How long an idle engine's first step is held open for company.
    pub max_wait_ns: u64,
    /// How much later than one of the lowest priority a sequence of the highest may arrive and still come first.
    pub ageing_ns: u64,
}

/// How long a sequence is passed by others before it may preempt those behind it.
pub const PATIENCE_NS: u64 = 1_000_000_000;

/// A dense slot index that the engine gives; free for reuse after `cancel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u32);

/// What of a sequence may come from the cache and go there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// The most positions that need not be computed: rows whose results somebody wants must be.
    pub limit: u32,
    /// False: it neither finds nor leaves anything.
    pub shared: bool,
    /// Sequences with different ones share nothing.
    pub salt: u64,
}

impl Default for Reuse {
    fn default() -> Self {
        Self { limit: u32::MAX, shared: true, salt: 0 }
    }
}

/// What the scheduler has to know of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// At least 1.
    pub prompt_len: u32,
    /// At least 1.
    pub max_new: u32,
    /// 255 is the most urgent.
    pub priority: u8,
    pub arrived_ns: u64,
    /// It is given up while it waits, once its first token is not to be expected by then; 0: never.
    pub first_by_ns: u64,
    pub reuse: Reuse,
    /// The prompt's rows from this position on yield logits; None: the last one alone.
    pub logits_from: Option<u32>,
}

/// Who knows the sequences' tokens.
pub trait Tokens {
    /// The token at a position of the prompt or of what was sampled.
    fn token(&self, seq: SeqId, position: u32) -> u32;
}

/// One sequence's rows in a step: positions `start..start + rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanEntry {
    pub seq: SeqId,
    pub start: u32,
    pub rows: u32,
    /// So many of its last rows yield logits; at least one where a token is sampled.
    pub logits: u32,
    /// A token is sampled from the last row; where there are drafts, from the row before them and, as long as what is
    /// sampled is what was drafted, from each of theirs.
    pub sample: bool,
    /// Its first row is of the token sampled last; the others are of drafts.
    pub decode: bool,
    /// So many of its last rows are of drafted tokens.
    pub drafts: u32,
    /// Of these, the first that were what was sampled. Whoever samples says so, before `commit`.
    pub accepted: u32,
}

/// A sequence that begins to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    pub seq: SeqId,
    /// Positions that the cache had.
    pub cached: u32,
    /// It ran before and was preempted or paused.
    pub resumed: bool,
}

/// What kept a step from carrying more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeldBack {
    /// The batch is full, and nobody waits.
    #[default]
    Nothing,
    /// The batch has room, and nobody waits.
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
}

impl PlanEntry {
    /// Of the token sampled last, whose position is `start`.
    pub fn decode(seq: SeqId, start: u32) -> Self {
        Self { seq, start, rows: 1, logits: 1, sample: true, decode: true, drafts: 0, accepted: 0 }
    }

    /// Rows of tokens that are known.
    pub fn known(&self) -> u32 {
        self.rows - self.drafts
    }

    /// Rows whose positions stay computed.
    pub fn kept(&self) -> u32 {
        self.known() + self.accepted
    }
}

impl HeldBack {
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Nothing, "nothing"),
        (Self::Queue, "an empty queue"),
        (Self::Slots, "max_batch_size"),
        (Self::Blocks, "KV blocks"),
        (Self::Rows, "max_batch_tokens"),
        (Self::Time, "time"),
        (Self::Prefix, "a prefix on its way"),
    ];
}

/// A step: decode rows first, then prompt chunks. Reused from step to step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub entries: Vec<PlanEntry>,
    /// Sequences that left the queue with this plan, in their order.
    pub admitted: Vec<Admission>,
    /// Blocks to copy, in this order, from and to, before anything else and whether or not the step is run.
    pub copies: Vec<(u32, u32)>,
    /// Will miss `first_by_ns`; they stay where they are until `cancel`.
    pub late: Vec<SeqId>,
    /// The system has no memory for its block table; it stays where it is.
    pub refused: Option<SeqId>,
    pub work: Work,
    /// Entries that decode, each with one row and its drafts.
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
        self.late.clear();
        (self.refused, self.held_back) = (None, HeldBack::Nothing);
        (self.work, self.decode_rows) = (Work::default(), 0);
    }

    fn push(&mut self, entry: PlanEntry) {
        self.work.add(Work::span(entry.start, entry.rows));
        self.decode_rows += u32::from(entry.decode);
        self.entries.push(entry);
    }

    /// Leaves all but the first `drafts` of an entry's drafts out.
    pub fn cut_drafts(&mut self, at: usize, drafts: u32) {
        let entry = &mut self.entries[at];
        let less = entry.drafts - drafts;
        self.work.sub(Work::span(entry.start, entry.rows));
        (entry.rows, entry.logits, entry.drafts) = (entry.rows - less, entry.logits - less, drafts);
        self.work.add(Work::span(entry.start, entry.rows));
    }

    /// Leaves the rows out that are not to run.
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

    /// Takes the rows of a sequence out again that lost its blocks.
    fn drop_seq(&mut self, seq: SeqId) {
        self.retain(|entry| entry.seq != seq);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub waiting: usize,
    pub paused: usize,
    pub running: usize,
    /// Held by running sequences and by sessions.
    pub blocks_used: usize,
    /// Held by nobody, with contents that a later sequence may take.
    pub blocks_cached: usize,
    pub blocks_total: usize,
}

/// What happened since the scheduler was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    pub preemptions: u64,
    /// Preempted for a sequence of higher priority, or for one that was passed too long.
    pub preempted_for_others: u64,
    pub pauses: u64,
    pub resumed: u64,
    /// Positions that first admissions found in the cache.
    pub cached_positions: u64,
    /// Positions of all first admissions.
    pub prompt_positions: u64,
    /// Rows that were computed again after a preemption or pause.
    pub recomputed_rows: u64,
    /// Blocks copied because a sequence went on within them.
    pub copies: u64,
    /// Waited for a prefix that another sequence was computing.
    pub followed: u64,
    /// Admitted before one that came earlier and did not fit.
    pub passed: u64,
    /// Sessions that gave way, to newer ones or to a sequence that runs alone.
    pub dropped_sessions: u64,
}

/// All of these at one time.
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
