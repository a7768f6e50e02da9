//! Products after pooling: those of an embedding, and the head that makes a score.

use crate::base::{Error, Result};
use crate::kernels::rows::elementwise;
use crate::model::Pooling;
use crate::ops::pass::{Op, Pass, Product, Program, Step};
use crate::ops::{Norm, OpSet, Outputs, Projections, RaggedBatch};

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

/// A product of one row, after `norm` if given.
fn product(norm: Option<Norm>, weights: Projections) -> Result<Program> {
    let mut pass = Pass::default();
    let x = pass.register(weights.matrices.first().map_or(0, |matrix| matrix.cols));
    let out = pass.linear(x, norm, Product::fixed(weights));
    pass.push(Op::Hidden { x: out, norm: None });
    Program::new(&pass, &[x], true)
}

/// Runs a program of one row.
fn run(program: &Program, ops: &dyn OpSet, x: &[f32]) -> Result<Vec<f32>> {
    let batch = RaggedBatch { tokens: vec![0], hidden_rows: vec![0], ..RaggedBatch::default() };
    let mut out = Outputs::default();
    ops.run(program, &Step::of_rows(&batch), None, &[x], &mut out, &mut || Ok(()))?;
    Ok(out.hidden)
}

/// A product of the pooled state.
pub(crate) struct Dense {
    pub program: Program,
    activation: HeadActivation,
}

impl Dense {
    pub(crate) fn new(weights: Projections, activation: HeadActivation) -> Result<Self> {
        Ok(Self { program: product(None, weights)?, activation })
    }

    pub(crate) fn run(&self, ops: &dyn OpSet, x: &[f32]) -> Result<Vec<f32>> {
        let mut out = run(&self.program, ops, x)?;
        self.activation.apply(&mut out);
        Ok(out)
    }
}

/// The classifier of one label: a product with its activation and norm, and a product with one row.
pub(crate) struct ScoreHead {
    /// Which hidden states it takes.
    pub pooling: Pooling,
    dense: Dense,
    out: Program,
}

impl ScoreHead {
    pub(crate) fn new(pooling: Pooling, dense: Dense, norm: Option<Norm>, out: Projections) -> Result<Self> {
        Ok(Self { pooling, dense, out: product(norm, out)? })
    }

    pub(crate) fn programs(&self) -> [&Program; 2] {
        [&self.dense.program, &self.out]
    }

    /// The label's probability, by the logistic function.
    pub(crate) fn run(&self, ops: &dyn OpSet, pooled: &[f32]) -> Result<Vec<f32>> {
        match run(&self.out, ops, &self.dense.run(ops, pooled)?)?[..] {
            [logit] => Ok(vec![(1.0 / (1.0 + (-f64::from(logit)).exp())) as f32]),
            _ => Err(Error::internal("a score of several labels")),
        }
    }
}
