//! Operations of each instruction set for the ternary product with a few tokens.

#![allow(clippy::missing_safety_doc)] // said below, once

use crate::kernels::simd::dispatch::inlined;
use crate::kernels::simd::ints::Part;
#[cfg(target_arch = "aarch64")]
pub use aarch64::Neon;
#[cfg(target_arch = "x86_64")]
pub use x86::*;

/// Number of tokens that share the unpacked codes of rows.
pub const TOKENS: usize = 4;

/// An instruction set. Its registers have 32-bit lanes for `Part::ROWS` rows, whose products are added up together.
///
/// All functions need the instructions and the bytes; they are inlined into functions that have them.
pub trait Set {
    type Part: Part;
    /// Bytes of one row in a register.
    const BYTES: usize;
    /// Rows in a register: one, or two that are four rows apart.
    const HELD: usize;
    /// Number of registers of rows that are multiplied at once with one token, with two tokens, and so on. More
    /// registers hide the latency of `dot`; fewer suit memory best.
    const AT_ONCE: [usize; TOKENS];
    /// Number of bytes of a row whose products the lanes can hold.
    const SPAN: usize = usize::MAX;
    /// Loads BYTES bytes of each row.
    unsafe fn bytes(row: *const u8, other: *const u8) -> Self::Part;
    /// Loads BYTES values of a token, for each row.
    unsafe fn values(x: *const i8) -> Self::Part;
    /// Adds the products of codes, up to 12, and values to `sum`.
    unsafe fn dot(sum: Self::Part, codes: Self::Part, x: Self::Part) -> Self::Part;
    /// The total as i32: `ones` and a quarter of `fours`. Both are results of `dot`; the codes of `fours` are
    /// multiples of four.
    unsafe fn total(ones: Self::Part, fours: Self::Part) -> Self::Part;
    unsafe fn add(a: Self::Part, b: Self::Part) -> Self::Part;
    /// Adds pairs of lanes. Each four lanes of the result are the two sums of four lanes of `a`, then those of `b`.
    /// If `small`, all lanes fit an i16.
    unsafe fn pairs(a: Self::Part, b: Self::Part, small: bool) -> Self::Part;
    /// Adds up the lanes of each row, and returns the rows in order. In `a` and `b`, each four lanes belong to four
    /// rows.
    unsafe fn rows(a: Self::Part, b: Self::Part) -> Self::Part;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Set, TOKENS, inlined};
    use crate::kernels::simd::ints::Part;
    use crate::kernels::simd::x86::{load, pinned};
    use std::arch::x86_64::*;

    /// A set of 256-bit registers.
    macro_rules! set {
        (
            $name:ident, $at_once:expr, $span:expr,
            |$sum:ident, $codes:ident, $x:ident| $dot:expr,
            |$ones:ident, $fours:ident| $total:expr
        ) => {
            pub struct $name;

            impl Set for $name {
                type Part = __m256i;
                const BYTES: usize = 32;
                const HELD: usize = 1;
                const AT_ONCE: [usize; TOKENS] = $at_once;
                const SPAN: usize = $span;
                inlined! {
                    fn bytes(row: *const u8, _: *const u8) -> __m256i = load(row);
                    fn values(x: *const i8) -> __m256i = load(x);
                    fn dot($sum: __m256i, $codes: __m256i, $x: __m256i) -> __m256i = $dot;
                    fn total($ones: __m256i, $fours: __m256i) -> __m256i = $total;
                    fn add(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
                    fn pairs(a: __m256i, b: __m256i, small: bool) -> __m256i = match small {
                        true => _mm256_madd_epi16(_mm256_packs_epi32(a, b), _mm256_set1_epi16(1)),
                        false => _mm256_hadd_epi32(a, b),
                    };
                    fn rows(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(
                        _mm256_permute2x128_si256::<0x20>(a, b),
                        _mm256_permute2x128_si256::<0x31>(a, b),
                    );
                }
            }
        };
    }

    // SAFETY of all blocks: the caller has the instructions and the bytes.
    set!(Avx2, [1; 4], 256, |sum, codes, x| sum.dot(codes, x), |ones, fours| {
        // Exact: a pair of products is at most 2·8·128 = 2048 in magnitude, and the 16 pairs of a SPAN add up to
        // -32768..=32512.
        let sums = _mm256_add_epi16(ones, _mm256_srai_epi16::<2>(fours));
        _mm256_madd_epi16(sums, _mm256_set1_epi16(1))
    });
    set!(
        AvxVnni,
        [4, 2, 1, 1],
        usize::MAX,
        |sum, codes, x| pinned(_mm256_dpbusd_avx_epi32(sum, codes, x)),
        |ones, fours| _mm256_add_epi32(ones, _mm256_srai_epi32::<2>(fours))
    );
    // The code of AVX-VNNI in AVX-512's encoding: for tests on machines that have only AVX-512.
    #[cfg(test)]
    set!(
        AvxVnniAsAvx512,
        AvxVnni::AT_ONCE,
        usize::MAX,
        |sum, codes, x| pinned(_mm256_dpbusd_epi32(sum, codes, x)),
        |ones, fours| AvxVnni::total(ones, fours)
    );

    pub struct Avx512;

    impl Set for Avx512 {
        type Part = __m512i;
        const BYTES: usize = 32;
        const HELD: usize = 2;
        const AT_ONCE: [usize; TOKENS] = [4, 4, 2, 2];
        inlined! {
            fn bytes(row: *const u8, other: *const u8) -> __m512i =
                _mm512_inserti64x4::<1>(_mm512_castsi256_si512(load(row)), load(other));
            fn values(x: *const i8) -> __m512i = _mm512_broadcast_i64x4(load(x));
            fn dot(sum: __m512i, codes: __m512i, x: __m512i) -> __m512i = sum.dot(codes, x);
            fn total(ones: __m512i, fours: __m512i) -> __m512i =
                _mm512_add_epi32(ones, _mm512_srai_epi32::<2>(fours));
            fn add(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
            fn pairs(a: __m512i, b: __m512i, small: bool) -> __m512i = match small {
                true => _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1)),
                false => {
                    let [a, b] = [_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)];
                    let [even, odd] = [_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b)];
                    _mm512_add_epi32(_mm512_castps_si512(even), _mm512_castps_si512(odd))
                }
            };
            fn rows(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(
                _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
            );
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::{Set, TOKENS, inlined};
    use crate::kernels::simd::ints::Part;
    use std::arch::aarch64::*;

    pub struct Neon;

    // SAFETY of all blocks: the caller has the instructions and the bytes.
    impl Set for Neon {
        type Part = uint8x16_t;
        const BYTES: usize = 16;
        const HELD: usize = 1;
        const AT_ONCE: [usize; TOKENS] = [4, 4, 2, 1];
        inlined! {
            fn bytes(row: *const u8, _: *const u8) -> uint8x16_t = vld1q_u8(row);
            fn values(x: *const i8) -> uint8x16_t = vld1q_u8(x.cast());
            fn dot(sum: uint8x16_t, codes: uint8x16_t, x: uint8x16_t) -> uint8x16_t = sum.dot(codes, x);
            fn total(ones: uint8x16_t, fours: uint8x16_t) -> uint8x16_t = {
                let [ones, fours] = [vreinterpretq_s32_u8(ones), vreinterpretq_s32_u8(fours)];
                vreinterpretq_u8_s32(vsraq_n_s32::<2>(ones, fours))
            };
            fn add(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t =
                vreinterpretq_u8_u32(vaddq_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
            fn pairs(a: uint8x16_t, b: uint8x16_t, _: bool) -> uint8x16_t =
                vreinterpretq_u8_u32(vpaddq_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
            fn rows(_: uint8x16_t, _: uint8x16_t) -> uint8x16_t = unreachable!("four lanes, four rows");
        }
    }
}
