//! The ternary product's inner loops with AVX2. `ternary::scalar` says what each computes.
//!
//! `vpmaddubsw` multiplies codes 0..=2 with int8 and adds pairs: at most 2·2·128 = 512 in magnitude, far from where it
//! saturates. 64 of them add up to -32768..=32512, which an i16 lane holds; then they are widened to i32.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::DType;
use super::quantize::QuantRow;
use super::ternary::{Line, Packed, Scratch, Task, grown};
use std::arch::x86_64::*;

/// From this many tokens on, unpacked codes pay for being written.
const SWEEP_TOKENS: usize = 4;
/// Weight rows that are unpacked together and swept over the tokens: two vectors of eight.
const LANES: usize = 16;
/// Columns that are unpacked at once: their codes take half of the first-level cache. A multiple of 256.
const DEPTH: usize = 1024;
/// How many bytes ahead packed codes are asked for.
const AHEAD: usize = 1024;
/// Tokens that share the loads of codes.
const TILE: usize = 4;

/// # Safety
/// 32 bytes at `at` can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load<T>(at: *const T) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// Pairs of i16 to i32.
#[inline]
#[target_feature(enable = "avx2")]
fn widen(narrow: __m256i) -> __m256i {
    _mm256_madd_epi16(narrow, _mm256_set1_epi16(1))
}

/// The upper half added to the lower.
#[inline]
#[target_feature(enable = "avx2")]
fn fold(v: __m256i) -> __m128i {
    _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v))
}

/// `task` with any number of tokens.
#[target_feature(enable = "avx2,f16c")]
pub fn run(task: &Task, scratch: &mut Scratch) {
    let scaled = task.weights.dtype == DType::TQ2_0;
    let tokens = task.x.rows.len();
    if tokens >= SWEEP_TOKENS {
        return if scaled { sweep::<true>(task, scratch) } else { sweep::<false>(task, scratch) };
    }
    for first in (0..tokens).step_by(4) {
        match (tokens - first, scaled) {
            (1, false) => few::<1, false>(task, first),
            (1, true) => few::<1, true>(task, first),
            (2, false) => few::<2, false>(task, first),
            (2, true) => few::<2, true>(task, first),
            (3, false) => few::<3, false>(task, first),
            (3, true) => few::<3, true>(task, first),
            (_, false) => few::<4, false>(task, first),
            (_, true) => few::<4, true>(task, first),
        }
    }
}

#[target_feature(enable = "avx2")]
pub fn block_sums(values: &[i8], sums: &mut [i32]) {
    let ones = _mm256_set1_epi8(1);
    for (sum, block) in sums.iter_mut().zip(values.as_chunks::<256>().0) {
        let mut narrow = _mm256_setzero_si256();
        for v in block.as_chunks::<32>().0 {
            // SAFETY: an array of 32 bytes.
            narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(ones, unsafe { load(v.as_ptr()) }));
        }
        let four = fold(widen(narrow));
        let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
        *sum = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)));
    }
}

/// `T` tokens from `start` on. Works on the packed codes: few tokens do not repay unpacking. Rows are read one behind the other, which is what
/// memory is fastest at.
#[target_feature(enable = "avx2,f16c")]
fn few<const T: usize, const SCALED: bool>(task: &Task, start: usize) {
    let x: [&[i8]; T] = std::array::from_fn(|t| task.x.row(start + t));
    let sums: [&[i32]; T] = std::array::from_fn(|t| if SCALED { task.sums(start + t) } else { &[] });
    let rows = task.block.rows.clone();
    for first in rows.clone().step_by(4) {
        let count = (rows.end - first).min(4);
        let mut values = [[0.0f32; 4]; T];
        if SCALED {
            for r in 0..count {
                let totals = packed_scaled(task.weights.row(first + r), x, sums);
                for t in 0..T {
                    values[t][r] = totals[t] / task.x.rows[start + t].scale;
                }
            }
        } else {
            let mut wide = [[_mm256_setzero_si256(); 4]; T];
            let mut scales = [0.0; 4];
            for r in 0..count {
                let dots = packed_dots(task.weights.row(first + r), x);
                for t in 0..T {
                    wide[t][r] = dots[t];
                }
                scales[r] = task.weights.scale(first + r);
            }
            for (t, (values, wide)) in values.iter_mut().zip(wide).enumerate() {
                *values = four_values(wide, task.x.rows[start + t], scales);
            }
        }
        for (t, values) in values.iter().enumerate() {
            task.write(start + t, first, &values[..count]);
        }
    }
}

