//! Passes over a row of logits. Each adds up in one fixed order, so that all instruction sets give the same bits.
//!
//! Sums over `PART` values are in sixteen lanes of f32; larger sums, and all sums of `spread`, are in f64.

#![allow(clippy::needless_range_loop)] // lanes, which compilers turn into vectors

use crate::kernels::simd::dispatch::by_isa;

pub(super) const LANES: usize = 16;
/// Number of values that share a top.
pub const TOP: usize = 128;
/// Number of logits whose weights are summed in f32.
pub const PART: usize = 256;

by_isa!(
    /// Writes the greatest of each `TOP` values to `tops` (-infinity if there is none). Returns whether any value is
    /// NaN.
    pub fn tops(values: &[f32], tops: &mut [f32]) -> bool = tops_in
);

by_isa!(
    /// Writes `values` to `out`, which has the same length, with -infinity if the bit in `allowed` is 0: bit
    /// i % 32 of word i / 32.
    pub fn among(values: &[f32], allowed: &[u32], out: &mut [f32]) = among_in
);

by_isa!(
    /// Sums the weights of `logits`, and writes the sum for each `PART` logits to `masses`.
    pub fn weigh(logits: &[f32], scale: Scale, masses: &mut [f64]) -> Weighed = weigh_in
);

by_isa!(
    /// Returns the number of finite values, and the sums of `max - x` and of its square over them.
    pub fn spread(values: &[f32], max: f32) -> (f64, [f64; 2]) = spread_in
);

by_isa!(
    /// Writes `-|x - pivot|` for each value to `out`, which has the same length.
    pub fn closeness(values: &[f32], pivot: f32, out: &mut [f32]) = closeness_in
);

/// Turns logits into weights: `e^((x - max) / temperature)`, where `max` is the greatest logit.
#[derive(Clone, Copy)]
pub struct Scale {
    max: f32,
    /// Factor of `x - max` in the exponent of a power of 2.
    slope: f32,
}

impl Scale {
    /// `temperature` is at least `f32::MIN_POSITIVE`.
    pub fn new(max: f32, temperature: f32) -> Self {
        Self { max, slope: std::f32::consts::LOG2_E / temperature }
    }

    #[inline(always)]
    pub fn weight(self, logit: f32) -> f32 {
        exp2_neg(self.power(logit))
    }

    /// The exponent of the power of 2 that is the weight; at least `LOWEST`.
    #[inline(always)]
    fn power(self, logit: f32) -> f32 {
        let power = (logit - self.max) * self.slope;
        if power > LOWEST { power } else { LOWEST }
    }
}

/// Sums over logits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weighed {
    /// Number of finite logits.
    pub count: f64,
    /// Sum of the weights.
    pub mass: f64,
    /// Sum of each weight times its natural logarithm.
    pub logs: f64,
}

/// Powers of 2 with this exponent or less are 0.
const LOWEST: f32 = -127.0;

/// `2^x` for x from `LOWEST` to 0, within 2 units in the last place. Branch-free, so that it vectorizes: x is split
/// into a whole number and a remainder of magnitude at most 1/2. A minimax polynomial (relative error 1.1e-7) gives
/// the power of the remainder.
#[allow(clippy::approx_constant)] // one coefficient is close to ln 2, but fits better than ln 2
#[inline(always)]
fn exp2_neg(x: f32) -> f32 {
    /// Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x + ROUND;
    let r = x - (shifted - ROUND);
    let mut p = 1.326_472_7e-3;
    for c in [9.671_513e-3, 5.550_733_6e-2, 2.402_224_3e-1, 6.931_47e-1, 1.0] {
        p = p * r + c;
    }
    // At `LOWEST` all bits are 0.
    p * f32::from_bits((shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127)) << 23)
}

/// The rest of a row after the whole sixteens, padded with -infinity.
#[inline(always)]
pub(super) fn filled(rest: &[f32]) -> [f32; LANES] {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}

#[inline(always)]
fn total(lanes: [f32; LANES]) -> f64 {
    let mut wide = [0.0; LANES];
    for i in 0..LANES {
        wide[i] = f64::from(lanes[i]);
    }
    sum(wide)
}

/// Sums in a tree, which compilers vectorize.
#[inline(always)]
fn sum(lanes: [f64; LANES]) -> f64 {
    let [sum] = halved(halved::<4, 2>(halved::<8, 4>(halved::<16, 8>(lanes))));
    sum
}

#[inline(always)]
fn halved<const N: usize, const HALF: usize>(lanes: [f64; N]) -> [f64; HALF] {
    let mut sums = [0.0; HALF];
    for i in 0..HALF {
        sums[i] = lanes[i] + lanes[i + HALF];
    }
    sums
}

