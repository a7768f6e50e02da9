//! Registers of NEON.

use super::Shorts;
use crate::kernels::simd::dispatch::inlined;
use crate::kernels::simd::lanes::{self, Lanes};
use std::arch::aarch64::*;

/// Two registers.
#[derive(Clone, Copy)]
pub(crate) struct Neon(int16x8_t, int16x8_t);

inlined! {
    // Four lanes as i32.
    fn four(v: int16x8_t, upper: bool) -> int32x4_t =
        if upper { vmovl_high_s16(v) } else { vmovl_s16(vget_low_s16(v)) };
    // The bits of u16 lanes.
    fn signed(v: uint16x8_t) -> int16x8_t = vreinterpretq_s16_u16(v);
    fn shifted_down(v: int16x8_t, by: i32) -> int16x8_t =
        signed(vshlq_u16(vreinterpretq_u16_s16(v), vdupq_n_s16(-by as i16)));
    // The fields of 32 bits.
    fn fields(from: *const u8) -> int16x8_t = {
        // The first field is put in the upper byte of its lane, so that all are shifted right.
        let bits = vreinterpretq_u8_u32(vdupq_n_u32(from.cast::<u32>().read_unaligned()));
        let bytes = vcombine_u8(vcreate_u8(0xffff_0100_0100_00ff), vcreate_u8(0xffff_0302_0302_02ff));
        let masks = vreinterpretq_u16_u64(vdupq_n_u64(0x0000_f800_07c0_3f00));
        let by = vreinterpretq_s16_u64(vdupq_n_u64(0x0000_fffa_ffff_fffd));
        signed(vshlq_u16(vandq_u16(vreinterpretq_u16_u8(vqtbl1q_u8(bits, bytes)), masks), by))
    };
    fn add_eight(v: int16x8_t, sums: *mut i32) =
        for n in 0..2 {
            let to = sums.add(4 * n);
            vst1q_s32(to, vaddq_s32(four(v, n == 1), vld1q_s32(to)));
        };
}

// SAFETY of all blocks: the caller has NEON and the memory.
impl Shorts for Neon {
    type Floats = lanes::Neon;
    const LANES: usize = 16;
    inlined! {
        fn zero() -> Self = Self(vdupq_n_s16(0), vdupq_n_s16(0));
        fn load(from: *const i16) -> Self = Self(vld1q_s16(from), vld1q_s16(from.add(8)));
        fn load_i8(from: *const i8) -> Self = Self(vmovl_s8(vld1_s8(from)), vmovl_s8(vld1_s8(from.add(8))));
        fn load_u8(from: *const u8) -> Self =
            Self(signed(vmovl_u8(vld1_u8(from))), signed(vmovl_u8(vld1_u8(from.add(8)))));
        fn store(self, to: *mut i16) = {
            vst1q_s16(to, self.0);
            vst1q_s16(to.add(8), self.1);
        };
        fn and(self, other: Self) -> Self = Self(vandq_s16(self.0, other.0), vandq_s16(self.1, other.1));
        fn or(self, other: Self) -> Self = Self(vorrq_s16(self.0, other.0), vorrq_s16(self.1, other.1));
        fn up<const N: i32>(self) -> Self =
            Self(vshlq_s16(self.0, vdupq_n_s16(N as i16)), vshlq_s16(self.1, vdupq_n_s16(N as i16)));
        fn down<const N: i32>(self) -> Self = Self(shifted_down(self.0, N), shifted_down(self.1, N));
        fn add(self, other: Self) -> Self = Self(vaddq_s16(self.0, other.0), vaddq_s16(self.1, other.1));
        fn sub(self, other: Self) -> Self = Self(vsubq_s16(self.0, other.0), vsubq_s16(self.1, other.1));
        fn mul(self, other: Self) -> Self = Self(vmulq_s16(self.0, other.0), vmulq_s16(self.1, other.1));
        fn fields(from: *const u8) -> Self = Self(fields(from), fields(from.add(4)));
        fn add_to(self, sums: *mut i32) = {
            add_eight(self.0, sums);
            add_eight(self.1, sums.add(8));
        };
        fn to_f32(self, _: usize) -> Self::Floats =
            Self::Floats::of(|n| vcvtq_f32_s32(four(if n < 2 { self.0 } else { self.1 }, n % 2 == 1)));
        fn floats(from: *const i32) -> Self::Floats =
            Self::Floats::of(|n| vcvtq_f32_s32(vld1q_s32(from.add(4 * n))));
    }
}
