//! Activations to int8 in blocks of columns, for weights that are quantized in blocks: a scale for each block, as ggml
//! does (github.com/ggml-org/ggml, its Q8_0, Q8_1 and Q8_K), with scales in f32.

use crate::kernels::Isa;

/// Columns that have a sum of their own beside each scale: a block of 32 has one sum, one of 256 has sixteen.
pub const fn columns_of_sum(block: usize) -> usize {
    if block == 32 { 32 } else { 16 }
}

/// Row after row of activations of `cols` columns, each in `cols / block` blocks.
#[derive(Clone, Copy)]
pub struct BlockActivations<'a> {
    /// `[tokens, cols]`, each from -127 to 127.
    pub values: &'a [i8],
    /// `[tokens, cols / block]`; an activation is its value times its block's scale.
    pub scales: &'a [f32],
    /// `[tokens, cols / columns_of_sum(block)]` sums of values.
    pub sums: &'a [i16],
    pub cols: usize,
    /// 32 or 256.
    pub block: usize,
}

impl<'a> BlockActivations<'a> {
    pub fn tokens(&self) -> usize {
        self.values.len() / self.cols
    }

    /// Token `t`'s values, scales and sums.
    #[inline]
    pub fn row(&self, t: usize) -> (&'a [i8], &'a [f32], &'a [i16]) {
        // Shifts: a division would take as long as a block of products.
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

/// One row of whole blocks of `block`, 32 or 256, columns. `scale = absmax / 127`, where NaN counts as nothing;
/// `value = round_half_even(x * (127 / absmax))`, 0 for NaN and where absmax is 0. An infinity makes its block's scale
/// infinite and its values 0, so that products with it are NaN.
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
    let blocks = x.chunks_exact(block).zip(values.chunks_exact_mut(block));
    let sums = sums.chunks_exact_mut(block / columns_of_sum(block));
    for (((x, values), scale), sums) in blocks.zip(scales).zip(sums) {
        *scale = match isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: such a set stands for a machine that has AVX2.
            _ if isa.has_avx2() => unsafe { avx2::one(x, values, sums) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: `Isa::Neon` stands for a machine that has NEON.
            Isa::Neon => unsafe { neon::one(x, values, sums) },
            _ => one(x, values, sums),
        };
    }
}

/// One block; its scale.
fn one(x: &[f32], values: &mut [i8], sums: &mut [i16]) -> f32 {
    let absmax = x.iter().fold(0.0f32, |max, v| if v.abs() > max { v.abs() } else { max });
    let inverse = inverse(absmax);
    for (value, x) in values.iter_mut().zip(x) {
        // A subnormal block's inverse is infinite: hence the bounds. A cast makes NaN 0.
        *value = (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
    let columns = values.len() / sums.len();
    for (sum, values) in sums.iter_mut().zip(values.chunks_exact(columns)) {
        *sum = values.iter().map(|v| *v as i16).sum();
    }
    absmax / 127.0
}

fn inverse(absmax: f32) -> f32 {
    if absmax == 0.0 { 0.0 } else { 127.0 / absmax }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::inverse;
    use std::arch::x86_64::*;

    /// As the scalar version.
    #[target_feature(enable = "avx2,fma")]
    pub fn one(x: &[f32], values: &mut [i8], sums: &mut [i16]) -> f32 {
        let magnitude = _mm256_set1_ps(f32::from_bits(0x7fff_ffff));
        let mut max = [_mm256_setzero_ps(); 4];
        for x in x.as_chunks::<32>().0 {
            for (j, max) in max.iter_mut().enumerate() {
                // SAFETY: eight floats at 8 j of 32.
                let v = unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * j)) };
                // maxps gives its second operand where one is NaN.
                *max = _mm256_max_ps(_mm256_and_ps(v, magnitude), *max);
            }
        }
        let [a, b, c, d] = max;
        let eight = _mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d));
        let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        let absmax = _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
        let scale = _mm256_set1_ps(inverse(absmax));
        let per_sum = values.len() / sums.len();
        for (n, (x, values)) in x.as_chunks::<32>().0.iter().zip(values.as_chunks_mut::<32>().0).enumerate() {
            let bytes = quantized(x, scale);
            // SAFETY: 32 bytes are written to as many.
            unsafe { _mm256_storeu_si256(values.as_mut_ptr().cast(), bytes) };
            let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
            let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            // Of 16 columns, in the lowest lane of each half.
            let eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32::<0b01_00_11_10>(fours));
            let all = _mm256_add_epi32(eights, _mm256_shuffle_epi32::<0b10_11_00_01>(eights));
            let low = _mm256_cvtsi256_si32(all) as i16;
            let high = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(all)) as i16;
            if per_sum == 32 {
                sums[n] = low + high;
            } else {
                (sums[2 * n], sums[2 * n + 1]) = (low, high);
            }
        }
        absmax / 127.0
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn quantized(x: &[f32; 32], scale: __m256) -> __m256i {
        let bound = _mm256_set1_ps(127.0);
        let mut q = [_mm256_setzero_si256(); 4];
        for (j, q) in q.iter_mut().enumerate() {
            // SAFETY: eight floats at 8 j of 32.
            let v = unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * j)) };
            let scaled = _mm256_mul_ps(v, scale);
            let number = _mm256_and_ps(scaled, _mm256_cmp_ps::<_CMP_ORD_Q>(scaled, scaled));
            // Rounding first or last is the same: the bounds are whole.
            let within =
                _mm256_max_ps(_mm256_min_ps(number, bound), _mm256_sub_ps(_mm256_setzero_ps(), bound));
            *q = _mm256_cvtps_epi32(within);
        }
        let (low, high) = (_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order)
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::inverse;
    use crate::kernels::simd::neon::{largest, to_bytes};
    use std::arch::aarch64::*;

    /// As the scalar version.
    #[target_feature(enable = "neon")]
    pub fn one(x: &[f32], values: &mut [i8], sums: &mut [i16]) -> f32 {
        let x = x.as_chunks::<16>().0;
        let absmax = largest(x);
        let inverse = inverse(absmax);
        let per_sum = values.len() / sums.len() / 16;
        sums.fill(0);
        for (n, (x, values)) in x.iter().zip(values.as_chunks_mut::<16>().0).enumerate() {
            let q = vmaxq_s8(to_bytes(x, inverse), vdupq_n_s8(-127));
            sums[n / per_sum] += vaddlvq_s8(q);
            // SAFETY: 16 bytes are written to as many.
            unsafe { vst1q_s8(values.as_mut_ptr(), q) };
        }
        absmax / 127.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::available;

    /// Values, scales' bits, sums.
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
            // The smallest there are: 127 / absmax is infinite.
            let tiny = f32::from_bits(1);
            let mut x = vec![0.0; block];
            (x[0], x[1]) = (tiny, -tiny);
            let (values, scales, _) = both(block, &x);
            assert_eq!((&values[..3], scales[0]), (&[127, -127, 0][..], 0));
            both(block, &vec![f32::NAN; block]);
        }
    }
}
