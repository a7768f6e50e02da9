//! The dense product's inner loops with NEON, for weights of single elements: each dot product in the order of
//! `dense::dot`. Other types are decoded as the reference does.
//!
//! Few tokens: weights are widened in registers and multiplied at once. More tokens: rows become f32 once, in a
//! panel, and tiles of rows and tokens share what they load.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::{LANES, Put};
use crate::kernels::DType;
use crate::kernels::simd::neon::halves;
use std::arch::aarch64::*;
use std::ops::Range;

/// Tokens that one widening of a row serves in registers.
pub const FUSED: usize = 4;
/// Rows and tokens of a tile at most: 24 sums, of two vectors each, beside weights and an activation.
const TILE: usize = 3;
const TOKENS: usize = 4;
/// Rows and columns of a panel of f32 weights, which stays in the first-level cache.
const ROWS: usize = 6;
const PART: usize = 512;
/// Tokens that a panel is swept over.
const BLOCK: usize = 128;
const PANEL: usize = ROWS * PART;
const SUMS: usize = BLOCK * ROWS * LANES;
/// Floats that `swept` needs.
pub const SCRATCH: usize = PANEL + SUMS;

/// Weights n..n + 16 of a row.
type Sixteen = [float32x4_t; LANES / 4];

/// A type of single elements.
trait Element {
    const BYTES: usize;
    /// # Safety
    /// Sixteen elements can be read.
    unsafe fn sixteen(at: *const u8) -> Sixteen;
}

struct F32;
struct F16;
struct BF16;

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn sixteen(at: *const u8) -> Sixteen {
        // SAFETY: the caller's promise.
        [0, 4, 8, 12].map(|i| unsafe { vld1q_f32(at.cast::<f32>().add(i)) })
    }
}

impl Element for F16 {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn sixteen(at: *const u8) -> Sixteen {
        // SAFETY: the caller's promise.
        [0, 4, 8, 12].map(|i| halves(unsafe { vld1_u16(at.cast::<u16>().add(i)) }))
    }
}

impl Element for BF16 {
    const BYTES: usize = 2;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn sixteen(at: *const u8) -> Sixteen {
        [0, 4, 8, 12].map(|i| {
            // SAFETY: the caller's promise.
            let bits = unsafe { vld1_u16(at.cast::<u16>().add(i)) };
            vreinterpretq_f32_u32(vshll_n_u16::<16>(bits))
        })
    }
}

/// `$call` with the `Element` of a type for `$e`, or None for a type that has none.
macro_rules! with_element {
    ($dtype:expr, $e:ident => $call:expr) => {{
        macro_rules! some {
            ($t:ty) => {{
                type $e = $t;
                Some($call)
            }};
        }
        match $dtype {
            DType::F32 => some!(F32),
            DType::F16 => some!(F16),
            DType::BF16 => some!(BF16),
            _ => None,
        }
    }};
}

/// Widens a row's bytes to `out`, or does nothing and returns false where the type is no `Element`. Panics unless
/// `source` is as long as `out` asks.
#[target_feature(enable = "neon")]
pub fn row(dtype: DType, source: &[u8], out: &mut [f32]) -> bool {
    with_element!(dtype, E => row_of::<E>(source, out)).is_some()
}

#[target_feature(enable = "neon")]
fn row_of<E: Element>(source: &[u8], out: &mut [f32]) {
    assert_eq!(source.len(), out.len() * E::BYTES, "a row as long as its elements");
    let (whole, rest) = out.as_chunks_mut::<LANES>();
    let (packed, tail) = source.split_at(whole.len() * LANES * E::BYTES);
    for (out, packed) in whole.iter_mut().zip(packed.chunks_exact(LANES * E::BYTES)) {
        // SAFETY: sixteen elements.
        store(unsafe { E::sixteen(packed.as_ptr()) }, out);
    }
    rest.copy_from_slice(&last::<E>(tail)[..rest.len()]);
}

