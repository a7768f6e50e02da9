//! Blocks of 32 to 128 columns behind one f16 scale: ggml's Q4_0 to Q8_0, Q1_0 and Q2_0 (github.com/ggml-org/ggml,
//! ggml-quants.c).

use crate::kernels::pool::buffer::Line;
use crate::kernels::simd::bytes::Bytes;

/// A type whose blocks begin with an f16 scale and, where it has minimums, an f16 minimum. Its weights are
/// `d * (code - OFFSET)`, or `d * code + min`.
pub trait Short {
    const BYTES: usize;
    /// How many times 32 columns a block has.
    const COUNT: usize = 1;
    const MINIMUMS: bool = false;
    const OFFSET: i32 = 0;
    /// Codes are int8. Others are unsigned, below 128.
    const SIGNED: bool = false;
    /// Times four columns whose pairs of products with int8 fit an i16: 2 * largest code * 127 each.
    const STEPS: usize;

    /// Codes of half of the rows in lines: line 8 i + k has four columns of the i-th 32, those that values 4 k to 4 k + 3 of
    /// the activations are for.
    ///
    /// # Safety
    /// `B`'s instructions are there; BYTES bytes can be read at each of `blocks`; there are 8 COUNT lines.
    unsafe fn lines<B: Bytes>(blocks: &[*const u8; 8], half: usize, lines: &mut [Line]);
}

/// A type with blocks of 32.
pub trait Pairs: Short {
    /// Columns 0 to 15 of the blocks at `a` and at `b`, then columns 16 to 31.
    ///
    /// # Safety
    /// `B`'s instructions are there; both blocks can be read.
    unsafe fn pair<B: Bytes>(a: *const u8, b: *const u8) -> [B; 2];
}

/// Half of a line.
///
/// # Safety
/// `B`'s instructions are there; `half` is 0 or 1.
#[inline(always)]
pub unsafe fn put<B: Bytes>(line: &mut Line, half: usize, v: B) {
    // SAFETY: the caller's promise; 32 bytes.
    unsafe { v.store(line.0.as_mut_ptr().add(32 * half)) }
}

/// `Short::lines` of `Pairs`.
#[inline(always)]
unsafe fn transposed<F: Pairs, B: Bytes>(blocks: &[*const u8; 8], half: usize, lines: &mut [Line]) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [F::pair::<B>(blocks[0], blocks[4]); 4];
        for r in 1..4 {
            rows[r] = F::pair(blocks[r], blocks[r + 4]);
        }
        for side in 0..2 {
            let columns = B::transpose([rows[0][side], rows[1][side], rows[2][side], rows[3][side]]);
            for j in 0..4 {
                put(&mut lines[4 * side + j], half, columns[j]);
            }
        }
    }
}

macro_rules! pairs {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, steps $steps:literal, {$($more:tt)*}, |$a:ident, $b:ident| $pair:expr) => {
        $(#[$doc])*
        #[allow(non_camel_case_types)] // the names that files and their users know
        pub struct $name;
        impl Short for $name {
            const BYTES: usize = $bytes;
            const STEPS: usize = $steps;
            $($more)*

            #[inline(always)]
            unsafe fn lines<B: Bytes>(blocks: &[*const u8; 8], half: usize, lines: &mut [Line]) {
                // SAFETY: the caller's promise.
                unsafe { transposed::<Self, B>(blocks, half, lines) }
            }
        }
        impl Pairs for $name {
            #[inline(always)]
            unsafe fn pair<B: Bytes>($a: *const u8, $b: *const u8) -> [B; 2] {
                // SAFETY: what is read lies in the blocks' BYTES bytes.
                unsafe { $pair }
            }
        }
    };
}

pairs!(Q8_0, 34, steps 1, { const SIGNED: bool = true; }, |a, b| {
    [B::halves(a.add(2), b.add(2)), B::halves(a.add(18), b.add(18))]
});
pairs!(Q4_0, 18, steps 8, { const OFFSET: i32 = 8; }, |a, b| nibbles(B::halves(a.add(2), b.add(2))));
pairs!(Q4_1, 20, steps 8, { const MINIMUMS: bool = true; }, |a, b| nibbles(B::halves(a.add(4), b.add(4))));
pairs!(
    /// As Q4_0, with the fifth bits of all columns in four bytes behind the scale.
    Q5_0, 22, steps 4, { const OFFSET: i32 = 16; }, |a, b| fifth(a.add(2), b.add(2))
);
pairs!(Q5_1, 24, steps 4, { const MINIMUMS: bool = true; }, |a, b| fifth(a.add(4), b.add(4)));

