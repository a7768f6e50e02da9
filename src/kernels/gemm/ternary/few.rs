//! The ternary product with a few tokens: rows are read in place and unpacked in registers. `scalar` defines the
//! result.
//!
//! A register holds bytes of one row or of two rows. The products of its codes with the values of up to four tokens are
//! summed in its lanes; with AVX2, of up to eight. At the end of the rows, or of a TQ2_0 block, the lanes of as many
//! rows as a register has lanes are added up together.
//!
//! The second and fourth code of each byte stay shifted by two bits, which saves shifts. The sums of their products are
//! four times too large, and are kept apart. With more than four tokens there are not enough registers for two sums
//! each, so all codes are shifted.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::sets::{Set, TOKENS};
use super::{Kind, Task};
use crate::kernels::Isa;
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::dispatch::{by_count, by_isa};
use crate::kernels::simd::ints::{Floats, IntRegister, Ints};
use crate::kernels::simd::lanes::{Real, Register};
use std::hint::black_box;

/// Prefetch distance: number of bytes past the corresponding place in the rows that are read next.
pub(super) const AHEAD: usize = 4096;

/// Bytes of a row that are multiplied before those of the next row, with more than `TOKENS` tokens. The matching
/// values of eight tokens take 24 KB, which fit in the L1 cache.
const DEPTH: usize = 768;

/// Computes `task` with an instruction set that is not `Scalar`.
pub(super) fn few<K: Kind>(isa: Isa, task: &Task) {
    let tokens = task.x.rows.len();
    // A single token is bound by memory, which is fastest row by row. AVX2 reads one row at a time; with VNNI,
    // products wait for each other unless several rows are multiplied at once.
    let isa = if tokens == 1 && !K::SCALED && isa.has_avx2() { Isa::Avx2 } else { isa };
    let most = if wide::<K>() && isa == Isa::Avx2 { 8 } else { TOKENS };
    for first in (0..tokens).step_by(most) {
        by_count!(most.min(tokens - first), T in 1 2 3 4 5 6 7 8, tile::<K, T>(isa, task, first), else unreachable!());
    }
}

/// Whether rows may be multiplied with more than `TOKENS` tokens at once. At each scale the lanes are added up for
/// each token, which costs more than unpacking rows once.
const fn wide<K: Kind>() -> bool {
    !K::SCALED && !K::CHOSEN
}

by_isa!(
    /// Computes all rows of `task` with `T` tokens from `start` on.
    fn tile<K: Kind, const T: usize>(task: &Task, start: usize) = tile_in::<ints>
);

#[inline(always)]
unsafe fn tile_in<I: Ints<Register: Set>, K: Kind, const T: usize>(task: &Task, start: usize) {
    if const { T > TOKENS && !(wide::<K>() && T <= I::Register::MOST) } {
        unreachable!("{T} tokens at once");
    }
    assert!(task.row_bytes == K::row_bytes(task.x.cols));
    for first in (0..task.rows).step_by(I::Register::ROWS) {
        // SAFETY (of all): the caller has the instructions; the length of rows was just checked; a register has at
        // most sixteen lanes.
        let totals = unsafe {
            let at_once = I::Register::AT_ONCE[(T - 1) % TOKENS];
            by_count!(at_once, N in 1 2 4, group::<I::Register, K, T, N>(task, first, start), else unreachable!())
        };
        let mut scales = [0.0; 16];
        if !K::SCALED {
            task.scales(first, &mut scales[..I::Register::ROWS]);
        }
        for t in 0..T {
            unsafe {
                let token = Floats::<I>::splat(task.x.rows[start + t].scale);
                let value = match K::SCALED {
                    true => totals[t].div(token),
                    false => totals[t].mul(Floats::<I>::load(scales.as_ptr()).div(token)),
                };
                task.write_register(start + t, first, value);
            }
        }
    }
}