#[inline]
#[target_feature(enable = "neon")]
fn store(values: Sixteen, out: &mut [f32; LANES]) {
    for (i, v) in values.into_iter().enumerate() {
        // SAFETY: four of LANES floats.
        unsafe { vst1q_f32(out.as_mut_ptr().add(4 * i), v) };
    }
}

/// The elements of a row's end, fewer than LANES; 0 behind them.
#[target_feature(enable = "neon")]
fn last<E: Element>(source: &[u8]) -> [f32; LANES] {
    let (mut bytes, mut out) = ([0; 4 * LANES], [0.0; LANES]);
    bytes[..source.len()].copy_from_slice(source);
    // SAFETY: bytes for sixteen elements of up to four.
    store(unsafe { E::sixteen(bytes.as_ptr()) }, &mut out);
    out
}

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

impl<'a> PackedRows<'a> {
    fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.stride..(row + 1) * self.stride]
    }
}

/// Dot products of `x`, `[1..=FUSED, cols]`, with all rows, handed to `put`. False, and nothing done, for a type that
/// is no `Element`.
#[target_feature(enable = "neon")]
pub fn fused(w: PackedRows, x: &[f32], put: Put) -> bool {
    with_element!(w.dtype, E => {
        assert!(w.stride == w.cols * E::BYTES && x.len().is_multiple_of(w.cols));
        match x.len() / w.cols {
            0 => {}
            1 => strips::<E, 4, 1>(w, x, put),
            2 => strips::<E, 2, 2>(w, x, put),
            3 => strips::<E, 2, 3>(w, x, put),
            FUSED => strips::<E, 1, FUSED>(w, x, put),
            n => unreachable!("{n} tokens at once"),
        }
    })
    .is_some()
}

/// All rows, R at a time while there are as many.
#[target_feature(enable = "neon")]
fn strips<E: Element, const R: usize, const N: usize>(w: PackedRows, x: &[f32], put: Put) {
    let x: [&[f32]; N] = std::array::from_fn(|t| &x[t * w.cols..(t + 1) * w.cols]);
    let whole = w.rows / R * R;
    for first in (0..whole).step_by(R) {
        let dots = strip::<E, R, N>(std::array::from_fn(|r| w.row(first + r)), x);
        dots.iter().enumerate().for_each(|(t, dots)| put(t, first, dots));
    }
    for row in whole..w.rows {
        let dots = strip::<E, 1, N>([w.row(row)], x);
        dots.iter().enumerate().for_each(|(t, dots)| put(t, row, dots));
    }
}

/// R rows with N tokens.
#[inline]
#[target_feature(enable = "neon")]
fn strip<E: Element, const R: usize, const N: usize>(w: [&[u8]; R], x: [&[f32]; N]) -> [[f32; R]; N] {
    let cols = x[0].len();
    assert!(x.iter().all(|x| x.len() == cols) && w.iter().all(|w| w.len() == cols * E::BYTES));
    let whole = cols / LANES * LANES;
    let mut sums = [[[vdupq_n_f32(0.0); LANES / 4]; R]; N];
    for k in (0..whole).step_by(LANES) {
        for r in 0..R {
            // SAFETY: k + 16 <= cols, which each row and token has.
            unsafe {
                let w = E::sixteen(w[r].as_ptr().add(k * E::BYTES));
                for t in 0..N {
                    for i in 0..LANES / 4 {
                        let x = vld1q_f32(x[t].as_ptr().add(k + 4 * i));
                        sums[t][r][i] = vfmaq_f32(sums[t][r][i], x, w[i]);
                    }
                }
            }
        }
    }
    let mut out = [[0.0; R]; N];
    for r in 0..R {
        let rest = last::<E>(&w[r][whole * E::BYTES..]);
        for t in 0..N {
            let mut lanes = [0.0; LANES];
            store(sums[t][r], &mut lanes);
            add_tail(&mut lanes, &x[t][whole..], &rest);
            out[t][r] = total(&lanes);
        }
    }
    out
}

/// The last columns, fewer than LANES.
fn add_tail(lanes: &mut [f32; LANES], x: &[f32], w: &[f32]) {
    for ((lane, x), w) in lanes.iter_mut().zip(x).zip(w) {
        *lane = x.mul_add(*w, *lane);
    }
}

