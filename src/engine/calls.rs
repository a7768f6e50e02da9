//! What host threads have a replica do besides requests, and wait for.

use super::core::Core;
use super::sequence::Sequence;

/// Runs between two steps. What answers its caller goes with it where the replica dies, and the caller learns that.
pub type Call = Box<dyn FnOnce(&mut Core) + Send>;

/// What the hub queues for a replica.
pub enum Work {
    Sequence(Box<Sequence>),
    Call(Call),
}
