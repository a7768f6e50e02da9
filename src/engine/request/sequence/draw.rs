//! The next token of a sequence, from its row of logits.

use super::*;
use crate::ops::{Draw, Draws, Reported};

/// A row of logits, or the token that the device drew from it (`sample::drawn`).
pub enum Drawn<'a> {
    From(&'a mut [f32]),
    Already(i32, Option<Reported<'a>>),
}

impl Sequence {
    /// Parameters with which the device can draw the `n`-th token from now. Appends its lists to `draws`. None if
    /// the draw needs the host. `OutOfMemory`.
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
            // Rows of drafts would need lists of their own, which count the drafts before them.
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
        let (prompt, output, hooked) = (&self.prompt, &self.output, self.hook.is_some());
        let text = |token| tokenizer.and_then(|t| t.token_bytes(token)).unwrap_or_default();
        self.sampler.read(prompt, output, &text);
        let mask = self.guide.as_mut().map(Guide::mask).transpose()?;
        let allowed = mask.map(|mask| Allowed { bits: mask.bits(), complete: mask.complete() });
        let known = Known { prompt, output, ends: self.stop.tokens(), allowed, text: Some(&text), hooked };
        sampler.sample(&self.sampling, &mut self.sampler, logits, &known, &mut event.logprobs)
    }

    /// The model's end tokens end nothing.
    pub fn ignore_ends(&mut self) {
        self.stop.ignore_ends();
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
