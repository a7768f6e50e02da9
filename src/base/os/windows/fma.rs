//! Replaces MinGW-w64's `fmaf`, which rounds the last bit wrongly. Code for processors without an FMA instruction calls
//! it, and its results must equal those of the instruction.

/// x * y + z, rounded once, to the nearest, ties to even.
// SAFETY: the name, the arguments and the result are C's.
#[unsafe(no_mangle)]
extern "C" fn fmaf(x: f32, y: f32, z: f32) -> f32 {
    let (product, z) = (f64::from(x) * f64::from(y), f64::from(z)); // exact: 48 bits
    let sum = product + z;
    // The rounding error of the sum, exact if both terms are finite (Knuth's two-sum).
    let rest = sum - product;
    let error = (product - (sum - rest)) + (z - rest);
    // Sets the last bit if there is an error below it, so that the second rounding sees it (round to odd).
    let bits = sum.to_bits();
    if error == 0.0 || !error.is_finite() || bits & 1 == 1 {
        return sum as f32;
    }
    let outwards = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if outwards { bits + 1 } else { bits - 1 }) as f32
}

#[cfg(test)]
mod tests {
    /// Compares with exact integer arithmetic: products of 48 bits, and addends at every distance.
    #[test]
    fn it_is_rounded_once() {
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random >> 40
        };
        for _ in 0..100_000 {
            let (x, y, z) =
                (next() as i128 - (1 << 23), next() as i128 - (1 << 23), next() as i128 - (1 << 23));
            for shift in 0..70 {
                let exact = x * y + (z << shift);
                let scaled = z as f32 * 2f32.powi(shift);
                let got = std::hint::black_box(super::fmaf)(x as f32, y as f32, scaled);
                assert_eq!(got, exact as f32, "{x} * {y} + {z} << {shift}");
            }
        }
        for (x, y, z) in
            [(f32::INFINITY, 0.0, 1.0), (f32::NAN, 1.0, 1.0), (f32::INFINITY, 1.0, f32::NEG_INFINITY)]
        {
            assert!(super::fmaf(x, y, z).is_nan());
        }
        assert_eq!(super::fmaf(f32::MAX, 2.0, -f32::MAX), f32::MAX);
        assert_eq!(super::fmaf(f32::MAX, 2.0, 0.0), f32::INFINITY);
        assert_eq!(super::fmaf(f32::MIN_POSITIVE, 0.5, 0.0), f32::MIN_POSITIVE / 2.0);
        assert_eq!(super::fmaf(-0.0, 1.0, -0.0).to_bits(), (-0.0f32).to_bits());
    }
}
