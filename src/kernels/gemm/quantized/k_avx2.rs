//! Products of int8 activations and super-blocks of 256 with AVX2: the integers of `quantized::scalar`, in lanes of
//! rows, so that each row's f32 sum has its order.
//!
//! Few tokens: rows are unpacked in registers, a block's partial sums stored, and eight rows' added up across into
//! lanes. More tokens: rows become panels once, which are swept over all of them.
//!
//! `vpmaddubsw` multiplies codes with int8 and adds pairs: at most 2·63·128 in magnitude for codes of six bits, so that
//! STEPS of them fit an i16 lane. `vpmaddwd` widens them and multiplies with the scale.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::k_panel::{Block, FOURS, PANELS, Panel, Place, ROWS, Sums, Tiles, sweep};
use super::{Scratch, Task};
use crate::kernels::DType;
use crate::kernels::pool::buffer::Line;
use crate::kernels::simd::x86::{fetch, pinned};
use std::arch::x86_64::*;
use std::hint::black_box;
use std::mem::MaybeUninit;

/// Weight rows whose sums are added up across into lanes.
const LANES: usize = 8;
/// Blocks of a row whose partial sums are kept until eight rows have theirs.
const CHUNK: usize = 16;
/// How many bytes ahead packed rows are asked for.
const AHEAD: usize = 8192;

/// Blocks of a row, and of a token.
#[inline]
pub fn blocks_of(task: &Task) -> usize {
    task.x.cols / 256
}

/// Panics unless the task has blocks of `K` and activations for them.
pub fn check<K: Super>(task: &Task) {
    let (x, blocks) = (task.x, blocks_of(task));
    let count = x.scales.len();
    assert!(x.cols == 256 * blocks && count.is_multiple_of(blocks) && x.values.len() == 256 * count);
    assert!(x.sums.len() == 16 * count && task.row_bytes == blocks * K::BYTES);
    assert!(task.packed.len() == task.rows * task.row_bytes);
}

/// `$call` with the `Super` of a type of super-blocks for `$k`.
macro_rules! with_super {
    ($dtype:expr, $k:ident => $call:expr) => {{
        use crate::kernels::gemm::quantized::k_avx2::*;
        macro_rules! with {
            ($t:ty) => {{
                type $k = $t;
                $call
            }};
        }
        match $dtype {
            DType::Q2_K => with!(Q2_K),
            DType::Q3_K => with!(Q3_K),
            DType::Q4_K => with!(Q4_K),
            DType::Q5_K => with!(Q5_K),
            DType::Q6_K => with!(Q6_K),
            other => panic!("{other:?} has no super-blocks"),
        }
    }};
}
pub(in crate::kernels::gemm) use with_super;

/// The dot products of `task`, whose type is one of super-blocks.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
pub unsafe fn run(task: &Task, scratch: &mut Scratch) {
    // SAFETY: the caller's promise; the lengths are checked.
    with_super!(task.dtype, K => unsafe {
        check::<K>(task);
        if !few_tokens::<K>(task) {
            sweep::<K, Avx2>(task, scratch);
        }
    })
}

/// The dot products of a task with few tokens; false, and nothing done, where unpacking once pays.
///
/// # Safety
/// The machine has AVX2, FMA and F16C; the task's lengths were `check`ed.
pub unsafe fn few_tokens<K: Super>(task: &Task) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        match task.x.tokens() {
            1 => few::<K, 1>(task, 0),
            2 => few::<K, 2>(task, 0),
            3 => few::<K, 3>(task, 0),
            _ => return false,
        }
    }
    true
}

/// A type of super-blocks.
///
/// Its weights are `d * scale * (code - offset)`, or `d * scale * code - dmin * minimum` where it has `MINIMA`.
pub trait Super {
    const BYTES: usize;
    /// Where the bytes that hold codes begin, 32 at each.
    const PACKED: &'static [usize];
    /// Lines of four columns whose pairs of products an i16 lane can add up.
    const STEPS: usize;
    /// Lines of four columns that share a scale.
    const GROUP: usize;
    /// Where the block's f16 scale is, and that of its minima, or the same one again.
    const D: usize;
    const MIN: usize;
    const MINIMA: bool = Self::D != Self::MIN;
    /// What codes are more than the integers they stand for.
    const OFFSET: i16;

