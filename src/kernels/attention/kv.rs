//! Storage of K and V: tiles of 16 positions in f32, F16, or int8 or four bits with a scale per position and head.
//!
//! A tile of K of one head is `[head_dim, 16]`, so that its 16 scores are sums side by side; a tile of V is `[16,
//! head_dim]`. In an int8 tile, the 16 scales follow the values, in f32, in a tile of four bits in BF16. The tiles of a
//! block follow one another.
//!
//! In four bits, a byte holds two elements: of K, `d` and `d + 1` of a position, of V, one `d` of two positions. The
//! even one is in the low half. Heads are rotated before (`turn`), which spreads outliers over all elements and makes
//! them nearly normal; `CODES` suit that.

use crate::kernels::Isa;
use crate::kernels::rows::hadamard::walsh_hadamard;
use crate::kernels::simd::lanes::{BF16, Element, F16, F32, Int8};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Positions per tile; KV block sizes are multiples of it.
pub const TILE: usize = 16;

/// The element type of stored K and V.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    // Saved sessions contain these numbers.
    F32 = 0,
    /// Rounded to nearest, ties to even; values beyond its range become its largest.
    #[default]
    F16 = 1,
    /// -127..=127, times (largest magnitude of the position's head) / 127.
    Int8 = 2,
    /// One of `CODES`, times a scale for each position of the head, which is rotated.
    Int4 = 3,
}

/// The values of four bits: those with the least square error for normal numbers, of which the largest of some 100 is
/// `HEADROOM` times the largest code (Lloyd 1982).
pub const CODES: [i8; 16] = [-127, -98, -76, -59, -44, -31, -18, -6, 6, 18, 31, 44, 59, 76, 98, 127];
const HEADROOM: f32 = 1.0 / 0.94;

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
            Self::Int8 => [TILE * head_dim, TILE * size_of::<f32>()],
            Self::Int4 => [TILE * head_dim.div_ceil(2), TILE * size_of::<bf16>()],
        }
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

    /// The byte of an element of four bits, and whether it has the high half.
    #[inline(always)]
    fn nibble(self, at: usize, d: usize, head_dim: usize) -> (usize, bool) {
        match self {
            Self::K => (d / 2 * TILE + at, d % 2 == 1),
            Self::V => (at / 2 * head_dim + d, at % 2 == 1),
        }
    }
}