#[inline(always)]
fn tops_in(values: &[f32], tops: &mut [f32]) -> bool {
    let mut bits = [0; LANES];
    for (values, top) in values.chunks(TOP).zip(tops) {
        let mut most = [f32::NEG_INFINITY; LANES];
        let (whole, rest) = values.as_chunks::<LANES>();
        for values in whole {
            greater(&mut most, &mut bits, values);
        }
        if !rest.is_empty() {
            greater(&mut most, &mut bits, &filled(rest));
        }
        let [most] = upper(upper::<4, 2>(upper::<8, 4>(upper::<16, 8>(most))));
        *top = most;
    }
    let mut most = 0;
    for i in 0..LANES {
        most = most.max(bits[i]);
    }
    f32::from_bits(most).is_nan()
}

/// Without its sign, a NaN has greater bits than any other value.
#[inline(always)]
fn greater(most: &mut [f32; LANES], bits: &mut [u32; LANES], values: &[f32; LANES]) {
    for i in 0..LANES {
        most[i] = if values[i] > most[i] { values[i] } else { most[i] };
        bits[i] = bits[i].max(values[i].abs().to_bits());
    }
}

#[inline(always)]
fn upper<const N: usize, const HALF: usize>(lanes: [f32; N]) -> [f32; HALF] {
    let mut upper = [0.0; HALF];
    for i in 0..HALF {
        upper[i] = if lanes[i + HALF] > lanes[i] { lanes[i + HALF] } else { lanes[i] };
    }
    upper
}

#[inline(always)]
fn among_in(values: &[f32], allowed: &[u32], out: &mut [f32]) {
    const WORD: usize = u32::BITS as usize;
    let (whole, rest) = values.as_chunks::<WORD>();
    let (out, out_rest) = out.as_chunks_mut::<WORD>();
    for ((values, out), &word) in whole.iter().zip(out).zip(allowed) {
        // Grammars allow few tokens, or most tokens.
        if word == 0 {
            *out = [f32::NEG_INFINITY; WORD];
            continue;
        }
        for i in 0..WORD {
            out[i] = if word & (1 << i) != 0 { values[i] } else { f32::NEG_INFINITY };
        }
    }
    let word = allowed.get(whole.len()).copied().unwrap_or(0);
    for (i, (x, out)) in rest.iter().zip(out_rest).enumerate() {
        *out = if word & (1 << i) != 0 { *x } else { f32::NEG_INFINITY };
    }
}

#[inline(always)]
fn weigh_in(logits: &[f32], scale: Scale, masses: &mut [f64]) -> Weighed {
    let (mut all, mut counts) = (Weighed::default(), [0; LANES]);
    for (logits, mass) in logits.chunks(PART).zip(masses) {
        let (mut weights, mut logs) = ([0.0; LANES], [0.0; LANES]);
        let (whole, rest) = logits.as_chunks::<LANES>();
        for logits in whole {
            weigh_lanes(logits, scale, &mut weights, &mut logs, &mut counts);
        }
        if !rest.is_empty() {
            weigh_lanes(&filled(rest), scale, &mut weights, &mut logs, &mut counts);
        }
        *mass = total(weights);
        all.mass += *mass;
        all.logs += total(logs);
    }
    all.count = f64::from(counts.iter().sum::<u32>());
    all.logs *= std::f64::consts::LN_2;
    all
}

#[inline(always)]
fn weigh_lanes(
    logits: &[f32; LANES],
    scale: Scale,
    weights: &mut [f32; LANES],
    logs: &mut [f32; LANES],
    counts: &mut [u32; LANES],
) {
    for i in 0..LANES {
        let power = scale.power(logits[i]);
        let weight = exp2_neg(power);
        weights[i] += weight;
        logs[i] += weight * power;
        counts[i] += u32::from(logits[i] > f32::NEG_INFINITY);
    }
}

#[inline(always)]
fn spread_in(values: &[f32], max: f32) -> (f64, [f64; 2]) {
    let (mut counts, mut below, mut squares) = ([0; LANES], [0.0; LANES], [0.0; LANES]);
    let (whole, rest) = values.as_chunks::<LANES>();
    for values in whole {
        spread_lanes(values, max, &mut counts, &mut below, &mut squares);
    }
    spread_lanes(&filled(rest), max, &mut counts, &mut below, &mut squares);
    (f64::from(counts.iter().sum::<u32>()), [sum(below), sum(squares)])
}

/// Sums are in f64, because squares can exceed f32: some models use the least f32 where others use -infinity.
#[inline(always)]
fn spread_lanes(
    values: &[f32; LANES],
    max: f32,
    counts: &mut [u32; LANES],
    below: &mut [f64; LANES],
    squares: &mut [f64; LANES],
) {
    for i in 0..LANES {
        let counted = values[i] > f32::NEG_INFINITY;
        let distance = f64::from(max) - f64::from(if counted { values[i] } else { max });
        below[i] += distance;
        squares[i] += distance * distance;
        counts[i] += u32::from(counted);
    }
}

