//! f32 products of many rows of factors as sums of outer products (Goto and van de Geijn 2008, "Anatomy of
//! High-Performance Matrix Multiplication").
//!
//! Sums of some rows with some columns are in registers together. The columns lie side by side in a strip, which stays
//! in the first-level cache while rows of factors go by. Each sum adds up to `DEPTH` products, one after the other.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use crate::kernels::Isa;
use crate::kernels::simd::lanes::{Element, Lanes, Register};

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;
/// Maximum number of products in a sum. A strip of so many rows leaves room for factors in a cache of 32 KiB.
pub(crate) const DEPTH: usize = 128;
/// Distance of rows of factors, in floats: an odd number of cache lines, so that rows are in different sets of the
/// cache.
pub(crate) const PITCH: usize = DEPTH + LANES;

/// Rows of factors, and columns of a strip, whose sums are in registers together.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub rows: usize,
    pub columns: usize,
}

const WIDE: Tile = Tile { rows: 14, columns: 2 * LANES };
const NARROW: Tile = Tile { rows: 6, columns: LANES };

impl Tile {
    pub(crate) fn of(isa: Isa) -> Self {
        if isa.has_avx512() { WIDE } else { NARROW }
    }

    pub(crate) const fn of_lanes<L: Lanes>() -> Self {
        if is_wide::<L>() { WIDE } else { NARROW }
    }

    /// Writes row `t` of a tile's factors: blocks of `DEPTH` columns, in each of which all rows lie `PITCH` apart.
    #[inline]
    pub(crate) fn write_row(self, row: &[f32], t: usize, factors: &mut [f32]) {
        for (columns, block) in row.chunks(DEPTH).zip(factors.chunks_exact_mut(self.rows * PITCH)) {
            block[t * PITCH..][..columns.len()].copy_from_slice(columns);
        }
    }

    /// Columns in whole strips.
    pub(crate) const fn padded(self, columns: usize) -> usize {
        columns.next_multiple_of(self.columns)
    }
}

/// Whether `L` is of AVX-512.
const fn is_wide<L: Lanes>() -> bool {
    L::Register::WIDTH == LANES
}

/// Rows of factors (the activations of a product), `PITCH` floats apart, and a strip with a row for each factor of a
/// row.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a> {
    pub factors: &'a [f32],
    pub strip: &'a [f32],
    pub depth: usize,
}

impl Operands<'_> {
    /// Computes the products of the first `rows` rows of a tile with all columns of the strip. They are added to
    /// `sums`, whose rows are `stride` floats apart, or replace them if the sums begin here. Further rows of a tile may
    /// be read and written too.
    ///
    /// # Safety
    /// `L`'s instructions are available.
    #[inline(always)]
    pub(crate) unsafe fn add<L: Lanes>(self, rows: usize, begins: bool, sums: &mut [f32], stride: usize) {
        let tile = Tile::of_lanes::<L>();
        assert!(rows <= tile.rows && self.depth <= DEPTH, "a tile");
        assert!(self.factors.len() >= (tile.rows - 1) * PITCH + self.depth, "factors of whole tiles");
        assert!(self.strip.len() >= self.depth * tile.columns, "a strip");
        assert!(sums.len() >= (tile.rows - 1) * stride + tile.columns, "sums of whole tiles");
        // SAFETY: rows and columns of a tile; the caller has the instructions.
        unsafe {
            if is_wide::<L>() {
                match rows {
                    9.. => self.multiply::<L, 14, 2>(begins, sums, stride),
                    5.. => self.multiply::<L, 8, 2>(begins, sums, stride),
                    3.. => self.multiply::<L, 4, 2>(begins, sums, stride),
                    _ => self.multiply::<L, 2, 2>(begins, sums, stride),
                }
            } else {
                match rows {
                    5.. => self.multiply::<L, 6, 1>(begins, sums, stride),
                    3.. => self.multiply::<L, 4, 1>(begins, sums, stride),
                    _ => self.multiply::<L, 2, 1>(begins, sums, stride),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<L: Lanes, const R: usize, const V: usize>(
        self,
        begins: bool,
        out: &mut [f32],
        stride: usize,
    ) {
        let Self { factors, strip, depth } = self;
        let (factors, strip) = (factors.as_ptr(), strip.as_ptr());
        // SAFETY: the caller has the rows, the columns and the instructions.
        unsafe {
            let mut sums = [[L::splat(0.0); V]; R];
            for k in 0..depth {
                let mut columns = [L::splat(0.0); V];
                for v in 0..V {
                    columns[v] = L::load(strip.add((k * V + v) * LANES));
                }
                for r in 0..R {
                    let factor = L::splat(*factors.add(r * PITCH + k));
                    for v in 0..V {
                        sums[r][v] = factor.fma(columns[v], sums[r][v]);
                    }
                }
            }
            for r in 0..R {
                for v in 0..V {
                    let to = out.as_mut_ptr().add(r * stride + v * LANES);
                    let sum = if begins { sums[r][v] } else { L::load(to).add(sums[r][v]) };
                    sum.store(to);
                }
            }
        }
    }
}

/// Writes up to sixteen rows of up to `DEPTH` elements as columns of a strip, from `to` on. Missing rows are zeros.
///
/// # Safety
/// `L`'s instructions are available, all rows have `depth` elements, and `to` has room for so many rows, in whole
/// sixteens, of `columns` floats.
#[inline(always)]
pub(crate) unsafe fn pack<L: Lanes, E: Element>(rows: &[&[u8]], depth: usize, to: *mut f32, columns: usize) {
    for from in (0..depth).step_by(LANES) {
        // SAFETY: the caller's promise; a padded row has sixteen elements of at most four bytes.
        unsafe {
            let mut square = [L::splat(0.0); LANES];
            for (lanes, row) in square.iter_mut().zip(rows) {
                let elements = &row[from * E::BYTES..depth.min(from + LANES) * E::BYTES];
                *lanes = if elements.len() == LANES * E::BYTES {
                    E::load(elements.as_ptr())
                } else {
                    let mut padded = [0u8; 4 * LANES];
                    padded[..elements.len()].copy_from_slice(elements);
                    E::load(padded.as_ptr())
                };
            }
            L::store_columns(&square, to.add(from * columns), columns);
        }
    }
}
