//! Adds the entries of a tile's tables to the sums of rows.

#![allow(clippy::needless_range_loop)] // fixed ranges keep sums in registers

use super::Offsets;
use super::index::Source;
use super::sums::{Digits, Sums};
use crate::kernels::Isa;
use crate::kernels::gemm::driver::Task;
use crate::kernels::pool::buffer::Line;
use crate::kernels::simd::bytes::{Bytes, put};
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::ints::Ints;
use crate::kernels::simd::lanes::{Lanes, Real};
use crate::kernels::simd::shorts::Shorts;
use std::hint::black_box;
use std::ops::Range;

/// Rows to prefetch for the next panel, while one of its tiles is added.
#[derive(Clone)]
pub(super) struct Ahead<'a> {
    source: &'a Source<'a>,
    /// The rows of each sixteen.
    rows: Range<usize>,
}

impl<'a> Ahead<'a> {
    /// The share of `count` steps from `n` on, of `steps`.
    pub(super) fn new(source: &'a Source<'a>, n: usize, steps: usize, count: usize) -> Self {
        Self { source, rows: 16 * n / steps..16 * (n + count) / steps }
    }

    /// Prefetches the rows of the sixteen from `first` on.
    #[inline(always)]
    fn fetch<S: Shorts>(&self, first: usize) {
        for row in self.rows.clone() {
            // Hidden from compilers, which would unroll the loop many times.
            let [start, end] = black_box(self.source.next(first + row));
            S::Floats::fetch(start);
            S::Floats::fetch(end);
        }
    }
}

/// A tile of all rows, for the tokens of a vector; or two tiles, if sums are not LONG.
pub(super) struct Step<'a> {
    /// Of each row, for the tile and for its neighbor.
    pub offsets: &'a [Offsets],
    /// Whether the tile is the second of the two.
    pub second: bool,
    pub tables: &'a [Line],
    /// The scales of rows.
    pub scales: &'a [f32],
    /// The scales of tokens in each tile.
    pub tokens: [&'a [f32]; 2],
    pub ahead: Ahead<'a>,
    /// Sums of this panel, `[rows, tokens]`, if LONG.
    pub shorts: &'a mut [i16],
    /// The totals, `[rows, tokens]`.
    pub totals: &'a mut [f32],
}

impl Step<'_> {
    /// Adds the tile, which is the first of a panel, the last, or both.
    pub(super) fn add<F: Sums>(self, isa: Isa, first: bool, last: bool) {
        if !F::LONG {
            return self.add_which::<F, { FIRST | LAST }>(isa);
        }
        match (first, last) {
            (false, false) => self.add_which::<F, 0>(isa),
            (true, false) => self.add_which::<F, FIRST>(isa),
            (false, true) => self.add_which::<F, LAST>(isa),
            (true, true) => self.add_which::<F, { FIRST | LAST }>(isa),
        }
    }

    fn add_which<F: Sums, const WHICH: usize>(self, isa: Isa) {
        match self.tokens[0].len() {
            // On a Zen 4, code for AVX2 is as fast with sixteen tokens, or faster.
            16 => add_sixteen::<F, WHICH>(isa.of_256_bits(), self),
            _ => add_double::<F, WHICH>(isa, self),
        }
    }
}

/// There are no sums yet.
const FIRST: usize = 1;
/// Sums are added to the totals.
const LAST: usize = 2;

by_isa!(fn add_sixteen<F: Sums, const WHICH: usize>(step: Step) = add_in::<sixteen>);
by_isa!(fn add_double<F: Sums, const WHICH: usize>(step: Step) = add_in::<double>);

