//! Weights of the types of blocks as int8, sixteen at a time, with NEON: the integers of `quantized::decode`, where
//! offsets are in them; the layouts are told in `quants`.

use crate::kernels::simd::neon::half;
use std::arch::aarch64::*;

/// A type whose rows are whole blocks.
pub trait Packed {
    /// Elements and bytes of a block.
    const ELEMENTS: usize;
    const BYTES: usize;
    /// Elements that meet activations of one scale: 256 of a block of 256, 32 of others.
    const UNIT: usize = if Self::ELEMENTS == 256 { 256 } else { 32 };
    /// Of a block of 256, elements that share a scale within it.
    const GROUP: usize;
    /// Where the block's f16 scale and minimum are; the latter is `NONE` where the type has none.
    const SCALE: usize;
    const MIN: usize;

    /// Weights 16n.. of the block.
    ///
    /// # Safety
    /// The machine has NEON; BYTES bytes can be read at `block`; 16n < ELEMENTS.
    unsafe fn sixteen(block: *const u8, n: usize) -> int8x16_t;

    /// Of a block of 256, the scales and minimums of each 16 elements.
    ///
    /// # Safety
    /// As for `sixteen`.
    unsafe fn scales(block: *const u8) -> (int8x16_t, uint8x16_t);

    /// The block's f16 scale, and its minimum or 0.
    ///
    /// # Safety
    /// As for `sixteen`.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn factors(block: *const u8) -> (f32, f32) {
        // SAFETY: both lie in the block.
        unsafe {
            let scale = half(block.add(Self::SCALE).cast::<u16>().read_unaligned());
            let min = match Self::MIN {
                NONE => 0.0,
                at => half(block.add(at).cast::<u16>().read_unaligned()),
            };
            (scale, min)
        }
    }
}

pub const NONE: usize = usize::MAX;

/// `$call` with the `Packed` of a type of blocks for `$p`. Panics for other types.
macro_rules! with_packed {
    ($dtype:expr, $p:ident => $call:expr) => {{
        use crate::kernels::gemm::formats::neon::*;
        macro_rules! some {
            ($t:ty) => {{
                type $p = $t;
                $call
            }};
        }
        match $dtype {
            DType::Q8_0 => some!(Q8_0),
            DType::Q4_0 => some!(Q4_0),
            DType::Q4_1 => some!(Q4_1),
            DType::Q5_0 => some!(Q5_0),
            DType::Q5_1 => some!(Q5_1),
            DType::Q1_0 => some!(Q1_0),
            DType::Q2_0 => some!(Q2_0),
            DType::Q2_0_128 => some!(Q2_0_128),
            DType::Q2_K => some!(Q2_K),
            DType::Q3_K => some!(Q3_K),
            DType::Q4_K => some!(Q4_K),
            DType::Q5_K => some!(Q5_K),
            DType::Q6_K => some!(Q6_K),
            other => panic!("{other:?} is no type of blocks with integers"),
        }
    }};
}
pub(in crate::kernels) use with_packed;

/// # Safety
/// Sixteen bytes can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn bytes(at: *const u8) -> uint8x16_t {
    // SAFETY: the caller's promise.
    unsafe { vld1q_u8(at) }
}

/// # Safety
/// Four bytes can be read.
#[inline]
unsafe fn word(at: *const u8) -> u32 {
    // SAFETY: the caller's promise; the kernels are for little-endian machines.
    unsafe { at.cast::<u32>().read_unaligned() }
}

/// Bytes shifted right by `shift`, then masked.
#[inline]
#[target_feature(enable = "neon")]
fn bits(q: uint8x16_t, shift: usize, mask: u8) -> uint8x16_t {
    vandq_u8(vshlq_u8(q, vdupq_n_s8(-(shift as i8))), vdupq_n_u8(mask))
}

/// Less `offset`.
#[inline]
#[target_feature(enable = "neon")]
fn less(q: uint8x16_t, offset: i8) -> int8x16_t {
    vsubq_s8(vreinterpretq_s8_u8(q), vdupq_n_s8(offset))
}