/// The sum of all lanes in the order of `tree_sum`.
#[inline]
#[target_feature(enable = "neon")]
fn total(lanes: &[f32; LANES]) -> f32 {
    // SAFETY: LANES are four times four floats.
    let [a, b, c, d] = unsafe { [0, 4, 8, 12].map(|i| vld1q_f32(lanes.as_ptr().add(i))) };
    let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
    let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
}

/// Dot products of all tokens of `x` with all rows, handed to `put`. False, and nothing done, for a type that is no
/// `Element`.
///
/// `scratch` has SCRATCH floats. ROWS rows are widened in parts that stay in the first cache, and swept over up to
/// BLOCK tokens. Lanes are apart to the end, their sums wait in memory between the parts.
#[target_feature(enable = "neon")]
pub fn swept(w: PackedRows, x: &[f32], scratch: &mut [f32], put: Put) -> bool {
    with_element!(w.dtype, E => swept_of::<E>(w, x, scratch, put)).is_some()
}

#[target_feature(enable = "neon")]
fn swept_of<E: Element>(w: PackedRows, x: &[f32], scratch: &mut [f32], put: Put) {
    let cols = w.cols;
    let (panel, sums) = scratch[..SCRATCH].split_at_mut(PANEL);
    for first in (0..w.rows).step_by(ROWS) {
        let count = ROWS.min(w.rows - first);
        for (b, x) in x.chunks(BLOCK * cols).enumerate() {
            let tokens = x.len() / cols;
            let sums = &mut sums.as_chunks_mut::<LANES>().0[..tokens * ROWS];
            sums.as_flattened_mut().fill(0.0);
            for from in (0..cols).step_by(PART) {
                let columns = from..cols.min(from + PART);
                for (r, out) in panel.chunks_exact_mut(PART).take(count).enumerate() {
                    let source = &w.row(first + r)[columns.start * E::BYTES..columns.end * E::BYTES];
                    row_of::<E>(source, &mut out[..columns.len()]);
                }
                for (x, sums) in x.chunks(TOKENS * cols).zip(sums.chunks_mut(TOKENS * ROWS)) {
                    part(x, cols, panel, columns.clone(), count, sums);
                }
            }
            for (t, sums) in sums.chunks_exact(ROWS).enumerate() {
                let mut dots = [0.0; ROWS];
                dots.iter_mut().zip(sums).for_each(|(dot, sums)| *dot = total(sums));
                put(b * BLOCK + t, first, &dots[..count]);
            }
        }
    }
}

/// Adds some columns of up to TOKENS rows of `x` with `rows` rows of the panel to `sums`, `[tokens, ROWS]`.
#[target_feature(enable = "neon")]
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
/// so that 2 N R sums, the weights and an activation fit the registers.
#[inline]
#[target_feature(enable = "neon")]
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
            let mut acc = [[[vdupq_n_f32(0.0); 2]; R]; N];
            for (t, acc) in acc.iter_mut().enumerate() {
                for (r, acc) in acc.iter_mut().enumerate() {
                    let from = sums[t * ROWS + r].as_ptr().add(half);
                    *acc = [vld1q_f32(from), vld1q_f32(from.add(4))];
                }
            }
            for k in (half..whole).step_by(LANES) {
                for v in 0..2 {
                    let mut weights = [vdupq_n_f32(0.0); R];
                    for r in 0..R {
                        weights[r] = vld1q_f32(w.as_ptr().add(r * PART + k + 4 * v));
                    }
                    for t in 0..N {
                        let x = vld1q_f32(x.as_ptr().add(t * cols + k + 4 * v));
                        for r in 0..R {
                            acc[t][r][v] = vfmaq_f32(acc[t][r][v], x, weights[r]);
                        }
                    }
                }
            }
            for (t, acc) in acc.iter().enumerate() {
                for (r, acc) in acc.iter().enumerate() {
                    let to = sums[t * ROWS + r].as_mut_ptr().add(half);
                    vst1q_f32(to, acc[0]);
                    vst1q_f32(to.add(4), acc[1]);
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
