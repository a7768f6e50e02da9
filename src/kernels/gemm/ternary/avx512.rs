//! The ternary product's inner loops with AVX-512 VNNI. `ternary::scalar` says what each computes.
//!
//! Few tokens: as in `x256`, a register holds bytes of one packed row, and lanes are added up at a row's end or
//! at a TQ2_0 block's. More tokens: four bytes of each of sixteen rows lie side by side, so that a lane is a row, and
//! there is nothing to add up; for that the packed bytes of sixteen rows are transposed once for all tokens.
//! `vpdpbusd` adds to i32 lanes, which hold the products of any row that fits in memory.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::x256::AHEAD;
use super::{Activations, Scratch, TASK_ROWS, Task};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::pool::buffer::{Line, floats, grown};
use crate::kernels::simd::x86::fetch;
use crate::kernels::{DType, Pool};
use std::arch::x86_64::*;

/// From this many tokens on, transposed rows pay.
const SWEEP_TOKENS: usize = 8;
/// Rows whose products with up to four tokens fill the registers.
const ROWS: usize = 4;
/// Rows that are transposed together; tokens that sweep over them together.
const LANES: usize = 16;
/// Fewer activations than this are arranged faster than others are woken.
const SMALL: usize = 1 << 17;

const _: () = assert!(TASK_ROWS.is_multiple_of(ROWS));

/// Lines that `arrange` fills.
pub fn arranged_lines(x: &Activations) -> usize {
    match x.rows.len() {
        0..SWEEP_TOKENS => x.rows.len() * x.cols.div_ceil(256) * 4,
        tokens => tokens.div_ceil(LANES) * (x.cols / 4),
    }
}

/// Copies activations into the order that `run` reads them in.
///
/// Few tokens: of each 256 values of a token four lines, line `k` with values `32 k ..` and `128 + 32 k ..`: as their
/// codes lie in 64 bytes. More: for each 16 tokens a line of each four columns, four bytes a token; a group that is cut
/// short repeats its last token.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vnni")]
pub fn arrange(pool: &Pool, x: &Activations, out: &mut [Line]) {
    let tokens = x.rows.len();
    if tokens < SWEEP_TOKENS {
        for (t, out) in out.chunks_exact_mut(out.len() / tokens).enumerate() {
            for (lines, values) in out.as_chunks_mut::<4>().0.iter_mut().zip(x.row(t).chunks(256)) {
                *lines = Default::default();
                for (n, part) in values.chunks_exact(32).enumerate() {
                    let bytes = &mut lines[n % 4].0[n / 4 * 32..][..32];
                    bytes.iter_mut().zip(part).for_each(|(byte, value)| *byte = *value as u8);
                }
            }
        }
        return;
    }
    let lines = x.cols / 4;
    let shared = SharedOut::new(out);
    let one = |tile: usize| {
        // SAFETY: each task has lines of its own.
        let out = unsafe { shared.slice(tile * lines..(tile + 1) * lines) };
        let mut rows = [x.values.as_ptr().cast::<u8>(); LANES];
        for (t, row) in rows.iter_mut().enumerate() {
            *row = x.row((tile * LANES + t).min(tokens - 1)).as_ptr().cast();
        }
        for (n, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            // SAFETY: 16 of a row's columns for each four lines.
            unsafe { transpose(&rows, 16 * n, out) };
        }
    };
    let tiles = tokens.div_ceil(LANES);
    if x.values.len() < SMALL { (0..tiles).for_each(one) } else { pool.run(tiles, &one) }
}

/// `task` with any number of tokens.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub fn run(task: &Task, scratch: &mut Scratch) {
    let scaled = task.dtype == DType::TQ2_0;
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

/// The codes of each byte that come `k`th in the order of columns, of four. TQ2_0 has the first ones in the low bits,
/// I2_S in the high ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn plane<const TQ2: bool>(packed: __m512i, k: usize) -> __m512i {
    // Shifts of 16-bit lanes: what crosses from byte to byte falls to the mask.
    let down = match if TQ2 { k } else { 3 - k } {
        0 => packed,
        1 => _mm512_srli_epi16::<2>(packed),
        2 => _mm512_srli_epi16::<4>(packed),
        _ => _mm512_srli_epi16::<6>(packed),
    };
    _mm512_and_si512(down, _mm512_set1_epi8(3))
}

