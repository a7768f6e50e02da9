//! A request's place in its grammar, and the mask of tokens that may come next.

use super::compile::reason;
use super::source::refused;
use super::workers::Workers;
use crate::base::clock::now_ns;
use crate::base::sync::{Condvar, Mutex};
use crate::base::{Error, Result, panics, reserve};
use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a grammar's lexer, whose states are computed as outputs reach them.
const MOST_BYTES: usize = 64 << 20;

/// Tokens that may come next.
pub struct Mask {
    bits: SimpleVob,
    complete: bool,
}

impl Mask {
    /// A bit for each token of the vocabulary, from the lowest on.
    pub fn bits(&self) -> &[u32] {
        self.bits.as_slice()
    }

    /// The output matches, and cannot go on: end tokens alone are allowed.
    pub fn complete(&self) -> bool {
        self.complete
    }
}

/// What a guide and the worker that computes its next mask share.
pub(super) struct Slot {
    inner: Mutex<Inner>,
    done: Condvar,
    abandoned: AtomicBool,
    /// Of the grammar: a lexer of it failed, for good.
    spoiled: Arc<AtomicBool>,
}

struct Inner {
    /// Its lexer is shared with other requests of the grammar, until it fails.
    parser: TokenParser,
    /// At the beginning, with a lexer that nobody runs. None: the parser has a lexer of its own.
    fresh: Option<Arc<TokenParser>>,
    output: Vec<u32>,
    /// Of these, the parser has consumed so many.
    consumed: usize,
    made: Option<Result<Mask>>,
}

impl Inner {
    /// What fails on a shared lexer, perhaps through another request, is done once more from the beginning, alone.
    fn next(&mut self, spoiled: &AtomicBool) -> Result<Mask> {
        let made = self.step();
        let Some(fresh) = self.fresh.take_if(|_| made.is_err()) else { return made };
        spoiled.store(true, Ordering::Relaxed);
        (self.parser, self.consumed) = (fresh.deep_clone(), 0);
        self.step()
    }

    fn step(&mut self) -> Result<Mask> {
        panics::catch(|| self.advance())
            .unwrap_or_else(|panic| Err(Error::internal(format!("a grammar: {panic}"))))
    }

    fn advance(&mut self) -> Result<Mask> {
        while let Some(&token) = self.output.get(self.consumed) {
            self.parser.consume_token(token).map_err(reason)?;
            self.consumed += 1;
        }
        self.parser.check_stop().map_err(reason)?;
        let complete = self.parser.stop_reason() != StopReason::NotStopped;
        let bits = match complete {
            true => self.parser.token_env.tok_trie().eos_token_set(),
            false => self.parser.compute_mask().map_err(reason)?,
        };
        let held = self.parser.parser.lexer_stats().num_bytes;
        if held > MOST_BYTES {
            return Err(refused(format!("its lexer holds {held} bytes, more than {MOST_BYTES}")));
        }
        Ok(Mask { bits, complete })
    }
}

impl Slot {
    /// On a worker: computes the next mask, unless nobody waits for it any more. False: nobody does.
    pub fn run(&self) -> bool {
        if self.abandoned.load(Ordering::Relaxed) {
            return false;
        }
        let mut inner = self.inner.lock();
        let made = inner.next(&self.spoiled);
        inner.made = Some(made);
        drop(inner);
        self.done.notify_one();
        true
    }
}

/// One for each request with a constraint. Masks are computed by the workers, beside the forward pass.
pub struct Guide {
    slot: Arc<Slot>,
    workers: Arc<Workers>,
    /// A worker was asked for the mask behind the last token.
    asked: bool,
    /// The mask behind the last token, or why there is none.
    mask: Option<Result<Mask>>,
}

impl Guide {
    pub(super) fn new(
        parser: TokenParser,
        fresh: Arc<TokenParser>,
        spoiled: Arc<AtomicBool>,
        workers: Arc<Workers>,
    ) -> Self {
        let inner = Inner { parser, fresh: Some(fresh), output: Vec::new(), consumed: 0, made: None };
        let inner = Mutex::new(inner);
        let slot = Slot { inner, done: Condvar::new(), abandoned: AtomicBool::new(false), spoiled };
        Self { slot: Arc::new(slot), workers, asked: false, mask: None }
    }

    /// Has the first mask computed, while something else runs. Later calls do nothing.
    pub fn begin(&mut self) -> Result<()> {
        if !self.asked {
            self.workers.put(self.slot.clone())?;
            self.asked = true;
        }
        Ok(())
    }

    /// What may come behind the tokens so far; waits for it. An error where the grammar needs more steps than a mask may
    /// take: the request cannot go on.
    pub fn mask(&mut self) -> Result<&Mask> {
        self.begin()?;
        if self.mask.is_none() {
            self.mask = Some(self.wait());
        }
        match &self.mask {
            Some(Ok(mask)) => Ok(mask),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Error::internal("a mask went missing")),
        }
    }

    fn wait(&self) -> Result<Mask> {
        let started = now_ns();
        let mut inner = self.slot.inner.lock();
        let made = loop {
            match inner.made.take() {
                Some(made) => break made,
                None => inner = self.slot.done.wait(inner),
            }
        };
        self.workers.totals.waited(now_ns().saturating_sub(started));
        made
    }

    /// Takes in a token that the mask allowed, and has the next mask computed.
    pub fn push(&mut self, token: u32) -> Result<()> {
        self.mask()?;
        self.mask = None;
        let mut inner = self.slot.inner.lock();
        reserve(&mut inner.output, 1, "output tokens")?;
        inner.output.push(token);
        drop(inner);
        self.workers.put(self.slot.clone())
    }
}

impl Drop for Guide {
    fn drop(&mut self) {
        self.slot.abandoned.store(true, Ordering::Relaxed);
    }
}
