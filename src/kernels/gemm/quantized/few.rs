//! Few tokens with short blocks: a register's lanes of rows are read as they lie, and unpacked in registers.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::Task;
use crate::kernels::gemm::formats::short_blocks::Short;
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::ints::{Floats, Ints, Part, four};
use crate::kernels::simd::lanes::Register;

/// Bytes behind the next rows that are asked for while rows are read as they lie.
const AHEAD: usize = 4096;

/// Tokens up to which this is faster than rows that are unpacked once. Where codes fill their bytes, that pays later; and
/// where many stand in a byte, to unpack them is little.
pub const fn most<F: Short>() -> usize {
    match F::BITS {
        8 => 4,
        4 => 3,
        _ => 8,
    }
}

/// ROWS rows from `first` on; where the task has no more, its last one stands for them.
#[inline(always)]
pub fn rows_at<I: Ints>(task: &Task, first: usize) -> [*const u8; 16] {
    let mut rows = [task.packed.as_ptr(); 16];
    for r in 0..I::Part::ROWS {
        rows[r] = rows[r].wrapping_add((first + r).min(task.rows - 1) * task.row_bytes);
    }
    rows
}

/// Asks for as much of the next rows, from byte `at` of each on, as is used of ROWS rows from `first` on, or for the
/// `n`-th `N`th of it: memory is fastest in its own order.
#[inline(always)]
pub fn fetch<I: Ints, const N: usize>(task: &Task, first: usize, at: usize, bytes: usize, n: usize) {
    let next = AHEAD + (first + I::Part::ROWS) * task.row_bytes + I::Part::ROWS * at;
    let next = task.packed.as_ptr().wrapping_add(next + I::Part::ROWS * bytes / N * n);
    (0..I::Part::ROWS * bytes / N).step_by(64).for_each(|at| Floats::<I>::fetch(next.wrapping_add(at)));
}

by_isa!(
    /// `task`, whose tokens are `T`.
    pub fn few<F: Short, const T: usize>(task: &Task) = few_in::<ints>
);

#[inline(always)]
unsafe fn few_in<I: Ints, F: Short, const T: usize>(task: &Task) {
    let x = task.tokens::<T>(0, 0..task.x.cols / 32);
    assert!(
        task.packed.len() == task.rows * task.row_bytes
            && task.row_bytes * 32 * F::COUNT == task.x.cols * F::BYTES
    );
    let offset = if F::SIGNED && I::Part::UNSIGNED { 128 } else { F::OFFSET };
    for first in (0..task.rows).step_by(I::Part::ROWS) {
        // SAFETY (of all): the caller has the instructions; a block of each row, and its values of each token.
        unsafe {
            let rows = &rows_at::<I>(task, first)[..I::Part::ROWS];
            let mut totals = [Floats::<I>::splat(0.0); T];
            for n in 0..task.row_bytes / F::BYTES {
                let at = n * F::BYTES;
                fetch::<I, 1>(task, first, at, F::BYTES, 0);
                let d = Floats::<I>::halves(rows, at);
                let words = F::words::<I::Part>(rows, at);
                for i in 0..F::COUNT {
                    let b = n * F::COUNT + i;
                    let (mut dots, mut values) = ([I::Part::splat(0); T], [std::ptr::null(); T]);
                    for t in 0..T {
                        values[t] = x[t].0.as_ptr().add(32 * b);
                        if offset != 0 {
                            dots[t] = I::Part::splat(-offset * *x[t].2.get_unchecked(b) as i32);
                        }
                    }
                    add::<I, F, T>(F::codes(words, i), values, &mut dots);
                    for t in 0..T {
                        let scale = *x[t].1.get_unchecked(b);
                        totals[t] = dots[t].to_f32().fma(d.mul(Register::splat(scale)), totals[t]);
                        if F::MINIMUMS {
                            let sum = Floats::<I>::splat(scale * *x[t].2.get_unchecked(b) as f32);
                            totals[t] = Floats::<I>::halves(rows, at + 2).fma(sum, totals[t]);
                        }
                    }
                }
            }
            for t in 0..T {
                let mut values = [0.0; 16];
                totals[t].store(values.as_mut_ptr());
                task.write(t, first, &values[..(task.rows - first).min(I::Part::ROWS)]);
            }
        }
    }
}

/// Adds codes · x of 32 columns.
#[inline(always)]
unsafe fn add<I: Ints, F: Short, const T: usize>(
    mut codes: [I::Part; 8],
    x: [*const i8; T],
    dots: &mut [I::Part; T],
) {
    let steps = if I::Part::NARROW { F::STEPS } else { 8 };
    // SAFETY: the caller has the instructions; 32 values at each x.
    unsafe {
        if F::SIGNED && I::Part::UNSIGNED {
            for k in 0..8 {
                codes[k] = codes[k].flip();
            }
        }
        for from in (0..8).step_by(steps) {
            for t in 0..T {
                let mut own = if I::Part::NARROW { I::Part::splat(0) } else { dots[t] };
                for k in from..from + steps {
                    let x = I::Part::splat(four(x[t].add(4 * k)));
                    own = if F::SIGNED && !I::Part::UNSIGNED {
                        own.dot_signed(codes[k], x)
                    } else {
                        own.dot(codes[k], x)
                    };
                }
                dots[t] = if I::Part::NARROW { dots[t].add(own, I::Part::splat(I::Part::ONE)) } else { own };
            }
        }
    }
}