/// Rotates a head that is stored in `kind`, or meets such heads: by the Walsh-Hadamard transform, in blocks of the
/// largest powers of two that fit, and not at all unless `kind` is of four bits. Twice is not at all.
pub fn turn(isa: Isa, kind: KvType, head: &mut [f32]) {
    let mut rest = if kind == KvType::Int4 { head } else { &mut [] };
    while !rest.is_empty() {
        let (block, behind) = rest.split_at_mut(1 << rest.len().ilog2());
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

/// Stores `row`, which `turn` has rotated, as position `at` (of 16) of a tile. A NaN makes its element NaN; in int8 and
/// in four bits, a value that is not finite makes the whole row NaN.
pub fn store(kind: KvType, half: Half, tile: &mut [u8], at: usize, row: &[f32]) {
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
        KvType::Int8 => {
            let (most, finite) = range(row);
            let (scale, inverse) = if finite { (most / 127.0, 127.0 / most) } else { (f32::NAN, 0.0) };
            // If all values are 0, the inverse is infinite, and 0 * infinity is NaN, which the cast turns into 0.
            let code = |x: &f32| [((x * inverse).round_ties_even() as i32).clamp(-127, 127) as i8 as u8];
            put(values, half, at, head_dim, row.iter().map(code));
            scales[at * size_of::<f32>()..][..size_of::<f32>()].copy_from_slice(&scale.to_le_bytes());
        }
        KvType::Int4 => {
            let (most, finite) = range(row);
            let scale = bf16::from_f32(if finite { most / (127.0 * HEADROOM) } else { f32::NAN });
            let inverse = 1.0 / scale.to_f32();
            let mut codes = [0u8; 64];
            for (part, row) in row.chunks(codes.len()).enumerate() {
                nearest(row, inverse, &mut codes);
                for (d, code) in (part * codes.len()..).zip(&codes[..row.len()]) {
                    let (byte, high) = half.nibble(at, d, head_dim);
                    let byte = &mut values[byte];
                    *byte = if high { *byte & 0x0f | code << 4 } else { *byte & 0xf0 | code };
                }
            }
            scales[at * size_of::<bf16>()..][..size_of::<bf16>()].copy_from_slice(&scale.to_le_bytes());
        }
    }
}

/// The largest magnitude, and whether all elements are finite.
fn range(row: &[f32]) -> (f32, bool) {
    let most = row.iter().fold(0.0f32, |most, x| if x.abs() > most { x.abs() } else { most });
    (most, row.iter().all(|x| x.is_finite()))
}

/// The indices of the codes next to `x * inverse`: the number of midpoints between codes below it. 0 for a NaN.
fn nearest(row: &[f32], inverse: f32, codes: &mut [u8; 64]) {
    let mut counts = [0i32; 64];
    for pair in CODES.windows(2) {
        let middle = (f32::from(pair[0]) + f32::from(pair[1])) / 2.0;
        counts.iter_mut().zip(row).for_each(|(count, x)| *count += i32::from(x * inverse > middle));
    }
    codes.iter_mut().zip(counts).for_each(|(code, count)| *code = count as u8);
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

/// The factor of the values of position `at` of a tile; None if the type has no scales.
#[inline(always)]
pub fn scale(kind: KvType, tile: &[u8], at: usize, head_dim: usize) -> Option<f32> {
    let [values, scales] = kind.tile_parts(head_dim);
    let scale = |scales: &[u8]| match kind {
        KvType::Int4 => BF16::value(&scales[2 * at..]),
        _ => F32::value(&scales[4 * at..]),
    };
    (scales > 0).then(|| scale(&tile[values..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(kind: KvType, half: Half, rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let head_dim = rows[0].len();
        let mut tile = vec![0xff; kind.tile_bytes(head_dim)];
        rows.iter().enumerate().for_each(|(at, row)| store(kind, half, &mut tile, at, row));
        let read = |at, d| {
            value(kind, half, &tile, at, d, head_dim) * scale(kind, &tile, at, head_dim).unwrap_or(1.0)
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
                // The largest errors, of the row's largest magnitude: of int4, half the largest distance of two codes.
                let errors = [0.0, 0.0, 1.0 / 253.0, 0.11];
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
    fn extremes() {
        let row = vec![1e6, -f32::INFINITY, f32::NAN, 1e-9];
        let got = stored(KvType::F16, Half::K, std::slice::from_ref(&row)).remove(0);
        assert!(got[2].is_nan());
        assert_eq!((got[0], got[1], got[3]), (65504.0, -65504.0, 0.0));
        for kind in [KvType::Int8, KvType::Int4] {
            assert!(stored(kind, Half::V, std::slice::from_ref(&row)).concat().iter().all(|x| x.is_nan()));
        }
        for x in [0.0, 1e-45, 3e38] {
            for (kind, zero, error) in [(KvType::Int8, 0.0, 1e-2), (KvType::Int4, 0.06, 0.07)] {
                let got = stored(kind, Half::K, &[vec![x, -x, 0.0]]).remove(0);
                let near = got[2].abs() <= zero * x && (got[0] - x).abs() <= error * x + 1e-40;
                assert!(got[0] == -got[1] && near, "{kind:?} {x}: {got:?}");
            }
        }
    }

    #[test]
    fn a_rotation_spreads_an_outlier_and_undoes_itself() {
        for head_dim in [1usize, 7, 12, 64, 80, 576] {
            let row: Vec<f32> =
                (0..head_dim).map(|d| if d == 0 { 100.0 } else { (d % 5) as f32 - 2.0 }).collect();
            let mut turned = row.clone();
            turn(Isa::Scalar, KvType::Int8, &mut turned);
            assert_eq!(turned, row);
            turn(Isa::Scalar, KvType::Int4, &mut turned);
            let block = 1 << head_dim.ilog2();
            assert!(
                turned.iter().all(|x| x.abs() <= 100.0 / (block as f32).sqrt() + 2.0 * (block as f32).sqrt())
            );
            turn(Isa::Scalar, KvType::Int4, &mut turned);
            assert!(turned.iter().zip(&row).all(|(x, y)| (x - y).abs() < 1e-4), "{head_dim}");
        }
    }
}
