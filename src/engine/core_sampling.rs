//! A step's tokens: each sequence draws its own, on all threads.

use super::*;
use crate::kernels::gemm::blocks::SharedOut;

/// A sequence that draws a token from a row of the logits, while it is away from `Core::sequences`.
pub struct Draw {
    seq: SeqId,
    sequence: Box<Sequence>,
    /// Of the step's logits.
    row: usize,
    /// Before its first token.
    first: bool,
    /// The time since the last token, as `Sequence::advance` says.
    gap: Result<u64>,
}

/// Samplers of an engine whose operations run on `threads`.
pub fn sampler_count(max_batch_size: u32, threads: usize) -> usize {
    threads.min(max_batch_size as usize)
}

impl Draw {
    pub fn into_sequence(self) -> Box<Sequence> {
        self.sequence
    }
}

impl Core {
    pub(super) fn sample(&mut self, entries: &[PlanEntry]) {
        let now = now_ns();
        self.record.done_ns = now;
        let mut rows = 0;
        for entry in entries.iter().filter(|entry| entry.logits > 0) {
            let place = &mut self.sequences[entry.seq.0 as usize];
            let generates = |s: &Box<Sequence>| s.hidden_wanted(entry).is_none();
            if !place.as_ref().is_some_and(generates) {
                continue;
            }
            rows += entry.logits as usize;
            let Some(mut sequence) = place.take_if(|_| entry.sample) else { continue };
            sequence.begin_token(&mut self.outbox.spare);
            let first = sequence.output.is_empty();
            self.draws.push(Draw { seq: entry.seq, sequence, row: rows - 1, first, gap: Ok(0) });
        }
        self.draw(now);
        for Draw { seq, mut sequence, first, gap, .. } in self.draws.drain(..) {
            let event = if gap.is_ok() { sequence.event_to_send() } else { None };
            let ended = sequence.finished() != FinishReason::None;
            self.sequences[seq.0 as usize] = Some(sequence);
            match gap {
                Ok(gap) => {
                    self.record.gaps.push((first, gap));
                    self.outbox.events.extend(event.map(|event| (seq.0, event)));
                    if ended {
                        self.ended.push((seq, None));
                    }
                }
                Err(error) => self.ended.push((seq, Some((FinishReason::Failed, error)))),
            }
        }
    }

    /// Each sampler serves every so many-th of `draws`.
    fn draw(&mut self, now: u64) {
        let Self { shared, ops, samplers, draws, outputs, .. } = self;
        let (vocab, tokenizer) = (shared.loaded.model.facts().vocab_size, shared.loaded.tokenizer.as_deref());
        let (count, step) = (draws.len(), samplers.len().min(draws.len()));
        let (samplers, draws) = (SharedOut::new(samplers), SharedOut::new(draws));
        let logits = SharedOut::new(&mut outputs.logits);
        ops.pool().run_if_worth(count * vocab, step, &|task| {
            for n in (task..count).step_by(step) {
                // SAFETY: no two tasks have a sampler, a draw or a row of logits in common: each draw has its own.
                let (sampler, draw) =
                    unsafe { (&mut samplers.slice(task..task + 1)[0], &mut draws.slice(n..n + 1)[0]) };
                // SAFETY: as above.
                let logits = unsafe { logits.slice(draw.row * vocab..(draw.row + 1) * vocab) };
                draw.gap = panics::catch(|| draw.sequence.advance(logits, sampler, tokenizer, now))
                    .unwrap_or_else(|text| Err(Error::internal(format!("sampling panicked: {text}"))));
            }
        });
    }
}
