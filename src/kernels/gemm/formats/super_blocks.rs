//! Super-blocks of 256 columns: ggml's K-quants (github.com/ggml-org/ggml, ggml-quants.c).

#![allow(clippy::needless_range_loop)] // fixed ranges keep codes in registers

use crate::kernels::simd::bytes::{Bytes, Portable};

/// A type of super-blocks. Its weights are `d * scale * (code - OFFSET)`, or `d * scale * code - dmin * minimum` if
/// it has MINIMA. Each group of 16 or 32 columns has a scale and a minimum.
pub trait Super {
    const BYTES: usize;
    /// Offsets of the bytes that hold codes, 32 bytes at each.
    const PACKED: &'static [usize];
    /// Number of steps of four columns whose pairs of products with int8, each at most 2 * largest code * 128, add up
    /// within an i16.
    const STEPS: usize;
    /// Number of steps of four columns that share a scale.
    const GROUP: usize;
    /// Offset of the block's f16 scale, and of the f16 scale of its minima; the same offset if there are no minima.
    const D: usize;
    const MIN: usize;
    const MINIMA: bool = Self::D != Self::MIN;
    /// The offset that codes have over the integers they stand for.
    const OFFSET: i16;

    /// Offset of the sixteen bytes that hold scales and minima.
    const SCALES: usize;

    /// Scales, as i8, and minima of groups of columns, from the bytes at SCALES: byte after byte of each lane.
    ///
    /// # Safety
    /// `B`'s instructions are available.
    unsafe fn scales<B: Bytes>(packed: [B; 4]) -> [[B; 4]; 2];

    /// Codes of some of columns 32k.., byte by byte, from the corresponding bytes at PACKED.
    ///
    /// # Safety
    /// `B`'s instructions are available.
    unsafe fn codes<B: Bytes>(packed: [B; 6]) -> [B; 8];
}

/// Reads bytes `16 side ..` of each part at PACKED, of the block at `at` of each of ROWS rows: four bytes, the next
/// four, and so on.
///
/// # Safety
/// `B`'s instructions are available; the blocks can be read.
#[inline(always)]
pub unsafe fn columns<K: Super, B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> [[B; 6]; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut columns = B::columns(rows, at + 16 * side + K::PACKED[0]).map(|first| [first; 6]);
        for v in 1..K::PACKED.len() {
            let four = B::columns(rows, at + 16 * side + K::PACKED[v]);
            for j in 0..4 {
                columns[j][v] = four[j];
            }
        }
        columns
    }
}

/// Scales, as i8, and minima of each 16 columns of a block.
#[inline(always)]
pub fn scales<K: Super>(block: &[u8]) -> [[u8; 16]; 2] {
    assert_eq!(block.len(), K::BYTES, "a whole block");
    // SAFETY: sixteen bytes of a block.
    let both = unsafe { K::scales(Portable::columns(&[block.as_ptr()], K::SCALES)) };
    both.map(|words| {
        let mut all = [0; 16];
        for (n, byte) in all.iter_mut().enumerate() {
            let group = 4 * n / K::GROUP;
            *byte = (words[group / 4].0 >> (8 * (group % 4))) as u8;
        }
        all
    })
}

/// Expands to `$call` with `$k` as the `Super` of a type of super-blocks.
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
     d $d:literal $min:literal, offset $offset:literal, scales at $at:literal, |$w:ident| $scales:expr,
     |$p:ident| $codes:expr) => {
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
            const SCALES: usize = $at;

            #[inline(always)]
            unsafe fn scales<B: Bytes>($w: [B; 4]) -> [[B; 4]; 2] {
                // SAFETY: the caller's promise.
                #[allow(unused_unsafe)] // for Q6_K
                unsafe {
                    $scales
                }
            }

            #[inline(always)]
            unsafe fn codes<B: Bytes>($p: [B; 6]) -> [B; 8] {
                // SAFETY: the caller's promise.
                unsafe { $codes }
            }
        }
    };
}

super_block!(
    /// 16 bytes of 4-bit scales and minima, 64 bytes of 2-bit elements, two f16.
    Q2_K, 84, [16, 48], steps 4, group 4, d 80 82, offset 0, scales at 0,
    |w| [four(w, |w| w.right::<0>(15)), four(w, |w| w.right::<4>(15))],
    |p| pairs(p)
);
super_block!(
    /// 32 bytes of third bits, 64 bytes of 2-bit elements, 12 bytes of 6-bit scales, an f16.
    Q3_K, 110, [32, 64, 0], steps 4, group 4, d 108 108, offset 4, scales at 92,
    |w| {
        // The low four bits of the 16 scales, then the high two bits of each in four words; the values are 32 too
        // large.
        let [_, a, b, c] = w;
        let scales = [
            a.right::<0>(15).or(c.left::<4>(48)),
            b.right::<0>(15).or(c.left::<2>(48)),
            a.right::<4>(15).or(c.right::<0>(48)),
            b.right::<4>(15).or(c.right::<2>(48)),
        ];
        [four(scales, |w| w.less(32)); 2]
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
    /// Two f16, 12 bytes of 6-bit scales and minima for 32 elements each, 128 bytes of 4-bit elements.
    Q4_K, 144, [16, 48, 80, 112], steps 8, group 8, d 0 2, offset 0, scales at 0, |w| six_bits(w), |p| nibbles(p)
);
super_block!(
    /// As Q4_K, with 32 bytes of fifth bits before the elements.
    Q5_K, 176, [48, 80, 112, 144, 16], steps 4, group 8, d 0 2, offset 0, scales at 0, |w| six_bits(w),
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
    /// 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 int8 scales, an f16.
    Q6_K, 210, [0, 32, 64, 96, 128, 160], steps 2, group 4, d 208 208, offset 32, scales at 192,
    |w| [w; 2],
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

/// Applies `one` to each of four.
#[inline(always)]
unsafe fn four<B: Bytes>(w: [B; 4], one: impl Fn(B) -> B) -> [B; 4] {
    [one(w[0]), one(w[1]), one(w[2]), one(w[3])]
}

/// Scales and minima of each 32 columns: six bits each, packed in 12 bytes after two f16.
#[inline(always)]
unsafe fn six_bits<B: Bytes>([_, a, b, c]: [B; 4]) -> [[B; 4]; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let scales = [a.right::<0>(63), c.right::<0>(15).or(a.right::<2>(48))];
        let minima = [b.right::<0>(63), c.right::<4>(15).or(b.right::<2>(48))];
        [[scales[0], scales[1], scales[0], scales[1]], [minima[0], minima[1], minima[0], minima[1]]]
    }
}

/// Codes of two bits, of two vectors, from the low bits up.
#[inline(always)]
unsafe fn pairs<B: Bytes>([a, b, ..]: [B; 6]) -> [B; 8] {
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

/// Codes of four bits, of four vectors, from the low bits up.
#[inline(always)]
unsafe fn nibbles<B: Bytes>([a, b, c, d, ..]: [B; 6]) -> [B; 8] {
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
unsafe fn both<B: Bytes>(mut a: [B; 8], b: [B; 8]) -> [B; 8] {
    for k in 0..8 {
        // SAFETY: the caller's promise.
        a[k] = unsafe { a[k].or(b[k]) };
    }
    a
}