/// The outputs of four rows from their dot products, lane by lane.
#[inline]
#[target_feature(enable = "avx2")]
fn four_values(v: [__m256i; 4], token: QuantRow, scales: [f32; 4]) -> [f32; 4] {
    let dots = fold(_mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3])));
    let dots = _mm_cvtepi32_ps(_mm_sub_epi32(dots, _mm_set1_epi32(token.sum)));
    let mut values = [0.0; 4];
    // SAFETY: four f32 are read from and written to arrays of four.
    unsafe {
        let scale = _mm_div_ps(_mm_loadu_ps(scales.as_ptr()), _mm_set1_ps(token.scale));
        _mm_storeu_ps(values.as_mut_ptr(), _mm_mul_ps(dots, scale));
    }
    values
}

/// The running sums of one packed row and one token. In `fours` every product is four times too large.
#[derive(Clone, Copy)]
struct Sums {
    ones: __m256i,
    fours: __m256i,
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn zero() -> Self {
        Self { ones: _mm256_setzero_si256(), fours: _mm256_setzero_si256() }
    }

    /// Adds `fours` to `ones`, exactly: each of its products is a multiple of four.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn merge(&mut self) {
        self.ones = _mm256_add_epi16(self.ones, _mm256_srai_epi16::<2>(self.fours));
        self.fours = _mm256_setzero_si256();
    }
}

/// Multiplies 128 codes, the 32 bytes at `w`, with 128 values of each token at `x`. Bits 0 and 1 of the bytes are
/// the codes of the last 32 values where `REVERSED`, else those of the first.
///
/// Of four codes the second and fourth stay two bits up in their byte, which saves a shift: pairs of them are at most
/// 2·8·128 = 2048 in magnitude, and 16 of those, of eight calls, add up to -32768..=32512.
///
/// # Safety
/// What is said to be at `w` and `x` can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn multiply<const T: usize, const REVERSED: bool>(
    w: *const u8,
    x: [*const i8; T],
    sums: &mut [Sums; T],
) {
    let (low, high) = (_mm256_set1_epi8(3), _mm256_set1_epi8(12));
    let place = |k: usize| if REVERSED { 96 - 32 * k } else { 32 * k };
    // SAFETY: the caller's promise.
    let packed = unsafe { load(w) };
    // A shift of 16-bit lanes: what crosses from byte to byte falls to the masks.
    let upper = _mm256_srli_epi16::<4>(packed);
    let codes = [
        _mm256_and_si256(packed, low),
        _mm256_and_si256(packed, high),
        _mm256_and_si256(upper, low),
        _mm256_and_si256(upper, high),
    ];
    for t in 0..T {
        let Sums { ones, fours } = &mut sums[t];
        for k in [0, 2] {
            // SAFETY: the caller's promise: 32 bytes at 0, 32, 64 and 96 of 128.
            let (a, b) = unsafe { (load(x[t].add(place(k))), load(x[t].add(place(k + 1)))) };
            *ones = _mm256_add_epi16(*ones, _mm256_maddubs_epi16(codes[k], a));
            *fours = _mm256_add_epi16(*fours, _mm256_maddubs_epi16(codes[k + 1], b));
        }
    }
}

/// Asks for the cache line of what is read later.
#[inline]
#[target_feature(enable = "avx2")]
fn prefetch(w: *const u8) {
    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(AHEAD).cast());
}

/// `code · x` of a row of I2_S codes with tokens of four times as many values; the lanes of each are to be added up.
#[inline]
#[target_feature(enable = "avx2")]
fn packed_dots<const T: usize>(w: &[u8], x: [&[i8]; T]) -> [__m256i; T] {
    assert!(x.iter().all(|x| x.len() == 4 * w.len()));
    let mut wide = [_mm256_setzero_si256(); T];
    for (n, w) in w.chunks(512).enumerate() {
        let mut sums = [Sums::zero(); T];
        for (m, w) in w.chunks(256).enumerate() {
            let x = x.map(|x| x[2048 * n + 1024 * m..].as_ptr());
            for (b, w) in w.as_chunks::<32>().0.iter().enumerate() {
                prefetch(w.as_ptr());
                // SAFETY: a whole block, and the 128 values of each token where it is.
                unsafe { multiply::<T, true>(w.as_ptr(), x.map(|x| x.add(128 * b)), &mut sums) };
            }
            sums.iter_mut().for_each(|s| s.merge());
        }
        for (wide, sums) in wide.iter_mut().zip(sums) {
            *wide = _mm256_add_epi32(*wide, widen(sums.ones));
        }
    }
    wide
}

