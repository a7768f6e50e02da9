//! Soft caps, `cap * tanh(x / cap)` (Gemma 2), with the same bits from scalar and vector code.
//!
//! Near 0 the tanh is a polynomial, so that small values keep their precision; elsewhere 1 - 2 / (e^2x + 1). The
//! absolute error is below 1e-7, the relative one below 4e-7.

use super::exp::exp_lanes;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::{Lanes, Real};

/// Below this magnitude the polynomial is used: x + x^3 P(x^2), with the coefficients of Cephes' tanhf.
const NEAR: f32 = 0.625;
const P: [f32; 5] = [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];

/// `cap * tanh(x / cap)`; NaN for NaN.
#[inline(always)] // fused where the caller may use FMA
pub fn soft(x: f32, cap: f32) -> f32 {
    // SAFETY: an f32 needs no instructions.
    unsafe { soft_lanes(x, cap) }
}

/// Like `soft`, for each lane.
///
/// # Safety
/// `R`'s instructions are available.
#[inline(always)]
pub unsafe fn soft_lanes<R: Real>(x: R, cap: f32) -> R {
    // SAFETY: the caller's promise.
    unsafe {
        let x = x.div(R::splat(cap));
        let (size, square) = (x.abs(), x.mul(x));
        let near = square.polynomial(&P).mul(square).fma(x, x);
        let below = exp_lanes(size.mul(R::splat(2.0))).add(R::splat(1.0));
        let far = R::splat(1.0).sub(R::splat(2.0).div(below));
        let far = x.less(R::splat(0.0), far.negative(), far);
        size.less(R::splat(NEAR), near, far).mul(R::splat(cap))
    }
}

by_isa!(
    /// Applies `soft` to each value, in place.
    pub fn cap_all(x: &mut [f32], cap: f32) = in_lanes::<lanes>, Scalar
);

#[inline(always)]
unsafe fn in_lanes<L: Lanes>(x: &mut [f32], cap: f32) {
    let (whole, rest) = x.as_chunks_mut::<16>();
    for x in whole {
        // SAFETY: arrays of sixteen.
        unsafe { soft_lanes(L::load(x.as_ptr()), cap).store(x.as_mut_ptr()) }
    }
    rest.iter_mut().for_each(|x| *x = soft(*x, cap));
}

#[cfg(test)]
mod tests {
    use super::{cap_all, soft};
    use crate::kernels::available;

    fn inputs() -> Vec<f32> {
        let odd = [0.0, -0.0, 1e-20, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::NAN];
        (-20_000..20_001).map(|i| i as f32 * 0.0297).chain(odd).collect()
    }

    #[test]
    fn close_to_the_true_value() {
        for x in inputs().into_iter().filter(|x| !x.is_nan()) {
            let (got, want) = (f64::from(soft(x, 30.0)), 30.0 * (f64::from(x) / 30.0).tanh());
            assert!((got - want).abs() <= 4e-7 * want.abs(), "{x}: {got} for {want}");
        }
        assert!(soft(f32::NAN, 30.0).is_nan());
    }

    #[test]
    fn vector_bits_are_scalar_bits() {
        let x = inputs();
        for isa in available() {
            let mut y = x.clone();
            cap_all(*isa, &mut y, 30.0);
            for (x, y) in x.iter().zip(y) {
                assert!(y.to_bits() == soft(*x, 30.0).to_bits() || x.is_nan() && y.is_nan(), "{isa:?} {x}");
            }
        }
    }
}
