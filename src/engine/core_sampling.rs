//! A step's tokens: each sequence draws its own, on all threads.

use super::super::sequence::Drawn;
use super::*;
use crate::kernels::Pool;
use crate::kernels::gemm::blocks::SharedOut;
use crate::ops::Draws;
use crate::text::Tokenizer;

/// A sequence that draws tokens from its rows of the logits, while it is away from `Core::sequences`.
pub struct Draw {
    /// Its entry in the plan, and the place of that.
    pub(super) entry: PlanEntry,
    pub(super) at: usize,
    pub(super) sequence: Box<Sequence>,
    /// The first of its rows of the step's logits.
    row: usize,
    /// Tokens of its output before.
    pub(super) known: usize,
    /// Tokens drawn.
    drawn: u32,
    /// The time since the last token, as `Sequence::advance` says; those of one step come together.
    pub(super) gap: Result<u64>,
}

/// Samplers of an engine whose operations run on `threads`.
pub fn sampler_count(max_batch_size: u32, threads: usize) -> usize {
    threads.min(max_batch_size as usize)
}

/// Adds how tokens are drawn from the rows of `entry` that give logits.
pub fn draw_there(sequence: &mut Sequence, entry: &PlanEntry, vocab: usize, draws: &mut Draws) -> Result<()> {
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

/// One for each thread that may sample, for rows of `vocab` logits.
pub fn samplers(
    config: &EngineConfig,
    backend: &Backend,
    vocab: usize,
    max_sequence: usize,
) -> Result<Vec<Sampler>> {
    let (mut samplers, count) = (Vec::new(), sampler_count(config.max_batch_size, backend.pool.threads()));
    reserve(&mut samplers, count, BATCH)?;
    for _ in 0..count {
        samplers.push(Sampler::new(vocab, max_sequence, backend.isa)?);
    }
    Ok(samplers)
}

/// What was drawn where the logits lay.
#[derive(Clone, Copy)]
struct There<'a> {
    batch: &'a RaggedBatch,
    tokens: &'a [i32],
    reports: &'a [u64],
}

impl<'a> There<'a> {
    /// What was drawn from row `row` of the logits, `own`.
    fn drawn(&self, row: usize, own: &'a mut [f32]) -> Result<Drawn<'a>> {
        let draw = self.batch.draws.rows.get(row).copied().flatten();
        let (Some(draw), Some(token)) = (draw, self.tokens.get(row)) else { return Ok(Drawn::From(own)) };
        let report = draw.report.map(|report| report.read(self.reports)).transpose()?;
        Ok(Drawn::Already(*token, report))
    }
}

impl Draw {
    /// Of the logits from `row` on.
    pub(super) fn new(entry: PlanEntry, at: usize, sequence: Box<Sequence>, row: usize) -> Self {
        let known = sequence.output.len();
        Self { entry, at, sequence, row, known, drawn: 0, gap: Ok(0) }
    }

    pub fn into_sequence(self) -> Box<Sequence> {
        self.sequence
    }

    /// Looks up how likely the prompt is, and draws a token from the last row of `logits` (`[entry.logits, vocab]`) before
    /// those of drafts, and from each of these as long as what was drawn is what was drafted.
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
        let own = rows - 1 - self.entry.drafts as usize;
        for (n, row) in logits.chunks_exact_mut(vocab).skip(own).enumerate() {
            let row = there.drawn(self.row + own + n, row)?;
            let since = self.sequence.advance(row, sampler, tokenizer, now)?;
            gap = if n == 0 { since } else { gap };
            self.drawn += 1;
            let stands = self.sequence.drafted().get(n) == self.sequence.output.last();
            if !stands || self.sequence.finished() != FinishReason::None {
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
        let mut rows = 0;
        for (at, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.logits > 0) {
            let place = &mut self.sequences[entry.seq.0 as usize];
            if place.as_ref().is_none_or(|s| s.hidden_wanted(entry).is_some()) {
                continue;
            }
            let row = rows;
            rows += entry.logits as usize;
            let Some(mut sequence) = place.take_if(|s| entry.sample || s.scores()) else { continue };
            if entry.sample && sequence.generates() {
                sequence.begin_token(&mut self.outbox.spare);
            }
            self.draws.push(Draw::new(*entry, at, sequence, row));
        }
        let Self { shared, backend, samplers, draws, outputs, batch, .. } = self;
        let there = There { batch, tokens: &outputs.tokens, reports: &outputs.reports };
        let (vocab, tokenizer) = (shared.loaded.model.facts().vocab_size, shared.loaded.tokenizer.as_deref());
        on_all_threads(
            &backend.pool,
            samplers,
            draws,
            &mut outputs.logits,
            vocab,
            &|draw, logits, sampler| draw.run(logits, there, sampler, tokenizer, now),
        );
        for Draw { at, mut sequence, known, drawn, mut gap, .. } in self.draws.drain(..) {
            let entry = &mut entries[at];
            entry.accepted = drawn.saturating_sub(1);
            if entry.sample && !sequence.generates() && gap.is_ok() {
                gap = sequence.scored(&mut self.outbox.spare, now).map(|()| 0);
            }
            let ended = sequence.finished() != FinishReason::None;
            if let Some(drafts) = &mut sequence.drafts {
                drafts.verified(entry.drafts, entry.accepted, ended);
            }
            let event = if gap.is_ok() { sequence.event_to_send() } else { None };
            let seq = entry.seq;
            self.sequences[seq.0 as usize] = Some(sequence);
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
                Err(error) => self.ended.push((seq, Some((FinishReason::Failed, error)))),
            }
        }
    }
}

/// What is done with a draw and its rows of logits.
type Each<'a> = dyn Fn(&mut Draw, &mut [f32], &mut Sampler) -> Result<u64> + Sync + 'a;

/// Does `each`, whose result becomes the `gap`, for all of `draws`: each sampler serves every so many-th.
pub(super) fn on_all_threads(
    pool: &Pool,
    samplers: &mut [Sampler],
    draws: &mut [Draw],
    logits: &mut [f32],
    vocab: usize,
    each: &Each,
) {
    let (count, step) = (draws.len(), samplers.len().min(draws.len()));
    let (samplers, draws, logits) = (SharedOut::new(samplers), SharedOut::new(draws), SharedOut::new(logits));
    pool.run_if_worth(count * vocab, step, &|task| {
        for n in (task..count).step_by(step) {
            // SAFETY: no two tasks have a sampler, a draw or a row of logits in common: each draw has its own.
            let (sampler, draw) =
                unsafe { (&mut samplers.slice(task..task + 1)[0], &mut draws.slice(n..n + 1)[0]) };
            // SAFETY: as above.
            let logits =
                unsafe { logits.slice(draw.row * vocab..(draw.row + draw.entry.logits as usize) * vocab) };
            draw.gap = panics::catch(|| each(draw, logits, sampler))
                .unwrap_or_else(|text| Err(Error::internal(format!("sampling panicked: {text}"))));
        }
    });
}