    /// i8 of each 16 columns: scales; and minima, where there are such.
    ///
    /// # Safety
    /// The machine has AVX2; BYTES bytes can be read at `block`.
    unsafe fn scales(block: *const u8) -> [__m128i; 2];

    /// Codes of columns 32k.., byte by byte, from the vectors of PACKED.
    ///
    /// # Safety
    /// The machine has AVX2.
    unsafe fn codes(packed: [__m256i; 6]) -> [__m256i; 8];
}

/// The vectors of PACKED.
///
/// # Safety
/// The machine has AVX2; `K::BYTES` bytes can be read at `block`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn packed<K: Super>(block: *const u8) -> [__m256i; 6] {
    let mut vectors = [_mm256_setzero_si256(); 6];
    for (v, at) in K::PACKED.iter().enumerate() {
        // SAFETY: the caller's promise.
        vectors[v] = unsafe { _mm256_loadu_si256(block.add(*at).cast()) };
    }
    vectors
}

macro_rules! super_block {
    ($name:ident, $bytes:literal, $packed:expr, steps $steps:literal, group $group:literal, d $d:literal $min:literal, offset $offset:literal,
     |$block:ident| $scales:expr, |$p:ident| $codes:expr) => {
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

            #[inline]
            #[target_feature(enable = "avx2")]
            unsafe fn scales($block: *const u8) -> [__m128i; 2] {
                // SAFETY: what is read lies in the block's BYTES bytes.
                unsafe { $scales }
            }

            #[inline]
            #[target_feature(enable = "avx2")]
            unsafe fn codes($p: [__m256i; 6]) -> [__m256i; 8] {
                $codes
            }
        }
    };
}

/// Bytes' bits under `mask`. Shifts of 16-bit lanes: what crosses from byte to byte falls to the mask.
#[inline]
#[target_feature(enable = "avx2")]
fn right<const N: i32>(v: __m256i, mask: i8) -> __m256i {
    _mm256_and_si256(_mm256_srli_epi16::<N>(v), _mm256_set1_epi8(mask))
}

#[inline]
#[target_feature(enable = "avx2")]
fn left<const N: i32>(v: __m256i, mask: i8) -> __m256i {
    _mm256_and_si256(_mm256_slli_epi16::<N>(v), _mm256_set1_epi8(mask))
}

/// Two bits at a time of two vectors, low ones first.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs(p: [__m256i; 6]) -> [__m256i; 8] {
    let [a, b] = [p[0], p[1]];
    [
        right::<0>(a, 3),
        right::<2>(a, 3),
        right::<4>(a, 3),
        right::<6>(a, 3),
        right::<0>(b, 3),
        right::<2>(b, 3),
        right::<4>(b, 3),
        right::<6>(b, 3),
    ]
}

/// Four bits at a time of four vectors, low ones first.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(p: [__m256i; 6]) -> [__m256i; 8] {
    let [a, b, c, d, _, _] = p;
    [
        right::<0>(a, 15),
        right::<4>(a, 15),
        right::<0>(b, 15),
        right::<4>(b, 15),
        right::<0>(c, 15),
        right::<4>(c, 15),
        right::<0>(d, 15),
        right::<4>(d, 15),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
fn both(a: [__m256i; 8], b: [__m256i; 8]) -> [__m256i; 8] {
    let mut out = a;
    for k in 0..8 {
        out[k] = _mm256_or_si256(a[k], b[k]);
    }
    out
}

/// Scales and minima of each 32 columns, six bits packed in the 12 bytes at `block + 4`, for each 16 columns.
///
/// # Safety
/// Sixteen bytes can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn scales_and_minima(block: *const u8) -> [__m128i; 2] {
    // SAFETY: the caller's promise.
    let packed = unsafe { _mm_loadu_si128(block.cast()) };
    // Of the three words a, b, c: a, c, b, c >> 4 hold low bits; a and b the high ones of what stands in c.
    let low = _mm_srlv_epi32(_mm_shuffle_epi32::<0b11_10_11_01>(packed), _mm_setr_epi32(0, 0, 0, 4));
    let low = _mm_and_si128(low, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    let high = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(packed));
    let high = _mm_and_si128(high, _mm_setr_epi32(0, 0x30303030, 0, 0x30303030));
    let all = _mm_or_si128(low, high);
    [_mm_unpacklo_epi8(all, all), _mm_unpackhi_epi8(all, all)]
}

