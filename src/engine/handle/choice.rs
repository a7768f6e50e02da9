//! Chooses the replica of a request.
//!
//! A request goes to the replica that will owe the fewest tokens with it: those of the replica's unfinished
//! requests, and those of the new prompt that its prefix cache lacks. If requests that are submitted together
//! share a beginning, it counts once. On a tie the first replica wins. A session's requests and calls go to the
//! replica that its name maps to, which stays the same as long as no replica dies (rendezvous hashing, Thaler and
//! Ravishankar 1998).

use crate::engine::core::calls::Work;
use crate::engine::hub::Cargo;
use crate::engine::hub::ids::RequestId;
use crate::engine::request::sequence::Sequence;
use xxhash_rust::xxh64::xxh64;

/// Maximum number of new tokens that a request counts for: few requests use all that they may.
const NEW_TOKENS: u32 = 256;

/// Rank of a replica for a session; the replica with the lowest rank has the session.
pub fn session_rank(name: &str, replica: usize) -> u64 {
    xxh64(name.as_bytes(), replica as u64)
}

/// Prompt tokens that `replica` has to compute, if the previous request of the same submit went to `before`.
fn missing(sequence: &Sequence, replica: usize, before: Option<usize>) -> u64 {
    let cached = sequence.cached_at.get(replica).copied().unwrap_or(0);
    let computed = if before == Some(replica) { sequence.like_before } else { 0 };
    sequence.prompt.len().saturating_sub(cached.max(computed) as usize) as u64
}

impl Cargo for Work {
    fn name(&mut self, id: RequestId) {
        if let Self::Sequence(sequence) = self {
            sequence.id = id;
        }
    }

    fn rank(&self, replica: usize, owed: u64, before: Option<usize>) -> u64 {
        match self {
            Self::Sequence(sequence) => match &sequence.session {
                Some(name) => session_rank(name, replica),
                None => owed + missing(sequence, replica, before),
            },
            Self::Call(_) => owed,
        }
    }

    /// Requests of a session stay: its blocks are on one replica only.
    fn stays(&self) -> bool {
        matches!(self, Self::Sequence(sequence) if sequence.session.is_some())
    }

    fn tokens(&self, replica: usize, before: Option<usize>) -> u64 {
        match self {
            Self::Sequence(sequence) => {
                missing(sequence, replica, before) + u64::from(sequence.max_new.min(NEW_TOKENS))
            }
            Self::Call(_) => 0,
        }
    }
}
