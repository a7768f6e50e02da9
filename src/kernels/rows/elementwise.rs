//! Element-wise functions between the products: gated activations and the residual sum.

use super::exp::exp_lanes;
use crate::kernels::Isa;
use crate::kernels::simd::dispatch::{by_isa, inlined};
use crate::kernels::simd::lanes::{Lanes, Real};

/// `out = silu(gate) * up`, silu(g) = g / (1 + e^-g) (Shazeer 2020, "GLU Variants").
pub fn swiglu(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    gated(isa, Silu {}, gate, up, out);
}

/// `swiglu` with the gate at most `limit` and `up` within `-limit` and `limit`; NaN stays.
pub fn clamped_swiglu(isa: Isa, limit: f32, gate: &[f32], up: &[f32], out: &mut [f32]) {
    gated(isa, Clamped { limit }, gate, up, out);
}

/// `swiglu` with a factor on the gate and one on `up`.
pub fn scaled_swiglu(isa: Isa, [by_gate, by_up]: [f32; 2], gate: &[f32], up: &[f32], out: &mut [f32]) {
    gated(isa, Scaled { by_gate, by_up }, gate, up, out);
}

/// `clamped_swiglu` with `alpha` times the gate in the exponent, and 1 added to the clamped `up` (gpt-oss).
pub fn steep_swiglu(isa: Isa, [alpha, limit]: [f32; 2], gate: &[f32], up: &[f32], out: &mut [f32]) {
    gated(isa, Steep { alpha, limit }, gate, up, out);
}

/// `out = gelu(gate) * up` in the tanh form, g/2 (1 + tanh(u)) with u = sqrt(2/pi) (g + 0.044715 g^3) (Hendrycks and
/// Gimpel 2016). Computed as g / (1 + e^-2u), which is equal: 1 + tanh(u) = 2 / (1 + e^-2u).
pub fn geglu(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    gated(isa, Gelu {}, gate, up, out);
}

/// `out = gelu(up)`, in the form of `geglu`.
pub fn gelu(isa: Isa, up: &[f32], out: &mut [f32]) {
    ungated(isa, Gelu {}, up, out);
}

/// `out = gelu(gate) * up` in its own form, `g/2 (1 + erf(g / sqrt(2)))` (Hendrycks and Gimpel 2016).
pub fn geglu_erf(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    gated(isa, GeluErf {}, gate, up, out);
}

/// `out = gelu(up)`, in the form of `geglu_erf`.
pub fn gelu_erf(isa: Isa, up: &[f32], out: &mut [f32]) {
    ungated(isa, GeluErf {}, up, out);
}

/// `out = relu(gate)^2 * up` (BitNet b1.58 2B-4T; So et al. 2021, "Primer").
pub fn relu2(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    gated(isa, Relu2 {}, gate, up, out);
}

/// `out = x / (1 + e^-gate)`: `x` times the logistic function of the gate. SiLU if both are the same.
pub fn logistic(isa: Isa, gate: &[f32], x: &[f32], out: &mut [f32]) {
    gated(isa, Logistic {}, gate, x, out);
}

/// A function of a gate and `up`.
trait Gate: Copy {
    /// # Safety
    /// `R`'s instructions are available.
    unsafe fn output<R: Real>(self, g: R, up: R) -> R;
}

inlined! {
    // x / (1 + e^exponent)
    fn over_power<R: Real>(x: R, exponent: R) -> R = x.div(exp_lanes(exponent).add(R::splat(1.0)));
    // Not with `above`, which would hide a NaN.
    fn at_most<R: Real>(x: R, limit: f32) -> R = R::splat(limit).less(x, R::splat(limit), x);
    fn at_least<R: Real>(x: R, limit: f32) -> R = x.less(R::splat(limit), R::splat(limit), x);
}

