//! Prefixes on their way from a lower tier of the cache: a waiting sequence may wait until they are in memory.
//!
//! A fetch holds the blocks of the prefix, those that memory has and those that are read, until its sequence is
//! admitted or leaves. It begins if reading is predicted to take less time than computing, and is given up when
//! computing would have been done by now: so at worst it doubles the time. It is a guess about time and no promise:
//! whenever blocks are short, fetches are dropped first.

use super::scheduler::{TABLE, place};
use super::slots::fill;
use super::*;
use crate::base::reserve;
use crate::cache::disk::{Kind, Lower, Name, Place};
use crate::cache::{BlockTable, Found, MAX_BLOCK_SIZE, Snapshot as StateSnapshot, chain};

/// Maximum number of fetches at a time.
const MOST: usize = 8;
/// Assumed time of a prompt's row, before any step has run.
const FIRST_ROW_NS: f64 = 1e6;

/// What a waiting sequence knows of the lower tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Below {
    /// It has not asked since it began to wait.
    #[default]
    Unknown,
    /// A prefix is on its way, its own fetch or another's. Not waited for beyond this time.
    Waits(u64),
    /// There is nothing, or it has arrived, or was given up.
    Done,
}

/// A prefix on its way.
pub(super) struct Fetch {
    seq: SeqId,
    ticket: u64,
    /// The blocks of the prefix. Those from `first` on are read.
    table: BlockTable,
    first: usize,
    /// Number of positions in all, where the state is if it has one.
    positions: u32,
    /// Number of positions of the last block's record.
    last: u32,
    /// Number of blocks that are in memory, of the table.
    done: usize,
    /// Slot of the state that is read.
    state: Option<u32>,
    /// Number of records that are still to come.
    left: usize,
}

/// A prefix that the lower tier could give.
struct Target {
    /// Number of full blocks, and of positions in the block after them.
    full: usize,
    part: u32,
    /// Number of positions of the last block's record, if that is read: at least `part`.
    last: u32,
}

/// Where an arrival is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    Block(u32),
    State(u32),
}

/// Index of the state among the orders of a fetch.
const STATE: u32 = u32::MAX;

#[derive(Default)]
pub(super) struct Fetches {
    pub lower: Option<Box<dyn Lower>>,
    all: Vec<Fetch>,
    tickets: u64,
}

impl Scheduler {
    /// Sets the tier to look in for what memory lacks.
    pub fn set_lower(&mut self, lower: Box<dyn Lower>) -> crate::base::Result<()> {
        reserve(&mut self.fetches.all, MOST, "prefixes on their way")?;
        self.fetches.lower = Some(lower);
        self.cache.note_leaving()
    }

    /// Whether `seq` waits for a prefix on its way. It can go on from `found` now, whose blocks are in `table`; these
    /// may be fewer than memory has.
    pub(super) fn looks_below(
        &mut self,
        seq: SeqId,
        found: &Found,
        table: &mut BlockTable,
        tokens: &dyn Tokens,
        now: u64,
    ) -> bool {
        if !self.slots[seq].request.reuse.shared {
            return false;
        }
        match self.slots[seq].below {
            Below::Done => return false,
            Below::Waits(until) if now >= until => return self.give_up(seq),
            Below::Waits(_) if self.fetches.all.iter().any(|fetch| fetch.seq == seq) => return true,
            Below::Waits(_) | Below::Unknown => {}
        }
        // With states, the blocks were cut to one.
        let whole = match self.has_states() {
            true => {
                table.clear();
                self.find(seq, tokens, table)
            }
            false => *found,
        };
        // Another one's fetch of the same blocks will do.
        let next = self.slots[seq].keys.get(whole.blocks).copied();
        let until = next.and_then(|key| self.until_of(seq, whole.blocks, key)).or_else(|| {
            let have = found.positions(self.config.block_size);
            self.begin_fetch(seq, table, &whole, have, tokens, now)
        });
        self.slots[seq].below = until.map_or(Below::Done, Below::Waits);
        until.is_some()
    }

    /// The end of the fetch of another sequence that reads block `index` with this key.
    fn until_of(&self, seq: SeqId, index: usize, key: u64) -> Option<u64> {
        let reads = |fetch: &&Fetch| {
            fetch.seq != seq
                && (fetch.done..fetch.table.len()).contains(&index)
                && self.slots[fetch.seq].keys.get(index) == Some(&key)
        };
        let fetch = self.fetches.all.iter().find(reads)?;
        match self.slots[fetch.seq].below {
            Below::Waits(until) => Some(until),
            _ => None,
        }
    }

