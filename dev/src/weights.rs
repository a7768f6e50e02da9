//! Weights of any type and shape that have left the caches by the time they are used again.

use super::SplitMix;
use bn_engine::base::Bytes;
use bn_engine::kernels::{DType, Matrix};
use half::{bf16, f16};

/// Random blocks of one type, enough for matrices that together are larger than the caches.
pub struct Arena {
    dtype: DType,
    bytes: Bytes,
}

impl Arena {
    /// At least `bytes` long. Its contents repeat after some 64 KiB, which does not affect a kernel's speed.
    pub fn new(dtype: DType, bytes: usize) -> Self {
        let block = dtype.block().1;
        let mut random = SplitMix(2);
        let mut pattern = vec![0; (64 << 10) / block * block];
        pattern.chunks_exact_mut(block).for_each(|block| fill(dtype, &mut random, block));
        let mut all: Vec<u8> = Vec::with_capacity(bytes + pattern.len() + 64);
        // Some types are read in lines.
        let first = all.as_ptr().align_offset(64);
        all.resize(first, 0);
        while all.len() < first + bytes {
            all.extend_from_slice(&pattern);
        }
        let end = all.len();
        Self { dtype, bytes: Bytes::new(all).slice(first..end).expect("within") }
    }

    /// As many `[rows, cols]` matrices as fit; None if the type has no such matrix or none fits.
    pub fn matrices(&self, rows: usize, cols: usize) -> Option<Vec<Matrix>> {
        let len = self.dtype.byte_len(rows, cols)?;
        let stride = len.next_multiple_of(self.dtype.block().1);
        let starts = (0..=self.bytes.len().checked_sub(len)?).step_by(stride);
        starts.map(|at| Matrix::new(self.bytes.slice(at..at + len)?, self.dtype, rows, cols).ok()).collect()
    }
}

/// One block: any codes that the type allows, and scales that keep sums small.
fn fill(dtype: DType, random: &mut SplitMix, block: &mut [u8]) {
    let scale = f16::from_f32(1.0 / 1024.0).to_le_bytes();
    match dtype {
        DType::F32 => block.copy_from_slice(&random.unit().to_le_bytes()),
        DType::F16 => block.copy_from_slice(&f16::from_f32(random.unit()).to_le_bytes()),
        DType::BF16 => block.copy_from_slice(&bf16::from_f32(random.unit()).to_le_bytes()),
        // Published models in Q2_0 are ternary too.
        DType::TQ2_0 | DType::TQ2_0_256 | DType::I2S | DType::Ternary | DType::Q2_0 | DType::Q2_0_128 => {
            for byte in block.iter_mut() {
                let n = random.draw() % 81;
                *byte = ((n % 3) | ((n / 3 % 3) << 2) | ((n / 9 % 3) << 4) | ((n / 27) << 6)) as u8;
            }
        }
        // Any four bytes must form an f32 that is not denormal: processors are slow on those.
        DType::Int8 => block.iter_mut().for_each(|byte| *byte = random.draw() as u8 & 0x87 | 0x38),
        _ => block.iter_mut().for_each(|byte| *byte = random.draw() as u8),
    }
    let scales: &[usize] = match dtype {
        DType::Q8_0 | DType::Q4_0 | DType::Q5_0 | DType::Q1_0 | DType::Q2_0 | DType::Q2_0_128 => &[0],
        DType::IQ4_NL | DType::IQ4_XS | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => &[0],
        DType::IQ3_XXS | DType::IQ3_S => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q6_K => &[208],
        DType::PTQ1_0 => &[26],
        DType::TQ1_0 => &[52],
        DType::TQ2_0 | DType::TQ2_0_256 => &[64],
        _ => &[],
    };
    if dtype == DType::MXFP4 {
        block[0] = 118;
    }
    for &at in scales {
        block[at..at + 2].copy_from_slice(&scale);
    }
}