#[inline(always)]
unsafe fn add_in<S: Shorts, F: Sums, const WHICH: usize>(step: Step) {
    let Step { offsets, second, tables, scales, tokens, ahead, shorts, totals } = step;
    let rows = offsets.len();
    assert!(rows.is_multiple_of(16) && scales.len() == rows);
    assert!(tokens.iter().all(|tokens| tokens.len() == S::LANES) && totals.len() == rows * S::LANES);
    assert!(WHICH == FIRST | LAST || shorts.len() >= rows * S::LANES);
    let size = F::Digits::ENTRIES * S::LANES * 2;
    assert!(size_of_val(tables) >= if F::LONG { size } else { 2 * size });
    let (tables, shorts, totals) = (tables.as_ptr().cast::<u8>(), shorts.as_mut_ptr(), totals.as_mut_ptr());
    let tokens = tokens.map(<[f32]>::as_ptr);
    // SAFETY (of all): there are as many sums, totals, scales and offsets as rows; each offset is within its table; the
    // caller has the instructions.
    unsafe {
        for first in (0..rows).step_by(16) {
            ahead.fetch::<S>(first);
            for four in (first..first + 16).step_by(4) {
                for row in four..four + 4 {
                    // A reference, because a copy would be indexed in memory.
                    let offsets = &offsets.get_unchecked(row).0;
                    let mut sums = [look_up::<S, F::Digits>(tables, offsets[usize::from(second)]); 2];
                    if !F::LONG {
                        sums[1] = look_up::<S, F::Digits>(tables.add(size), offsets[1]);
                    }
                    if WHICH & FIRST == 0 {
                        sums[0] = sums[0].add(S::load(shorts.add(row * S::LANES)));
                    }
                    if WHICH & LAST == 0 {
                        sums[0].store(shorts.add(row * S::LANES));
                    } else {
                        F::end(sums, *scales.get_unchecked(row), tokens, totals.add(row * S::LANES));
                    }
                }
            }
        }
    }
}

/// The sum of a row's entries.
#[inline(always)]
unsafe fn look_up<S: Shorts, D: Digits>(tables: *const u8, [low, high]: [u64; 2]) -> S {
    // Not a loop, which compilers do not always unroll.
    macro_rules! sum {
        ($first:literal $($field:literal)*) => {{
            let mut sum = entry!(low, $first);
            $(
                if D::FIELDS[$field] > 0 {
                    sum = sum.add(entry!(if $field < 4 { low } else { high }, $field));
                }
            )*
            sum
        }};
    }
    macro_rules! entry {
        ($offsets:expr, $field:literal) => {{
            let offset = ($offsets >> (16 * ($field % 4))) as u16 as usize;
            S::load(tables.add(D::STARTS[$field] * S::LANES * 2 + offset).cast())
        }};
    }
    // SAFETY: the caller's promise.
    unsafe { sum!(0 1 2 3 4 5 6 7) }
}

by_isa!(
    /// Replaces the totals of rows, `[rows, tokens]`, with their products.
    pub(super) fn finish<F: Sums>(totals: &mut [f32], scales: &[f32], token: &[f32]) = finish_in::<sixteen>
);

#[inline(always)]
unsafe fn finish_in<S: Shorts, F: Sums>(totals: &mut [f32], scales: &[f32], token: &[f32]) {
    for (totals, scale) in totals.chunks_exact_mut(token.len()).zip(scales) {
        for (totals, token) in totals.as_chunks_mut::<16>().0.iter_mut().zip(token.as_chunks::<16>().0) {
            // SAFETY: sixteen of each; the caller has the instructions.
            unsafe { F::product::<S>(totals.as_ptr(), *scale, token.as_ptr()).store(totals.as_mut_ptr()) };
        }
    }
}

by_isa!(
    /// Writes products, `[rows, lanes]`, to the outputs of `tokens`, which are at most `lanes`.
    pub(super) fn write<X: Sized>(task: &Task<X>, tokens: Range<usize>, lanes: usize, products: &[f32])
        = write_in::<ints>
);

#[inline(always)]
unsafe fn write_in<I: Ints, X>(task: &Task<X>, tokens: Range<usize>, lanes: usize, products: &[f32]) {
    // Four tokens at once, because memory is fastest when it is written in order.
    for first in (0..tokens.len()).step_by(4) {
        for (n, rows) in products.chunks_exact(16 * lanes).enumerate() {
            let mut turned = [Line::default(); 4];
            for part in 0..16 / I::Register::ROWS {
                let mut addresses = [rows.as_ptr().cast::<u8>(); 16];
                for row in 0..I::Register::ROWS {
                    addresses[row] = rows[(part * I::Register::ROWS + row) * lanes + first..].as_ptr().cast();
                }
                // SAFETY: four products of each row; the caller has the instructions.
                unsafe {
                    let columns = I::Register::columns(&addresses, 0);
                    for token in 0..4 {
                        put(&mut turned[token], part, columns[token]);
                    }
                }
            }
            for (token, products) in tokens.clone().skip(first).zip(&turned) {
                task.write_array(token, 16 * n, &products.floats());
            }
        }
    }
}
