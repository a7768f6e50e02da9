//! NEON's registers.

use super::lanes::{Register, Sixteen};
use super::neon::halves;
use std::arch::aarch64::*;
use std::arch::asm;

pub type Neon = Sixteen<float32x4_t, 4>;

// SAFETY of all blocks: the caller has the instructions, and elements for all lanes.
impl Register for float32x4_t {
    type Ints = int32x4_t;
    const WIDTH: usize = 4;
    const SUMS: usize = 4;

    #[inline(always)]
    fn fetch(from: *const u8) {
        // SAFETY: a prefetch accesses nothing.
        unsafe { asm!("prfm pldl2keep, [{0}]", in(reg) from, options(nostack, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe { halves(vld1_u16(from)) }
    }
    #[inline(always)]
    unsafe fn halves(rows: &[*const u8], at: usize) -> Self {
        unsafe {
            let four = [0, 1, 2, 3].map(|r| rows[r].add(at).cast::<u16>().read_unaligned());
            Self::load_f16(four.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        unsafe {
            let four = vcreate_s8(from.cast::<u32>().read_unaligned() as u64);
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { vst1q_f32(to, self) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { vaddq_f32(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { vsubq_f32(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { vmulq_f32(self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { vdivq_f32(self, other) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { vfmaq_f32(b, self, a) }
    }
    #[inline(always)]
    unsafe fn above(self, other: Self) -> Self {
        unsafe { vbslq_f32(vcgtq_f32(self, other), self, other) }
    }
    #[inline(always)]
    unsafe fn less(self, bound: Self, yes: Self, no: Self) -> Self {
        unsafe { vbslq_f32(vcltq_f32(self, bound), yes, no) }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { vabsq_f32(self) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe { vrndnq_f32(self) }
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(self), vdupq_n_s32(127)))) }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe { vmaxvq_f32(self) }
    }
    #[inline(always)]
    unsafe fn no_ints() -> int32x4_t {
        unsafe { vdupq_n_s32(0) }
    }
    #[inline(always)]
    unsafe fn store_i8(sixteen: &[Self], to: *mut i8, sums: &mut int32x4_t) {
        unsafe {
            // A NaN is converted to 0.
            let words = |i: usize| {
                let (low, high) = (vcvtnq_s32_f32(sixteen[i]), vcvtnq_s32_f32(sixteen[i + 1]));
                vqmovn_high_s32(vqmovn_s32(low), high)
            };
            let bytes = vqmovn_high_s16(vqmovn_s16(words(0)), words(2));
            *sums = vpadalq_s16(*sums, vpaddlq_s8(bytes));
            vst1q_s8(to, bytes);
        }
    }
    #[inline(always)]
    unsafe fn total(sums: int32x4_t) -> i32 {
        unsafe { vaddvq_s32(sums) }
    }
}
