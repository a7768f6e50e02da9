//! Products behind pooling: those of an embedding, and the head that makes a score.

use crate::base::{Error, Result};
use crate::kernels::rows::elementwise;
use crate::model::Pooling;
use crate::ops::{Norm, OpSet, Projections};

/// The function between the two products of a score, and after one of an embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadActivation {
    None,
    Tanh,
    /// GELU with erf.
    Gelu,
}

impl HeadActivation {
    fn apply(self, x: &mut [f32]) {
        match self {
            Self::None => {}
            // In f64, whose rounding to f32 no library's last bit changes.
            Self::Tanh => x.iter_mut().for_each(|x| *x = f64::from(*x).tanh() as f32),
            Self::Gelu => {
                let copy = x.to_vec();
                elementwise::gelu_erf(crate::kernels::isa(), &copy, x);
            }
        }
    }
}

/// A product of the pooled state.
pub struct Dense {
    pub weights: Projections,
    pub activation: HeadActivation,
}

impl Dense {
    pub fn run(&self, ops: &dyn OpSet, x: &[f32]) -> Result<Vec<f32>> {
        let mut out = Vec::new();
        ops.linear(&ops.given(x, [1, x.len()])?, None, &self.weights)?.copy_to(&mut out)?;
        self.activation.apply(&mut out);
        Ok(out)
    }
}

/// The classifier of one label: a product with its activation and norm, and a product with one row.
pub struct ScoreHead {
    /// Which hidden states it takes.
    pub pooling: Pooling,
    pub dense: Dense,
    pub norm: Option<Norm>,
    pub out: Projections,
}

impl ScoreHead {
    pub fn products(&self) -> [&Projections; 2] {
        [&self.dense.weights, &self.out]
    }

    /// The label's probability, by the logistic function.
    pub fn run(&self, ops: &dyn OpSet, pooled: &[f32]) -> Result<Vec<f32>> {
        let x = self.dense.run(ops, pooled)?;
        let mut logit = Vec::new();
        ops.linear(&ops.given(&x, [1, x.len()])?, self.norm.as_ref(), &self.out)?.copy_to(&mut logit)?;
        match logit[..] {
            [logit] => Ok(vec![(1.0 / (1.0 + (-f64::from(logit)).exp())) as f32]),
            _ => Err(Error::internal("a score of several labels")),
        }
    }
}
