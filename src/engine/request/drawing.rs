//! Draws the tokens of a request from its rows of logits.

use super::lookup::Text;
use crate::base::{Error, Result, Status, reserve};
use crate::constrain::Guide;
use crate::engine::api::{LogitsHook, LogitsRow, RequestParams};
use crate::engine::delivery::callback;
use crate::ops::{Draw, Draws, Reported};
use crate::sample::{self, Allowed, Edits, Known, Logprob, Sampler, SamplerState, SamplingParams};
use crate::text::Tokenizer;

/// A row of logits, or the token that the device drew from it (`sample::drawn`).
pub(crate) enum Drawn<'a> {
    From(&'a mut [f32]),
    /// Like `From`, with a token that must come unless the output's grammar does not allow it.
    Forced(&'a mut [f32], u32),
    Already(i32, Option<Reported<'a>>),
}

pub(crate) struct Drawing {
    params: SamplingParams,
    state: SamplerState,
    /// Penalties and biases of tokens that are drawn on the device.
    edits: Edits,
    /// Some: the output must match a grammar.
    pub guide: Option<Guide>,
    /// The host's hook that may change the logits, with the request's `user_data`.
    hook: Option<(LogitsHook, u64)>,
}

impl Drawing {
    pub(crate) fn new(params: &RequestParams) -> Result<Self> {
        Ok(Self {
            params: params.sampling.clone(),
            state: SamplerState::new(&params.sampling)?,
            edits: Edits::default(),
            guide: None,
            hook: params.on_logits.clone().map(|hook| (hook, params.user_data)),
        })
    }

    pub(crate) fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Forbids token sequences in the output.
    pub(crate) fn forbid(&mut self, words: Vec<Vec<u32>>) {
        self.params.bad_words.extend(words);
    }

    /// Parameters with which the device can draw the `n`-th token after `text`. Appends its lists to `draws`. None if
    /// the draw needs the host. `OutOfMemory`.
    pub(crate) fn there(
        &mut self,
        text: Text,
        n: usize,
        vocab: usize,
        draws: &mut Draws,
    ) -> Result<Option<Draw>> {
        let Self { params, edits, guide, hook, .. } = self;
        let Text { prompt, output } = text;
        if guide.is_some() || hook.is_some() || output.len() + n < params.min_new_tokens as usize {
            return Ok(None);
        }
        let Some(mut draw) = params.draw((text.len() + n) as u64) else { return Ok(None) };
        if params.edits() {
            // Rows of drafts would need lists of their own, which count the drafts before them.
            if n > 0 {
                return Ok(None);
            }
            let Some(list) = edits.follow(params, prompt, output, vocab)? else { return Ok(None) };
            reserve(&mut draws.edits, list.len(), "a step's penalties")?;
            let first = draws.edits.len() as u32;
            draws.edits.extend_from_slice(list);
            draw.edits = (first, draws.edits.len() as u32);
        }
        if params.logprobs_per_token() > 0 {
            draw.report = Some(draws.report(params.top_logprobs, &params.logprob_tokens)?);
        }
        Ok(Some(draw))
    }

    /// Draws the token after `text` from `row`, and appends its log probabilities. `ends`: tokens that may end the
    /// output.
    pub(crate) fn draw(
        &mut self,
        row: Drawn,
        text: Text,
        ends: &[u32],
        sampler: &mut Sampler,
        tokenizer: Option<&Tokenizer>,
        logprobs: &mut Vec<Logprob>,
    ) -> Result<u32> {
        let (logits, forced) = match row {
            Drawn::From(logits) => (logits, None),
            Drawn::Forced(logits, token) => (logits, Some(token)),
            Drawn::Already(token, report) => return sample::drawn(token, report, logprobs),
        };
        let (Text { prompt, output }, hooked) = (text, self.hook.is_some());
        if let Some((hook, user_data)) = &self.hook {
            let mut row = LogitsRow { user_data: *user_data, prompt, output, logits };
            let code = callback::run(|| hook.0(&mut row));
            if code != 0 {
                return Err(Error::new(Status::Cancelled, format!("on_logits returned {code}")));
            }
        }
        let bytes = |token| tokenizer.and_then(|t| t.token_bytes(token)).unwrap_or_default();
        self.state.read(prompt, output, &bytes);
        let mask = self.guide.as_mut().map(Guide::mask).transpose()?;
        let allowed = mask.map(|mask| Allowed { bits: mask.bits(), complete: mask.complete() });
        let fits = |token| allowed.as_ref().is_none_or(|allowed| allowed.has(token));
        if let Some(token) = forced.filter(|token| fits(*token)) {
            if self.params.logprobs_per_token() > 0 {
                sampler.score(&self.params, logits, token, logprobs)?;
            }
            return Ok(token);
        }
        let known = Known { prompt, output, ends, allowed, text: Some(&bytes), hooked };
        sampler.sample(&self.params, &mut self.state, logits, &known, logprobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Report;

    const PROMPT: Text = Text { prompt: &[5, 6], output: &[] };

    #[test]
    fn penalties_go_to_where_the_logits_lie() {
        let mut params = RequestParams::default();
        (params.sampling.presence_penalty, params.sampling.repetition_penalty) = (0.5, 1.1);
        params.sampling.min_new_tokens = 1;
        let (mut drawing, mut draws) = (Drawing::new(&params).unwrap(), Draws::default());
        let mut there = |text, n| drawing.there(text, n, 10, &mut draws).unwrap();
        assert_eq!(there(PROMPT, 0), None, "the host forbids its end");
        let text = Text { output: &[6], ..PROMPT };
        let draw = there(text, 0).unwrap();
        assert_eq!((draw.edits, draw.presence, draw.repetition, draw.position), ((0, 2), 0.5, 1.1, 3));
        assert_eq!(there(text, 1), None, "a draft changes the list");
        assert_eq!(there(text, 0).unwrap().edits, (2, 4), "behind those of another row");
        let edits: Vec<_> = draws.edits.iter().map(|edit| (edit.token, edit.count)).collect();
        assert_eq!(edits[..2], [(5, 1), (6, 2)]);
    }

    #[test]
    fn log_probabilities_are_asked_for_where_the_logits_lie() {
        let mut params = RequestParams::default();
        (params.sampling.top_logprobs, params.sampling.logprob_tokens) = (3, vec![7, 8]);
        let new = |params: &RequestParams| Drawing::new(params).unwrap();
        let (mut drawing, mut draws) = (new(&params), Draws::default());
        let mut there = |drawing: &mut Drawing, n| drawing.there(PROMPT, n, 10, &mut draws).unwrap();
        assert_eq!(there(&mut new(&RequestParams::default()), 0).unwrap().report, None);
        assert_eq!(there(&mut drawing, 0).unwrap().report, Some(Report { tops: 3, listed: (0, 2), at: 0 }));
        let draft = there(&mut drawing, 1).unwrap();
        assert_eq!(
            draft.report,
            Some(Report { tops: 3, listed: (2, 4), at: 7 }),
            "behind those of another row"
        );
        params.sampling.chain_logprobs = true;
        assert_eq!(there(&mut new(&params), 0), None, "the host has the chain");
        assert_eq!((draws.listed, draws.report_words), (vec![7, 8, 7, 8], 14));
    }
}
