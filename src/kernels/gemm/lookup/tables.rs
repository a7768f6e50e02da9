//! Sums of activations under all combinations of a few weights.

use super::formats::Format;
use super::sums::{Digits, Sums};
use super::{FIELDS, TILE};
use crate::kernels::Isa;
use crate::kernels::pool::buffer::Line;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::shorts::Shorts;

by_isa!(
    fn fill_sixteen<F: Format>(columns: &[i8], start: usize, tables: &mut [Line]) = fill_in::<sixteen>
);
by_isa!(
    fn fill_double<F: Format>(columns: &[i8], start: usize, tables: &mut [Line]) = fill_in::<double>
);

/// The tables of a format.
type Tables<F> = <<F as Format>::Sums as Sums>::Digits;

/// Fills the tables of the tile whose columns begin at `start`. `columns` is `[cols, lanes]`.
pub(super) fn fill<F: Format>(isa: Isa, lanes: usize, columns: &[i8], start: usize, tables: &mut [Line]) {
    match lanes {
        16 => fill_sixteen::<F>(isa.of_256_bits(), columns, start, tables),
        _ => fill_double::<F>(isa, columns, start, tables),
    }
}

#[inline(always)]
unsafe fn fill_in<S: Shorts, F: Format>(columns: &[i8], start: usize, tables: &mut [Line]) {
    assert!(size_of_val(tables) >= Tables::<F>::ENTRIES * S::LANES * 2);
    let tile = start / TILE % F::TILES;
    let unit = start - tile * TILE;
    let to = tables.as_mut_ptr().cast::<i16>();
    for field in 0..FIELDS {
        let digits = Tables::<F>::FIELDS[field];
        if digits == 0 {
            continue;
        }
        // SAFETY: the entries of a field are within the tables, as was just checked; the caller has the instructions.
        unsafe {
            let mut x = [S::zero(); 6];
            for (digit, x) in x.iter_mut().enumerate().take(digits) {
                let column = (unit + F::column(tile, field, digit)) * S::LANES;
                *x = S::load_i8(columns[column..column + S::LANES].as_ptr());
            }
            Tables::<F>::fill(&x, digits, to.add(Tables::<F>::STARTS[field] * S::LANES));
        }
    }
}

/// The entries for four codes from 0 to 2: entry `64 a + 16 b + 4 c + d` is `(a - 1) x[3] + .. + (d - 1) x[0]`.
///
/// # Safety
/// `S`'s instructions are available; there is room for 171 vectors.
#[inline(always)]
pub(super) unsafe fn ternary<S: Shorts>(x: &[S; 6], to: *mut i16) {
    // SAFETY: the caller's promise.
    unsafe {
        let ([d, c, b, a, ..], zero) = (*x, S::zero());
        let (minus_c, minus_d) = (zero.sub(c), zero.sub(d));
        let low = [[minus_c.sub(d), minus_c, minus_c.add(d)], [minus_d, zero, d], [c.sub(d), c, c.add(d)]];
        let mut of_a = zero.sub(a).sub(b);
        for code_a in 0..3 {
            let mut of_b = of_a;
            for code_b in 0..3 {
                let to = to.add((64 * code_a + 16 * code_b) * S::LANES);
                for (code_c, low) in low.into_iter().enumerate() {
                    for (code_d, low) in low.into_iter().enumerate() {
                        of_b.add(low).store(to.add((4 * code_c + code_d) * S::LANES));
                    }
                }
                of_b = of_b.add(b);
            }
            of_a = of_a.add(a);
        }
    }
}

/// The entries for bits: entry i is the sum of x, each negative unless its bit is set.
///
/// # Safety
/// `S`'s instructions are available; there is room for `1 << digits` vectors.
#[inline(always)]
pub(super) unsafe fn bits<S: Shorts>(x: &[S; 6], digits: usize, to: *mut i16) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut none = S::zero();
        for x in &x[..digits] {
            none = none.sub(*x);
        }
        none.store(to);
        for (digit, x) in x.iter().enumerate().take(digits) {
            let twice = x.add(*x);
            for entry in 0..1 << digit {
                let sum = S::load(to.add(entry * S::LANES)).add(twice);
                sum.store(to.add((entry + (1 << digit)) * S::LANES));
            }
        }
    }
}
