//! The softplus function with the same bits everywhere: on each system, whatever its `exp`, and on devices
//! (`cuda/kernels/recurrent.cu`).

/// Above it, softplus(x) is x (torch).
const LINEAR: f32 = 20.0;
/// Below it, e^x is less than half of the smallest f32.
const ZERO: f32 = -104.0;
/// ln 2 in two parts (Cody and Waite 1980). The product of the first one and a number of 20 bits is exact.
const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// Terms of the series of e^r, for |r| up to ln(2) / 2.
const EXP_TERMS: usize = 12;
/// Terms of the series of artanh(s) / s in s², for s up to 1/3.
const ARTANH_TERMS: usize = 13;

/// 1 / n! for each term.
const INVERSE: [f64; EXP_TERMS] = {
    let (mut all, mut factorial, mut n) = ([1.0; EXP_TERMS], 1.0, 1);
    while n < EXP_TERMS {
        factorial *= n as f64;
        all[n] = 1.0 / factorial;
        n += 1;
    }
    all
};

/// ln(1 + e^x), computed in f64 as max(x, 0) + ln(1 + e^-|x|), with an error of 1e-13 before it is rounded. NaN for
/// NaN.
pub fn softplus(x: f32) -> f32 {
    if x > LINEAR || x.is_nan() {
        return x;
    }
    if x < ZERO {
        return 0.0;
    }
    let x = f64::from(x);
    let t = exp_of_negative(x.abs());
    // ln(1 + t) = 2 artanh(t / (2 + t))
    let s = t / (2.0 + t);
    let z = s * s;
    let sum = (0..ARTANH_TERMS).rev().fold(0.0, |sum, k| sum * z + 1.0 / (2 * k + 1) as f64);
    (x.max(0.0) + 2.0 * s * sum) as f32
}

/// e^-x for x from 0 to `-ZERO`.
fn exp_of_negative(x: f64) -> f64 {
    let n = (-x * std::f64::consts::LOG2_E).round_ties_even();
    let r = -x - n * LN2_HIGH - n * LN2_LOW;
    let p = INVERSE[..EXP_TERMS - 1].iter().rev().fold(INVERSE[EXP_TERMS - 1], |sum, by| sum * r + by);
    // n is within -151..=0, so that the power is a normal number.
    p * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::softplus;

    #[test]
    fn softplus_is_the_formula() {
        for x in (-120_000..30_000).map(|i| i as f32 * 1e-3).chain([1e30, f32::INFINITY, f32::NEG_INFINITY]) {
            let want = if x > 20.0 { f64::from(x) } else { f64::from(x).exp().ln_1p() };
            let (got, least) = (f64::from(softplus(x)), f64::from(f32::from_bits(1)));
            // Half a unit in the last place.
            let error = (got - want).abs();
            assert!(got == want || error <= want * 5.97e-8 + 0.51 * least, "{x}: {got} for {want}");
        }
        assert!(softplus(f32::NAN).is_nan());
    }
}
