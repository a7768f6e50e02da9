//! Passes over a row of logits. Each has one fixed order of sums, so the same bits with any instruction set.

#![allow(clippy::needless_range_loop)] // lanes, which compilers turn into vectors

use crate::kernels::simd::dispatch::by_isa;

const LANES: usize = 16;

by_isa!(
    /// The greatest value (-infinity where there is none), and whether one is NaN.
    pub fn greatest(values: &[f32]) -> (f32, bool) = greatest_in
);

by_isa!(
    /// Writes `values` to `out`, which is as long, with -infinity where the bit of `allowed` is 0: bit i % 32 of word i / 32.
    /// The greatest of what is written.
    pub fn among(values: &[f32], allowed: &[u32], out: &mut [f32]) -> f32 = among_in
);

#[inline(always)]
fn among_in(values: &[f32], allowed: &[u32], out: &mut [f32]) -> f32 {
    const WORD: usize = u32::BITS as usize;
    let mut most = [f32::NEG_INFINITY; WORD];
    let (whole, rest) = values.as_chunks::<WORD>();
    let (out, out_rest) = out.as_chunks_mut::<WORD>();
    for ((values, out), &word) in whole.iter().zip(out).zip(allowed) {
        // Grammars allow few tokens, or most.
        if word == 0 {
            *out = [f32::NEG_INFINITY; WORD];
            continue;
        }
        for i in 0..WORD {
            out[i] = if word & (1 << i) != 0 { values[i] } else { f32::NEG_INFINITY };
            most[i] = if out[i] > most[i] { out[i] } else { most[i] };
        }
    }
    let word = allowed.get(whole.len()).copied().unwrap_or(0);
    for (i, (x, out)) in rest.iter().zip(out_rest).enumerate() {
        *out = if word & (1 << i) != 0 { *x } else { f32::NEG_INFINITY };
        most[i] = if *out > most[i] { *out } else { most[i] };
    }
    most.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

#[inline(always)]
fn greatest_in(values: &[f32]) -> (f32, bool) {
    let (mut most, mut nan) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    let (whole, rest) = values.as_chunks::<LANES>();
    for values in whole {
        for i in 0..LANES {
            most[i] = if values[i] > most[i] { values[i] } else { most[i] };
            nan[i] |= values[i].is_nan();
        }
    }
    for (i, x) in rest.iter().enumerate() {
        most[i] = if *x > most[i] { *x } else { most[i] };
        nan[i] |= x.is_nan();
    }
    (most.into_iter().fold(f32::NEG_INFINITY, f32::max), nan.contains(&true))
}

/// `e^x` for x <= 0, within 2 units in the last place; 0 below -87. Branch-free, so that it vectorizes.
/// Cody-Waite reduction and the polynomial of Cephes' expf.
#[inline(always)]
pub fn exp_neg(x: f32) -> f32 {
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

by_isa!(
    /// `sum of e^((x - max) / temperature)`, of those that are at least `floor`, in sixteen f64 accumulators.
    pub fn sum_exp(logits: &[f32], max: f32, temperature: f32, floor: f32) -> f64 = sum_exp_in
);

#[inline(always)]
fn sum_exp_in(logits: &[f32], max: f32, temperature: f32, floor: f32) -> f64 {
    let mut lanes = [0.0; LANES];
    let (whole, rest) = logits.as_chunks::<LANES>();
    for logits in whole {
        for i in 0..LANES {
            lanes[i] += term(logits[i], max, temperature, floor);
        }
    }
    for (i, x) in rest.iter().enumerate() {
        lanes[i] += term(*x, max, temperature, floor);
    }
    lanes.iter().sum()
}

by_isa!(
    /// Of the finite logits that are at least `floor`: their number, and the sums of `value` of each, as `sum_exp`.
    pub fn sums(value: Value, logits: &[f32], max: f32, temperature: f32, floor: f32) -> (f64, [f64; 2]) = sums_in
);

/// What is summed of a logit.
#[derive(Clone, Copy)]
pub enum Value {
    /// With w as in `sum_exp` and `d = (max - x) / temperature`: `w d` and nothing.
    Entropy,
    /// `max - x`, and its square.
    Distance,
}

#[inline(always)]
fn sums_in(value: Value, logits: &[f32], max: f32, temperature: f32, floor: f32) -> (f64, [f64; 2]) {
    match value {
        Value::Entropy => sums_of(logits, floor, |x| {
            let d = (max - x) / temperature;
            let weight = exp_neg(-d);
            // Where the weight is 0 the distance may be infinite.
            [f64::from(if weight > 0.0 { weight * d } else { 0.0 }), 0.0]
        }),
        Value::Distance => sums_of(logits, floor, |x| {
            let below = f64::from(max) - f64::from(x);
            [below, below * below]
        }),
    }
}

#[inline(always)]
fn sums_of(logits: &[f32], floor: f32, value: impl Fn(f32) -> [f64; 2]) -> (f64, [f64; 2]) {
    let (mut counts, mut a, mut b) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    let mut add = |i: usize, x: f32| {
        let (counted, of) = (x >= floor && x > f32::NEG_INFINITY, value(x));
        counts[i] += if counted { 1.0 } else { 0.0 };
        a[i] += if counted { of[0] } else { 0.0 };
        b[i] += if counted { of[1] } else { 0.0 };
    };
    let (whole, rest) = logits.as_chunks::<LANES>();
    for logits in whole {
        for i in 0..LANES {
            add(i, logits[i]);
        }
    }
    rest.iter().enumerate().for_each(|(i, x)| add(i, *x));
    (counts.iter().sum(), [a.iter().sum(), b.iter().sum()])
}

#[inline(always)]
fn term(x: f32, max: f32, temperature: f32, floor: f32) -> f64 {
    let weight = exp_neg((x - max) / temperature);
    f64::from(if x >= floor { weight } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Isa, available};

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
    fn what_is_not_allowed_is_minus_infinity() {
        for n in [1, 31, 32, 33, 64, 100, 515] {
            let values: Vec<f32> = (0..n).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
            let words = (0..n / 32 + 1).map(|i| [0, u32::MAX, 0x8000_0001, 0x1234_5678][(i + n) % 4]);
            let allowed: Vec<u32> = words.collect();
            let is_allowed = |i: usize| allowed[i / 32] >> (i % 32) & 1 == 1;
            let of = |i: usize| if is_allowed(i) { values[i] } else { f32::NEG_INFINITY };
            let want: Vec<f32> = (0..n).map(of).collect();
            for isa in available() {
                let mut out = vec![7.0; n];
                let most = among(*isa, &values, &allowed, &mut out);
                assert_eq!((&out, most), (&want, want.iter().copied().fold(f32::NEG_INFINITY, f32::max)));
            }
        }
    }

    #[test]
    fn sums_every_term_once() {
        for n in [1, 7, 8, 9, 100] {
            let logits: Vec<f32> = (0..n).map(|i| i as f32 * 0.1).collect();
            let max = logits[n - 1];
            let want: f64 = logits.iter().map(|&x| f64::from((x - max) / 0.7).exp()).sum();
            let sum = sum_exp(Isa::Scalar, &logits, max, 0.7, f32::MIN);
            assert!((sum / want - 1.0).abs() < 1e-6);
            for isa in available() {
                assert_eq!(sum_exp(*isa, &logits, max, 0.7, f32::MIN).to_bits(), sum.to_bits());
                assert_eq!(greatest(*isa, &logits), (max, false));
            }
        }
    }
}
