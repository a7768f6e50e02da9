//! Rotary position embedding (Su et al. 2021).

use crate::kernels::pool::buffer::grown;

/// Cosine and sine of `position * inv_freq[i]`, times `factor`, for each position, `[positions, 2 * pairs]`: cosines,
/// then sines. In f64 and rounded, so that far positions keep their phase; then multiplied.
pub fn table(positions: &[u32], inv_freq: &[f32], factor: f32, out: &mut Vec<f32>) {
    grown(out, positions.len() * 2 * inv_freq.len());
    out.clear();
    for &position in positions {
        let angles = inv_freq.iter().map(|f| position as f64 * *f as f64);
        out.extend(angles.clone().map(|a| a.cos() as f32 * factor));
        out.extend(angles.map(|a| a.sin() as f32 * factor));
    }
}

/// Rotates one head by a row of `table`; pairs are (i, i + pairs), or (2i, 2i + 1) when `interleaved`.
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
