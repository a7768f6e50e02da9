//! Reads the rows that score pairs of texts.

use super::Reader;
use crate::base::{Error, Result, reserve};
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::{Matrix, isa};
use crate::model::config::DecoderConfig;
use crate::model::score::{Score, ScoreRows};

impl Reader<'_> {
    /// `head` is that of the model, for a score of two of its rows.
    pub(crate) fn score_of(&mut self, c: &DecoderConfig, head: &Matrix) -> Result<Option<Score>> {
        match c.score {
            None | Some(ScoreRows::Words) => Ok(None),
            Some(ScoreRows::Labels { two, yes }) => {
                let count = 1 + usize::from(two);
                let matrix = self.matrix("cls.output.weight", count, c.hidden)?;
                let order = [yes, 1 - yes];
                let bias = match self.files.has("cls.output.bias") {
                    true => self.vector("cls.output.bias", count)?,
                    false => [].into(),
                };
                let bias = order.iter().filter_map(|row| bias.get(*row).copied()).collect();
                Ok(Some(Score { rows: self.some(&matrix, &order[..count], 1.0)?, bias, cap: None }))
            }
            Some(ScoreRows::Tokens { yes, no }) => {
                let tokens: Vec<usize> = [Some(yes), no].into_iter().flatten().collect();
                let folded = c.rotations.is_some();
                if let Some(odd) = tokens.iter().find(|token| **token >= c.vocab_size || folded) {
                    let why =
                        format!("token {odd} of the head makes its scores, which is rotated or not there");
                    return Err(Error::unsupported(format!("{}: {why}", self.files.what())));
                }
                let rows = self.some(head, &tokens, 1.0 / c.logit_scale)?;
                Ok(Some(Score { rows, bias: Vec::new(), cap: c.logit_cap }))
            }
        }
    }

    /// Rows of a matrix as f32, times `scale`.
    fn some(&self, matrix: &Matrix, rows: &[usize], scale: f32) -> Result<Vec<f32>> {
        let mut out: Vec<f32> = Vec::new();
        reserve(&mut out, rows.len() * matrix.cols, "the rows of a score")?;
        out.resize(rows.len() * matrix.cols, 0.0);
        for (to, row) in out.chunks_exact_mut(matrix.cols).zip(rows) {
            dequantize_row(isa(), matrix, *row, to);
            to.iter_mut().for_each(|x| *x *= scale);
        }
        match out.iter().all(|x| x.is_finite()) {
            true => Ok(out),
            false => Err(Error::bad_model(format!(
                "{}: the rows of its scores hold numbers that are not finite",
                self.files.what()
            ))),
        }
    }
}
