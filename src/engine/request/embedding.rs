//! Embeddings: a prompt's hidden states pooled into one vector.

use super::event::Embedding;
use crate::base::{Error, Result, reserve};
use crate::engine::api::EmbeddingParams;
use crate::model::{Facts, Pooling};
use std::ops::Range;

/// The vector of one request while it is computed. Rows are added in the order of their positions, one by one, in
/// f64, so no chunk, batch or thread count changes a bit of the result (invariant 3).
pub(crate) struct Pooler {
    pooling: Pooling,
    normalize: bool,
    /// See `EmbeddingParams::score`.
    pub score: bool,
    width: usize,
    rows: u64,
    /// `[width]` once the request is admitted.
    sum: Vec<f64>,
}

/// The model's step after pooling, which computes a score or an embedding from the pooled state.
pub(crate) type AfterPooling<'a> = &'a dyn Fn(bool, &[f32]) -> Result<Option<Vec<f32>>>;

impl Pooler {
    /// `params` override the settings in the model's files.
    pub(crate) fn new(params: &EmbeddingParams, model: &Facts) -> Self {
        let score = params.score;
        let own = model.scores.filter(|_| score).unwrap_or(model.pooling);
        let normalize = !score && params.normalize.unwrap_or(!model.raw_embeddings);
        let pooling = params.pooling.unwrap_or(own);
        Self { pooling, normalize, score, width: model.hidden_size, rows: 0, sum: Vec::new() }
    }

    /// Bytes of the sum and of the vector.
    pub(crate) fn bytes(width: usize) -> u64 {
        (8 + 4) * width as u64
    }

    /// Allocates the sum, and forgets rows added before.
    pub(crate) fn admit(&mut self) -> Result<()> {
        self.rows = 0;
        self.sum.clear();
        reserve(&mut self.sum, self.width, "an embedding")?;
        self.sum.resize(self.width, 0.0);
        Ok(())
    }

    /// Range of the wanted rows in a chunk of `rows` rows from position `start` on. `last`: the prompt ends there.
    pub(crate) fn wanted(&self, start: u32, rows: u32, last: bool) -> Range<u32> {
        match self.pooling {
            Pooling::Last => rows - u32::from(last)..rows,
            Pooling::Mean => 0..rows,
            Pooling::First => 0..u32::from(start == 0),
        }
    }

    /// Adds the hidden states of a chunk's wanted rows, `[_, width]`.
    pub(crate) fn add(&mut self, hidden: &[f32]) {
        for row in hidden.chunks_exact(self.width) {
            self.rows += 1;
            self.sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        }
    }

    /// The vector: the mean of the added rows, passed through `model` (`Model::after_pooling`) if it has a step
    /// after pooling, and divided by its Euclidean length if `normalize` is set. A zero vector stays zero.
    pub(crate) fn finish(&mut self, model: AfterPooling) -> Result<Embedding> {
        let rows = self.rows as f64;
        self.sum.iter_mut().for_each(|x| *x /= rows);
        let mut mean: Vec<f32> = Vec::new();
        reserve(&mut mean, self.width, "an embedding")?;
        mean.extend(self.sum.iter().map(|x| *x as f32));
        if let Some(made) = model(self.score, &mean)? {
            self.sum.clear();
            self.sum.extend(made.iter().map(|x| f64::from(*x)));
        }
        let length = self.sum.iter().map(|x| x * x).sum::<f64>().sqrt();
        if !length.is_finite() {
            return Err(Error::bad_model(
                "the model's hidden states hold NaN or infinity: its weights may be damaged",
            ));
        }
        let scale = if self.normalize && length > 0.0 { length } else { 1.0 };
        let mut values = mean;
        values.clear();
        values.extend(self.sum.iter().map(|x| (x / scale) as f32));
        Ok(Embedding { values, pooling: self.pooling })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(row: &[f32]) -> Result<Embedding> {
        of_model(row, None, false)
    }

    fn of_model(row: &[f32], normalize: Option<bool>, raw_embeddings: bool) -> Result<Embedding> {
        let params = EmbeddingParams { normalize, ..EmbeddingParams::default() };
        let pooling = Pooling::First;
        let facts = Facts { pooling, hidden_size: row.len(), raw_embeddings, ..Facts::default() };
        let mut pooler = Pooler::new(&params, &facts);
        pooler.admit()?;
        pooler.add(row);
        pooler.finish(&|_, _| Ok(None))
    }

    #[test]
    fn the_models_pooling_is_the_default_and_lengths_are_one() {
        let embedding = of(&[1e30, -2e30, 2e30]).unwrap();
        assert_eq!(embedding.pooling, Pooling::First);
        assert_eq!(embedding.values, [1.0 / 3.0, -2.0 / 3.0, 2.0 / 3.0]);
    }

    #[test]
    fn files_say_whether_lengths_are_one_unless_the_request_does() {
        for (normalize, raw, first) in
            [(None, true, 3.0), (None, false, 0.6), (Some(true), true, 0.6), (Some(false), false, 3.0)]
        {
            assert_eq!(of_model(&[3.0, 4.0], normalize, raw).unwrap().values[0], first);
        }
    }

    #[test]
    fn zeros_stay_zeros_and_nan_is_an_error() {
        assert_eq!(of(&[0.0, 0.0]).unwrap().values, [0.0, 0.0]);
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(of(&[1.0, bad]).unwrap_err().message.contains("NaN"));
        }
    }
}
