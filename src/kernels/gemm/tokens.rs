//! Activations in int8 with one scale per token, and their products with `ternary` and `int8` weights.

use super::blocks::Part;
use super::driver::{self, Product, Scratch};
pub use super::formats::panels::padded;
#[cfg(any(test, target_arch = "x86_64"))]
use super::tiles;
use super::{int8, lookup, ternary};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::quantize::QuantRow;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::{Arithmetic, DType, Isa, Pool};
use std::cell::RefCell;
use std::ops::Deref;

/// Weight rows per task: whole panels of int8.
pub const TASK_ROWS: usize = 32;

/// The int8 activations of tokens, `[rows.len(), cols]`, with a scale and a sum per row. `cols` is `padded` of the
/// weights' columns; the padding is zero.
#[derive(Clone, Copy)]
pub struct Activations<'a> {
    pub values: &'a [i8],
    pub rows: &'a [QuantRow],
    pub cols: usize,
}

impl<'a> Activations<'a> {
    /// The first tokens, and the others.
    fn split_at(self, tokens: usize) -> (Self, Self) {
        let (first, last) = self.values.split_at(tokens * self.cols);
        let rows = self.rows.split_at(tokens);
        (Self { values: first, rows: rows.0, ..self }, Self { values: last, rows: rows.1, ..self })
    }

    #[inline]
    pub(super) fn row(&self, t: usize) -> &'a [i8] {
        &self.values[t * self.cols..(t + 1) * self.cols]
    }
}

/// The activations, as tasks read them.
pub struct Tokens<'a> {
    x: Activations<'a>,
    /// `[tokens, cols / 256]` sums of the activations of each block, if weights have `has_scaled_blocks`.
    sums: &'a [i32],
    /// The activations in the order of tiles, if the product uses tiles; else nothing.
    pub arranged: &'a [Line],
    /// The activations by columns, if the product looks up sums.
    turned: Option<lookup::Turned<'a>>,
}

impl<'a> Deref for Tokens<'a> {
    type Target = Activations<'a>;

    #[inline]
    fn deref(&self) -> &Activations<'a> {
        &self.x
    }
}

impl<'a> Tokens<'a> {
    pub fn new(
        isa: Isa,
        x: &Activations<'a>,
        parts: &[Part],
        sums: &'a mut Vec<i32>,
        arranged: &'a [Line],
    ) -> Self {
        let scaled = parts.iter().any(|part| part.matrix.dtype.has_scaled_blocks());
        let sums = grown(sums, if scaled { x.values.len() / 256 } else { 0 });
        if scaled {
            block_sums(isa, x.values, sums);
        }
        Self { x: *x, sums, arranged, turned: None }
    }

    pub fn sums(&self, t: usize) -> &'a [i32] {
        let blocks = self.cols / 256;
        &self.sums[t * blocks..(t + 1) * blocks]
    }
}

by_isa!(
    /// Sums of each 256 values.
    fn block_sums(values: &[i8], sums: &mut [i32]) = sums_of
);

#[inline(always)]
fn sums_of(values: &[i8], sums: &mut [i32]) {
    for (sum, block) in sums.iter_mut().zip(values.as_chunks::<256>().0) {
        *sum = block.iter().map(|v| *v as i32).sum();
    }
}

pub type Task<'a> = driver::Task<'a, Tokens<'a>>;

/// Computes `out[t, column + i] = x[t] · w[i] / scale(t)` for the rows `i` of each of `parts`; other columns of `out`
/// are unchanged.
///
/// `out` is `[x.rows.len(), stride]`. All matrices are ternary, or all are int8, and `padded` of their columns is
/// `x.cols`. No activation may be -128; `quantize_row` never produces it. The integer dot products are exact.
/// I2_S and `Ternary` give `dot * (weight scale / activation scale)`; TQ1_0 and TQ2_0 add `block dot * block scale`
/// block by block in f32, and then divide by the activation scale; int8 gives `dot * (weight scale * (1 / activation
/// scale))`.
pub fn matmul(pool: &Pool, isa: Isa, x: &Activations, parts: &[Part], stride: usize, out: &mut [f32]) {
    let tokens = x.rows.len();
    assert_eq!(x.values.len(), tokens * x.cols, "activations are [tokens, cols]");
    let Some(Part { matrix: first, .. }) = parts.first() else { return };
    for Part { matrix: m, .. } in parts {
        let kind = m.dtype.arithmetic();
        let fits = matches!(kind, Arithmetic::Ternary | Arithmetic::Int8) && padded(m.cols) == x.cols;
        assert!(fits && kind == first.dtype.arithmetic(), "a product of {:?}, {} columns", m.dtype, m.cols);
    }
    if tokens == 0 || x.cols == 0 {
        return out.fill(0.0);
    }
    PREPARED.with_borrow_mut(|prepared| {
        let looked_up = look_up(pool, isa, x, parts, stride, prepared, out);
        if looked_up == tokens {
            return;
        }
        let Prepared { sums, arranged, .. } = prepared;
        let ((_, x), out) = (x.split_at(looked_up), &mut out[looked_up * stride..]);
        let (arranged, height, depth) = arrange(pool, isa, &x, parts, arranged);
        let (tokens, x) = (x.rows.len(), &Tokens::new(isa, &x, parts, sums, arranged));
        let product = Product { pool, x, tokens, parts, only: None, stride, height, depth };
        product.run(out, &|task, scratch| run(isa, task, scratch));
    });
}