/// Bit 4 of sixteen elements whose fifth bits are the sixteen at `at`.
///
/// # Safety
/// Two bytes can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn fifth_bits(at: *const u8) -> uint8x16_t {
    // SAFETY: the caller's promise.
    vandq_u8(unsafe { one_bit(at) }, vdupq_n_u8(16))
}

/// All bits of an element where its one of the sixteen at `at` is set.
///
/// # Safety
/// Two bytes can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn one_bit(at: *const u8) -> uint8x16_t {
    // SAFETY: the caller's promise.
    let spread = unsafe { vcombine_u8(vld1_dup_u8(at), vld1_dup_u8(at.add(1))) };
    vtstq_u8(spread, vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201)))
}

/// A `Packed` of `$elements` in `$bytes` bytes: its sixteen number `$n` at `$block`, and its scales.
macro_rules! packed {
    ($name:ident, $elements:literal, $bytes:literal, $group:literal, $scale:expr, $min:expr,
     |$block:ident, $n:ident| $sixteen:expr, |$of:ident| $scales:expr) => {
        #[allow(non_camel_case_types)] // the names that files and their users know
        pub struct $name;
        impl Packed for $name {
            const ELEMENTS: usize = $elements;
            const BYTES: usize = $bytes;
            const GROUP: usize = $group;
            const SCALE: usize = $scale;
            const MIN: usize = $min;

            #[inline]
            #[target_feature(enable = "neon")]
            unsafe fn sixteen($block: *const u8, $n: usize) -> int8x16_t {
                // SAFETY: what is read lies in the block's BYTES bytes, as 16n < ELEMENTS.
                unsafe { $sixteen }
            }

            #[inline]
            #[allow(unused_unsafe)] // some types read nothing
            #[target_feature(enable = "neon")]
            unsafe fn scales($of: *const u8) -> (int8x16_t, uint8x16_t) {
                // SAFETY: what is read lies in the block's BYTES bytes.
                unsafe { $scales }
            }
        }
    };
    ($name:ident, $bytes:literal, $scale:expr, $min:expr, |$block:ident, $n:ident| $sixteen:expr) => {
        packed!($name, 32, $bytes, $scale, $min, |$block, $n| $sixteen);
    };
    ($name:ident, $elements:literal, $bytes:literal, $scale:expr, $min:expr, |$block:ident, $n:ident| $sixteen:expr) => {
        packed!($name, $elements, $bytes, 32, $scale, $min, |$block, $n| $sixteen, |_block| {
            (vdupq_n_s8(1), vdupq_n_u8(0))
        });
    };
}

packed!(Q8_0, 34, 0, NONE, |block, n| vld1q_s8(block.add(2 + 16 * n).cast()));
packed!(Q4_0, 18, 0, NONE, |block, n| less(bits(bytes(block.add(2)), 4 * n, 15), 8));
packed!(Q4_1, 20, 0, 2, |block, n| vreinterpretq_s8_u8(bits(bytes(block.add(4)), 4 * n, 15)));
packed!(Q5_0, 22, 0, NONE, |block, n| {
    less(vorrq_u8(bits(bytes(block.add(6)), 4 * n, 15), fifth_bits(block.add(2 + 2 * n))), 16)
});
packed!(Q5_1, 24, 0, 2, |block, n| {
    let fifth = fifth_bits(block.add(4 + 2 * n));
    vreinterpretq_s8_u8(vorrq_u8(bits(bytes(block.add(8)), 4 * n, 15), fifth))
});
packed!(Q1_0, 128, 18, 0, NONE, |block, n| less(vandq_u8(one_bit(block.add(2 + 2 * n)), vdupq_n_u8(2)), 1));
packed!(Q2_0, 64, 18, 0, NONE, |block, n| two_bits(block.add(2 + 4 * n)));
packed!(Q2_0_128, 128, 34, 0, NONE, |block, n| two_bits(block.add(2 + 4 * n)));

/// Sixteen elements of two bits, low bits first, less 1.
///
/// # Safety
/// Four bytes can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn two_bits(at: *const u8) -> int8x16_t {
    let spread = vcombine_u8(vcreate_u8(0x0101_0101_0000_0000), vcreate_u8(0x0303_0303_0202_0202));
    let shifts = vreinterpretq_s8_u32(vdupq_n_u32(0xfafc_fe00));
    // SAFETY: the caller's promise.
    let four = vreinterpretq_u8_u32(vdupq_n_u32(unsafe { word(at) }));
    less(vandq_u8(vshlq_u8(vqtbl1q_u8(four, spread), shifts), vdupq_n_u8(3)), 1)
}

