//! Log probabilities of a prompt's own tokens.

use super::event::{Event, Logprob};
use crate::base::{Result, reserve};
use crate::sample::{Sampler, SamplingParams};
use crate::schedule::PlanEntry;

/// Options of a request for log probabilities of its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreParams {
    /// First position whose token is scored; position 0 has no predecessor to predict it. Earlier positions
    /// may come from the prefix cache.
    pub from: u32,
    /// The request generates output after its prompt. False: it ends with the prompt.
    pub generates: bool,
}

/// The log probabilities computed so far.
pub(crate) struct Scores {
    params: ScoreParams,
    /// The next position to score.
    next: u32,
    values: Vec<Logprob>,
}

impl Scores {
    /// The caller has checked that `params.from` is inside the prompt.
    pub(crate) fn new(params: ScoreParams) -> Self {
        Self { params, next: params.from.max(1), values: Vec::new() }
    }

    pub(crate) fn generates(&self) -> bool {
        self.params.generates
    }

    /// First position that is scored.
    pub(crate) fn from(&self) -> usize {
        self.params.from as usize
    }

    /// First position whose row must give logits.
    pub(crate) fn first_row(&self) -> u32 {
        self.params.from.max(1) - 1
    }

    /// Returns whether a prompt of `len` tokens is scored completely.
    pub(crate) fn is_done(&self, len: usize) -> bool {
        self.next as usize >= len
    }

    /// Adds the scores from the last rows of `entry`, which yielded `logits`. Rows repeated after a
    /// preemption are ignored.
    pub(crate) fn add(
        &mut self,
        entry: &PlanEntry,
        logits: &[f32],
        prompt: &[u32],
        sampling: &SamplingParams,
        sampler: &mut Sampler,
    ) -> Result<()> {
        let vocab = logits.len() / entry.logits as usize;
        let first = entry.start + entry.rows - entry.logits;
        for (position, row) in (first + 1..).zip(logits.chunks_exact(vocab)) {
            let Some(&token) = prompt.get(position as usize) else { break };
            if position == self.next {
                reserve(&mut self.values, sampling.logprobs_per_token() as usize, "log probabilities")?;
                sampler.score(sampling, row, token, &mut self.values)?;
                self.next += 1;
            }
        }
        Ok(())
    }

    /// Appends the scores to `event`, for the prompt's tokens from `at` on; NaN if unknown.
    pub(crate) fn write(&self, event: &mut Event, prompt: &[u32], at: usize) -> Result<()> {
        let each = event.logprobs_per_token as usize;
        reserve(&mut event.logprobs, (prompt.len() - at) * each, "log probabilities")?;
        let first = self.params.from.max(1) as usize;
        let unknown = &prompt[at..prompt.len().min(first.max(at))];
        event.logprobs.extend(
            unknown.iter().flat_map(|&token| (0..each).map(move |_| Logprob { token, logprob: f32::NAN })),
        );
        event.logprobs.extend_from_slice(&self.values);
        let missing = prompt[at..].len() * each - unknown.len() * each - self.values.len();
        event.logprobs.extend(std::iter::repeat_n(Logprob { token: 0, logprob: f32::NAN }, missing));
        Ok(())
    }
}
