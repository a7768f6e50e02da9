//! Draws the tokens of a step: each sequence draws its own, on all threads.

use super::*;
use crate::constrain::SLOW_NS;
use crate::engine::request::drawing::Drawn;
use crate::kernels::Pool;
use crate::kernels::gemm::blocks::SharedOut;
use crate::ops::Draws;
use crate::sample::Sampler;
use crate::text::Tokenizer;

/// A sequence that draws tokens from its rows of logits. It is taken out of `Core::sequences` meanwhile.
pub(crate) struct Draw {
    /// Its entry in the plan, and the index of that entry.
    pub(super) entry: PlanEntry,
    pub(super) at: usize,
    pub(super) sequence: Box<Sequence>,
    /// Index of its first row in the step's logits.
    row: usize,
    /// Length of its output before the draw.
    pub(super) known: usize,
    /// Number of tokens drawn.
    drawn: u32,
    /// Time since the last token in nanoseconds, see `Sequence::advance`. All tokens of one step arrive together.
    pub(super) gap: Result<u64>,
}

/// Appends the draws that the device makes for the logits rows of `entry`; None for a row without one.
pub(crate) fn draw_there(
    sequence: &mut Sequence,
    entry: &PlanEntry,
    vocab: usize,
    draws: &mut Draws,
) -> Result<()> {
    let own = entry.logits.saturating_sub(1 + entry.drafts);
    reserve(&mut draws.rows, entry.logits as usize, "a step's rows")?;
    for row in 0..entry.logits {
        let draw = match row.checked_sub(own) {
            Some(n) if entry.sample => sequence.draw_there(n as usize, vocab, draws)?,
            _ => None,
        };
        draws.rows.push(draw);
    }
    Ok(())
}

/// Tokens and reports that were drawn on the device.
#[derive(Clone, Copy)]
struct There<'a> {
    batch: &'a RaggedBatch,
    tokens: &'a [i32],
    reports: &'a [u64],
}

impl<'a> There<'a> {
    /// Returns the token drawn on the device from logits row `row`, or else the row `own` itself.
    fn drawn(&self, row: usize, own: &'a mut [f32]) -> Result<Drawn<'a>> {
        let draw = self.batch.draws.rows.get(row).copied().flatten();
        let (Some(draw), Some(token)) = (draw, self.tokens.get(row)) else { return Ok(Drawn::From(own)) };
        let report = draw.report.map(|report| report.read(self.reports)).transpose()?;
        Ok(Drawn::Already(*token, report))
    }
}

impl Draw {
    /// A draw from the logits rows that begin at `row`.
    pub(super) fn new(entry: PlanEntry, at: usize, sequence: Box<Sequence>, row: usize) -> Self {
        let known = sequence.output.len();
        Self { entry, at, sequence, row, known, drawn: 0, gap: Ok(0) }
    }

    pub(crate) fn into_sequence(self) -> Box<Sequence> {
        self.sequence
    }

