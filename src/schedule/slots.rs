//! The scheduler's records of sequences, and the block tables of running ones.

use super::fetch::Below;
use super::order::Rank;
use super::{Request, SeqId, drafts};
use crate::base::{Error, Result, reserve};
use crate::cache::{self, BlockTable, ContentId, NONE};
use std::ops::{Index, IndexMut};

/// State of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// There is no such sequence.
    #[default]
    Absent,
    /// Waits for its first admission, or for another one after a preemption.
    Waiting,
    /// Waits until its owner resumes it, without blocks.
    Paused,
    /// Has a block table, and rows in the next step or soon.
    Running,
}

/// A running sequence that computes the next positions of a waiting one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leader {
    pub seq: SeqId,
    pub ticket: u64,
    /// Number of positions that both have in common.
    pub until: u32,
}

#[derive(Debug, Default)]
pub(super) struct SequenceSlot {
    pub state: State,
    pub request: Request,
    pub rank: Rank,
    /// Number of known tokens: the prompt and the sampled ones.
    pub len: u32,
    /// Number of positions whose K and V are in the cache.
    pub computed: u32,
    /// Maximum that `computed` ever was. Positions below it are computed again after a preemption.
    pub peak: u32,
    /// Lane of its block table, while it runs.
    pub lane: u32,
    /// Number of leading blocks of the table that are in the index.
    pub indexed: u32,
    /// Keys of the full blocks of its known tokens, as far as they were needed.
    pub keys: Vec<u64>,
    /// Key of the last block of the known tokens if it is not full.
    pub tail_key: u64,
    /// Whether it ran before.
    pub admitted: bool,
    pub preemptions: u32,
    /// When it began to wait.
    pub since: u64,
    /// Blocks that it needed when it was last tried, and the plan at which it is tried again even without them.
    pub need: usize,
    pub retry: u64,
    pub leader: Option<Leader>,
    pub below: Below,
    /// Slot of its state while it runs, in a model with recurrent layers; else `NONE`.
    pub recurrent: u32,
    /// Whether a pass changed the state and was not committed.
    pub stale: bool,
    /// While it has computed fewer positions, it runs in steps of its own; see `isolate`.
    pub alone_until: u32,
    /// Positions where other sequences diverge from its text; 0: none.
    pub branches: [u32; BRANCHES],
    /// What its drafts may still lose, in steps of its own; see `drafts::Price`.
    pub credit: f32,
    /// Whether drafts of it ran.
    pub drafted: bool,
}

/// Maximum number of such positions that a sequence remembers.
pub(super) const BRANCHES: usize = 4;

impl SequenceSlot {
    /// Maximum number of positions that it computes. The last sampled token is never run through the model, so it
    /// needs no position.
    pub(super) fn bound(&self) -> u32 {
        self.request.prompt_len + self.request.max_new - 1
    }

    /// Whether its next row is of the token sampled last.
    pub(super) fn decodes(&self) -> bool {
        self.len > self.request.prompt_len && self.computed + 1 == self.len
    }

    /// Number of rows that it needs before its next token.
    pub(super) fn missing(&self) -> u32 {
        self.len - self.computed
    }

    /// Number of rows, after the next `given` ones, before the first row that must give logits. Rows that are
    /// computed again have given theirs already.
    pub(super) fn rows_without_logits(&self, given: u32) -> u32 {
        let from = self.request.logits_from.map(|from| from.max(self.peak));
        let from = from.filter(|from| *from < self.request.prompt_len);
        from.map_or(u32::MAX, |from| from.saturating_sub(self.computed + given))
    }

    /// Whether all its tokens were sampled, so that its owner must `cancel` it.
    pub(super) fn is_done(&self) -> bool {
        self.computed >= self.bound()
    }

    /// Maximum number of positions that it takes from the cache. The last row is always computed, because the next
    /// token is sampled from its logits.
    pub(super) fn reusable(&self) -> u32 {
        self.request.reuse.limit.min(self.len - 1)
    }

    /// The key of the blocks before block `index`.
    pub(super) fn key_before(&self, index: usize) -> u64 {
        if index == 0 { self.request.reuse.salt } else { self.keys[index - 1] }
    }

    /// Computes the keys of full blocks for positions up to `to`.
    pub(super) fn extend_keys(
        &mut self,
        to: u32,
        block_size: u32,
        content: &dyn Fn(u32) -> ContentId,
    ) -> Result<()> {
        let mut contents = [ContentId::default(); cache::MAX_BLOCK_SIZE];
        let size = block_size as usize;
        let blocks = (to / block_size) as usize;
        let more = blocks.saturating_sub(self.keys.len());
        reserve(&mut self.keys, more, "the keys of KV blocks")?;
        while self.keys.len() < blocks {
            let index = self.keys.len();
            let contents = fill(&mut contents[..size], index as u32 * block_size, content);
            self.keys.push(cache::chain(self.key_before(index), contents));
        }
        Ok(())
    }
}