/// Computes the products of `ROWS` rows from `first` on, without the scales of tokens and of whole rows. Past
/// the task's end, its last row is repeated.
#[inline(always)]
unsafe fn group<S: Set, K: Kind, const T: usize, const N: usize>(
    task: &Task,
    first: usize,
    start: usize,
) -> [S::Floats; T] {
    let (each, blocks) = if K::SCALED { (64, task.row_bytes / 66) } else { (task.row_bytes, 1) };
    let depth = if T > TOKENS { DEPTH } else { usize::MAX };
    let rows = rows_from::<S>(task, first, task.rows);
    let only = task.only.filter(|_| K::CHOSEN && start == 0);
    let mut ahead = only.map(|only| Ahead::from::<S>(task, first + S::ROWS, only.len()));
    let (mut x, mut sums) = ([std::ptr::null(); T], [&[][..]; T]);
    for t in 0..T {
        x[t] = task.x.row(start + t).as_ptr();
        sums[t] = sums_of::<K>(task, start + t);
        assert!(sums[t].len() == blocks);
    }
    // Memory is fastest when it is read in order.
    let next = task.packed.as_ptr().wrapping_add(AHEAD + first * task.row_bytes);
    // SAFETY (of all): the caller has the instructions; the bytes of each row, and four values of each token for each
    // byte.
    unsafe {
        let mut totals = [S::Floats::splat(0.0); T];
        for b in 0..blocks {
            let mut all = [[S::splat(0); 8]; T];
            for from in (0..each).step_by(depth) {
                let (at, bytes) = (66 * b + from, depth.min(each - from));
                for n in (0..S::ROWS / S::HELD).step_by(N) {
                    let rows_of = [[std::ptr::null(); 2]; N];
                    let mut step = Step { rows: rows_of, x, bytes, next: None, ahead: None };
                    let row = n / 4 * 4 * S::HELD + n % 4;
                    for i in 0..N {
                        step.rows[i] = [rows[row + i].add(at), rows[row + i + 4 * (S::HELD - 1)].add(at)];
                    }
                    for t in 0..T {
                        // black_box, because compilers would load the values of all tokens once for all rows and
                        // keep them on the stack.
                        step.x[t] = black_box(x[t].add(256 * b + 4 * from));
                    }
                    if K::CHOSEN {
                        step.ahead = ahead.as_mut();
                    } else if start == 0 {
                        let done = S::ROWS * at + n * S::HELD * if K::SCALED { 66 } else { bytes };
                        // Rows that are read whole are in order already.
                        let more = if K::SCALED || bytes < each { S::ROWS } else { N * S::HELD };
                        step.next = Some(next.wrapping_add(done + more * task.row_bytes));
                    }
                    step.add::<S, K>(&mut all, n);
                }
            }
            let mut scale = S::Floats::splat(1.0);
            if K::SCALED {
                scale = S::Floats::halves(&rows, 66 * b + 64);
            }
            for t in 0..T {
                let dots = by_row::<S, K>(&all[t]).plus(S::splat(-sums[t][b])).to_f32();
                totals[t] = match K::SCALED {
                    true => totals[t].add(dots.mul(scale)),
                    false => dots,
                };
            }
        }
        totals
    }
}

/// Sums of the values of token `t`: of each block, or of all.
#[inline(always)]
pub(super) fn sums_of<'a, K: Kind>(task: &Task<'a>, t: usize) -> &'a [i32] {
    match K::SCALED {
        true => task.x.sums(t),
        false => std::slice::from_ref(&task.x.rows[t].sum),
    }
}

/// The rows of a register from `first` on; past `end`, the last is repeated.
#[inline(always)]
pub(super) fn rows_from<S: IntRegister>(task: &Task, first: usize, end: usize) -> [*const u8; 16] {
    let mut rows = [task.packed.as_ptr(); 16];
    for r in 0..S::ROWS {
        rows[r] = task.row((first + r).min(end - 1)).as_ptr();
    }
    rows
}

/// Some bytes of the rows in `N` registers, and the values of `T` tokens to multiply them with.
struct Step<'a, const T: usize, const N: usize> {
    rows: [[*const u8; 2]; N],
    x: [*const i8; T],
    bytes: usize,
    /// Address to prefetch from meanwhile, as many bytes as are read.
    next: Option<*const u8>,
    /// Rows to prefetch instead, if rows do not follow each other.
    ahead: Option<&'a mut Ahead>,
}

