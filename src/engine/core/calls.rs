//! Work that the hub queues for a replica.

use super::Core;
use crate::engine::hub::Cargo;
use crate::engine::hub::ids::RequestId;
use crate::engine::request::sequence::Sequence;

/// Runs between two steps. If the replica dies, the call is dropped with its reply channel, and the caller learns
/// of that.
pub type Call = Box<dyn FnOnce(&mut Core) + Send>;

pub enum Work {
    Sequence(Box<Sequence>),
    /// A call of a host thread, which waits for it.
    Call(Call),
}

impl Work {
    pub fn sequence(&self) -> Option<&Sequence> {
        if let Self::Sequence(sequence) = self { Some(sequence) } else { None }
    }
}

impl Cargo for Work {
    fn name(&mut self, id: RequestId) {
        if let Self::Sequence(sequence) = self {
            sequence.id = id;
        }
    }

    fn rank(&self, replica: usize, owed: u64, before: Option<usize>) -> u64 {
        self.sequence().map_or(owed, |sequence| sequence.placement.rank(replica, owed, before))
    }

    fn stays(&self) -> bool {
        self.sequence().is_some_and(|sequence| sequence.placement.stays())
    }

    fn tokens(&self, replica: usize, before: Option<usize>) -> u64 {
        self.sequence().map_or(0, |sequence| sequence.placement.tokens(replica, before))
    }
}
