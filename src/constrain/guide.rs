//! A request's state in its grammar, and the mask of tokens allowed next.

use super::compile::reason;
use super::script::{Script, Task};
use super::source::refused;
use super::weigh::{Weight, parser_bytes};
use super::workers::Workers;
use crate::base::clock::now_ns;
use crate::base::sync::{Condvar, Mutex};
use crate::base::{Error, Result, panics};
use llguidance::api::StopReason;
use llguidance::toktrie::{SimpleVob, TokTrie};
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
pub(super) struct Shared {
    /// A parser at the start of an output whose lexer is never run.
    pub fresh: Arc<TokenParser>,
    /// Set once one of the grammar's lexers has failed: the grammar is not used again.
    pub spoiled: Arc<AtomicBool>,
    pub weight: Arc<Weight>,
    /// See `Made`.
    pub size: usize,
}

/// State shared between a guide and the worker that computes its masks.
pub(super) struct MaskSlot {
    /// A worker holds this lock while it computes.
    inner: Mutex<Inner>,
    script: Mutex<Script>,
    /// Notified, with `script`, when a mask is ready.
    done: Condvar,
    abandoned: AtomicBool,
    /// A mask took too long: no more will be computed.
    expired: AtomicBool,
    /// The mask that is being computed is after a draft.
    ahead: AtomicBool,
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
    /// Number of tokens that the parser has consumed.
    consumed: usize,
    /// How many of the consumed tokens, at the end, are no longer in `output`.
    rejected: usize,
    /// Whether the parser can roll tokens back; None before the first attempt.
    rewinds: Option<bool>,
    /// A mask after a draft has failed, and the parser with it.
    failed_ahead: bool,
}

/// Result of computing the mask after a draft.
enum Ahead {
    Made(Result<Mask>),
    /// The grammar does not allow the draft, or the draft is of a kind that is not tried.
    Refused,
}

impl Inner {
    /// Copies the tokens before a task to `output`.
    fn follow(&mut self, task: Task, script: &mut Script) -> Result<()> {
        self.rejected = self.consumed.saturating_sub(task.same).max(self.rejected);
        script.copy(task, &mut self.output)
    }

    /// If a shared lexer fails, perhaps because of another request, retries once from the start with a
    /// private lexer.
    fn next(&mut self, slot: &MaskSlot) -> Result<Mask> {
        if self.failed_ahead {
            self.start_over(slot)?;
            return self.attempt(slot);
        }
        let made = self.attempt(slot);
        if slot.is_over() || made.is_ok() || self.fresh.is_none() {
            return made;
        }
        slot.spoiled.store(true, Ordering::Relaxed);
        self.start_over(slot)?;
        self.attempt(slot)
    }

    /// Goes back to the start, with a lexer of its own.
    fn start_over(&mut self, slot: &MaskSlot) -> Result<()> {
        let Some(fresh) = self.fresh.take() else { return Ok(()) };
        self.parser = fresh.deep_clone();
        (self.consumed, self.rejected, self.failed_ahead) = (0, 0, false);
        self.weight = Arc::new(self.weight.alone(&self.parser, self.size)?);
        self.number = 0;
        slot.may_cancel(&mut self.parser);
        Ok(())
    }

    /// Computes the mask after the last token, which is a draft. If this fails, the request does not: no more
    /// masks are computed after drafts, and the next mask is computed with a lexer that this one has not touched.
    fn ahead(&mut self) -> Ahead {
        if self.fresh.is_none() || self.failed_ahead {
            return Ahead::Refused;
        }
        let made = panics::catch(|| match self.allows_draft()? {
            true => self.advance().map(|mask| Ahead::Made(Ok(mask))),
            false => Ok(Ahead::Refused),
        });
        match made {
            Ok(Ok(ahead)) => ahead,
            _ => {
                self.failed_ahead = true;
                Ahead::Refused
            }
        }
    }

    fn take_back(&mut self) -> Result<()> {
        self.parser.rollback(self.rejected).map_err(reason)?;
        (self.consumed, self.rejected) = (self.consumed - self.rejected, 0);
        Ok(())
    }

    /// Whether the grammar allows the last token. Control and end tokens are not tried: the parser counts their bytes
    /// differently, so they could not be rolled back.
    fn allows_draft(&mut self) -> Result<bool> {
        let rewinds = *self.rewinds.get_or_insert_with(|| self.parser.parser.rollback(0).is_ok());
        self.take_back()?;
        let next = rewinds && self.consumed + 1 == self.output.len();
        let Some(&draft) = self.output.last().filter(|_| next) else { return Ok(false) };
        let trie = self.parser.token_env.tok_trie();
        let first = if (draft as usize) < trie.vocab_size() { trie.token(draft).first() } else { None };
        let plain = first.is_some_and(|byte| *byte != TokTrie::SPECIAL_TOKEN_MARKER);
        if !plain || trie.eos_tokens().contains(&draft) {
            return Ok(false);
        }
        self.parser.validate_token(draft).map_err(reason)
    }

