//! Work that the hub queues for an engine thread.

use super::Core;
use crate::engine::hub::ids::RequestId;
use crate::engine::replicas::team::Cargo;
use crate::engine::request::sequence::Sequence;

/// Runs between two steps. If the thread dies, the call is dropped with its reply channel, and the caller learns
/// of that.
pub(crate) type Call = Box<dyn FnOnce(&mut Core) + Send>;

pub(crate) enum Work {
    Sequence(Box<Sequence>),
    /// A call of a host thread, which waits for it.
    Call(Call),
}

impl Work {
    pub(crate) fn sequence(&self) -> Option<&Sequence> {
        if let Self::Sequence(sequence) = self { Some(sequence) } else { None }
    }
}

impl Cargo for Work {
    fn assign(&mut self, id: RequestId, tokens: u64) {
        if let Self::Sequence(sequence) = self {
            (sequence.id, sequence.placement.owed) = (id, tokens);
        }
    }

    fn home(&self, replica: usize) -> Option<u64> {
        self.sequence()?.placement.home(replica)
    }

    fn tokens(&self, replica: usize, before: Option<usize>) -> u64 {
        self.sequence().map_or(0, |sequence| sequence.placement.tokens(replica, before))
    }
}
