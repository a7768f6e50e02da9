//! Norms, rotations, quantization of activations for the weights' type, the product and its bias.

use super::prepare::{Prepared, Rows, Source};
use super::{Norm, Projections};
use crate::base::sync::Mutex;
use crate::base::{Error, Result};
use crate::kernels::gemm::blocks::{MOST, Part, SharedOut};
use crate::kernels::gemm::dense::{self, whole};
use crate::kernels::gemm::ternary::{Columns, Gates};
use crate::kernels::gemm::{quantized, ternary, tokens};
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::elementwise;
use crate::kernels::{Arithmetic, Isa, Matrix, Pool};

/// Scratch memory of one product; grows to the widest, then is reused.
#[derive(Default)]
pub(super) struct Scratch {
    prepared: Prepared,
    /// For matrices with norms of their own: the input of one matrix, and its product.
    own: Prepared,
    part: Vec<f32>,
}

pub(super) struct Linear<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub scratch: &'a Mutex<Scratch>,
    pub norm: Option<&'a Norm>,
    pub weights: &'a Projections,
    /// Set if the matrices are gate and up of ReLU²: rows of up that have no effect may be left out.
    pub gates: Option<&'a Gates>,
}

impl Linear<'_> {
    /// The product of the rows of `source`, `[rows, cols]`: `out` `[rows, width]`.
    pub(super) fn run(&self, source: Source, [rows, cols]: [usize; 2], out: &mut [f32]) -> Result<()> {
        let (width, matrices) = (self.weights.width(), &self.weights.matrices);
        if self.check()? != cols || out.len() != rows * width {
            return Err(Error::internal("the rows are not as wide as the weights"));
        }
        let Scratch { prepared, own, part } = &mut *self.scratch.lock();
        let (pool, isa) = (self.pool, self.isa);
        let fold = self.weights.fold.as_deref();
        let x = Rows { pool, isa, source, norm: self.norm, fold, rows, cols };
        if self.weights.norms.is_empty() {
            let mut refs = [&matrices[0]; MOST];
            refs.iter_mut().zip(matrices).for_each(|(to, matrix)| *to = matrix);
            self.product(&x, &refs[..matrices.len()], prepared, out);
        } else {
            let x = Rows { fold: None, ..x }.floats(&mut prepared.floats);
            let mut column = 0;
            for (matrix, norm) in matrices.iter().zip(&self.weights.norms) {
                let x = Rows { pool, isa, source: Source::Rows(x), norm: Some(norm), fold, rows, cols };
                let part = grown(part, rows * matrix.rows);
                self.product(&x, &[matrix], own, part);
                for (out, part) in out.chunks_exact_mut(width).zip(part.chunks_exact(matrix.rows)) {
                    out[column..column + matrix.rows].copy_from_slice(part);
                }
                column += matrix.rows;
            }
        }
        if let Some(bias) = &self.weights.bias {
            let shared = SharedOut::new(out);
            pool.run_if_worth(rows * width, rows, &|row| {
                // SAFETY: each task has a row of its own.
                let out = unsafe { shared.slice(row * width..(row + 1) * width) };
                elementwise::add(self.isa, out, bias);
            });
        }
        Ok(())
    }

    /// Checks that weights, norms and bias fit each other. Returns the number of the weights' columns.
    fn check(&self) -> Result<usize> {
        let bad = |why: String| Err(Error::internal(why));
        let Projections { matrices, bias, norms, fold, columns, whole: _ } = self.weights;
        let Some(first) = matrices.first().filter(|_| matrices.len() <= MOST) else {
            return bad(format!("a product needs 1 to {MOST} matrices"));
        };
        let alike = |m: &Matrix| m.cols == first.cols && m.dtype.is_ternary() == first.dtype.is_ternary();
        if !matrices.iter().all(alike) || matrices.iter().any(|m| m.rows == 0) {
            return bad("the weights of one product differ in width or in kind".to_owned());
        }
        if self.norm.iter().copied().chain(norms).any(|norm| norm.weight.len() != first.cols) {
            return bad("the norm is not as wide as the weights".to_owned());
        }
        if !norms.is_empty() && norms.len() != matrices.len() {
            return bad(format!("{} norms for {} matrices", norms.len(), matrices.len()));
        }
        if bias.as_ref().is_some_and(|bias| bias.len() != self.weights.width()) {
            return bad("the bias is not as wide as the product".to_owned());
        }
        fold.as_ref().map_or(Ok(()), |fold| fold.check(first.cols))?;
        let copied =
            |c: &Columns| matrices.len() == 1 && [c.rows, c.cols] == [first.rows, tokens::padded(first.cols)];
        if !columns.as_deref().is_none_or(copied) {
            return bad("the copy by columns is of another matrix".to_owned());
        }
        if first.cols == 0 {
            return bad("a product over no columns".to_owned());
        }
        Ok(first.cols)
    }

    /// Multiplies `x` with all of `weights`, side by side in `out`. Matrices of the same arithmetic are one product.
    fn product(&self, x: &Rows, weights: &[&Matrix], prepared: &mut Prepared, out: &mut [f32]) {
        let Prepared { floats, ints, factors } = prepared;
        let kind = weights[0].dtype.arithmetic();
        if weights.iter().all(|m| m.dtype.arithmetic() == kind) {
            return self.of_kind(kind, x, weights, prepared, out);
        }
        // Rows are computed once.
        let Rows { pool, isa, rows, cols, .. } = *x;
        let source = Source::Rows(x.floats(floats));
        let x = Rows { pool, isa, source, norm: None, fold: None, rows, cols };
        let mut again =
            Prepared { floats: Vec::new(), ints: std::mem::take(ints), factors: std::mem::take(factors) };
        for kind in [Arithmetic::Int8, Arithmetic::Blocks32, Arithmetic::Blocks256, Arithmetic::Float] {
            self.of_kind(kind, &x, weights, &mut again, out);
        }
        (*ints, *factors) = (again.ints, again.factors);
    }

    /// Multiplies `x` with the `weights` of arithmetic `kind`. The columns of the others stay as they are.
    fn of_kind(
        &self,
        kind: Arithmetic,
        x: &Rows,
        weights: &[&Matrix],
        prepared: &mut Prepared,
        out: &mut [f32],
    ) {
        let mut parts = [Part { matrix: weights[0], column: 0 }; MOST];
        let (mut count, mut column) = (0, 0);
        for matrix in weights {
            if matrix.dtype.arithmetic() == kind {
                parts[count] = Part { matrix, column };
                count += 1;
            }
            column += matrix.rows;
        }
        let (parts, stride) = (&parts[..count], column);
        match parts.first().map(|part| quantized::block_of(part.matrix.dtype)) {
            None => {}
            _ if matches!(kind, Arithmetic::Ternary | Arithmetic::Int8) => {
                let x = x.whole(kind == Arithmetic::Int8, &mut prepared.ints);
                if let (Arithmetic::Ternary, &[gate, up], Some(gates)) = (kind, parts, self.gates) {
                    return ternary::gate_up(self.pool, self.isa, &x, [gate, up], stride, gates, out);
                }
                if let Some(columns) = self.weights.columns.as_deref().filter(|columns| columns.pays(&x)) {
                    return ternary::matmul_columns(self.pool, self.isa, &x, columns, out);
                }
                tokens::matmul(self.pool, self.isa, &x, parts, stride, out);
            }
            Some(Some(block)) => {
                let x = x.blocks(block, &mut prepared.ints);
                quantized::matmul(self.pool, self.isa, &x, parts, stride, out);
            }
            Some(None) if self.weights.whole && parts.iter().all(|part| whole::takes(part.matrix.dtype)) => {
                let row = |n: usize, then: &mut dyn FnMut(&[f32])| x.with(n, false, then);
                let rows = whole::Rows { count: x.rows, cols: x.cols, row: &row };
                whole::matmul(self.pool, self.isa, &rows, parts, stride, &mut prepared.factors, out);
            }
            Some(None) => {
                let x = (x.floats(&mut prepared.floats), x.cols);
                dense::matmul(self.pool, self.isa, x.0, x.1, parts, stride, out);
            }
        }
    }
}
