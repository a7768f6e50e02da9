//! The ternary product's inner loops on 256-bit registers: AVX2, and AVX-VNNI, which differ in one instruction.
//! `ternary::scalar` says what they compute. With AVX2 and many tokens `sweep` is faster.
//!
//! A register holds bytes of one packed row; the products of its codes with the values of up to four tokens are added
//! up in lanes, and the lanes of eight rows are added up together at a row's end, or at that of a TQ2_0 block. So rows
//! are read as they lie, and nothing is unpacked to memory.
//!
//! Of four codes in a byte the second and fourth stay two bits up, which saves shifts: the sums of their products are
//! four times too large, and are kept apart (`fours`). With `vpmaddubsw` both sums are of i16 lanes. A pair of products
//! is at most 2·8·128 = 2048 in magnitude, and 16 of those, of eight blocks, add up to -32768..=32512.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

/// The kernels of one instruction set. `$add`: `acc` and the products of `codes` (0 to 8) and int8 `x`, added up in
/// its lanes; where that has a long latency, `$one` and `$two` say how many rows it takes with one and two tokens to
/// hide it, and elsewhere one row at a time, which memory likes best. `$total`: eight i32 lanes that have the sum of
/// `ones` and a quarter of `fours`.
macro_rules! kernels {
    (
        $features:literal,
        rows at once $one:literal $two:literal,
        |$acc:ident, $codes:ident, $x:ident| $add:expr,
        |$ones:ident, $fours:ident| $total:expr
    ) => {
        use super::{AHEAD, ROWS, lanes, small_lanes};
        use crate::kernels::DType;
        use crate::kernels::gemm::ternary::Task;
        use crate::kernels::simd::x86::{fetch, load, pinned};
        use std::arch::x86_64::*;

        /// `task` with any number of tokens.
        #[target_feature(enable = $features)]
        pub fn run(task: &Task) {
            let scaled = task.dtype == DType::TQ2_0;
            let tokens = task.x.rows.len();
            for first in (0..tokens).step_by(4) {
                match (tokens - first, scaled) {
                    (1, false) => rows::<1, $one, false>(task, first),
                    (1, true) => rows::<1, $one, true>(task, first),
                    (2, false) => rows::<2, $two, false>(task, first),
                    (2, true) => rows::<2, $two, true>(task, first),
                    (3, false) => rows::<3, 1, false>(task, first),
                    (3, true) => rows::<3, 1, true>(task, first),
                    (_, false) => rows::<4, 1, false>(task, first),
                    (_, true) => rows::<4, 1, true>(task, first),
                }
            }
        }

        /// All rows of `task` with `T` tokens from `start` on, `N` rows at a time.
        #[target_feature(enable = $features)]
        fn rows<const T: usize, const N: usize, const SCALED: bool>(task: &Task, start: usize) {
            let rows = 0..task.rows;
            for first in rows.clone().step_by(ROWS) {
                // Of a group that the block cuts short the surplus results are dropped.
                let w = task.group::<ROWS>(first);
                let x = task.x.values::<T>(start, 0..task.x.cols);
                let values = match SCALED {
                    false => plain::<T, N>(task, first, w, x, start),
                    true => scaled::<T, N>(task, w, x, start),
                };
                for (t, values) in values.iter().enumerate() {
                    task.write(start + t, first, &values[..ROWS.min(rows.end - first)]);
                }
            }
        }

        /// The outputs of eight rows of I2_S codes.
        #[inline]
        #[target_feature(enable = $features)]
        fn plain<const T: usize, const N: usize>(
            task: &Task,
            first: usize,
            w: [&[u8]; ROWS],
            x: [&[i8]; T],
            start: usize,
        ) -> [[f32; ROWS]; T] {
            let bytes = w[0].len();
            assert!(w.iter().all(|w| w.len() == bytes) && x.iter().all(|x| x.len() == 4 * bytes));
            let zero = _mm256_setzero_si256();
            let mut all = [[zero; ROWS]; T];
            for r in (0..ROWS).step_by(N) {
                let w: [*const u8; N] = std::array::from_fn(|n| w[r + n].as_ptr());
                let mut wide = [[zero; N]; T];
                for at in (0..bytes).step_by(256) {
                    if start == 0 {
                        fetch(w[0].wrapping_add(AHEAD + N * at), N * 256);
                    }
                    let mut sums = [[(zero, zero); N]; T];
                    for at in (at..bytes.min(at + 256)).step_by(32) {
                        // SAFETY: 32 bytes at `at` of each row, and 128 values at four times that of each token.
                        unsafe {
                            let w = w.map(|w| w.add(at));
                            multiply::<T, N, true>(w, x.map(|x| x.as_ptr().add(4 * at)), &mut sums);
                        }
                    }
                    for (wide, sums) in wide.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                        *wide = _mm256_add_epi32(*wide, total(*sums));
                    }
                }
                for (all, wide) in all.iter_mut().zip(wide) {
                    all[r..r + N].copy_from_slice(&wide);
                }
            }
            let scales = task.scales::<ROWS>(first);
            std::array::from_fn(|t| {
                let token = task.x.rows[start + t];
                let dots = _mm256_sub_epi32(lanes(all[t]), _mm256_set1_epi32(token.sum));
                let mut values = [0.0; ROWS];
                // SAFETY: eight f32 are read from and written to arrays of eight.
                unsafe {
                    let scale = _mm256_div_ps(_mm256_loadu_ps(scales.as_ptr()), _mm256_set1_ps(token.scale));
                    let product = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), scale);
                    _mm256_storeu_ps(values.as_mut_ptr(), product);
                }
                values
            })
        }

        /// The outputs of eight rows of TQ2_0.
        #[inline]
        #[target_feature(enable = $features)]
        fn scaled<const T: usize, const N: usize>(
            task: &Task,
            w: [&[u8]; ROWS],
            x: [&[i8]; T],
            start: usize,
        ) -> [[f32; ROWS]; T] {
            let blocks = w[0].len() / 66;
            assert!(w.iter().all(|w| w.len() == 66 * blocks) && x.iter().all(|x| x.len() == 256 * blocks));
            let sums: [&[i32]; T] = std::array::from_fn(|t| task.x.sums(start + t));
            assert!(sums.iter().all(|sums| sums.len() == blocks));
            let (w, x) = (w.map(<[u8]>::as_ptr), x.map(<[i8]>::as_ptr));
            let zero = _mm256_setzero_si256();
            let mut totals = [_mm256_setzero_ps(); T];
            for b in 0..blocks {
                if start == 0 {
                    fetch(w[0].wrapping_add(AHEAD + ROWS * 66 * b), ROWS * 66);
                }
                let mut all = [[zero; ROWS]; T];
                for r in (0..ROWS).step_by(N) {
                    let mut own = [[(zero, zero); N]; T];
                    // SAFETY: twice 32 bytes of each row's block of 66, and twice 128 values of each token's 256.
                    unsafe {
                        let mut rows = [w[r]; N];
                        for n in 0..N {
                            rows[n] = w[r + n].add(66 * b);
                        }
                        let x = x.map(|x| x.add(256 * b));
                        multiply::<T, N, false>(rows, x, &mut own);
                        multiply::<T, N, false>(rows.map(|w| w.add(32)), x.map(|x| x.add(128)), &mut own);
                    }
                    for t in 0..T {
                        for n in 0..N {
                            all[t][r + n] = total(own[t][n]);
                        }
                    }
                }
                // SAFETY: two bytes behind each row's codes.
                let scale = unsafe {
                    let half = |r: usize| w[r].add(66 * b + 64).cast::<i16>().read_unaligned();
                    let halves = [half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)];
                    _mm256_cvtph_ps(_mm_loadu_si128(halves.as_ptr().cast()))
                };
                for t in 0..T {
                    let dots = _mm256_sub_epi32(small_lanes(all[t]), _mm256_set1_epi32(sums[t][b]));
                    let value = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), scale);
                    totals[t] = _mm256_add_ps(totals[t], value);
                }
            }
            std::array::from_fn(|t| {
                let mut values = [0.0; ROWS];
                let value = _mm256_div_ps(totals[t], _mm256_set1_ps(task.x.rows[start + t].scale));
                // SAFETY: eight f32 are written to an array of eight.
                unsafe { _mm256_storeu_ps(values.as_mut_ptr(), value) };
                values
            })
        }

        /// Multiplies 128 codes of each of `N` rows, the 32 bytes at `w`, with 128 values of each token at `x`. Bits 0
        /// and 1 of the bytes are the codes of the last 32 values where `REVERSED`, else those of the first.
        ///
        /// # Safety
        /// What is said to be at `w` and `x` can be read.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn multiply<const T: usize, const N: usize, const REVERSED: bool>(
            w: [*const u8; N],
            x: [*const i8; T],
            sums: &mut [[(__m256i, __m256i); N]; T],
        ) {
            let place = |k: usize| if REVERSED { 96 - 32 * k } else { 32 * k };
            for n in 0..N {
                // SAFETY: the caller's promise.
                let planes = super::planes(unsafe { load(w[n]) });
                for t in 0..T {
                    for k in [0, 2] {
                        // SAFETY: the caller's promise: 32 bytes at 0, 32, 64 and 96 of 128.
                        let (a, b) = unsafe { (load(x[t].add(place(k))), load(x[t].add(place(k + 1)))) };
                        let (ones, fours) = sums[t][n];
                        sums[t][n] = (pinned(add(ones, planes[k], a)), pinned(add(fours, planes[k + 1], b)));
                    }
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn add($acc: __m256i, $codes: __m256i, $x: __m256i) -> __m256i {
            $add
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn total(($ones, $fours): (__m256i, __m256i)) -> __m256i {
            $total
        }
    };
}

use crate::kernels::simd::x86::load;
use std::arch::x86_64::*;

pub mod avx2 {
    kernels!(
        "avx2,f16c",
        rows at once 1 1,
        |acc, codes, x| _mm256_add_epi16(acc, _mm256_maddubs_epi16(codes, x)),
        |ones, fours| _mm256_madd_epi16(
            // Exact: each product in `fours` is a multiple of four.
            _mm256_add_epi16(ones, _mm256_srai_epi16::<2>(fours)),
            _mm256_set1_epi16(1)
        )
    );
}

pub mod avx_vnni {
    kernels!(
        "avx2,f16c,avxvnni",
        rows at once 4 2,
        |acc, codes, x| _mm256_dpbusd_avx_epi32(acc, codes, x),
        |ones, fours| _mm256_add_epi32(ones, _mm256_srai_epi32::<2>(fours))
    );
}

/// What AVX-VNNI runs, in AVX-512's encoding: for tests on machines that have only that.
#[cfg(test)]
pub mod avx_vnni_as_avx512 {
    kernels!(
        "avx2,f16c,avx512f,avx512vl,avx512vnni",
        rows at once 4 2,
        |acc, codes, x| _mm256_dpbusd_epi32(acc, codes, x),
        |ones, fours| _mm256_add_epi32(ones, _mm256_srai_epi32::<2>(fours))
    );
}

/// Rows whose lanes are added up together.
const ROWS: usize = 8;
/// How many bytes ahead packed codes are asked for. In the order of memory: several rows at once, each asking for its
/// own next bytes, take three times as long.
pub const AHEAD: usize = 6144;

/// The four codes of each byte, from its low bits up; the second and fourth times four.
#[inline]
#[target_feature(enable = "avx2")]
fn planes(packed: __m256i) -> [__m256i; 4] {
    let (low, high) = (_mm256_set1_epi8(3), _mm256_set1_epi8(12));
    // A shift of 16-bit lanes: what crosses from byte to byte falls to the masks.
    let upper = _mm256_srli_epi16::<4>(packed);
    [
        _mm256_and_si256(packed, low),
        _mm256_and_si256(packed, high),
        _mm256_and_si256(upper, low),
        _mm256_and_si256(upper, high),
    ]
}

/// The sum of all lanes of each vector, in its own lane.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes(v: [__m256i; ROWS]) -> __m256i {
    // Of each half of 128 bits.
    let four = |n: usize| {
        let pair = |a, b| _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (ab, cd) = (pair(v[n], v[n + 1]), pair(v[n + 2], v[n + 3]));
        _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd))
    };
    halves(four(0), four(4))
}

