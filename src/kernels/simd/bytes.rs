//! A register of bytes, so that the decoder of each type is written once. Each 32-bit lane belongs to one of ROWS
//! rows.
//!
//! All functions need the instructions of their type; they are inlined into functions that have them.

#![allow(clippy::missing_safety_doc)] // said above, once

use super::dispatch::inlined;
use crate::kernels::pool::buffer::Line;

pub trait Bytes: Copy {
    const ROWS: usize;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// Loads 16 bytes at offset `at` from each of ROWS addresses; returns the first four of each row, the next four,
    /// and so on.
    unsafe fn columns(rows: &[*const u8], at: usize) -> [Self; 4];
    /// Interleaves the bytes of four registers, each 16 bytes apart: lane n of result j has byte `4 j + n % 4` of the
    /// 16 bytes number `n / 4` of each.
    unsafe fn quads(rows: [Self; 4]) -> [Self; 4];
    unsafe fn or(self, other: Self) -> Self;
    /// Shifts each byte right by `N` bits and applies `mask`, which must clear the bits that come from another byte.
    unsafe fn right<const N: i32>(self, mask: u8) -> Self;
    /// Expands bits 4n to 4n + 3 of each lane to its four bytes: 16 for a set bit, 0 otherwise.
    unsafe fn sixteens(self, n: usize) -> Self;
    /// Subtracts `by` from each byte, with wrapping.
    unsafe fn less(self, by: u8) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    /// Shifts each lane left by `N` bits.
    unsafe fn up<const N: i32>(self) -> Self;
    /// Entries of `table` at ROWS numbers, which must be within it.
    unsafe fn gather(numbers: *const u32, table: &[u32]) -> Self;
    /// Like `gather`, for entries of two words: the first words, and the second words.
    unsafe fn gather_pairs(numbers: *const u32, table: &[[u32; 2]]) -> [Self; 2];
    /// Takes the bytes whose bits are set in `signs` from `whole`: bits 4n to 4n + 3 of a lane, one for each of its
    /// bytes.
    unsafe fn take_where(self, signs: Self, n: usize, whole: u8) -> Self;
    /// Keeps the bits of each lane that are in `mask`.
    unsafe fn only(self, mask: u32) -> Self;
    /// Moves bytes within each lane: byte `i` of `order` is the number, 0 to 3, of the byte that comes to place `i`. A
    /// number of 0x80 makes a zero.
    unsafe fn reorder(self, order: u32) -> Self;
    /// Replaces each byte, which is below 16, with the entry of `table` at that index.
    unsafe fn pick(self, table: &[u8; 16]) -> Self;
    /// Trits `2 N` and `2 N + 1` of each byte (`trit`). A byte has five, so both are trit 4 if `N` is 2.
    unsafe fn trits<const N: usize>(self) -> [Self; 2];
    inlined! {
        // Shifts each byte left, as `right` does.
        fn left<const N: i32>(self, mask: u8) -> Self = self.up::<N>().only(u32::from_ne_bytes([mask; 4]));
        // Flips the highest bit of each byte.
        fn flip(self) -> Self = self.less(128);
    }

    /// Whether the functions below are a few instructions; otherwise they take one byte after another, and `gather` is
    /// faster.
    const TABLES: bool = false;
    /// Replaces each byte with the entry at that index of one of `tables`, of which there are one, two or four. The low
    /// bits of the same byte of `which` are the number of the table.
    #[inline(always)]
    unsafe fn look_up(self, which: Self, tables: &[[u8; 256]]) -> Self {
        // SAFETY: the caller's promise.
        unsafe { byte_by_byte(self, which, |n, which| tables[which as usize % tables.len()][n as usize]) }
    }
    /// Replaces each byte with the entry of `table`, which has 64 or 128, at the byte's low bits.
    #[inline(always)]
    unsafe fn pick_of<const N: usize>(self, table: &[u8; N]) -> Self {
        // SAFETY: the caller's promise.
        unsafe { byte_by_byte(self, self, |n, _| table[n as usize % N]) }
    }
    /// Moves eight bits to each byte: to byte `i` of a lane the lane's bits `at[i] ..`. Bits past the end of the lane
    /// are unspecified.
    #[inline(always)]
    unsafe fn fields(self, at: [u8; 4]) -> Self {
        let mut lanes = [0; 64];
        // SAFETY: the caller's promise; no register is larger.
        unsafe {
            self.store(lanes.as_mut_ptr());
            for lane in &mut lanes.as_chunks_mut::<4>().0[..Self::ROWS] {
                let bits = u32::from_le_bytes(*lane);
                *lane = at.map(|at| (bits >> at) as u8);
            }
            Self::load(lanes.as_ptr())
        }
    }
    /// Takes the bytes whose bits are set in `signs` from `whole`. The bits are in the same byte: bit `n` for even
    /// bytes, bit `4 + n` for odd ones.
    #[inline(always)]
    unsafe fn take_by_bytes(self, signs: Self, n: usize, whole: u8) -> Self {
        // SAFETY (of all): the caller's promise.
        unsafe {
            let signs = signs.only(0x1001_1001 << n);
            byte_by_byte(self, signs, |byte, sign| if sign == 0 { byte } else { whole.wrapping_sub(byte) })
        }
    }
}

