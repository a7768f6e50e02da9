//! Products of int8 activations with integer weights on matrix tiles, and of floats (`floats`).
//!
//! A row of the left tile has consecutive columns of one row. A row of the right tile has four bytes of each of
//! sixteen rows. If unpacking weights takes a few instructions, they are the left operand; otherwise tokens are. The
//! right operand is put in order once: tokens for a product, weights for all tokens. Sums are processed as in the
//! reference, in its order.
//!
//! Kernels are written once, for a `Set`: the processor's, or in tests a model of tiles beside the vectors of any
//! set.

/// Defines a function that runs a kernel for any `Set` with the processor's set, or with the set that a test wants.
macro_rules! entry {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),*) = $kernel:ident) => {
        $(#[$doc])*
        $vis unsafe fn $name($($arg: $type),*) {
            #[cfg(test)]
            if let Some(isa) = crate::kernels::gemm::tiles::WANTED.get() {
                crate::kernels::simd::dispatch::by_isa!(
                    fn modelled($($arg: $type),*) = $kernel::<models>
                );
                return modelled(isa, $($arg),*);
            }
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
                fn processor($($arg: $type),*) {
                    // SAFETY: this function has the instructions.
                    unsafe { $kernel::<crate::kernels::simd::amx::Processor>($($arg),*) }
                }
                // SAFETY: the caller's promise.
                unsafe { processor($($arg),*) }
            }
        }
    };
}

pub(crate) use entry;

mod blocks;
pub(crate) mod floats;
pub(super) mod int8;
mod supers;
mod sweep;
pub(super) mod ternary;

use crate::kernels::gemm::driver::{self, in_groups};
use crate::kernels::gemm::formats::super_blocks::with_super;
use crate::kernels::gemm::quantized::{Scratch, Task};
use crate::kernels::pool::buffer::{Line, floats};
use crate::kernels::rows::quantize_blocks::BlockActivations;
#[cfg(target_arch = "x86_64")]
use crate::kernels::simd::amx::Configured;
use crate::kernels::simd::amx::{Set, Tiles};
use crate::kernels::simd::bytes::{Bytes, put};
use crate::kernels::simd::ints::Ints;
use crate::kernels::simd::lanes::{Lanes, Register};
use crate::kernels::{DType, Isa, Pool};

#[cfg(test)]
thread_local! {
    /// The set whose vectors are used with the model of tiles, in tests that use the model.
    pub static WANTED: std::cell::Cell<Option<Isa>> = const { std::cell::Cell::new(None) };
}

/// Whether this thread's products use the model.
#[cfg(test)]
pub fn modelled() -> bool {
    WANTED.get().is_some()
}

/// Runs `product` with the model of tiles, and the vectors of `isa`. Only this thread's products use the model, so
/// `product` must use one thread.
#[cfg(test)]
pub fn modelling<R>(isa: Isa, product: impl FnOnce() -> R) -> R {
    WANTED.set(Some(isa));
    let result = product();
    WANTED.set(None);
    result
}

/// Whether this machine has tiles.
#[cfg(test)]
pub fn here() -> bool {
    crate::kernels::available().contains(&Isa::Amx) && Isa::Amx.permitted()
}

#[cfg(not(test))]
pub(crate) const fn modelled() -> bool {
    false
}

/// Configures this thread's tiles for the tasks of a product, if `uses_tiles`; drop the result after the tasks.
#[cfg(target_arch = "x86_64")]
pub(crate) fn configured(uses_tiles: bool, depth: usize) -> Option<Configured> {
    // SAFETY: kernels use tiles only for `Isa::Amx`, which stands for permitted ones. Products configure no others.
    (uses_tiles && !modelled()).then(|| unsafe { Configured::new(depth) })
}

