//! The indices of rows, read from the file's bytes.

use super::Offsets;
use super::formats::{Format, ODD};
use crate::kernels::gemm::driver::Task;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::{Lanes, Real};
use crate::kernels::simd::shorts::Shorts;

/// Some units of all rows of a task.
pub(super) struct Source<'a> {
    packed: &'a [u8],
    row_bytes: usize,
    rows: usize,
    /// Offset of the units in a row, their number, and their bytes.
    at: usize,
    units: usize,
    bytes: usize,
}

impl<'a> Source<'a> {
    /// The units of `count` tiles from `first` on.
    pub(super) fn new<F: Format, X>(task: &Task<'a, X>, first: usize, count: usize) -> Self {
        assert!(first.is_multiple_of(F::TILES) && count.is_multiple_of(F::TILES) && task.only.is_none());
        let (at, units) = (first / F::TILES * F::BYTES, count / F::TILES);
        let end = at + units * F::BYTES;
        assert!(end <= task.row_bytes && task.packed.len() >= task.rows * task.row_bytes);
        let &Task { packed, row_bytes, rows, .. } = task;
        Self { packed, row_bytes, rows, at, units, bytes: units * F::BYTES }
    }

    /// The addresses of the first and of the last byte of the units after these, to be prefetched.
    #[inline(always)]
    pub(super) fn next(&self, row: usize) -> [*const u8; 2] {
        let first = self.packed.as_ptr().wrapping_add(row * self.row_bytes + self.at + self.bytes);
        [first, first.wrapping_add(self.bytes - 1)]
    }
}

/// Prefetch distance within a panel, in rows.
const AHEAD: usize = 64;

by_isa!(
    /// Reads the offsets of each two tiles, row by row, and the scales of each unit. Rows are a multiple of sixteen;
    /// past the last, it is repeated. Entries are vectors of `lanes`. Returns false if a weight has no entry.
    pub(super) fn index<F: Format>(source: &Source, lanes: usize, offsets: &mut [Offsets], scales: &mut [f32]) -> bool
        = index_in::<sixteen>
);

#[inline(always)]
unsafe fn index_in<S: Shorts, F: Format>(
    source: &Source,
    lanes: usize,
    offsets: &mut [Offsets],
    scales: &mut [f32],
) -> bool {
    let rows = source.rows.next_multiple_of(16);
    assert!(offsets.len() == source.units * F::TILES / 2 * rows);
    // SAFETY (of both): the caller has the instructions, and `Source::new` has checked that each row has the units.
    unsafe {
        if let Some(scale) = F::SCALE {
            for (unit, scales) in scales.chunks_exact_mut(rows).enumerate().take(source.units) {
                read_scales::<S>(source, source.at + unit * F::BYTES + scale, scales);
            }
        }
        match lanes {
            16 => read_codes::<S, F, false>(source, rows, offsets),
            _ => read_codes::<S, F, true>(source, rows, offsets),
        }
    }
}

/// Reads offsets in vectors of sixteen lanes, or of twice as many.
#[inline(always)]
unsafe fn read_codes<S: Shorts, F: Format, const DOUBLE: bool>(
    source: &Source,
    rows: usize,
    offsets: &mut [Offsets],
) -> bool {
    let offsets = offsets.as_mut_ptr();
    // SAFETY: the caller's promise; there are offsets for all rows.
    unsafe {
        let mut odd = S::zero();
        for row in 0..rows {
            let at = row.min(source.rows - 1) * source.row_bytes + source.at;
            let ahead = source.packed.as_ptr().wrapping_add(at + AHEAD * source.row_bytes);
            S::Floats::fetch(ahead);
            S::Floats::fetch(ahead.wrapping_add(source.bytes - 1));
            for unit in 0..source.units {
                let codes = source.packed.as_ptr().add(at + unit * F::BYTES + F::CODES);
                for pair in 0..F::TILES / 2 {
                    let to = offsets.add((unit * F::TILES / 2 + pair) * rows + row);
                    let entries = F::entries(codes, pair, &mut odd);
                    let of_both: S = if DOUBLE { entries.up::<1>() } else { entries };
                    of_both.store(to.cast());
                }
            }
        }
        let mut lanes = [0; 16];
        odd.store(lanes.as_mut_ptr());
        lanes.iter().all(|lane| lane & ODD == 0)
    }
}

/// Reads the f16 at `at` of each row.
#[inline(always)]
unsafe fn read_scales<S: Shorts>(source: &Source, at: usize, scales: &mut [f32]) {
    for (n, scales) in scales.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let mut halves = [0; 16];
        for (row, half) in (16 * n..).zip(&mut halves) {
            let bytes = &source.packed[row.min(source.rows - 1) * source.row_bytes + at..][..2];
            *half = u16::from_le_bytes([bytes[0], bytes[1]]);
        }
        // SAFETY: sixteen of each; the caller has the instructions.
        unsafe { S::Floats::load_f16(halves.as_ptr()).store(scales.as_mut_ptr()) };
    }
}