/// Computes the products of the first tokens, if look-ups are faster; returns their number.
fn look_up(
    pool: &Pool,
    isa: Isa,
    x: &Activations,
    parts: &[Part],
    stride: usize,
    Prepared { turned, scales, .. }: &mut Prepared,
    out: &mut [f32],
) -> usize {
    let tokens = x.rows.len();
    if tiled(isa, parts[0].matrix.dtype, tokens) {
        return 0;
    }
    let scales = grown(scales, tokens);
    scales.iter_mut().zip(x.rows).for_each(|(scale, row)| *scale = row.scale);
    let row = |t: usize| (x.row(t), &scales[t..=t]);
    lookup::products(pool, isa, parts, tokens, &row, turned, &mut |range, turned, height| {
        let out = &mut out[range.start * stride..range.end * stride];
        let (tokens, x) = (range.len(), x.split_at(range.start).1.split_at(range.len()).0);
        let x = &Tokens { x, sums: &[], arranged: &[], turned: Some(*turned) };
        let product = Product { pool, x, tokens, parts, only: None, stride, height, depth: None };
        product.run(out, &|task, scratch| run(isa, task, scratch));
        true
    })
}

#[cfg(any(test, target_arch = "x86_64"))]
fn tiled(isa: Isa, dtype: DType, tokens: usize) -> bool {
    tiles::pays(isa, dtype, tokens)
}

#[cfg(not(any(test, target_arch = "x86_64")))]
fn tiled(_: Isa, _: DType, _: usize) -> bool {
    false
}

/// Returns the activations in the order of tiles if the product uses tiles, the number of weight rows per task, and
/// the depth of the tiles.
#[cfg_attr(not(any(test, target_arch = "x86_64")), expect(unused_variables))]
fn arrange<'a>(
    pool: &Pool,
    isa: Isa,
    x: &Activations,
    parts: &[Part],
    lines: &'a mut Vec<Line>,
) -> (&'a [Line], usize, Option<usize>) {
    #[cfg(any(test, target_arch = "x86_64"))]
    if tiles::pays(isa, parts[0].matrix.dtype, x.rows.len()) {
        // Fewer threads get tasks with more rows, because each task has to wait for its first tiles.
        let all: usize = parts.iter().map(|part| part.matrix.rows).sum();
        let height = (all / (8 * pool.threads())).next_multiple_of(32).clamp(32, 128);
        let lines = match parts[0].matrix.dtype {
            DType::Int8 => tiles::int8::arrange(pool, x, lines),
            // SAFETY: such a set is passed only on a machine that has tiles.
            _ => unsafe { tiles::ternary::arrange(pool, x, lines) },
        };
        return (lines, height, Some(tiles::DEPTH));
    }
    (&[], TASK_ROWS, None)
}

fn run(isa: Isa, task: &Task, scratch: &mut Scratch) {
    match task.dtype {
        // SAFETY (of both): such a set is passed only on a machine that has tiles; the driver configures them.
        #[cfg(any(test, target_arch = "x86_64"))]
        DType::Int8 if !task.x.arranged.is_empty() => unsafe { tiles::int8::run(task, scratch) },
        #[cfg(any(test, target_arch = "x86_64"))]
        _ if !task.x.arranged.is_empty() => unsafe { tiles::ternary::run(task, scratch) },
        DType::Int8 => int8::run(isa, task, scratch),
        _ if let Some(turned) = &task.x.turned => {
            let done = lookup::run(isa, task, turned, scratch);
            debug_assert!(done, "each ternary weight has an entry");
        }
        _ => ternary::run(isa, task, scratch),
    }
}

/// Buffers for the activations of a product, in the thread that calls it. They grow to the largest product, and are
/// kept.
#[derive(Default)]
pub struct Prepared {
    /// `Tokens::sums`.
    pub sums: Vec<i32>,
    /// `Tokens::arranged`.
    arranged: Vec<Line>,
    turned: lookup::Buffers,
    scales: Vec<f32>,
}

thread_local! {
    pub static PREPARED: RefCell<Prepared> = RefCell::default();
}
