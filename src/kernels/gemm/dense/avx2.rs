//! The dense product's inner loops with AVX2, FMA and F16C: each dot product in the order of `dense::dot`.
//!
//! Few tokens: weights are decoded in registers and multiplied at once. More tokens: rows become f32 once, in a
//! panel, and tiles of rows and tokens share what they load.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::{LANES, Put};
use crate::kernels::DType;
use crate::kernels::gemm::formats::avx2::{Packed, each_sixteen, fetch, row_and_fetch, tail, with_packed};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Tokens that one decoding of a row serves in registers.
pub const FUSED: usize = 4;
/// Rows and tokens of a tile at most: 12 sums, three weights and an activation are all registers.
const TILE: usize = 3;
const TOKENS: usize = 4;
/// Rows and columns of a panel of f32 weights, which fills a third of the first cache beside TOKENS activations.
const ROWS: usize = 6;
const PART: usize = 512;
/// Tokens that a panel is swept over.
const BLOCK: usize = 128;
const PANEL: usize = ROWS * PART;
const SUMS: usize = BLOCK * ROWS * LANES;
/// Floats that `swept` needs for both, and to align them.
pub const SCRATCH: usize = PANEL + SUMS + LANES;

/// Some rows of a matrix as the file packs them.
#[derive(Clone, Copy)]
pub struct PackedRows<'a> {
    pub dtype: DType,
    pub bytes: &'a [u8],
    /// Bytes from row to row.
    pub stride: usize,
    pub rows: usize,
    pub cols: usize,
}

/// `out[t, r] = x[t] · w[r]`; `x` is `[1..=FUSED, cols]`, `out` `[tokens, rows]`. False, and nothing done, for a type
/// without a decoder.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
pub unsafe fn fused(w: PackedRows, x: &[f32], out: &mut [f32]) -> bool {
    let PackedRows { dtype, bytes, stride, rows, cols } = w;
    with_packed!(dtype, P => {
        assert!(stride == cols / P::ELEMENTS * P::BYTES + cols % P::ELEMENTS * P::BYTES / P::ELEMENTS);
        assert!(bytes.len() == rows * stride && x.len().is_multiple_of(cols) && out.len() == x.len() / cols * rows);
        // SAFETY: the caller's promise; the lengths are as the callees want.
        unsafe {
            match x.len() / cols {
                1 => strips::<P, 4, 1>(bytes, stride, cols, x, rows, out),
                2 => strips::<P, 2, 2>(bytes, stride, cols, x, rows, out),
                3 if P::ELEMENTS == 16 => strips::<P, 2, 3>(bytes, stride, cols, x, rows, out),
                // What decodes more has fewer registers left for sums.
                3 => strips::<P, 1, 3>(bytes, stride, cols, x, rows, out),
                4 => strips::<P, 1, 4>(bytes, stride, cols, x, rows, out),
                n => unreachable!("{n} tokens at once"),
            }
        }
    })
    .is_some()
}

/// All rows, R at a time while there are as many.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn strips<P: Packed, const R: usize, const N: usize>(
    w: &[u8],
    stride: usize,
    cols: usize,
    x: &[f32],
    rows: usize,
    out: &mut [f32],
) {
    let mut first = 0;
    while first < rows {
        let w = &w[first * stride..];
        // SAFETY: `fused` checked the lengths; `first` + R or 1 rows are there.
        unsafe {
            if first + R <= rows {
                strip::<P, R, N>(w, stride, cols, x, &mut out[first..], rows);
                first += R;
            } else {
                strip::<P, 1, N>(w, stride, cols, x, &mut out[first..], rows);
                first += 1;
            }
        }
    }
}

