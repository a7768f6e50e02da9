//! An engine's grammars: compiled once, shared by the requests that ask for the same.

use super::compile::compile;
use super::guide::Guide;
use super::source::{Constraint, ConstraintKind};
use super::vocabulary::Vocabulary;
use super::workers::Workers;
use crate::base::Result;
use crate::base::clock::now_ns;
use crate::base::sync::Mutex;
use llguidance::TokenParser;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Grammars that are kept, and what they may hold together when one is added: their lexers' states are computed as
/// outputs reach them.
const MOST: usize = 64;
const MOST_BYTES: usize = 128 << 20;

/// Since the engine was made.
#[derive(Debug, Default)]
pub struct Totals {
    pub compiled: AtomicU64,
    pub hits: AtomicU64,
    pub compile_ns: AtomicU64,
    pub masks: AtomicU64,
    pub mask_ns: AtomicU64,
    /// What sampling waited for masks.
    pub wait_ns: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Totals {
    pub(super) fn masked(&self, ns: u64) {
        add(&self.masks, 1);
        add(&self.mask_ns, ns);
    }

    pub(super) fn waited(&self, ns: u64) {
        add(&self.wait_ns, ns);
    }
}

/// Parsers at the beginning, one for each worker: those of one share a lexer, under a lock that a mask holds.
struct Entry {
    kind: ConstraintKind,
    text: Box<str>,
    parsers: Vec<TokenParser>,
    next: usize,
    /// See `Guide`.
    fresh: Arc<TokenParser>,
    /// A lexer of it failed: it is not used any more.
    spoiled: Arc<AtomicBool>,
}

impl Entry {
    fn is_sound(&self) -> bool {
        !self.spoiled.load(Ordering::Relaxed)
    }

    fn is(&self, constraint: &Constraint) -> bool {
        self.kind == constraint.kind && *self.text == *constraint.text
    }

    fn guide(&mut self, workers: &Arc<Workers>) -> Guide {
        self.next = (self.next + 1) % self.parsers.len();
        let parser = self.parsers[self.next].clone();
        Guide::new(parser, self.fresh.clone(), self.spoiled.clone(), workers.clone())
    }

    fn bytes(&self) -> usize {
        self.text.len() + self.parsers.iter().map(|p| p.parser.lexer_stats().num_bytes).sum::<usize>()
    }
}

pub struct Grammars {
    /// The latest used is the last.
    entries: Mutex<Vec<Entry>>,
    workers: Arc<Workers>,
    threads: usize,
    totals: Arc<Totals>,
}

impl Grammars {
    /// Of an engine whose kernels run on `threads` threads: masks are computed on up to a quarter as many, beside them.
    pub fn new(threads: usize) -> Self {
        let (totals, threads) = (Arc::<Totals>::default(), (threads / 4).clamp(1, 8));
        let workers = Arc::new(Workers::new(threads, totals.clone()));
        Self { entries: Mutex::new(Vec::new()), workers, threads, totals }
    }

    /// The guide of a request, at the beginning of its output. Compiles the grammar where it is not known:
    /// `InvalidArgument` for one that is wrong or too complex.
    pub fn guide(&self, vocabulary: &Vocabulary, constraint: &Constraint) -> Result<Guide> {
        match self.known(constraint) {
            Some(guide) => Ok(guide),
            None => self.compile(vocabulary, constraint),
        }
    }

    fn known(&self, constraint: &Constraint) -> Option<Guide> {
        let mut entries = self.entries.lock();
        entries.retain(Entry::is_sound);
        let at = entries.iter().position(|entry| entry.is(constraint))?;
        add(&self.totals.hits, 1);
        entries[at..].rotate_left(1);
        entries.last_mut().map(|entry| entry.guide(&self.workers))
    }

    fn compile(&self, vocabulary: &Vocabulary, constraint: &Constraint) -> Result<Guide> {
        let started = now_ns();
        let first = compile(vocabulary, constraint)?;
        let parsers = (0..self.threads).map(|_| first.deep_clone()).collect();
        add(&self.totals.compiled, 1);
        add(&self.totals.compile_ns, now_ns().saturating_sub(started));
        let text = (*constraint.text).into();
        let (kind, fresh, spoiled) = (constraint.kind, Arc::new(first), Arc::default());
        let mut entry = Entry { kind, text, parsers, next: 0, fresh, spoiled };
        let guide = entry.guide(&self.workers);
        let mut entries = self.entries.lock();
        entries.retain(|known| known.is_sound() && !known.is(constraint));
        entries.push(entry);
        let mut bytes: usize = entries.iter().map(Entry::bytes).sum();
        while entries.len() > MOST || bytes > MOST_BYTES && entries.len() > 1 {
            bytes -= entries.remove(0).bytes();
        }
        Ok(guide)
    }

    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Ends the threads and waits for them.
    pub fn stop(&self) {
        self.workers.stop(true);
    }
}
