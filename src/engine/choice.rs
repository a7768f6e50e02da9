//! Which of an engine's replicas a request goes to.
//!
//! It goes where the fewest tokens are owed once it is there: those of the unfinished requests of that replica, and of its own
//! prompt those that the replica's prefix cache lacks. Several requests that are submitted together and begin alike count what
//! they have in common once. Of equals the first. A session's requests, and calls for it, go where its name says, which is
//! the same for as long as no replica dies (rendezvous hashing, Thaler and Ravishankar 1998).

use super::calls::Work;
use super::hub::Cargo;
use super::ids::RequestId;
use super::sequence::Sequence;
use xxhash_rust::xxh64::xxh64;

/// New tokens that a request counts for, at most: few go on for as long as they may.
const NEW_TOKENS: u32 = 256;

/// The replica with the lowest has the session.
pub fn session_rank(name: &str, replica: usize) -> u64 {
    xxh64(name.as_bytes(), replica as u64)
}

/// Tokens of the prompt that `replica` has to compute, where the request before this one went to `before`.
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

    /// A session's requests find what it keeps on one replica only.
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