/// Defines gates: their parameters and their output.
macro_rules! gates {
    ($($(#[$doc:meta])* $gate:ident { $($by:ident),* } |$g:ident, $up:ident| $output:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $gate {
            $($by: f32,)*
        }

        impl Gate for $gate {
            inlined! {
                fn output<R: Real>(self, $g: R, $up: R) -> R = {
                    let Self { $($by),* } = self;
                    $output
                };
            }
        }
    )*};
}
gates! {
    Silu {} |g, up| over_power(g, g.negative()).mul(up);
    Logistic {} |g, x| over_power(x, g.negative());
    Relu2 {} |g, up| {
        let g = at_least(g, 0.0);
        g.mul(g).mul(up)
    };
    Clamped { limit } |g, up| Silu {}.output(at_most(g, limit), at_least(at_most(up, limit), -limit));
    Scaled { by_gate, by_up } |g, up| Silu {}.output(g.mul(R::splat(by_gate)), up.mul(R::splat(by_up)));
    Steep { alpha, limit } |g, up| {
        let (g, up) = (at_most(g, limit), at_least(at_most(up, limit), -limit));
        over_power(g, g.mul(R::splat(-alpha))).mul(up.add(R::splat(1.0)))
    };
    Gelu {} |g, up| {
        // 2 sqrt(2/pi), and the same times 0.044715: -2u is -g (FIRST + THIRD g^2).
        const FIRST: f32 = 1.595_769_2;
        const THIRD: f32 = 0.071_354_814;
        let factor = g.mul(g).fma(R::splat(THIRD), R::splat(FIRST));
        over_power(g, factor.mul(g.negative())).mul(up)
    };
    /// GELU as `max(g, 0) - |g|/2 erfc(|g| / sqrt(2))`, which keeps the digits of small results. erfc is that of
    /// Abramowitz and Stegun (7.1.26), whose error is below 1.5e-7.
    GeluErf {} |g, up| {
        const P: f32 = 0.327_591_1;
        const A: [f32; 5] = [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
        let z = g.abs().mul(R::splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = R::splat(1.0).div(z.fma(R::splat(P), R::splat(1.0)));
        let above = t.polynomial(&A).mul(t).mul(exp_lanes(z.mul(z).negative()));
        // The other term propagates a NaN.
        g.abs().mul(R::splat(-0.5)).fma(above, g.above(R::splat(0.0))).mul(up)
    };
}

/// The gate, with 1 for `up`.
fn ungated<G: Gate>(isa: Isa, by: G, up: &[f32], out: &mut [f32]) {
    const ONES: [f32; 256] = [1.0; 256];
    for (up, out) in up.chunks(ONES.len()).zip(out.chunks_mut(ONES.len())) {
        gated(isa, by, up, &ONES[..up.len()], out);
    }
}

by_isa!(fn gated<G: Gate>(by: G, gate: &[f32], up: &[f32], out: &mut [f32]) = in_lanes::<lanes>, Scalar);

#[inline(always)]
unsafe fn in_lanes<L: Lanes, G: Gate>(by: G, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == out.len() && up.len() == out.len(), "one gate and one up for each output");
    let (out, last) = out.as_chunks_mut::<16>();
    let ((gate, gates), (up, ups)) = (gate.as_chunks::<16>(), up.as_chunks::<16>());
    // SAFETY (of all): arrays of sixteen; an f32 needs no instructions.
    unsafe {
        for ((gate, up), out) in gate.iter().zip(up).zip(out) {
            by.output(L::load(gate.as_ptr()), L::load(up.as_ptr())).store(out.as_mut_ptr());
        }
        for ((gate, up), out) in gates.iter().zip(ups).zip(last) {
            *out = by.output(*gate, *up);
        }
    }
}

by_isa!(
    /// `x += y`.
    pub fn add(x: &mut [f32], y: &[f32]) = add_loop
);

#[inline(always)]
fn add_loop(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "a sum of equal shapes");
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

by_isa!(
    /// `x += by * y`, in one rounding.
    pub fn add_scaled(x: &mut [f32], y: &[f32], by: f32) = add_scaled_loop
);

#[inline(always)]
fn add_scaled_loop(x: &mut [f32], y: &[f32], by: f32) {
    assert_eq!(x.len(), y.len(), "a sum of equal shapes");
    for (x, y) in x.iter_mut().zip(y) {
        *x = y.mul_add(by, *x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_have_one_set_of_bits() {
        let gate: Vec<f32> = (0..1003).map(|i| (i as f32 - 500.0) * 0.37).collect();
        let up: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.77).sin()).collect();
        let clamped: fn(Isa, &[f32], &[f32], &mut [f32]) =
            |isa, gate, up, out| clamped_swiglu(isa, 0.75, gate, up, out);
        let steep: fn(Isa, &[f32], &[f32], &mut [f32]) =
            |isa, gate, up, out| steep_swiglu(isa, [1.702, 7.0], gate, up, out);
        let scaled: fn(Isa, &[f32], &[f32], &mut [f32]) =
            |isa, gate, up, out| scaled_swiglu(isa, [0.5, 3.0], gate, up, out);
        for gated in [swiglu, geglu, geglu_erf, logistic, clamped, scaled, steep] {
            let (mut a, mut b) = (vec![0.0; 1003], vec![0.0; 1003]);
            gated(Isa::Scalar, &gate, &up, &mut a);
            gated(crate::kernels::isa(), &gate, &up, &mut b);
            assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn geglu_is_the_tanh_formula() {
        let gate: Vec<f32> = (-9000..9000).map(|i| i as f32 * 1.1e-3).chain([0.0, -1e30, 1e30]).collect();
        let (up, mut out) = (vec![1.0; gate.len()], vec![0.0; gate.len()]);
        geglu(crate::kernels::isa(), &gate, &up, &mut out);
        for (g, got) in gate.iter().zip(out) {
            let g = *g as f64;
            let u = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
            let want = 0.5 * g * (1.0 + u.tanh());
            assert!((got as f64 - want).abs() <= 1e-6 * want.abs().max(1e-3), "{g}: {got} for {want}");
        }
    }

    #[test]
    fn gelu_with_erf_is_the_formula() {
        // Simpson's rule for erf.
        let erf = |x: f64| {
            let (n, h) = (2000, x / 2000.0);
            let f = |i: usize| (-(i as f64 * h).powi(2)).exp() * if i % 2 == 1 { 4.0 } else { 2.0 };
            let inner: f64 = (1..n).map(f).sum();
            (1.0 + (-x * x).exp() + inner) * h / 3.0 * 2.0 / std::f64::consts::PI.sqrt()
        };
        let gate: Vec<f32> = (-90..90).map(|i| i as f32 * 0.11).collect();
        let mut out = vec![0.0; gate.len()];
        gelu_erf(crate::kernels::isa(), &gate, &mut out);
        for (g, got) in gate.iter().zip(out) {
            let g = f64::from(*g);
            let want = 0.5 * g * (1.0 + erf(g / 2f64.sqrt()));
            assert!((f64::from(got) - want).abs() < 4e-7 * want.abs().max(1.0), "{g}: {got} for {want}");
        }
        let mut out = [0.0; 2];
        gelu_erf(crate::kernels::isa(), &[f32::NAN, 1e30], &mut out);
        assert!(out[0].is_nan() && out[1] == 1e30);
    }

    #[test]
    fn clamps_limit_gates_above_and_ups_on_both_sides() {
        let (gate, up) = ([9.0, -9.0, 1.0, f32::NAN].repeat(5), [1.0, 9.0, -9.0, 1.0].repeat(5));
        for isa in [Isa::Scalar, crate::kernels::isa()] {
            let (mut got, mut want) = (vec![0.0; 20], vec![0.0; 20]);
            clamped_swiglu(isa, 7.0, &gate, &up, &mut got);
            swiglu(isa, &[7.0, -9.0, 1.0, f32::NAN].repeat(5), &[1.0, 7.0, -7.0, 1.0].repeat(5), &mut want);
            assert!(got.iter().zip(&want).all(|(a, b)| a == b || a.is_nan() && b.is_nan()), "{got:?}");
        }
    }

    type Gated = fn(Isa, &[f32], &[f32], &mut [f32]);
    type Formula = fn(f64, f64) -> f64;

    #[test]
    fn gates_are_their_formulas() {
        let gate: Vec<f32> = (-400..400).map(|i| i as f32 * 0.03).collect();
        let up: Vec<f32> = (0..800).map(|i| (i as f32 * 0.7).sin() * 9.0).collect();
        let gates: [(Gated, Formula); 5] = [
            (swiglu, |g, u| g / (1.0 + (-g).exp()) * u),
            (
                |isa, g, u, out| clamped_swiglu(isa, 0.75, g, u, out),
                |g, u| g.min(0.75) / (1.0 + (-g.min(0.75)).exp()) * u.clamp(-0.75, 0.75),
            ),
            (
                |isa, g, u, out| scaled_swiglu(isa, [0.5, 3.0], g, u, out),
                |g, u| 0.5 * g / (1.0 + (-0.5 * g).exp()) * 3.0 * u,
            ),
            (
                |isa, g, u, out| steep_swiglu(isa, [1.702, 7.0], g, u, out),
                |g, u| g.min(7.0) / (1.0 + (-1.702 * g.min(7.0)).exp()) * (u.clamp(-7.0, 7.0) + 1.0),
            ),
            (logistic, |g, u| u / (1.0 + (-g).exp())),
        ];
        for (n, (gated, formula)) in gates.into_iter().enumerate() {
            let mut out = vec![0.0; 800];
            gated(crate::kernels::isa(), &gate, &up, &mut out);
            for ((g, u), got) in gate.iter().zip(&up).zip(out) {
                let want = formula(f64::from(*g), f64::from(*u));
                let error = (f64::from(got) - want).abs();
                assert!(error <= 3e-6 * want.abs().max(1e-3), "gate {n}: {g}, {u}: {got} for {want}");
            }
        }
    }

    #[test]
    fn relu2_keeps_nan_and_drops_negatives() {
        // Longer than a register, so that the remainder of each form is tested too.
        let gate: Vec<f32> = [-2.0, 3.0, f32::NAN, -0.0].into_iter().cycle().take(43).collect();
        let up: Vec<f32> = [5.0, 2.0, 1.0, 7.0].into_iter().cycle().take(43).collect();
        for isa in [Isa::Scalar, crate::kernels::isa()] {
            let (mut out, mut sum) = (vec![0.0; 43], up.clone());
            relu2(isa, &gate, &up, &mut out);
            add(isa, &mut sum, &gate);
            for (i, (out, sum)) in out.into_iter().zip(sum).enumerate() {
                match i % 4 {
                    2 => assert!(out.is_nan() && sum.is_nan()),
                    i => assert_eq!((out, sum), ([0.0, 18.0, 0.0, 0.0][i], [3.0, 5.0, 0.0, 7.0][i])),
                }
            }
        }
    }
}
