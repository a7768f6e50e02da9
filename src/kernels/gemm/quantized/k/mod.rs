//! Products of int8 activations and super-blocks of 256 columns: the integers of `scalar`, with a lane per row, so
//! that each row's f32 sum keeps its order. With few tokens, rows are unpacked in registers; with more, they are
//! unpacked into panels once.

mod few;
mod panel;

use super::{Scratch, Task};
use crate::kernels::Isa;
use crate::kernels::gemm::formats::super_blocks::{Super, with_super};
use crate::kernels::pool::buffer::Line;
use crate::kernels::simd::dispatch::by_count;
use crate::kernels::simd::ints::IntRegister;
use std::hint::black_box;
use std::mem::MaybeUninit;

/// Computes `task`, whose type has super-blocks, with an instruction set that is not `Scalar`.
pub(super) fn run(isa: Isa, task: &Task, scratch: &mut Scratch) {
    let tokens = task.x.tokens();
    with_super!(task.dtype, K => {
        check::<K>(task);
        by_count!(tokens, T in 1 2 3, few::few::<K, T>(isa, task), else panel::sweep::<K>(isa, task, scratch))
    })
}

/// Lets the caller's stack frame begin at a cache line where look-ups take many registers of 64 bytes. Compilers align
/// a frame for variables alone, and decide before they spill: spilled registers would lie across lines, which costs up
/// to a fifth of the speed of one token.
#[inline(always)]
fn align_frame<K: Super, P: IntRegister>() {
    if K::BOOK && P::ROWS == 16 {
        black_box(MaybeUninit::<Line>::uninit().as_ptr());
    }
}

/// Number of blocks of a row, and of a token.
#[inline(always)]
fn blocks_of(task: &Task) -> usize {
    task.x.cols / 256
}

/// Panics unless the task has blocks of `K` and activations for them.
fn check<K: Super>(task: &Task) {
    let (x, blocks) = (task.x, blocks_of(task));
    let count = x.scales.len();
    assert!(x.cols == 256 * blocks && count.is_multiple_of(blocks) && x.values.len() == 256 * count);
    assert!(x.sums.len() == 16 * count && task.row_bytes == blocks * K::BYTES);
}

/// The offset of the codes, as products with them need it.
const fn offset<K: Super, P: IntRegister>() -> i16 {
    if K::SIGNED && P::UNSIGNED { 128 } else { K::OFFSET }
}

/// Whether a block's sums of values are needed.
const fn has_lows<K: Super, P: IntRegister>() -> bool {
    K::MINIMA || offset::<K, P>() != 0
}

/// Two i16 of each row, the factors of the sums of pair `n` of groups of sixteen columns: minima, or scales times the
/// negative offset.
#[inline(always)]
unsafe fn lows_of<K: Super, P: IntRegister>(minima: [P; 4], n: usize) -> P {
    let by = if K::MINIMA { 1 } else { -offset::<K, P>() };
    // SAFETY: the caller has the instructions.
    unsafe {
        match K::GROUP {
            8 => minima[n / 4].pair(n % 4, n % 4, by),
            _ => minima[n / 2].pair(n % 2 * 2, n % 2 * 2 + 1, by),
        }
    }
}