/// All rows of `task` with `T` tokens from `start` on.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn few<const T: usize, const SCALED: bool>(task: &Task, start: usize) {
    let rows = 0..task.rows;
    let mut values = [[0.0; TASK_ROWS]; T];
    // As the lanes of a group's outputs, `[token, row]`.
    let token = |i: usize| task.x.rows[start + (i / ROWS).min(T - 1)];
    let sums: [i32; LANES] = std::array::from_fn(|i| token(i).sum);
    let scales: [f32; LANES] = std::array::from_fn(|i| token(i).scale);
    // SAFETY: arrays of sixteen.
    let (sums, scales) = unsafe { (loaded(sums.as_ptr().cast(), 0), _mm512_loadu_ps(scales.as_ptr())) };
    for first in (0..rows.len()).step_by(ROWS) {
        // A group that the block cuts short repeats its last row; the surplus results are dropped.
        let row = |r: usize| (rows.start + first + r).min(rows.end - 1);
        let w = [0, 1, 2, 3].map(|r| task.row(row(r)));
        let all = if SCALED {
            _mm512_div_ps(few_scaled::<T>(task, w, start), scales)
        } else {
            let dots = _mm512_cvtepi32_ps(_mm512_sub_epi32(few_plain::<T>(task, w, start), sums));
            let own = [0, 1, 2, 3].map(|r| task.scale(row(r)));
            // SAFETY: an array of four.
            let own = _mm512_broadcast_f32x4(unsafe { _mm_loadu_ps(own.as_ptr()) });
            _mm512_mul_ps(dots, _mm512_div_ps(own, scales))
        };
        let mut group = [0.0; LANES];
        // SAFETY: sixteen f32 are written to an array of sixteen.
        unsafe { _mm512_storeu_ps(group.as_mut_ptr(), all) };
        for (values, group) in values.iter_mut().zip(group.as_chunks::<ROWS>().0) {
            values[first..first + ROWS].copy_from_slice(group);
        }
    }
    for (t, values) in values.iter().enumerate() {
        task.write(start + t, rows.start, &values[..rows.len()]);
    }
}

/// # Safety
/// 64 bytes at `at` of `w` can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn loaded(w: *const u8, at: usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_loadu_si512(w.add(at).cast()) }
}

/// Adds the products of 256 codes of each row with the values of each token at `x`, `stride` lines apart.
///
/// # Safety
/// Four lines at `x` of each token can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn multiply<const T: usize, const TQ2: bool>(
    packed: [__m512i; ROWS],
    x: *const Line,
    stride: usize,
    sums: &mut [[__m512i; ROWS]; T],
) {
    // A plane at a time: with sums of sixteen products there are no more registers.
    for k in 0..4 {
        let mut codes = packed;
        for r in 0..ROWS {
            codes[r] = plane::<TQ2>(packed[r], k);
        }
        for t in 0..T {
            // SAFETY: the caller's promise.
            let x = unsafe { _mm512_loadu_si512(x.add(t * stride + k).cast()) };
            for r in 0..ROWS {
                sums[t][r] = _mm512_dpbusd_epi32(sums[t][r], codes[r], x);
            }
        }
    }
}

/// Dot products of four rows of I2_S codes, `[token, row]`.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vnni")]
fn few_plain<const T: usize>(task: &Task, w: [&[u8]; ROWS], start: usize) -> __m512i {
    let bytes = w[0].len();
    let stride = task.x.cols.div_ceil(256) * 4;
    let x = &task.x.arranged[start * stride..(start + T) * stride];
    assert!(w.iter().all(|w| w.len() == bytes) && stride * 16 >= bytes && bytes.is_multiple_of(32));
    let [a, b, c, d] = w.map(<[u8]>::as_ptr);
    let mut sums = [[_mm512_setzero_si512(); ROWS]; T];
    let whole = bytes / 64 * 64;
    for at in (0..whole).step_by(64) {
        if start == 0 {
            fetch(a.wrapping_add(AHEAD + ROWS * at), ROWS * 64);
        }
        // SAFETY: 64 bytes at `at` of each row, and the four lines for them of each token.
        unsafe {
            let load = [loaded(a, at), loaded(b, at), loaded(c, at), loaded(d, at)];
            multiply::<T, false>(load, x.as_ptr().add(at / 16), stride, &mut sums);
        }
    }
    if whole < bytes {
        // 32 bytes more; the activations behind their columns are zeros.
        // SAFETY: as above, of half as much.
        unsafe {
            let half = |w: *const u8| _mm512_zextsi256_si512(_mm256_loadu_si256(w.add(whole).cast()));
            let load = [half(a), half(b), half(c), half(d)];
            multiply::<T, false>(load, x.as_ptr().add(whole / 16), stride, &mut sums);
        }
    }
    lanes::<T>(sums)
}

