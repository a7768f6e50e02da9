//! Changes logits of single tokens before the filters run, in this order: bias, penalties, DRY, bad words,
//! premature ends. The cost depends on the tokens examined, not on the vocabulary.

use super::state::SamplerState;
use super::{Known, SamplingParams};

/// A row of logits whose changes can be taken back.
pub(super) struct Row<'a> {
    pub logits: &'a mut [f32],
    /// Tokens and their logits before, in the order of changes.
    pub changes: &'a mut Vec<(u32, f32)>,
    /// A number per token of the vocabulary: 0 between calls.
    pub counts: &'a mut [u32],
    /// Scratch memory for a number per token of the longest sequence.
    pub repeats: &'a mut [u32],
}

impl Row<'_> {
    pub(super) fn adjust(&mut self, params: &SamplingParams, known: &Known, state: &SamplerState) {
        for (token, bias) in &params.logit_bias {
            self.change(*token, |logit| logit + bias);
        }
        if params.has_penalties() {
            self.penalize(params, known);
        }
        if params.dry.multiplier > 0.0 {
            self.dry(params, known, state);
        }
        for word in &params.bad_words {
            if let Some((last, before)) = word.split_last()
                && known.ends_with(before)
            {
                self.change(*last, |_| f32::NEG_INFINITY);
            }
        }
        // A complete output may end, even if it is shorter than the minimum.
        let complete = known.allowed.is_some_and(|allowed| allowed.complete);
        if known.output.len() < params.min_new_tokens as usize && !complete {
            for end in known.ends {
                self.change(*end, |_| f32::NEG_INFINITY);
            }
        }
    }

    /// Tokens that the vocabulary does not have are left out.
    fn change(&mut self, token: u32, to: impl FnOnce(f32) -> f32) {
        if let Some(logit) = self.logits.get_mut(token as usize) {
            self.changes.push((token, *logit));
            // Overflow becomes the largest finite logit.
            *logit = to(*logit).min(f32::MAX);
        }
    }

    pub(super) fn undo(&mut self) {
        for (token, logit) in self.changes.drain(..).rev() {
            self.logits[token as usize] = logit;
        }
    }

    /// Repetition once for each distinct token of prompt and output: a positive logit is divided, another multiplied.
    /// Frequency and presence (OpenAI): `logit -= frequency * count + presence` for tokens of the output.
    fn penalize(&mut self, params: &SamplingParams, known: &Known) {
        let repetition = params.repetition_penalty;
        let (prompt, output) = known.latest(params.penalty_window);
        // Only the repetition penalty looks at the prompt.
        let prompt = if repetition != 1.0 { prompt } else { &[] };
        let first = self.changes.len();
        for (tokens, step) in [(prompt, 0), (output, 1)] {
            for &token in tokens {
                let Some(count) = self.counts.get_mut(token as usize) else { continue };
                if *count == 0 {
                    *count = 1;
                    self.changes.push((token, self.logits[token as usize]));
                }
                *count += step;
            }
        }
        for &(token, before) in &self.changes[first..] {
            let count = std::mem::take(&mut self.counts[token as usize]) - 1;
            let mut logit = if before > 0.0 { before / repetition } else { before * repetition };
            if count > 0 {
                logit -= count as f32 * params.frequency_penalty + params.presence_penalty;
            }
            self.logits[token as usize] = logit.min(f32::MAX);
        }
    }

    /// For each token that followed an earlier occurrence of our last tokens, finds the longest such
    /// occurrence. `counts` holds its length meanwhile. A token whose own text has a breaker continues no
    /// repetition, and is not penalized.
    fn dry(&mut self, params: &SamplingParams, known: &Known, state: &SamplerState) {
        let (dry, (prompt, output)) = (&params.dry, known.latest(params.dry.window));
        let length = prompt.len() + output.len();
        // The tokens from the latest one back.
        let at =
            |i: usize| if i < output.len() { output[output.len() - 1 - i] } else { prompt[length - 1 - i] };
        let (most, allowed) = (state.unbroken.min(length), dry.allowed.max(1) as usize);
        if most < allowed {
            return;
        }
        let first = self.changes.len();
        let found = &mut self.repeats[..length];
        repeats(&at, found);
        for (k, &n) in found.iter().enumerate().skip(1) {
            let (token, repeated) = (at(k - 1), most.min(n as usize));
            let Some(longest) = self.counts.get_mut(token as usize).filter(|_| repeated >= allowed) else {
                continue;
            };
            if *longest == 0 {
                self.changes.push((token, self.logits[token as usize]));
            }
            *longest = (*longest).max(repeated as u32);
        }
        for &(token, before) in &self.changes[first..] {
            let longest = std::mem::take(&mut self.counts[token as usize]);
            if known.text.is_some_and(|text| state.breaks(text(token))) {
                continue;
            }
            let penalty =
                f64::from(dry.multiplier) * f64::from(dry.base).powi(longest as i32 - allowed as i32);
            self.logits[token as usize] = (f64::from(before) - penalty).max(f64::from(f32::MIN)) as f32;
        }
    }
}

/// Writes to `repeats[k]`, for each k > 0, how many of the latest tokens also stand before the k latest ones; `at(i)`
/// is token i from the end. The Z function of the reversed sequence (Gusfield 1997), in linear time.
fn repeats(at: &impl Fn(usize) -> u32, repeats: &mut [u32]) {
    // The match with the beginning that reaches furthest.
    let (mut from, mut to) = (0, 0);
    for k in 1..repeats.len() {
        let mut n = if k < to { (to - k).min(repeats[k - from] as usize) } else { 0 };
        while k + n < repeats.len() && at(n) == at(k + n) {
            n += 1;
        }
        if k + n > to {
            (from, to) = (k, k + n);
        }
        repeats[k] = n as u32;
    }
}

#[cfg(test)]
mod tests;