super_block!(
    Q2_K,
    84,
    [16, 48],
    steps 4,
    group 4,
    d 80 82,
    offset 0,
    |block| {
        let packed = _mm_loadu_si128(block.cast());
        let low = _mm_set1_epi8(15);
        [_mm_and_si128(packed, low), _mm_and_si128(_mm_srli_epi16::<4>(packed), low)]
    },
    |p| pairs(p)
);
super_block!(
    Q3_K,
    110,
    [32, 64, 0],
    steps 4,
    group 4,
    d 108 108,
    offset 4,
    |block| {
        let packed = _mm_loadl_epi64(block.add(96).cast());
        let mask = _mm_set1_epi8(15);
        let nibbles = [_mm_and_si128(packed, mask), _mm_and_si128(_mm_srli_epi16::<4>(packed), mask)];
        let low = _mm_unpacklo_epi64(nibbles[0], nibbles[1]);
        let high = _mm_set1_epi32(block.add(104).cast::<i32>().read_unaligned());
        let high = _mm_and_si128(_mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
        let scales = _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16::<4>(high)), _mm_set1_epi8(32));
        [scales; 2]
    },
    |p| {
        let m = p[2];
        let third = [
            left::<2>(m, 4),
            left::<1>(m, 4),
            right::<0>(m, 4),
            right::<1>(m, 4),
            right::<2>(m, 4),
            right::<3>(m, 4),
            right::<4>(m, 4),
            right::<5>(m, 4),
        ];
        both(pairs(p), third)
    }
);
super_block!(Q4_K, 144, [16, 48, 80, 112], steps 8, group 8, d 0 2, offset 0, |block| scales_and_minima(block), |p| nibbles(p));
super_block!(
    Q5_K,
    176,
    [48, 80, 112, 144, 16],
    steps 4,
    group 8,
    d 0 2, offset 0,
    |block| scales_and_minima(block),
    |p| {
        let h = p[4];
        let fifth = [
            left::<4>(h, 16),
            left::<3>(h, 16),
            left::<2>(h, 16),
            left::<1>(h, 16),
            right::<0>(h, 16),
            right::<1>(h, 16),
            right::<2>(h, 16),
            right::<3>(h, 16),
        ];
        both(nibbles(p), fifth)
    }
);
super_block!(
    Q6_K,
    210,
    [0, 32, 64, 96, 128, 160],
    steps 2,
    group 4,
    d 208 208,
    offset 32,
    |block| {
        [_mm_loadu_si128(block.add(192).cast()); 2]
    },
    |p| {
        let [a, b, c, d, h, i] = p;
        let low = [
            right::<0>(a, 15),
            right::<0>(b, 15),
            right::<4>(a, 15),
            right::<4>(b, 15),
            right::<0>(c, 15),
            right::<0>(d, 15),
            right::<4>(c, 15),
            right::<4>(d, 15),
        ];
        let high = [
            left::<4>(h, 48),
            left::<2>(h, 48),
            right::<0>(h, 48),
            right::<2>(h, 48),
            left::<4>(i, 48),
            left::<2>(i, 48),
            right::<0>(i, 48),
            right::<2>(i, 48),
        ];
        both(low, high)
    }
);

/// Partial sums of some blocks of eight rows: their lanes are to be added up.
struct Partial<const T: usize> {
    dots: [[[MaybeUninit<__m256i>; LANES]; CHUNK]; T],
    lows: [[[MaybeUninit<__m256i>; LANES]; CHUNK]; T],
    d: [[u16; LANES]; CHUNK],
    min: [[u16; LANES]; CHUNK],
}