/// The low four bits of each byte, and the high ones.
#[inline(always)]
unsafe fn nibbles<B: Bytes>(v: B) -> [B; 2] {
    // SAFETY: the caller's promise.
    unsafe { [v.right::<0>(15), v.right::<4>(15)] }
}

/// Nibbles with fifth bits, which stand before them.
#[inline(always)]
unsafe fn fifth<B: Bytes>(a: *const u8, b: *const u8) -> [B; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let [low, high] = nibbles(B::halves(a.add(4), b.add(4)));
        [low.or(B::bits(a, b, 16)), high.or(B::bits(a.add(2), b.add(2), 16))]
    }
}

/// `COUNT` times 32 columns of `BITS` bits, low bits first. Four bytes hold 32 columns, or 16 of two bits; shifted and
/// masked, they are the codes of four of these at once, if the activations stand in that order.
pub struct Planes<const BITS: usize, const COUNT: usize>;

impl<const BITS: usize, const COUNT: usize> Short for Planes<BITS, COUNT> {
    const BYTES: usize = 2 + 4 * BITS * COUNT;
    const COUNT: usize = COUNT;
    /// Codes of one bit are 0 and 2, so that these types too are 1 less.
    const OFFSET: i32 = 1;
    const STEPS: usize = 8;

    #[inline(always)]
    unsafe fn lines<B: Bytes>(blocks: &[*const u8; 8], half: usize, lines: &mut [Line]) {
        for quad in 0..BITS * COUNT / 4 {
            let at = 2 + 16 * quad;
            // SAFETY: sixteen bytes at `at` of each block; 8 / BITS lines of each four of them.
            unsafe {
                let mut rows = [B::halves(blocks[0].add(at), blocks[4].add(at)); 4];
                for r in 1..4 {
                    rows[r] = B::halves(blocks[r].add(at), blocks[r + 4].add(at));
                }
                let words = B::transpose(rows);
                for n in 0..4 {
                    let lines = &mut lines[(4 * quad + n) * (8 / BITS)..];
                    if BITS == 1 {
                        put(&mut lines[0], half, words[n].left::<1>(2));
                        put(&mut lines[1], half, words[n].right::<0>(2));
                        put(&mut lines[2], half, words[n].right::<1>(2));
                        put(&mut lines[3], half, words[n].right::<2>(2));
                        put(&mut lines[4], half, words[n].right::<3>(2));
                        put(&mut lines[5], half, words[n].right::<4>(2));
                        put(&mut lines[6], half, words[n].right::<5>(2));
                        put(&mut lines[7], half, words[n].right::<6>(2));
                    } else {
                        put(&mut lines[0], half, words[n].right::<0>(3));
                        put(&mut lines[1], half, words[n].right::<2>(3));
                        put(&mut lines[2], half, words[n].right::<4>(3));
                        put(&mut lines[3], half, words[n].right::<6>(3));
                    }
                }
            }
        }
    }
}

/// `$call` with the `Short` of a type for `$f`.
macro_rules! with_short {
    ($dtype:expr, $f:ident => $call:expr) => {{
        use $crate::kernels::gemm::formats::short_blocks as types;
        macro_rules! with {
            ($t:ty) => {{
                type $f = $t;
                $call
            }};
        }
        match $dtype {
            $crate::kernels::DType::Q8_0 => with!(types::Q8_0),
            $crate::kernels::DType::Q4_0 => with!(types::Q4_0),
            $crate::kernels::DType::Q4_1 => with!(types::Q4_1),
            $crate::kernels::DType::Q5_0 => with!(types::Q5_0),
            $crate::kernels::DType::Q5_1 => with!(types::Q5_1),
            $crate::kernels::DType::Q1_0 => with!(types::Planes<1, 4>),
            $crate::kernels::DType::Q2_0 => with!(types::Planes<2, 2>),
            $crate::kernels::DType::Q2_0_128 => with!(types::Planes<2, 4>),
            other => panic!("{other:?} has no short blocks"),
        }
    }};
}
pub(in crate::kernels) use with_short;
