//! A simulated KV memory: every position holds its token and a hash of all tokens up to it, as real K and V depend on all
//! of them. A row that reads another sequence's position, or a stale one, sees it.

use super::model::Live;
use crate::common::rng::mix;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    token: u32,
    position: u32,
    hash: u64,
}

const GARBAGE: Cell = Cell { token: u32::MAX, position: u32::MAX, hash: 0 };

pub struct Memory {
    cells: Vec<Cell>,
    size: usize,
}

impl Memory {
    pub fn new(blocks: u32, block_size: u32) -> Self {
        let size = block_size as usize;
        Self { cells: vec![GARBAGE; blocks as usize * size], size }
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

    /// Useless contents, as a failed pass leaves them.
    pub fn spoil(&mut self, table: &[u32], start: u32, rows: u32) {
        for position in start..start + rows {
            let at = self.at(table, position);
            self.cells[at] = GARBAGE;
        }
    }
}
