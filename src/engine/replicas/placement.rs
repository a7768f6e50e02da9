//! Ranks the replicas for a request.
//!
//! A request goes to the replica that will owe the fewest tokens with it: those that the replica has not yet computed
//! of its unfinished requests, and those of the new prompt that its prefix cache lacks. Waiting for a seat counts as
//! some more. If requests that are submitted together share a beginning, it counts once. On a tie the first replica
//! wins. A session's requests and calls go to the replica that its name maps to, which stays the same as long as no
//! replica dies (rendezvous hashing, Thaler and Ravishankar 1998).

use crate::base::{Result, reserve};
use crate::cache::chain;
use crate::engine::watch::kv_events::KvEvents;
use crate::schedule::Reuse;
use xxhash_rust::xxh64::xxh64;

/// Maximum number of new tokens that a request counts for at any time: few requests use all that they may.
const NEW_TOKENS: u32 = 256;

/// Rank of a replica for a session; the replica with the lowest rank has the session.
pub(crate) fn session_rank(name: &str, replica: usize) -> u64 {
    xxh64(name.as_bytes(), replica as u64)
}

/// Properties of a request that decide on its replica.
pub(crate) struct Placement {
    /// Name of the session that keeps its KV when it ends.
    pub session: Option<Box<str>>,
    prompt_len: u32,
    max_new: u32,
    /// Prompt positions in each replica's prefix cache at submit; empty with one replica.
    cached_at: Vec<u32>,
    /// Number of positions that it shares with the previous request of the same submit.
    like_before: u32,
    /// Tokens that its replica owed for it when it was chosen.
    pub owed: u64,
}

impl Placement {
    pub(crate) fn new(session: Option<&str>, prompt_len: u32, max_new: u32) -> Self {
        let (session, cached_at) = (session.map(Into::into), Vec::new());
        Self { session, prompt_len, max_new, cached_at, like_before: 0, owed: 0 }
    }

    /// Finds what the replicas have computed of `prompt`, and what the previous request of the same submit shares
    /// with it.
    pub(crate) fn look_up(
        &mut self,
        (prompt, reuse): (&[u32], Reuse),
        before: Option<(&[u32], Reuse)>,
        caches: &KvEvents,
        block_size: usize,
    ) -> Result<()> {
        if !caches.has_several() || !reuse.shared {
            return Ok(());
        }
        let (mut keys, mut key) = (Vec::new(), reuse.salt);
        reserve(&mut keys, prompt.len() / block_size, "the keys of a prompt")?;
        for block in prompt.chunks_exact(block_size) {
            key = chain(key, block);
            keys.push(key);
        }
        self.cached_at = caches.leading(&keys)?;
        self.cached_at.iter_mut().for_each(|blocks| *blocks *= block_size as u32);
        if let Some((other, _)) = before.filter(|(_, other)| other.shared && other.salt == reuse.salt) {
            self.like_before = other.iter().zip(prompt).take_while(|(a, b)| a == b).count() as u32;
        }
        Ok(())
    }

    /// Prompt tokens that `replica` has to compute, if the previous request of the same submit went to `before`.
    fn missing(&self, replica: usize, before: Option<usize>) -> u64 {
        let cached = self.cached_at.get(replica).copied().unwrap_or(0);
        let computed = if before == Some(replica) { self.like_before } else { 0 };
        self.prompt_len.saturating_sub(cached.max(computed)).into()
    }

    /// Requests of a session stay on its replica, which alone has its blocks; see `session_rank`.
    pub(crate) fn home(&self, replica: usize) -> Option<u64> {
        self.session.as_ref().map(|name| session_rank(name, replica))
    }

    /// Tokens that `replica` owes for this request before it runs.
    pub(crate) fn tokens(&self, replica: usize, before: Option<usize>) -> u64 {
        self.missing(replica, before) + self.new_tokens(0)
    }

    /// The new tokens to expect after the first `made`.
    fn new_tokens(&self, made: u32) -> u64 {
        self.max_new.saturating_sub(made).min(NEW_TOKENS).into()
    }

    /// The part of `owed` that is done while the request runs, with `computed` positions and `made` new tokens.
    pub(crate) fn done(&self, computed: u32, made: u32) -> u64 {
        let left = u64::from(self.prompt_len.saturating_sub(computed)) + self.new_tokens(made);
        self.owed.saturating_sub(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Placement {
        Placement { cached_at: vec![0, 64], like_before: 90, ..Placement::new(None, 100, 1000) }
    }

    #[test]
    fn a_replica_owes_what_its_cache_lacks_and_some_new_tokens() {
        let tokens = |before| [0, 1].map(|replica| plain().tokens(replica, before));
        assert_eq!(tokens(None), [100 + 256, 36 + 256]);
        assert_eq!(tokens(Some(0)), [10 + 256, 36 + 256], "its neighbor computes the prefix there");
        assert_eq!(tokens(Some(1)), [100 + 256, 10 + 256]);
        assert_eq!(plain().home(0), None);
    }

    #[test]
    fn a_session_stays_where_its_name_maps_to() {
        let session = Placement { session: Some("a".into()), ..plain() };
        assert_eq!(session.home(1), Some(session_rank("a", 1)));
    }

    #[test]
    fn what_is_computed_is_owed_no_more() {
        let request = Placement { owed: 36 + 256, ..plain() };
        let done = |computed, made| request.done(computed, made);
        assert_eq!([done(64, 0), done(80, 0), done(100, 1)], [0, 16, 36]);
        assert_eq!(done(844, 744), 36, "as many new tokens are still to be expected");
        assert_eq!([done(900, 800), done(1099, 1000)], [36 + 56, 36 + 256]);
        assert_eq!(done(10, 0), 0, "the prefix has left the cache");
    }
}
