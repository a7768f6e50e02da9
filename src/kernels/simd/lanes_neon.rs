//! NEON's registers.

use super::dispatch::inlined;
use super::lanes::{Real, Register, Sixteen, half_power};
use super::neon::halves;
use std::arch::aarch64::*;
use std::arch::asm;

pub type Neon = Sixteen<float32x4_t, 4>;

inlined! {
    // The low halves of `a` and `b`, and the high halves.
    fn low_halves(a: float32x4_t, b: float32x4_t) -> float32x4_t =
        vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
    fn high_halves(a: float32x4_t, b: float32x4_t) -> float32x4_t =
        vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
    // A step of `tree_sums`: the halves of `a` added, and those of `b`.
    fn pairs(a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32(low_halves(a, b), high_halves(a, b));
    fn four_codes(indices: uint8x8_t, codes: &[i8; 16]) -> float32x4_t = {
        let found = vqtbl1_s8(vld1q_s8(codes.as_ptr()), indices);
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(found))))
    };
}

// SAFETY of all blocks: the caller has the instructions, and elements for all lanes.
impl Real for float32x4_t {
    inlined! {
        fn splat(x: f32) -> Self = vdupq_n_f32(x);
        fn load(from: *const f32) -> Self = vld1q_f32(from);
        fn load_f16(from: *const u16) -> Self = halves(vld1_u16(from));
        fn load_bf16(from: *const u16) -> Self = vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from)));
        fn load_i8(from: *const i8) -> Self = {
            let four = vcreate_s8(from.cast::<u32>().read_unaligned() as u64);
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))))
        };
        fn low_codes(from: *const u8, codes: &[i8; 16]) -> Self =
            four_codes(vand_u8(vcreate_u8(from.cast::<u32>().read_unaligned() as u64), vdup_n_u8(15)), codes);
        fn high_codes(from: *const u8, codes: &[i8; 16]) -> Self =
            four_codes(vshr_n_u8::<4>(vcreate_u8(from.cast::<u32>().read_unaligned() as u64)), codes);
        fn load_split(high: *const i32, low: *const i32) -> Self =
            vcvtq_f32_s32(vaddq_s32(vshlq_n_s32::<8>(vld1q_s32(high)), vld1q_s32(low)));
        fn store(self, to: *mut f32) = vst1q_f32(to, self);
        fn add(self, other: Self) -> Self = vaddq_f32(self, other);
        fn sub(self, other: Self) -> Self = vsubq_f32(self, other);
        fn mul(self, other: Self) -> Self = vmulq_f32(self, other);
        fn div(self, other: Self) -> Self = vdivq_f32(self, other);
        fn fma(self, a: Self, b: Self) -> Self = vfmaq_f32(b, self, a);
        fn above(self, other: Self) -> Self = vbslq_f32(vcgtq_f32(self, other), self, other);
        fn less(self, bound: Self, yes: Self, no: Self) -> Self = vbslq_f32(vcltq_f32(self, bound), yes, no);
        fn abs(self) -> Self = vabsq_f32(self);
        fn round(self) -> Self = vrndnq_f32(self);
        fn power_of_two(self) -> Self =
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(self), vdupq_n_s32(127))));
        fn largest(self) -> f32 = vmaxvq_f32(self);
        fn cut(self) -> Self =
            vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(self), vdupq_n_u32(0xffff_0000)));
        fn pair(self, high: Self) -> Self = {
            let (low, high) = (vreinterpretq_u32_f32(self), vreinterpretq_u32_f32(high));
            vreinterpretq_f32_u32(vsriq_n_u32::<16>(high, low))
        };
    }
}

// SAFETY of all blocks: as above.
impl Register for float32x4_t {
    type Ints = int32x4_t;
    const WIDTH: usize = 4;
    const COUNT: usize = 32;
    const SUMS: usize = 4;

    #[inline(always)]
    fn fetch(from: *const u8) {
        // SAFETY: a prefetch accesses nothing.
        unsafe { asm!("prfm pldl2keep, [{0}]", in(reg) from, options(nostack, preserves_flags)) }
    }
    inlined! {
        fn halves(rows: &[*const u8], at: usize) -> Self = {
            let four = [0, 1, 2, 3].map(|r| rows[r].add(at).cast::<u16>().read_unaligned());
            Self::load_f16(four.as_ptr())
        };
        fn half_powers(rows: &[*const u8], at: usize) -> Self = {
            let four = [0, 1, 2, 3].map(|r| half_power(*rows[r].add(at)));
            Self::load(four.as_ptr())
        };
        fn tree_sums(rows: &[Self]) -> Self = {
            let (a, b) = (pairs(rows[0], rows[1]), pairs(rows[2], rows[3]));
            vaddq_f32(vuzp1q_f32(a, b), vuzp2q_f32(a, b))
        };
        fn transpose(rows: &mut [Self]) = {
            let (a, b) = (vtrn1q_f32(rows[0], rows[1]), vtrn2q_f32(rows[0], rows[1]));
            let (c, d) = (vtrn1q_f32(rows[2], rows[3]), vtrn2q_f32(rows[2], rows[3]));
            (rows[0], rows[2]) = (low_halves(a, c), high_halves(a, c));
            (rows[1], rows[3]) = (low_halves(b, d), high_halves(b, d));
        };
        fn no_ints() -> int32x4_t = vdupq_n_s32(0);
        fn store_i8(sixteen: &[Self], to: *mut i8, sums: &mut int32x4_t) = {
            // A NaN is converted to 0.
            let words = |i: usize| {
                let (low, high) = (vcvtnq_s32_f32(sixteen[i]), vcvtnq_s32_f32(sixteen[i + 1]));
                vqmovn_high_s32(vqmovn_s32(low), high)
            };
            let bytes = vqmovn_high_s16(vqmovn_s16(words(0)), words(2));
            *sums = vpadalq_s16(*sums, vpaddlq_s8(bytes));
            vst1q_s8(to, bytes);
        };
        fn total(sums: int32x4_t) -> i32 = vaddvq_s32(sums);
    }
}
