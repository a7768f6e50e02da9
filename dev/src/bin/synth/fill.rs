//! Random data of tensors.

use crate::Tensor;
use bn_dev::SplitMix;
use bn_engine::base::{Error, Result, Status};
use bn_engine::kernels::DType;
use half::f16;
use std::io::Write;

/// Random blocks of about the size that trained weights have: mean square 1 over the columns.
pub fn random(tensor: &Tensor, seed: u64, common: &[f32], out: &mut dyn Write) -> Result<u32> {
    let (dtype, cols) = (tensor.dtype, tensor.dims[0] as usize);
    let rows = tensor.dims[1..].iter().product::<u64>() as usize;
    let scale = 1.0 / (cols as f32).sqrt();
    let mut rng = SplitMix(seed);
    let (elements, block) = dtype.block();
    let mut row = vec![0; dtype.row_prefix() + cols / elements * block];
    // I2_S is flattened; 3B's rows end within its blocks.
    if dtype == DType::I2S {
        row.resize(cols / 4, 0);
    }
    let mut first = Vec::new();
    for n in 0..rows {
        let (prefix, blocks) = row.split_at_mut(dtype.row_prefix());
        match prefix.len() {
            2 => prefix.copy_from_slice(&f16::from_f32(scale).to_le_bytes()),
            4 => prefix.copy_from_slice(&scale.to_le_bytes()),
            _ => {}
        }
        let norm = (rows == 1).then_some(tensor.norm);
        fill(dtype, scale, &mut rng, blocks, norm);
        match tensor.lean {
            Some(lean) if dtype == DType::I2S => against(&common[..cols / 2], lean, &mut rng, blocks),
            Some(_) if n == 0 => first.extend_from_slice(&blocks[..blocks.len() / block / 2 * block]),
            Some(_) => blocks[..first.len()].copy_from_slice(&first),
            None => {}
        }
        write(out, &row)?;
    }
    if dtype == DType::I2S {
        let mut tail = [0; 32];
        tail[..4].copy_from_slice(&scale.to_le_bytes());
        write(out, &tail)?;
    }
    Ok(dtype.file_id())
}

/// Makes some weights of a row of I2_S the negative sign of `common`.
fn against(common: &[f32], lean: f32, rng: &mut SplitMix, row: &mut [u8]) {
    for (column, value) in common.iter().enumerate() {
        if (rng.draw() % 10_000) as f32 >= 10_000.0 * lean {
            continue;
        }
        let (byte, shift) = (column / 128 * 32 + column % 32, 6 - 2 * (column % 128 / 32));
        let code = if *value > 0.0 { 0 } else { 2 };
        row[byte] = row[byte] & !(3 << shift) | code << shift;
    }
}

fn write(out: &mut dyn Write, bytes: &[u8]) -> Result<()> {
    out.write_all(bytes).map_err(|e| Error::new(Status::Io, e.to_string()))
}

/// Offsets of the f16 scales in a quantized block.
fn scales(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::TQ1_0 => &[52],
        DType::TQ2_0 => &[64],
        DType::PTQ1_0 => &[26],
        DType::MXFP4 => &[],
        _ => &[0],
    }
}

fn fill(dtype: DType, scale: f32, rng: &mut SplitMix, buffer: &mut [u8], norm: Option<f32>) {
    // Four codes 0, 1, 2 in a byte.
    let trits = |rng: &mut SplitMix| {
        let n = rng.draw() % 81;
        ((n % 3) | ((n / 3 % 3) << 2) | ((n / 9 % 3) << 4) | ((n / 27) << 6)) as u8
    };
    let value = |rng: &mut SplitMix| (rng.draw() % 4096) as f32 / 2048.0 - 1.0;
    if matches!(dtype, DType::I2S | DType::IQ2_BN) {
        return buffer.iter_mut().for_each(|b| *b = trits(rng));
    }
    for block in buffer.chunks_exact_mut(dtype.block().1) {
        match dtype {
            DType::F32 => {
                let x = value(rng);
                let x = norm.map_or(scale * x, |size| size * (1.0 + 0.1 * x));
                block.copy_from_slice(&x.to_le_bytes());
            }
            DType::F16 => block.copy_from_slice(&f16::from_f32(scale * value(rng)).to_le_bytes()),
            DType::BF16 => block.copy_from_slice(&half::bf16::from_f32(scale * value(rng)).to_le_bytes()),
            _ => {
                // ceil(n * 256 / 243): five trits.
                let byte = |rng: &mut SplitMix| match dtype {
                    DType::TQ2_0 | DType::Q2_0 | DType::Q2_0_128 => trits(rng),
                    DType::TQ1_0 | DType::PTQ1_0 | DType::IQ1_BN => {
                        ((rng.draw() % 243 * 256).div_ceil(243)) as u8
                    }
                    _ => rng.draw() as u8,
                };
                block.iter_mut().for_each(|b| *b = byte(rng));
                use DType::{PTQ1_0, Q1_0, Q2_0, Q2_0_128, TQ1_0, TQ2_0};
                let ternary = matches!(dtype, TQ1_0 | PTQ1_0 | TQ2_0 | Q1_0 | Q2_0 | Q2_0_128);
                // Sub-blocks of K-quants have scales of up to 63 of their own, codes go to 127.
                let step = f16::from_f32(if ternary { scale } else { scale / 256.0 }).to_le_bytes();
                if dtype == DType::MXFP4 {
                    // A power of two near the scale's twentieth: codes go to 12.
                    block[0] = ((scale / 10.0).to_bits() >> 23) as u8;
                }
                if dtype != DType::IQ1_BN {
                    scales(dtype).iter().for_each(|&at| block[at..at + 2].copy_from_slice(&step));
                }
            }
        }
    }
}