/// `Σ over blocks of (code · x - sum) * scale` of a row of TQ2_0 codes, 66 bytes for each 256 values of a token, with
/// the tokens' `sums` of each block.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn packed_scaled<const T: usize>(w: &[u8], x: [&[i8]; T], sums: [&[i32]; T]) -> [f32; T] {
    let mut total = [0.0; T];
    let (fours, rest) = w.as_chunks::<66>().0.as_chunks::<4>();
    for (n, w) in fours.iter().enumerate() {
        add_blocks(w.each_ref(), x.map(|x| &x[1024 * n..]), sums.map(|s| &s[4 * n..]), &mut total);
    }
    let done = 4 * fours.len();
    let (x, sums) = (x.map(|x| &x[256 * done..]), sums.map(|s| &s[done..]));
    match rest {
        [] => {}
        [a] => add_blocks([a], x, sums, &mut total),
        [a, b] => add_blocks([a, b], x, sums, &mut total),
        [a, b, c] => add_blocks([a, b, c], x, sums, &mut total),
        _ => unreachable!("a rest of four"),
    }
    total
}

/// The next `N` blocks of `packed_scaled`, up to four.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn add_blocks<const N: usize, const T: usize>(
    w: [&[u8; 66]; N],
    x: [&[i8]; T],
    sums: [&[i32]; T],
    total: &mut [f32; T],
) {
    let zero = _mm256_setzero_si256();
    let x = x.map(|x| x[..256 * N].as_ptr());
    let mut dots = [[zero; 4]; T];
    for line in 0..=N {
        prefetch(w[0].as_ptr().wrapping_add(64 * line));
    }
    for b in 0..N {
        let x = x.map(|x| x.wrapping_add(256 * b));
        let mut sums = [Sums::zero(); T];
        // SAFETY: twice 32 bytes of 66, and twice 128 values of each token's 256 of this block.
        unsafe {
            multiply::<T, false>(w[b].as_ptr(), x, &mut sums);
            multiply::<T, false>(w[b].as_ptr().add(32), x.map(|x| x.add(128)), &mut sums);
        }
        for (dots, sums) in dots.iter_mut().zip(&mut sums) {
            sums.merge();
            dots[b] = sums.ones;
        }
    }
    let scale = |b: usize| if b < N { i16::from_le_bytes([w[b][64], w[b][65]]) } else { 0 };
    let scale = _mm_cvtph_ps(_mm_setr_epi16(scale(0), scale(1), scale(2), scale(3), 0, 0, 0, 0));
    for t in 0..T {
        // Each lane holds 16 products, at most 4096 in magnitude; eight times that is -32768..=32512.
        let [a, b, c, d] = dots[t];
        let pairs = _mm256_hadd_epi16(_mm256_hadd_epi16(a, b), _mm256_hadd_epi16(c, d));
        let own = &sums[t][..N];
        let sum = |b: usize| if b < N { own[b] } else { 0 };
        let dots = _mm_sub_epi32(fold(widen(pairs)), _mm_setr_epi32(sum(0), sum(1), sum(2), sum(3)));
        let mut values = [0.0f32; 4];
        // SAFETY: four f32 are written to an array of four.
        unsafe { _mm_storeu_ps(values.as_mut_ptr(), _mm_mul_ps(_mm_cvtepi32_ps(dots), scale)) };
        values[..N].iter().for_each(|v| total[t] += v);
    }
}

