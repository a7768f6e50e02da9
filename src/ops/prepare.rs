//! Everything before a product, in one pass over a row: the sum or the gate that makes the row, its norm, its
//! rotation, and int8 quantization. If only the int8 form is multiplied, the f32 row is never written to memory.

use super::{Activation, Fold, Norm};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::tokens::{self, Activations};
use crate::kernels::pool::buffer::{Line, grown, grown_lines};
use crate::kernels::rows::hadamard::rotate;
use crate::kernels::rows::quantize::{QuantRow, quantize_row};
use crate::kernels::rows::quantize_blocks::{BlockActivations, columns_of_sum, quantize_blocks};
use crate::kernels::rows::{elementwise, norm};
use crate::kernels::{Isa, Pool};
use std::cell::RefCell;

/// Source of the rows.
pub(super) enum Source<'a> {
    /// `[rows, cols]`.
    Rows(&'a [f32]),
    /// `x += y`, or `x += norm(y)`, then the rows of `x`. Both are `[rows, cols]`.
    Sum { x: SharedOut<'a>, y: &'a [f32], norm: Option<&'a Norm> },
    /// `[rows, 2 cols]`, gate first; `[rows, cols]` without gates.
    Gated { gate_up: &'a [f32], activation: Activation },
}

/// The input rows of a product.
pub(super) struct Rows<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub source: Source<'a>,
    pub norm: Option<&'a Norm>,
    /// Rows are rotated after the norm.
    pub fold: Option<&'a Fold>,
    pub rows: usize,
    pub cols: usize,
}

/// Prepared rows; grows to the widest, then is reused.
#[derive(Default)]
pub(super) struct Prepared {
    pub floats: Vec<f32>,
    pub ints: Ints,
    /// Rows as `dense::whole` arranges them.
    pub factors: Vec<Line>,
}

/// Quantized rows of one kind.
#[derive(Default)]
pub(super) struct Ints {
    int8: Vec<Line>,
    /// One entry per row, for rows with one scale.
    rows: Vec<QuantRow>,
    /// For rows in blocks.
    scales: Vec<f32>,
    sums: Vec<i16>,
}

thread_local! {
    /// Buffer for one row before it is quantized.
    static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// One row before it is rotated, or added.
    static UNFOLDED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl<'a> Rows<'a> {
    /// The rows in f32, `[rows, cols]`.
    pub(super) fn floats<'p>(&self, to: &'p mut Vec<f32>) -> &'p [f32]
    where
        'a: 'p,
    {
        if let (Source::Rows(x), None, None) = (&self.source, self.norm, self.fold) {
            return x;
        }
        let (count, cols) = (self.rows, self.cols);
        let out = grown(to, count * cols);
        let shared = SharedOut::new(out);
        self.pool.run_if_worth(self.work(), count, &|n| {
            // SAFETY: each task has a row of its own.
            let to = unsafe { shared.slice(n * cols..(n + 1) * cols) };
            if let Some(row) = self.make(n, to) {
                to.copy_from_slice(row);
            }
        });
        out
    }

    /// The rows in int8 with one scale each, for int8 weights `rotated` as these are. Rows are `tokens::padded(cols)`
    /// wide and end with zeros.
    pub(super) fn whole<'p>(&self, rotated: bool, to: &'p mut Ints) -> Activations<'p> {
        let (count, cols, width) = (self.rows, self.cols, tokens::padded(self.cols));
        let (int8, rows) = (grown_lines(&mut to.int8, count * width), grown(&mut to.rows, count));
        let (values, scales) = (SharedOut::new(int8), SharedOut::new(rows));
        self.pool.run_if_worth(self.work(), count, &|n| {
            // SAFETY: each task has a row of its own.
            let (values, scale) =
                unsafe { (values.slice(n * width..(n + 1) * width), scales.slice(n..n + 1)) };
            let (values, padding) = values.split_at_mut(cols);
            self.with(n, rotated, &mut |row| scale[0] = quantize_row(self.isa, row, values));
            padding.fill(0);
        });
        Activations { values: int8, rows, cols: width }
    }

    /// The rows in int8 with one scale per `block` columns, 32 or 256.
    pub(super) fn blocks<'p>(&self, block: usize, to: &'p mut Ints) -> BlockActivations<'p> {
        let (count, cols, columns) = (self.rows, self.cols, columns_of_sum(block));
        let int8 = grown_lines(&mut to.int8, count * cols);
        let scales = grown(&mut to.scales, count * cols / block);
        let sums = grown(&mut to.sums, count * cols / columns);
        let out = (SharedOut::new(int8), SharedOut::new(scales), SharedOut::new(sums));
        self.pool.run_if_worth(self.work(), count, &|n| {
            let part = |each: usize| n * cols / each..(n + 1) * cols / each;
            // SAFETY: each task has a row of its own, and rows are whole blocks.
            let (values, scales, sums) =
                unsafe { (out.0.slice(part(1)), out.1.slice(part(block)), out.2.slice(part(columns))) };
            self.with(n, false, &mut |row| quantize_blocks(self.isa, block, row, values, scales, sums));
        });
        BlockActivations { values: int8, scales, sums, cols, block }
    }

    /// Calls `then` with row `n`, `rotated` or not, which may be in this thread's buffer.
    pub(super) fn with(&self, n: usize, rotated: bool, then: &mut dyn FnMut(&[f32])) {
        ROW.with_borrow_mut(|buffer| {
            let buffer = grown(buffer, self.cols);
            match self.make(n, buffer) {
                Some(row) if !rotated => return then(row),
                Some(row) => buffer.copy_from_slice(row),
                None => {}
            }
            if rotated {
                rotate(self.isa, buffer);
            }
            then(buffer);
        });
    }

    /// Makes row `n`. Returns it if it is already in memory; otherwise writes it to `to` and returns `None`.
    fn make(&self, n: usize, to: &mut [f32]) -> Option<&[f32]> {
        let Some(fold) = self.fold else { return self.normed(n, to) };
        match self.normed(n, to) {
            Some(row) => fold.apply(self.isa, row, to),
            None => UNFOLDED.with_borrow_mut(|row| {
                let row = grown(row, self.cols);
                row.copy_from_slice(to);
                fold.apply(self.isa, row, to);
            }),
        }
        None
    }

    /// As `make`, before the rotation.
    fn normed(&self, n: usize, to: &mut [f32]) -> Option<&[f32]> {
        let at = n * self.cols..(n + 1) * self.cols;
        let row: &[f32] = match &self.source {
            Source::Rows(x) => &x[at],
            Source::Sum { x, y, norm } => {
                // SAFETY: one task makes this row, once, and no other code accesses `x` meanwhile.
                let x = unsafe { x.slice(at.clone()) };
                match norm {
                    Some(norm) => norm.add_to(self.isa, x, &y[at]),
                    None => elementwise::add(self.isa, x, &y[at]),
                }
                x
            }
            Source::Gated { gate_up, activation } => {
                let width = activation.products() * self.cols;
                activation.apply(self.isa, &gate_up[n * width..(n + 1) * width], to);
                if let Some(norm) = self.norm {
                    norm.in_place(self.isa, to);
                }
                return None;
            }
        };
        let Some(norm) = self.norm else { return Some(row) };
        norm.apply(self.isa, row, to);
        None
    }

    /// Approximate number of operations.
    fn work(&self) -> usize {
        let each = match self.source {
            Source::Rows(_) => 2,
            Source::Sum { .. } => 3,
            Source::Gated { .. } => 6,
        };
        let rotation = self.fold.map_or(0, Fold::operations);
        (each + rotation) * self.rows * self.cols
    }
}

