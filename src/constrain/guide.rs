//! A request's state in its grammar, and the mask of tokens allowed next.

use super::compile::reason;
use super::source::refused;
use super::weigh::{Weight, parser_bytes};
use super::workers::Workers;
use crate::base::clock::now_ns;
use crate::base::sync::{Condvar, Mutex};
use crate::base::{Error, Result, panics, reserve};
use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, TokenParser};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of one parser with its lexer, whose states are computed as outputs reach them.
const MOST_BYTES: u64 = 64 << 20;
/// Interval at which a thread waiting for a mask checks for masks that take too long.
const PATROL: Duration = Duration::from_millis(100);
/// A mask that takes longer is slow: steps leave its sequence out until the mask is ready.
pub const SLOW_NS: u64 = 20_000_000;

/// The tokens allowed next.
pub struct Mask {
    bits: SimpleVob,
    complete: bool,
}

impl Mask {
    /// One bit for each token of the vocabulary, lowest bit first.
    pub fn bits(&self) -> &[u32] {
        self.bits.as_slice()
    }

    /// True if the output matches and cannot continue: only end tokens are allowed.
    pub fn complete(&self) -> bool {
        self.complete
    }
}

/// The parts of a compiled grammar that all its requests share.
#[derive(Clone)]
pub struct Shared {
    /// A parser at the start of an output whose lexer is never run.
    pub fresh: Arc<TokenParser>,
    /// Set once one of the grammar's lexers has failed: the grammar is not used again.
    pub spoiled: Arc<AtomicBool>,
    pub weight: Arc<Weight>,
    /// See `Made`.
    pub size: usize,
}

/// State shared between a guide and the worker that computes its next mask.
pub(super) struct Slot {
    /// A worker holds this lock while it computes.
    inner: Mutex<Inner>,
    made: Mutex<Option<Result<Mask>>>,
    done: Condvar,
    abandoned: AtomicBool,
    /// A mask took too long: no more will be computed.
    expired: AtomicBool,
    /// Cancels the mask that is being computed.
    cancel: Mutex<Option<CancellationHandle>>,
    /// Shared by all users of the grammar; set for good once one of its lexers has failed.
    spoiled: Arc<AtomicBool>,
    /// Duration of the last mask's computation.
    last_ns: AtomicU64,
}

struct Inner {
    /// Shares its lexer with other requests of the grammar, until that lexer fails.
    parser: TokenParser,
    /// A parser at the start of an output whose lexer is never run. None once the parser has its own lexer.
    fresh: Option<Arc<TokenParser>>,
    /// The grammar's byte count, and the number of this parser's lexer in it.
    weight: Arc<Weight>,
    number: usize,
    size: usize,
    output: Vec<u32>,
    /// Number of these tokens that the parser has consumed.
    consumed: usize,
}

impl Inner {
    /// If a shared lexer fails, perhaps because of another request, retries once from the start with a
    /// private lexer.
    fn next(&mut self, slot: &Slot) -> Result<Mask> {
        let made = self.attempt(slot);
        if slot.is_over() {
            return made;
        }
        let Some(fresh) = self.fresh.take_if(|_| made.is_err()) else { return made };
        slot.spoiled.store(true, Ordering::Relaxed);
        (self.parser, self.consumed) = (fresh.deep_clone(), 0);
        self.weight = Arc::new(self.weight.alone(&self.parser, self.size)?);
        self.number = 0;
        slot.may_cancel(&mut self.parser);
        self.attempt(slot)
    }

    fn attempt(&mut self, slot: &Slot) -> Result<Mask> {
        self.step().map_err(|error| match slot.expired.load(Ordering::Relaxed) {
            true => refused("a mask takes too long"),
            false => error,
        })
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
        let held = parser_bytes(&self.parser, self.size);
        self.weight.grown(self.number, held);
        if held > MOST_BYTES {
            return Err(refused(format!("its lexer holds {held} bytes, more than {MOST_BYTES}")));
        }
        Ok(Mask { bits, complete })
    }
}

impl Slot {
    /// Runs on a worker: computes the next mask, unless the request was abandoned. Returns false if it was.
    pub fn run(&self) -> bool {
        if self.is_abandoned() {
            return false;
        }
        let started = now_ns();
        let mut inner = self.inner.lock();
        let made = inner.next(self);
        drop(inner);
        *self.made.lock() = Some(made);
        self.last_ns.store(now_ns().saturating_sub(started), Ordering::Relaxed);
        self.done.notify_one();
        true
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Returns true if no more masks will be computed.
    fn is_over(&self) -> bool {
        self.is_abandoned() || self.expired.load(Ordering::Relaxed)
    }

    /// Duration of the last mask's computation, 0 before the first.
    pub fn last_ns(&self) -> u64 {
        self.last_ns.load(Ordering::Relaxed)
    }

    fn may_cancel(&self, parser: &mut TokenParser) {
        *self.cancel.lock() = Some(parser.enable_cancellation());
    }

    /// Called when the masks are no longer needed.
    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.cancel();
    }

