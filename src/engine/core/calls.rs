//! Work that the hub queues for an engine thread.

use super::Core;
use crate::engine::request::sequence::Sequence;

/// Runs between two steps. If the thread dies, the call is dropped with its reply channel, and the caller learns
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