packed!(
    Q2_K,
    256,
    84,
    16,
    80,
    82,
    |block, n| {
        let q = bytes(block.add(16 + n / 8 * 32 + n % 2 * 16));
        vreinterpretq_s8_u8(bits(q, n % 8 / 2 * 2, 3))
    },
    |block| {
        let both = bytes(block);
        (vreinterpretq_s8_u8(bits(both, 0, 15)), vshrq_n_u8::<4>(both))
    }
);
packed!(
    Q3_K,
    256,
    110,
    16,
    108,
    NONE,
    |block, n| {
        let q = bits(bytes(block.add(32 + n / 8 * 32 + n % 2 * 16)), n % 8 / 2 * 2, 3);
        let set = bits(bytes(block.add(n % 2 * 16)), n / 2, 1);
        less(vorrq_u8(q, vshlq_n_u8::<2>(set)), 4)
    },
    |block| {
        // Low halves of the 16 scales, then the high two bits of each in four words.
        let nibbles = vld1_u8(block.add(96));
        let low = vcombine_u8(vand_u8(nibbles, vdup_n_u8(15)), vshr_n_u8::<4>(nibbles));
        let high = word(block.add(104));
        let words = [high, high >> 2, high >> 4, high >> 6].map(|w| w & 0x0303_0303);
        let high = vreinterpretq_u8_u32(vld1q_u32(words.as_ptr()));
        (less(vorrq_u8(low, vshlq_n_u8::<4>(high)), 32), vdupq_n_u8(0))
    }
);

/// Scales and minimums of Q4_K and Q5_K, six bits packed in the 12 bytes at `block + 4`, each for two groups of 16.
///
/// # Safety
/// Sixteen bytes can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn scales_and_minimums(block: *const u8) -> (int8x16_t, uint8x16_t) {
    // SAFETY: the caller's promise.
    let [a, b, c] = [4, 8, 12].map(|i| unsafe { word(block.add(i)) });
    let high = |first: u32| first >> 2 & 0x3030_3030;
    let eight = |low: u32, high: u32| vcreate_u8(low as u64 | (high as u64) << 32);
    let scales = eight(a & 0x3f3f_3f3f, c & 0x0f0f_0f0f | high(a));
    let minimums = eight(b & 0x3f3f_3f3f, c >> 4 & 0x0f0f_0f0f | high(b));
    let twice = |v| vcombine_u8(vzip1_u8(v, v), vzip2_u8(v, v));
    (vreinterpretq_s8_u8(twice(scales)), twice(minimums))
}

packed!(
    Q4_K,
    256,
    144,
    32,
    0,
    2,
    |block, n| {
        vreinterpretq_s8_u8(bits(bytes(block.add(16 + n / 4 * 32 + n % 2 * 16)), n % 4 / 2 * 4, 15))
    },
    |block| scales_and_minimums(block)
);
packed!(
    Q5_K,
    256,
    176,
    32,
    0,
    2,
    |block, n| {
        let low = bits(bytes(block.add(48 + n / 4 * 32 + n % 2 * 16)), n % 4 / 2 * 4, 15);
        let high = bits(bytes(block.add(16 + n % 2 * 16)), n / 2, 1);
        vreinterpretq_s8_u8(vorrq_u8(low, vshlq_n_u8::<4>(high)))
    },
    |block| scales_and_minimums(block)
);
packed!(
    Q6_K,
    256,
    210,
    16,
    208,
    NONE,
    |block, n| {
        let (of, n8) = (n / 8, n % 8);
        let low = bits(bytes(block.add(of * 64 + n8 % 4 * 16)), n8 / 4 * 4, 15);
        let high = bits(bytes(block.add(128 + of * 32 + n8 % 2 * 16)), n8 / 2 * 2, 3);
        less(vorrq_u8(low, vshlq_n_u8::<4>(high)), 32)
    },
    |block| (vld1q_s8(block.add(192).cast()), vdupq_n_u8(0))
);
