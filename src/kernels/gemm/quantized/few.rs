//! Few tokens with short blocks: as many rows as a register has lanes are read in place, and unpacked in registers.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::Task;
use crate::kernels::gemm::formats::short_blocks::Short;
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::ints::{Floats, IntRegister, Ints, four};
use crate::kernels::simd::lanes::{Real, Register};
use std::hint::black_box;

/// Prefetch distance: number of bytes past the corresponding place in the rows that are read next.
const AHEAD: usize = 4096;

/// Prefetches part `n` of `N` of the next rows' bytes. There are as many of them as are used of the ROWS rows from
/// `first` on: `bytes` at `at` of each row. Memory is fastest when it is read in order.
#[inline(always)]
pub(super) fn fetch<I: Ints, const N: usize>(task: &Task, first: usize, at: usize, bytes: usize, n: usize) {
    let next = AHEAD + (first + I::Register::ROWS) * task.row_bytes + I::Register::ROWS * at;
    let bytes = I::Register::ROWS * bytes / N;
    Floats::<I>::fetch_lines(task.packed.as_ptr().wrapping_add(next + bytes * n), bytes);
}

by_isa!(
    /// Computes `task`, which has `T` tokens, or one less: then the last is repeated.
    pub(super) fn few<F: Short, const T: usize>(task: &Task) = few_in::<ints> tables if F::BITS == 0
);

#[inline(always)]
unsafe fn few_in<I: Ints, F: Short, const T: usize>(task: &Task) {
    if const { T > 8 && I::PANELS == 1 } {
        unreachable!("{T} tokens at once");
    }
    let mut x: [(&[i8], &[f32], &[i16]); T] = [(&[], &[], &[]); T];
    for t in 0..T {
        // black_box, because a compiler that knows the distance between tokens computes addresses from it instead of
        // keeping one for each.
        let token = t.min(task.x.tokens() - 1);
        x[t] = if T > 2 { black_box(task.x.row(token)) } else { task.x.row(token) };
    }
    assert!(task.row_bytes * 32 * F::COUNT == task.x.cols * F::BYTES);
    let offset = if F::SIGNED && I::Register::UNSIGNED { 128 } else { F::OFFSET };
    for first in (0..task.rows).step_by(I::Register::ROWS) {
        // SAFETY (of all): the caller has the instructions; a block of each row, and the block's values of each
        // token.
        unsafe {
            let rows = &task.addresses(first, I::Register::ROWS)[..I::Register::ROWS];
            let mut totals = [Floats::<I>::splat(0.0); T];
            for n in 0..task.row_bytes / F::BYTES {
                let at = n * F::BYTES;
                fetch::<I, 1>(task, first, at, F::BYTES, 0);
                let words = F::words::<I::Register>(rows, at);
                let d = scales::<I, F>(rows, at, words.1);
                for i in 0..F::COUNT {
                    let b = n * F::COUNT + i;
                    let (mut dots, mut values) = ([I::Register::splat(0); T], [std::ptr::null(); T]);
                    for t in 0..T {
                        values[t] = x[t].0.as_ptr().add(32 * b);
                        if offset != 0 {
                            dots[t] = I::Register::splat(-offset * *x[t].2.get_unchecked(b) as i32);
                        }
                    }
                    add::<I, F, T>(F::codes(&words, i), values, &mut dots);
                    for t in 0..T {
                        let scale = *x[t].1.get_unchecked(b);
                        totals[t] = dots[t].to_f32().fma(d.mul(Real::splat(scale)), totals[t]);
                        if F::MINIMUMS {
                            let sum = Floats::<I>::splat(scale * *x[t].2.get_unchecked(b) as f32);
                            totals[t] = Floats::<I>::halves(rows, at + 2).fma(sum, totals[t]);
                        }
                    }
                }
            }
            for t in 0..T.min(task.x.tokens()) {
                task.write_register(t, first, totals[t]);
            }
        }
    }
}

/// The scales of the blocks at `at` of each row; `end` is the second result of `words`.
#[inline(always)]
pub(super) unsafe fn scales<I: Ints, F: Short>(rows: &[*const u8], at: usize, end: I::Register) -> Floats<I> {
    // SAFETY: the caller has the instructions, and blocks of each row.
    unsafe { if F::ENDS { end.upper_halves() } else { F::scales(rows, at) } }
}

/// Adds codes · x of 32 columns.
#[inline(always)]
unsafe fn add<I: Ints, F: Short, const T: usize>(
    codes: [I::Register; 8],
    x: [*const i8; T],
    dots: &mut [I::Register; T],
) {
    let steps = if I::Register::NARROW { F::STEPS } else { 8 };
    // Not a loop: with many tokens compilers would not unroll it, and would keep the codes in memory.
    macro_rules! line {
        ($($k:literal)*) => {
            let mut own = [I::Register::splat(0); T];
            $(
                let code = if F::SIGNED && I::Register::UNSIGNED { codes[$k].flip() } else { codes[$k] };
                for t in 0..T {
                    let x = I::Register::splat(four(x[t].add(4 * $k)));
                    let sum = if I::Register::NARROW { &mut own[t] } else { &mut dots[t] };
                    let signed = F::SIGNED && !I::Register::UNSIGNED;
                    *sum = if signed { sum.dot_signed(code, x) } else { sum.dot(code, x) };
                    if I::Register::NARROW && ($k + 1) % steps == 0 {
                        dots[t] = dots[t].add(own[t], I::Register::splat(I::Register::ONE));
                        own[t] = I::Register::splat(0);
                    }
                }
            )*
        };
    }
    // SAFETY: the caller has the instructions; 32 values at each x.
    unsafe {
        line!(0 1 2 3 4 5 6 7);
    }
}
