//! Few tokens with super-blocks: a register's lanes of rows are read as they lie, and unpacked in registers.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::{blocks_of, lows_of};
use crate::kernels::gemm::formats::super_blocks::{Super, columns};
use crate::kernels::gemm::quantized::Task;
use crate::kernels::gemm::quantized::few::{fetch, rows_at};
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::ints::{Floats, Ints, Part, four};
use crate::kernels::simd::lanes::Register;

by_isa!(
    /// `task`, whose tokens are `T`.
    pub fn few<K: Super, const T: usize>(task: &Task) = few_in::<ints>
);

#[inline(always)]
unsafe fn few_in<I: Ints, K: Super, const T: usize>(task: &Task) {
    let x = task.x;
    for first in (0..task.rows).step_by(I::Part::ROWS) {
        // SAFETY (of all): the caller has the instructions; the task's lengths were `check`ed.
        unsafe {
            let rows = &rows_at::<I>(task, first)[..I::Part::ROWS];
            let mut totals = [Floats::<I>::splat(0.0); T];
            for b in 0..blocks_of(task) {
                let at = b * K::BYTES;
                let [scales, minima] = K::scales(I::Part::columns(rows, at + K::SCALES));
                let (mut values, mut sums) = ([x.values.as_ptr(); T], [x.sums.as_ptr(); T]);
                for t in 0..T {
                    let at = t * blocks_of(task) + b;
                    (values[t], sums[t]) = (values[t].add(256 * at), sums[t].add(16 * at));
                }
                let mut lows = [I::Part::splat(0); T];
                for n in 0..8 {
                    let low = lows_of::<K, _>(minima, n);
                    for t in 0..T {
                        lows[t] = lows[t].add_pairs(low, I::Part::splat(four(sums[t].add(2 * n))));
                    }
                }
                let mut dots = if K::MINIMA { [I::Part::splat(0); T] } else { lows };
                let mut own = [[I::Part::splat(0); 8]; T];
                for side in 0..2 {
                    let packed = columns::<K, I::Part>(rows, at, side);
                    for j in 0..4 {
                        fetch::<I, 8>(task, first, at, K::BYTES, 4 * side + j);
                        step::<I, K, T>(packed[j], 4 * side + j, scales, values, &mut own, &mut dots);
                    }
                }
                let d = Floats::<I>::halves(rows, at + K::D);
                let min = Floats::<I>::halves(rows, at + K::MIN);
                for t in 0..T {
                    let scale = Floats::<I>::splat(*x.scales.as_ptr().add(t * blocks_of(task) + b));
                    totals[t] = dots[t].to_f32().fma(d.mul(scale), totals[t]);
                    if K::MINIMA {
                        let min = min.mul(Register::splat(-1.0)).mul(scale);
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

/// Adds scales * (codes · x) of columns 4 j.. of each 32; what has no scale yet waits in `own`.
#[inline(always)]
unsafe fn step<I: Ints, K: Super, const T: usize>(
    packed: [I::Part; 6],
    j: usize,
    scales: [I::Part; 4],
    x: [*const i8; T],
    own: &mut [[I::Part; 8]; T],
    dots: &mut [I::Part; T],
) {
    let steps = if I::Part::NARROW { K::STEPS } else { K::GROUP };
    // SAFETY: the caller has the instructions; 256 values at each x.
    unsafe {
        let codes = K::codes(packed);
        for t in 0..T {
            for k in 0..8 {
                let x = I::Part::splat(four(x[t].add(32 * k + 4 * j)));
                own[t][k] = own[t][k].dot(codes[k], x);
            }
        }
        if (j + 1).is_multiple_of(steps) {
            for k in 0..8 {
                let group = (8 * k + j) / K::GROUP;
                let factor = scales[group / 4].factor(group % 4);
                for t in 0..T {
                    dots[t] = dots[t].add(own[t][k], factor);
                    own[t][k] = I::Part::splat(0);
                }
            }
        }
    }
}