/// R rows with N tokens; token t's results go to `out[t * width..]`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn strip<P: Packed, const R: usize, const N: usize>(
    w: &[u8],
    stride: usize,
    cols: usize,
    x: &[f32],
    out: &mut [f32],
    width: usize,
) {
    debug_assert!(w.len() >= R * stride && x.len() == N * cols);
    let blocks = cols / P::ELEMENTS;
    let mut sums = [[[_mm256_setzero_ps(); 2]; R]; N];
    for b in 0..blocks {
        // SAFETY: block b of R rows and its elements of N tokens are there. What is prefetched need not be.
        unsafe {
            let block: [*const u8; R] = std::array::from_fn(|r| w.as_ptr().add(r * stride + b * P::BYTES));
            for block in block {
                fetch::<P>(block.wrapping_add(R * stride));
            }
            // In a loop, not in a closure, which would not be inlined.
            let mut scales = [const { MaybeUninit::uninit() }; R];
            for r in 0..R {
                scales[r].write(P::scales(block[r]));
            }
            each_sixteen!(P, n, {
                for r in 0..R {
                    let w = P::sixteen(block[r], scales[r].assume_init_ref(), n);
                    for t in 0..N {
                        let x = x.as_ptr().add(t * cols + b * P::ELEMENTS + LANES * n);
                        sums[t][r][0] = _mm256_fmadd_ps(_mm256_loadu_ps(x), w[0], sums[t][r][0]);
                        sums[t][r][1] = _mm256_fmadd_ps(_mm256_loadu_ps(x.add(8)), w[1], sums[t][r][1]);
                    }
                }
            });
        }
    }
    let whole = blocks * P::ELEMENTS;
    for r in 0..R {
        let mut rest = [0.0; LANES];
        if whole < cols {
            // SAFETY: the caller's promise.
            rest = unsafe { tail::<P>(&w[r * stride + blocks * P::BYTES..(r + 1) * stride]) };
        }
        for t in 0..N {
            let mut lanes = [0.0; LANES];
            // SAFETY: LANES are two times eight floats.
            unsafe {
                _mm256_storeu_ps(lanes.as_mut_ptr(), sums[t][r][0]);
                _mm256_storeu_ps(lanes.as_mut_ptr().add(8), sums[t][r][1]);
            }
            add_tail(&mut lanes, &x[t * cols + whole..(t + 1) * cols], &rest);
            out[t * width + r] = total(&lanes);
        }
    }
}

/// The last columns, fewer than LANES.
fn add_tail(lanes: &mut [f32; LANES], x: &[f32], w: &[f32]) {
    for ((lane, x), w) in lanes.iter_mut().zip(x).zip(w) {
        *lane = x.mul_add(*w, *lane);
    }
}

/// The sum of all lanes in the order of `tree_sum`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn total(lanes: &[f32; LANES]) -> f32 {
    // SAFETY: LANES are two times eight floats.
    let eight =
        unsafe { _mm256_add_ps(_mm256_loadu_ps(lanes.as_ptr()), _mm256_loadu_ps(lanes.as_ptr().add(8))) };
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// Dot products of all tokens of `x` with the packed rows that lie `stride` bytes apart in `w`, handed to `put`.
/// False, and nothing done, for a type without a decoder.
///
/// `scratch` has SCRATCH floats. ROWS rows are decoded in parts that stay in the first cache, and swept over up to
/// BLOCK tokens. Lanes are apart to the end, their sums wait in memory between the parts.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
pub unsafe fn swept(w: PackedRows, x: &[f32], scratch: &mut [f32], put: Put) -> bool {
    let PackedRows { dtype, bytes, stride, rows, cols } = w;
    let (elements, block) = dtype.block();
    assert!(PART.is_multiple_of(elements) && bytes.len() == rows * stride && x.len().is_multiple_of(cols));
    // Whole cache lines, or half of all loads take two.
    let start = scratch.as_ptr().align_offset(64).min(LANES);
    let (panel, sums) = scratch[start..start + PANEL + SUMS].split_at_mut(PANEL);
    for first in (0..rows).step_by(ROWS) {
        let count = ROWS.min(rows - first);
        for (b, x) in x.chunks(BLOCK * cols).enumerate() {
            let tokens = x.len() / cols;
            let sums = &mut sums.as_chunks_mut::<LANES>().0[..tokens * ROWS];
            sums.as_flattened_mut().fill(0.0);
            for from in (0..cols).step_by(PART) {
                let columns = from..cols.min(from + PART);
                let packed = from / elements * block..columns.end.div_ceil(elements) * block;
                for (r, out) in panel.chunks_exact_mut(PART).take(count).enumerate() {
                    let row = &bytes[(first + r) * stride..][..stride];
                    let (source, out) = (&row[packed.clone()], &mut out[..columns.len()]);
                    // The row's next part, or the first one of the row that comes at its place.
                    let next = if columns.end < cols { packed.end } else { ROWS * stride };
                    let next = row.as_ptr().wrapping_add(next);
                    // SAFETY: the caller's promise.
                    if !unsafe { row_and_fetch(dtype, source, out, next) } {
                        return false;
                    }
                }
                for (x, sums) in x.chunks(TOKENS * cols).zip(sums.chunks_mut(TOKENS * ROWS)) {
                    // SAFETY: the caller's promise.
                    unsafe { part(x, cols, panel, columns.clone(), count, sums) };
                }
            }
            for (t, sums) in sums.chunks_exact(ROWS).enumerate() {
                // SAFETY: the caller's promise.
                let dots: [f32; ROWS] = std::array::from_fn(|r| unsafe { total(&sums[r]) });
                put(b * BLOCK + t, first, &dots[..count]);
            }
        }
    }
    true
}

