//! What host threads ask of the engine thread besides requests, and wait for.

use super::hub::Named;
use super::ids::RequestId;
use super::sequence::Sequence;
use crate::base::Result;
use std::sync::mpsc::SyncSender;

/// What a call asks for.
#[derive(Debug)]
pub enum Ask {
    DropSession(String),
    /// Its bytes without the checksum.
    SaveSession(String),
    /// How many bytes that is, with the checksum, as a little-endian u64.
    SizeOfSession(String),
    /// A name, and what `SaveSession` gave.
    RestoreSession(String, Vec<u8>),
    ClearCache,
}

/// A call on its way. Where the engine thread dies, its sender goes with it, and the caller learns of that.
pub struct Call {
    pub ask: Ask,
    /// For the bytes of a saved session; empty otherwise.
    pub reply: SyncSender<Result<Vec<u8>>>,
}

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
