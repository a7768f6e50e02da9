//! Few tokens with super-blocks on AVX2: rows are unpacked in registers, a block's partial sums stored, and eight rows'
//! added up across into lanes, so that each row's f32 sum has its order.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::blocks_of;
use crate::kernels::gemm::formats::super_blocks::{Super, packed};
use crate::kernels::gemm::quantized::Task;
use crate::kernels::simd::x86::{fetch, loaded, pinned};
use std::arch::x86_64::*;
use std::hint::black_box;
use std::mem::MaybeUninit;

/// Weight rows whose sums are added up across into lanes.
const LANES: usize = 8;
/// Blocks of a row whose partial sums are kept until eight rows have theirs.
const CHUNK: usize = 16;
/// How many bytes ahead packed rows are asked for.
const AHEAD: usize = 8192;

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
pub unsafe fn few<K: Super, const T: usize>(task: &Task) {
    let start = 0;
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
            let [scales, low] = K::scales(std::slice::from_raw_parts(block, K::BYTES));
            let (scales, low) = (loaded(&scales), loaded(&low));
            let low = _mm256_cvtepi8_epi16(low);
            let low = if K::MINIMA { low } else { _mm256_mullo_epi16(low, _mm256_set1_epi16(-K::OFFSET)) };
            // Even ones in the low half, odd ones in the high half: those of vector k are each half's word k.
            let order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
            let scales = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, order));
            let codes = K::codes::<__m256i>(packed::<K, _>(block));
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
