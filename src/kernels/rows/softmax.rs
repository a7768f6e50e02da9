//! Softmax of a row.

use super::exp::exp;
use crate::kernels::Isa;
use crate::kernels::simd::dispatch::by_isa;

/// `x = exp(x - max) / sum`. The sum is in the order of the row. A NaN makes all elements NaN; the maximum ignores
/// it.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    exponents(isa, x, most);
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|p| *p /= sum);
}

by_isa!(fn exponents(x: &mut [f32], most: f32) = exponents_loop);

#[inline(always)]
fn exponents_loop(x: &mut [f32], most: f32) {
    x.iter_mut().for_each(|x| *x = exp(*x - most));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::available;

    #[test]
    fn equal_bits_from_every_instruction_set() {
        let row: Vec<f32> = (0..77).map(|n| (n * 37 % 101) as f32 * 0.31 - 15.0).collect();
        let of = |isa| {
            let mut row = row.clone();
            softmax(isa, &mut row);
            row
        };
        let want = of(Isa::Scalar);
        assert!((want.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        let e: Vec<f64> = row.iter().map(|x| f64::from(*x).exp()).collect();
        let sum: f64 = e.iter().sum();
        assert!(want.iter().zip(&e).all(|(got, e)| (f64::from(*got) - e / sum).abs() < 1e-7));
        for isa in available() {
            assert_eq!(
                of(*isa).iter().map(|p| p.to_bits()).collect::<Vec<_>>(),
                want.iter().map(|p| p.to_bits()).collect::<Vec<_>>(),
                "{}",
                isa.name()
            );
        }
    }
}
