//! Bias and penalties of single tokens as a list, for draws on the device that holds the logits (`ops::Draw`). The
//! list has the same effect on a row as `adjust`.

use super::SamplingParams;
use crate::base::{Result, reserve, reserved};
use crate::ops::{Edit, MAX_EDITS};
use std::collections::HashMap;

/// The list of a request, which grows with its output.
#[derive(Default)]
pub struct Edits {
    list: Vec<Edit>,
    /// Index of each token's entry in the list.
    places: HashMap<u32, u32>,
    /// Number of tokens of prompt and output that the list covers.
    seen: usize,
    begun: bool,
    /// Whether a token has two biases. Only `adjust` adds them, in their order.
    twice: bool,
}

impl Edits {
    /// Bytes for a prompt and an output of `tokens` tokens together.
    pub fn bytes(params: &SamplingParams, tokens: u64) -> u64 {
        if params.edits() { EDIT_BYTES * (tokens + params.logit_bias.len() as u64) } else { 0 }
    }

    /// Updates the list for these tokens and returns it. From call to call, tokens may only be appended. `None` if
    /// the request needs `adjust`. `OutOfMemory`.
    pub fn follow(
        &mut self,
        params: &SamplingParams,
        prompt: &[u32],
        output: &[u32],
        vocab: usize,
    ) -> Result<Option<&[Edit]>> {
        if !self.begun {
            for &(token, bias) in &params.logit_bias {
                self.twice |= self.places.contains_key(&token);
                self.edit(token, vocab, |edit| edit.bias = bias)?;
            }
            // Only the repetition penalty considers the prompt.
            self.seen = if params.repetition_penalty != 1.0 { 0 } else { prompt.len() };
            self.begun = true;
        }
        if self.twice || self.list.len() > MAX_EDITS {
            return Ok(None);
        }
        while params.has_penalties() && self.seen < prompt.len() + output.len() {
            match prompt.get(self.seen) {
                Some(&token) => self.edit(token, vocab, |edit| edit.count = edit.count.max(1))?,
                None => {
                    let token = output[self.seen - prompt.len()];
                    self.edit(token, vocab, |edit| edit.count = edit.count.max(1) + 1)?;
                }
            }
            self.seen += 1;
        }
        Ok(Some(&self.list[..]).filter(|list| list.len() <= MAX_EDITS))
    }

    fn edit(&mut self, token: u32, vocab: usize, change: impl FnOnce(&mut Edit)) -> Result<()> {
        // Tokens outside of the vocabulary are ignored.
        if token as usize >= vocab {
            return Ok(());
        }
        if let Some(&at) = self.places.get(&token) {
            change(&mut self.list[at as usize]);
            return Ok(());
        }
        reserve(&mut self.list, 1, WHAT)?;
        reserved(self.places.try_reserve(1), WHAT, EDIT_BYTES as usize * self.list.len())?;
        self.places.insert(token, self.list.len() as u32);
        let mut edit = Edit { token, count: 0, bias: 0.0 };
        change(&mut edit);
        self.list.push(edit);
        Ok(())
    }
}

const WHAT: &str = "a request's penalties";

/// Bytes of an entry and its index, in a list and a table that may be twice as long as needed.
const EDIT_BYTES: u64 = 48;

#[cfg(test)]
mod tests {
    use super::*;

    fn params(change: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
        let mut params = SamplingParams::default();
        change(&mut params);
        params
    }

    fn edit(token: u32, count: u32, bias: f32) -> Edit {
        Edit { token, count, bias }
    }

    #[test]
    fn a_list_follows_the_output() {
        let both = params(|p| (p.repetition_penalty, p.logit_bias) = (1.1, vec![(3, 2.0), (99, 1.0)]));
        let mut edits = Edits::default();
        let list = edits.follow(&both, &[5, 3, 5], &[], 10).unwrap().unwrap();
        assert_eq!(list, [edit(3, 1, 2.0), edit(5, 1, 0.0)]);
        for output in [&[5][..], &[5, 7], &[5, 7, 7, 50]] {
            edits.follow(&both, &[5, 3, 5], output, 10).unwrap();
        }
        let list = edits.follow(&both, &[5, 3, 5], &[5, 7, 7, 50], 10).unwrap().unwrap();
        assert_eq!(list, [edit(3, 1, 2.0), edit(5, 2, 0.0), edit(7, 3, 0.0)]);
    }

    #[test]
    fn the_prompt_counts_for_repetition_alone() {
        let presence = params(|p| p.presence_penalty = 1.0);
        let mut edits = Edits::default();
        assert_eq!(
            edits.follow(&presence, &[1, 2], &[2, 4], 10).unwrap().unwrap(),
            [edit(2, 2, 0.0), edit(4, 2, 0.0)]
        );
        let bias = params(|p| p.logit_bias = vec![(2, 1.0)]);
        let mut edits = Edits::default();
        assert_eq!(edits.follow(&bias, &[1, 2], &[2, 4], 10).unwrap().unwrap(), [edit(2, 0, 1.0)]);
        let twice = params(|p| p.logit_bias = vec![(2, 1.0), (2, 1.0)]);
        assert_eq!(Edits::default().follow(&twice, &[], &[], 10).unwrap(), None);
    }
}
