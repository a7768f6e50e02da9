//! Likelihoods of texts.
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::event::{Answer, Logprob};
use crate::finish::FinishReason;
use crate::model::Tokenize;
use crate::request::{Prompt, Request, Task};

/// The likelihood of a text after a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The sum of its tokens' log probabilities.
    pub logprob: f64,
    /// Number of these tokens. A text's very first token has no log probability, as nothing precedes it.
    pub tokens: usize,
    /// Each of these tokens is the most likely one at its place.
    pub greedy: bool,
}

impl Engine {
    /// Waits for the likelihood of each text after a prompt, which is computed once. Nothing is generated. A text
    /// begins with the first token that is not the prompt's, so a token that spans both counts; an empty text has none.
    /// All are submitted at once.
    ///
    /// `request` has the other options, like an adapter; its prompt and task are ignored.
    pub fn score(&self, request: &Request, prompt: &str, texts: &[&str]) -> Result<Vec<Score>> {
        let how = Tokenize { add_special: true, parse_special: request.parse_special };
        let before = self.0.model().tokenize(prompt, how)?;
        let mut requests = Vec::with_capacity(texts.len());
        let mut scores = vec![Score { logprob: 0.0, tokens: 0, greedy: true }; texts.len()];
        let mut scored = Vec::with_capacity(texts.len());
        for (text, score) in texts.iter().zip(&mut scores) {
            let tokens = self.0.model().tokenize(&format!("{prompt}{text}"), how)?;
            let from = before.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
            if from == tokens.len() {
                continue;
            }
            scored.push(score);
            let request = request.clone();
            requests.push(Request {
                task: Task::Score { from: from as u32 },
                prompt: Prompt::Tokens(tokens),
                parse_special: false,
                logprobs: true,
                top_logprobs: 1,
                ..request
            });
        }
        if !requests.is_empty() {
            for (to, stream) in scored.into_iter().zip(self.submit_batch(&requests)?) {
                *to = score(&stream.answer())?;
            }
        }
        Ok(scores)
    }
}

/// Sums entries that have a token's own log probability and that of the most likely one.
fn score(answer: &Answer) -> Result<Score> {
    if let Some(error) = answer.finish.error.as_ref().filter(|_| answer.finish.reason != FinishReason::Length)
    {
        return Err(Error::clone(error));
    }
    let mut sum = Score { logprob: 0.0, tokens: 0, greedy: true };
    for entry in answer.logprobs.chunks(answer.logprobs_per_token.max(1)) {
        let [own, best, ..]: &[Logprob] = entry else { continue };
        if own.logprob.is_nan() {
            continue;
        }
        sum.logprob += f64::from(own.logprob);
        sum.tokens += 1;
        sum.greedy &= own.token == best.token;
    }
    Ok(sum)
}
