//! Functions that NEON's kernels share, and instructions for which the standard library has no stable names.

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

/// `acc[2 r + c] += a[8 r..8 r + 8] · b[8 c..8 c + 8]`: two rows times two columns.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub fn dot_pairs(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: as for `dot`, of the feature `i8mm`.
    unsafe {
        asm!(
            "smmla {acc:v}.4s, {a:v}.16b, {b:v}.16b",
            acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// Transposes rows of four 32-bit lanes into columns.
#[inline]
#[target_feature(enable = "neon")]
pub fn transpose(v: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
    let v = v.map(|v| vreinterpretq_u32_u8(v));
    let pairs =
        [vtrn1q_u32(v[0], v[1]), vtrn2q_u32(v[0], v[1]), vtrn1q_u32(v[2], v[3]), vtrn2q_u32(v[2], v[3])];
    let [a, b, c, d] = pairs.map(|p| vreinterpretq_u64_u32(p));
    [vtrn1q_u64(a, c), vtrn1q_u64(b, d), vtrn2q_u64(a, c), vtrn2q_u64(b, d)].map(|v| vreinterpretq_u8_u64(v))
}

/// Converts four f16 to f32; NaNs become quiet.
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