/// Of four rows of TQ2_0 and `T` tokens, `[token, row]`: the sums of the scaled dot products of their blocks.
#[inline]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn few_scaled<const T: usize>(task: &Task, w: [&[u8]; ROWS], start: usize) -> __m512 {
    let blocks = w[0].len() / 66;
    let stride = 4 * blocks;
    let x = &task.x.arranged[start * stride..(start + T) * stride];
    let sums: [&[i32]; T] = std::array::from_fn(|t| task.x.sums(start + t));
    assert!(w.iter().all(|w| w.len() == 66 * blocks) && sums.iter().all(|sums| sums.len() == blocks));
    let [p, q, r, s] = w.map(<[u8]>::as_ptr);
    let mut totals = _mm512_setzero_ps();
    for b in 0..blocks {
        if start == 0 {
            fetch(p.wrapping_add(AHEAD + ROWS * 66 * b), ROWS * 66);
        }
        let mut own = [[_mm512_setzero_si512(); ROWS]; T];
        // SAFETY: each row's block of 66 bytes, and the four lines for its codes of each token.
        let scales = unsafe {
            let at = 66 * b;
            let load = [loaded(p, at), loaded(q, at), loaded(r, at), loaded(s, at)];
            multiply::<T, true>(load, x.as_ptr().add(4 * b), stride, &mut own);
            let half = |w: *const u8| w.add(at + 64).cast::<i16>().read_unaligned();
            _mm_cvtph_ps(_mm_setr_epi16(half(p), half(q), half(r), half(s), 0, 0, 0, 0))
        };
        let sum = |t: usize| _mm_set1_epi32(if t < T { sums[t][b] } else { 0 });
        let dots = small_lanes::<T>(own);
        if T == 1 {
            let dots = _mm_sub_epi32(_mm512_castsi512_si128(dots), sum(0));
            let value = _mm_mul_ps(_mm_cvtepi32_ps(dots), scales);
            let total = _mm_add_ps(_mm512_castps512_ps128(totals), value);
            totals = _mm512_castps128_ps512(total);
        } else {
            let low = _mm256_setr_m128i(sum(0), sum(1));
            let high = _mm256_setr_m128i(sum(2), sum(3));
            let sums = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            let dots = _mm512_cvtepi32_ps(_mm512_sub_epi32(dots, sums));
            totals = _mm512_add_ps(totals, _mm512_mul_ps(dots, _mm512_broadcast_f32x4(scales)));
        }
    }
    totals
}

/// The sum of all lanes of each vector, `[token, row]`. The rest of the result is nothing where T is 1.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw")]
fn lanes<const T: usize>(v: [[__m512i; ROWS]; T]) -> __m512i {
    let pair = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let mut quads = [_mm512_setzero_si512(); 4];
    for (quad, [a, b, c, d]) in quads.iter_mut().zip(v) {
        let (ab, cd) = (pair(a, b), pair(c, d));
        *quad = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    quarters::<T>(quads)
}

/// As `lanes`, where each lane is at most 4096 in magnitude: of 256 products with -128 at most.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw")]
fn small_lanes<const T: usize>(v: [[__m512i; ROWS]; T]) -> __m512i {
    // Pairs of i16 lanes: at most 4096, then 8192.
    let pair = |a, b| _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1));
    let mut quads = [_mm512_setzero_si512(); 4];
    for (quad, [a, b, c, d]) in quads.iter_mut().zip(v) {
        *quad = pair(pair(a, b), pair(c, d));
    }
    quarters::<T>(quads)
}

