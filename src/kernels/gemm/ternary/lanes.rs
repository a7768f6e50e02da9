//! Few tokens, with rows in the lanes: as many rows as a register has lanes are read in place, and unpacked in
//! registers. `scalar` defines the result.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::few::{AHEAD, Ahead, rows_from, sums_of};
use super::sets::TOKENS;
use super::{Kind, Task};
use crate::kernels::Isa;
use crate::kernels::gemm::formats::{thirds, twos};
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::dispatch::{by_isa, by_tokens};
use crate::kernels::simd::ints::{Floats, IntRegister, Ints, four};
use crate::kernels::simd::lanes::{Real, Register};
use std::hint::black_box;

/// Maximum number of tokens at once, where there are 32 registers of sixteen lanes.
const MOST: usize = 16;

/// Computes `task` with an instruction set that is not `Scalar`.
pub(super) fn run<K: Kind>(isa: Isa, task: &Task) {
    let (tokens, most) = (task.x.rows.len(), if isa.has_avx512() { MOST } else { TOKENS });
    // Equal numbers, because all take the time of unpacking.
    let each = tokens.div_ceil(tokens.div_ceil(most));
    for start in (0..tokens).step_by(each) {
        by_tokens!(each.min(tokens - start), T, tile::<K, T>(isa, task, start));
    }
}

by_isa!(
    /// Computes all rows of `task` with `T` tokens from `start` on. Past the last token, it is repeated; a token of the
    /// next tile may be computed here too.
    fn tile<K: Kind, const T: usize>(task: &Task, start: usize) = tile_in::<ints> tables if K::THIRDS
);

#[inline(always)]
unsafe fn tile_in<I: Ints, K: Kind, const T: usize>(task: &Task, start: usize) {
    if const { T > TOKENS && I::PANELS == 1 } {
        unreachable!("{T} tokens at once");
    }
    let columns = if K::SCALED { 256 } else { 128 };
    let (blocks, bytes) = (task.x.cols / columns, K::row_bytes(columns));
    assert!(task.row_bytes == K::row_bytes(task.x.cols) && task.row_bytes == blocks * bytes);
    let (mut x, mut sums) = ([std::ptr::null(); T], [&[][..]; T]);
    let tokens = &task.x.rows[start..];
    for t in 0..T {
        let token = start + t.min(tokens.len() - 1);
        // black_box, because a compiler that knows the distance between tokens computes addresses from it.
        x[t] = black_box(task.x.row(token).as_ptr());
        sums[t] = sums_of::<K>(task, token);
        assert!(sums[t].len() == if K::SCALED { blocks } else { 1 });
    }
    let at_once = I::Register::ROWS;
    for first in (0..task.rows).step_by(at_once) {
        let rows = rows_from::<I::Register>(task, first, task.rows);
        let only = task.only.filter(|_| K::CHOSEN && start == 0);
        let mut ahead = only.map(|only| Ahead::from::<I::Register>(task, first + at_once, only.len()));
        // Memory is fastest when it is read in order.
        let next = task.packed.as_ptr().wrapping_add(AHEAD + (first + at_once) * task.row_bytes);
        // SAFETY (of all): the caller has the instructions; a block of each row, and its values of each token.
        unsafe {
            let (mut totals, mut dots) = ([Floats::<I>::splat(0.0); T], [I::Register::splat(0); T]);
            for b in 0..blocks {
                let at = b * bytes;
                match &mut ahead {
                    Some(ahead) => ahead.keep_up::<I::Register>(at_once * at, task.row_bytes),
                    None if start == 0 => {
                        Floats::<I>::fetch_lines(next.wrapping_add(at_once * at), at_once * bytes)
                    }
                    None => {}
                }
                if K::SCALED || b == 0 {
                    for t in 0..T {
                        dots[t] = I::Register::splat(-sums[t][b]);
                    }
                }
                let scale = add_block::<I, K, T>(&rows, at, x, columns * b, &mut dots);
                if K::SCALED {
                    for t in 0..T {
                        totals[t] = totals[t].add(dots[t].to_f32().mul(scale));
                    }
                }
            }
            let mut scales = [0.0; 16];
            if !K::SCALED {
                task.scales(first, &mut scales[..at_once]);
            }
            for (t, token) in tokens.iter().enumerate().take(T) {
                let scale = Floats::<I>::splat(token.scale);
                let value = match K::SCALED {
                    true => totals[t].div(scale),
                    false => dots[t].to_f32().mul(Floats::<I>::load(scales.as_ptr()).div(scale)),
                };
                task.write_register(start + t, first, value);
            }
        }
    }
}

/// Adds codes · x of the block at `at` of each row, whose first column is `column`; its scales are returned. Without
/// scales, a block is 128 columns.
#[inline(always)]
unsafe fn add_block<I: Ints, K: Kind, const T: usize>(
    rows: &[*const u8; 16],
    at: usize,
    x: [*const i8; T],
    column: usize,
    dots: &mut [I::Register; T],
) -> Floats<I> {
    // SAFETY: the caller has the instructions; a block of each row, and its values of each token.
    unsafe {
        if K::THIRDS {
            let (words, end) = thirds::words::<I::Register>(rows, at);
            for n in 0..4 {
                let codes = thirds::codes(&words, n);
                add::<I, T, 16, 4>(std::array::from_fn(|k| codes[k / 8][k % 8]), x, column + 64 * n, dots);
            }
            return end.upper_halves();
        }
        for part in 0..if K::SCALED { 2 } else { 1 } {
            for side in 0..2 {
                let words = I::Register::columns(rows, at + 32 * part + 16 * side);
                for j in 0..4 {
                    let mut codes = twos(words[j]);
                    if !K::SCALED {
                        // I2_S has its first columns in the high bits.
                        codes.reverse();
                    }
                    add::<I, T, 4, 32>(codes, x, column + 128 * part + 16 * side + 4 * j, dots);
                }
            }
        }
        if K::SCALED { Floats::<I>::halves(rows, at + 64) } else { Floats::<I>::splat(1.0) }
    }
}

/// Adds codes · x of `N` times four columns, which are `APART`, from `column` on.
#[inline(always)]
unsafe fn add<I: Ints, const T: usize, const N: usize, const APART: usize>(
    codes: [I::Register; N],
    x: [*const i8; T],
    column: usize,
    dots: &mut [I::Register; T],
) {
    // Narrow sums have room for 64 columns. With few tokens, wide ones are apart too, so that products wait less for
    // each other.
    let apart = I::Register::NARROW || T <= TOKENS;
    // SAFETY (of all): the caller has the instructions; four values at each column.
    unsafe {
        let mut own = if apart { [I::Register::splat(0); T] } else { *dots };
        for n in 0..N {
            for t in 0..T {
                let x = I::Register::splat(four(x[t].add(column + APART * n)));
                own[t] = own[t].dot(codes[n], x);
            }
        }
        let one = I::Register::splat(if I::Register::NARROW { I::Register::ONE } else { 1 });
        for t in 0..T {
            dots[t] = if apart { dots[t].add(own[t], one) } else { own[t] };
        }
    }
}