    /// Scores the prompt, then draws a token from the row of `logits` (`[entry.logits, vocab]`) that precedes the
    /// rows of drafts. Then draws from those rows, one after the other, as long as each drawn token equals the
    /// draft. Returns the time since the last token in nanoseconds.
    fn run(
        &mut self,
        logits: &mut [f32],
        there: There,
        sampler: &mut Sampler,
        tokenizer: Option<&Tokenizer>,
        now: u64,
    ) -> Result<u64> {
        let (rows, mut gap) = (self.entry.logits as usize, 0);
        let vocab = logits.len() / rows;
        self.sequence.score(&self.entry, logits, sampler)?;
        if !self.entry.sample || !self.sequence.generates() {
            return Ok(0);
        }
        let (own, until_ns) = (rows - 1 - self.entry.drafts as usize, now.saturating_add(SLOW_NS));
        for (n, row) in logits.chunks_exact_mut(vocab).skip(own).enumerate() {
            // A draft whose mask is late is left to a later step.
            if n > 0 && !self.sequence.guide().is_none_or(|guide| guide.is_ready(until_ns)) {
                break;
            }
            let row = there.drawn(self.row + own + n, row)?;
            let since = self.sequence.advance(row, sampler, tokenizer, now)?;
            gap = if n == 0 { since } else { gap };
            self.drawn += 1;
            let stands = self.sequence.drafted().get(n) == self.sequence.output.last();
            if !stands || self.sequence.writer.finished() != FinishReason::None {
                break;
            }
        }
        Ok(gap)
    }
}

impl Core {
    pub(super) fn sample(&mut self, entries: &mut [PlanEntry]) {
        let now = now_ns();
        self.record.done_ns = now;
        let (mut rows, until_ns) = (0, now.saturating_add(SLOW_NS));
        for (at, entry) in entries.iter_mut().enumerate().filter(|(_, entry)| entry.logits > 0) {
            let Some(sequence) = self.sequences.get_mut(entry.seq) else { continue };
            if sequence.hidden_wanted(entry).is_some() {
                continue;
            }
            let row = rows;
            rows += entry.logits as usize;
            let guide = sequence.guide().filter(|_| entry.sample);
            entry.late = guide.is_some_and(|guide| !guide.is_ready(until_ns));
            if entry.late || !entry.sample && !sequence.scores() {
                continue;
            }
            if entry.sample && sequence.generates() {
                sequence.writer.begin(sequence.id, &mut self.outbox.spare);
            }
            let Some(sequence) = self.sequences.lend(entry.seq) else { continue };
            self.sampling.draws.push(Draw::new(*entry, at, sequence, row));
        }
        let Self { shared, backend, sampling, outputs, batch, .. } = self;
        let there = There { batch, tokens: &outputs.tokens, reports: &outputs.reports };
        let (vocab, tokenizer) = (shared.loaded.model.facts().vocab_size, shared.loaded.tokenizer.as_deref());
        sampling.run(&backend.pool, &mut outputs.logits, vocab, &|draw, logits, sampler| {
            draw.run(logits, there, sampler, tokenizer, now)
        });
        for Draw { at, mut sequence, known, drawn, mut gap, .. } in self.sampling.draws.drain(..) {
            let entry = &mut entries[at];
            entry.accepted = drawn.saturating_sub(1);
            if entry.sample && !sequence.generates() && gap.is_ok() {
                gap = sequence.scored(&mut self.outbox.spare, now).map(|()| 0);
            }
            let ended = sequence.writer.finished() != FinishReason::None;
            if let Some(drafts) = &mut sequence.drafts {
                drafts.verified(entry.drafts, entry.accepted, ended);
            }
            let event = if gap.is_ok() { sequence.writer.event_to_send() } else { None };
            let seq = entry.seq;
            self.sequences.put_back(sequence);
            match gap {
                Ok(gap) => {
                    self.record
                        .gaps
                        .extend((0..drawn).map(|n| if n == 0 { (known == 0, gap) } else { (false, 0) }));
                    self.outbox.events.extend(event.map(|event| (seq.0, event)));
                    if ended {
                        self.ended.push((seq, None));
                    }
                }
                Err(error) => self.ended.push((seq, Some(failed(error)))),
            }
        }
    }
}

/// A function that works on a draw and its rows of logits.
type Each<'a> = dyn Fn(&mut Draw, &mut [f32], &mut Sampler) -> Result<u64> + Sync + 'a;

/// Draws, and the samplers that serve them.
pub(super) struct Sampling {
    /// One for each thread that may sample.
    samplers: Vec<Sampler>,
    pub draws: Vec<Draw>,
}

impl Sampling {
    /// Creates the samplers for rows of `vocab` logits.
    pub(super) fn new(
        config: &EngineConfig,
        backend: &Backend,
        vocab: usize,
        max_sequence: usize,
    ) -> Result<Self> {
        let (mut samplers, mut draws, count) = (Vec::new(), Vec::new(), backend.samplers(config));
        reserve(&mut samplers, count, BATCH)?;
        reserve(&mut draws, config.max_batch_size as usize, BATCH)?;
        for _ in 0..count {
            samplers.push(Sampler::new(vocab, max_sequence, backend.isa)?);
        }
        Ok(Self { samplers, draws })
    }

    /// Calls `each` for all draws, on all threads, and stores the result as `gap`. With n samplers, each one serves
    /// every nth draw.
    pub(super) fn run(&mut self, pool: &Pool, logits: &mut [f32], vocab: usize, each: &Each) {
        let Self { samplers, draws } = self;
        let (count, step) = (draws.len(), samplers.len().min(draws.len()));
        let (samplers, draws, logits) =
            (SharedOut::new(samplers), SharedOut::new(draws), SharedOut::new(logits));
        pool.run_if_worth(count * vocab, step, &|task| {
            for n in (task..count).step_by(step) {
                // SAFETY: no two tasks have a sampler, a draw or a row of logits in common: each draw has its own.
                let (sampler, draw) =
                    unsafe { (&mut samplers.slice(task..task + 1)[0], &mut draws.slice(n..n + 1)[0]) };
                // SAFETY: as above.
                let logits = unsafe {
                    logits.slice(draw.row * vocab..(draw.row + draw.entry.logits as usize) * vocab)
                };
                draw.gap = panics::checked("sampling", || each(draw, logits, sampler));
            }
        });
    }
}
