//! Blocks of codes and scales as integers: what a type of blocks means.
//!
//! Blocks of 32 columns and more with one f16 scale: ggml's Q4_0 to Q8_0, Q1_0 and Q2_0; super-blocks: its K-quants
//! (github.com/ggml-org/ggml, ggml-quants.c).

use super::f16_at;
use super::super_blocks::{Super, packed, with_super};
use crate::kernels::simd::bytes::{Bits, Portable};
use crate::kernels::{Arithmetic, DType};

/// A block's weights as integers: weight i is `values[i] * scales[i / 16] * d - mins[i / 16] * min`. A block of 32 has
/// scales of 1, and its minimum is added: `values[i] * d + min`. So have larger ones that meet activations in blocks of 32.
pub(in crate::kernels) struct Codes {
    /// The type's offset is in them already. The first ones are a shorter block's.
    pub values: [i8; 256],
    pub scales: [i8; 16],
    pub mins: [u8; 16],
    pub d: f32,
    /// None where the type has no minimums.
    pub min: Option<f32>,
}

/// The block of `dtype`, as its file packs it. Panics for types without such blocks.
pub(in crate::kernels) fn decode(dtype: DType, block: &[u8]) -> Codes {
    let mut codes = Codes { values: [0; 256], scales: [1; 16], mins: [0; 16], d: 0.0, min: None };
    if dtype.arithmetic() == Arithmetic::Blocks256 {
        return with_super!(dtype, K => decode_super::<K>(block));
    }
    codes.d = f16_at(block);
    codes.min = matches!(dtype, DType::Q4_1 | DType::Q5_1).then(|| f16_at(&block[2..]));
    match dtype {
        DType::Q8_0 => codes.values.iter_mut().zip(&block[2..]).for_each(|(v, b)| *v = *b as i8),
        DType::Q4_0 => nibbles(&block[2..], None, -8, &mut codes.values),
        DType::Q4_1 => nibbles(&block[4..], None, 0, &mut codes.values),
        DType::Q5_0 => nibbles(&block[6..], Some(&block[2..6]), -16, &mut codes.values),
        DType::Q5_1 => nibbles(&block[8..], Some(&block[4..8]), 0, &mut codes.values),
        DType::Q1_0 => {
            for (eight, b) in codes.values.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..]) {
                *eight = std::array::from_fn(|k| (b >> k & 1) as i8 * 2 - 1);
            }
        }
        DType::Q2_0 | DType::Q2_0_128 => {
            for (four, b) in codes.values.as_chunks_mut::<4>().0.iter_mut().zip(&block[2..]) {
                *four = [0, 2, 4, 6].map(|shift| (b >> shift & 3) as i8 - 1);
            }
        }
        other => panic!("{other:?} is no type of blocks with integers"),
    }
    codes
}

/// 32 elements of 4 bits, with fifth bits or without.
fn nibbles(packed: &[u8], high: Option<&[u8]>, offset: i8, values: &mut [i8; 256]) {
    for (j, value) in values[..32].iter_mut().enumerate() {
        let fifth = high.map_or(0, |high| high[j / 8] >> (j % 8) & 1);
        *value = (packed[j % 16] >> (4 * (j / 16)) & 15 | fifth << 4) as i8 + offset;
    }
}

fn decode_super<K: Super>(block: &[u8]) -> Codes {
    assert_eq!(block.len(), K::BYTES, "a whole block");
    let [scales, mins] = K::scales(block);
    let mut values = [0; 256];
    // SAFETY: a whole block is read, eight times 32 bytes are written.
    unsafe {
        for (k, codes) in K::codes::<Portable>(packed::<K, _>(block.as_ptr())).into_iter().enumerate() {
            codes.store(values.as_mut_ptr().add(32 * k).cast());
        }
    }
    Codes {
        values: values.map(|code: i8| code - K::OFFSET as i8),
        scales: scales.map(|scale| scale as i8),
        mins,
        d: f16_at(&block[K::D..]),
        min: K::MINIMA.then(|| f16_at(&block[K::MIN..])),
    }
}

/// A row of blocks as f32, with each float operation in the order of ggml's own reference, so that every bit agrees.
pub fn dequantize(dtype: DType, source: &[u8], out: &mut [f32]) {
    let (elements, bytes) = dtype.block();
    for (out, block) in out.chunks_exact_mut(elements).zip(source.chunks_exact(bytes)) {
        let codes = decode(dtype, block);
        for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = codes.d * codes.scales[group % 16] as f32;
            let low = match codes.min {
                None => 0.0,
                Some(min) if elements == 256 => -(min * codes.mins[group] as f32),
                Some(min) => min,
            };
            for (out, code) in out.iter_mut().zip(&codes.values[16 * group..]) {
                *out = scale * *code as f32;
                if codes.min.is_some() {
                    *out += low;
                }
            }
        }
    }
}
