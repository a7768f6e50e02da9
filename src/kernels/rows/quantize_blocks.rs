//! Quantization of activations to int8 in blocks of columns, for weights that are quantized in blocks: one scale per
//! block, as in ggml (github.com/ggml-org/ggml, its Q8_0, Q8_1 and Q8_K), with scales in f32.

use super::quantize::{largest_in_lanes, round, rounded_in_lanes};
use crate::kernels::Isa;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::Lanes;

/// Number of columns that share a sum: a block of 32 columns has one sum, a block of 256 has sixteen.
pub const fn columns_of_sum(block: usize) -> usize {
    if block == 32 { 32 } else { 16 }
}

/// Quantized rows of activations, one after another, of `cols` columns each, in `cols / block` blocks.
#[derive(Clone, Copy)]
pub struct BlockActivations<'a> {
    /// `[tokens, cols]`, each from -127 to 127.
    pub values: &'a [i8],
    /// `[tokens, cols / block]`; an activation is its value times the scale of its block.
    pub scales: &'a [f32],
    /// `[tokens, cols / columns_of_sum(block)]` sums of values.
    pub sums: &'a [i16],
    pub cols: usize,
    /// Columns per block: 32 or 256.
    pub block: usize,
}

impl<'a> BlockActivations<'a> {
    pub fn tokens(&self) -> usize {
        self.values.len() / self.cols
    }

    /// The tokens from `first` on.
    pub fn from(&self, first: usize) -> Self {
        let (values, scales, sums) =
            (self.cols, self.cols / self.block, self.cols / columns_of_sum(self.block));
        let (values, scales) = (&self.values[first * values..], &self.scales[first * scales..]);
        Self { values, scales, sums: &self.sums[first * sums..], ..*self }
    }

    /// The values, scales and sums of token `t`.
    #[inline]
    pub fn row(&self, t: usize) -> (&'a [i8], &'a [f32], &'a [i16]) {
        // Shifts: a division would take as long as the products of a block.
        let (blocks, sums) = match self.block {
            32 => (self.cols / 32, self.cols / const { columns_of_sum(32) }),
            _ => (self.cols / 256, self.cols / const { columns_of_sum(256) }),
        };
        (
            &self.values[t * self.cols..(t + 1) * self.cols],
            &self.scales[t * blocks..(t + 1) * blocks],
            &self.sums[t * sums..(t + 1) * sums],
        )
    }
}

/// Quantizes one row of whole blocks of `block` columns, 32 or 256. `scale = absmax / 127`, ignoring NaN;
/// `value = round_half_even(x * (127 / absmax))`, 0 for NaN and if absmax is 0. An infinity makes its block's
/// scale infinite and its block's values 0, so that products with them are NaN.
pub fn quantize_blocks(
    isa: Isa,
    block: usize,
    x: &[f32],
    values: &mut [i8],
    scales: &mut [f32],
    sums: &mut [i16],
) {
    assert!(matches!(block, 32 | 256) && x.len().is_multiple_of(block), "{} columns in {block}s", x.len());
    assert!(
        values.len() == x.len()
            && scales.len() == x.len() / block
            && sums.len() == x.len() / columns_of_sum(block),
        "a quantized row is as long as its source"
    );
    each_block(isa, block, x.as_chunks().0, values.as_chunks_mut().0, scales, sums);
}

by_isa!(
    fn each_block(
        block: usize,
        x: &[[f32; 16]],
        values: &mut [[i8; 16]],
        scales: &mut [f32],
        sums: &mut [i16],
    ) = in_lanes::<lanes>, Scalar
);

