//! Few tokens with super-blocks: as many rows as a register has lanes are read in place, and unpacked in registers.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::{align_frame, blocks_of, has_lows, lows_of};
use crate::kernels::gemm::formats::super_blocks::{Super, column};
use crate::kernels::gemm::quantized::Task;
use crate::kernels::gemm::quantized::few::{fetch, rows_at};
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::ints::{Floats, Ints, Part, four};
use crate::kernels::simd::lanes::{Real, Register};

by_isa!(
    /// Computes `task`, which has `T` tokens.
    pub fn few<K: Super, const T: usize>(task: &Task) = few_in::<ints> tables if K::BOOK
);

#[inline(always)]
unsafe fn few_in<I: Ints, K: Super, const T: usize>(task: &Task) {
    let x = task.x;
    align_frame::<K, I::Part>();
    for first in (0..task.rows).step_by(I::Part::ROWS) {
        // SAFETY (of all): the caller has the instructions; the task's lengths were `check`ed.
        unsafe {
            let rows = &rows_at::<I>(task, first)[..I::Part::ROWS];
            let mut totals = [Floats::<I>::splat(0.0); T];
            for b in 0..blocks_of(task) {
                let at = b * K::BYTES;
                let [scales, minima] = K::scales::<I::Part>(rows, at);
                let (mut values, mut sums) = ([x.values.as_ptr(); T], [x.sums.as_ptr(); T]);
                for t in 0..T {
                    let at = t * blocks_of(task) + b;
                    (values[t], sums[t]) = (values[t].add(256 * at), sums[t].add(16 * at));
                }
                let mut lows = [I::Part::splat(0); T];
                for n in 0..if has_lows::<K, I::Part>() { 8 } else { 0 } {
                    let low = lows_of::<K, _>(minima, n);
                    for t in 0..T {
                        lows[t] = lows[t].add_pairs(low, I::Part::splat(four(sums[t].add(2 * n))));
                    }
                }
                let mut dots = if K::MINIMA { [I::Part::splat(0); T] } else { lows };
                if K::BOOK {
                    // Not a loop: what the scales are read of is then not read again.
                    add_side::<I, K, T>(task, first, rows, b, 0, scales, values, &mut dots);
                    add_side::<I, K, T>(task, first, rows, b, 1, scales, values, &mut dots);
                } else {
                    for side in 0..2 {
                        add_side::<I, K, T>(task, first, rows, b, side, scales, values, &mut dots);
                    }
                }
                let d = Floats::<I>::halves(rows, at + K::D).mul(Real::splat(K::UNIT));
                let min = Floats::<I>::halves(rows, at + K::MIN);
                for t in 0..T {
                    let scale = Floats::<I>::splat(*x.scales.as_ptr().add(t * blocks_of(task) + b));
                    totals[t] = dots[t].to_f32().fma(d.mul(scale), totals[t]);
                    if K::MINIMA {
                        let min = min.mul(Real::splat(-1.0)).mul(scale);
                        totals[t] = lows[t].to_f32().fma(min, totals[t]);
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

/// Adds scales * (codes · x) of a side of block `b`.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // all registers
unsafe fn add_side<I: Ints, K: Super, const T: usize>(
    task: &Task,
    first: usize,
    rows: &[*const u8],
    b: usize,
    side: usize,
    scales: [I::Part; 4],
    x: [*const i8; T],
    dots: &mut [I::Part; T],
) {
    let at = b * K::BYTES;
    // SAFETY: the caller's promise.
    unsafe {
        let packed = &K::packed::<I::Part>(rows, at, side);
        let step = Step::<I, K, T> { task, first, at, packed, side, scales, x };
        // As many sums as fit the registers.
        match (I::Part::REGISTERS, T) {
            (32.., _) => step.add::<0, 8>(dots),
            (_, 1) => {
                step.add::<0, 4>(dots);
                step.add::<4, 4>(dots);
            }
            _ => {
                step.add::<0, 2>(dots);
                step.add::<2, 2>(dots);
                step.add::<4, 2>(dots);
                step.add::<6, 2>(dots);
            }
        }
    }
}

/// A side of a block.
struct Step<'a, I: Ints, K: Super, const T: usize> {
    task: &'a Task<'a>,
    first: usize,
    at: usize,
    packed: &'a K::Packed<I::Part>,
    side: usize,
    scales: [I::Part; 4],
    x: [*const i8; T],
}

impl<I: Ints, K: Super, const T: usize> Step<'_, I, K, T> {
    /// Adds scales * (codes · x) of some of the side's eight times sixteen columns.
    #[inline(always)]
    unsafe fn add<const FROM: usize, const COUNT: usize>(&self, dots: &mut [I::Part; T]) {
        let steps = if I::Part::NARROW && K::STEPS < 4 { K::STEPS } else { 4 };
        // SAFETY: the caller has the instructions; 256 values at each x.
        unsafe {
            let mut factors = [I::Part::splat(0); COUNT];
            for n in 0..COUNT {
                let group = column::<K>(FROM + n, self.side) / 4 / K::GROUP;
                factors[n] = self.scales[group / 4].factor(group % 4);
            }
            let mut own = [[I::Part::splat(0); COUNT]; T];
            for j in 0..4 {
                if FROM == 0 {
                    fetch::<I, 8>(self.task, self.first, self.at, K::BYTES, 4 * self.side + j);
                }
                let mut codes = K::codes(self.packed, j);
                if K::SIGNED && I::Part::UNSIGNED {
                    for k in 0..8 {
                        codes[k] = codes[k].flip();
                    }
                }
                for t in 0..T {
                    for n in 0..COUNT {
                        let x = self.x[t].add(column::<K>(FROM + n, self.side) + 4 * j);
                        let (code, x) = (codes[FROM + n], I::Part::splat(four(x)));
                        own[t][n] = match K::SIGNED && !I::Part::UNSIGNED {
                            true => own[t][n].dot_signed(code, x),
                            false => own[t][n].dot(code, x),
                        };
                        if (j + 1) % steps == 0 {
                            dots[t] = dots[t].add(own[t][n], factors[n]);
                            own[t][n] = I::Part::splat(0);
                        }
                    }
                }
            }
        }
    }
}
