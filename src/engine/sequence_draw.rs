//! A sequence's next token, from its row of logits.

use super::*;
use crate::ops::{Draw, Draws, Reported};

/// A row of logits, or what was drawn from it where it lay (`sample::drawn`).
pub enum Drawn<'a> {
    From(&'a mut [f32]),
    Already(i32, Option<Reported<'a>>),
}

impl Sequence {
    /// How the `n`-th token from now may be drawn where the logits lie, its lists behind those in `draws`; None where that
    /// takes the host. `OutOfMemory`.
    pub fn draw_there(&mut self, n: usize, vocab: usize, draws: &mut Draws) -> Result<Option<Draw>> {
        if self.guide.is_some() || self.hook.is_some() || self.scores() || !self.generates() {
            return Ok(None);
        }
        let Self { sampling, prompt, output, edits, .. } = self;
        if output.len() + n < sampling.min_new_tokens as usize {
            return Ok(None);
        }
        let Some(mut draw) = sampling.draw((prompt.len() + output.len() + n) as u64) else { return Ok(None) };
        if sampling.edits() {
            // What a draft adds to the list, the next row alone would have.
            if n > 0 {
                return Ok(None);
            }
            let Some(list) = edits.follow(sampling, prompt, output, vocab)? else { return Ok(None) };
            reserve(&mut draws.edits, list.len(), "a step's penalties")?;
            let first = draws.edits.len() as u32;
            draws.edits.extend_from_slice(list);
            draw.edits = (first, draws.edits.len() as u32);
        }
        if sampling.logprobs_per_token() > 0 {
            draw.report = Some(draws.report(sampling.top_logprobs, &sampling.logprob_tokens)?);
        }
        Ok(Some(draw))
    }

    pub(super) fn draw(
        &mut self,
        logits: &mut [f32],
        sampler: &mut Sampler,
        tokenizer: Option<&Tokenizer>,
        event: &mut Event,
    ) -> Result<u32> {
        if let Some(hook) = &self.hook {
            self.run_hook(hook, logits)?;
        }
        let (prompt, output) = (&self.prompt, &self.output);
        let text = |token| tokenizer.and_then(|t| t.token_bytes(token)).unwrap_or_default();
        self.sampler.read(prompt, output, &text);
        let mask = self.guide.as_mut().map(Guide::mask).transpose()?;
        let allowed = mask.map(|mask| Allowed { bits: mask.bits(), complete: mask.complete() });
        let known = Known { prompt, output, ends: self.stop.tokens(), allowed };
        let drawn = sampler.sample(&self.sampling, &mut self.sampler, logits, &known, &mut event.logprobs);
        match drawn {
            Err(error) if error.status == Status::BadModel && self.hook.is_some() => {
                Err(Error::invalid(format!("after on_logits, {}", error.message)))
            }
            drawn => drawn,
        }
    }

    fn run_hook(&self, hook: &LogitsHook, logits: &mut [f32]) -> Result<()> {
        let (prompt, output) = (&self.prompt[..], &self.output[..]);
        let mut row = LogitsRow { user_data: self.user_data, prompt, output, logits };
        let code = callback::run(|| hook.0(&mut row));
        if code != 0 {
            return Err(Error::new(Status::Cancelled, format!("on_logits returned {code}")));
        }
        Ok(())
    }
}
