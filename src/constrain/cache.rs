//! An engine's grammars: each is compiled once and shared by all requests that ask for it.

use super::compile::{Job, Made};
use super::guide::{Guide, Shared};
use super::queue::CompileQueue;
use super::schema::JsonOptions;
use super::source::{Constraint, ConstraintKind};
use super::vocabulary::Vocabulary;
use super::weigh::{Totals, Weight, add};
use super::workers::Workers;
use crate::base::clock::now_ns;
use crate::base::sync::Mutex;
use crate::base::{Error, Result, reserve};
use llguidance::TokenParser;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Limits on the number of kept grammars and their total bytes. They are enforced when a grammar is added or
/// used and when an output ends, because lexer states are computed while outputs are generated.
const MOST: usize = 64;
const MOST_BYTES: u64 = 128 << 20;
/// Kept grammars may hold this fraction (1/8) of the engine's memory for requests.
const SHARE: u64 = 8;
/// A grammar's bytes are counted in steps of this size, since they grow with every mask.
const STEP: u64 = 64 << 10;
/// Time a caller waits for other compilations and its own.
const MOST_WAIT_NS: u64 = 10_000_000_000;

/// Keeps a number of bytes counted until it is dropped.
pub type Counted = Box<dyn Any + Send>;

/// A purse without a limit.
pub fn uncounted(_bytes: u64) -> Option<Counted> {
    Some(Box::new(()))
}

/// Counts bytes for a kept grammar; None if there is no room for them.
pub(super) type Purse<'a> = &'a dyn Fn(u64) -> Option<Counted>;

struct Entry {
    kind: ConstraintKind,
    text: Box<str>,
    json: JsonOptions,
    /// One parser for each worker.
    parsers: Vec<TokenParser>,
    next: usize,
    shared: Shared,
    /// Bytes of the weight that are already counted, and the guards that count them.
    counted: u64,
    counts: Vec<Counted>,
}

impl Entry {
    fn bytes(&self) -> u64 {
        self.shared.weight.bytes().next_multiple_of(STEP)
    }

    /// Counts the bytes by which the grammar has grown. Returns false if there is no room for them.
    fn count(&mut self, purse: Purse) -> bool {
        let owed = self.bytes().saturating_sub(self.counted);
        if owed > 0 {
            if reserve(&mut self.counts, 1, "a grammar's bytes").is_err() {
                return false;
            }
            let Some(counts) = purse(owed) else { return false };
            self.counts.push(counts);
            self.counted += owed;
        }
        true
    }

    fn is_sound(&self) -> bool {
        !self.shared.spoiled.load(Ordering::Relaxed)
    }

    fn is(&self, constraint: &Constraint) -> bool {
        self.kind == constraint.kind && self.json == constraint.json && *self.text == *constraint.text
    }

    fn guide(&mut self, workers: &Arc<Workers>) -> Guide {
        self.next = (self.next + 1) % self.parsers.len();
        let parser = self.parsers[self.next].clone();
        Guide::new(parser, self.next, self.shared.clone(), workers.clone())
    }
}

pub struct Grammars {
    /// Ordered by last use; the most recent is last.
    entries: Mutex<Vec<Entry>>,
    workers: Arc<Workers>,
    queue: Arc<CompileQueue>,
    threads: usize,
    /// Limit on the bytes of all entries, and the bytes counted for them now.
    most_bytes: u64,
    kept: AtomicU64,
    /// Bytes this process may still allocate; None if unknown.
    room: fn() -> Option<u64>,
    totals: Arc<Totals>,
}

impl Grammars {
    /// Creates the cache of an engine whose kernels run on `threads` threads; up to a quarter as many
    /// additional threads compute masks. `budget` is the byte limit of all requests together, `u64::MAX` if
    /// there is none; `room` returns how many bytes this process may still allocate.
    pub fn new(threads: usize, budget: u64, room: fn() -> Option<u64>) -> Self {
        let (totals, threads) = (Arc::<Totals>::default(), (threads / 4).clamp(1, 8));
        let workers = Arc::new(Workers::new(threads, totals.clone()));
        let (most_bytes, kept) = (MOST_BYTES.min(budget / SHARE), AtomicU64::new(0));
        let (entries, queue) = (Mutex::new(Vec::new()), Arc::new(CompileQueue::new()));
        Self { entries, workers, queue, threads, most_bytes, kept, room, totals }
    }

