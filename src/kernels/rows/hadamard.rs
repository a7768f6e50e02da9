//! The normalized Walsh-Hadamard transform (Sylvester's order), which spreads outliers before weights are quantized
//! (Ashkboos et al. 2024, "QuaRot").

use crate::kernels::simd::dispatch::by_isa;

by_isa!(
    /// Multiplies each `block` elements of `x` with H / sqrt(block), where H is Sylvester's matrix: H[i, j] is -1 if
    /// i & j has an odd number of ones. It is its own inverse. `block` is a power of two and divides `x`.
    pub fn walsh_hadamard(block: usize, x: &mut [f32]) = transform
);

#[inline(always)]
fn transform(block: usize, x: &mut [f32]) {
    assert!(block.is_power_of_two() && x.len().is_multiple_of(block), "blocks of {block} in {}", x.len());
    let by = (1.0 / (block as f64).sqrt()) as f32;
    for x in x.chunks_exact_mut(block) {
        let mut half = block / 2;
        while half > 0 {
            for pair in x.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half /= 2;
        }
        x.iter_mut().for_each(|x| *x *= by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Isa, available};

    #[test]
    fn it_is_the_matrix_with_all_instruction_sets() {
        for block in [1, 2, 8, 64, 512] {
            let x: Vec<f32> = (0..2 * block).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.13).collect();
            let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
            let mut scalar = x.clone();
            walsh_hadamard(Isa::Scalar, block, &mut scalar);
            for (x, got) in x.chunks_exact(block).zip(scalar.chunks_exact(block)) {
                for (i, got) in got.iter().enumerate() {
                    let want: f64 = x.iter().enumerate().map(|(j, x)| f64::from(*x) * sign(i, j)).sum();
                    let want = want / (block as f64).sqrt();
                    assert!((f64::from(*got) - want).abs() < 1e-4, "{block}, {i}: {got} for {want}");
                }
            }
            for isa in available() {
                let mut got = x.clone();
                walsh_hadamard(*isa, block, &mut got);
                assert!(got.iter().zip(&scalar).all(|(a, b)| a.to_bits() == b.to_bits()), "{block}, {isa:?}");
            }
        }
    }
}