/// Applies `one` to each byte of two registers.
#[inline(always)]
unsafe fn byte_by_byte<B: Bytes>(a: B, b: B, one: impl Fn(u8, u8) -> u8) -> B {
    let (mut bytes, mut other) = ([0; 64], [0; 64]);
    // SAFETY: the caller has the instructions; no register is larger.
    unsafe {
        a.store(bytes.as_mut_ptr());
        b.store(other.as_mut_ptr());
        bytes.iter_mut().zip(other).for_each(|(byte, other)| *byte = one(*byte, other));
        B::load(bytes.as_ptr())
    }
}

/// Writes rows `ROWS * part ..` of a line of sixteen rows.
///
/// # Safety
/// `B`'s instructions are available; `part` is within the line.
#[inline(always)]
pub unsafe fn put<B: Bytes>(line: &mut Line, part: usize, v: B) {
    // SAFETY: the caller's promise.
    unsafe { v.store(line.0.as_mut_ptr().add(4 * B::ROWS * part)) }
}

/// Defines the functions of `Bytes` for a type that wraps a register of another type.
#[cfg(target_arch = "x86_64")]
macro_rules! as_within {
    ($within:ty) => {
        const ROWS: usize = <$within as Bytes>::ROWS;

        inlined! {
            fn load(from: *const u8) -> Self = Self(Bytes::load(from));
            fn store(self, to: *mut u8) = self.0.store(to);
            fn columns(rows: &[*const u8], at: usize) -> [Self; 4] = {
                let [a, b, c, d] = Bytes::columns(rows, at);
                [Self(a), Self(b), Self(c), Self(d)]
            };
            fn quads(rows: [Self; 4]) -> [Self; 4] = {
                let [a, b, c, d] = Bytes::quads(rows.map(|row| row.0));
                [Self(a), Self(b), Self(c), Self(d)]
            };
            fn or(self, other: Self) -> Self = Self(self.0.or(other.0));
            fn right<const N: i32>(self, mask: u8) -> Self = Self(self.0.right::<N>(mask));
            fn sixteens(self, n: usize) -> Self = Self(self.0.sixteens(n));
            fn less(self, by: u8) -> Self = Self(self.0.less(by));
            fn xor(self, other: Self) -> Self = Self(self.0.xor(other.0));
            fn up<const N: i32>(self) -> Self = Self(self.0.up::<N>());
            fn gather(numbers: *const u32, table: &[u32]) -> Self = Self(Bytes::gather(numbers, table));
            fn gather_pairs(numbers: *const u32, table: &[[u32; 2]]) -> [Self; 2] = {
                let [a, b] = Bytes::gather_pairs(numbers, table);
                [Self(a), Self(b)]
            };
            fn take_where(self, signs: Self, n: usize, whole: u8) -> Self =
                Self(self.0.take_where(signs.0, n, whole));
            fn only(self, mask: u32) -> Self = Self(self.0.only(mask));
            fn reorder(self, order: u32) -> Self = Self(self.0.reorder(order));
            fn pick(self, table: &[u8; 16]) -> Self = Self(self.0.pick(table));
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use as_within;

/// Trit `n` of a byte: a digit, 0 to 2, of a number of five digits in base 3. The byte is 256/243 of the number,
/// rounded up, and trit 0 is the highest digit. Other bytes stand for the number below them, so every byte is some
/// trits.
pub(in crate::kernels) const fn trit(byte: u8, n: usize) -> u8 {
    ((byte.wrapping_mul(POWERS[n]) as u16 * 3) >> 8) as u8
}

/// Powers of three. The last one is repeated, for `Bytes::trits`.
const POWERS: [u8; 6] = [1, 3, 9, 27, 81, 81];

/// One row, for any processor.
#[derive(Clone, Copy)]
pub struct Portable(pub u32);

impl Portable {
    fn mask(byte: u8) -> u32 {
        u32::from_ne_bytes([byte; 4])
    }
}

// SAFETY of all blocks: the caller has the bytes.
impl Bytes for Portable {
    const ROWS: usize = 1;

    inlined! {
        fn load(from: *const u8) -> Self = Self(u32::from_le(from.cast::<u32>().read_unaligned()));
        fn store(self, to: *mut u8) = to.cast::<u32>().write_unaligned(self.0.to_le());
        fn columns(rows: &[*const u8], at: usize) -> [Self; 4] =
            [0, 4, 8, 12].map(|n| Self::load(rows[0].add(at + n)));
        fn quads(rows: [Self; 4]) -> [Self; 4] = {
            let rows = rows.map(|row| row.0.to_le_bytes());
            [0, 1, 2, 3].map(|n| Self(u32::from_le_bytes(rows.map(|row| row[n]))))
        };
        fn or(self, other: Self) -> Self = Self(self.0 | other.0);
        fn right<const N: i32>(self, mask: u8) -> Self = Self(self.0 >> N & Self::mask(mask));
        fn sixteens(self, n: usize) -> Self = {
            let bits = self.0 >> (4 * n);
            Self((bits & 1 | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21) << 4)
        };
        fn less(self, by: u8) -> Self =
            Self(u32::from_ne_bytes(self.0.to_ne_bytes().map(|b| b.wrapping_sub(by))));
        fn xor(self, other: Self) -> Self = Self(self.0 ^ other.0);
        fn up<const N: i32>(self) -> Self = Self(self.0 << N);
        fn gather(numbers: *const u32, table: &[u32]) -> Self = Self(table[*numbers as usize]);
        fn gather_pairs(numbers: *const u32, table: &[[u32; 2]]) -> [Self; 2] =
            table[*numbers as usize].map(Self);
        fn take_where(self, signs: Self, n: usize, whole: u8) -> Self = {
            let (bytes, mut signs) = (self.0.to_le_bytes(), signs.0 >> (4 * n));
            Self(u32::from_le_bytes(bytes.map(|byte| {
                let negative = signs & 1 == 1;
                signs >>= 1;
                if negative { whole.wrapping_sub(byte) } else { byte }
            })))
        };
        fn only(self, mask: u32) -> Self = Self(self.0 & mask);
        fn reorder(self, order: u32) -> Self = {
            let bytes = self.0.to_le_bytes();
            let moved = order.to_le_bytes().map(|n| if n < 4 { bytes[n as usize] } else { 0 });
            Self(u32::from_le_bytes(moved))
        };
        fn pick(self, table: &[u8; 16]) -> Self =
            Self(u32::from_ne_bytes(self.0.to_ne_bytes().map(|b| table[b as usize])));
        fn trits<const N: usize>(self) -> [Self; 2] = [2 * N, (2 * N + 1).min(4)]
            .map(|n| Self(u32::from_ne_bytes(self.0.to_ne_bytes().map(|b| trit(b, n)))));
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Bytes, POWERS, inlined};
    use std::arch::x86_64::*;

    /// The two digits of numbers below nine in base 3.
    const DIGITS: [[u8; 16]; 2] =
        [[0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0], [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0]];

    /// Factors for words whose upper halves are bytes, for `Bytes::trits`. The low half of the product with the first
    /// one has the trits before trit `2 N` removed. The upper half of its product with the second one is the
    /// number of the next two trits, or the last trit.
    const fn factors<const N: usize>() -> [i16; 2] {
        [POWERS[2 * N] as i16, if N == 2 { 3 } else { 9 }]
    }

    /// For each of the four bytes of a lane: the index of the byte that holds its bit, and the bit itself, as
    /// a mask.
    #[inline(always)]
    unsafe fn nibble(n: usize) -> [__m128i; 2] {
        unsafe {
            let order = _mm_add_epi32(
                _mm_set1_epi8((n / 2) as i8),
                _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12),
            );
            [order, _mm_set1_epi32(if n.is_multiple_of(2) { 0x08040201 } else { 0x80402010u32 as i32 })]
        }
    }

    /// An order within each lane, for `shuffle_epi8`.
    #[inline(always)]
    unsafe fn in_lanes(order: u32) -> __m128i {
        unsafe {
            let fours = _mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
            _mm_add_epi8(_mm_set1_epi32(order as i32), fours)
        }
    }

    /// A mask with all bits set in each byte of a lane whose bit, among bits 4n to 4n + 3, is set.
    #[inline(always)]
    unsafe fn bytes_of_bits(v: __m256i, n: usize) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe {
            let [order, bits] = nibble(n).map(|v| _mm256_broadcastsi128_si256(v));
            _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(v, order), bits), bits)
        }
    }

    /// The same as a mask register of bytes.
    #[inline(always)]
    unsafe fn mask_of_bits(v: __m512i, n: usize) -> __mmask64 {
        // SAFETY: the caller has AVX-512 BW.
        unsafe {
            let [order, bits] = nibble(n).map(|v| _mm512_broadcast_i32x4(v));
            _mm512_test_epi8_mask(_mm512_shuffle_epi8(v, order), bits)
        }
    }

    // Gathers are separate loads. On a Zen 4, these take two thirds of the time of the gather instructions, which
    // are slower still on Intel processors that are patched against side channels.

    /// The word of `table` at an index.
    #[inline(always)]
    unsafe fn word(number: *const u32, table: &[u32]) -> __m128i {
        // SAFETY: the caller has the number, which is within the table.
        unsafe { _mm_castps_si128(_mm_load_ss(table.as_ptr().add(*number as usize).cast())) }
    }

    #[inline(always)]
    unsafe fn four_words(numbers: *const u32, table: &[u32]) -> __m128i {
        // SAFETY (of all): the caller has four numbers.
        unsafe {
            let first = _mm_unpacklo_epi32(word(numbers, table), word(numbers.add(1), table));
            let second = _mm_unpacklo_epi32(word(numbers.add(2), table), word(numbers.add(3), table));
            _mm_unpacklo_epi64(first, second)
        }
    }

    #[inline(always)]
    unsafe fn two_pairs(numbers: *const u32, table: &[[u32; 2]]) -> __m128i {
        // SAFETY (of all): the caller has two numbers, which are within the table.
        unsafe {
            let first = _mm_loadl_epi64(table.as_ptr().add(*numbers as usize).cast());
            let second = table.as_ptr().add(*numbers.add(1) as usize);
            _mm_castpd_si128(_mm_loadh_pd(_mm_castsi128_pd(first), second.cast()))
        }
    }

    #[inline(always)]
    unsafe fn two_halves(low: __m128i, high: __m128i) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high) }
    }

    #[inline(always)]
    unsafe fn two_registers(low: __m256i, high: __m256i) -> __m512i {
        // SAFETY: the caller has AVX-512 F.
        unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high) }
    }

    // SAFETY of all blocks: the caller has AVX2, and the bytes.
    impl Bytes for __m256i {
        const ROWS: usize = 8;

        inlined! {
            fn load(from: *const u8) -> Self = _mm256_loadu_si256(from.cast());
            fn store(self, to: *mut u8) = _mm256_storeu_si256(to.cast(), self);
            fn columns(rows: &[*const u8], at: usize) -> [Self; 4] = {
                let mut v = [_mm256_setzero_si256(); 4];
                for r in 0..4 {
                    let low = _mm256_castsi128_si256(_mm_loadu_si128(rows[r].add(at).cast()));
                    v[r] = _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(rows[r + 4].add(at).cast()));
                }
                let [a, b] = [_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpacklo_epi32(v[2], v[3])];
                let [c, d] = [_mm256_unpackhi_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[2], v[3])];
                [
                    _mm256_unpacklo_epi64(a, b),
                    _mm256_unpackhi_epi64(a, b),
                    _mm256_unpacklo_epi64(c, d),
                    _mm256_unpackhi_epi64(c, d),
                ]
            };
            fn quads([a, b, c, d]: [Self; 4]) -> [Self; 4] = {
                let ab = [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)];
                let cd = [_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d)];
                let [low, high] = [0, 1].map(|n| {
                    [_mm256_unpacklo_epi16(ab[n], cd[n]), _mm256_unpackhi_epi16(ab[n], cd[n])]
                });
                [low[0], low[1], high[0], high[1]]
            };
            fn or(self, other: Self) -> Self = _mm256_or_si256(self, other);
            fn right<const N: i32>(self, mask: u8) -> Self =
                _mm256_and_si256(_mm256_srli_epi16::<N>(self), _mm256_set1_epi8(mask as i8));
            fn sixteens(self, n: usize) -> Self = _mm256_and_si256(bytes_of_bits(self, n), _mm256_set1_epi8(16));
            fn less(self, by: u8) -> Self = _mm256_sub_epi8(self, _mm256_set1_epi8(by as i8));
            fn xor(self, other: Self) -> Self = _mm256_xor_si256(self, other);
            fn up<const N: i32>(self) -> Self = _mm256_slli_epi32::<N>(self);
            fn gather(numbers: *const u32, table: &[u32]) -> Self =
                two_halves(four_words(numbers, table), four_words(numbers.add(4), table));
            fn gather_pairs(numbers: *const u32, table: &[[u32; 2]]) -> [Self; 2] = {
                let low = two_halves(two_pairs(numbers, table), two_pairs(numbers.add(4), table));
                let high = two_halves(two_pairs(numbers.add(2), table), two_pairs(numbers.add(6), table));
                let (low, high) = (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high));
                [
                    _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(low, high)),
                    _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(low, high)),
                ]
            };
            fn take_where(self, signs: Self, n: usize, whole: u8) -> Self = {
                let taken = _mm256_sub_epi8(_mm256_set1_epi8(whole as i8), self);
                _mm256_blendv_epi8(self, taken, bytes_of_bits(signs, n))
            };
            fn only(self, mask: u32) -> Self = _mm256_and_si256(self, _mm256_set1_epi32(mask as i32));
            fn reorder(self, order: u32) -> Self =
                _mm256_shuffle_epi8(self, _mm256_broadcastsi128_si256(in_lanes(order)));
            fn pick(self, table: &[u8; 16]) -> Self = {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
                _mm256_shuffle_epi8(table, self)
            };
            fn trits<const N: usize>(self) -> [Self; 2] = {
                let [power, by] = const { factors::<N>() };
                let (power, by) = (_mm256_set1_epi16(power), _mm256_set1_epi16(by));
                let mut even = _mm256_slli_epi16::<8>(self);
                let mut odd = _mm256_and_si256(self, _mm256_set1_epi16(0xff00u16 as i16));
                if N > 0 {
                    (even, odd) = (_mm256_mullo_epi16(even, power), _mm256_mullo_epi16(odd, power));
                }
                (even, odd) = (_mm256_mulhi_epu16(even, by), _mm256_mulhi_epu16(odd, by));
                let both = _mm256_or_si256(even, _mm256_slli_epi16::<8>(odd));
                if N == 2 { [both; 2] } else { [both.pick(&DIGITS[0]), both.pick(&DIGITS[1])] }
            };
        }
    }

    // SAFETY of all blocks: the caller has AVX-512 F, BW and VL, and the bytes.
    impl Bytes for __m512i {
        const ROWS: usize = 16;

        inlined! {
            fn load(from: *const u8) -> Self = _mm512_loadu_si512(from.cast());
            fn store(self, to: *mut u8) = _mm512_storeu_si512(to.cast(), self);
            fn columns(rows: &[*const u8], at: usize) -> [Self; 4] = {
                let mut v = [_mm512_setzero_si512(); 4];
                for r in 0..4 {
                    let low = _mm512_castsi128_si512(_mm_loadu_si128(rows[r].add(at).cast()));
                    let low = _mm512_inserti32x4::<1>(low, _mm_loadu_si128(rows[r + 4].add(at).cast()));
                    let low = _mm512_inserti32x4::<2>(low, _mm_loadu_si128(rows[r + 8].add(at).cast()));
                    v[r] = _mm512_inserti32x4::<3>(low, _mm_loadu_si128(rows[r + 12].add(at).cast()));
                }
                let [a, b] = [_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpacklo_epi32(v[2], v[3])];
                let [c, d] = [_mm512_unpackhi_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[2], v[3])];
                [
                    _mm512_unpacklo_epi64(a, b),
                    _mm512_unpackhi_epi64(a, b),
                    _mm512_unpacklo_epi64(c, d),
                    _mm512_unpackhi_epi64(c, d),
                ]
            };
            fn quads([a, b, c, d]: [Self; 4]) -> [Self; 4] = {
                let ab = [_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)];
                let cd = [_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d)];
                let [low, high] = [0, 1].map(|n| {
                    [_mm512_unpacklo_epi16(ab[n], cd[n]), _mm512_unpackhi_epi16(ab[n], cd[n])]
                });
                [low[0], low[1], high[0], high[1]]
            };
            fn or(self, other: Self) -> Self = _mm512_or_si512(self, other);
            fn right<const N: i32>(self, mask: u8) -> Self = {
                _mm512_and_si512(_mm512_srl_epi16(self, _mm_cvtsi32_si128(N)), _mm512_set1_epi8(mask as i8))
            };
            fn sixteens(self, n: usize) -> Self = _mm512_maskz_mov_epi8(mask_of_bits(self, n), _mm512_set1_epi8(16));
            fn less(self, by: u8) -> Self = _mm512_sub_epi8(self, _mm512_set1_epi8(by as i8));
            fn xor(self, other: Self) -> Self = _mm512_xor_si512(self, other);
            fn up<const N: i32>(self) -> Self = _mm512_sll_epi32(self, _mm_cvtsi32_si128(N));
            fn gather(numbers: *const u32, table: &[u32]) -> Self =
                _mm512_i32gather_epi32::<4>(_mm512_loadu_si512(numbers.cast()), table.as_ptr().cast());
            fn gather_pairs(numbers: *const u32, table: &[[u32; 2]]) -> [Self; 2] = {
                let [a, b] = Bytes::gather_pairs(numbers, table);
                let [c, d] = Bytes::gather_pairs(numbers.add(8), table);
                [two_registers(a, c), two_registers(b, d)]
            };
            fn take_where(self, signs: Self, n: usize, whole: u8) -> Self =
                _mm512_mask_sub_epi8(self, mask_of_bits(signs, n), _mm512_set1_epi8(whole as i8), self);
            fn only(self, mask: u32) -> Self = _mm512_and_si512(self, _mm512_set1_epi32(mask as i32));
            fn reorder(self, order: u32) -> Self =
                _mm512_shuffle_epi8(self, _mm512_broadcast_i32x4(in_lanes(order)));
            fn pick(self, table: &[u8; 16]) -> Self = {
                let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
                _mm512_shuffle_epi8(table, self)
            };
            fn trits<const N: usize>(self) -> [Self; 2] = {
                let [power, by] = const { factors::<N>() };
                let (power, by) = (_mm512_set1_epi16(power), _mm512_set1_epi16(by));
                let mut even = _mm512_slli_epi16::<8>(self);
                let mut odd = _mm512_and_si512(self, _mm512_set1_epi16(0xff00u16 as i16));
                if N > 0 {
                    (even, odd) = (_mm512_mullo_epi16(even, power), _mm512_mullo_epi16(odd, power));
                }
                (even, odd) = (_mm512_mulhi_epu16(even, by), _mm512_mulhi_epu16(odd, by));
                let both = _mm512_or_si512(even, _mm512_slli_epi16::<8>(odd));
                if N == 2 { [both; 2] } else { [both.pick(&DIGITS[0]), both.pick(&DIGITS[1])] }
            };
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::{Bytes, POWERS, inlined};
    use crate::kernels::simd::neon::transpose;
    use std::arch::aarch64::*;

    /// A mask with all bits set in each byte of a lane whose bit, among bits 4n to 4n + 3, is set.
    #[inline(always)]
    unsafe fn nibble(v: uint8x16_t, n: usize) -> uint8x16_t {
        unsafe {
            let lanes = vcreate_u8(0x0404_0404_0000_0000);
            let lanes = vcombine_u8(lanes, vadd_u8(lanes, vdup_n_u8(8)));
            let bytes = vqtbl1q_u8(v, vaddq_u8(lanes, vdupq_n_u8((n / 2) as u8)));
            let bits = if n.is_multiple_of(2) { 0x0804_0201 } else { 0x8040_2010 };
            vtstq_u8(bytes, vreinterpretq_u8_u32(vdupq_n_u32(bits)))
        }
    }

    #[inline(always)]
    unsafe fn two_pairs(numbers: *const u32, table: &[[u32; 2]]) -> uint32x4_t {
        // SAFETY (of all): the caller has two numbers, which are within the table.
        unsafe {
            let first = table.as_ptr().add(*numbers as usize);
            let second = table.as_ptr().add(*numbers.add(1) as usize);
            vcombine_u32(vld1_u32(first.cast()), vld1_u32(second.cast()))
        }
    }

    // SAFETY of all blocks: every aarch64 that std runs on has NEON; the caller has the bytes.
    impl Bytes for uint8x16_t {
        const ROWS: usize = 4;

        inlined! {
            fn load(from: *const u8) -> Self = vld1q_u8(from);
            fn store(self, to: *mut u8) = vst1q_u8(to, self);
            fn columns(rows: &[*const u8], at: usize) -> [Self; 4] =
                transpose([0, 1, 2, 3].map(|r| vld1q_u8(rows[r].add(at))));
            fn quads([a, b, c, d]: [Self; 4]) -> [Self; 4] = {
                let ab = [vzip1q_u8(a, b), vzip2q_u8(a, b)].map(|v| vreinterpretq_u16_u8(v));
                let cd = [vzip1q_u8(c, d), vzip2q_u8(c, d)].map(|v| vreinterpretq_u16_u8(v));
                let [low, high] = [0, 1].map(|n| [vzip1q_u16(ab[n], cd[n]), vzip2q_u16(ab[n], cd[n])]);
                [low[0], low[1], high[0], high[1]].map(|v| vreinterpretq_u8_u16(v))
            };
            fn or(self, other: Self) -> Self = vorrq_u8(self, other);
            fn right<const N: i32>(self, mask: u8) -> Self =
                vandq_u8(vshlq_u8(self, vdupq_n_s8(-N as i8)), vdupq_n_u8(mask));
            fn sixteens(self, n: usize) -> Self = vandq_u8(nibble(self, n), vdupq_n_u8(16));
            fn less(self, by: u8) -> Self = vsubq_u8(self, vdupq_n_u8(by));
            fn xor(self, other: Self) -> Self = veorq_u8(self, other);
            fn up<const N: i32>(self) -> Self =
                vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(self), vdupq_n_s32(N)));
            fn gather(numbers: *const u32, table: &[u32]) -> Self = {
                let entries = [0, 1, 2, 3].map(|n| *table.as_ptr().add(*numbers.add(n) as usize));
                vreinterpretq_u8_u32(vld1q_u32(entries.as_ptr()))
            };
            fn gather_pairs(numbers: *const u32, table: &[[u32; 2]]) -> [Self; 2] = {
                let (low, high) = (two_pairs(numbers, table), two_pairs(numbers.add(2), table));
                [vreinterpretq_u8_u32(vuzp1q_u32(low, high)), vreinterpretq_u8_u32(vuzp2q_u32(low, high))]
            };
            fn take_where(self, signs: Self, n: usize, whole: u8) -> Self = {
                let negative = nibble(signs, n);
                vbslq_u8(negative, vsubq_u8(vdupq_n_u8(whole), self), self)
            };
            fn only(self, mask: u32) -> Self = vandq_u8(self, vreinterpretq_u8_u32(vdupq_n_u32(mask)));
            fn reorder(self, order: u32) -> Self = {
                let fours = vreinterpretq_u8_u32(vld1q_u32([0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c].as_ptr()));
                vqtbl1q_u8(self, vaddq_u8(vreinterpretq_u8_u32(vdupq_n_u32(order)), fours))
            };
            fn pick(self, table: &[u8; 16]) -> Self = vqtbl1q_u8(vld1q_u8(table.as_ptr()), self);
            fn trits<const N: usize>(self) -> [Self; 2] = [POWERS[2 * N], POWERS[2 * N + 1]].map(|power| {
                let rest = vmulq_u8(self, vdupq_n_u8(power));
                // Three quarters, rounded down twice; their upper two bits are those of three times the byte.
                vshrq_n_u8::<6>(vhaddq_u8(rest, vshrq_n_u8::<1>(rest)))
            });
        }
    }
}
