//! Accounts of compiled grammars: memory, time and counts.

use crate::base::Result;
use crate::base::reserve;
use llguidance::TokenParser;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a parser with its own lexer, for a grammar of `Made::size`. llguidance counts its lexer's tables
/// without their overhead, the states' sets of terminals and the terminals themselves. So this estimate is
/// between one and five times the parser's real size (`tests/grammar_memory.rs`).
pub(super) fn parser_bytes(parser: &TokenParser, size: usize) -> u64 {
    let lexer = parser.parser.lexer_stats();
    let states = lexer.num_states * (lexer.num_regexps / 8 + 128);
    ((64 << 10) + size + lexer.num_bytes + states + 512 * lexer.num_regexps) as u64
}

/// Counters since the engine was created.
#[derive(Debug, Default)]
pub struct Totals {
    pub compiled: AtomicU64,
    pub hits: AtomicU64,
    pub compile_ns: AtomicU64,
    pub masks: AtomicU64,
    pub mask_ns: AtomicU64,
    /// Time that sampling waited for masks.
    pub wait_ns: AtomicU64,
    /// Bytes of all compiled grammars, kept or in use.
    pub held: Arc<Held>,
}

pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Totals {
    pub fn masked(&self, ns: u64) {
        add(&self.masks, 1);
        add(&self.mask_ns, ns);
    }

    pub fn waited(&self, ns: u64) {
        add(&self.wait_ns, ns);
    }
}

/// Bytes of all grammars of an engine.
#[derive(Debug, Default)]
pub struct Held {
    now: AtomicU64,
}

impl Held {
    pub fn bytes(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn change(&self, from: u64, to: u64) {
        self.now.fetch_add(to.wrapping_sub(from), Ordering::Relaxed);
    }
}

/// Bytes of one grammar, counted until its last user is gone.
#[derive(Debug)]
pub(super) struct Weight {
    held: Arc<Held>,
    /// Bytes of each parser that has its own lexer.
    parsers: Vec<AtomicU64>,
}

impl Weight {
    pub(super) fn new<'a>(
        held: &Arc<Held>,
        parsers: impl ExactSizeIterator<Item = &'a TokenParser>,
        size: usize,
    ) -> Result<Self> {
        let mut bytes = Vec::new();
        reserve(&mut bytes, parsers.len(), "a grammar's parsers")?;
        let mut all = 0;
        for parser in parsers {
            let own = parser_bytes(parser, size);
            bytes.push(AtomicU64::new(own));
            all += own;
        }
        held.change(0, all);
        Ok(Self { held: held.clone(), parsers: bytes })
    }

    /// The weight of one more parser with its own lexer, counted separately.
    pub(super) fn alone(&self, parser: &TokenParser, size: usize) -> Result<Self> {
        Self::new(&self.held, [parser].into_iter(), size)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.parsers.iter().map(|own| own.load(Ordering::Relaxed)).sum()
    }

    /// Records that the lexer of parser `n` has grown.
    pub(super) fn grown(&self, n: usize, bytes: u64) {
        if let Some(own) = self.parsers.get(n) {
            self.held.change(own.swap(bytes, Ordering::Relaxed), bytes);
        }
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.held.change(self.bytes(), 0);
    }
}
