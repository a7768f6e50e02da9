//! TQ1_0 with a few tokens: as many rows as a register has lanes are read in place, and unpacked in registers. `scalar`
//! defines the result.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::few::{AHEAD, Ahead, rows_from};
use super::sets::TOKENS;
use super::{Kind, Task};
use crate::kernels::Isa;
use crate::kernels::gemm::formats::thirds::{BYTES, codes, words};
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::dispatch::{by_count, by_isa};
use crate::kernels::simd::ints::{Floats, IntRegister, Ints, four};
use crate::kernels::simd::lanes::{Real, Register};
use std::hint::black_box;

/// Computes `task` with an instruction set that is not `Scalar`.
pub(super) fn few<K: Kind>(isa: Isa, task: &Task) {
    let tokens = task.x.rows.len();
    for start in (0..tokens).step_by(TOKENS) {
        by_count!(TOKENS.min(tokens - start), T in 1 2 3 4, tile::<K, T>(isa, task, start), else unreachable!());
    }
}

by_isa!(
    /// Computes all rows of `task` with `T` tokens from `start` on.
    fn tile<K: Kind, const T: usize>(task: &Task, start: usize) = tile_in::<ints> tables if K::THIRDS
);

#[inline(always)]
unsafe fn tile_in<I: Ints, K: Kind, const T: usize>(task: &Task, start: usize) {
    let blocks = task.x.cols / 256;
    assert!(task.row_bytes == K::row_bytes(task.x.cols) && task.row_bytes == blocks * BYTES);
    let (mut x, mut sums) = ([std::ptr::null(); T], [&[][..]; T]);
    for t in 0..T {
        // black_box, because a compiler that knows the distance between tokens computes addresses from it.
        x[t] = black_box(task.x.row(start + t).as_ptr());
        sums[t] = task.x.sums(start + t);
        assert!(sums[t].len() == blocks);
    }
    let rows_at_once = I::Register::ROWS;
    for first in (0..task.rows).step_by(rows_at_once) {
        let rows = rows_from::<I::Register>(task, first, task.rows);
        let only = task.only.filter(|_| K::CHOSEN && start == 0);
        let mut ahead = only.map(|only| Ahead::from::<I::Register>(task, first + rows_at_once, only.len()));
        // Memory is fastest when it is read in order.
        let next = task.packed.as_ptr().wrapping_add(AHEAD + (first + rows_at_once) * task.row_bytes);
        // SAFETY (of all): the caller has the instructions; a block of each row, and its values of each token.
        unsafe {
            let mut totals = [Floats::<I>::splat(0.0); T];
            for b in 0..blocks {
                let at = b * BYTES;
                match &mut ahead {
                    Some(ahead) => ahead.keep_up::<I::Register>(rows_at_once * at, task.row_bytes),
                    None if start == 0 => {
                        Floats::<I>::fetch_lines(next.wrapping_add(rows_at_once * at), rows_at_once * BYTES)
                    }
                    None => {}
                }
                let mut dots = [I::Register::splat(0); T];
                for t in 0..T {
                    dots[t] = I::Register::splat(-sums[t][b]);
                }
                let (words, end) = words::<I::Register>(&rows, at);
                for n in 0..4 {
                    add::<I, T>(codes(&words, n), x, 256 * b + 64 * n, &mut dots);
                }
                let scale = end.upper_halves();
                for t in 0..T {
                    totals[t] = totals[t].add(dots[t].to_f32().mul(scale));
                }
            }
            for t in 0..T {
                let token = Floats::<I>::splat(task.x.rows[start + t].scale);
                task.write_register(start + t, first, totals[t].div(token));
            }
        }
    }
}

/// Adds codes · x of the 64 columns from `column` on.
#[inline(always)]
unsafe fn add<I: Ints, const T: usize>(
    codes: [[I::Register; 8]; 2],
    x: [*const i8; T],
    column: usize,
    dots: &mut [I::Register; T],
) {
    // SAFETY (of all): the caller has the instructions; 64 values at each address.
    unsafe {
        // Sums of their own, so that products wait less for each other; narrow ones have room for 64 columns.
        let mut own = [I::Register::splat(0); T];
        for half in 0..2 {
            for k in 0..8 {
                for t in 0..T {
                    let x = I::Register::splat(four(x[t].add(column + 32 * half + 4 * k)));
                    own[t] = own[t].dot(codes[half][k], x);
                }
            }
        }
        let one = I::Register::splat(if I::Register::NARROW { I::Register::ONE } else { 1 });
        for t in 0..T {
            dots[t] = dots[t].add(own[t], one);
        }
    }
}
