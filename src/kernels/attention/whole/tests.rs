use super::*;
use crate::kernels::available;
use crate::kernels::gemm::tiles::{here, modelling};

/// Two heads of q, k and v in a row of six heads.
fn rows(count: usize, dim: usize) -> Vec<f32> {
    (0..count * 6 * dim).map(|i| ((i * 37 + i / 7 * 11) % 101) as f32 * 0.02 - 1.0).collect()
}

/// Scores of wide heads stay in the range of those of small ones, so that one tolerance serves all.
fn scale(dim: usize) -> f32 {
    0.3f32.min(8.0 / dim as f32)
}

fn attended(isa: Isa, count: usize, dim: usize, window: Option<usize>) -> Vec<f32> {
    let qkv = rows(count, dim);
    let columns = [dim, 3 * dim, 5 * dim];
    let text = Text { qkv: &qkv, width: 6 * dim, head_dim: dim, columns, scale: scale(dim), window };
    let (mut out, mut scratch) = (vec![vec![f32::NAN; dim]; count], Scratch::default());
    // Memory as an earlier task may have left it.
    let Scratch { queries, keys, values, scores, weights, .. } = &mut scratch;
    for buffer in [queries, keys, values, scores, weights] {
        buffer.resize(count * 8, Line([0xff; 64]));
    }
    let span = span_rows(isa);
    for start in (0..count).step_by(span) {
        let end = count.min(start + span);
        let mut parts: Vec<_> = out[start..end].iter_mut().map(Vec::as_mut_slice).collect();
        scratch.attend(isa, &text, start..end, |row| {
            let part = &mut parts[row - start];
            // SAFETY: the slices outlive the call, and one is used at a time.
            unsafe { std::slice::from_raw_parts_mut(part.as_mut_ptr(), part.len()) }
        });
    }
    out.concat()
}

#[test]
fn it_is_the_formula_in_every_instruction_set() {
    for (count, dim, window) in [
        (1, 4, None),
        (7, 6, None),
        (33, 32, None),
        (40, 20, Some(3)),
        (130, 16, Some(17)),
        (250, 8, None),
        (300, 200, Some(140)),
        (1030, 72, None),
    ] {
        let got = attended(Isa::Scalar, count, dim, window);
        for isa in available().iter().filter(|isa| !with_tiles(**isa)) {
            let other = attended(*isa, count, dim, window);
            assert!(got.iter().zip(&other).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa:?}, {count} rows");
        }
        check(&got, count, dim, window);
    }
}

/// In the model of tiles, and on the processor if it has them.
#[test]
fn tiles_compute_the_formula() {
    let shapes = [(1, 4, None), (33, 34, None), (40, 20, Some(3)), (300, 6, Some(17))];
    for (count, dim, window) in shapes {
        let sets = available().iter().filter(|isa| **isa != Isa::Scalar);
        let model = |isa: &Isa| modelling(*isa, || attended(*isa, count, dim, window));
        let mut all: Vec<_> = sets.map(model).collect();
        all.extend(here().then(|| attended(Isa::Amx, count, dim, window)));
        for got in &all {
            check(got, count, dim, window);
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(bits(got) == bits(&all[0]), "{count} rows");
        }
    }
    // Several tasks and blocks.
    for (count, dim, window) in [(1100, 72, None), (700, 16, Some(300))] {
        if here() {
            check(&attended(Isa::Amx, count, dim, window), count, dim, window);
        }
    }
}

fn check(got: &[f32], count: usize, dim: usize, window: Option<usize>) {
    let qkv = rows(count, dim);
    let head = |which: usize, row: usize| &qkv[row * 6 * dim + (2 * which + 1) * dim..][..dim];
    for row in 0..count {
        let sees = |other: &usize| window.is_none_or(|window| row.abs_diff(*other) <= window);
        let dot = |other| -> f64 {
            head(0, row).iter().zip(head(1, other)).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
        };
        let weights: Vec<(usize, f64)> = (0..count)
            .filter(sees)
            .map(|other| (other, (dot(other) * f64::from(scale(dim))).exp()))
            .collect();
        let total: f64 = weights.iter().map(|(_, w)| w).sum();
        for d in 0..dim {
            let want: f64 =
                weights.iter().map(|(other, w)| w * f64::from(head(2, *other)[d])).sum::<f64>() / total;
            let got = f64::from(got[row * dim + d]);
            assert!((got - want).abs() < 2e-6, "row {row} of {count}: {got} for {want}");
        }
    }
}