impl<const T: usize, const N: usize> Step<'_, T, N> {
    /// Puts the sums of products, by lane, in `all[t][n..]`; with more than `TOKENS` tokens adds them.
    #[inline(always)]
    unsafe fn add<S: Set, K: Kind>(&mut self, all: &mut [[S; 8]; T], n: usize) {
        // SAFETY: the caller has the instructions, bytes and values.
        unsafe {
            let from = n / N * self.bytes;
            // Separate from `all`, which is in memory.
            let mut wide = [[S::splat(0); N]; T];
            // With more than `TOKENS` tokens all codes are in the low bits, so a sum has room for twice as
            // many products.
            let most = if T > TOKENS { S::SPAN.saturating_mul(2) } else { S::SPAN };
            for span in (0..self.bytes).step_by(most) {
                let mut sums = [[[S::splat(0); 2]; N]; T];
                for at in (span..self.bytes.min(span.saturating_add(most))).step_by(32) {
                    if let Some(next) = self.next {
                        S::Floats::fetch_lines(next.wrapping_add(N * S::HELD * at), N * S::HELD * 32);
                    }
                    if K::CHOSEN
                        && let Some(ahead) = &mut self.ahead
                    {
                        ahead.keep_up::<S>((from + at) * N * S::HELD, self.bytes);
                    }
                    for part in (0..32).step_by(S::BYTES) {
                        self.multiply::<S, K>(at, part, &mut sums);
                    }
                }
                for t in 0..T {
                    for i in 0..N {
                        let [ones, fours] = sums[t][i];
                        wide[t][i] = wide[t][i].plus(S::total(ones, fours));
                    }
                }
            }
            for t in 0..T {
                for i in 0..N {
                    let sum = &mut all[t][n + i];
                    *sum = if T > TOKENS { sum.plus(wide[t][i]) } else { wide[t][i] };
                }
            }
        }
    }

    /// Adds the products of the bytes that a register holds of each row, from `part` on of the 32 bytes at `at`,
    /// which are 128 columns. TQ2_0 has the first columns in the low bits, I2_S in the high bits.
    #[inline(always)]
    unsafe fn multiply<S: Set, K: Kind>(&self, at: usize, part: usize, sums: &mut [[[S; 2]; N]; T]) {
        // SAFETY: the caller has the instructions, bytes and values.
        unsafe {
            for i in 0..N {
                let [row, other] = self.rows[i];
                let packed = S::bytes(row.add(at + part), other.add(at + part));
                let low = [packed.right::<0>(3), packed.right::<4>(3)];
                let high = match T > TOKENS {
                    true => [packed.right::<2>(3), packed.right::<6>(3)],
                    false => [packed.right::<0>(12), packed.right::<4>(12)],
                };
                for t in 0..T {
                    for k in 0..4 {
                        let column = 32 * if K::SCALED { k } else { 3 - k } + part;
                        let x = S::values(self.x[t].add(4 * at + column));
                        let codes = if k % 2 == 0 { low[k / 2] } else { high[k / 2] };
                        let sum = &mut sums[t][i][if T > TOKENS { 0 } else { k % 2 }];
                        *sum = sum.more(codes, x);
                    }
                }
            }
        }
    }
}

/// Rows that do not follow each other, to be prefetched meanwhile. Each row is prefetched at once, which reaches
/// the speed of memory; prefetching several rows line by line takes twice as long.
pub(super) struct Ahead {
    rows: [*const u8; 16],
    row_bytes: usize,
    row: usize,
}

impl Ahead {
    #[inline(always)]
    pub(super) fn from<S: IntRegister>(task: &Task, first: usize, end: usize) -> Self {
        Self { rows: rows_from::<S>(task, first, end), row_bytes: task.row_bytes, row: 0 }
    }

    /// Prefetches a row for each `bytes` that are read of `S::ROWS` rows together.
    #[inline(always)]
    pub(super) fn keep_up<S: IntRegister>(&mut self, bytes: usize, row_bytes: usize) {
        while self.row * row_bytes <= bytes {
            self.fetch::<S>();
        }
    }

    #[inline(always)]
    fn fetch<S: IntRegister>(&mut self) {
        S::Floats::fetch_lines(self.rows[self.row % 16], self.row_bytes);
        self.row += 1;
    }
}

/// Adds up the lanes of each row.
#[inline(always)]
unsafe fn by_row<S: Set, K: Kind>(lanes: &[S; 8]) -> S {
    // SAFETY: the caller has the instructions.
    unsafe {
        // In a TQ2_0 block, a lane sums 32 products and is at most 8192 in magnitude; two lanes are at most 16384.
        let low = fours(&lanes[..4], K::SCALED);
        if S::ROWS > 4 { S::rows(low, fours(&lanes[4..], K::SCALED)) } else { low }
    }
}

/// Adds pairs of lanes of four registers, and then pairs of the results.
#[inline(always)]
unsafe fn fours<S: Set>(v: &[S], small: bool) -> S {
    // SAFETY: the caller has the instructions.
    unsafe { S::pairs(S::pairs(v[0], v[1], small), S::pairs(v[2], v[3], small), small) }
}
