//! Counts how often each thing happened: a simulation that never reaches a case proves nothing about it.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct Tally {
    counts: BTreeMap<&'static str, u64>,
    /// The slowest end of a world, as a fraction of the allowed turns.
    pub longest: f64,
}

/// Events that must happen in every piece of the simulation.
const KINDS: [&str; 102] = [
    "turns",
    "passes that ended",
    "rests until a time",
    "rests until a command",
    "rests that ended early",
    "turns beside refused grants",
    "turns beside the unread",
    "turns beside the moved",
    "rests beside refused grants",
    "rests beside the unread",
    "submits",
    "submits of several",
    "refused: queue full",
    "refused: queued tokens",
    "refused: memory",
    "refused: too long",
    "refused: allocation",
    "refused: shutdown",
    "polls",
    "polls of one",
    "polls of one that finished",
    "polls of nobody",
    "polls without room for a lease",
    "polls without memory",
    "events",
    "events that several steps made",
    "deliveries",
    "deliveries to nobody",
    "releases in a callback",
    "given back",
    "given back twice",
    "set-asides",
    "set-asides that came back",
    "cancels",
    "cancels of all",
    "releases",
    "releases of live ones",
    "releases beside a lease",
    "acts during a pass",
    "passes that were stopped",
    "passes that failed",
    "passes of the sick",
    "passes that panicked",
    "lone passes that failed",
    "passes with NaN",
    "states that were not advanced",
    "passes with infinity",
    "embeddings with NaN",
    "probes that failed",
    "slow passes",
    "allocations refused",
    "ended: Stop",
    "ended: StopString",
    "ended: Length",
    "ended: Cancelled",
    "ended: TimedOut",
    "ended: Failed",
    "ended: Embedding",
    "ended: unread",
    "ended: late",
    "ended: in the queue",
    "tokens drafted",
    "drafts that stood",
    "draft passes that failed",
    "drafts rotated apart from positions",
    "draft passes through states",
    "draft passes of several through states",
    "pauses",
    "pauses of the engine",
    "pauses of the engine that ended",
    "deadlines in a pause of the engine",
    "preemptions",
    "positions found in the cache",
    "positions read from disk",
    "prefixes ordered from disk",
    "prefixes from disk given up",
    "records read",
    "records written",
    "records dropped",
    "records damaged",
    "records evicted",
    "sessions dropped",
    "sessions saved",
    "sessions restored",
    "sessions with pictures saved",
    "sessions with pictures restored",
    "sessions not found",
    "caches cleared",
    "events of the cache",
    "worlds drained",
    "worlds drained in a rush",
    "worlds cancelled",
    "worlds destroyed",
    "worlds that died",
    "replicas that died beside others",
    "statistics",
    "spurious wake-ups",
    "requests with pictures",
    "refused: misplaced pictures",
    "steps of the tower",
    "acts during a step of the tower",
    "steps of the tower that failed",
];

impl Tally {
    pub fn count(&mut self, what: &'static str) {
        self.more(what, 1);
    }

    pub fn more(&mut self, what: &'static str, n: u64) {
        debug_assert!(KINDS.contains(&what), "{what} is not in the list");
        *self.counts.entry(what).or_default() += n;
    }

    pub fn get(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    pub fn add(&mut self, other: &Tally) {
        other.counts.iter().for_each(|(what, n)| self.more(what, *n));
        self.longest = self.longest.max(other.longest);
    }

    pub fn print(&self) {
        KINDS.iter().for_each(|what| println!("{:>12} {what}", self.get(what)));
        println!("{:>12.3} of the turns allowed to the end at most", self.longest);
    }

    pub fn assert_all(&self) {
        let missing: Vec<_> = KINDS.iter().filter(|what| self.get(what) == 0).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}
