//! Rotary position embedding (Su et al. 2021).

use crate::kernels::Pool;
use crate::kernels::gemm::blocks::SharedOut;

/// Cost of a cosine and a sine, in multiply-adds.
const ANGLE: usize = 64;

/// Computes the cosine and the sine of `position(row, i) * inv_freq[i]`, times `factor`, for each row:
/// `[rows, 2 * pairs]`, cosines before sines. Both are computed in f64 and rounded, so that far positions keep
/// their phase; then they are multiplied.
pub fn table(
    pool: &Pool,
    rows: usize,
    position: impl Fn(usize, usize) -> u32 + Sync,
    inv_freq: &[f32],
    factor: f32,
    out: &mut [f32],
) {
    let pairs = inv_freq.len();
    assert_eq!(out.len(), rows * 2 * pairs, "a table is [rows, 2 * pairs]");
    let shared = SharedOut::new(out);
    pool.run_if_worth(rows * pairs * ANGLE, rows, &|n| {
        // SAFETY: each task has a row of its own.
        let row = unsafe { shared.slice(n * 2 * pairs..(n + 1) * 2 * pairs) };
        let (cosines, sines) = row.split_at_mut(pairs);
        for (i, ((cos, sin), f)) in cosines.iter_mut().zip(sines).zip(inv_freq).enumerate() {
            let angle = position(n, i) as f64 * *f as f64;
            (*cos, *sin) = (angle.cos() as f32 * factor, angle.sin() as f32 * factor);
        }
    });
}

/// Rotates one head by a row of `table`. Pairs are (i, i + pairs), or (2i, 2i + 1) if `interleaved`.
pub fn rotate(head: &mut [f32], row: &[f32], interleaved: bool) {
    let pairs = row.len() / 2;
    assert!(2 * pairs <= head.len(), "a head holds what rotates");
    let (cos, sin) = row.split_at(pairs);
    let turn = |a: f32, b: f32, i: usize| (a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]);
    if interleaved {
        for (i, pair) in head[..2 * pairs].chunks_exact_mut(2).enumerate() {
            (pair[0], pair[1]) = turn(pair[0], pair[1], i);
        }
    } else {
        let (low, high) = head[..2 * pairs].split_at_mut(pairs);
        for i in 0..pairs {
            (low[i], high[i]) = turn(low[i], high[i], i);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_quarter_turn_in_both_styles() {
        let row = [0.0, 1.0, 1.0, 0.0]; // pair 0 by 90 degrees, pair 1 not at all
        let mut neox = [1.0, 2.0, 3.0, 4.0, 9.0];
        super::rotate(&mut neox, &row, false);
        assert_eq!(neox, [-3.0, 2.0, 1.0, 4.0, 9.0]);
        let mut interleaved = [1.0, 2.0, 3.0, 4.0];
        super::rotate(&mut interleaved, &row, true);
        assert_eq!(interleaved, [-2.0, 1.0, 3.0, 4.0]);
    }
}
