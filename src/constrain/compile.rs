//! Compiles a constraint into parsers at the start of an output.

use super::products;
use super::queue::CompileSlot;
use super::read::Read;
use super::source::{Constraint, refused, timed_out};
use super::vocabulary::{STACK, Vocabulary};
use crate::base::clock::now_ns;
use crate::base::sync::{Condvar, Mutex};
use crate::base::{Error, Result, Status, panics, threads};
use crate::text::watch::{self, Watch};
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::derivre::ExprRef;
use llguidance::derivre::raw::ExprSet;
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, TokenParser};
use std::sync::Arc;
use std::time::Duration;

/// Limits of one compilation: CPU time (reading a constraint may take as much again) and hash tables made. A
/// schema of 200 patterns makes 160,000 tables.
const MOST_NS: u64 = 2_000_000_000;
/// CPU time for reading a constraint that looks small. If it takes longer, it is read again in a slot for
/// large compilations.
const SMALL_READ_NS: u64 = 20_000_000;
const MOST_TABLES: u64 = 250_000;
/// Time a caller waits for a step that makes no table, after its compilation should have stopped.
const GRACE_NS: u64 = 500_000_000;

/// Memory of a compilation: a base, a share for each byte of the text and each step counted in it, and a
/// share for each lexer step (`initial_lexer_fuel`), of which at most 320 bytes were measured.
const BASE_BYTES: u64 = 16 << 20;
const BYTES_PER_BYTE: u64 = 384;
const BYTES_PER_STEP: u64 = 300;
const BYTES_PER_FUEL: u64 = 400;
const LEAST_FUEL: u64 = 20_000;

/// A checked constraint, and the limits of its compilation.
pub(super) struct Job {
    vocabulary: Arc<Vocabulary>,
    read: Read,
    /// Bytes of the constraint's text.
    text: usize,
    /// Number of parsers to make, each with its own lexer.
    copies: usize,
}

/// The result of a compilation.
pub(super) struct Made {
    /// Parsers at the start of an output, each with its own lexer.
    pub parsers: Vec<TokenParser>,
    /// Bytes of each parser without its lexer's states, for `weigh`.
    pub size: usize,
}

/// Bytes per byte of text (names, literals and sets), bytes per symbol of the grammar, and copies of each
/// regular expression.
const TEXT_BYTES: usize = 10;
const SYMBOL_BYTES: usize = 384;
const REGEX_COPIES: usize = 3;

/// Result slot on which the caller waits for its thread.
struct Answer {
    made: Mutex<Option<Result<Made>>>,
    done: Condvar,
}

fn no_room(least: u64, free: u64) -> Error {
    let message = format!("constraint: compiling it may take {least} bytes, and {free} are free");
    Error::new(Status::OutOfMemory, message)
}

impl Job {
    /// Reads `constraint` in `slot`, to make `copies` parsers, and returns the slot in which to
    /// compile it. `room` is the number of bytes this process may still allocate. Fails with
    /// `InvalidArgument` if the constraint is wrong or too complex, `TimedOut` after `until_ns`,
    /// `OutOfMemory`, or as `CompileQueue::enter` does.
    pub(super) fn read(
        vocabulary: &Arc<Vocabulary>,
        constraint: &Constraint,
        copies: usize,
        room: Option<u64>,
        slot: CompileSlot,
        until_ns: u64,
    ) -> Result<(Self, CompileSlot)> {
        let text = constraint.text.len();
        let least = BASE_BYTES + text as u64 * BYTES_PER_BYTE;
        if let Some(free) = room.filter(|&room| room < least) {
            return Err(no_room(least, free));
        }
        let (mut slot, mut read) = (slot, None);
        if !slot.is_large() {
            read = Read::of(constraint, &slot, SMALL_READ_NS, until_ns)?;
        }
        if read.is_none() {
            slot = slot.grown(MOST_NS, until_ns)?;
            read = Read::of(constraint, &slot, MOST_NS, until_ns)?;
        }
        let job = Self { vocabulary: vocabulary.clone(), read: read.ok_or_else(late)?, text, copies };
        let slot = slot.grown(job.expected_ns(), until_ns)?;
        Ok((job, slot))
    }

    /// Estimated time in nanoseconds to read `constraint`, judged by its length; compiling it takes as long
    /// or longer.
    pub(super) fn reading_ns(constraint: &Constraint) -> u64 {
        constraint.text.len() as u64 * 3_000
    }

    /// Estimated time of the compilation in nanoseconds.
    fn expected_ns(&self) -> u64 {
        self.read.steps * 2_000 + self.text as u64 * 3_000
    }

