//! The recurrence of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060), token by token.
//!
//! A head's state S is a matrix `[state, value]`. A token with value x, step t, decay d and the vectors b and c of its
//! group gives
//!
//! ```text
//! S = d S + b (t x)ᵀ;  y = Sᵀ c + D x
//! ```
//!
//! The columns of S do not depend on each other, so the state is stored in tiles, as that of the gated delta rule is. Prefill
//! and decode run the same operations in the same order, so a chunk gives the bits of its tokens one by one.

use super::tile::{Inputs, PARTS, TILE, TileRow, part_of, update, update_column};
use crate::kernels::Isa;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::Lanes;

/// Runs as many tokens as `out` has rows through a tile of a head's state, one after the other. Of the inputs q is c, k is b,
/// and v is x; their gates are decay and step. `skip` is the head's D.
pub fn run(isa: Isa, state: &mut [TileRow], inputs: Inputs, skip: f32, out: &mut [TileRow]) {
    tokens(isa, state, inputs, skip, out);
}

by_isa!(
    fn tokens(state: &mut [TileRow], inputs: Inputs, skip: f32, out: &mut [TileRow]) = in_lanes::<lanes>, in_scalars
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

/// The reference.
fn in_scalars(state: &mut [TileRow], inputs: Inputs, skip: f32, out: &mut [TileRow]) {
    for (t, out) in out.iter_mut().enumerate() {
        let (c, b, x, [decay, step]) = inputs.token(t, state.len());
        for column in 0..TILE {
            let u = x[column] * step;
            out[column] = update_column(state, column, decay, [b, c], u, x[column] * skip);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::available;

    const STATE: usize = 24;
    const WIDTH: usize = 29;
    const TOKENS: usize = 7;
    const STRIDE: usize = WIDTH + 2 * STATE + 3;
    const SKIP: f32 = 0.7;

    fn rows() -> (Vec<f32>, Vec<f32>) {
        let value = |n: usize| ((n * 41 + 17) % 103) as f32 / 51.0 - 1.0;
        let gates = (0..TOKENS).flat_map(|t| [0.5 + 0.06 * t as f32, 0.05 + 0.3 * t as f32]);
        ((0..TOKENS * STRIDE).map(|n| 0.5 * value(n)).collect(), gates.collect())
    }

    fn inputs<'a>(rows: &'a [f32], gates: &'a [f32]) -> Inputs<'a> {
        let (v, k, q) = (rows, &rows[WIDTH..], &rows[WIDTH + STATE..]);
        Inputs { q, k, v, stride: STRIDE, width: WIDTH, gates, gates_stride: 2 }
    }

    fn bits(rows: &[TileRow]) -> Vec<u32> {
        rows.as_flattened().iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn the_formula_in_f64() {
        let (rows, gates) = rows();
        let (mut state, mut out) = (vec![[0.0; TILE]; STATE], vec![[0.0; TILE]; TOKENS]);
        run(Isa::Scalar, &mut state, inputs(&rows, &gates), SKIP, &mut out);
        let mut s = vec![[0.0f64; WIDTH]; STATE];
        for t in 0..TOKENS {
            let row: Vec<f64> = rows[t * STRIDE..][..STRIDE].iter().map(|x| f64::from(*x)).collect();
            let (x, b, c) = (&row[..WIDTH], &row[WIDTH..WIDTH + STATE], &row[WIDTH + STATE..]);
            let (decay, step) = (f64::from(gates[2 * t]), f64::from(gates[2 * t + 1]));
            for column in 0..WIDTH {
                s.iter_mut().zip(b).for_each(|(s, b)| s[column] = s[column] * decay + b * step * x[column]);
                let sum: f64 = s.iter().zip(c).map(|(s, c)| s[column] * c).sum();
                let want = sum + f64::from(SKIP) * x[column];
                assert!((f64::from(out[t][column]) - want).abs() < 1e-5, "token {t}, column {column}");
            }
            assert_eq!(out[t][WIDTH..], [0.0; TILE - WIDTH]);
        }
    }

    #[test]
    fn equal_bits_from_every_instruction_set_and_in_any_chunks() {
        let (rows, gates) = rows();
        let of = |isa, chunks: &[usize]| {
            let (mut state, mut out) = (vec![[0.1; TILE]; STATE], vec![[0.0; TILE]; TOKENS]);
            let mut at = 0;
            for chunk in chunks {
                run(isa, &mut state, inputs(&rows, &gates).from(at), SKIP, &mut out[at..at + chunk]);
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