    fn give_up(&mut self, seq: SeqId) -> bool {
        self.events.given_up_fetches += u64::from(self.drop_fetch_of(seq));
        self.slots[seq].below = Below::Done;
        false
    }

    /// Begins a fetch if that saves time. Returns when it is given up.
    fn begin_fetch(
        &mut self,
        seq: SeqId,
        table: &[u32],
        whole: &Found,
        have: u32,
        tokens: &dyn Tokens,
        now: u64,
    ) -> Option<u64> {
        if self.fetches.all.len() >= MOST {
            return None;
        }
        let size = self.config.block_size;
        let target = match self.has_states() {
            true => self.state_below(seq, whole, have, tokens)?,
            false => self.blocks_below(seq, whole, tokens)?,
        };
        let positions = target.full as u32 * size + target.part;
        let blocks = (target.full + usize::from(target.part > 0)).saturating_sub(whole.blocks);
        let room = self.cache.pool().available();
        if positions <= have || room < blocks + self.all_promised() {
            return None;
        }
        let lower = self.fetches.lower.as_ref()?;
        let reading = lower.read_ns(blocks, usize::from(self.has_states()));
        let saved = match self.step_time.observations() {
            0 => FIRST_ROW_NS * f64::from(positions - have),
            _ => self.first_token_ns(seq, have) - self.first_token_ns(seq, positions),
        };
        if reading >= saved {
            return None;
        }
        let ticket = self.fetches.tickets;
        self.fetches.tickets += 1;
        let mut fetch = self.hold_fetch(seq, ticket, table, whole, &target, blocks)?;
        match self.order(&mut fetch, &target, tokens) {
            Ok(()) => {
                self.fetches.all.push(fetch);
                self.events.fetches += 1;
                Some(now.saturating_add(saved as u64).max(now + 1))
            }
            Err(_) => {
                self.let_fetch_go(fetch);
                None
            }
        }
    }

    /// The longest prefix whose blocks are below.
    fn blocks_below(&self, seq: SeqId, whole: &Found, tokens: &dyn Tokens) -> Option<Target> {
        let (slot, size) = (&self.slots[seq], self.config.block_size);
        let full = self.full_below(seq, whole.blocks);
        let most = size.min(slot.reusable() - full as u32 * size);
        // Of the block that has the last token, all but that can be reused.
        let last = self.record_below(seq, full, 1, tokens).filter(|_| most > 0).unwrap_or(0);
        let part = last.min(most);
        (full > whole.blocks || part > 0).then_some(Target { full, part, last })
    }

    /// Number of positions of the longest record of block `index` that has at least `least` positions, all of them of
    /// the sequence.
    fn record_below(&self, seq: SeqId, index: usize, least: u32, tokens: &dyn Tokens) -> Option<u32> {
        let size = self.config.block_size;
        let most = size.min(self.slots[seq].len - index as u32 * size);
        let has = |len: &u32| self.is_below(Kind::Block, self.part_key(seq, index, *len, tokens));
        (least..=most).rev().find(has)
    }

    /// The deepest state below that has all blocks before it, deeper than `have`.
    fn state_below(&self, seq: SeqId, whole: &Found, have: u32, tokens: &dyn Tokens) -> Option<Target> {
        let (slot, size) = (&self.slots[seq], self.config.block_size);
        let reusable = slot.reusable();
        let full = self.full_below(seq, whole.blocks);
        for index in (0..=full).rev() {
            let most = size.min(reusable.saturating_sub(index as u32 * size));
            for at in (1..=most).rev().filter(|at| *at < size || index < full) {
                if index as u32 * size + at <= have {
                    return None;
                }
                let key = self.part_key(seq, index, at, tokens);
                if !self.is_below(Kind::State, key) {
                    continue;
                }
                let (in_memory, part) = (index < whole.blocks, whole.part.filter(|_| index == whole.blocks));
                let rest = if at == size { 0 } else { at };
                let full = index + usize::from(at == size);
                if index < full || in_memory || part.is_some_and(|(_, most)| most >= at) {
                    return Some(Target { full, part: rest, last: rest });
                }
                if let Some(last) = self.record_below(seq, index, at, tokens) {
                    return Some(Target { full, part: rest, last });
                }
            }
        }
        None
    }

    /// Number of leading full blocks, of those that the sequence may take from the cache, in memory or below: memory
    /// has the first `known`.
    fn full_below(&self, seq: SeqId, known: usize) -> usize {
        let slot = &self.slots[seq];
        let most = (slot.reusable() / self.config.block_size) as usize;
        let keys = slot.keys.iter().take(most).skip(known);
        known + keys.take_while(|key| self.is_below(Kind::Block, **key)).count()
    }

