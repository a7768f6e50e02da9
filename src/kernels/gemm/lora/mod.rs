//! Low-rank updates of a product (Hu et al. 2021, "LoRA"): `y += s B (A x)` for some of its rows.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use crate::kernels::gemm::blocks::{MOST, Part, SharedOut};
use crate::kernels::gemm::dense;
use crate::kernels::simd::dispatch::{by_count, by_isa};
use crate::kernels::simd::lanes::{BF16, Element, F16, F32, Lanes};
use crate::kernels::{DType, Isa, Matrix, Pool};
use std::ops::Range;

/// Number of columns of each matrix in a task. An update has as many tasks as the widest matrix needs; some of them
/// have no columns of a narrower matrix.
const COLUMNS: usize = 512;
const LANES: usize = 16;
/// Number of rows that share the loads of B.
const ROWS: usize = 4;

/// The update of one matrix.
#[derive(Clone)]
pub struct Pair {
    /// `[rank, cols]`, in F32, F16 or BF16, as `b` is.
    pub a: Matrix,
    /// The transpose of B, `[rank, rows]`, so that outputs are side by side.
    pub b: Matrix,
    pub scale: f32,
}

/// The updates of some rows of a product: one for each of its matrices, or None if the matrix has no update.
pub struct Update<'a> {
    pub pairs: &'a [Option<Pair>],
    /// The inputs of the rows, `[rows.len(), cols]`.
    pub x: &'a [f32],
    /// Indices of these rows in `y`; no two updates share a row.
    pub rows: &'a [u32],
    /// Multiplies the scale of every pair.
    pub scale: f32,
}

impl Update<'_> {
    /// Number of values between A and B for each row, over all pairs.
    pub fn ranks(&self) -> usize {
        self.pairs.iter().flatten().map(|pair| pair.a.rows).sum()
    }
}

/// Computes `y[row, column of matrix i + j] += s B_i[j] · (A_i x)` for the rows of all `updates`. `widths` are the
/// numbers of rows of the product's matrices, whose outputs are side by side in `y`, `[_, sum of widths]`. `between`
/// has room for `ranks` values for each row of each update.
///
/// `A x` has the bits of `dense::matmul`. Each element of the update is added up in the order of ranks before it is
/// added to `y`: the bits of a row do not depend on other rows.
pub fn add(
    pool: &Pool,
    isa: Isa,
    updates: &[Update],
    cols: usize,
    widths: &[usize],
    between: &mut [f32],
    y: &mut [f32],
) {
    let stride: usize = widths.iter().sum();
    let starts = || {
        updates.iter().scan(0, |next, update| {
            let start = *next;
            *next += update.ranks() * update.rows.len();
            Some(start..*next)
        })
    };
    let numbers: usize = updates.iter().map(|update| update.ranks() * update.rows.len()).sum();
    assert!(between.len() >= numbers && widths.len() <= MOST, "a buffer for {numbers} numbers");
    let shared = SharedOut::new(between);
    pool.run_if_worth(2 * cols * numbers, updates.len(), &|n| {
        let Some(at) = starts().nth(n) else { return };
        // SAFETY: each update has its own numbers.
        down(pool, isa, &updates[n], cols, unsafe { shared.slice(at) });
    });
    let (between, y) = (&*between, SharedOut::new(y));
    let parts = widths.iter().max().map_or(0, |widest| widest.div_ceil(COLUMNS));
    let work = 2 * numbers * stride / widths.len().max(1);
    pool.run_if_worth(work, updates.len() * parts, &|task| {
        let (n, part) = (task / parts, task % parts);
        let Some(at) = starts().nth(n) else { return };
        let (update, between) = (&updates[n], &between[at]);
        let (mut column, mut rank) = (0, 0);
        for (pair, width) in update.pairs.iter().zip(widths) {
            if let Some(pair) = pair {
                assert!(pair.b.rows == pair.a.rows && pair.b.cols == *width, "a pair as its matrix");
                let columns = (part * COLUMNS).min(*width)..((part + 1) * COLUMNS).min(*width);
                let (t, ranks) = (&between[rank..], update.ranks());
                up(isa, &Up { b: &pair.b, t, ranks, rows: update.rows, y: &y, stride, column }, columns);
                rank += pair.a.rows;
            }
            column += width;
        }
    });
}

