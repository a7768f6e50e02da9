//! e^x with the same bits from scalar and vector code.
//!
//! Reduces the range by n = round(x log2 e), with ln 2 in two parts (Cody and Waite 1980). A minimax polynomial of
//! degree 5 computes the rest (coefficients of Cephes' expf). The relative error is below 2e-7.

use crate::kernels::simd::lanes::Real;

/// Below `LOW` the result is 0. Above `HIGH`, far above what softmax and SiLU need, it is infinity.
const LOW: f32 = -87.0;
const HIGH: f32 = 88.0;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
const P: [f32; 6] = [1.987_569_2e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// e^x; 0 below -87, infinity above 88, NaN for NaN.
#[inline(always)] // fused where the caller may use FMA
pub fn exp(x: f32) -> f32 {
    // SAFETY: an f32 needs no instructions.
    unsafe { exp_lanes(x) }
}

/// Like `exp`, for each lane.
///
/// # Safety
/// `R`'s instructions are available.
#[inline(always)]
pub unsafe fn exp_lanes<R: Real>(x: R) -> R {
    // SAFETY: the caller's promise.
    unsafe {
        let n = x.mul(R::splat(LOG2_E)).round();
        let r = n.fma(R::splat(-LN2_LOW), n.fma(R::splat(-LN2_HIGH), x));
        // n is within -126..=127 wherever the result is used, so that the power is a normal number.
        let y = r.polynomial(&P).fma(r.mul(r), r).add(R::splat(1.0)).mul(n.power_of_two());
        let y = x.less(R::splat(LOW), R::splat(0.0), y);
        R::splat(HIGH).less(x, R::splat(f32::INFINITY), y)
    }
}

#[cfg(test)]
mod tests {
    use super::{exp, exp_lanes};
    use crate::kernels::available;
    use crate::kernels::simd::dispatch::by_isa;
    use crate::kernels::simd::lanes::Lanes;

    fn inputs() -> impl Iterator<Item = f32> {
        (-90_000..90_000).map(|i| i as f32 * 1.003e-3).chain([0.0, -0.0, f32::NEG_INFINITY, f32::INFINITY])
    }

    #[test]
    fn close_to_the_true_value() {
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY), exp(f32::INFINITY)), (1.0, 0.0, f32::INFINITY));
        assert!(exp(f32::NAN).is_nan());
        for x in inputs().filter(|x| (-87.0..88.0).contains(x)) {
            let want = (x as f64).exp();
            assert!(((exp(x) as f64 - want) / want).abs() < 2e-7, "{x}");
        }
    }

    by_isa!(fn sixteen(x: &mut [f32; 16]) = in_lanes::<lanes>, Scalar);

    #[inline(always)]
    unsafe fn in_lanes<L: Lanes>(x: &mut [f32; 16]) {
        // SAFETY: sixteen floats are read and written.
        unsafe { exp_lanes(L::load(x.as_ptr())).store(x.as_mut_ptr()) }
    }

    #[test]
    fn vector_bits_are_scalar_bits() {
        let x: Vec<f32> = inputs().chain([f32::NAN; 16]).collect();
        for isa in available() {
            for x in x.as_chunks::<16>().0 {
                let mut y = *x;
                sixteen(*isa, &mut y);
                for (x, y) in x.iter().zip(y) {
                    assert!(y.to_bits() == exp(*x).to_bits() || x.is_nan() && y.is_nan(), "{isa:?} {x}");
                }
            }
        }
    }
}
