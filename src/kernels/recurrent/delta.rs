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

use super::tile::{Inputs, PARTS, TILE, TileRow, part_of, update, update_column};
use crate::kernels::Isa;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::Lanes;

/// Runs as many tokens as `out` has rows through a tile of a head's state, one after the other.
pub fn run(isa: Isa, state: &mut [TileRow], inputs: Inputs, out: &mut [TileRow]) {
    tokens(isa, state, inputs, out);
}

by_isa!(fn tokens(state: &mut [TileRow], inputs: Inputs, out: &mut [TileRow]) = in_lanes::<lanes>, in_scalars);

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

/// The reference.
fn in_scalars(state: &mut [TileRow], inputs: Inputs, out: &mut [TileRow]) {
    for (t, out) in out.iter_mut().enumerate() {
        let (q, k, v, [decay, rate]) = inputs.token(t, state.len());
        for column in 0..TILE {
            let u = state.iter().zip(k).fold(0.0, |u, (s, k)| (s[column] * decay).mul_add(*k, u));
            let u = (v[column] - u) * rate;
            out[column] = update_column(state, column, decay, [k, q], u, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::available;

    const KEYS: usize = 24;
    const WIDTH: usize = 29;
    const TOKENS: usize = 7;
    const STRIDE: usize = 2 * KEYS + WIDTH + 3;

    fn rows() -> (Vec<f32>, Vec<f32>) {
        let value = |n: usize| ((n * 37 + 11) % 101) as f32 / 50.0 - 1.0;
        let gates = (0..TOKENS).flat_map(|t| [0.5 + 0.06 * t as f32, 0.9 - 0.1 * t as f32]);
        ((0..TOKENS * STRIDE).map(|n| 0.3 * value(n)).collect(), gates.collect())
    }

    fn inputs<'a>(rows: &'a [f32], gates: &'a [f32]) -> Inputs<'a> {
        let (q, k, v) = (rows, &rows[KEYS..], &rows[2 * KEYS..]);
        Inputs { q, k, v, stride: STRIDE, width: WIDTH, gates, gates_stride: 2 }
    }

    fn bits(rows: &[TileRow]) -> Vec<u32> {
        rows.as_flattened().iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn the_formula_in_f64() {
        let (rows, gates) = rows();
        let (mut state, mut out) = (vec![[0.0; TILE]; KEYS], vec![[0.0; TILE]; TOKENS]);
        run(Isa::Scalar, &mut state, inputs(&rows, &gates), &mut out);
        let mut s = vec![[0.0f64; WIDTH]; KEYS];
        for t in 0..TOKENS {
            let row: Vec<f64> = rows[t * STRIDE..][..STRIDE].iter().map(|x| f64::from(*x)).collect();
            let (q, k, v) = (&row[..KEYS], &row[KEYS..2 * KEYS], &row[2 * KEYS..]);
            let (decay, rate) = (f64::from(gates[2 * t]), f64::from(gates[2 * t + 1]));
            for column in 0..WIDTH {
                s.iter_mut().for_each(|s| s[column] *= decay);
                let memory: f64 = s.iter().zip(k).map(|(s, k)| s[column] * k).sum();
                let u = (v[column] - memory) * rate;
                s.iter_mut().zip(k).for_each(|(s, k)| s[column] += k * u);
                let want: f64 = s.iter().zip(q).map(|(s, q)| s[column] * q).sum();
                assert!((f64::from(out[t][column]) - want).abs() < 1e-6, "token {t}, column {column}");
            }
            assert_eq!(out[t][WIDTH..], [0.0; TILE - WIDTH]);
        }
    }

    #[test]
    fn equal_bits_from_every_instruction_set_and_in_any_chunks() {
        let (rows, gates) = rows();
        let of = |isa, chunks: &[usize]| {
            let (mut state, mut out) = (vec![[0.1; TILE]; KEYS], vec![[0.0; TILE]; TOKENS]);
            let mut at = 0;
            for chunk in chunks {
                run(isa, &mut state, inputs(&rows, &gates).from(at), &mut out[at..at + chunk]);
                at += chunk;
            }
            (bits(&state), bits(&out))
        };
        let want = of(Isa::Scalar, &[TOKENS]);
        for isa in available() {
            assert_eq!(of(*isa, &[TOKENS]), want, "{}", isa.name());
            assert_eq!(of(*isa, &[1, 3, 2, 1]), want, "{}", isa.name());
        }
    }
}
