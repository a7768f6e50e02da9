//! Counts how often each event happened: a simulation that never reaches a case proves nothing about it.

use bn_engine::cache::CacheCounts;
use bn_engine::schedule::{Events, Scheduler};

#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub worlds: u64,
    pub steps: u64,
    /// Plans in which the first sequence in the queue had to be admitted.
    pub heads: u64,
    /// Steps with prompts and decode rows.
    pub beside: u64,
    pub failed_passes: u64,
    pub dropped: u64,
    pub drafted: u64,
    /// Entries that begin with positions that run in one step, and admissions with such positions in the cache.
    pub units: [u64; 2],
    pub accepted: u64,
    /// By state: absent, waiting, paused, running.
    pub cancelled: [u64; 4],
    pub paused: [u64; 4],
    pub resumes: u64,
    pub late: u64,
    /// Sessions of all blocks that a request had computed.
    pub kept: u64,
    /// Events that the log had no room for.
    pub cleared: u64,
    pub too_long: u64,
    pub copied: u64,
    pub resumed_states: u64,
    pub ended: u64,
    pub preempted_most: u32,
    /// Consecutive plans that left a fitting sequence waiting.
    pub fitting: u32,
    /// The longest life, as a fraction of the allowed one.
    pub life: f64,
    events: Events,
    cache: CacheCounts,
}

impl Tally {
    pub fn preempted_once(&mut self, times: u32) {
        self.ended += 1;
        self.preempted_most = self.preempted_most.max(times);
    }

    pub fn take(&mut self, scheduler: &Scheduler) {
        (self.events, self.cache) = (scheduler.events(), scheduler.cache_counts());
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let (e, [absent, waiting, paused, running]) = (&self.events, self.cancelled);
        vec![
            ("worlds", self.worlds),
            ("steps", self.steps),
            ("requests that ended", self.ended),
            ("preemptions", e.preemptions),
            ("preemptions for others", e.preempted_for_others),
            ("pauses", e.pauses),
            ("states continued from snapshots", self.resumed_states),
            ("positions that run in one step", self.units[0]),
            ("such positions in the cache", self.units[1]),
            ("pauses of waiting", self.paused[1]),
            ("pauses of running", self.paused[3]),
            ("ends of a pause", self.resumes),
            ("resumed", e.resumed),
            ("positions found in the cache", e.cached_positions),
            ("positions of first admissions", e.prompt_positions),
            ("rows computed again", e.recomputed_rows),
            ("blocks gone on in", e.copies),
            ("blocks copied", self.copied),
            ("followed", e.followed),
            ("passed", e.passed),
            ("merged", self.cache.merged),
            ("evictions", self.cache.evictions),
            ("late", self.late),
            ("sessions kept", self.kept),
            ("sessions that gave way", e.dropped_sessions),
            ("event logs that overflowed", self.cleared),
            ("refused as too long", self.too_long),
            ("passes that failed", self.failed_passes),
            ("entries that failed", self.dropped),
            ("tokens drafted", self.drafted),
            ("drafts that stood", self.accepted),
            ("cancels of nobody", absent),
            ("cancels of waiting", waiting),
            ("cancels of paused", paused),
            ("cancels of running", running),
            ("heads that must come in", self.heads),
            ("prompts beside decode rows", self.beside),
        ]
    }

    pub fn add(&mut self, other: &Tally) {
        let (e, o) = (&mut self.events, &other.events);
        for (sum, more) in [
            (&mut self.worlds, other.worlds),
            (&mut self.steps, other.steps),
            (&mut self.heads, other.heads),
            (&mut self.beside, other.beside),
            (&mut self.failed_passes, other.failed_passes),
            (&mut self.dropped, other.dropped),
            (&mut self.drafted, other.drafted),
            (&mut self.accepted, other.accepted),
            (&mut self.resumes, other.resumes),
            (&mut self.too_long, other.too_long),
            (&mut self.late, other.late),
            (&mut self.kept, other.kept),
            (&mut self.cleared, other.cleared),
            (&mut e.dropped_sessions, o.dropped_sessions),
            (&mut self.copied, other.copied),
            (&mut self.resumed_states, other.resumed_states),
            (&mut self.ended, other.ended),
            (&mut e.preemptions, o.preemptions),
            (&mut e.preempted_for_others, o.preempted_for_others),
            (&mut e.pauses, o.pauses),
            (&mut e.resumed, o.resumed),
            (&mut e.cached_positions, o.cached_positions),
            (&mut e.prompt_positions, o.prompt_positions),
            (&mut e.recomputed_rows, o.recomputed_rows),
            (&mut e.copies, o.copies),
            (&mut e.followed, o.followed),
            (&mut e.passed, o.passed),
            (&mut self.cache.merged, other.cache.merged),
            (&mut self.cache.evictions, other.cache.evictions),
        ] {
            *sum += more;
        }
        let states = self.cancelled.iter_mut().chain(&mut self.paused).chain(&mut self.units);
        states
            .zip(other.cancelled.iter().chain(&other.paused).chain(&other.units))
            .for_each(|(sum, more)| *sum += more);
        self.preempted_most = self.preempted_most.max(other.preempted_most);
        self.fitting = self.fitting.max(other.fitting);
        self.life = self.life.max(other.life);
    }

    pub fn print(&self) {
        self.counts().iter().for_each(|(what, n)| println!("{n:>12} {what}"));
        println!("{:>12} preemptions of one request at most", self.preempted_most);
        println!("{:>12} plans at most left room for one that waited", self.fitting);
        println!("{:>12.3} of the steps allowed at most", self.life);
    }

    /// Checks that each event happened often enough, and that no sequence was preempted again and again: 16
    /// times is the maximum in some 6,000 worlds.
    pub fn assert_all(&self, least: u64) {
        assert!(self.preempted_most <= 64, "{} preemptions of one request", self.preempted_most);
        for (what, n) in self.counts() {
            assert!(n >= least, "{what}: only {n}");
        }
    }
}