    /// Called when the mask takes too long.
    pub fn expire(&self) {
        self.expired.store(true, Ordering::Relaxed);
        self.cancel();
    }

    fn cancel(&self) {
        if let Some(cancel) = self.cancel.lock().take() {
            cancel.cancel();
        }
    }
}

/// State of one request with a constraint. Workers compute its masks during the forward pass.
pub struct Guide {
    slot: Arc<Slot>,
    workers: Arc<Workers>,
    /// A worker was asked for the mask after the last token.
    asked: bool,
    /// A step waited for that mask without success, or the previous mask was slow.
    late: bool,
    /// The mask after the last token, or the reason why there is none.
    mask: Option<Result<Mask>>,
}

impl Guide {
    /// `parser` is at the start of an output. Parsers with the same number share a lexer, whose lock a mask
    /// holds.
    pub(super) fn new(mut parser: TokenParser, number: usize, shared: Shared, workers: Arc<Workers>) -> Self {
        let Shared { fresh, spoiled, weight, size } = shared;
        let cancel = Mutex::new(Some(parser.enable_cancellation()));
        let (output, fresh) = (Vec::new(), Some(fresh));
        let inner = Inner { parser, fresh, weight, number, size, output, consumed: 0 };
        let slot = Slot {
            inner: Mutex::new(inner),
            made: Mutex::new(None),
            done: Condvar::new(),
            abandoned: AtomicBool::new(false),
            expired: AtomicBool::new(false),
            cancel,
            spoiled,
            last_ns: AtomicU64::new(0),
        };
        Self { slot: Arc::new(slot), workers, asked: false, late: false, mask: None }
    }

    /// Starts computing the first mask in the background. Later calls do nothing.
    pub fn begin(&mut self) -> Result<()> {
        if !self.asked {
            self.workers.put(self.slot.clone())?;
            self.asked = true;
        }
        Ok(())
    }

    /// Waits for the mask of tokens allowed after those pushed so far. Fails if the grammar needs more steps
    /// than a mask may take; the request cannot continue then.
    pub fn mask(&mut self) -> Result<&Mask> {
        self.begin()?;
        if self.mask.is_none() {
            self.mask = self.wait(u64::MAX);
        }
        match &self.mask {
            Some(Ok(mask)) => Ok(mask),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Error::internal("a mask went missing")),
        }
    }

    /// Returns true if the mask after the last token, or its error, is ready; waits for it until `until_ns`
    /// of the monotonic clock.
    pub fn is_ready(&mut self, until_ns: u64) -> bool {
        if self.asked && self.mask.is_none() {
            self.mask = self.wait(until_ns);
            self.late |= self.mask.is_none();
        }
        !self.asked || self.mask.is_some()
    }

    /// Returns true if the next mask is expected to be slow and is not ready yet.
    pub fn is_late(&mut self) -> bool {
        self.late && !self.is_ready(0)
    }

    /// Returns true if the last mask was slow.
    pub fn is_slow(&self) -> bool {
        self.slot.last_ns() > SLOW_NS
    }

    /// Waits for the mask until `until_ns`.
    fn wait(&self, until_ns: u64) -> Option<Result<Mask>> {
        let started = now_ns();
        let mut made = self.slot.made.lock();
        let made = loop {
            if made.is_some() {
                break made.take();
            }
            let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
            if !left.is_zero() {
                made = self.slot.done.wait_for(made, PATROL.min(left));
            }
            if made.is_none() {
                drop(made);
                self.workers.expire();
                made = self.slot.made.lock();
            }
            if left.is_zero() {
                break made.take();
            }
        };
        self.workers.totals.waited(now_ns().saturating_sub(started));
        made
    }

    /// Consumes a token that the mask allowed, and starts computing the next mask.
    pub fn push(&mut self, token: u32) -> Result<()> {
        self.mask()?;
        self.mask = None;
        self.late = self.is_slow();
        let mut inner = self.slot.inner.lock();
        reserve(&mut inner.output, 1, "output tokens")?;
        inner.output.push(token);
        drop(inner);
        self.workers.put(self.slot.clone())
    }
}

impl Drop for Guide {
    fn drop(&mut self) {
        self.slot.abandon();
    }
}