#[inline(always)]
unsafe fn in_lanes<L: Lanes>(
    block: usize,
    x: &[[f32; 16]],
    values: &mut [[i8; 16]],
    scales: &mut [f32],
    sums: &mut [i16],
) {
    let (of_block, of_sum) = (block / 16, columns_of_sum(block) / 16);
    let blocks = x.chunks_exact(of_block).zip(values.chunks_exact_mut(of_block));
    let sums = sums.chunks_exact_mut(of_block / of_sum);
    for (((x, values), scale), sums) in blocks.zip(scales).zip(sums) {
        // SAFETY (of both): the caller has the instructions.
        let absmax = unsafe { largest_in_lanes::<L>(x) };
        *scale = absmax / 127.0;
        // Infinite for a block of tiny (such as subnormal) values.
        let inverse = if absmax == 0.0 { 0.0 } else { 127.0 / absmax };
        let groups = x.chunks_exact(of_sum).zip(values.chunks_exact_mut(of_sum));
        for (sum, (x, values)) in sums.iter_mut().zip(groups) {
            let rounded = if inverse.is_finite() {
                unsafe { rounded_in_lanes::<L>(x, inverse, values) }
            } else {
                round(x.as_flattened(), inverse, values.as_flattened_mut())
            };
            *sum = rounded as i16;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::available;

    /// Values, the bits of the scales, and sums.
    fn both(block: usize, x: &[f32]) -> (Vec<i8>, Vec<u32>, Vec<i16>) {
        let make = |isa| {
            let mut values = vec![1; x.len()];
            let mut scales = vec![f32::NAN; x.len() / block];
            let mut sums = vec![i16::MAX; x.len() / columns_of_sum(block)];
            quantize_blocks(isa, block, x, &mut values, &mut scales, &mut sums);
            (values, scales.iter().map(|s| s.to_bits()).collect::<Vec<_>>(), sums)
        };
        let result = make(Isa::Scalar);
        available().iter().for_each(|isa| assert_eq!(make(*isa), result, "{isa:?} {block}: {x:?}"));
        result
    }

    #[test]
    fn instruction_sets_agree_and_sums_are_those_of_the_values() {
        let mut state = 1u32;
        for block in [32, 256] {
            for blocks in 0..9 {
                let x: Vec<f32> = (0..blocks * block)
                    .map(|i| {
                        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                        ((state >> 8) as f32 / (1 << 22) as f32 - 2.0)
                            * 10f32.powi(i as i32 / block as i32 * 9 - 36)
                    })
                    .collect();
                let (values, _, sums) = both(block, &x);
                let columns = columns_of_sum(block);
                for (values, sum) in values.chunks_exact(columns).zip(sums) {
                    assert_eq!(values.iter().map(|v| *v as i16).sum::<i16>(), sum);
                }
            }
        }
    }

    #[test]
    fn a_block_has_its_own_scale_and_halves_go_to_the_even_side() {
        for block in [32, 256] {
            let mut x = vec![0.0f32; 2 * block];
            x[..6].copy_from_slice(&[0.5, 1.5, -2.5, 127.0, -127.0, 126.5]);
            x[block] = -254.0;
            x[block + 1] = 3.0;
            let (values, scales, _) = both(block, &x);
            assert_eq!(values[..6], [0, 2, -2, 127, -127, 126]);
            assert_eq!(values[block..block + 3], [-127, 2, 0]);
            assert_eq!(scales, [1.0f32.to_bits(), 2.0f32.to_bits()]);
        }
    }

    #[test]
    fn odd_values() {
        for block in [32, 256] {
            let (values, scales, sums) = both(block, &vec![0.0; block]);
            assert!(values.iter().all(|v| *v == 0) && scales == [0] && sums.iter().all(|s| *s == 0));
            let mut x = vec![1.0f32; block];
            x[7] = f32::NAN;
            x[8] = -f32::NAN;
            let (values, ..) = both(block, &x);
            assert_eq!(values[6..10], [127, 0, 0, 127]);
            x[5] = f32::NEG_INFINITY;
            let (values, scales, _) = both(block, &x);
            assert!(values.iter().all(|v| *v == 0) && scales == [f32::INFINITY.to_bits()]);
            // The smallest magnitudes: 127 / absmax is infinite.
            let tiny = f32::from_bits(1);
            let mut x = vec![0.0; block];
            (x[0], x[1]) = (tiny, -tiny);
            let (values, scales, _) = both(block, &x);
            assert_eq!((&values[..3], scales[0]), (&[127, -127, 0][..], 0));
            both(block, &vec![f32::NAN; block]);
        }
    }
}
