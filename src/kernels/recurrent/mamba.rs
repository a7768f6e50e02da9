//! The recurrence of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060), token by token.
//!
//! A head's state S is a matrix `[state, value]`. A token with value x, step t, decay d and the vectors b and c of its
//! group gives
//!
//! ```text
//! S = d S + b (t x)ᵀ;  y = Sᵀ c + D x
//! ```
//!
//! The columns of S do not depend on each other, so the state is stored in tiles, as that of the gated delta rule is.
//! Prefill and decode run the same operations in the same order, so a chunk gives the bits of its tokens one by one.

use super::tile::{Inputs, PARTS, TileRow, part_of, update};
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::Lanes;

by_isa!(
    /// Runs as many tokens as `out` has rows through a tile of a head's state, one after the other. Of the inputs q is
    /// c, k is b, and v is x; their gates are decay and step. `skip` is the head's D.
    pub fn run(state: &mut [TileRow], inputs: Inputs, skip: f32, out: &mut [TileRow]) = in_lanes::<lanes>, Scalar
);

#[inline(always)]
unsafe fn in_lanes<L: Lanes>(state: &mut [TileRow], inputs: Inputs, skip: f32, out: &mut [TileRow]) {
    for (t, out) in out.iter_mut().enumerate() {
        let (c, b, x, [decay, step]) = inputs.token(t, state.len());
        // SAFETY: rows of a tile have `PARTS` times sixteen elements.
        unsafe {
            let (step, skip) = (L::splat(step), L::splat(skip));
            let (mut u, mut y) = ([L::splat(0.0); PARTS], [L::splat(0.0); PARTS]);
            for (part, (u, y)) in u.iter_mut().zip(&mut y).enumerate() {
                let x = part_of::<L>(&x, part);
                (*u, *y) = (x.mul(step), x.mul(skip));
            }
            update(state, L::splat(decay), [b, c], u, y, out);
        }
    }
}
