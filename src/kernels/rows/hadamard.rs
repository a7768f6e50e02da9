//! The normalized Walsh-Hadamard transform (Sylvester's order), which spreads outliers before weights or activations
//! are quantized (Ashkboos et al. 2024, "QuaRot").

use crate::kernels::Isa;
use crate::kernels::simd::dispatch::by_isa;

by_isa!(
    /// Multiplies each `block` elements of `x` with H / sqrt(block), where H is Sylvester's matrix: H[i, j] is -1 if
    /// i & j has an odd number of ones. It is its own inverse. `block` is a power of two and divides `x`.
    pub fn walsh_hadamard(block: usize, x: &mut [f32]) = transform
);

#[inline(always)]
fn transform(block: usize, x: &mut [f32]) {
    assert!(block.is_power_of_two() && x.len().is_multiple_of(block), "blocks of {block} in {}", x.len());
    let by = factor(block);
    for x in x.chunks_exact_mut(block) {
        if block < 16 {
            butterflies(block / 2, 1, x);
            x.iter_mut().for_each(|x| *x *= by);
            continue;
        }
        butterflies(block / 2, 16, x);
        for x in x.as_chunks_mut::<16>().0 {
            *x = step::<1>(step::<2>(step::<4>(step::<8>(*x)))).map(|x| x * by);
        }
    }
}

/// The sums and differences of elements that are `half` apart, then half as far, down to `last`.
#[inline(always)]
fn butterflies(mut half: usize, last: usize, x: &mut [f32]) {
    while half >= last {
        for pair in x.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half /= 2;
    }
}

/// One step of `butterflies`, in registers.
#[inline(always)]
fn step<const HALF: usize>(x: [f32; 16]) -> [f32; 16] {
    std::array::from_fn(|i| if i & HALF == 0 { x[i] + x[i ^ HALF] } else { x[i ^ HALF] - x[i] })
}

/// The rotation of int8 rows, of weights and of activations: `x' = H (s * x)`, with H the transform of blocks of
/// `rotation(x.len())` elements. Without the signs s, H would gather common parts of a row's elements, such as their
/// mean, in one element.
pub fn rotate(isa: Isa, x: &mut [f32]) {
    let block = rotation(x.len());
    if block > 1 {
        flip(isa, block, x);
        walsh_hadamard(isa, block, x);
    }
}

/// The inverse of `rotate`.
pub fn unrotate(isa: Isa, x: &mut [f32]) {
    let block = rotation(x.len());
    if block > 1 {
        walsh_hadamard(isa, block, x);
        flip(isa, block, x);
    }
}

/// 1 / sqrt(block).
pub fn factor(block: usize) -> f32 {
    (1.0 / (block as f64).sqrt()) as f32
}

/// The largest power of two that divides the width of a row; 0 for no columns.
pub fn rotation(cols: usize) -> usize {
    cols & cols.wrapping_neg()
}

by_isa!(
    /// Multiplies element `i` of each `block` with the `i`-th Rudin-Shapiro sign: -1 if `i & i >> 1` has an odd number
    /// of ones. These are a bent function (Rothaus 1976) if `block` is a power of four, and nearly one if not: their
    /// products with all rows of H are of the same size.
    fn flip(block: usize, x: &mut [f32]) = flipped
);

#[inline(always)]
fn flipped(block: usize, x: &mut [f32]) {
    for x in x.chunks_exact_mut(block) {
        if block < 16 {
            x.iter_mut().enumerate().for_each(|(i, x)| *x = f32::from_bits(x.to_bits() ^ sign(i)));
            continue;
        }
        for (n, x) in x.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (all, signs) = (sign(n), SIGNS[n % 2]);
            *x = std::array::from_fn(|i| f32::from_bits(x[i].to_bits() ^ signs[i] ^ all));
        }
    }
}

/// The sign bit of element `i`.
const fn sign(i: usize) -> u32 {
    (i & i >> 1).count_ones() << 31
}

/// The signs of sixteen elements relative to the sign of their group, for groups with even and odd numbers.
const SIGNS: [[u32; 16]; 2] = {
    let (mut signs, mut i) = ([[0; 16]; 2], 0);
    while i < 32 {
        signs[i / 16][i % 16] = sign(i) ^ sign(i / 16);
        i += 1;
    }
    signs
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::available;

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

    /// Compares with `i & i >> 1` of the whole index, and checks the inverse.
    #[test]
    fn rotations_have_their_signs_and_come_back_with_all_instruction_sets() {
        for cols in [0, 7, 12, 64, 96, 576, 2048] {
            let x: Vec<f32> = (0..cols).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.13).collect();
            let block = rotation(cols);
            let mut want = x.clone();
            for (i, x) in want.iter_mut().enumerate() {
                let i = i % block;
                *x *= [1.0, -1.0][(i & (i >> 1)).count_ones() as usize % 2];
            }
            if cols > 0 {
                walsh_hadamard(Isa::Scalar, block, &mut want);
            }
            for isa in available() {
                let mut got = x.clone();
                rotate(*isa, &mut got);
                assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{cols}, {isa:?}");
                unrotate(*isa, &mut got);
                assert!(got.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5), "{cols}, {isa:?}");
            }
        }
    }

    /// A column that is 100 times as large as the others, a common mean, and a wave: no element stays large.
    #[test]
    fn outliers_and_what_elements_share_are_spread() {
        let rows: [fn(usize) -> f32; 3] = [
            |i| if i == 77 { 100.0 } else { 1.0 - (i % 2) as f32 * 2.0 },
            |_| 1.0,
            |i| if i / 32 % 2 == 0 { 1.0 } else { -1.0 },
        ];
        for (cols, of) in [512, 1024, 1536].into_iter().flat_map(|cols| rows.map(|of| (cols, of))) {
            let mut x: Vec<f32> = (0..cols).map(of).collect();
            rotate(Isa::Scalar, &mut x);
            let rms = (x.iter().map(|x| x * x).sum::<f32>() / cols as f32).sqrt();
            let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            assert!(most < 2.5 * rms, "{cols}: {most} and {rms}");
        }
    }
}