/// `T` tokens from `start` on. Rows are read one behind the other, which is what memory is fastest at.
///
/// # Safety
/// The machine has AVX2, FMA and F16C; the task's lengths were `check`ed.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn few<K: Super, const T: usize>(task: &Task, start: usize) {
    let mut part = Partial::<T> {
        dots: [[[MaybeUninit::uninit(); LANES]; CHUNK]; T],
        lows: [[[MaybeUninit::uninit(); LANES]; CHUNK]; T],
        d: [[0; LANES]; CHUNK],
        min: [[0; LANES]; CHUNK],
    };
    for first in (0..task.rows).step_by(LANES) {
        let count = LANES.min(task.rows - first);
        let mut sums = [_mm256_setzero_ps(); T];
        for from in (0..blocks_of(task)).step_by(CHUNK) {
            let blocks = CHUNK.min(blocks_of(task) - from);
            for r in 0..LANES {
                // A group that ends early repeats its last row.
                let row = task.row(first + r.min(count - 1));
                // SAFETY: the blocks lie in the row; the caller's promise.
                unsafe { partial::<K, T>(&row[from * K::BYTES..], task, start, from, blocks, r, &mut part) };
            }
            // SAFETY: all rows' partial sums of `blocks` blocks were written.
            unsafe { add_up::<K, T>(&part, task, start, from, blocks, &mut sums) };
        }
        for t in 0..T {
            let mut values = [0.0; LANES];
            // SAFETY: eight floats.
            unsafe { _mm256_storeu_ps(values.as_mut_ptr(), sums[t]) };
            task.write(start + t, first, &values[..count]);
        }
    }
}

/// Masks that give each half of a vector its word k.
static WORDS: [[i16; 16]; 8] = {
    let mut words = [[0; 16]; 8];
    let mut k = 0;
    while k < 8 {
        words[k] = [0x0100 + 0x0202 * k as i16; 16];
        k += 1;
    }
    words
};

/// Row `r`'s partial sums of `blocks` blocks, the first of which is `from` of the tokens'.
///
/// # Safety
/// As for `few`; `row` begins with `blocks` blocks.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn partial<K: Super, const T: usize>(
    row: &[u8],
    task: &Task,
    start: usize,
    from: usize,
    blocks: usize,
    r: usize,
    part: &mut Partial<T>,
) {
    debug_assert!(row.len() >= blocks * K::BYTES && blocks <= CHUNK && r < LANES);
    // Not known to the compiler: it would make two shuffles of each.
    let words = black_box(&WORDS);
    for b in 0..blocks {
        // SAFETY: block b lies in the row, and its 256 values and 16 sums in each token's.
        unsafe {
            let block = row.as_ptr().add(b * K::BYTES);
            fetch(block.wrapping_add(AHEAD), K::BYTES);
            part.d[b][r] = block.add(K::D).cast::<u16>().read_unaligned();
            part.min[b][r] = block.add(K::MIN).cast::<u16>().read_unaligned();
            let [scales, low] = K::scales(block);
            let low = _mm256_cvtepi8_epi16(low);
            let low = if K::MINIMA { low } else { _mm256_mullo_epi16(low, _mm256_set1_epi16(-K::OFFSET)) };
            // Even ones in the low half, odd ones in the high half: those of vector k are each half's word k.
            let order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
            let scales = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, order));
            let codes = K::codes(packed::<K>(block));
            let mut dots = [_mm256_setzero_si256(); T];
            for t in 0..T {
                let at = (start + t) * blocks_of(task) + from + b;
                let sums = _mm256_loadu_si256(task.x.sums.as_ptr().add(16 * at).cast());
                let lows = _mm256_madd_epi16(low, sums);
                if K::MINIMA {
                    part.lows[t][b][r].write(lows);
                } else {
                    dots[t] = lows;
                }
            }
            for k in 0..8 {
                let scale = _mm256_shuffle_epi8(scales, _mm256_loadu_si256(words[k].as_ptr().cast()));
                for t in 0..T {
                    let at = (start + t) * blocks_of(task) + from + b;
                    let x = _mm256_loadu_si256(task.x.values.as_ptr().add(256 * at + 32 * k).cast());
                    let narrow = _mm256_maddubs_epi16(codes[k], x);
                    dots[t] = pinned(_mm256_add_epi32(dots[t], _mm256_madd_epi16(narrow, scale)));
                }
            }
            for t in 0..T {
                part.dots[t][b][r].write(dots[t]);
            }
        }
    }
}