/// As `lanes`, where each lane is at most 8192 in magnitude: of 256 products with -128 at most.
#[inline]
#[target_feature(enable = "avx2")]
fn small_lanes(v: [__m256i; ROWS]) -> __m256i {
    // Pairs of i16 lanes: at most 8192, then 16384.
    let pair = |a, b| _mm256_madd_epi16(_mm256_packs_epi32(a, b), _mm256_set1_epi16(1));
    let four = |n: usize| pair(pair(v[n], v[n + 1]), pair(v[n + 2], v[n + 3]));
    halves(four(0), four(4))
}

/// Lane by lane the two halves of 128 bits of `a`, then those of `b`.
#[inline]
#[target_feature(enable = "avx2")]
fn halves(a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi32(_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b))
}

/// Sums of each 256 values.
#[target_feature(enable = "avx2")]
pub fn block_sums(values: &[i8], sums: &mut [i32]) {
    let ones = _mm256_set1_epi8(1);
    for (sum, block) in sums.iter_mut().zip(values.as_chunks::<256>().0) {
        let mut narrow = _mm256_setzero_si256();
        for v in block.as_chunks::<32>().0 {
            // SAFETY: an array of 32 bytes.
            narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(ones, unsafe { load(v.as_ptr()) }));
        }
        let wide = _mm256_madd_epi16(narrow, _mm256_set1_epi16(1));
        let four = _mm_add_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
        let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
        *sum = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)));
    }
}