/// Fills `contents` with those from position `first` on.
pub(super) fn fill<'a>(
    contents: &'a mut [ContentId],
    first: u32,
    content: &dyn Fn(u32) -> ContentId,
) -> &'a [ContentId] {
    contents.iter_mut().zip(first..).for_each(|(to, at)| *to = content(at));
    contents
}

/// Slots by id, of both ranges; grow to the highest id seen.
#[derive(Default)]
pub(super) struct SequenceSlots([Vec<SequenceSlot>; 2]);

/// Maximum number of keys whose memory an empty slot keeps.
const KEPT_KEYS: usize = 16;

impl SequenceSlots {
    pub(super) fn get(&self, seq: SeqId) -> Option<&SequenceSlot> {
        #[cfg(test)]
        lookups::add();
        let (range, index) = seq.place();
        self.0[range].get(index).filter(|slot| slot.state != State::Absent)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SeqId, &SequenceSlot)> {
        #[cfg(test)]
        self.0.iter().flatten().for_each(|_| lookups::add());
        let ranges = self.0.iter().zip([0, SeqId::BRANCHES]);
        let slots = ranges.flat_map(|(slots, first)| (first..).map(SeqId).zip(slots));
        slots.filter(|(_, slot)| slot.state != State::Absent)
    }

    /// Puts a new sequence into an empty slot.
    pub(super) fn open(&mut self, seq: SeqId, request: Request, rank: Rank) -> Result<()> {
        let (range, index) = seq.place();
        let slots = &mut self.0[range];
        if index >= slots.len() {
            let more = index + 1 - slots.len();
            if seq.0 == NONE {
                return Err(Error::internal("a scheduler slot beyond the last"));
            }
            reserve(slots, more, "scheduler slots")?;
            slots.resize_with(index + 1, SequenceSlot::default);
        }
        let slot = &mut slots[index];
        if slot.state != State::Absent {
            return Err(Error::internal(format!("scheduler slot {index} is taken")));
        }
        let mut keys = std::mem::take(&mut slot.keys);
        keys.clear();
        let len = request.prompt_len;
        let since = request.arrived_ns;
        *slot = SequenceSlot {
            state: State::Waiting,
            request,
            rank,
            len,
            lane: NONE,
            recurrent: NONE,
            keys,
            since,
            credit: drafts::AT_FIRST,
            ..SequenceSlot::default()
        };
        Ok(())
    }

    pub(super) fn close(&mut self, seq: SeqId) {
        let (range, index) = seq.place();
        let slot = &mut self.0[range][index];
        let mut keys = std::mem::take(&mut slot.keys);
        if keys.capacity() > KEPT_KEYS {
            keys = Vec::new();
        }
        *slot = SequenceSlot { keys, ..SequenceSlot::default() };
    }
}

impl Index<SeqId> for SequenceSlots {
    type Output = SequenceSlot;
    fn index(&self, seq: SeqId) -> &SequenceSlot {
        #[cfg(test)]
        lookups::add();
        let (range, index) = seq.place();
        &self.0[range][index]
    }
}

impl IndexMut<SeqId> for SequenceSlots {
    fn index_mut(&mut self, seq: SeqId) -> &mut SequenceSlot {
        #[cfg(test)]
        lookups::add();
        let (range, index) = seq.place();
        &mut self.0[range][index]
    }
}

/// Block tables of running sequences. They are reused, so that admission rarely allocates.
pub(super) struct Lanes {
    tables: Vec<BlockTable>,
    free: Vec<u32>,
    /// Capacity in blocks that an idle table may keep. It bounds all tables to a few bytes per block.
    keep: usize,
}

impl Lanes {
    pub(super) fn new(lanes: u32, blocks: u32) -> Result<Self> {
        let count = lanes as usize;
        let (mut tables, mut free) = (Vec::new(), Vec::new());
        let reserved = tables.try_reserve_exact(count).and_then(|()| free.try_reserve_exact(count));
        if reserved.is_err() {
            return Err(Error::out_of_memory("block tables", count.saturating_mul(size_of::<BlockTable>())));
        }
        tables.resize_with(count, BlockTable::new);
        free.extend((0..lanes).rev());
        Ok(Self { tables, free, keep: (blocks as usize / count).saturating_mul(4).max(64) })
    }

    /// Takes a lane with an empty table.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Returns a lane, whose table must be empty again.
    pub(super) fn give_back(&mut self, lane: u32) {
        let table = &mut self.tables[lane as usize];
        debug_assert!(table.is_empty());
        if table.capacity() > self.keep {
            *table = BlockTable::new();
        }
        self.free.push(lane);
    }

    pub(super) fn table(&self, lane: u32) -> &BlockTable {
        &self.tables[lane as usize]
    }

    pub(super) fn table_mut(&mut self, lane: u32) -> &mut BlockTable {
        &mut self.tables[lane as usize]
    }
}

/// Number of slot lookups on this thread, a measure of a step's work.
#[cfg(test)]
pub(super) mod lookups {
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    pub fn add() {
        COUNT.set(COUNT.get() + 1);
    }

    pub fn count() -> u64 {
        COUNT.get()
    }
}
