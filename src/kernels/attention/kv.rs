//! Storage of K and V: tiles of 16 positions in f32, F16, or int8 or four bits with scales.
//!
//! A tile of K of one head is `[head_dim, 16]`, so that its 16 scores are sums side by side; a tile of V is `[16,
//! head_dim]`. In int8 and four bits, the scales follow the values in BF16, `[groups, 16]`: a group of elements of each
//! position has one (`KvType::groups`): in int8 a 127th of its largest magnitude, in four bits whichever of a few
//! candidates has the least squared error. The tiles of a block follow one another.
//!
//! In four bits, a byte holds two elements: of K, `d` and `d + 1` of a position, of V, one `d` of two positions. The
//! even one is in the low half.
//!
//! Heads with scales are rotated before (`turn`), which spreads outliers over all elements and makes them nearly
//! normal. In int8 that is enough, so a group is a whole head. In four bits, smaller groups gain more than their
//! scales cost, and K is rotated only within them.

use crate::kernels::Isa;
use crate::kernels::rows::hadamard::walsh_hadamard;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::{BF16, Element, F16, F32, Int8};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::ops::Range;

/// Positions per tile; KV block sizes are multiples of it.
pub const TILE: usize = 16;
/// Bytes of the scales of a group.
pub(super) const SCALES_BYTES: usize = TILE * size_of::<bf16>();

/// The element type of stored K and V.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    // Saved sessions contain these numbers.
    F32 = 0,
    /// Rounded to nearest, ties to even; values beyond its range become its largest.
    #[default]
    F16 = 1,
    /// -127..=127, times a scale that is not negative.
    Int8 = 2,
    /// One of `CODES`, times a scale.
    Int4 = 3,
}

/// The values that four bits encode: those with the least squared error for groups of normally distributed numbers
/// whose largest magnitude is 127 (Lloyd 1982).
pub const CODES: [i8; 16] = [-111, -89, -70, -54, -40, -27, -14, -2, 11, 23, 36, 50, 65, 81, 101, 125];
/// Elements of a group in four bits; the last group of a head may have fewer.
const GROUP: usize = 32;
/// Candidate scales of a group in four bits, as factors of the scale that gives its largest element a code of
/// 127.
const FACTORS: [f32; 4] = [0.85, 0.93, 1.0, 1.07];

impl KvType {
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Int8, Self::Int4];

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// Bytes of the values, and of the scales that follow them, in a tile of one head's K or V.
    pub(super) fn tile_parts(self, head_dim: usize) -> [usize; 2] {
        match self {
            Self::F32 => [TILE * head_dim * size_of::<f32>(), 0],
            Self::F16 => [TILE * head_dim * size_of::<f16>(), 0],
            Self::Int8 => [TILE * head_dim, SCALES_BYTES],
            Self::Int4 => [TILE * head_dim.div_ceil(2), head_dim.div_ceil(GROUP) * SCALES_BYTES],
        }
    }

    /// Whether values have scales. Heads are then rotated before they are stored.
    pub fn scaled(self) -> bool {
        matches!(self, Self::Int8 | Self::Int4)
    }

    /// The elements of a head, in the groups that have a scale each; all of them in a type without scales.
    #[inline(always)]
    pub(super) fn groups(self, head_dim: usize) -> impl Iterator<Item = Range<usize>> {
        let width = if self == Self::Int4 { GROUP } else { head_dim.max(1) };
        (0..head_dim).step_by(width).map(move |from| from..head_dim.min(from + width))
    }

    /// Bytes of a tile of one head's K or V.
    pub fn tile_bytes(self, head_dim: usize) -> usize {
        self.tile_parts(head_dim).iter().sum()
    }
}

/// Whether a tile is of K or of V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    K,
    V,
}

impl Half {
    /// Index of element `d` of position `at` (of 16) in a tile.
    #[inline(always)]
    fn index(self, at: usize, d: usize, head_dim: usize) -> usize {
        match self {
            Self::K => d * TILE + at,
            Self::V => at * head_dim + d,
        }
    }

    /// The index of the byte of an element of four bits, and whether the element is in its high half.
    #[inline(always)]
    fn nibble(self, at: usize, d: usize, head_dim: usize) -> (usize, bool) {
        match self {
            Self::K => (d / 2 * TILE + at, d % 2 == 1),
            Self::V => (at / 2 * head_dim + d, at % 2 == 1),
        }
    }
}

