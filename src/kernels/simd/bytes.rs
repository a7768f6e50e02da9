//! Bytes as one value, so that a type's decoder is written once: 32 of them, or a line of 64.
//!
//! All functions need the instructions of their type; they are inlined into functions that have them.

#![allow(clippy::missing_safety_doc)] // said above, once

/// Any number.
pub trait Bits: Copy {
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    unsafe fn or(self, other: Self) -> Self;
    /// Each byte's bits, `N` places further down, under `mask`.
    unsafe fn right<const N: i32>(self, mask: u8) -> Self;
    /// Further up.
    unsafe fn left<const N: i32>(self, mask: u8) -> Self;
    /// `by` taken from each byte; what is below zero wraps.
    unsafe fn less(self, by: u8) -> Self;
}

/// 64.
pub trait Wide: Bits {
    /// 32 at each.
    unsafe fn two(a: *const u8, b: *const u8) -> Self;
    /// 32 twice, the second time four bits further down; the upper half of those bytes is anything.
    unsafe fn nibbles(from: *const u8) -> Self;
    /// The first `len` at `from`, and zeros.
    unsafe fn first(from: *const u8, len: usize) -> Self;
    /// Products of int8 with four of sixteen int8: the first sixteen with number `n`, then with `n + 1`, `n + 8` and
    /// `n + 9`. Their low bytes, and their high ones.
    unsafe fn times_scales(self, scales: &[u8; 16], n: usize) -> [Self; 2];
}

/// 32, in two halves of 16, which nothing crosses.
pub trait Bytes: Bits {
    /// 16 at each.
    unsafe fn halves(a: *const u8, b: *const u8) -> Self;
    /// 32-bit lanes of four rows to columns, in each half.
    unsafe fn transpose(rows: [Self; 4]) -> [Self; 4];
    /// Byte `n` of each 32-bit lane, sign-extended, as the lane.
    unsafe fn byte_as_i32(self, n: usize) -> Self;
    /// The same as both i16 of the lane.
    unsafe fn byte_as_i16s(self, n: usize) -> Self;
    /// Bytes 2n and 2n + 1 of each 32-bit lane, sign-extended, as its two i16.
    unsafe fn pair_as_i16s(self, n: usize) -> Self;
    /// Of each half `mask` where one of the sixteen bits at `a`, or at `b`, is set, lowest first; 0 elsewhere.
    unsafe fn bits(a: *const u8, b: *const u8, mask: u8) -> Self;
    /// i16 by i16.
    unsafe fn times(self, by: i16) -> Self;
}

/// Any processor's.
#[derive(Clone, Copy)]
pub struct Portable<const N: usize = 32>([u8; N]);

impl<const N: usize> Portable<N> {
    fn map(self, f: impl Fn(u8) -> u8) -> Self {
        Self(self.0.map(f))
    }
}

impl Portable {
    /// Each 32-bit lane.
    fn lanes(self, f: impl Fn([u8; 4]) -> [u8; 4]) -> Self {
        let mut out = self;
        out.0.as_chunks_mut::<4>().0.iter_mut().for_each(|lane| *lane = f(*lane));
        out
    }
}

fn i16s(a: i16, b: i16) -> [u8; 4] {
    let ([a, b], [c, d]) = (a.to_le_bytes(), b.to_le_bytes());
    [a, b, c, d]
}

// SAFETY of all blocks: the caller has the bytes.
impl<const LEN: usize> Bits for Portable<LEN> {
    unsafe fn load(from: *const u8) -> Self {
        unsafe { Self(from.cast::<[u8; LEN]>().read_unaligned()) }
    }
    unsafe fn store(self, to: *mut u8) {
        unsafe { to.cast::<[u8; LEN]>().write_unaligned(self.0) }
    }
    unsafe fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }
    unsafe fn right<const N: i32>(self, mask: u8) -> Self {
        self.map(|b| b >> N & mask)
    }
    unsafe fn left<const N: i32>(self, mask: u8) -> Self {
        self.map(|b| b << N & mask)
    }
    unsafe fn less(self, by: u8) -> Self {
        self.map(|b| b.wrapping_sub(by))
    }
}

