//! Super-blocks of 256 columns: ggml's K-quants (github.com/ggml-org/ggml, ggml-quants.c).

use crate::kernels::simd::bytes::Bits;

/// A type of super-blocks: its weights are `d * scale * (code - OFFSET)`, or `d * scale * code - dmin * minimum` where it
/// has MINIMA, with scales and minima of each 16 columns.
pub trait Super {
    const BYTES: usize;
    /// Where the bytes that hold codes begin, 32 at each.
    const PACKED: &'static [usize];
    /// Times four columns whose pairs of products with int8 fit an i16: 2 * largest code * 128 each.
    const STEPS: usize;
    /// Times four columns that share a scale.
    const GROUP: usize;
    /// Where the block's f16 scale is, and that of its minima, or the same one again.
    const D: usize;
    const MIN: usize;
    const MINIMA: bool = Self::D != Self::MIN;
    /// What codes are more than the integers they stand for.
    const OFFSET: i16;

    /// Scales, as i8, and minima of each 16 columns.
    fn scales(block: &[u8]) -> [[u8; 16]; 2];

    /// Codes of columns 32k.., byte by byte, from what lies at PACKED.
    ///
    /// # Safety
    /// `B`'s instructions are there.
    unsafe fn codes<B: Bits>(packed: [B; 6]) -> [B; 8];
}

/// What lies at PACKED.
///
/// # Safety
/// `B`'s instructions are there; `K::BYTES` bytes can be read at `block`.
#[inline(always)]
pub unsafe fn packed<K: Super, B: Bits>(block: *const u8) -> [B; 6] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut packed = [B::load(block.add(K::PACKED[0])); 6];
        for (v, at) in K::PACKED.iter().enumerate() {
            packed[v] = B::load(block.add(*at));
        }
        packed
    }
}

/// `$call` with the `Super` of a type of super-blocks for `$k`.
macro_rules! with_super {
    ($dtype:expr, $k:ident => $call:expr) => {{
        use $crate::kernels::gemm::formats::super_blocks as types;
        macro_rules! with {
            ($t:ident) => {{
                type $k = types::$t;
                $call
            }};
        }
        match $dtype {
            $crate::kernels::DType::Q2_K => with!(Q2_K),
            $crate::kernels::DType::Q3_K => with!(Q3_K),
            $crate::kernels::DType::Q4_K => with!(Q4_K),
            $crate::kernels::DType::Q5_K => with!(Q5_K),
            $crate::kernels::DType::Q6_K => with!(Q6_K),
            other => panic!("{other:?} has no super-blocks"),
        }
    }};
}
pub(in crate::kernels) use with_super;

macro_rules! super_block {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $packed:expr, steps $steps:literal, group $group:literal,
     d $d:literal $min:literal, offset $offset:literal, |$block:ident| $scales:expr, |$p:ident| $codes:expr) => {
        $(#[$doc])*
        #[allow(non_camel_case_types)] // the names that files and their users know
        pub struct $name;
        impl Super for $name {
            const BYTES: usize = $bytes;
            const PACKED: &'static [usize] = &$packed;
            const STEPS: usize = $steps;
            const GROUP: usize = $group;
            const D: usize = $d;
            const MIN: usize = $min;
            const OFFSET: i16 = $offset;

            #[inline(always)]
            fn scales($block: &[u8]) -> [[u8; 16]; 2] {
                $scales
            }

            #[inline(always)]
            unsafe fn codes<B: Bits>($p: [B; 6]) -> [B; 8] {
                // SAFETY: the caller's promise.
                unsafe { $codes }
            }
        }
    };
}

