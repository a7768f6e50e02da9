//! Exponentials and their sums in one fixed order, the same on every machine.

/// `e^x` for x <= 0, within 2 units in the last place; 0 below -87. Branch-free, so that it vectorizes.
/// Cody-Waite reduction and the polynomial of Cephes' expf.
#[inline]
pub(super) fn exp_neg(x: f32) -> f32 {
    /// Adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let bounded = x.max(-87.0);
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = bounded - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let power = f32::from_bits(((shifted.to_bits() as i32 - ROUND.to_bits() as i32 + 127) << 23) as u32);
    let y = (p * r * r + r + 1.0) * power;
    if x < -87.0 { 0.0 } else { y }
}

/// `sum of e^((x - max) / temperature)`, of those that are at least `floor`; eight f64 accumulators.
pub(super) fn sum_exp(logits: &[f32], max: f32, temperature: f32, floor: f32) -> f64 {
    const LANES: usize = 8;
    let term = |x: f32| {
        let w = exp_neg((x - max) / temperature);
        f64::from(if x >= floor { w } else { 0.0 })
    };
    let mut lanes = [0.0; LANES];
    let chunks = logits.chunks_exact(LANES);
    let rest: f64 = chunks.remainder().iter().map(|&x| term(x)).sum();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += term(x);
        }
    }
    lanes.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_libm() {
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let (got, want) = (f64::from(exp_neg(x)), f64::from(x).exp());
            assert!((got / want - 1.0).abs() < 3e-7, "exp({x}) = {got}, want {want}");
        }
        assert_eq!(exp_neg(0.0), 1.0);
        assert_eq!(exp_neg(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_neg(-1000.0), 0.0);
    }

    #[test]
    fn sums_every_term_once() {
        for n in [1, 7, 8, 9, 100] {
            let logits: Vec<f32> = (0..n).map(|i| i as f32 * 0.1).collect();
            let max = logits[n - 1];
            let want: f64 = logits.iter().map(|&x| f64::from((x - max) / 0.7).exp()).sum();
            assert!((sum_exp(&logits, max, 0.7, f32::MIN) / want - 1.0).abs() < 1e-6);
        }
    }
}