/// Rotates a head that is stored in `kind`, or that is multiplied with such heads: by the Walsh-Hadamard
/// transform, in blocks of the largest powers of two that fit, and not at all if `kind` has no scales. The
/// transform is its own inverse.
///
/// Blocks of K in four bits are at most a group: in trained models a few elements of K are much larger than the others,
/// and then only their own groups lose precision (`dev/notes/performance.md` has figures).
pub fn turn(isa: Isa, kind: KvType, half: Half, head: &mut [f32]) {
    let most = if (kind, half) == (KvType::Int4, Half::K) { GROUP } else { usize::MAX };
    let mut rest = if kind.scaled() { head } else { &mut [] };
    while !rest.is_empty() {
        let (block, behind) = rest.split_at_mut(most.min(1 << rest.len().ilog2()));
        walsh_hadamard(isa, block.len(), block);
        rest = behind;
    }
}

/// K or V of one layer: `[blocks, kv_heads, block_size / 16]` tiles; `block_size` is a multiple of `TILE`.
#[derive(Clone, Copy)]
pub struct Paged<'a> {
    pub data: &'a [u8],
    pub kind: KvType,
    pub kv_heads: usize,
    pub block_size: usize,
    pub head_dim: usize,
}

impl<'a> Paged<'a> {
    /// Byte offset of a sequence's tile `index` of `kv_head`; tiles are counted from position 0.
    pub fn offset(&self, table: &[u32], kv_head: usize, index: usize) -> usize {
        let tiles = self.block_size / TILE;
        let block = table[index / tiles] as usize;
        ((block * self.kv_heads + kv_head) * tiles + index % tiles) * self.kind.tile_bytes(self.head_dim)
    }

    pub fn tile(&self, table: &[u32], kv_head: usize, index: usize) -> &'a [u8] {
        let at = self.offset(table, kv_head, index);
        &self.data[at..at + self.kind.tile_bytes(self.head_dim)]
    }
}

