//! The states of heads in tiles of columns, and the code that both recurrences share.

use crate::kernels::simd::lanes::Lanes;

/// Columns of a tile. The last tile of a head is filled up with zeros.
pub const TILE: usize = 32;

/// A row of a tile: its columns for one element of the key.
pub type TileRow = [f32; TILE];

/// Number of groups of sixteen columns in a row of a tile.
pub(super) const PARTS: usize = TILE / 16;

/// The inputs of one head for consecutive tokens. The inputs of token t begin at t times the stride.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// These slices begin at the head's query and key of the first token.
    pub q: &'a [f32],
    pub k: &'a [f32],
    /// Begins at the tile's first column of the head's value.
    pub v: &'a [f32],
    pub stride: usize,
    /// Number of the tile's columns that the head has.
    pub width: usize,
    /// Decay and rate of each token.
    pub gates: &'a [f32],
    pub gates_stride: usize,
}

impl<'a> Inputs<'a> {
    /// The inputs from token `at` on.
    pub fn from(self, at: usize) -> Self {
        let Self { stride, gates_stride, .. } = self;
        Self {
            q: &self.q[at * stride..],
            k: &self.k[at * stride..],
            v: &self.v[at * stride..],
            gates: &self.gates[at * gates_stride..],
            ..self
        }
    }

    pub(super) fn token(self, t: usize, keys: usize) -> (&'a [f32], &'a [f32], TileRow, [f32; 2]) {
        let at = t * self.stride;
        let mut v = [0.0; TILE];
        v[..self.width].copy_from_slice(&self.v[at..at + self.width]);
        let gates = &self.gates[t * self.gates_stride..];
        (&self.q[at..at + keys], &self.k[at..at + keys], v, [gates[0], gates[1]])
    }
}

/// Sixteen columns of a row.
///
/// # Safety
/// `L`'s instructions are available.
#[inline(always)]
pub(super) unsafe fn part_of<L: Lanes>(row: &TileRow, part: usize) -> L {
    debug_assert!(part < PARTS);
    // SAFETY: the caller has the instructions; a row has `PARTS` times sixteen elements.
    unsafe { L::load(row.as_ptr().add(16 * part)) }
}

/// `S = d S + k uᵀ`, then `out = y + Sᵀ q`, for one token.
///
/// # Safety
/// `L`'s instructions are available.
#[inline(always)]
pub(super) unsafe fn update<L: Lanes>(
    state: &mut [TileRow],
    decay: L,
    [k, q]: [&[f32]; 2],
    u: [L; PARTS],
    mut y: [L; PARTS],
    out: &mut TileRow,
) {
    for ((s, k), q) in state.iter_mut().zip(k).zip(q) {
        // SAFETY: as for `part_of`.
        unsafe {
            let (k, q) = (L::splat(*k), L::splat(*q));
            for (part, (u, y)) in u.iter().zip(&mut y).enumerate() {
                let new = u.fma(k, part_of::<L>(s, part).mul(decay));
                new.store(s.as_mut_ptr().add(16 * part));
                *y = new.fma(q, *y);
            }
        }
    }
    for (part, y) in y.into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { y.store(out.as_mut_ptr().add(16 * part)) };
    }
}
