//! Few tokens with super-blocks: as many rows as a register has lanes are read in place, and unpacked in registers.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::{align_frame, blocks_of, has_lows, lows_of};
use crate::kernels::gemm::formats::super_blocks::{Super, column};
use crate::kernels::gemm::quantized::Task;
use crate::kernels::gemm::quantized::few::fetch;
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::ints::{Floats, IntRegister, Ints, four};
use crate::kernels::simd::lanes::{Real, Register};

by_isa!(
    /// Computes `task`, which has `T` tokens.
    pub(super) fn few<K: Super, const T: usize>(task: &Task) = few_in::<ints> tables if K::LOOKED_UP
);

#[inline(always)]
unsafe fn few_in<I: Ints, K: Super, const T: usize>(task: &Task) {
    let x = task.x;
    align_frame::<K, I::Register>();
    for first in (0..task.rows).step_by(I::Register::ROWS) {
        // SAFETY (of all): the caller has the instructions; the task's lengths were `check`ed.
        unsafe {
            let rows = &task.addresses(first, I::Register::ROWS)[..I::Register::ROWS];
            let mut totals = [Floats::<I>::splat(0.0); T];
            for b in 0..blocks_of(task) {
                let at = b * K::BYTES;
                let [scales, minima] = K::scales::<I::Register>(rows, at);
                let (mut values, mut sums) = ([x.values.as_ptr(); T], [x.sums.as_ptr(); T]);
                for t in 0..T {
                    let at = t * blocks_of(task) + b;
                    (values[t], sums[t]) = (values[t].add(256 * at), sums[t].add(16 * at));
                }
                let mut lows = [I::Register::splat(0); T];
                for n in 0..if has_lows::<K, I::Register>() { 8 } else { 0 } {
                    let low = lows_of::<K, _>(minima, n);
                    for t in 0..T {
                        lows[t] = lows[t].add_pairs(low, I::Register::splat(four(sums[t].add(2 * n))));
                    }
                }
                let mut dots = if K::MINIMA { [I::Register::splat(0); T] } else { lows };
                let step = Step::<I, T> { task, first, rows, at, scales, x: values };
                if K::BOOK {
                    // Not a loop, so that the bytes of the scales are not read again.
                    step.add_side::<K>(0, &mut dots);
                    step.add_side::<K>(1, &mut dots);
                } else {
                    for side in 0..2 {
                        step.add_side::<K>(side, &mut dots);
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
                task.write_register(t, first, totals[t]);
            }
        }
    }
}

/// A block of some rows, at `at` of each, and the values of `T` tokens for it.
struct Step<'a, I: Ints, const T: usize> {
    task: &'a Task<'a>,
    first: usize,
    rows: &'a [*const u8],
    at: usize,
    scales: [I::Register; 4],
    x: [*const i8; T],
}

impl<I: Ints, const T: usize> Step<'_, I, T> {
    /// Adds scales * (codes · x) of a side of the block.
    #[inline(always)]
    unsafe fn add_side<K: Super>(&self, side: usize, dots: &mut [I::Register; T]) {
        // SAFETY: the caller has the instructions; a block of each row, and 256 values at each x.
        unsafe {
            let packed = &K::packed::<I::Register>(self.rows, self.at, side);
            // As many sums as fit the registers.
            match (I::Register::REGISTERS, T) {
                (32.., _) => self.add::<K, 0, 8>(packed, side, dots),
                (_, 1) => {
                    self.add::<K, 0, 4>(packed, side, dots);
                    self.add::<K, 4, 4>(packed, side, dots);
                }
                _ => {
                    self.add::<K, 0, 2>(packed, side, dots);
                    self.add::<K, 2, 2>(packed, side, dots);
                    self.add::<K, 4, 2>(packed, side, dots);
                    self.add::<K, 6, 2>(packed, side, dots);
                }
            }
        }
    }

    /// Adds scales * (codes · x) of some of the side's eight times sixteen columns.
    #[inline(always)]
    unsafe fn add<K: Super, const FROM: usize, const COUNT: usize>(
        &self,
        packed: &K::Packed<I::Register>,
        side: usize,
        dots: &mut [I::Register; T],
    ) {
        let steps = if I::Register::NARROW && K::STEPS < 4 { K::STEPS } else { 4 };
        // SAFETY: the caller has the instructions; 256 values at each x.
        unsafe {
            let mut factors = [I::Register::splat(0); COUNT];
            for n in 0..COUNT {
                let group = column::<K>(FROM + n, side) / 4 / K::GROUP;
                factors[n] = self.scales[group / 4].factor(group % 4);
            }
            let mut own = [[I::Register::splat(0); COUNT]; T];
            for j in 0..4 {
                if FROM == 0 {
                    fetch::<I, 8>(self.task, self.first, self.at, K::BYTES, 4 * side + j);
                }
                let mut codes = K::codes(packed, j);
                if K::SIGNED && I::Register::UNSIGNED {
                    for k in 0..8 {
                        codes[k] = codes[k].flip();
                    }
                }
                for t in 0..T {
                    for n in 0..COUNT {
                        let x = self.x[t].add(column::<K>(FROM + n, side) + 4 * j);
                        let (code, x) = (codes[FROM + n], I::Register::splat(four(x)));
                        own[t][n] = match K::SIGNED && !I::Register::UNSIGNED {
                            true => own[t][n].dot_signed(code, x),
                            false => own[t][n].dot(code, x),
                        };
                        if (j + 1) % steps == 0 {
                            dots[t] = dots[t].add(own[t][n], factors[n]);
                            own[t][n] = I::Register::splat(0);
                        }
                    }
                }
            }
        }
    }
}
