//! The score that a decoder gives to a pair of texts, by the hidden state of its prompt's last token.

/// The rows that make the score of such a decoder, as its files name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreRows {
    /// The tensor `cls.output`: one row, or two, of which this one is that of "yes".
    Labels { two: bool, yes: usize },
    /// Rows of the head: that of the token for "yes", and that of "no".
    Tokens { yes: usize, no: Option<usize> },
    /// As `Tokens`, of the tokens "yes" and "no" of the tokenizer.
    Words,
}

/// The label or token that stands for relevance, and the other one.
pub(super) const WORDS: [&str; 2] = ["yes", "no"];

/// Whether a model's name says that it is a Qwen3-Reranker.
pub(super) fn names_qwen3_reranker(name: &str) -> bool {
    name.to_ascii_lowercase().replace([' ', '_'], "-").contains("qwen3-reranker")
}

impl ScoreRows {
    /// The rows of a classifier with these labels; `None` if they are not yes and no.
    pub fn of_labels(labels: &[&str]) -> Option<Self> {
        let at = |word: &str| labels.iter().position(|label| label.eq_ignore_ascii_case(word));
        match (labels.len(), at(WORDS[0]), at(WORDS[1])) {
            (1, ..) => Some(Self::Labels { two: false, yes: 0 }),
            (2, Some(yes), Some(_)) => Some(Self::Labels { two: true, yes }),
            _ => None,
        }
    }
}

/// The rows of a score.
pub(super) struct Score {
    /// One row or two, the one for "yes" first: `[rows, hidden]`.
    pub rows: Vec<f32>,
    /// One for each row, or none.
    pub bias: Vec<f32>,
    /// The soft cap of the logits.
    pub cap: Option<f32>,
}

impl Score {
    /// The share of "yes" in the softmax of both logits; of one logit, its logistic function. Summed up in f64, one
    /// element after the other.
    pub(super) fn of(&self, hidden: &[f32]) -> f32 {
        let bias = self.bias.iter().copied().chain(std::iter::repeat(0.0));
        let mut logits = self.rows.chunks_exact(hidden.len().max(1)).zip(bias).map(|(row, bias)| {
            let sum: f64 = row.iter().zip(hidden).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let logit = sum + f64::from(bias);
            self.cap.map_or(logit, |cap| f64::from(cap) * (logit / f64::from(cap)).tanh())
        });
        let (yes, no) = (logits.next().unwrap_or(0.0), logits.next().unwrap_or(0.0));
        (1.0 / (1.0 + (no - yes).exp())) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_is_logistic_and_two_are_a_softmax() {
        let score = |rows: &[f32], bias: &[f32], cap| {
            Score { rows: rows.into(), bias: bias.into(), cap }.of(&[1.0, 2.0])
        };
        let near = |a: f32, b: f64| assert!((f64::from(a) - b).abs() < 1e-7, "{a} {b}");
        near(score(&[1.0, 0.5], &[], None), 1.0 / (1.0 + (-2.0f64).exp()));
        near(score(&[1.0, 0.5, 0.0, 0.25], &[], None), 1.0 / (1.0 + (0.5f64 - 2.0).exp()));
        near(score(&[1.0, 0.5, 0.0, 0.25], &[-1.0, 0.5], None), 0.5);
        near(score(&[1.0, 0.5], &[], Some(1.0)), 1.0 / (1.0 + (-(2.0f64.tanh())).exp()));
    }
}