/// Stores `row`, which `turn` has rotated, as position `at` (of 16) of a tile. A NaN makes its element NaN; in types
/// with scales, a value that is not finite makes its whole group NaN.
pub fn store(isa: Isa, kind: KvType, half: Half, tile: &mut [u8], at: usize, row: &[f32]) {
    let head_dim = row.len();
    let (values, scales) = tile.split_at_mut(kind.tile_parts(head_dim)[0]);
    assert!(at < TILE, "a position of the tile");
    match kind {
        KvType::F32 => put(values, half, at, head_dim, row.iter().map(|x| x.to_le_bytes())),
        KvType::F16 => {
            const PART: usize = 64;
            let (mut clamped, mut narrow) = ([0.0f32; PART], [f16::ZERO; PART]);
            for (part, row) in row.chunks(PART).enumerate() {
                let (clamped, narrow) = (&mut clamped[..row.len()], &mut narrow[..row.len()]);
                let most = f16::MAX.to_f32();
                clamped.iter_mut().zip(row).for_each(|(to, x)| *to = x.clamp(-most, most));
                narrow.convert_from_f32_slice(clamped);
                let from = half.index(0, part * PART, head_dim) * size_of::<f16>();
                put(&mut values[from..], half, at, head_dim, narrow.iter().map(|x| x.to_le_bytes()));
            }
        }
        KvType::Int8 | KvType::Int4 => {
            let scales = scales.chunks_exact_mut(SCALES_BYTES);
            for (scales, group) in scales.zip(kind.groups(head_dim)) {
                let row = &row[group.clone()];
                let scale = if kind == KvType::Int8 {
                    let scale = bf16::from_f32(largest(row).abs() / 127.0);
                    // If all values are 0, the inverse is infinite, and 0 * infinity is NaN, whose code is 0.
                    let inverse = 1.0 / scale.to_f32();
                    let code = |x: &f32| [((x * inverse).round_ties_even() as i32).clamp(-127, 127) as u8];
                    let from = half.index(0, group.start, head_dim);
                    put(&mut values[from..], half, at, head_dim, row.iter().map(code));
                    scale
                } else {
                    let (scale, codes) = fitted(isa, row);
                    for (d, code) in group.zip(codes) {
                        let (byte, high) = half.nibble(at, d, head_dim);
                        let byte = &mut values[byte];
                        *byte = if high { *byte & 0x0f | code << 4 } else { *byte & 0xf0 | code };
                    }
                    scale
                };
                scales[2 * at..][..2].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }
}

by_isa!(
    /// Scale and codes of a group of at most `GROUP` elements. Of a few candidates it takes those with the least
    /// squared error. A candidate is a scale that gives the largest element a code of about 127, the codes for it, the
    /// scale that fits these codes best (least squares), and the codes for that scale.
    fn fitted(row: &[f32]) -> (bf16, [u8; GROUP]) = fit
);

#[inline(always)]
fn fit(row: &[f32]) -> (bf16, [u8; GROUP]) {
    let most = largest(row) / 127.0;
    let mut x = [0.0; GROUP];
    x[..row.len()].copy_from_slice(row);
    let first = bf16::from_f32(most);
    let (mut best, mut least) = ((first, nearest(&x, first)), f32::INFINITY);
    for factor in FACTORS {
        let values = valued(&nearest(&x, bf16::from_f32(most * factor)), row.len());
        let scale = bf16::from_f32(sum(|i| x[i] * values[i]) / sum(|i| values[i] * values[i]));
        let codes = nearest(&x, scale);
        let values = valued(&codes, row.len());
        let error = sum(|i| (x[i] - values[i] * scale.to_f32()) * (x[i] - values[i] * scale.to_f32()));
        // False if a sum exceeds f32.
        if error < least {
            (best, least) = ((scale, codes), error);
        }
    }
    best
}

/// The values of the codes of `len` elements, 0 for others.
#[inline(always)]
fn valued(codes: &[u8; GROUP], len: usize) -> [f32; GROUP] {
    let mut values = codes.map(|code| f32::from(CODES[usize::from(code)]));
    values[len..].fill(0.0);
    values
}

/// The sum over a group's elements, in eight lanes.
#[inline(always)]
fn sum(term: impl Fn(usize) -> f32) -> f32 {
    const LANES: usize = 8;
    let mut lanes = [0.0; LANES];
    for from in (0..GROUP).step_by(LANES) {
        lanes.iter_mut().enumerate().for_each(|(lane, sum)| *sum += term(from + lane));
    }
    lanes.iter().sum()
}

/// The first element of the largest magnitude, or NaN if not all are finite.
#[inline(always)]
fn largest(row: &[f32]) -> f32 {
    let most = row.iter().fold(0.0f32, |most, x| if x.abs() > most.abs() { *x } else { most });
    if row.iter().all(|x| x.is_finite()) { most } else { f32::NAN }
}

/// The indices of the codes next to `x / scale`: the number of midpoints between codes below it. 0 for a NaN.
#[inline(always)]
fn nearest(x: &[f32; GROUP], scale: bf16) -> [u8; GROUP] {
    let (mut counts, inverse) = ([0i32; GROUP], 1.0 / scale.to_f32());
    for pair in CODES.windows(2) {
        let middle = (f32::from(pair[0]) + f32::from(pair[1])) / 2.0;
        counts.iter_mut().zip(x).for_each(|(count, x)| *count += i32::from(x * inverse > middle));
    }
    counts.map(|count| count as u8)
}

#[inline(always)]
fn put<const B: usize>(
    values: &mut [u8],
    half: Half,
    at: usize,
    head_dim: usize,
    row: impl Iterator<Item = [u8; B]>,
) {
    for (d, bytes) in row.enumerate() {
        values[half.index(at, d, head_dim) * B..][..B].copy_from_slice(&bytes);
    }
}

/// Element `d` of position `at` of a tile, before its scale is applied.
#[inline(always)]
pub fn value(kind: KvType, half: Half, tile: &[u8], at: usize, d: usize, head_dim: usize) -> f32 {
    let index = half.index(at, d, head_dim);
    match kind {
        KvType::F32 => F32::value(&tile[4 * index..]),
        KvType::F16 => F16::value(&tile[2 * index..]),
        KvType::Int8 => Int8::value(&tile[index..]),
        KvType::Int4 => {
            let (byte, high) = half.nibble(at, d, head_dim);
            f32::from(CODES[usize::from(if high { tile[byte] >> 4 } else { tile[byte] & 0x0f })])
        }
    }
}

/// The factor of the values of position `at` in group `group` of a tile; None if the type has no scales.
#[inline(always)]
pub fn scale(kind: KvType, tile: &[u8], at: usize, group: usize, head_dim: usize) -> Option<f32> {
    let from = kind.tile_parts(head_dim)[0] + group * SCALES_BYTES + at * size_of::<bf16>();
    kind.scaled().then(|| BF16::value(&tile[from..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::available;

    fn stored(kind: KvType, half: Half, rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let head_dim = rows[0].len();
        let mut tile = vec![0xff; kind.tile_bytes(head_dim)];
        rows.iter().enumerate().for_each(|(at, row)| store(Isa::Scalar, kind, half, &mut tile, at, row));
        let read = |at, d| {
            let groups = kind.groups(head_dim).enumerate();
            let of = |(group, columns): (usize, Range<usize>)| columns.contains(&d).then_some(group);
            let group = groups.filter_map(of).next().unwrap();
            value(kind, half, &tile, at, d, head_dim) * scale(kind, &tile, at, group, head_dim).unwrap_or(1.0)
        };
        (0..rows.len()).map(|at| (0..head_dim).map(|d| read(at, d)).collect()).collect()
    }

    #[test]
    fn what_is_stored_is_read() {
        for half in [Half::K, Half::V] {
            for head_dim in [2, 12, 64, 80, 200] {
                let noise = |i: usize| ((i * 37 + 11) % 101) as f32 * 0.13 - 6.0;
                let rows: Vec<Vec<f32>> =
                    (0..TILE).map(|at| (0..head_dim).map(|d| noise(at * head_dim + d)).collect()).collect();
                // The largest errors relative to the row's largest magnitude; for int4, that of its negative. A scale
                // may be too small by 1/256.
                let errors = [0.0, 0.0, 1.0 / 170.0, 0.13];
                for (kind, error) in KvType::ALL.into_iter().zip(errors) {
                    let rounded = |x: f32| if kind == KvType::F16 { f16::from_f32(x).to_f32() } else { x };
                    for (row, got) in rows.iter().zip(stored(kind, half, &rows)) {
                        let most = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                        assert!(row.iter().zip(got).all(|(x, y)| (rounded(*x) - y).abs() <= most * error));
                    }
                }
            }
        }
    }

    #[test]
    fn groups_are_fitted_alike_with_all_instruction_sets_and_better_than_by_their_largest() {
        let noise =
            |i: usize| (0..12).map(|n| ((i * 37 + n * 101) * 7919 % 1009) as f32 / 1009.0 - 0.5).sum::<f32>();
        let (mut fitted_error, mut plain_error) = (0.0, 0.0);
        for at in 0..200 {
            let row: Vec<f32> = (0..GROUP - at % 3).map(|d| noise(at * GROUP + d)).collect();
            let (scale, codes) = fitted(Isa::Scalar, &row);
            for isa in available() {
                assert_eq!(fitted(*isa, &row), (scale, codes), "{isa:?}");
            }
            let error = |scale: bf16, codes: &[u8; GROUP]| -> f32 {
                let values = valued(codes, row.len());
                row.iter().zip(values).map(|(x, value)| (x - value * scale.to_f32()).powi(2)).sum()
            };
            let mut x = [0.0; GROUP];
            x[..row.len()].copy_from_slice(&row);
            let plain = bf16::from_f32(largest(&row) / 127.0);
            fitted_error += error(scale, &codes);
            plain_error += error(plain, &nearest(&x, plain));
        }
        assert!(fitted_error < 0.92 * plain_error, "{fitted_error} and {plain_error}");
    }

    #[test]
    fn extremes() {
        let row = vec![1e6, -f32::INFINITY, f32::NAN, 1e-9];
        let got = stored(KvType::F16, Half::K, std::slice::from_ref(&row)).remove(0);
        assert!(got[2].is_nan());
        assert_eq!((got[0], got[1], got[3]), (65504.0, -65504.0, 0.0));
        for kind in [KvType::Int8, KvType::Int4] {
            assert!(stored(kind, Half::V, std::slice::from_ref(&row)).concat().iter().all(|x| x.is_nan()));
        }
        for x in [0.0, 1e-45, 3e38] {
            for (kind, zero, error) in [(KvType::Int8, 0.0, 1e-2), (KvType::Int4, 0.02, 0.02)] {
                let got = stored(kind, Half::K, &[vec![x, -x, 0.0]]).remove(0);
                let near = got[2].abs() <= zero * x && (got[0] - x).abs() <= error * x + 1e-40;
                assert!(near && (got[1] + x).abs() <= 0.13 * x + 1e-40, "{kind:?} {x}: {got:?}");
            }
        }
    }

    #[test]
    fn a_rotation_spreads_an_outlier_and_undoes_itself() {
        for head_dim in [1usize, 7, 12, 64, 80, 576] {
            let row: Vec<f32> =
                (0..head_dim).map(|d| if d == 0 { 100.0 } else { (d % 5) as f32 - 2.0 }).collect();
            let mut turned = row.clone();
            turn(Isa::Scalar, KvType::F16, Half::V, &mut turned);
            assert_eq!(turned, row);
            turn(Isa::Scalar, KvType::Int8, Half::V, &mut turned);
            let block = 1 << head_dim.ilog2();
            assert!(
                turned.iter().all(|x| x.abs() <= 100.0 / (block as f32).sqrt() + 2.0 * (block as f32).sqrt())
            );
            turn(Isa::Scalar, KvType::Int4, Half::V, &mut turned);
            assert!(turned.iter().zip(&row).all(|(x, y)| (x - y).abs() < 1e-4), "{head_dim}");
            turn(Isa::Scalar, KvType::Int4, Half::K, &mut turned);
            let behind = &turned[head_dim.min(GROUP)..];
            assert!(
                behind.iter().all(|x| x.abs() <= 2.0 * (GROUP as f32).sqrt()),
                "{head_dim}: it left its group"
            );
        }
    }
}