    fn attempt(&mut self, slot: &MaskSlot) -> Result<Mask> {
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
        self.take_back()?;
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

/// Result of a worker's run on a slot.
#[derive(Clone, Copy, Default)]
pub(super) struct Ran {
    /// A mask was computed.
    pub masked: bool,
    /// Another mask is wanted.
    pub again: bool,
}

impl MaskSlot {
    /// Runs on a worker: computes the next mask, if one is wanted.
    pub(super) fn run(&self) -> Ran {
        let started = now_ns();
        let mut inner = self.inner.lock();
        let mut script = self.script.lock();
        let Some(task) = script.next().filter(|_| !self.is_abandoned()) else {
            script.busy = false;
            return Ran::default();
        };
        let begun = inner.follow(task, &mut script);
        self.ahead.store(task.ahead, Ordering::Relaxed);
        drop(script);
        let made = match (begun, task.ahead) {
            (Ok(()), true) => inner.ahead(),
            (Ok(()), false) => Ahead::Made(inner.next(self)),
            (Err(error), _) => Ahead::Made(Err(error)),
        };
        let goes_on = !inner.failed_ahead;
        drop(inner);
        let mut script = self.script.lock();
        let masked = match made {
            Ahead::Made(mask) => {
                self.last_ns.store(now_ns().saturating_sub(started), Ordering::Relaxed);
                script.add(task, mask)
            }
            Ahead::Refused => {
                script.refuse(task, goes_on);
                false
            }
        };
        script.busy = script.next().is_some() && !self.is_abandoned();
        let again = script.busy;
        drop(script);
        self.done.notify_one();
        Ran { masked, again }
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Returns true if no more masks will be computed.
    fn is_over(&self) -> bool {
        self.is_abandoned() || self.expired.load(Ordering::Relaxed)
    }

    /// Duration of the last mask's computation, 0 before the first.
    pub(super) fn last_ns(&self) -> u64 {
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

    /// Called when the mask takes too long. A mask after a draft is dropped, and the request goes on.
    pub(super) fn expire(&self) {
        if !self.ahead.load(Ordering::Relaxed) {
            self.expired.store(true, Ordering::Relaxed);
        }
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
    slot: Arc<MaskSlot>,
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
        let inner = Inner {
            parser,
            fresh: Some(fresh),
            weight,
            number,
            size,
            output: Vec::new(),
            consumed: 0,
            rejected: 0,
            rewinds: None,
            failed_ahead: false,
        };
        let slot = MaskSlot {
            inner: Mutex::new(inner),
            script: Mutex::new(Script::new()),
            done: Condvar::new(),
            abandoned: AtomicBool::new(false),
            expired: AtomicBool::new(false),
            ahead: AtomicBool::new(false),
            cancel,
            spoiled,
            last_ns: AtomicU64::new(0),
        };
        Self { slot: Arc::new(slot), workers, asked: false, late: false, mask: None }
    }

    /// Starts computing the first mask in the background. Later calls do nothing.
    pub fn begin(&mut self) -> Result<()> {
        if !self.asked {
            self.ask()?;
            self.asked = true;
        }
        Ok(())
    }

    /// Queues the slot for a worker if a mask is wanted.
    fn ask(&self) -> Result<()> {
        let mut script = self.slot.script.lock();
        let idle = !script.busy && script.next().is_some();
        script.busy |= idle;
        drop(script);
        let put = if idle { self.workers.put(self.slot.clone()) } else { Ok(()) };
        if put.is_err() {
            self.slot.script.lock().busy = false;
        }
        put
    }

    /// Starts computing the masks after `drafts`, in case these tokens come next. The call changes neither the
    /// masks nor which requests fail.
    pub fn look_ahead(&mut self, drafts: &[u32]) -> Result<()> {
        self.slot.script.lock().expect(drafts)?;
        if self.asked { self.ask() } else { Ok(()) }
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
        let mut script = self.slot.script.lock();
        let made = loop {
            if let Some(made) = script.take() {
                break Some(made);
            }
            let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
            if !left.is_zero() {
                script = self.slot.done.wait_for(script, PATROL.min(left));
                if let Some(made) = script.take() {
                    break Some(made);
                }
            }
            drop(script);
            self.workers.expire();
            script = self.slot.script.lock();
            if left.is_zero() {
                break script.take();
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
        self.slot.script.lock().push(token)?;
        self.ask()
    }
}

impl Drop for Guide {
    fn drop(&mut self) {
        self.slot.abandon();
    }
}
