//! Registers of NEON.

use super::Register;
use crate::kernels::simd::dispatch::inlined;
use crate::kernels::simd::lanes::{self, Lanes};
pub(crate) use std::arch::aarch64::int16x8_t;
use std::arch::aarch64::*;

inlined! {
    // Four lanes as i32.
    fn four(v: int16x8_t, upper: bool) -> int32x4_t =
        if upper { vmovl_high_s16(v) } else { vmovl_s16(vget_low_s16(v)) };
}

// SAFETY of all blocks: the caller has NEON and the memory.
impl Register for int16x8_t {
    type Floats = lanes::Neon;
    const LANES: usize = 8;
    inlined! {
        fn zero() -> Self = vdupq_n_s16(0);
        fn load(from: *const i16) -> Self = vld1q_s16(from);
        fn load_i8(from: *const i8) -> Self = vmovl_s8(vld1_s8(from));
        fn load_u8(from: *const u8) -> Self = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(from)));
        fn store(self, to: *mut i16) = vst1q_s16(to, self);
        fn and(self, other: Self) -> Self = vandq_s16(self, other);
        fn or(self, other: Self) -> Self = vorrq_s16(self, other);
        fn up<const N: i32>(self) -> Self = vshlq_s16(self, vdupq_n_s16(N as i16));
        fn down<const N: i32>(self) -> Self = {
            let shifted = vshlq_u16(vreinterpretq_u16_s16(self), vdupq_n_s16(-N as i16));
            vreinterpretq_s16_u16(shifted)
        };
        fn add(self, other: Self) -> Self = vaddq_s16(self, other);
        fn sub(self, other: Self) -> Self = vsubq_s16(self, other);
        fn mul(self, other: Self) -> Self = vmulq_s16(self, other);
        fn fields(from: *const u8) -> Self = {
            // The first field is put in the upper byte of its lane, so that all are shifted right.
            let bits = vreinterpretq_u8_u32(vdupq_n_u32(from.cast::<u32>().read_unaligned()));
            let bytes = vcombine_u8(vcreate_u8(0xffff_0100_0100_00ff), vcreate_u8(0xffff_0302_0302_02ff));
            let masks = vreinterpretq_u16_u64(vdupq_n_u64(0x0000_f800_07c0_3f00));
            let by = vreinterpretq_s16_u64(vdupq_n_u64(0x0000_fffa_ffff_fffd));
            let lanes = vandq_u16(vreinterpretq_u16_u8(vqtbl1q_u8(bits, bytes)), masks);
            vreinterpretq_s16_u16(vshlq_u16(lanes, by))
        };
        fn add_to(self, sums: *mut i32) =
            for n in 0..2 {
                let to = sums.add(4 * n);
                vst1q_s32(to, vaddq_s32(four(self, n == 1), vld1q_s32(to)));
            };
        fn to_f32(all: &[Self], first: usize) -> Self::Floats =
            Self::Floats::of(|n| vcvtq_f32_s32(four(all[first / 8 + n / 2], n % 2 == 1)));
        fn floats(from: *const i32) -> Self::Floats =
            Self::Floats::of(|n| vcvtq_f32_s32(vld1q_s32(from.add(4 * n))));
    }
}