super_block!(
    /// 16 bytes of 4-bit scales and minima, 64 bytes of 2-bit elements, two f16.
    Q2_K, 84, [16, 48], steps 4, group 4, d 80 82, offset 0,
    |block| {
        let packed = u128::from_le_bytes(first(block));
        let low = u128::from_ne_bytes([15; 16]);
        [(packed & low).to_le_bytes(), (packed >> 4 & low).to_le_bytes()]
    },
    |p| pairs(p)
);
super_block!(
    /// 32 bytes of third bits, 64 bytes of 2-bit elements, 12 bytes of 6-bit scales, an f16.
    Q3_K, 110, [32, 64, 0], steps 4, group 4, d 108 108, offset 4,
    |block| {
        // Low halves of the 16 scales, then the high two bits of each in four words.
        let [a, b, c] = words(&block[96..]);
        let low = [a, b, a >> 4, b >> 4];
        let mut six = [0; 4];
        for i in 0..4 {
            six[i] = low[i] & 0x0f0f_0f0f | (c >> (2 * i) & 0x0303_0303) << 4;
        }
        let mut scales = bytes(six);
        scales.iter_mut().for_each(|scale| *scale = scale.wrapping_sub(32));
        [scales; 2]
    },
    |p| {
        let m = p[2];
        let third = [
            m.left::<2>(4), m.left::<1>(4), m.right::<0>(4), m.right::<1>(4), m.right::<2>(4), m.right::<3>(4),
            m.right::<4>(4), m.right::<5>(4),
        ];
        both(pairs(p), third)
    }
);
super_block!(
    /// Two f16, 12 bytes of 6-bit scales and minima of 32 elements each, 128 bytes of 4-bit elements.
    Q4_K, 144, [16, 48, 80, 112], steps 8, group 8, d 0 2, offset 0, |block| six_bits(&block[4..]), |p| nibbles(p)
);
super_block!(
    /// As Q4_K, with 32 bytes of fifth bits before the elements.
    Q5_K, 176, [48, 80, 112, 144, 16], steps 4, group 8, d 0 2, offset 0, |block| six_bits(&block[4..]),
    |p| {
        let h = p[4];
        let fifth = [
            h.left::<4>(16), h.left::<3>(16), h.left::<2>(16), h.left::<1>(16), h.right::<0>(16), h.right::<1>(16),
            h.right::<2>(16), h.right::<3>(16),
        ];
        both(nibbles(p), fifth)
    }
);
super_block!(
    /// 128 bytes of low 4 bits, 64 bytes of high 2, 16 int8 scales, an f16.
    Q6_K, 210, [0, 32, 64, 96, 128, 160], steps 2, group 4, d 208 208, offset 32,
    |block| [first(&block[192..]); 2],
    |p| {
        let [a, b, c, d, h, i] = p;
        let low = [
            a.right::<0>(15), b.right::<0>(15), a.right::<4>(15), b.right::<4>(15), c.right::<0>(15),
            d.right::<0>(15), c.right::<4>(15), d.right::<4>(15),
        ];
        let high = [
            h.left::<4>(48), h.left::<2>(48), h.right::<0>(48), h.right::<2>(48), i.left::<4>(48), i.left::<2>(48),
            i.right::<0>(48), i.right::<2>(48),
        ];
        both(low, high)
    }
);

#[inline(always)]
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("a whole block")
}

#[inline(always)]
fn words(bytes: &[u8]) -> [u32; 3] {
    let bytes: [u8; 12] = first(bytes);
    [
        u32::from_le_bytes(first(&bytes)),
        u32::from_le_bytes(first(&bytes[4..])),
        u32::from_le_bytes(first(&bytes[8..])),
    ]
}

#[inline(always)]
fn bytes(words: [u32; 4]) -> [u8; 16] {
    let mut all = [0; 16];
    for (bytes, word) in all.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    all
}

/// Scales and minima of each 32 columns, six bits packed in 12 bytes, for each 16 columns.
#[inline(always)]
fn six_bits(packed: &[u8]) -> [[u8; 16]; 2] {
    let [a, b, c] = words(packed);
    let (high_a, high_b) = (a >> 2 & 0x3030_3030, b >> 2 & 0x3030_3030);
    [twice(a & 0x3f3f_3f3f, c & 0x0f0f_0f0f | high_a), twice(b & 0x3f3f_3f3f, c >> 4 & 0x0f0f_0f0f | high_b)]
}

/// Each byte two times.
#[inline(always)]
fn twice(low: u32, high: u32) -> [u8; 16] {
    let mut words = [0; 4];
    for (i, word) in words.iter_mut().enumerate() {
        let two = if i < 2 { low } else { high } >> (16 * (i % 2)) & 0xffff;
        *word = (two & 0xff | (two & 0xff00) << 8) * 0x0101;
    }
    bytes(words)
}

/// Two bits at a time of two vectors, low ones first.
#[inline(always)]
unsafe fn pairs<B: Bits>([a, b, ..]: [B; 6]) -> [B; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        [
            a.right::<0>(3),
            a.right::<2>(3),
            a.right::<4>(3),
            a.right::<6>(3),
            b.right::<0>(3),
            b.right::<2>(3),
            b.right::<4>(3),
            b.right::<6>(3),
        ]
    }
}

/// Four bits at a time of four vectors, low ones first.
#[inline(always)]
unsafe fn nibbles<B: Bits>([a, b, c, d, ..]: [B; 6]) -> [B; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        [
            a.right::<0>(15),
            a.right::<4>(15),
            b.right::<0>(15),
            b.right::<4>(15),
            c.right::<0>(15),
            c.right::<4>(15),
            d.right::<0>(15),
            d.right::<4>(15),
        ]
    }
}

#[inline(always)]
unsafe fn both<B: Bits>(mut a: [B; 8], b: [B; 8]) -> [B; 8] {
    for k in 0..8 {
        // SAFETY: the caller's promise.
        a[k] = unsafe { a[k].or(b[k]) };
    }
    a
}
