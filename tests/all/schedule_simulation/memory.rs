//! A simulated KV memory: every position holds its token and a hash of all tokens up to it, as real K and V depend on
//! all of them. A row that reads another sequence's position, or a stale one, detects it.

use super::model::Live;
use crate::common::rng::mix;
use bn_engine::schedule::{PlanEntry, Scheduler, SeqId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    token: u32,
    position: u32,
    hash: u64,
}

const GARBAGE: Cell = Cell { token: u32::MAX, position: u32::MAX, hash: 0 };

const NO_STATE: (u32, u64) = (u32::MAX, 0);

/// The hash of a sequence's first tokens.
fn hash_of(live: &Live, tokens: u32) -> u64 {
    live.whole[..tokens as usize].iter().fold(live.root, |hash, token| mix(hash, u64::from(*token)))
}

pub struct Memory {
    cells: Vec<Cell>,
    size: usize,
    /// States of recurrent layers: the number of tokens that each covers, and their hash.
    states: Vec<(u32, u64)>,
}

impl Memory {
    pub fn new(blocks: u32, block_size: u32, states: u32) -> Self {
        let size = block_size as usize;
        Self { cells: vec![GARBAGE; blocks as usize * size], size, states: vec![NO_STATE; states as usize] }
    }

    pub fn copy_states(&mut self, copies: &[(u32, u32)]) {
        for &(from, to) in copies {
            assert_ne!(from, to, "a state copied to itself");
            self.states[to as usize] = self.states[from as usize];
        }
    }

    /// Asserts that a running sequence's state is that after its computed tokens.
    pub fn check_state(&self, scheduler: &Scheduler, seq: SeqId, live: &Live) {
        let Some(slot) = scheduler.state_slot(seq) else { return assert!(self.states.is_empty()) };
        if live.computed > 0 {
            let own = (live.computed, hash_of(live, live.computed));
            assert_eq!(self.states[slot as usize], own, "{seq:?} has another state");
        }
    }

    /// Asserts that a session's state is that after its tokens.
    pub fn check_session(&self, state: Option<u32>, root: u64, tokens: &[u32]) {
        let Some(slot) = state else { return assert!(self.states.is_empty(), "a session without its state") };
        let hash = tokens.iter().fold(root, |hash, token| mix(hash, u64::from(*token)));
        assert_eq!(self.states[slot as usize], (tokens.len() as u32, hash), "a session has another state");
    }

    /// Advances a sequence's state by an entry's rows, and makes the copies on the way.
    pub fn run_states(&mut self, scheduler: &Scheduler, entry: &PlanEntry, live: &Live) {
        let Some(slot) = scheduler.state_slot(entry.seq) else { return };
        let mut last = entry.start;
        for save in scheduler.saves(entry.seq) {
            assert!(
                save.at > last && save.at <= entry.start + entry.known() && save.slot != slot,
                "{save:?}"
            );
            self.states[save.slot as usize] = (save.at, hash_of(live, save.at));
            last = save.at;
        }
        let end = entry.start + entry.kept();
        self.states[slot as usize] = (end, hash_of(live, end));
    }

    /// Writes useless contents, as a failed pass leaves them.
    pub fn spoil_states(&mut self, scheduler: &Scheduler, seq: SeqId) {
        let saves = scheduler.saves(seq).map(|save| save.slot);
        for slot in scheduler.state_slot(seq).into_iter().chain(saves) {
            self.states[slot as usize] = NO_STATE;
        }
    }

    pub fn copy(&mut self, copies: &[(u32, u32)]) {
        for &(from, to) in copies {
            assert_ne!(from, to, "a block copied to itself");
            let from = from as usize * self.size;
            self.cells.copy_within(from..from + self.size, to as usize * self.size);
        }
    }

    fn at(&self, table: &[u32], position: u32) -> usize {
        let position = position as usize;
        table[position / self.size] as usize * self.size + position % self.size
    }

    /// Asserts that the blocks begin with these tokens, of a sequence whose hashes begin with `root`: its next row
    /// attends to all of them.
    pub fn check(&self, table: &[u32], root: u64, tokens: &[u32]) {
        let mut hash = root;
        for (position, &token) in (0..).zip(tokens) {
            hash = mix(hash, u64::from(token));
            let found = self.cells[self.at(table, position)];
            let own = Cell { token, position, hash };
            assert_eq!(found, own, "position {position} of {tokens:?} lies wrong in the blocks {table:?}");
        }
    }

    /// Runs a sequence's rows, each of which reads all before it. Returns the hash at the last one.
    pub fn run(&mut self, table: &[u32], live: &Live, start: u32, rows: u32) -> u64 {
        let mut hash = match start.checked_sub(1) {
            Some(before) => self.cells[self.at(table, before)].hash,
            None => live.root,
        };
        for position in start..start + rows {
            let (token, at) = (live.whole[position as usize], self.at(table, position));
            hash = mix(hash, u64::from(token));
            self.cells[at] = Cell { token, position, hash };
        }
        hash
    }

    /// Writes useless contents, as a failed pass leaves them.
    pub fn spoil(&mut self, table: &[u32], start: u32, rows: u32) {
        for position in start..start + rows {
            let at = self.at(table, position);
            self.cells[at] = GARBAGE;
        }
    }
}