/// Lane by lane the four quarters of each vector, in a quarter of its own.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw")]
fn quarters<const T: usize>(q: [__m512i; 4]) -> __m512i {
    if T == 1 {
        let half = _mm256_add_epi32(_mm512_castsi512_si256(q[0]), _mm512_extracti64x4_epi64::<1>(q[0]));
        let quarter = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
        return _mm512_castsi128_si512(quarter);
    }
    let pair = |a, b| {
        _mm512_add_epi32(
            _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b),
            _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b),
        )
    };
    let (a, b) = (pair(q[0], q[1]), pair(q[2], q[3]));
    _mm512_add_epi32(_mm512_shuffle_i32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b))
}

/// Of 16 bytes at `at` of sixteen rows four lines: each with four bytes of every row.
///
/// # Safety
/// Those bytes can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn transpose(rows: &[*const u8; LANES], at: usize, out: &mut [Line; 4]) {
    let mut fours = [_mm512_setzero_si512(); 4];
    for i in 0..4 {
        // SAFETY: the caller's promise, of rows i, 4 + i, 8 + i and 12 + i.
        unsafe {
            let v = _mm512_castsi128_si512(_mm_loadu_si128(rows[i].add(at).cast()));
            let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(rows[4 + i].add(at).cast()));
            let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(rows[8 + i].add(at).cast()));
            fours[i] = _mm512_inserti32x4::<3>(v, _mm_loadu_si128(rows[12 + i].add(at).cast()));
        }
    }
    let [a, b, c, d] = fours;
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    let columns = [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ];
    for (line, column) in out.iter_mut().zip(columns) {
        // SAFETY: 64 bytes are written to a line.
        unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), column) };
    }
}

/// Transposes sixteen rows at a time and multiplies them with all tokens.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn sweep<const SCALED: bool>(task: &Task, scratch: &mut Scratch) {
    let (cols, tokens, rows) = (task.x.cols, task.x.rows.len(), 0..task.rows);
    let packed = grown(&mut scratch.codes, cols / 16);
    let scales = floats(grown(&mut scratch.scales, if SCALED { cols / 256 } else { 1 }));
    for first in rows.clone().step_by(LANES) {
        // Of a group that the block cuts short the surplus results are dropped.
        let w = task.group::<LANES>(first);
        assert!(w.iter().all(|w| w.len() == if SCALED { cols / 256 * 66 } else { cols / 4 }));
        let rows = w.map(<[u8]>::as_ptr);
        for (n, lines) in packed.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let at = if SCALED { n / 4 * 66 + n % 4 * 16 } else { 16 * n };
            // SAFETY: as long as was just looked at.
            unsafe { transpose(&rows, at, lines) };
        }
        for (b, scales) in scales.iter_mut().enumerate() {
            if !SCALED {
                *scales = task.scales(first);
                continue;
            }
            let mut halves = [0i16; LANES];
            // SAFETY: two bytes behind a block's codes; arrays of sixteen.
            unsafe {
                for (half, row) in halves.iter_mut().zip(rows) {
                    *half = row.add(66 * b + 64).cast::<i16>().read_unaligned();
                }
                let values = _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast()));
                _mm512_storeu_ps(scales.as_mut_ptr(), values);
            }
        }
        for start in (0..tokens).step_by(LANES) {
            let step = Step { task, packed, scales, next: w[LANES - 1], start, first };
            match (tokens - start).div_ceil(4) {
                1 => step.tile::<4, SCALED>(),
                2 => step.tile::<8, SCALED>(),
                3 => step.tile::<12, SCALED>(),
                _ => step.tile::<LANES, SCALED>(),
            }
        }
    }
}

/// Sixteen transposed rows from `first` on, and the tokens that they meet, up to sixteen from `start` on.
struct Step<'a> {
    task: &'a Task<'a>,
    /// Of 16 columns a line, four bytes a row.
    packed: &'a [Line],
    /// Of each block of TQ2_0; of whole rows otherwise.
    scales: &'a [[f32; LANES]],
    /// Behind this, memory has the next rows.
    next: &'a [u8],
    start: usize,
    first: usize,
}