/// Unpacks `LANES` rows at a time, `DEPTH` columns of them, and multiplies those with all tokens.
#[target_feature(enable = "avx2,f16c")]
fn sweep<const SCALED: bool>(task: &Task, scratch: &mut Scratch) {
    let (cols, tokens, rows) = (task.x.cols, task.x.rows.len(), task.block.rows.clone());
    let codes = grown(&mut scratch.codes, DEPTH.min(cols) / 4);
    let partial = grown(&mut scratch.partial, tokens);
    let scales = grown(&mut scratch.scales, if SCALED { cols / 256 * LANES } else { LANES });
    for first in rows.clone().step_by(LANES) {
        // A group that the block cuts short repeats its last row; the surplus results are dropped.
        let row = |r: usize| (first + r).min(rows.end - 1);
        let w: [&[u8]; LANES] = std::array::from_fn(|r| task.weights.row(row(r)));
        fill_scales::<SCALED>(&task.weights, row, scales);
        partial.fill(Line::default());
        for start in (0..cols).step_by(DEPTH) {
            let depth = DEPTH.min(cols - start);
            let codes = &mut codes[..depth / 4];
            unpack::<SCALED>(w, start, codes);
            for (n, partial) in partial.chunks_mut(TILE).enumerate() {
                let step = Step { task, codes, scales, start, first: n * TILE };
                match partial {
                    [a] => step.tile::<1, SCALED>([a]),
                    [a, b] => step.tile::<2, SCALED>([a, b]),
                    [a, b, c] => step.tile::<3, SCALED>([a, b, c]),
                    [a, b, c, d] => step.tile::<TILE, SCALED>([a, b, c, d]),
                    _ => unreachable!("a chunk of tokens"),
                }
            }
        }
        for (t, partial) in partial.iter().enumerate() {
            let values = finish::<SCALED>(task, t, partial, scales);
            task.write(t, first, &values[..LANES.min(rows.end - first)]);
        }
    }
}

/// `[LANES]` scales of rows, or `[blocks, LANES]` of TQ2_0 blocks.
fn fill_scales<const SCALED: bool>(weights: &Packed, row: impl Fn(usize) -> usize, scales: &mut [f32]) {
    for r in 0..LANES {
        if !SCALED {
            scales[r] = weights.scale(row(r));
            continue;
        }
        let blocks = weights.row(row(r)).as_chunks::<66>().0;
        for (scales, block) in scales.as_chunks_mut::<LANES>().0.iter_mut().zip(blocks) {
            scales[r] = half::f16::from_le_bytes([block[64], block[65]]).to_f32();
        }
    }
}

/// The outputs of token `t` from its dot products.
#[target_feature(enable = "avx2")]
fn finish<const SCALED: bool>(task: &Task, t: usize, partial: &Line, scales: &[f32]) -> [f32; LANES] {
    let token = task.x.rows[t];
    let scales: &[f32; LANES] = scales.first_chunk().expect("scales of a group");
    let mut values = [0.0; LANES];
    for v in 0..2 {
        // SAFETY: 32 bytes at 32v of 64, and 8 of 16 elements at 8v.
        unsafe {
            let at = partial.0.as_ptr().add(32 * v);
            let value = if SCALED {
                _mm256_div_ps(_mm256_loadu_ps(at.cast()), _mm256_set1_ps(token.scale))
            } else {
                let dots = _mm256_sub_epi32(load(at), _mm256_set1_epi32(token.sum));
                let scale = _mm256_loadu_ps(scales.as_ptr().add(8 * v));
                _mm256_mul_ps(_mm256_cvtepi32_ps(dots), _mm256_div_ps(scale, _mm256_set1_ps(token.scale)))
            };
            _mm256_storeu_ps(values.as_mut_ptr().add(8 * v), value);
        }
    }
    values
}

/// Rows of eight 32-bit lanes to columns.
#[inline]
#[target_feature(enable = "avx2")]
pub fn transpose(v: [__m256i; 8]) -> [__m256i; 8] {
    let pairs: [[__m256i; 2]; 4] =
        [0, 2, 4, 6].map(|n| [_mm256_unpacklo_epi32(v[n], v[n + 1]), _mm256_unpackhi_epi32(v[n], v[n + 1])]);
    // Columns c and c + 4 of four rows.
    let fours: [[__m256i; 4]; 2] = [0, 2].map(|n| {
        let [[a, b], [c, d]] = [pairs[n], pairs[n + 1]];
        [
            _mm256_unpacklo_epi64(a, c),
            _mm256_unpackhi_epi64(a, c),
            _mm256_unpacklo_epi64(b, d),
            _mm256_unpackhi_epi64(b, d),
        ]
    });
    std::array::from_fn(|c| {
        let (a, b) = (fours[0][c % 4], fours[1][c % 4]);
        if c < 4 { _mm256_permute2x128_si256::<0x20>(a, b) } else { _mm256_permute2x128_si256::<0x31>(a, b) }
    })
}

