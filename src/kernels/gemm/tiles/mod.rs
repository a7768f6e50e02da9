//! Products of int8 activations with integer weights on matrix tiles.
//!
//! A row of the left tile is a weight row's bytes, as its columns follow each other; the right tile has four bytes of
//! each of sixteen tokens in a row, and is arranged once for a product. So a tile of sums is `[weight row, token]`.
//! What is done with sums is what the reference does, in its order.
//!
//! Kernels are written once, for a `Machine`: the processor, or arrays that stand for its tiles in tests.

/// Calls `$entry` of the processor, or what it stands for, for the machine that tests want.
macro_rules! on_machine {
    ($entry:ident, $generic:ident($($arg:expr),*)) => {{
        #[cfg(test)]
        if crate::kernels::gemm::tiles::modelled() {
            return $generic::<crate::kernels::gemm::tiles::model::Model>($($arg),*);
        }
        #[cfg(target_arch = "x86_64")]
        crate::kernels::gemm::tiles::amx::$entry($($arg),*)
    }};
}

pub mod blocks;
pub mod int8;
pub mod supers;
pub mod ternary;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(test)]
mod model;

use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::quantized::{Scratch, Task};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::quantize_blocks::BlockActivations;
#[cfg(target_arch = "x86_64")]
use crate::kernels::simd::amx::Configured;
use crate::kernels::simd::amx::Tiles;
use crate::kernels::{DType, Isa, Pool};

/// Whether this thread's products stand for the processor's: in tests.
#[cfg(test)]
pub fn modelled() -> bool {
    model::WANTED.get()
}

/// What `product` gives where this thread's products are the model's. It has no others: `product` uses one thread.
#[cfg(test)]
pub fn modelling<R>(product: impl FnOnce() -> R) -> R {
    model::WANTED.set(true);
    let result = product();
    model::WANTED.set(false);
    result
}

#[cfg(not(test))]
pub const fn modelled() -> bool {
    false
}

/// The thread's tiles for tasks of a product whose kernels use tiles, if they do; to be dropped behind them.
#[cfg(target_arch = "x86_64")]
pub fn configured(uses_tiles: bool, depth: usize) -> Option<Configured> {
    // SAFETY: `Isa::Amx`, for which alone kernels use tiles, stands for permitted ones. Products begin no others.
    (uses_tiles && !modelled()).then(|| unsafe { Configured::new(depth) })
}

/// Whether `isa` multiplies so many tokens with such weights in blocks with tiles.
pub fn pays(isa: Isa, dtype: DType, tokens: usize) -> bool {
    blocks::pays(isa, dtype, tokens) || supers::pays(isa, dtype, tokens)
}

/// Bytes that tiles multiply, for activations in such blocks.
#[cfg(target_arch = "x86_64")]
pub fn depth(block: usize) -> usize {
    if block == 32 { blocks::DEPTH } else { supers::DEPTH }
}

/// Fewer activations than this are arranged faster than others are woken.
const SMALL: usize = 1 << 16;

/// Calls `one` for each sixteen tokens with their lines, `each` of `out`.
fn in_groups(
    pool: &Pool,
    x: &BlockActivations,
    each: usize,
    out: &mut [Line],
    one: &(dyn Fn(usize, &mut [Line]) + Sync),
) {
    let (groups, shared) = (x.tokens().div_ceil(SIDE), SharedOut::new(out));
    // SAFETY: each task has lines of its own.
    let one = |group: usize| one(group, unsafe { shared.slice(group * each..(group + 1) * each) });
    if x.values.len() < SMALL { (0..groups).for_each(one) } else { pool.run(groups, &one) }
}

/// Activations in the order of right tiles.
///
/// # Safety
/// `Isa::Amx` is available.
pub unsafe fn arrange<'a>(pool: &Pool, x: &BlockActivations, lines: &'a mut Vec<Line>) -> &'a [Line] {
    // SAFETY (of both): the caller's promise.
    if x.block == 32 {
        let lines = grown(lines, blocks::arranged_lines(x));
        unsafe { blocks::arrange(pool, x, lines) };
        lines
    } else {
        let lines = grown(lines, supers::arranged_lines(x));
        unsafe { supers::arrange(pool, x, lines) };
        lines
    }
}

/// `task`, whose weights are in blocks.
///
/// # Safety
/// As for `arrange`, which has made `arranged`; this thread has tiles of `depth`.
pub unsafe fn run(task: &Task, arranged: &[Line], scratch: &mut Scratch) {
    // SAFETY (of both): the caller's promise.
    match task.x.block {
        32 => unsafe { blocks::run(task, arranged, scratch) },
        _ => unsafe { supers::run(task, arranged, scratch) },
    }
}

/// Weight rows of a tile, and tokens.
pub const SIDE: usize = 16;

/// Tiles, and what is done beside them. All functions need the machine's instructions, and are inlined into functions
/// that have them.
#[allow(clippy::missing_safety_doc)] // said above, once; what pointers must be is said at each
pub trait Machine {
    type Tiles: Tiles;
    /// Sixteen f32.
    type Floats: Copy;

    /// Of the codes of 2 bits in `len`, 64 or fewer, bytes at `from` four times as many bytes: those that a byte has
    /// highest, `HIGH_FIRST`, or lowest, first. A quarter is a line, and they are `SIDE` lines apart from `to` on. What
    /// is missing of 64 bytes counts as zeros.
    unsafe fn planes<const HIGH_FIRST: bool>(from: *const u8, len: usize, to: *mut Line);

    /// Of 16 bytes at `at` of each row four lines, with four bytes of every row in each.
    unsafe fn columns(rows: &[*const i8; SIDE], at: usize, to: &mut [Line; 4]);

    unsafe fn splat(x: f32) -> Self::Floats;
    /// Sixteen at `from`.
    unsafe fn load(from: *const f32) -> Self::Floats;
    /// The 32 codes, signed, of `depth` blocks of `dtype` of `count` rows, which lie `stride` bytes apart: sixteen rows of a
    /// block after the other, of those that are not there anything.
    unsafe fn decode(
        dtype: DType,
        from: *const u8,
        stride: usize,
        count: usize,
        depth: usize,
        to: *mut [u8; 32],
    );

    /// Of a block of 256 of each of `count` rows, which lie `stride` bytes apart: codes times their integer scales, as 128
    /// times a high byte and a low one, each in four tiles, then a tile of rows that begin with their sixteen minimums and
    /// are zero behind them.
    unsafe fn decode_super(
        dtype: DType,
        from: *const u8,
        stride: usize,
        count: usize,
        to: &mut [Line; supers::CODE_LINES],
    );

    /// `count` F16, one at `from` and the others `stride` bytes apart from there on; sixteen where it is more. Two bytes
    /// behind each, or before each if it is the `LAST` one, can be read too. Other floats are 0.
    unsafe fn halves<const LAST: bool>(from: *const u8, stride: usize, count: usize) -> Self::Floats;
    /// Sixteen i32 at `from`, as floats.
    unsafe fn load_i32(from: *const i32) -> Self::Floats;
    /// 128 times sixteen i32 at `high`, and those at `low`, as floats.
    unsafe fn load_split(high: *const i32, low: *const i32) -> Self::Floats;
    /// To sixteen at `to`.
    unsafe fn store(x: Self::Floats, to: *mut f32);
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn div(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Rows become columns.
    unsafe fn transpose(x: [Self::Floats; SIDE]) -> [Self::Floats; SIDE];
    /// Asks memory for `bytes` at `from`, which need not be anybody's.
    fn fetch(from: *const u8, bytes: usize);
}