impl Norm {
    /// The norm of one row.
    pub(super) fn apply(&self, isa: Isa, x: &[f32], out: &mut [f32]) {
        match self.bias {
            None => norm::rms_norm(isa, x, &self.weight, self.eps, out),
            Some(_) => {
                out.copy_from_slice(x);
                self.in_place(isa, out);
            }
        }
    }

    pub(super) fn in_place(&self, isa: Isa, x: &mut [f32]) {
        match &self.bias {
            None => norm::rms_norm_in_place(isa, x, &self.weight, self.eps),
            Some(bias) => norm::layer_norm_in_place(isa, x, &self.weight, bias, self.eps),
        }
    }

    /// Adds the norm of `y` to `x`.
    pub(super) fn add_to(&self, isa: Isa, x: &mut [f32], y: &[f32]) {
        match self.bias {
            None => norm::add_rms_norm(isa, x, y, &self.weight, self.eps),
            Some(_) => UNFOLDED.with_borrow_mut(|row| {
                let row = grown(row, y.len());
                self.apply(isa, y, row);
                elementwise::add(isa, x, row);
            }),
        }
    }
}

impl Activation {
    /// Number of products that it combines.
    pub(super) fn products(self) -> usize {
        if self.gated() { 2 } else { 1 }
    }

    /// Applies the activation to one row, gate first if there is a gate.
    pub(super) fn apply(self, isa: Isa, gate_up: &[f32], out: &mut [f32]) {
        let (gate, up) = if self.gated() { gate_up.split_at(out.len()) } else { (&[][..], gate_up) };
        self.apply_to(isa, gate, up, out);
    }

    /// As `apply`, to a gate that stands elsewhere; an empty one if there is none.
    pub(super) fn apply_to(self, isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
        match self {
            Activation::Gelu => elementwise::gelu(isa, up, out),
            Activation::SwiGlu => elementwise::swiglu(isa, gate, up, out),
            Activation::ClampedSwiGlu { limit } => elementwise::clamped_swiglu(isa, limit, gate, up, out),
            Activation::ScaledSwiGlu { by, output } => {
                elementwise::scaled_swiglu(isa, [by, output], gate, up, out)
            }
            Activation::SteepSwiGlu { alpha, limit } => {
                elementwise::steep_swiglu(isa, [alpha, limit], gate, up, out);
            }
            Activation::Relu2 => elementwise::relu2(isa, gate, up, out),
            Activation::GeGlu => elementwise::geglu(isa, gate, up, out),
            Activation::GeGluErf => elementwise::geglu_erf(isa, gate, up, out),
            Activation::GeluErf => elementwise::gelu_erf(isa, up, out),
        }
    }
}
