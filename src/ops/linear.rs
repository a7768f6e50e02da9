//! Norm, int8 quantization where the weights are ternary, and the product: one pass over the activations.

use super::Norm;
use super::support::{f32s, output, rows, zeroed};
use crate::kernels::blocks::SharedOut;
use crate::kernels::quantize::{QuantRow, quantize_row};
use crate::kernels::ternary::{self, Activations};
use crate::kernels::{Isa, Matrix, Pool, dense, norm};
use candle_core::{CpuStorage, CustomOp1, Layout, Shape};
use parking_lot::Mutex;

/// Normed and quantized activations of one product; grown to the widest, then reused.
#[derive(Default)]
pub struct Scratch {
    normed: Vec<f32>,
    int8: Vec<i8>,
    quantized: Vec<QuantRow>,
}

/// Matrices of one product: q, k and v.
const MOST: usize = 3;

pub struct Linear<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub scratch: &'a Mutex<Scratch>,
    pub norm: Option<&'a Norm>,
    /// Equal `cols`; all ternary or none.
    pub weights: &'a [Matrix],
}

impl CustomOp1 for Linear<'_> {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let cols = self.check()?;
        let rows = rows(layout, cols)?;
        let x = f32s(x, layout)?;
        let mut refs = [&self.weights[0]; MOST];
        refs.iter_mut().zip(self.weights).for_each(|(to, matrix)| *to = matrix);
        let weights = &refs[..self.weights.len()];
        let width = weights.iter().map(|m| m.rows).sum::<usize>();
        let mut out = zeroed(rows * width)?;
        let scratch = &mut *self.scratch.lock();
        let x = match self.norm {
            Some(norm) => self.normalize(norm, x, cols, &mut scratch.normed),
            None => x,
        };
        if weights[0].dtype.is_ternary() {
            self.quantize(x, cols, &mut scratch.int8, &mut scratch.quantized);
            let width = ternary::padded(cols);
            let values = &scratch.int8[..rows * width];
            let x = Activations { values, rows: &scratch.quantized[..rows], cols: width };
            ternary::matmul(self.pool, self.isa, &x, weights, &mut out);
        } else {
            dense::matmul(self.pool, self.isa, x, cols, weights, &mut out);
        }
        Ok(output(out, rows, width))
    }
}

impl Linear<'_> {
    /// The weights agree; their columns.
    fn check(&self) -> candle_core::Result<usize> {
        let Some(first) = self.weights.first().filter(|_| self.weights.len() <= MOST) else {
            candle_core::bail!("a product needs 1 to {MOST} matrices")
        };
        let alike = |m: &Matrix| m.cols == first.cols && m.dtype.is_ternary() == first.dtype.is_ternary();
        if !self.weights.iter().all(alike) {
            candle_core::bail!("the weights of one product differ in width or in kind");
        }
        if self.norm.is_some_and(|norm| norm.weight.len() != first.cols) {
            candle_core::bail!("the norm is not as wide as the weights");
        }
        if first.cols == 0 {
            candle_core::bail!("a product over no columns");
        }
        Ok(first.cols)
    }

    fn normalize<'a>(&self, norm: &Norm, x: &[f32], cols: usize, out: &'a mut Vec<f32>) -> &'a [f32] {
        if out.len() < x.len() {
            out.resize(x.len(), 0.0);
        }
        let out = &mut out[..x.len()];
        let shared = SharedOut::new(out);
        self.pool.run_if_worth(x.len(), x.len() / cols, &|row| {
            let at = row * cols..(row + 1) * cols;
            // SAFETY: each task has a row of its own.
            let out = unsafe { shared.slice(at.clone()) };
            norm::rms_norm(self.isa, &x[at], &norm.weight, norm.eps, out);
        });
        out
    }

    /// Rows of int8, `ternary::padded(cols)` wide.
    fn quantize(&self, x: &[f32], cols: usize, int8: &mut Vec<i8>, quantized: &mut Vec<QuantRow>) {
        let (rows, width) = (x.len() / cols, ternary::padded(cols));
        if int8.len() < rows * width {
            int8.resize(rows * width, 0);
        }
        if quantized.len() < rows {
            quantized.resize(rows, QuantRow::default());
        }
        let values = SharedOut::new(&mut int8[..rows * width]);
        let scales = SharedOut::new(&mut quantized[..rows]);
        self.pool.run_if_worth(x.len(), rows, &|row| {
            // SAFETY: each task has a row of its own.
            let (values, scale) =
                unsafe { (values.slice(row * width..(row + 1) * width), scales.slice(row..row + 1)) };
            let (values, padding) = values.split_at_mut(cols);
            scale[0] = quantize_row(self.isa, &x[row * cols..(row + 1) * cols], values);
            padding.fill(0);
        });
    }
}