/// Whether `isa` multiplies this number of tokens with such weights on tiles. With short blocks, a few tokens take as
/// long as sixteen, and a few more than sixteen as long as 32. At the thresholds below, tiles are 1.0 to 1.2 times as
/// fast as AVX-512, and 1.3 times with ternary weights (on an Emerald Rapids, weights from memory).
pub(super) fn pays(isa: Isa, dtype: DType, tokens: usize) -> bool {
    let (one, two) = match dtype {
        DType::Q8_0 => (6, 17),
        DType::Q4_0 | DType::IQ4_NL | DType::MXFP4 => (12, 17),
        DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => (12, 20),
        DType::Q1_0 => (11, 17),
        DType::Q2_0 | DType::Q2_0_128 | DType::PTQ1_0 => (12, 18),
        DType::Q2_K | DType::Q3_K | DType::Q5_K | DType::Q6_K | DType::IQ4_XS => (6, 6),
        DType::TQ1_0_256 | DType::TQ2_0_256 => (6, 6),
        DType::Q4_K => (9, 9),
        // Rows of these types are decoded one by one for tiles, sixteen at once for vectors.
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ3_XXS | DType::IQ3_S => (64, 64),
        DType::I2S | DType::Ternary | DType::TQ1_0 | DType::TQ2_0 => (6, 6),
        DType::Int8 => (8, 8),
        _ => return false,
    };
    isa == Isa::Amx && (modelled() || (one..=SIDE).contains(&tokens) || tokens >= two)
}

/// Depth of tiles in bytes, for activations in blocks of `block` columns.
#[cfg(target_arch = "x86_64")]
pub(super) fn depth(block: usize) -> usize {
    if block == 32 { blocks::DEPTH } else { DEPTH }
}

/// Arranges activations in the order of tiles.
///
/// # Safety
/// `Isa::Amx` is available.
pub(super) unsafe fn arrange<'a>(pool: &Pool, x: &BlockActivations, lines: &'a mut Vec<Line>) -> &'a [Line] {
    let each = if x.block == 32 { blocks::lines_of_group(x) } else { supers::lines_of_group(x) };
    // SAFETY: the caller's promise.
    in_groups(pool, (x.tokens(), x.values.len()), (SIDE, each), lines, &|group, out| unsafe {
        arranged(x, group, out)
    })
}

entry!(fn arranged(x: &BlockActivations, group: usize, out: &mut [Line]) = arrange_group);
entry!(
    /// Computes `task`, whose weights are in blocks.
    ///
    /// # Safety
    /// As for `arrange`, which has made `arranged`; this thread has tiles of `depth`.
    pub(super) fn run(task: &Task, arranged: &[Line], scratch: &mut Scratch) = product
);

#[inline(always)]
unsafe fn arrange_group<S: Set>(x: &BlockActivations, group: usize, out: &mut [Line]) {
    // SAFETY (of both): the caller's promise.
    match x.block {
        32 => unsafe { blocks::arrange::<S>(x, group, out) },
        _ => unsafe { supers::arrange::<S>(x, group, out) },
    }
}

#[inline(always)]
unsafe fn product<S: Set>(task: &Task, arranged: &[Line], scratch: &mut Scratch) {
    // SAFETY (of both): the caller's promise.
    match task.x.block {
        32 => unsafe { blocks::run::<S>(task, arranged, scratch) },
        _ => with_super!(task.dtype, K => unsafe {
            sweep::run::<S, supers::Supers<K>>(task, arranged, scratch)
        }),
    }
}

/// Weight rows of a tile, and tokens of a tile.
pub(crate) const SIDE: usize = 16;
/// Depth of a tile in bytes, except for short blocks.
pub(crate) const DEPTH: usize = 64;
/// Columns of a step, and lines that hold one byte per column for sixteen rows or tokens.
const STEP: usize = 256;
const LINES: usize = STEP / DEPTH * SIDE;

// The functions below need the instructions of their set, and are inlined into functions that have them.

