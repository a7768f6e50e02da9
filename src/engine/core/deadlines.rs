//! The deadlines of an engine thread's requests.

use super::sequences::Sequences;
use crate::base::{Result, reserved};
use crate::engine::hub::ids::RequestId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Default)]
pub(super) struct Deadlines(BinaryHeap<Reverse<(u64, RequestId)>>);

impl Deadlines {
    /// Keeps the heap at no more than about four deadlines per live sequence, even if the earliest deadline is far
    /// away.
    pub(super) fn push(&mut self, deadline: u64, id: RequestId, sequences: &Sequences) -> Result<()> {
        if self.0.len() > 4 * sequences.len() + 64 {
            self.0.retain(|Reverse((_, id))| sequences.holds(*id));
        }
        reserved(self.0.try_reserve(1), "the engine's queue", 16 * sequences.len())?;
        self.0.push(Reverse((deadline, id)));
        Ok(())
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((deadline, _))| *deadline)
    }

    /// Removes the next deadline if it has passed at `now`, or if its request has ended.
    pub(super) fn pop(&mut self, now: u64, sequences: &Sequences) -> Option<RequestId> {
        let &Reverse((deadline, id)) = self.0.peek()?;
        if deadline > now && sequences.holds(id) {
            return None;
        }
        self.0.pop();
        Some(id)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    #[cfg(test)]
    pub fn has(&self, deadline: u64, id: RequestId) -> bool {
        self.0.iter().any(|&Reverse(entry)| entry == (deadline, id))
    }
}
