//! Sixteen lanes of NEON.

use crate::kernels::rows::exp;
use crate::kernels::simd::lanes::Lanes;
use std::arch::aarch64::*;
use std::arch::asm;

#[derive(Clone, Copy)]
pub struct Neon([float32x4_t; 4]);

impl Neon {
    #[inline(always)]
    unsafe fn with(self, other: Self, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

/// Four F16, widened: std has no stable intrinsic for it.
#[inline(always)]
unsafe fn widen(from: *const u16) -> float32x4_t {
    // SAFETY: the caller has four to read; the instruction only turns registers into others.
    unsafe {
        let narrow = vld1_u16(from);
        let wide: float32x4_t;
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) narrow, options(pure, nomem, nostack));
        wide
    }
}

// SAFETY of all blocks: the caller has the instructions, and 16 elements to load or store.
impl Lanes for Neon {
    const SUMS: usize = 4;

    #[inline(always)]
    fn fetch(from: *const u8) {
        // SAFETY: a prefetch accesses nothing.
        unsafe { asm!("prfm pldl2keep, [{0}]", in(reg) from, options(nostack, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self([vdupq_n_f32(x); 4]) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(std::array::from_fn(|i| vld1q_f32(from.add(4 * i)))) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe { Self(std::array::from_fn(|i| widen(from.add(4 * i)))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        unsafe {
            let bytes = vld1q_s8(from);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            Self([
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ])
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        (0..4).for_each(|i| unsafe { vst1q_f32(to.add(4 * i), self.0[i]) });
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { self.with(other, |a, b| vaddq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { self.with(other, |a, b| vsubq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { self.with(other, |a, b| vmulq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { Self(std::array::from_fn(|i| vfmaq_f32(b.0[i], self.0[i], a.0[i]))) }
    }
    #[inline(always)]
    unsafe fn above(self, other: Self) -> Self {
        unsafe { self.with(other, |a, b| vbslq_f32(vcgtq_f32(a, b), a, b)) }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe {
            let [a, b, c, d] = self.0;
            vmaxvq_f32(vmaxq_f32(vmaxq_f32(a, b), vmaxq_f32(c, d)))
        }
    }
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        unsafe { Self(self.0.map(|x| exp::neon::exp(x))) }
    }
    #[inline(always)]
    unsafe fn only(self, from: usize, to: usize, other: Self) -> Self {
        unsafe {
            let lanes = vld1q_u32([0, 1, 2, 3].as_ptr());
            let (from, to) = (vdupq_n_u32(from as u32), vdupq_n_u32(to as u32));
            Self(std::array::from_fn(|i| {
                let lanes = vaddq_u32(lanes, vdupq_n_u32(4 * i as u32));
                let within = vandq_u32(vcgeq_u32(lanes, from), vcltq_u32(lanes, to));
                vbslq_f32(within, self.0[i], other.0[i])
            }))
        }
    }
}