/// Loads 16 bytes at `at` of each row into four lines; each line has four bytes of every row.
#[inline(always)]
unsafe fn columns<S: Set>(rows: &[*const u8; SIDE], at: usize, to: &mut [Line; 4]) {
    type Of<S> = <<S as Set>::Ints as Ints>::Register;
    for part in 0..SIDE / Of::<S>::ROWS {
        // SAFETY: the caller has 16 bytes at `at` of each row.
        unsafe {
            let [a, b, c, d] = Of::<S>::columns(&rows[Of::<S>::ROWS * part..], at);
            put(&mut to[0], part, a);
            put(&mut to[1], part, b);
            put(&mut to[2], part, c);
            put(&mut to[3], part, d);
        }
    }
}

/// Arranges `cols` columns from `from` on as right tiles, in steps of 256. In tile `k` of a step, rows j < 8 have
/// columns `32 k + 4 j ..` of the step's first half, and rows 8 + j the same of its second half.
#[inline(always)]
unsafe fn in_steps<S: Set>(rows: &[*const u8; SIDE], from: usize, cols: usize, out: &mut [Line]) {
    for at in (0..cols).step_by(16) {
        let (step, half, k, j) = (at / 256, at % 256 / 128, at % 128 / 32, at % 32 / 4);
        let to = out[64 * step + SIDE * k + 8 * half + j..].first_chunk_mut().expect("four lines");
        // SAFETY: the caller has these columns of each row.
        unsafe { columns::<S>(rows, from + at, to) };
    }
}

/// Writes a tile of outputs: those of `task` for up to sixteen tokens and rows from `token` and `row` on. The lines are
/// those of tokens if BY_TOKEN, else those of rows.
#[inline(always)]
unsafe fn write<S: Set, const BY_TOKEN: bool, X>(
    task: &driver::Task<X>,
    lines: &[Line; SIDE],
    (row, token): (usize, usize),
    tokens: usize,
) {
    let tokens = SIDE.min(tokens - token);
    let mut rows = [lines.as_ptr().cast(); SIDE];
    for (row, line) in rows.iter_mut().zip(lines) {
        *row = line.0.as_ptr();
    }
    for first in (0..tokens).step_by(4) {
        let mut four = [Line::default(); 4];
        if BY_TOKEN {
            four.copy_from_slice(&lines[first..first + 4]);
        } else {
            // SAFETY: a quarter of each line.
            unsafe { columns::<S>(&rows, 4 * first, &mut four) };
        }
        for (t, values) in floats(&mut four).iter().enumerate().take(tokens - first) {
            task.write_array(token + first + t, row, values);
        }
    }
}

/// Adds the products of `L` left tiles with `R` right tiles (one or two each) to tiles 2 l + r.
#[inline(always)]
unsafe fn multiply_sides<S: Set, const L: usize, const R: usize>(
    tiles: &mut S::Tiles,
    left: [&[Line]; 2],
    right: [&[Line]; 2],
) {
    let (left, right) = (left.map(|tile| tile[..SIDE].as_ptr()), right.map(|tile| tile[..SIDE].as_ptr()));
    // SAFETY (of all): these are tiles.
    unsafe {
        tiles.load::<4>(left[0].cast(), 64);
        tiles.load::<6>(right[0].cast(), 64);
        tiles.dot_signed::<0, 4, 6>();
        if R == 2 {
            tiles.load::<7>(right[1].cast(), 64);
            tiles.dot_signed::<1, 4, 7>();
        }
        if L == 2 {
            tiles.load::<5>(left[1].cast(), 64);
            tiles.dot_signed::<2, 5, 6>();
        }
        if L == 2 && R == 2 {
            tiles.dot_signed::<3, 5, 7>();
        }
    }
}

/// Loads `count` F16, `stride` bytes apart; the last one is repeated up to sixteen.
#[inline(always)]
unsafe fn halves<S: Set>(from: *const u8, stride: usize, count: usize) -> S::Lanes {
    type Of<S> = <<S as Set>::Lanes as Lanes>::Register;
    let mut rows = [from; SIDE];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = from.wrapping_add(i.min(count - 1) * stride);
    }
    // SAFETY: each row has one.
    unsafe { S::Lanes::of(|i| Of::<S>::halves(&rows[Of::<S>::WIDTH * i..], 0)) }
}