/// Computes `s A x` of every pair, side by side.
fn down(pool: &Pool, isa: Isa, update: &Update, cols: usize, out: &mut [f32]) {
    let Some(first) = update.pairs.iter().flatten().next() else { return };
    let mut parts = [Part { matrix: &first.a, column: 0 }; MOST];
    let (mut count, mut column) = (0, 0);
    for pair in update.pairs.iter().flatten() {
        parts[count] = Part { matrix: &pair.a, column };
        count += 1;
        column += pair.a.rows;
    }
    dense::matmul(pool, isa, update.x, cols, &parts[..count], column, out);
    for row in out.chunks_exact_mut(column) {
        let mut rest = row;
        for pair in update.pairs.iter().flatten() {
            let (own, behind) = rest.split_at_mut(pair.a.rows);
            own.iter_mut().for_each(|t| *t *= update.scale * pair.scale);
            rest = behind;
        }
    }
}

/// The update of some rows of a product by one matrix.
#[derive(Clone, Copy)]
struct Up<'a> {
    b: &'a Matrix,
    /// The numbers between A and B; those of the next row are `ranks` further.
    t: &'a [f32],
    ranks: usize,
    rows: &'a [u32],
    y: &'a SharedOut<'a>,
    stride: usize,
    /// The first column of the matrix in the product.
    column: usize,
}

fn up(isa: Isa, up: &Up, columns: Range<usize>) {
    match up.b.dtype {
        DType::F32 => up_of::<F32>(isa, up, columns),
        DType::F16 => up_of::<F16>(isa, up, columns),
        DType::BF16 => up_of::<BF16>(isa, up, columns),
        other => panic!("a low-rank update in {other:?}"),
    }
}

by_isa!(
    /// Adds `t[n] · b` to each of the rows, for some of the columns.
    fn up_of<E: Element>(up: &Up, columns: Range<usize>) = up_in_lanes::<lanes>, up_in_scalars
);

#[inline(always)]
unsafe fn up_in_lanes<L: Lanes, E: Element>(up: &Up, columns: Range<usize>) {
    let whole = columns.start..columns.end - columns.len() % LANES;
    for (n, rows) in up.rows.chunks(ROWS).enumerate() {
        let some = &Up { t: &up.t[n * ROWS * up.ranks..], rows, ..*up };
        // SAFETY: the caller has the instructions.
        unsafe {
            by_count!(rows.len(), N in 1 2 3 4, strip::<L, E, N>(some, whole.clone()), else unreachable!());
        }
    }
    up_in_scalars::<E>(up, whole.end..columns.end);
}

/// Computes whole sixteens of columns of N rows.
#[inline(always)]
unsafe fn strip<L: Lanes, E: Element, const N: usize>(up: &Up, columns: Range<usize>) {
    // Look up the address of the matrix's bytes once, not for each row.
    let (ranks, width, data) = (up.b.rows, up.b.cols, &up.b.data[..]);
    assert!(columns.end <= width && data.len() == ranks * width * E::BYTES && up.rows.len() == N);
    assert!(up.t.len() >= (N - 1) * up.ranks + ranks);
    for j in columns.step_by(LANES) {
        // SAFETY: sixteen columns of `b` from `j` on, which end before `columns.end`; the caller has the
        // instructions.
        unsafe {
            let mut sums = [L::splat(0.0); N];
            for k in 0..ranks {
                let weights = E::load::<L>(data.as_ptr().add((k * width + j) * E::BYTES));
                for n in 0..N {
                    sums[n] = L::splat(up.t[n * up.ranks + k]).fma(weights, sums[n]);
                }
            }
            for n in 0..N {
                let y = up.columns(up.rows[n], j..j + LANES).as_mut_ptr();
                L::load(y).add(sums[n]).store(y);
            }
        }
    }
}

fn up_in_scalars<E: Element>(up: &Up, columns: Range<usize>) {
    let data = &up.b.data[..];
    let weight = |k: usize, j: usize| E::value(&data[(k * up.b.cols + j) * E::BYTES..]);
    for (n, row) in up.rows.iter().enumerate() {
        let t = &up.t[n * up.ranks..][..up.b.rows];
        // SAFETY: see `Up::columns`.
        let y = unsafe { up.columns(*row, columns.clone()) };
        for (y, j) in y.iter_mut().zip(columns.clone()) {
            *y += t.iter().enumerate().fold(0.0f32, |sum, (k, t)| t.mul_add(weight(k, j), sum));
        }
    }
}

impl Up<'_> {
    /// # Safety
    ///
    /// Only one task writes to these columns of this row, and has no other slice of them: rows belong to one
    /// update, columns to one matrix, and parts of a matrix to tasks.
    #[allow(clippy::mut_from_ref)]
    unsafe fn columns(&self, row: u32, columns: Range<usize>) -> &mut [f32] {
        let start = row as usize * self.stride + self.column;
        // SAFETY: the caller's promise.
        unsafe { self.y.slice(start + columns.start..start + columns.end) }
    }
}

#[cfg(test)]
mod tests;
