//! Calls that host threads send to a replica, besides requests, and wait for.

use super::Core;
use crate::engine::request::sequence::Sequence;

/// Runs between two steps. If the replica dies, the call is dropped with its reply channel, and the caller learns
/// of that.
pub type Call = Box<dyn FnOnce(&mut Core) + Send>;

/// Work that the hub queues for a replica.
pub enum Work {
    Sequence(Box<Sequence>),
    Call(Call),
}