// SAFETY of all blocks: as above.
#[cfg(test)]
impl Wide for Portable<64> {
    unsafe fn two(a: *const u8, b: *const u8) -> Self {
        unsafe { Self(std::array::from_fn(|i| if i < 32 { *a.add(i) } else { *b.add(i - 32) })) }
    }
    unsafe fn nibbles(from: *const u8) -> Self {
        unsafe { Self(std::array::from_fn(|i| if i < 32 { *from.add(i) } else { *from.add(i - 32) >> 4 })) }
    }
    unsafe fn first(from: *const u8, len: usize) -> Self {
        unsafe { Self(std::array::from_fn(|i| if i < len { *from.add(i) } else { 0 })) }
    }
    unsafe fn times_scales(self, scales: &[u8; 16], n: usize) -> [Self; 2] {
        let product = |i: usize| {
            let scale = scales[n + [0, 1, 8, 9][i / 16]];
            (self.0[i] as i8 as i16 * scale as i8 as i16).to_le_bytes()
        };
        [0, 1].map(|byte| Self(std::array::from_fn(|i| product(i)[byte])))
    }
}

// SAFETY of all blocks: as above.
impl Bytes for Portable {
    unsafe fn halves(a: *const u8, b: *const u8) -> Self {
        unsafe { Self(std::array::from_fn(|i| if i < 16 { *a.add(i) } else { *b.add(i - 16) })) }
    }
    unsafe fn transpose(rows: [Self; 4]) -> [Self; 4] {
        std::array::from_fn(|n| {
            Self(std::array::from_fn(|i| rows[i % 16 / 4].0[i / 16 * 16 + 4 * n + i % 4]))
        })
    }
    unsafe fn byte_as_i32(self, n: usize) -> Self {
        self.lanes(|lane| (lane[n] as i8 as i32).to_le_bytes())
    }
    unsafe fn byte_as_i16s(self, n: usize) -> Self {
        self.lanes(|lane| i16s(lane[n] as i8 as i16, lane[n] as i8 as i16))
    }
    unsafe fn pair_as_i16s(self, n: usize) -> Self {
        self.lanes(|lane| i16s(lane[2 * n] as i8 as i16, lane[2 * n + 1] as i8 as i16))
    }
    unsafe fn bits(a: *const u8, b: *const u8, mask: u8) -> Self {
        unsafe {
            let bits = |at: *const u8, i: usize| *at.add(i / 8) >> (i % 8) & 1;
            Self(std::array::from_fn(|i| mask * if i < 16 { bits(a, i) } else { bits(b, i - 16) }))
        }
    }
    unsafe fn times(self, by: i16) -> Self {
        self.lanes(|[a, b, c, d]| {
            i16s(i16::from_le_bytes([a, b]).wrapping_mul(by), i16::from_le_bytes([c, d]).wrapping_mul(by))
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Bits, Bytes, Wide};
    use std::arch::x86_64::*;

    /// In each lane, what `shuffle_epi8` takes as an order: byte `n` of the four as the i16's upper bytes, 0 below.
    #[inline(always)]
    unsafe fn words(first: u8, second: u8) -> __m256i {
        unsafe {
            let lane = i32::from_le_bytes([0x80, first, 0x80, second]);
            let fours = _mm_setr_epi8(0, 0, 0, 0, 0, 4, 0, 4, 0, 8, 0, 8, 0, 12, 0, 12);
            _mm256_broadcastsi128_si256(_mm_add_epi8(_mm_set1_epi32(lane), fours))
        }
    }

    macro_rules! bits {
        ($type:ty, $load:ident $store:ident, $or:ident $and:ident $sub:ident $splat:ident, $right:ident $left:ident) => {
            // SAFETY of all blocks: the caller has the instructions, and the bytes.
            impl Bits for $type {
                #[inline(always)]
                unsafe fn load(from: *const u8) -> Self {
                    unsafe { $load(from.cast()) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut u8) {
                    unsafe { $store(to.cast(), self) }
                }
                #[inline(always)]
                unsafe fn or(self, other: Self) -> Self {
                    unsafe { $or(self, other) }
                }
                // Shifts of 16-bit lanes: what crosses from byte to byte falls to the mask.
                #[inline(always)]
                unsafe fn right<const N: i32>(self, mask: u8) -> Self {
                    unsafe { $and($right(self, _mm_cvtsi32_si128(N)), $splat(mask as i8)) }
                }
                #[inline(always)]
                unsafe fn left<const N: i32>(self, mask: u8) -> Self {
                    unsafe { $and($left(self, _mm_cvtsi32_si128(N)), $splat(mask as i8)) }
                }
                #[inline(always)]
                unsafe fn less(self, by: u8) -> Self {
                    unsafe { $sub(self, $splat(by as i8)) }
                }
            }
        };
    }
    bits!(
        __m256i,
        _mm256_loadu_si256 _mm256_storeu_si256,
        _mm256_or_si256 _mm256_and_si256 _mm256_sub_epi8 _mm256_set1_epi8,
        _mm256_srl_epi16 _mm256_sll_epi16
    );
    bits!(
        __m512i,
        _mm512_loadu_si512 _mm512_storeu_si512,
        _mm512_or_si512 _mm512_and_si512 _mm512_sub_epi8 _mm512_set1_epi8,
        _mm512_srl_epi16 _mm512_sll_epi16
    );

    // SAFETY of all blocks: the caller has AVX-512 F and BW, and the bytes.
    impl Wide for __m512i {
        #[inline(always)]
        unsafe fn two(a: *const u8, b: *const u8) -> Self {
            unsafe {
                let a = _mm512_castsi256_si512(_mm256_loadu_si256(a.cast()));
                _mm512_inserti64x4::<1>(a, _mm256_loadu_si256(b.cast()))
            }
        }
        #[inline(always)]
        unsafe fn nibbles(from: *const u8) -> Self {
            unsafe {
                let twice = _mm512_broadcast_i64x4(_mm256_loadu_si256(from.cast()));
                _mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4))
            }
        }
        #[inline(always)]
        unsafe fn first(from: *const u8, len: usize) -> Self {
            unsafe { _mm512_maskz_loadu_epi8(u64::MAX >> (64 - len), from.cast()) }
        }
        #[inline(always)]
        unsafe fn times_scales(self, scales: &[u8; 16], n: usize) -> [Self; 2] {
            unsafe {
                // High bytes of i16, as those of the codes: the upper half of a product is that of the bytes.
                const LANE: i64 = 0x0080_0080_0080_0080;
                const ONE: i64 = 0x0100_0100_0100_0100;
                let [a, b, c, d] = [0, 1, 8, 9].map(|g| LANE + g * ONE);
                let order = _mm512_setr_epi64(a, a, b, b, c, c, d, d);
                let order = _mm512_add_epi16(order, _mm512_set1_epi16((n as i16) << 8));
                let scales = _mm512_broadcast_i32x4(_mm_loadu_si128(scales.as_ptr().cast()));
                let scales = _mm512_shuffle_epi8(scales, order);
                let upper = _mm512_set1_epi16(0xff00u16 as i16);
                let even = _mm512_mulhi_epi16(_mm512_slli_epi16::<8>(self), scales);
                let odd = _mm512_mulhi_epi16(_mm512_and_si512(self, upper), scales);
                let low = _mm512_or_si512(_mm512_andnot_si512(upper, even), _mm512_slli_epi16::<8>(odd));
                let high = _mm512_or_si512(_mm512_srli_epi16::<8>(even), _mm512_and_si512(odd, upper));
                [low, high]
            }
        }
    }

    // SAFETY of all blocks: the caller has AVX2, and the bytes.
    impl Bytes for __m256i {
        #[inline(always)]
        unsafe fn halves(a: *const u8, b: *const u8) -> Self {
            unsafe {
                let a = _mm256_castsi128_si256(_mm_loadu_si128(a.cast()));
                _mm256_inserti128_si256::<1>(a, _mm_loadu_si128(b.cast()))
            }
        }
        #[inline(always)]
        unsafe fn transpose(v: [Self; 4]) -> [Self; 4] {
            unsafe {
                let [a, b] = [_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpacklo_epi32(v[2], v[3])];
                let [c, d] = [_mm256_unpackhi_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[2], v[3])];
                [
                    _mm256_unpacklo_epi64(a, b),
                    _mm256_unpackhi_epi64(a, b),
                    _mm256_unpacklo_epi64(c, d),
                    _mm256_unpackhi_epi64(c, d),
                ]
            }
        }
        #[inline(always)]
        unsafe fn byte_as_i32(self, n: usize) -> Self {
            unsafe { _mm256_srai_epi32::<24>(_mm256_shuffle_epi8(self, words(n as u8, n as u8))) }
        }
        #[inline(always)]
        unsafe fn byte_as_i16s(self, n: usize) -> Self {
            unsafe { _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(self, words(n as u8, n as u8))) }
        }
        #[inline(always)]
        unsafe fn pair_as_i16s(self, n: usize) -> Self {
            let n = 2 * n as u8;
            unsafe { _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(self, words(n, n + 1))) }
        }
        #[inline(always)]
        unsafe fn bits(a: *const u8, b: *const u8, mask: u8) -> Self {
            unsafe {
                let word = |at: *const u8| _mm_set1_epi16(at.cast::<i16>().read_unaligned());
                let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(word(a)), word(b));
                let order = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0101010101010101, 0));
                let each = _mm256_set1_epi64x(0x8040201008040201u64 as i64);
                let set = _mm256_and_si256(_mm256_shuffle_epi8(both, order), each);
                _mm256_and_si256(_mm256_cmpeq_epi8(set, each), _mm256_set1_epi8(mask as i8))
            }
        }
        #[inline(always)]
        unsafe fn times(self, by: i16) -> Self {
            unsafe { _mm256_mullo_epi16(self, _mm256_set1_epi16(by)) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::{Bits, Bytes};
    use std::arch::aarch64::*;

    /// Two registers.
    #[derive(Clone, Copy)]
    pub struct Neon(pub [uint8x16_t; 2]);

    impl Neon {
        #[inline(always)]
        unsafe fn i32s(self, f: impl Fn(int32x4_t) -> int32x4_t) -> Self {
            unsafe { Self(self.0.map(|v| vreinterpretq_u8_s32(f(vreinterpretq_s32_u8(v))))) }
        }
    }

    // SAFETY of all blocks: every aarch64 that std runs on has NEON; the caller has the bytes.
    impl Bits for Neon {
        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            unsafe { Self::halves(from, from.add(16)) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            unsafe {
                vst1q_u8(to, self.0[0]);
                vst1q_u8(to.add(16), self.0[1]);
            }
        }
        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            unsafe { Self([vorrq_u8(self.0[0], other.0[0]), vorrq_u8(self.0[1], other.0[1])]) }
        }
        #[inline(always)]
        unsafe fn right<const N: i32>(self, mask: u8) -> Self {
            unsafe { Self(self.0.map(|v| vandq_u8(vshlq_u8(v, vdupq_n_s8(-N as i8)), vdupq_n_u8(mask)))) }
        }
        #[inline(always)]
        unsafe fn left<const N: i32>(self, mask: u8) -> Self {
            unsafe { Self(self.0.map(|v| vandq_u8(vshlq_n_u8::<N>(v), vdupq_n_u8(mask)))) }
        }
        #[inline(always)]
        unsafe fn less(self, by: u8) -> Self {
            unsafe { Self(self.0.map(|v| vsubq_u8(v, vdupq_n_u8(by)))) }
        }
    }

    // SAFETY of all blocks: as above.
    impl Bytes for Neon {
        #[inline(always)]
        unsafe fn halves(a: *const u8, b: *const u8) -> Self {
            unsafe { Self([vld1q_u8(a), vld1q_u8(b)]) }
        }
        #[inline(always)]
        unsafe fn transpose(rows: [Self; 4]) -> [Self; 4] {
            unsafe {
                let low = crate::kernels::simd::neon::transpose(rows.map(|row| row.0[0]));
                let high = crate::kernels::simd::neon::transpose(rows.map(|row| row.0[1]));
                std::array::from_fn(|n| Self([low[n], high[n]]))
            }
        }
        #[inline(always)]
        unsafe fn byte_as_i32(self, n: usize) -> Self {
            unsafe { self.i32s(|v| vshrq_n_s32::<24>(vshlq_s32(v, vdupq_n_s32(24 - 8 * n as i32)))) }
        }
        #[inline(always)]
        unsafe fn byte_as_i16s(self, n: usize) -> Self {
            unsafe {
                self.byte_as_i32(n).i32s(|v| {
                    let v = vreinterpretq_s16_s32(v);
                    vreinterpretq_s32_s16(vtrn1q_s16(v, v))
                })
            }
        }
        #[inline(always)]
        unsafe fn pair_as_i16s(self, n: usize) -> Self {
            unsafe {
                let pair = |at: usize| {
                    let first = vreinterpretq_s16_u8(self.byte_as_i32(2 * n).0[at]);
                    let second = vreinterpretq_s16_u8(self.byte_as_i32(2 * n + 1).0[at]);
                    vreinterpretq_u8_s16(vtrn1q_s16(first, second))
                };
                Self([pair(0), pair(1)])
            }
        }
        #[inline(always)]
        unsafe fn bits(a: *const u8, b: *const u8, mask: u8) -> Self {
            unsafe {
                let each = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
                let of = |at: *const u8| {
                    let spread = vcombine_u8(vld1_dup_u8(at), vld1_dup_u8(at.add(1)));
                    vandq_u8(vtstq_u8(spread, each), vdupq_n_u8(mask))
                };
                Self([of(a), of(b)])
            }
        }
        #[inline(always)]
        unsafe fn times(self, by: i16) -> Self {
            unsafe {
                self.i32s(|v| vreinterpretq_s32_s16(vmulq_s16(vreinterpretq_s16_s32(v), vdupq_n_s16(by))))
            }
        }
    }
}
#[cfg(target_arch = "aarch64")]
pub use aarch64::Neon;
