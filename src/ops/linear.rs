//! Norms, quantization of activations as the weights' type wants it, the product and its bias.

use super::support::{f32s, output, rows, zeroed};
use super::{Norm, Projections};
use crate::kernels::blocks::{MOST, Part, SharedOut};
use crate::kernels::quantize::{QuantRow, quantize_row};
use crate::kernels::quantize_blocks::{BlockActivations, columns_of_sum, quantize_blocks};
use crate::kernels::ternary::{self, Activations};
use crate::kernels::{Arithmetic, Isa, Matrix, Pool, dense, elementwise, norm, quantized};
use candle_core::{CpuStorage, CustomOp1, Layout, Shape};
use parking_lot::Mutex;

/// Normed and quantized activations of one product; grown to the widest, then reused.
#[derive(Default)]
pub struct Scratch {
    normed: Vec<f32>,
    quantizer: Quantizer,
    /// A matrix's own normed input and its product, where it has a norm of its own.
    own: Vec<f32>,
    part: Vec<f32>,
}

/// Activations of one arithmetic at a time.
#[derive(Default)]
struct Quantizer {
    int8: Vec<i8>,
    rows: Vec<QuantRow>,
    /// Of blocks.
    scales: Vec<f32>,
    sums: Vec<i16>,
}

pub struct Linear<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub scratch: &'a Mutex<Scratch>,
    pub norm: Option<&'a Norm>,
    pub weights: &'a Projections,
}

impl CustomOp1 for Linear<'_> {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let cols = self.check()?;
        let rows = rows(layout, cols)?;
        let x = f32s(x, layout)?;
        let matrices = &self.weights.matrices;
        let width = matrices.iter().map(|m| m.rows).sum::<usize>();
        let mut out = zeroed(rows * width)?;
        let Scratch { normed, quantizer, own, part } = &mut *self.scratch.lock();
        let x = match self.norm {
            Some(norm) => self.normalize(norm, x, cols, normed),
            None => x,
        };
        if self.weights.norms.is_empty() {
            let mut refs = [&matrices[0]; MOST];
            refs.iter_mut().zip(matrices).for_each(|(to, matrix)| *to = matrix);
            self.product(x, &refs[..matrices.len()], quantizer, &mut out);
        }
        let mut column = 0;
        for (matrix, norm) in matrices.iter().zip(&self.weights.norms) {
            let x = self.normalize(norm, x, cols, own);
            if part.len() < rows * matrix.rows {
                part.resize(rows * matrix.rows, 0.0);
            }
            let part = &mut part[..rows * matrix.rows];
            self.product(x, &[matrix], quantizer, part);
            for (out, part) in out.chunks_exact_mut(width).zip(part.chunks_exact(matrix.rows)) {
                out[column..column + matrix.rows].copy_from_slice(part);
            }
            column += matrix.rows;
        }
        if let Some(bias) = &self.weights.bias {
            let shared = SharedOut::new(&mut out);
            self.pool.run_if_worth(rows * width, rows, &|row| {
                // SAFETY: each task has a row of its own.
                let out = unsafe { shared.slice(row * width..(row + 1) * width) };
                elementwise::add(out, bias);
            });
        }
        Ok(output(out, rows, width))
    }
}