    /// Makes the parsers on a thread of its own, in `slot`. `room` is the number of bytes this
    /// process may still allocate.
    ///
    /// Fails with `InvalidArgument` and llguidance's reason, or if it takes too long; `TimedOut` after
    /// `until_ns`; `OutOfMemory` if memory is short.
    pub(super) fn run(self, slot: CompileSlot, room: Option<u64>, until_ns: u64) -> Result<Made> {
        let least = BASE_BYTES + self.text as u64 * BYTES_PER_BYTE + self.read.steps * BYTES_PER_STEP;
        let mut limits = self.vocabulary.factory.limits().clone();
        let most = least + limits.initial_lexer_fuel * BYTES_PER_FUEL;
        let least = least + LEAST_FUEL * BYTES_PER_FUEL;
        let claimed = slot.claim(room.unwrap_or(u64::MAX), most);
        if claimed < least {
            return Err(no_room(least, claimed));
        }
        limits.initial_lexer_fuel -= (most - claimed) / BYTES_PER_FUEL;
        let watch = Arc::new(Watch::new(until_ns, MOST_NS, MOST_TABLES));
        slot.begin(&watch);
        let answer = Arc::new(Answer { made: Mutex::new(None), done: Condvar::new() });
        let (queue, theirs, own) = (slot.queue(), answer.clone(), watch.clone());
        let thread = threads::spawn_on_stack("bn-grammar".into(), STACK, move || {
            // llguidance reports its own panics as errors; this catches those of the code around it.
            let made = panics::catch(|| watch::run(&own, || self.compile(&limits)));
            let made = made.unwrap_or_else(|_| Err(refused("it is beyond what llguidance can compute")));
            let made = if own.is_over() { made.map_err(|_| late()) } else { made };
            // Free the slot before the caller gets the result.
            drop(slot);
            *theirs.made.lock() = Some(made);
            theirs.done.notify_all();
        })?;
        CompileSlot::runs_on(&queue, thread);
        let made = answer.wait(&watch, until_ns);
        // If the queue has closed, report that instead of the error it caused.
        made.or_else(|error| queue.open().and(Err(error)))
    }

    fn compile(mut self, limits: &ParserLimits) -> Result<Made> {
        let grammars = std::mem::take(&mut self.read.grammars);
        let grammar = GrammarInit::Serialized(TopLevelGrammar { grammars, max_tokens: None });
        let factory = &self.vocabulary.factory;
        let tokens = Some(factory.tok_env().clone());
        let (grammar, lexer) = grammar.to_internal(tokens, limits.clone()).map_err(reason)?;
        check(limits, &lexer)?;
        let regexes = lexer.regex_builder.exprset().num_bytes();
        let size = TEXT_BYTES * self.text + SYMBOL_BYTES * grammar.num_symbols() + REGEX_COPIES * regexes;
        let grammar = GrammarInit::Internal(grammar, lexer);
        let (silent, plain) = (Logger::new(0, 0), InferenceCapabilities::default());
        let made = factory.create_parser_from_init_ext(grammar, silent, plain, limits.clone());
        let mut parser = made.map_err(reason)?;
        parser.start_without_prompt();
        let mut parsers: Vec<TokenParser> = (1..self.copies).map(|_| parser.deep_clone()).collect();
        parsers.push(parser);
        Ok(Made { parsers, size })
    }
}

impl Answer {
    fn wait(&self, watch: &Watch, until_ns: u64) -> Result<Made> {
        let mut made = self.made.lock();
        loop {
            if let Some(made) = made.take() {
                return match made {
                    Err(_) if watch.is_over() && now_ns() >= until_ns => Err(timed_out()),
                    made => made,
                };
            }
            let now = now_ns();
            if watch.over_since(now).is_some_and(|ns| ns >= GRACE_NS) {
                watch.stop();
                return Err(if now >= until_ns { timed_out() } else { late() });
            }
            made = self.done.wait_for(made, Duration::from_millis(100));
        }
    }
}

pub(super) fn late() -> Error {
    refused("compiling it takes too long")
}

/// Limit on a lexeme's weight, roughly its nodes and bytes.
const MOST_WEIGHT: u32 = 50_000;
/// Limit on nested expressions that match the empty text, as in `a?a?a?`: one derivative of n takes 2 n^2 bytes, which
/// llguidance does not bound.
const MOST_NULLABLE: u32 = 2_000;

/// llguidance computes a lexer's first transitions without a limit. Compute them here first, under a limit.
fn check(limits: &ParserLimits, spec: &LexerSpec) -> Result<()> {
    if nullable(spec.regex_builder.exprset()) > MOST_NULLABLE {
        return Err(refused("a terminal has too many optional parts in a row"));
    }
    products::check(spec.regex_builder.exprset())?;
    let mut limits = limits.clone();
    let mut lexer = spec.to_regex_vec(&mut limits).map_err(reason)?;
    let all = spec.all_lexemes();
    if let Some(heavy) = all.iter().find(|lexeme| lexer.lexeme_weight(*lexeme) > MOST_WEIGHT) {
        let shown: String = spec.lexeme_def_to_string(heavy).chars().take(80).collect();
        return Err(refused(format!("a terminal is too large: {shown}")));
    }
    lexer.set_fuel(limits.initial_lexer_fuel);
    let start = lexer.initial_state(&all);
    for byte in 0..=255 {
        lexer.transition(start, byte);
    }
    match lexer.get_error() {
        None => Ok(()),
        Some(why) => Err(refused(format!("its terminals are too complex: {why}"))),
    }
}

/// Nesting depth of expressions that match the empty text.
fn nullable(exprs: &ExprSet) -> u32 {
    // Arguments have lower numbers than the expressions that they belong to; 0 is none.
    let mut depths = vec![0];
    for id in 1..exprs.len() {
        let expr = ExprRef::new(id as u32);
        let below = exprs.get_args(expr).iter().map(|arg| depths[arg.as_usize()]).max();
        depths.push(below.unwrap_or(0) + u32::from(exprs.is_nullable(expr)));
    }
    depths.into_iter().max().unwrap_or(0)
}

/// llguidance's error message, without the parser's state.
pub(super) fn reason(error: impl std::fmt::Display) -> Error {
    let text = format!("{error:#}");
    let end =
        ["\n<state>", "\n<non-verbose/>", "\n<backtrace>"].iter().filter_map(|mark| text.find(mark)).min();
    let text = text[..end.unwrap_or(text.len())].replace(" without 'referencing' feature", "");
    // llguidance's name for a position where no token is allowed.
    refused(if text == "NoExtensionBias" { "no token matches here" } else { &text })
}