    fn is_below(&self, kind: Kind, key: u64) -> bool {
        self.fetches.lower.as_ref().is_some_and(|lower| lower.has(Name { kind, key }))
    }

    /// The key of the first `len` positions of block `index`.
    fn part_key(&self, seq: SeqId, index: usize, len: u32, tokens: &dyn Tokens) -> u64 {
        let (slot, size) = (&self.slots[seq], self.config.block_size);
        if len == size
            && let Some(key) = slot.keys.get(index)
        {
            return *key;
        }
        let mut contents = [ContentId::default(); MAX_BLOCK_SIZE];
        let contents =
            fill(&mut contents[..len as usize], index as u32 * size, &|at| tokens.content(seq, at));
        chain(slot.key_before(index), contents)
    }

    /// Holds the blocks that memory has, and takes `blocks` more and a state.
    fn hold_fetch(
        &mut self,
        seq: SeqId,
        ticket: u64,
        known: &[u32],
        whole: &Found,
        target: &Target,
        blocks: usize,
    ) -> Option<Fetch> {
        let mut table = BlockTable::new();
        let known = &known[..whole.blocks.min(target.full + usize::from(target.part > 0))];
        let mut first = known.len();
        reserve(&mut table, first + blocks + 1, TABLE).ok()?;
        self.cache.retain(known);
        table.extend_from_slice(known);
        let positions = target.full as u32 * self.config.block_size + target.part;
        // A part in memory that reaches to the state.
        let part = whole.part.filter(|(_, most)| blocks == 1 && target.part > 0 && *most >= target.part);
        let part = part.filter(|_| target.full == whole.blocks);
        if let Some((block, _)) = part {
            self.cache.retain(&[block]);
            table.push(block);
            first += 1;
        }
        let mut fetch = Fetch {
            seq,
            ticket,
            table,
            first,
            positions,
            last: target.last,
            done: first,
            state: None,
            left: 0,
        };
        for _ in 0..blocks - part.iter().count() {
            match self.cache.take() {
                Some(block) => fetch.table.push(block),
                None => {
                    self.let_fetch_go(fetch);
                    return None;
                }
            }
        }
        if self.has_states() {
            fetch.state = Some(()).filter(|()| self.state_room() > 0).and_then(|()| self.cache.states.take());
            if fetch.state.is_none() {
                self.let_fetch_go(fetch);
                return None;
            }
        }
        Some(fetch)
    }

    /// Orders the records of a fetch, block by block, then the state.
    fn order(&mut self, fetch: &mut Fetch, target: &Target, tokens: &dyn Tokens) -> crate::base::Result<()> {
        let size = self.config.block_size;
        let seq = fetch.seq;
        let mut orders = Vec::new();
        reserve(&mut orders, fetch.table.len() - fetch.first + 1, TABLE)?;
        for index in fetch.first..fetch.table.len() {
            let len = if index < target.full { size } else { target.last };
            orders.push((index as u32, Kind::Block, index, len));
        }
        if fetch.state.is_some() {
            let last = (fetch.positions - 1) / size;
            orders.push((STATE, Kind::State, last as usize, fetch.positions - last * size));
        }
        let salt = self.slots[seq].request.reuse.salt;
        for (id, kind, index, len) in orders {
            let mut contents = Vec::new();
            reserve(&mut contents, len as usize, TABLE)?;
            contents.resize(len as usize, ContentId::default());
            fill(&mut contents, index as u32 * size, &|at| tokens.content(seq, at));
            let (key, parent_key) =
                (self.part_key(seq, index, len, tokens), self.slots[seq].key_before(index));
            let place = Place { kind, salt, parent_key, key, contents };
            if let Some(lower) = &mut self.fetches.lower {
                lower.order(fetch.ticket, id, place)?;
                fetch.left += 1;
            }
        }
        Ok(())
    }

    /// Where the arrival `index` of a fetch belongs. `None` if nobody waits for it any more.
    pub fn destination(&self, ticket: u64, index: u32) -> Option<Destination> {
        let fetch = self.fetches.all.iter().find(|fetch| fetch.ticket == ticket && fetch.left > 0)?;
        match index {
            STATE => fetch.state.map(Destination::State),
            // Records arrive in order; one that follows a missing one is of no use.
            _ if index as usize == fetch.done => fetch.table.get(fetch.done).map(|b| Destination::Block(*b)),
            _ => None,
        }
    }