impl Step<'_> {
    /// Asks for `lines` of the next sixteen rows, as far in as `at` is in each of these, and only once.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn prefetch_next(&self, at: usize, lines: usize) {
        if self.start == 0 {
            let from = self.next.as_ptr().wrapping_add(self.next.len() + LANES * at);
            for line in 0..lines {
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(64 * line).cast());
            }
        }
    }

    /// The outputs of `T` tokens, of which the last ones may be repetitions, which are dropped.
    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
    fn tile<const T: usize, const SCALED: bool>(&self) {
        let Self { task, packed, scales, start, first, .. } = *self;
        let tokens = task.x.rows.len();
        let token: [usize; T] = std::array::from_fn(|t| (start + t).min(tokens - 1));
        let lines = task.x.cols / 4;
        let x = &task.x.arranged[start / LANES * lines..][..lines];
        let mut sums = [_mm512_setzero_si512(); T];
        let mut totals = [_mm512_setzero_ps(); T];
        for t in 0..T {
            // Outputs of tokens are far apart, and not in the caches.
            fetch(task.place(start + t, first), 2 * 64);
        }
        if !SCALED {
            let blocks = packed.as_chunks::<8>().0.iter().zip(x.as_chunks::<32>().0);
            for (n, (packed, x)) in blocks.enumerate() {
                self.prefetch_next(32 * n, 8);
                sweep_128::<T, false>(packed, x, &mut sums);
            }
        } else {
            let blocks = packed.as_chunks::<16>().0.iter().zip(x.as_chunks::<64>().0).zip(scales);
            let own = token.map(|t| task.x.sums(t));
            for (b, ((packed, x), scale)) in blocks.enumerate() {
                self.prefetch_next(66 * b, 17);
                block_dots(packed, x, &mut sums);
                // SAFETY: an array of sixteen f32.
                let scale = unsafe { _mm512_loadu_ps(scale.as_ptr()) };
                for t in 0..T {
                    let dots = _mm512_sub_epi32(sums[t], _mm512_set1_epi32(own[t][b]));
                    totals[t] = _mm512_add_ps(totals[t], _mm512_mul_ps(_mm512_cvtepi32_ps(dots), scale));
                }
            }
        }
        let count = LANES.min(task.rows - first);
        for t in 0..T.min(tokens - start) {
            let row = task.x.rows[start + t];
            let scale = _mm512_set1_ps(row.scale);
            let mut values = [0.0; LANES];
            // SAFETY: arrays of sixteen f32.
            unsafe {
                let value = if SCALED {
                    _mm512_div_ps(totals[t], scale)
                } else {
                    let dots = _mm512_sub_epi32(sums[t], _mm512_set1_epi32(row.sum));
                    let scale = _mm512_div_ps(_mm512_loadu_ps(scales[0].as_ptr()), scale);
                    _mm512_mul_ps(_mm512_cvtepi32_ps(dots), scale)
                };
                _mm512_storeu_ps(values.as_mut_ptr(), value);
            }
            task.write(start + t, first, &values[..count]);
        }
    }
}

/// Dot products of a TQ2_0 block of sixteen rows with `T` tokens. A function of its own: sums stay in registers, and
/// what is kept from block to block does not.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn block_dots<const T: usize>(packed: &[Line; 16], x: &[Line; 64], sums: &mut [__m512i; T]) {
    let mut own = [_mm512_setzero_si512(); T];
    for (packed, x) in packed.as_chunks::<8>().0.iter().zip(x.as_chunks::<32>().0) {
        sweep_128::<T, true>(packed, x, &mut own);
    }
    *sums = own;
}

/// Adds the products of 128 columns of sixteen rows with `T` tokens.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn sweep_128<const T: usize, const TQ2: bool>(packed: &[Line; 8], x: &[Line; 32], sums: &mut [__m512i; T]) {
    for (j, line) in packed.iter().enumerate() {
        // SAFETY: a line.
        let packed = unsafe { _mm512_load_si512(line.0.as_ptr().cast()) };
        for k in 0..4 {
            let codes = plane::<TQ2>(packed, k);
            let x = x[8 * k + j].0.as_ptr().cast::<i32>();
            for t in 0..T {
                // SAFETY: T is 16 at most, and a line has sixteen i32.
                let x = unsafe { _mm512_set1_epi32(*x.add(t)) };
                sums[t] = _mm512_dpbusd_epi32(sums[t], codes, x);
            }
        }
    }
}
