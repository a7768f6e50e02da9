//! The gated delta rule (Yang et al. 2024, arXiv 2412.06464), token by token.
//!
//! A head's state S is a matrix `[key, value]`. A token with query q, key k, value v, decay d and rate b gives
//!
//! ```text
//! u = b (v - (d S)ᵀ k);  S = d S + k uᵀ;  o = Sᵀ q
//! ```
//!
//! The columns of S do not depend on each other, so the state is stored in tiles of `TILE` columns. A tile of 128 keys
//! stays in the L1 cache for all tokens of a chunk. Prefill and decode run the same operations in the same order, so a
//! chunk gives the bits of its tokens one by one.

use super::tile::{Inputs, PARTS, TileRow, part_of, update};
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::Lanes;

by_isa!(
    /// Runs as many tokens as `out` has rows through a tile of a head's state, one after the other.
    pub fn run(state: &mut [TileRow], inputs: Inputs, out: &mut [TileRow]) = in_lanes::<lanes>, Scalar
);

#[inline(always)]
unsafe fn in_lanes<L: Lanes>(state: &mut [TileRow], inputs: Inputs, out: &mut [TileRow]) {
    for (t, out) in out.iter_mut().enumerate() {
        let (q, k, v, [decay, rate]) = inputs.token(t, state.len());
        // SAFETY: rows of a tile have `PARTS` times sixteen elements.
        unsafe {
            let decay = L::splat(decay);
            let mut u = [L::splat(0.0); PARTS];
            for (s, k) in state.iter().zip(k) {
                let k = L::splat(*k);
                for (part, u) in u.iter_mut().enumerate() {
                    *u = part_of::<L>(s, part).mul(decay).fma(k, *u);
                }
            }
            for (part, u) in u.iter_mut().enumerate() {
                *u = part_of::<L>(&v, part).sub(*u).mul(L::splat(rate));
            }
            update(state, decay, [k, q], u, [L::splat(0.0); PARTS], out);
        }
    }
}
