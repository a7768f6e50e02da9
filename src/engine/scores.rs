//! Log probabilities of a prompt's own tokens.

use super::event::{Event, Logprob};
use crate::base::{Result, reserve};
use crate::sample::{Sampler, SamplingParams};
use crate::schedule::PlanEntry;

/// What a request wants to know of its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreParams {
    /// The first position whose token is asked about; the first token of all has nothing before it. What comes before may
    /// be taken from the prefix cache.
    pub from: u32,
    /// Output follows. False: the request ends with its prompt.
    pub generates: bool,
}

/// The log probabilities that are known so far.
pub struct Scores {
    params: ScoreParams,
    /// The next position that is to be known.
    next: u32,
    values: Vec<Logprob>,
}

impl Scores {
    /// `params.from` lies in the prompt, as the caller has checked.
    pub fn new(params: ScoreParams) -> Self {
        Self { params, next: params.from.max(1), values: Vec::new() }
    }

    pub fn generates(&self) -> bool {
        self.params.generates
    }

    /// The first position that is asked about.
    pub fn from(&self) -> usize {
        self.params.from as usize
    }

    /// The first position whose row has to give logits.
    pub fn first_row(&self) -> u32 {
        self.params.from.max(1) - 1
    }

    /// All of a prompt of `len` tokens.
    pub fn is_done(&self, len: usize) -> bool {
        self.next as usize >= len
    }

    /// Takes in the last rows of `entry`, which yielded `logits`; after a preemption some come again.
    pub fn add(
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

    /// Appends what is known to `event`, for the prompt's tokens from `at` on: NaN where nothing is.
    pub fn write(&self, event: &mut Event, prompt: &[u32], at: usize) -> Result<()> {
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
