//! What NEON's kernels share, and instructions that the standard library has no stable names for.

use std::arch::aarch64::*;
use std::arch::asm;

/// `acc[i] += a[4i..4i + 4] · b[4i..4i + 4]`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub fn dot(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: one instruction of the feature `dotprod`, which the function asks for, on registers alone.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b",
            acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// `acc[i] += a[4i..4i + 4] · b[4 LANE..4 LANE + 4]`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub fn dot_lane<const LANE: usize>(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    const { assert!(LANE < 4) }
    // SAFETY: as for `dot`; there are four lanes.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]",
            acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// An f16 as f32; quiet where it is NaN.
#[inline]
#[target_feature(enable = "neon")]
pub fn half(bits: u16) -> f32 {
    let out: f32;
    // SAFETY: one instruction that every processor with NEON has, on registers alone.
    unsafe {
        asm!(
            "fcvt {out:s}, {bits:h}",
            out = lateout(vreg) out, bits = in(vreg) vdupq_n_u16(bits),
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

/// Rows of four 32-bit lanes to columns.
#[inline]
#[target_feature(enable = "neon")]
pub fn transpose(v: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
    let v = v.map(|v| vreinterpretq_u32_u8(v));
    let pairs =
        [vtrn1q_u32(v[0], v[1]), vtrn2q_u32(v[0], v[1]), vtrn1q_u32(v[2], v[3]), vtrn2q_u32(v[2], v[3])];
    let [a, b, c, d] = pairs.map(|p| vreinterpretq_u64_u32(p));
    [vtrn1q_u64(a, c), vtrn1q_u64(b, d), vtrn2q_u64(a, c), vtrn2q_u64(b, d)].map(|v| vreinterpretq_u8_u64(v))
}

/// The largest magnitude of all; NaN is passed over.
#[inline]
#[target_feature(enable = "neon")]
pub fn largest(x: &[[f32; 16]]) -> f32 {
    let mut max = [vdupq_n_f32(0.0); 4];
    for x in x {
        for (j, max) in max.iter_mut().enumerate() {
            // SAFETY: four floats at 4 j of 16.
            let v = unsafe { vabsq_f32(vld1q_f32(x.as_ptr().add(4 * j))) };
            *max = vbslq_f32(vcgtq_f32(v, *max), v, *max);
        }
    }
    let [a, b, c, d] = max;
    vmaxvq_f32(vmaxq_f32(vmaxq_f32(a, b), vmaxq_f32(c, d)))
}

/// `x * scale`, rounded to the nearest, halves to even; NaN becomes 0, what is beyond -128 or 127 becomes that.
#[inline]
#[target_feature(enable = "neon")]
pub fn to_bytes(x: &[f32; 16], scale: f32) -> int8x16_t {
    let mut q = [vdupq_n_s32(0); 4];
    for (j, q) in q.iter_mut().enumerate() {
        // SAFETY: four floats at 4 j of 16.
        *q = vcvtnq_s32_f32(vmulq_n_f32(unsafe { vld1q_f32(x.as_ptr().add(4 * j)) }, scale));
    }
    let [a, b, c, d] = q;
    let (low, high) = (vqmovn_high_s32(vqmovn_s32(a), b), vqmovn_high_s32(vqmovn_s32(c), d));
    vqmovn_high_s16(vqmovn_s16(low), high)
}

/// Four f16 as f32; quiet where they are NaN.
#[inline]
#[target_feature(enable = "neon")]
pub fn halves(bits: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: one instruction that every processor with NEON has, on registers alone.
    unsafe {
        asm!(
            "fcvtl {out:v}.4s, {bits:v}.4h",
            out = lateout(vreg) out, bits = in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}
