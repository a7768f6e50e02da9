//! What the scheduler knows of each sequence, and the block tables of those that run.

use super::order::Rank;
use super::{Request, SeqId};
use crate::base::{Error, Result, reserve};
use crate::cache::{self, BlockTable, NONE};
use std::ops::{Index, IndexMut};

/// Where a sequence is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// There is none.
    #[default]
    Absent,
    /// For its first admission, or for another after a preemption.
    Waiting,
    /// Until its owner lets it go on; it holds no blocks.
    Paused,
    /// It has a block table, and rows in the next step or soon.
    Running,
}

/// A waiting sequence whose next positions a running one computes at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leader {
    pub seq: SeqId,
    pub ticket: u64,
    /// Positions that both have in common.
    pub until: u32,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub state: State,
    pub request: Request,
    pub rank: Rank,
    /// Tokens that are known: the prompt and what was sampled.
    pub len: u32,
    /// Positions whose K and V are in the cache.
    pub computed: u32,
    /// The most that `computed` ever was: what lies below is computed anew after a preemption.
    pub peak: u32,
    /// Its block table, while it runs.
    pub lane: u32,
    /// Leading blocks of the table that are in the index.
    pub indexed: u32,
    /// Keys of the full blocks of its known tokens, as far as they were needed.
    pub keys: Vec<u64>,
    /// Of the last block of the known tokens where it is not full.
    pub tail_key: u64,
    /// It ran before.
    pub admitted: bool,
    pub preemptions: u32,
    /// Since when it waits.
    pub since: u64,
    /// Blocks that it lacked room for when it was tried last, and the plan that tries again whatever there is.
    pub need: usize,
    pub retry: u64,
    pub leader: Option<Leader>,
}

impl Slot {
    /// Positions that it computes at most. The last token sampled is never run through the model, so it needs none.
    pub fn bound(&self) -> u32 {
        self.request.prompt_len + self.request.max_new - 1
    }

    /// Its next row is of the token sampled last.
    pub fn decodes(&self) -> bool {
        self.len > self.request.prompt_len && self.computed + 1 == self.len
    }

    /// Rows that it needs before its next token.
    pub fn missing(&self) -> u32 {
        self.len - self.computed
    }

    /// Rows behind the `given` next ones that come before one that has to yield logits. What is computed anew has yielded
    /// them.
    pub fn rows_without_logits(&self, given: u32) -> u32 {
        let from = self.request.logits_from.map(|from| from.max(self.peak));
        let from = from.filter(|from| *from < self.request.prompt_len);
        from.map_or(u32::MAX, |from| from.saturating_sub(self.computed + given))
    }

    /// All its tokens were sampled, and its owner owes a `cancel`.
    pub fn is_done(&self) -> bool {
        self.computed >= self.bound()
    }

    /// The most positions that it takes from the cache. The last row is computed in any case: the next token is sampled
    /// from its logits.
    pub fn reusable(&self) -> u32 {
        self.request.reuse.limit.min(self.len - 1)
    }

    /// The key up to block `index` (not included).
    pub fn key_before(&self, index: usize) -> u64 {
        if index == 0 { self.request.reuse.salt } else { self.keys[index - 1] }
    }

    /// Keys of the known tokens' blocks; positions up to `to`.
    pub fn extend_keys(&mut self, to: u32, block_size: u32, token: &dyn Fn(u32) -> u32) -> Result<()> {
        let mut tokens = [0; cache::MAX_BLOCK_SIZE];
        let size = block_size as usize;
        let blocks = (to / block_size) as usize;
        let more = blocks.saturating_sub(self.keys.len());
        reserve(&mut self.keys, more, "the keys of KV blocks")?;
        while self.keys.len() < blocks {
            let index = self.keys.len();
            let tokens = fill(&mut tokens[..size], index as u32 * block_size, token);
            self.keys.push(cache::chain(self.key_before(index), tokens));
        }
        Ok(())
    }
}

/// The tokens from position `first` on.
pub(super) fn fill<'a>(tokens: &'a mut [u32], first: u32, token: &dyn Fn(u32) -> u32) -> &'a [u32] {
    tokens.iter_mut().zip(first..).for_each(|(to, at)| *to = token(at));
    tokens
}

/// Slots by id, growing to the highest id seen.
#[derive(Default)]
pub(super) struct Slots(Vec<Slot>);

/// Keys that an empty slot may keep the memory of.
const KEPT_KEYS: usize = 16;

impl Slots {
    pub fn get(&self, seq: SeqId) -> Option<&Slot> {
        self.0.get(seq.0 as usize).filter(|slot| slot.state != State::Absent)
    }

    pub fn iter(&self) -> impl Iterator<Item = (SeqId, &Slot)> {
        let slots = self.0.iter().enumerate().map(|(i, slot)| (SeqId(i as u32), slot));
        slots.filter(|(_, slot)| slot.state != State::Absent)
    }

    /// A new sequence in an empty slot.
    pub fn open(&mut self, seq: SeqId, request: Request, rank: Rank) -> Result<()> {
        let index = seq.0 as usize;
        if index >= self.0.len() {
            let more = index + 1 - self.0.len();
            if seq.0 == NONE {
                return Err(Error::internal("a scheduler slot beyond the last"));
            }
            reserve(&mut self.0, more, "scheduler slots")?;
            self.0.resize_with(index + 1, Slot::default);
        }
        let slot = &mut self.0[index];
        if slot.state != State::Absent {
            return Err(Error::internal(format!("scheduler slot {index} is taken")));
        }
        let mut keys = std::mem::take(&mut slot.keys);
        keys.clear();
        let len = request.prompt_len;
        let since = request.arrived_ns;
        *slot =
            Slot { state: State::Waiting, request, rank, len, lane: NONE, keys, since, ..Slot::default() };
        Ok(())
    }

    pub fn close(&mut self, seq: SeqId) {
        let slot = &mut self.0[seq.0 as usize];
        let mut keys = std::mem::take(&mut slot.keys);
        if keys.capacity() > KEPT_KEYS {
            keys = Vec::new();
        }
        *slot = Slot { keys, ..Slot::default() };
    }
}

impl Index<SeqId> for Slots {
    type Output = Slot;
    fn index(&self, seq: SeqId) -> &Slot {
        &self.0[seq.0 as usize]
    }
}

impl IndexMut<SeqId> for Slots {
    fn index_mut(&mut self, seq: SeqId) -> &mut Slot {
        &mut self.0[seq.0 as usize]
    }
}

/// Block tables of running sequences, kept for the next one so that admission rarely allocates.
pub(super) struct Lanes {
    tables: Vec<BlockTable>,
    free: Vec<u32>,
    /// Capacity that an idle table may keep, in blocks: bounds all tables by a few bytes per block.
    keep: usize,
}

impl Lanes {
    pub fn new(lanes: u32, blocks: u32) -> Result<Self> {
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

    /// A lane with an empty table.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives back a lane whose table is empty again.
    pub fn give_back(&mut self, lane: u32) {
        let table = &mut self.tables[lane as usize];
        debug_assert!(table.is_empty());
        if table.capacity() > self.keep {
            *table = BlockTable::new();
        }
        self.free.push(lane);
    }

    pub fn table(&self, lane: u32) -> &BlockTable {
        &self.tables[lane as usize]
    }

    pub fn table_mut(&mut self, lane: u32) -> &mut BlockTable {
        &mut self.tables[lane as usize]
    }
}