impl Linear<'_> {
    /// The weights agree; their columns.
    fn check(&self) -> candle_core::Result<usize> {
        let Projections { matrices, bias, norms } = self.weights;
        let Some(first) = matrices.first().filter(|_| matrices.len() <= MOST) else {
            candle_core::bail!("a product needs 1 to {MOST} matrices")
        };
        let alike = |m: &Matrix| m.cols == first.cols && m.dtype.is_ternary() == first.dtype.is_ternary();
        if !matrices.iter().all(alike) || matrices.iter().any(|m| m.rows == 0) {
            candle_core::bail!("the weights of one product differ in width or in kind");
        }
        if self.norm.iter().copied().chain(norms).any(|norm| norm.weight.len() != first.cols) {
            candle_core::bail!("the norm is not as wide as the weights");
        }
        if !norms.is_empty() && norms.len() != matrices.len() {
            candle_core::bail!("{} norms for {} matrices", norms.len(), matrices.len());
        }
        let width = matrices.iter().map(|m| m.rows).sum::<usize>();
        if bias.as_ref().is_some_and(|bias| bias.len() != width) {
            candle_core::bail!("the bias is not as wide as the product");
        }
        if first.cols == 0 {
            candle_core::bail!("a product over no columns");
        }
        Ok(first.cols)
    }

    /// `x` `[rows, cols]` with all of `weights`, side by side in `out`. Those of one arithmetic are one product.
    fn product(&self, x: &[f32], weights: &[&Matrix], quantizer: &mut Quantizer, out: &mut [f32]) {
        let cols = weights[0].cols;
        if weights[0].dtype.is_ternary() {
            let x = self.quantize(x, cols, quantizer);
            return ternary::matmul(self.pool, self.isa, &x, weights, out);
        }
        let stride = weights.iter().map(|m| m.rows).sum::<usize>();
        for arithmetic in [Arithmetic::Blocks32, Arithmetic::Blocks256, Arithmetic::Float] {
            let mut parts = [Part { matrix: weights[0], column: 0 }; MOST];
            let (mut count, mut column) = (0, 0);
            for matrix in weights {
                if matrix.dtype.arithmetic() == arithmetic {
                    parts[count] = Part { matrix, column };
                    count += 1;
                }
                column += matrix.rows;
            }
            let parts = &parts[..count];
            match parts.first().map(|part| quantized::block_of(part.matrix.dtype)) {
                None => {}
                Some(Some(block)) => {
                    let x = self.quantize_blocks(x, cols, block, quantizer);
                    quantized::matmul(self.pool, self.isa, &x, parts, stride, out);
                }
                Some(None) => dense::matmul(self.pool, self.isa, x, cols, parts, stride, out),
            }
        }
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
    fn quantize<'a>(&self, x: &[f32], cols: usize, quantizer: &'a mut Quantizer) -> Activations<'a> {
        let (count, width, Quantizer { int8, rows, .. }) = (x.len() / cols, ternary::padded(cols), quantizer);
        if int8.len() < count * width {
            int8.resize(count * width, 0);
        }
        if rows.len() < count {
            rows.resize(count, QuantRow::default());
        }
        let values = SharedOut::new(&mut int8[..count * width]);
        let scales = SharedOut::new(&mut rows[..count]);
        self.pool.run_if_worth(x.len(), count, &|row| {
            // SAFETY: each task has a row of its own.
            let (values, scale) =
                unsafe { (values.slice(row * width..(row + 1) * width), scales.slice(row..row + 1)) };
            let (values, padding) = values.split_at_mut(cols);
            scale[0] = quantize_row(self.isa, &x[row * cols..(row + 1) * cols], values);
            padding.fill(0);
        });
        Activations { values: &int8[..count * width], rows: &rows[..count], cols: width }
    }

    /// Rows of int8 with a scale for each `block` columns.
    fn quantize_blocks<'a>(
        &self,
        x: &[f32],
        cols: usize,
        block: usize,
        quantizer: &'a mut Quantizer,
    ) -> BlockActivations<'a> {
        let Quantizer { int8, scales, sums, .. } = quantizer;
        let (blocks, columns) = (x.len() / block, columns_of_sum(block));
        let int8 = first(int8, x.len());
        let (scales, sums) = (first(scales, blocks), first(sums, x.len() / columns));
        let to = (SharedOut::new(int8), SharedOut::new(scales), SharedOut::new(sums));
        self.pool.run_if_worth(x.len(), x.len() / cols, &|row| {
            let part = |len: usize| row * cols / len..(row + 1) * cols / len;
            // SAFETY: each task has a row of its own.
            let (values, scales, sums) =
                unsafe { (to.0.slice(part(1)), to.1.slice(part(block)), to.2.slice(part(columns))) };
            quantize_blocks(self.isa, block, &x[part(1)], values, scales, sums);
        });
        BlockActivations { values: int8, scales, sums, cols, block }
    }
}

/// The first `len` elements, which are there then.
fn first<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}
