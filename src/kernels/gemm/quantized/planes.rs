//! Puts activations in the order in which weights are unpacked: for weights of one and two bits (`short_blocks`),
//! and for codebooks in tables (`codebooks`).

use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::formats::codebooks::fours;
use crate::kernels::gemm::formats::short_blocks::column;
use crate::kernels::gemm::formats::super_blocks::{Super, with_super};
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::{Arithmetic, DType, Isa, Pool};

/// Number of activations below which waking other threads takes longer than arranging them.
const SMALL: usize = 1 << 17;

/// An order of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The order of the columns.
    Own,
    /// For weights of one bit, and of two bits.
    One,
    Two,
    /// For codebooks.
    Fours,
}

impl Order {
    pub(super) const ALL: [Self; 4] = [Self::Own, Self::One, Self::Two, Self::Fours];

    /// The order in which the kernels of `isa`, with tiles or without, need activations.
    pub(super) fn of(isa: Isa, dtype: DType, tiled: bool) -> Self {
        match dtype {
            _ if isa == Isa::Scalar => Self::Own,
            DType::Q1_0 => Self::One,
            DType::Q2_0 | DType::Q2_0_128 => Self::Two,
            _ if isa.has_vbmi() && !tiled && dtype.arithmetic() == Arithmetic::Blocks256 => {
                with_super!(dtype, K => if K::BOOK { Self::Fours } else { Self::Own })
            }
            _ => Self::Own,
        }
    }
}

/// Returns `x` with each 32 columns in another order.
pub(super) fn arrange<'a>(
    pool: &Pool,
    isa: Isa,
    order: Order,
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
            arrange_row(isa, order, x.values[range].as_chunks().0, to.as_chunks_mut().0);
        };
        if x.values.len() < SMALL { (0..x.tokens()).for_each(one) } else { pool.run(x.tokens(), &one) }
    }
    BlockActivations { values, ..*x }
}

by_isa!(fn arrange_row(order: Order, x: &[[i8; 32]], to: &mut [[i8; 32]]) = arrange_loop);

#[inline(always)]
fn arrange_loop(order: Order, x: &[[i8; 32]], to: &mut [[i8; 32]]) {
    for (x, to) in x.iter().zip(to) {
        // With constants, compilers generate shuffles.
        match order {
            Order::Own => *to = *x,
            Order::One => (0..32).for_each(|i| to[i] = x[column(1, i)]),
            Order::Two => (0..32).for_each(|i| to[i] = x[column(2, i)]),
            Order::Fours => (0..32).for_each(|i| to[i] = x[fours(i)]),
        }
    }
}