/// The sum of each vector, in its lane.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn across(v: &[MaybeUninit<__m256i>; LANES]) -> __m256i {
    // SAFETY: the caller has written all.
    let v = unsafe { v.map(|v| v.assume_init()) };
    let [a, b] = [_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3])];
    let [c, d] = [_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7])];
    let [low, high] = [_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)];
    _mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x31>(low, high),
    )
}

/// Adds `blocks` blocks of eight rows to the sums of their dot products, block by block.
///
/// # Safety
/// As for `few`; `part` holds those blocks of all eight rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_up<K: Super, const T: usize>(
    part: &Partial<T>,
    task: &Task,
    start: usize,
    from: usize,
    blocks: usize,
    sums: &mut [__m256; T],
) {
    for b in 0..blocks {
        // SAFETY: eight f16 each; the caller's promise.
        unsafe {
            let d = _mm256_cvtph_ps(_mm_loadu_si128(part.d[b].as_ptr().cast()));
            let min = _mm_loadu_si128(part.min[b].as_ptr().cast());
            let min = _mm256_cvtph_ps(_mm_xor_si128(min, _mm_set1_epi16(i16::MIN)));
            for t in 0..T {
                let scale =
                    _mm256_set1_ps(*task.x.scales.as_ptr().add((start + t) * blocks_of(task) + from + b));
                let dots = _mm256_cvtepi32_ps(across(&part.dots[t][b]));
                sums[t] = _mm256_fmadd_ps(dots, _mm256_mul_ps(d, scale), sums[t]);
                if K::MINIMA {
                    let lows = _mm256_cvtepi32_ps(across(&part.lows[t][b]));
                    sums[t] = _mm256_fmadd_ps(lows, _mm256_mul_ps(min, scale), sums[t]);
                }
            }
        }
    }
}

/// Half of a line.
///
/// # Safety
/// `v` is 0 or 1.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn half(line: &Line, v: usize) -> __m256i {
    // SAFETY: 32 bytes at 32v of 64.
    unsafe { _mm256_load_si256(line.0.as_ptr().add(32 * v).cast()) }
}

/// Four bytes in each lane.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn four<T>(at: *const T) -> __m256i {
    // SAFETY: the caller's promise.
    _mm256_set1_epi32(unsafe { at.cast::<i32>().read_unaligned() })
}

struct Avx2;

impl Tiles for Avx2 {
    const WIDE: bool = false;

    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile<K: Super, const T: usize>(panels: &[Panel; PANELS], place: Place, sums: &mut [Sums]) {
        for b in 0..place.blocks {
            // SAFETY: the caller's promise.
            unsafe {
                place.fetch::<K>(b);
                for (n, panel) in panels.iter().enumerate() {
                    one::<K, T>(panel.block(b), place, b, n, sums);
                }
            }
        }
    }
}

/// Adds block `b` of `T` tokens with panel `n` to their sums.
///
/// # Safety
/// As for `Tiles::tile`; block `b` is one of `place`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn one<K: Super, const T: usize>(block: Block, place: Place, b: usize, n: usize, sums: &mut [Sums]) {
    // SAFETY: the caller's promise.
    unsafe {
        let zero = [[_mm256_setzero_si256(); 2]; T];
        let mut dots = if K::MINIMA { zero } else { lows::<T>(block, place, b) };
        for g in 0..FOURS / K::GROUP {
            for c in (0..K::GROUP).step_by(K::STEPS) {
                let line = g * K::GROUP + c;
                if K::STEPS == 2 {
                    two_lines::<T>(block, place, b, line, &block.scales[g], &mut dots);
                    continue;
                }
                let narrow = narrow::<K, T>(block, place, b, line);
                for v in 0..2 {
                    let scale = half(&block.scales[g], v);
                    for t in 0..T {
                        dots[t][v] =
                            pinned(_mm256_add_epi32(dots[t][v], _mm256_madd_epi16(narrow[t][v], scale)));
                    }
                }
            }
        }
        add::<T>(block.d, &dots, place, b, n, sums);
        if K::MINIMA {
            add::<T>(block.min, &lows::<T>(block, place, b), place, b, n, sums);
        }
    }
}

