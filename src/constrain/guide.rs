//! A request's place in its grammar, and the mask of tokens that may come next.

use super::compile::reason;
use super::source::refused;
use super::workers::Workers;
use crate::base::clock::now_ns;
use crate::base::sync::{Condvar, Mutex};
use crate::base::{Error, Result, panics};
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
    /// Of the grammar: what failed may have left it half changed.
    spoiled: Arc<AtomicBool>,
}

struct Inner {
    parser: TokenParser,
    /// Drawn, and not yet consumed.
    token: Option<u32>,
    made: Option<Result<Mask>>,
}

impl Inner {
    fn next(&mut self) -> Result<Mask> {
        if let Some(token) = self.token.take() {
            self.parser.consume_token(token).map_err(reason)?;
            self.parser.check_stop().map_err(reason)?;
        }
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
        let made = panics::catch(|| inner.next());
        let made = made.unwrap_or_else(|panic| Err(Error::internal(format!("a grammar: {panic}"))));
        if made.is_err() {
            self.spoiled.store(true, Ordering::Relaxed);
        }
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
    pub(super) fn new(parser: TokenParser, spoiled: Arc<AtomicBool>, workers: Arc<Workers>) -> Self {
        let inner = Mutex::new(Inner { parser, token: None, made: None });
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
        self.slot.inner.lock().token = Some(token);
        self.workers.put(self.slot.clone())
    }
}

impl Drop for Guide {
    fn drop(&mut self) {
        self.slot.abandoned.store(true, Ordering::Relaxed);
    }
}
