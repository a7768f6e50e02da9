//! What host threads have the engine thread do besides requests, and wait for.

use super::core::Core;
use super::hub::Named;
use super::ids::RequestId;
use super::sequence::Sequence;

/// Runs between two steps. What answers its caller goes with it where the engine thread dies, and the caller learns that.
pub type Call = Box<dyn FnOnce(&mut Core) + Send>;

/// What the hub queues for the engine thread.
pub enum Work {
    Sequence(Box<Sequence>),
    Call(Call),
}

impl Named for Work {
    fn name(&mut self, id: RequestId) {
        if let Self::Sequence(sequence) = self {
            sequence.id = id;
        }
    }
}