/// Adds some columns of up to TOKENS rows of `x` with `rows` rows of the panel to `sums`, `[tokens, ROWS]`.
#[target_feature(enable = "avx2,fma")]
fn part(
    x: &[f32],
    cols: usize,
    panel: &[f32],
    columns: Range<usize>,
    rows: usize,
    sums: &mut [[f32; LANES]],
) {
    let tokens = x.len() / cols;
    for first in (0..rows).step_by(TILE) {
        let (w, sums) = (&panel[first * PART..], &mut sums[first..]);
        let x = &x[columns.start..];
        match (tokens, rows - first) {
            (4, 3..) => tile::<4, 3>(x, cols, w, columns.len(), sums),
            (4, 2) => tile::<4, 2>(x, cols, w, columns.len(), sums),
            (4, _) => tile::<4, 1>(x, cols, w, columns.len(), sums),
            (3, 3..) => tile::<3, 3>(x, cols, w, columns.len(), sums),
            (3, 2) => tile::<3, 2>(x, cols, w, columns.len(), sums),
            (3, _) => tile::<3, 1>(x, cols, w, columns.len(), sums),
            (2, 3..) => tile::<2, 3>(x, cols, w, columns.len(), sums),
            (2, 2) => tile::<2, 2>(x, cols, w, columns.len(), sums),
            (2, _) => tile::<2, 1>(x, cols, w, columns.len(), sums),
            (_, 3..) => tile::<1, 3>(x, cols, w, columns.len(), sums),
            (_, 2) => tile::<1, 2>(x, cols, w, columns.len(), sums),
            _ => tile::<1, 1>(x, cols, w, columns.len(), sums),
        }
    }
}

/// N rows of `x`, `cols` apart, with R rows of `w`, PART apart, over `len` columns; eight lanes, then the other eight,
/// so that N * R sums, R weights and an activation fit the registers.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn tile<const N: usize, const R: usize>(
    x: &[f32],
    cols: usize,
    w: &[f32],
    len: usize,
    sums: &mut [[f32; LANES]],
) {
    let whole = len / LANES * LANES;
    assert!(
        x.len() >= (N - 1) * cols + len
            && w.len() >= (R - 1) * PART + len
            && sums.len() >= (N - 1) * ROWS + R
    );
    for half in [0, 8] {
        // SAFETY: sums are eight of LANES floats; eight floats at k + half end before `whole`, which each row has.
        unsafe {
            let mut acc = [[_mm256_setzero_ps(); R]; N];
            for t in 0..N {
                for r in 0..R {
                    acc[t][r] = _mm256_loadu_ps(sums[t * ROWS + r].as_ptr().add(half));
                }
            }
            for k in (0..whole).step_by(LANES) {
                let mut weights = [_mm256_setzero_ps(); R];
                for r in 0..R {
                    weights[r] = _mm256_loadu_ps(w.as_ptr().add(r * PART + k + half));
                }
                for t in 0..N {
                    let x = _mm256_loadu_ps(x.as_ptr().add(t * cols + k + half));
                    for r in 0..R {
                        acc[t][r] = _mm256_fmadd_ps(x, weights[r], acc[t][r]);
                    }
                }
            }
            for t in 0..N {
                for r in 0..R {
                    _mm256_storeu_ps(sums[t * ROWS + r].as_mut_ptr().add(half), acc[t][r]);
                }
            }
        }
    }
    if whole < len {
        for t in 0..N {
            for r in 0..R {
                add_tail(
                    &mut sums[t * ROWS + r],
                    &x[t * cols + whole..t * cols + len],
                    &w[r * PART + whole..],
                );
            }
        }
    }
}