    /// Returns a request's guide, at the start of its output. Compiles the grammar if it is not cached, until
    /// `until_ns` of the monotonic clock or for ten seconds at most, and keeps it if `purse` has room. Fails
    /// with `InvalidArgument` if the constraint is wrong or too complex, `TimedOut`, `QueueFull` if too many
    /// compilations are pending, `OutOfMemory` if memory is short, or `Shutdown`.
    pub fn guide(
        &self,
        vocabulary: &Arc<Vocabulary>,
        constraint: &Constraint,
        until_ns: u64,
        purse: Purse,
    ) -> Result<Guide> {
        if let Some(guide) = self.known(constraint, purse) {
            return Ok(guide);
        }
        let until_ns = until_ns.min(now_ns().saturating_add(MOST_WAIT_NS));
        let slot = self.queue.enter(Job::reading_ns(constraint), until_ns)?;
        // Another thread may have compiled it while this one waited, so look again here and once after
        // reading it.
        if let Some(guide) = self.known(constraint, purse) {
            return Ok(guide);
        }
        let copies = self.threads + 1;
        let (job, slot) = Job::read(vocabulary, constraint, copies, (self.room)(), slot, until_ns)?;
        if let Some(guide) = self.known(constraint, purse) {
            return Ok(guide);
        }
        let started = now_ns();
        let made = job.run(slot, (self.room)(), until_ns)?;
        add(&self.totals.compiled, 1);
        add(&self.totals.compile_ns, now_ns().saturating_sub(started));
        self.keep(constraint, made, purse)
    }

    /// Suspends all masks, or resumes them.
    #[cfg(test)]
    pub fn hold_masks(&self, held: bool) {
        self.workers.hold(held);
    }

    fn known(&self, constraint: &Constraint, purse: Purse) -> Option<Guide> {
        let mut entries = self.entries.lock();
        entries.retain(Entry::is_sound);
        let at = entries.iter().position(|entry| entry.is(constraint))?;
        add(&self.totals.hits, 1);
        entries[at..].rotate_left(1);
        let guide = entries.last_mut().map(|entry| entry.guide(&self.workers));
        let gone = self.trim(&mut entries, purse);
        drop(entries);
        drop(gone);
        guide
    }

    /// Counts the bytes by which grammars have grown, and evicts the oldest if there are too many.
    pub fn count(&self, purse: Purse) {
        let gone = self.trim(&mut self.entries.lock(), purse);
        // Dropped outside the lock: they may be large.
        drop(gone);
    }

    /// Keeps the most recently used grammars that fit and counts them. Returns the others.
    fn trim(&self, entries: &mut Vec<Entry>, purse: Purse) -> Vec<Entry> {
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.bytes();
            bytes <= self.most_bytes
        };
        let fitting = entries.iter().rev().take(MOST).take_while(fits).count();
        let mut gone: Vec<Entry> = entries.drain(..entries.len() - fitting).collect();
        gone.iter_mut().for_each(|entry| entry.counts.clear());
        // Count the most recently used first; if there is no room, evict others, oldest first.
        let mut counted = 0;
        while let Some(at) = entries.len().checked_sub(1 + counted) {
            match entries[at].count(purse) {
                true => counted += 1,
                false => {
                    let mut oldest = entries.remove(0);
                    oldest.counts.clear();
                    gone.push(oldest);
                }
            }
        }
        self.kept.store(entries.iter().map(|entry| entry.counted).sum(), Ordering::Relaxed);
        gone
    }

    /// `parsers` are at the start of an output: one for each worker, and one that is never run.
    fn keep(&self, constraint: &Constraint, made: Made, purse: Purse) -> Result<Guide> {
        let Made { mut parsers, size } = made;
        let weight = Arc::new(Weight::new(&self.totals.held, parsers.iter(), size)?);
        let Some(fresh) = parsers.pop() else { return Err(Error::internal("a grammar without parsers")) };
        let mut entry = Entry {
            kind: constraint.kind,
            text: (*constraint.text).into(),
            json: constraint.json,
            parsers,
            next: 0,
            shared: Shared { fresh: Arc::new(fresh), spoiled: Arc::default(), weight, size },
            counted: 0,
            counts: Vec::new(),
        };
        let guide = entry.guide(&self.workers);
        let mut entries = self.entries.lock();
        entries.retain(|known| known.is_sound() && !known.is(constraint));
        entries.push(entry);
        let gone = self.trim(&mut entries, purse);
        drop(entries);
        drop(gone);
        Ok(guide)
    }

    /// Bytes counted for the kept grammars.
    pub fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Evicts all kept grammars to free their memory. Returns false if there were none.
    pub fn clear(&self) -> bool {
        if self.kept.swap(0, Ordering::Relaxed) == 0 {
            return false;
        }
        let entries = std::mem::take(&mut *self.entries.lock());
        !entries.is_empty()
    }

    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Stops compiling: callers that wait for a compilation get `Shutdown`.
    pub fn close(&self) {
        self.queue.close();
    }

    /// Stops the threads and joins them.
    pub fn stop(&self) {
        self.queue.close();
        self.workers.stop(true);
        self.queue.wait();
    }

    /// Counts of running compilations, waiting compilations, and threads not yet joined.
    #[cfg(test)]
    pub(super) fn compiling(&self) -> (usize, usize, usize) {
        self.queue.counts()
    }
}

#[cfg(test)]
mod tests;
