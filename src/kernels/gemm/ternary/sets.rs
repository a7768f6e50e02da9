//! Operations of each instruction set for the ternary product with a few tokens.

#![allow(clippy::missing_safety_doc)] // said below, once

use crate::kernels::simd::dispatch::inlined;
use crate::kernels::simd::ints::IntRegister;

/// Number of tokens that share the unpacked codes of rows.
pub(super) const TOKENS: usize = 4;

/// A register with 32-bit lanes for `ROWS` rows, whose products are added up together.
///
/// All functions need the instructions and the bytes; they are inlined into functions that have them.
pub(super) trait Set: IntRegister {
    /// Bytes of one row in a register.
    const BYTES: usize = 32;
    /// Rows in a register: one, or two that are four rows apart.
    const HELD: usize = 1;
    /// Number of registers of rows that are multiplied at once with one token, with two tokens, and so on. More
    /// registers hide the latency of `more`; fewer suit memory best. A single token of plain rows takes AVX2's
    /// code where that exists (`few`).
    const AT_ONCE: [usize; TOKENS];
    /// Maximum number of tokens at once.
    const MOST: usize = TOKENS;
    /// Number of bytes of a row whose products the lanes can hold.
    const SPAN: usize = usize::MAX;
    inlined! {
        // Loads BYTES bytes of each row.
        fn bytes(row: *const u8, _other: *const u8) -> Self = Self::load(row);
        // Loads BYTES values of a token, for each row.
        fn values(x: *const i8) -> Self = Self::load(x.cast());
        // Adds the products of codes, up to 12, and values.
        fn more(self, codes: Self, x: Self) -> Self = self.dot(codes, x);
    }
    /// The total as i32: `ones` and a quarter of `fours`. Both are results of `more`; the codes of `fours` are
    /// multiples of four.
    unsafe fn total(ones: Self, fours: Self) -> Self;
    unsafe fn plus(self, other: Self) -> Self;
    /// Adds pairs of lanes. Each four lanes of the result are the two sums of four lanes of `a`, then those of `b`.
    /// If `small`, all lanes fit an i16.
    unsafe fn pairs(a: Self, b: Self, small: bool) -> Self;
    /// Adds up the lanes of each row, and returns the rows in order. In `a` and `b`, each four lanes belong to four
    /// rows.
    unsafe fn rows(a: Self, b: Self) -> Self;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Set, TOKENS, inlined};
    use crate::kernels::simd::ints::{IntRegister, Vnni};
    use crate::kernels::simd::x86::{load, pinned};
    use std::arch::x86_64::*;

    // SAFETY of all blocks: the caller has the instructions and the bytes.
    impl Set for __m256i {
        const AT_ONCE: [usize; TOKENS] = [1; 4];
        const MOST: usize = 8;
        const SPAN: usize = 256;
        inlined! {
            fn total(ones: Self, fours: Self) -> Self = {
                // Exact: a pair of products is at most 2·8·128 = 2048 in magnitude, and the 16 pairs of a SPAN add up
                // to -32768..=32512.
                let sums = _mm256_add_epi16(ones, _mm256_srai_epi16::<2>(fours));
                _mm256_madd_epi16(sums, _mm256_set1_epi16(1))
            };
            fn plus(self, other: Self) -> Self = _mm256_add_epi32(self, other);
            fn pairs(a: Self, b: Self, small: bool) -> Self = match small {
                true => _mm256_madd_epi16(_mm256_packs_epi32(a, b), _mm256_set1_epi16(1)),
                false => _mm256_hadd_epi32(a, b),
            };
            fn rows(a: Self, b: Self) -> Self = _mm256_add_epi32(
                _mm256_permute2x128_si256::<0x20>(a, b),
                _mm256_permute2x128_si256::<0x31>(a, b),
            );
        }
    }

    impl<const EVEX: bool> Set for Vnni<EVEX> {
        const AT_ONCE: [usize; TOKENS] = [4, 2, 1, 1];
        inlined! {
            fn more(self, codes: Self, x: Self) -> Self = Self(pinned(self.dot(codes, x).0));
            fn total(ones: Self, fours: Self) -> Self =
                Self(_mm256_add_epi32(ones.0, _mm256_srai_epi32::<2>(fours.0)));
            fn plus(self, other: Self) -> Self = Self(self.0.plus(other.0));
            fn pairs(a: Self, b: Self, small: bool) -> Self = Self(Set::pairs(a.0, b.0, small));
            fn rows(a: Self, b: Self) -> Self = Self(Set::rows(a.0, b.0));
        }
    }

    impl Set for __m512i {
        const HELD: usize = 2;
        const AT_ONCE: [usize; TOKENS] = [4, 4, 2, 2];
        inlined! {
            fn bytes(row: *const u8, other: *const u8) -> Self =
                _mm512_inserti64x4::<1>(_mm512_castsi256_si512(load(row)), load(other));
            fn values(x: *const i8) -> Self = _mm512_broadcast_i64x4(load(x));
            fn total(ones: Self, fours: Self) -> Self = _mm512_add_epi32(ones, _mm512_srai_epi32::<2>(fours));
            fn plus(self, other: Self) -> Self = _mm512_add_epi32(self, other);
            fn pairs(a: Self, b: Self, small: bool) -> Self = match small {
                true => _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1)),
                false => {
                    let [a, b] = [_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)];
                    let [even, odd] = [_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b)];
                    _mm512_add_epi32(_mm512_castps_si512(even), _mm512_castps_si512(odd))
                }
            };
            fn rows(a: Self, b: Self) -> Self = _mm512_add_epi32(
                _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
            );
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::{Set, TOKENS, inlined};
    use std::arch::aarch64::*;

    // SAFETY of all blocks: the caller has the instructions and the bytes.
    impl Set for uint8x16_t {
        const BYTES: usize = 16;
        const AT_ONCE: [usize; TOKENS] = [4, 4, 2, 1];
        inlined! {
            fn total(ones: Self, fours: Self) -> Self = {
                let [ones, fours] = [vreinterpretq_s32_u8(ones), vreinterpretq_s32_u8(fours)];
                vreinterpretq_u8_s32(vsraq_n_s32::<2>(ones, fours))
            };
            fn plus(self, other: Self) -> Self =
                vreinterpretq_u8_u32(vaddq_u32(vreinterpretq_u32_u8(self), vreinterpretq_u32_u8(other)));
            fn pairs(a: Self, b: Self, _: bool) -> Self =
                vreinterpretq_u8_u32(vpaddq_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
            fn rows(_: Self, _: Self) -> Self = unreachable!("four lanes, four rows");
        }
    }
}