    /// An arrival was written to its destination, or is missing.
    pub fn arrived(&mut self, ticket: u64, index: u32, written: bool, tokens: &dyn Tokens) {
        let waits = |fetch: &Fetch| fetch.ticket == ticket && fetch.left > 0;
        let Some(at) = self.fetches.all.iter().position(waits) else { return };
        let mut fetch = self.fetches.all.swap_remove(at);
        fetch.left -= 1;
        let good = written && self.index_arrival(&mut fetch, index, tokens);
        if !good || fetch.left == 0 {
            self.cancel_orders(ticket);
            self.slots[fetch.seq].below = Below::Done;
            let read = (fetch.done - fetch.first) as u64 * u64::from(self.config.block_size);
            self.events.fetched_positions += read.min(fetch.positions.into());
            // It keeps what it has until the sequence is admitted.
            self.release_rest(&mut fetch);
            fetch.left = 0;
        }
        self.fetches.all.push(fetch);
    }

    /// Adds an arrival to the index. False if its key is that of other contents.
    fn index_arrival(&mut self, fetch: &mut Fetch, index: u32, tokens: &dyn Tokens) -> bool {
        let (size, seq) = (self.config.block_size, fetch.seq);
        if index == STATE {
            let last = (fetch.positions - 1) / size;
            let Some(&block) = fetch.table.get(last as usize) else { return false };
            let (at, state) = (fetch.positions - last * size, fetch.state);
            return state.is_some_and(|state| {
                self.cache.indexed(block) >= at && {
                    // Another one may have computed it meanwhile.
                    self.cache.states.store(state, StateSnapshot { block, at });
                    true
                }
            });
        }
        let at = fetch.done;
        let place = place(&self.slots[seq], &fetch.table, at);
        let len = if (at as u32 + 1) * size <= fetch.positions { size } else { fetch.last };
        let mut contents = [ContentId::default(); MAX_BLOCK_SIZE];
        let contents = fill(&mut contents[..len as usize], at as u32 * size, &|at| tokens.content(seq, at));
        match len == size {
            true => {
                let key = self.slots[seq].keys[at];
                let Some(block) = self.cache.store(fetch.table[at], place, contents, key) else {
                    return false;
                };
                fetch.table[at] = block;
            }
            false => self.cache.store_part(fetch.table[at], place, contents, true),
        }
        fetch.done += 1;
        true
    }

    /// Gives back what did not arrive.
    fn release_rest(&mut self, fetch: &mut Fetch) {
        while fetch.table.len() > fetch.done {
            fetch.table.pop().into_iter().for_each(|block| self.cache.release(block));
        }
    }

    fn cancel_orders(&mut self, ticket: u64) {
        if let Some(lower) = &mut self.fetches.lower {
            lower.cancel(ticket);
        }
    }

    fn let_fetch_go(&mut self, mut fetch: Fetch) {
        self.cancel_orders(fetch.ticket);
        self.cache.release_all(&mut fetch.table);
        fetch.state.into_iter().for_each(|state| self.cache.states.release(state));
    }

    /// Drops the fetch of a sequence. False if it has none.
    pub(super) fn drop_fetch_of(&mut self, seq: SeqId) -> bool {
        let at = self.fetches.all.iter().position(|fetch| fetch.seq == seq);
        at.map(|at| self.fetches.all.swap_remove(at)).map(|fetch| self.let_fetch_go(fetch)).is_some()
    }

    /// Drops a fetch of another sequence than `seq`. False if there is none.
    pub(super) fn drop_fetch_beside(&mut self, seq: SeqId) -> bool {
        let other = self.fetches.all.iter().map(|fetch| fetch.seq).find(|other| *other != seq);
        other.is_some_and(|other| {
            self.slots[other].below = Below::Done;
            self.drop_fetch_of(other)
        })
    }

    /// Time until which nothing can run because all waiting sequences wait for prefixes on their way.
    pub(super) fn waits_below_until(&self) -> Option<u64> {
        if self.fetches.all.is_empty() || self.running.len() > 0 {
            return None;
        }
        let until = |seq: SeqId| match self.slots[seq].below {
            Below::Waits(until) => until,
            _ => 0,
        };
        self.waiting.iter().map(until).min()
    }

    pub(super) fn fetch_tables(&self) -> impl Iterator<Item = &BlockTable> {
        self.fetches.all.iter().map(|fetch| &fetch.table)
    }

    pub(super) fn fetch_states(&self) -> impl Iterator<Item = u32> {
        self.fetches.all.iter().filter_map(|fetch| fetch.state)
    }
}
