//! Compares both recurrences with their formulas, on every instruction set and in chunks.

use super::tile::{Inputs, TILE, TileRow};
use super::{delta, mamba};
use crate::kernels::{Isa, available};

const KEYS: usize = 24;
const WIDTH: usize = 29;
const TOKENS: usize = 7;
/// Stride of a token: q, k, v and three elements that nothing reads.
const STRIDE: usize = 2 * KEYS + WIDTH + 3;
const SKIP: f32 = 0.7;

struct Case {
    name: &'static str,
    /// The gates of a token, by its number.
    gates: fn(f32) -> [f32; 2],
    run: fn(Isa, &mut [TileRow], Inputs, &mut [TileRow]),
    /// A token in f64: u, and the output before the state is read, from v, its gates and (d S)ᵀ k.
    formula: fn(f64, [f64; 2], f64) -> [f64; 2],
}

const CASES: [Case; 2] = [
    Case {
        name: "delta",
        gates: |t| [0.5 + 0.06 * t, 0.9 - 0.1 * t],
        run: delta::run,
        formula: |v, [_, rate], memory| [(v - memory) * rate, 0.0],
    },
    Case {
        name: "mamba",
        gates: |t| [0.5 + 0.06 * t, 0.05 + 0.3 * t],
        run: |isa, state, inputs, out| mamba::run(isa, state, inputs, SKIP, out),
        formula: |x, [_, step], _| [step * x, f64::from(SKIP) * x],
    },
];

/// The rows of a case, and their gates.
fn given(case: &Case) -> (Vec<f32>, Vec<f32>) {
    let value = |n: usize| ((n * 37 + 11) % 101) as f32 / 50.0 - 1.0;
    let rows = (0..TOKENS * STRIDE).map(|n| 0.4 * value(n)).collect();
    (rows, (0..TOKENS).flat_map(|t| (case.gates)(t as f32)).collect())
}

fn inputs<'a>(rows: &'a [f32], gates: &'a [f32]) -> Inputs<'a> {
    let (q, k, v) = (rows, &rows[KEYS..], &rows[2 * KEYS..]);
    Inputs { q, k, v, stride: STRIDE, width: WIDTH, gates, gates_stride: 2 }
}

#[test]
fn the_formula_in_f64() {
    for case in &CASES {
        let (rows, gates) = given(case);
        let (mut state, mut out) = (vec![[0.0; TILE]; KEYS], vec![[0.0; TILE]; TOKENS]);
        (case.run)(Isa::Scalar, &mut state, inputs(&rows, &gates), &mut out);
        let mut s = vec![[0.0f64; WIDTH]; KEYS];
        for t in 0..TOKENS {
            let row: Vec<f64> = rows[t * STRIDE..][..STRIDE].iter().map(|x| f64::from(*x)).collect();
            let (q, k, v) = (&row[..KEYS], &row[KEYS..2 * KEYS], &row[2 * KEYS..]);
            let gates = [2 * t, 2 * t + 1].map(|at| f64::from(gates[at]));
            for column in 0..WIDTH {
                s.iter_mut().for_each(|s| s[column] *= gates[0]);
                let memory: f64 = s.iter().zip(k).map(|(s, k)| s[column] * k).sum();
                let [u, before] = (case.formula)(v[column], gates, memory);
                s.iter_mut().zip(k).for_each(|(s, k)| s[column] += k * u);
                let want = before + s.iter().zip(q).map(|(s, q)| s[column] * q).sum::<f64>();
                let got = f64::from(out[t][column]);
                assert!(
                    (got - want).abs() < 1e-5,
                    "{}, token {t}, column {column}: {got}, {want}",
                    case.name
                );
            }
            assert_eq!(out[t][WIDTH..], [0.0; TILE - WIDTH], "{}", case.name);
        }
    }
}

#[test]
fn equal_bits_from_every_instruction_set_and_in_any_chunks() {
    let bits = |rows: &[TileRow]| rows.as_flattened().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for case in &CASES {
        let (rows, gates) = given(case);
        let of = |isa, chunks: &[usize]| {
            let (mut state, mut out) = (vec![[0.1; TILE]; KEYS], vec![[0.0; TILE]; TOKENS]);
            let mut at = 0;
            for chunk in chunks {
                (case.run)(isa, &mut state, inputs(&rows, &gates).from(at), &mut out[at..at + chunk]);
                at += chunk;
            }
            (bits(&state), bits(&out))
        };
        let want = of(Isa::Scalar, &[TOKENS]);
        for isa in available() {
            assert_eq!(of(*isa, &[TOKENS]), want, "{}, {}", case.name, isa.name());
            assert_eq!(of(*isa, &[1, 3, 2, 1]), want, "{}, {}", case.name, isa.name());
        }
    }
}