/// Columns `start..` of packed rows as codes: line n holds those of four columns, `start + 4 n ..`, row by row.
#[target_feature(enable = "avx2")]
fn unpack<const TQ2: bool>(w: [&[u8]; LANES], start: usize, codes: &mut [Line]) {
    let end = start + 4 * codes.len();
    let bytes = if TQ2 { end.div_ceil(256) * 66 } else { end / 4 };
    assert!(w.iter().all(|w| w.len() >= bytes) && start.is_multiple_of(256) && end.is_multiple_of(128));
    let mask = _mm256_set1_epi8(3);
    for (n, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let block = start / 128 + n;
        let at = if TQ2 { block / 2 * 66 + block % 2 * 32 } else { block * 32 };
        // As much of the next rows as is used of these: memory is fastest in its own order.
        let next = w[0].as_ptr().wrapping_add(LANES * (w[0].len() + at));
        for line in 0..=LANES / 2 {
            _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(64 * line).cast());
        }
        for v in 0..2 {
            // SAFETY: at + 32 <= bytes, which every row has.
            let rows = std::array::from_fn(|r| unsafe { load(w[8 * v + r].as_ptr().add(at)) });
            for (j, packed) in transpose(rows).into_iter().enumerate() {
                // Shifts of 16-bit lanes: what crosses from byte to byte falls to the mask.
                let planes = [
                    _mm256_and_si256(packed, mask),
                    _mm256_and_si256(_mm256_srli_epi16::<2>(packed), mask),
                    _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask),
                    _mm256_and_si256(_mm256_srli_epi16::<6>(packed), mask),
                ];
                for (k, plane) in planes.into_iter().enumerate() {
                    let line = 8 * (if TQ2 { k } else { 3 - k }) + j;
                    // SAFETY: 32 bytes at 32v of 64.
                    unsafe { _mm256_storeu_si256(codes[line].0.as_mut_ptr().add(32 * v).cast(), plane) };
                }
            }
        }
    }
}

/// Unpacked codes of columns `start..` and the tokens `first..` that they meet.
#[derive(Clone, Copy)]
struct Step<'a> {
    task: &'a Task<'a>,
    codes: &'a [Line],
    scales: &'a [f32],
    start: usize,
    first: usize,
}

impl Step<'_> {
    /// Adds to the dot products of `T` tokens, 256 columns at a time.
    #[target_feature(enable = "avx2")]
    fn tile<const T: usize, const SCALED: bool>(&self, partial: [&mut Line; T]) {
        let x: [&[i8]; T] = std::array::from_fn(|t| {
            &self.task.x.row(self.first + t)[self.start..self.start + 4 * self.codes.len()]
        });
        for (b, codes) in self.codes.chunks(64).enumerate() {
            // SAFETY: 256 values at 256 b, or as many as there are codes, of each token.
            let narrow = unsafe { narrow_dots(codes, x.map(|x| x.as_ptr().add(256 * b))) };
            let block = self.start / 256 + b;
            for t in 0..T {
                for v in 0..2 {
                    let dots = widen(narrow[t][v]);
                    let at = partial[t].0.as_mut_ptr();
                    // SAFETY: 32 bytes at 32v of 64.
                    unsafe {
                        let at = at.add(32 * v);
                        if SCALED {
                            let sum = self.task.sums(self.first + t)[block];
                            let dots = _mm256_sub_epi32(dots, _mm256_set1_epi32(sum));
                            let scales = &self.scales[LANES * block + 8 * v..][..8];
                            let scale = _mm256_loadu_ps(scales.as_ptr());
                            let value = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), scale);
                            let at = at.cast::<f32>();
                            _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), value));
                        } else {
                            _mm256_storeu_si256(at.cast(), _mm256_add_epi32(load(at), dots));
                        }
                    }
                }
            }
        }
    }
}

/// Of at most 64 lines of codes: i16 lanes add up 64 pairs of products at most, two lanes for each row.
///
/// # Safety
/// Four values for each line can be read at each x.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn narrow_dots<const T: usize>(codes: &[Line], x: [*const i8; T]) -> [[__m256i; 2]; T] {
    let mut narrow = [[_mm256_setzero_si256(); 2]; T];
    // Four lines a round, of the 32 or 64: the loop itself costs instructions.
    for (n, lines) in codes.as_chunks::<4>().0.iter().enumerate() {
        for (i, line) in lines.iter().enumerate() {
            // SAFETY: a line's 64 bytes, and the caller's promise.
            unsafe {
                let w = [load(line.0.as_ptr()), load(line.0.as_ptr().add(32))];
                for t in 0..T {
                    let a = _mm256_set1_epi32(x[t].add(16 * n + 4 * i).cast::<i32>().read_unaligned());
                    for v in 0..2 {
                        narrow[t][v] = _mm256_add_epi16(narrow[t][v], _mm256_maddubs_epi16(w[v], a));
                    }
                }
            }
        }
    }
    narrow
}
