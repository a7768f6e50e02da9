//! Activations for weights of one and two bits (`short_blocks`), in the order in which these weights are unpacked.

use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::formats::short_blocks::column;
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::{DType, Isa, Pool};

/// Number of activations below which waking other threads takes longer than arranging them.
const SMALL: usize = 1 << 17;

/// Bits per weight; None for types that need no arranging.
pub fn bits(dtype: DType) -> Option<usize> {
    match dtype {
        DType::Q1_0 => Some(1),
        DType::Q2_0 | DType::Q2_0_128 => Some(2),
        _ => None,
    }
}

/// Returns `x` with each 32 columns in the order in which weights of `bits` bits are unpacked.
pub fn arrange<'a>(
    pool: &Pool,
    isa: Isa,
    bits: usize,
    x: &BlockActivations<'a>,
    to: &'a mut Vec<i8>,
) -> BlockActivations<'a> {
    let values = grown(to, x.values.len());
    {
        let shared = SharedOut::new(values);
        let one = |t: usize| {
            let range = t * x.cols..(t + 1) * x.cols;
            // SAFETY: each task has a row of its own.
            let to = unsafe { shared.slice(range.clone()) };
            arrange_row(isa, bits, x.values[range].as_chunks().0, to.as_chunks_mut().0);
        };
        if x.values.len() < SMALL { (0..x.tokens()).for_each(one) } else { pool.run(x.tokens(), &one) }
    }
    BlockActivations { values, ..*x }
}

by_isa!(fn arrange_row(bits: usize, x: &[[i8; 32]], to: &mut [[i8; 32]]) = arrange_loop);

#[inline(always)]
fn arrange_loop(bits: usize, x: &[[i8; 32]], to: &mut [[i8; 32]]) {
    for (x, to) in x.iter().zip(to) {
        // With constants, compilers generate shuffles.
        match bits {
            1 => (0..32).for_each(|i| to[i] = x[column(1, i)]),
            _ => (0..32).for_each(|i| to[i] = x[column(2, i)]),
        }
    }
}