/// Pairs of products of four columns each, STEPS lines from `line` on.
///
/// # Safety
/// As for `one`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn narrow<K: Super, const T: usize>(
    block: Block,
    place: Place,
    b: usize,
    line: usize,
) -> [[__m256i; 2]; T] {
    let mut narrow = [[_mm256_setzero_si256(); 2]; T];
    for i in 0..K::STEPS {
        // SAFETY: the caller's promise.
        unsafe {
            let w = [half(&block.codes[line + i], 0), half(&block.codes[line + i], 1)];
            for t in 0..T {
                let x = four(place.at(t, b).0.add(4 * (line + i)));
                for v in 0..2 {
                    narrow[t][v] = pinned(_mm256_add_epi16(narrow[t][v], _mm256_maddubs_epi16(w[v], x)));
                }
            }
        }
    }
    narrow
}

/// Adds two lines of codes from `line` on, times their scale.
///
/// # Safety
/// As for `one`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn two_lines<const T: usize>(
    block: Block,
    place: Place,
    b: usize,
    line: usize,
    scale: &Line,
    dots: &mut [[__m256i; 2]; T],
) {
    let lines = [&block.codes[line], &block.codes[line + 1]];
    // SAFETY: the caller's promise.
    unsafe {
        let w = [[half(lines[0], 0), half(lines[1], 0)], [half(lines[0], 1), half(lines[1], 1)]];
        for t in 0..T {
            let at = place.at(t, b).0.add(4 * line);
            let x = [four(at), four(at.add(4))];
            for v in 0..2 {
                let pair = [_mm256_maddubs_epi16(w[v][0], x[0]), _mm256_maddubs_epi16(w[v][1], x[1])];
                let wide = _mm256_madd_epi16(_mm256_add_epi16(pair[0], pair[1]), half(scale, v));
                dots[t][v] = pinned(_mm256_add_epi32(dots[t][v], wide));
            }
        }
    }
}

/// Sums of sixteen columns times their minima, or what stands for them.
///
/// # Safety
/// As for `narrow`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn lows<const T: usize>(block: Block, place: Place, b: usize) -> [[__m256i; 2]; T] {
    let mut lows = [[_mm256_setzero_si256(); 2]; T];
    for (p, line) in block.lows.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let low = [half(line, 0), half(line, 1)];
            for t in 0..T {
                let sums = four(place.at(t, b).2.add(2 * p));
                for v in 0..2 {
                    lows[t][v] = pinned(_mm256_add_epi32(lows[t][v], _mm256_madd_epi16(low[v], sums)));
                }
            }
        }
    }
    lows
}

/// `sums += dots * (d * the token's scale)`, those of panel `n`.
///
/// # Safety
/// As for `one`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add<const T: usize>(
    d: &[f32; ROWS],
    dots: &[[__m256i; 2]; T],
    place: Place,
    b: usize,
    n: usize,
    sums: &mut [Sums],
) {
    for t in 0..T {
        for v in 0..2 {
            // SAFETY: eight floats from 8v on of sixteen; the caller's promise.
            unsafe {
                let scale =
                    _mm256_mul_ps(_mm256_loadu_ps(d.as_ptr().add(8 * v)), _mm256_set1_ps(*place.at(t, b).1));
                let sum = sums[t].0.as_mut_ptr().add(ROWS * n + 8 * v);
                let dot = _mm256_cvtepi32_ps(dots[t][v]);
                _mm256_storeu_ps(sum, _mm256_fmadd_ps(dot, scale, _mm256_loadu_ps(sum)));
            }
        }
    }
}