#[inline(always)]
fn closeness_in(values: &[f32], pivot: f32, out: &mut [f32]) {
    for (x, out) in values.iter().zip(out) {
        *out = -(x - pivot).abs();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Isa, available};

    #[test]
    fn powers_are_close_to_libm() {
        for i in 0..=1_260_000 {
            let x = -(i as f32) * 1e-4;
            let (got, want) = (f64::from(exp2_neg(x)), f64::from(x).exp2());
            assert!((got / want - 1.0).abs() < 2.4e-7, "2^{x} = {got}, want {want}");
        }
    }

    #[test]
    fn weights_at_the_ends() {
        for temperature in [f32::MIN_POSITIVE, 1e-3, 1.0, 100.0, f32::MAX] {
            let scale = Scale::new(3.0, temperature);
            assert_eq!((scale.weight(3.0), scale.weight(f32::NEG_INFINITY)), (1.0, 0.0), "{temperature}");
        }
        assert_eq!(Scale::new(f32::MAX, 1.0).weight(f32::MIN), 0.0);
        assert_eq!(Scale::new(3.0, f32::MIN_POSITIVE).weight(3.0f32.next_down()), 0.0);
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
                among(*isa, &values, &allowed, &mut out);
                assert_eq!(out, want);
            }
        }
    }

    #[test]
    fn the_greatest_of_each_part_is_found_and_so_is_nan() {
        for n in [1, 15, 16, 17, 128, 129, 500] {
            let mut values: Vec<f32> = (0..n).map(|i| ((i * 37) % 101) as f32 - 300.0).collect();
            let want: Vec<f32> = values
                .chunks(TOP)
                .map(|part| part.iter().copied().fold(f32::NEG_INFINITY, f32::max))
                .collect();
            for isa in available() {
                let mut got = vec![7.0; want.len()];
                assert!(!tops(*isa, &values, &mut got));
                assert_eq!(got, want);
            }
            for (at, value) in [(0, f32::NAN), (n / 2, -f32::NAN), (n - 1, f32::NAN)] {
                let before = std::mem::replace(&mut values[at], value);
                for isa in available() {
                    assert!(tops(*isa, &values, &mut vec![0.0; want.len()]), "{isa:?} {n} {at}");
                }
                values[at] = before;
            }
        }
        let ends = [f32::NEG_INFINITY, f32::INFINITY];
        assert!(available().iter().all(|isa| !tops(*isa, &ends, &mut [0.0])));
    }

    #[test]
    fn sums_every_term_once() {
        for n in [1, 7, 16, 17, 255, 256, 257, 1000] {
            let mut logits: Vec<f32> = (0..n).map(|i| ((i * 37) % 101) as f32 * 0.1).collect();
            logits.push(f32::NEG_INFINITY);
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let (scale, possible) = (Scale::new(max, 0.7), &logits[..n]);
            let logs: Vec<f64> = possible.iter().map(|&x| f64::from((x - max) / 0.7)).collect();
            let below: Vec<f64> = possible.iter().map(|&x| f64::from(max) - f64::from(x)).collect();
            let mut masses = vec![0.0; logits.len().div_ceil(PART)];
            let got = weigh(Isa::Scalar, &logits, scale, &mut masses);
            let near = |got: f64, want: f64| (got - want).abs() <= 1e-6 * want.abs();
            assert_eq!(got.count, n as f64);
            assert!(near(got.mass, logs.iter().map(|x| x.exp()).sum()), "{n}");
            assert!(near(got.logs, logs.iter().map(|x| x * x.exp()).sum()), "{n}");
            assert_eq!(masses.iter().sum::<f64>(), got.mass);
            for (part, mass) in logs.chunks(PART).zip(&masses) {
                assert!(near(*mass, part.iter().map(|x| x.exp()).sum()), "{n}");
            }
            let (count, [sum, squares]) = spread(Isa::Scalar, &logits, max);
            assert!(count == n as f64 && near(sum, below.iter().sum()), "{n}");
            assert!(near(squares, below.iter().map(|x| x * x).sum()), "{n}");
            for isa in available() {
                let mut same = vec![0.0; masses.len()];
                assert_eq!((weigh(*isa, &logits, scale, &mut same), &same), (got, &masses), "{isa:?}");
                assert_eq!(spread(*isa, &logits, max), (count, [sum, squares]), "{isa:?}");
            }
        }
    }

    #[test]
    fn closeness_is_the_distance() {
        for isa in available() {
            let mut out = [0.0; 4];
            closeness(*isa, &[1.0, 2.5, f32::NEG_INFINITY, 4.0], 2.0, &mut out);
            assert_eq!(out, [-1.0, -0.5, f32::NEG_INFINITY, -2.0]);
        }
    }
}
