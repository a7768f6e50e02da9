//! Repacking at load: ternary layouts that no kernel reads are converted to layouts that the integer product reads.

pub mod codes;
pub mod requantize;
pub mod tl;

use crate::base::sync::Mutex;
use crate::base::{Bytes, Error, Result, Status};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::formats::decode::decode;
use crate::kernels::gemm::formats::panels::padded;
use crate::kernels::gemm::formats::{f16_at, packed_row, thirds};
use crate::kernels::simd::bytes::trit;
use crate::kernels::{DType, Isa, Matrix, Pool, isa};
use std::ops::Range;

/// Rows per task.
const TASK_ROWS: usize = 32;
/// Minimum number of columns of flattened rows. Padding narrower rows to whole blocks would make a large matrix of a
/// small file.
const MIN_COLS: usize = 64;
/// The code of a zero.
const ZERO: u8 = 1;

/// Returns `m` in a layout that the kernels read. A matrix that they read as it is comes back unchanged, without a
/// copy of its bytes. The others are packed into new memory, without loss:
///
/// - I2_S whose rows end within blocks, IQ1_BN and IQ2_BN become `Ternary`;
/// - TQ1_0 becomes TQ2_0 and PTQ1_0 becomes `Q2_0_128`, unless the machine looks up digits in registers (VBMI): without
///   that, a product with one token takes 1.4 times as long in base 3, though it reads less;
/// - TL1 and TL2 need more than the matrix: see `tl::unpack`.
///
/// A matrix packed to `Ternary` has valid codes and finite scales; the result is `BadModel` if the source has
/// others. The other types are left to `ternary::validate`. `OutOfMemory` if the packed matrix does not fit.
pub fn prepare(pool: &Pool, m: Matrix) -> Result<Matrix> {
    prepare_for(isa(), pool, m)
}

/// Like `prepare`, for a machine whose best instruction set is `isa`.
pub(crate) fn prepare_for(isa: Isa, pool: &Pool, m: Matrix) -> Result<Matrix> {
    match m.dtype {
        DType::I2S if m.cols.is_multiple_of(128) => Ok(m),
        DType::I2S if m.cols < MIN_COLS => Err(Error::unsupported(format!(
            "an I2_S matrix of {} columns; rows that end within a block of 128 need at least {MIN_COLS}",
            m.cols
        ))),
        DType::I2S => flattened_i2s(pool, &m),
        DType::IQ1_BN => scaled_rows(pool, &m, f16_at, iq1_bn_codes),
        DType::IQ2_BN => scaled_rows(pool, &m, f32_at, iq2_bn_codes),
        DType::TQ1_0 | DType::PTQ1_0 if isa.has_vbmi() => Ok(m),
        DType::TQ1_0 => from_base_3::<32>(pool, &m, DType::TQ2_0, |codes, scale, out| {
            tq2_0_block(codes, out);
            out[64..].copy_from_slice(scale);
        }),
        DType::PTQ1_0 => from_base_3::<16>(pool, &m, DType::Q2_0_128, |codes, scale, out| {
            out[..2].copy_from_slice(scale);
            for (out, codes) in out[2..].iter_mut().zip(codes.as_chunks::<4>().0) {
                *out = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6;
            }
        }),
        DType::TL1 | DType::TL2 => {
            Err(Error::unsupported(format!("a {:?} matrix needs its tiling (kernel_config.ini)", m.dtype)))
        }
        _ => Ok(m),
    }
}

/// Makes a `Ternary` matrix. `fill(row, codes)` writes the `cols` codes of a row: 0, 1 or 2 for -1, 0 and 1. `scales`
/// has one factor per row. `BadModel` if a code is not one of these or a scale is not finite.
pub fn pack_ternary(
    pool: &Pool,
    rows: usize,
    cols: usize,
    scales: &[f32],
    fill: &(dyn Fn(usize, &mut [u8]) -> Result<()> + Sync),
) -> Result<Matrix> {
    assert_eq!(scales.len(), rows, "a scale for each row");
    if let Some(row) = scales.iter().position(|scale| !scale.is_finite()) {
        return Err(Error::bad_model(format!("the scale of row {row} is {}", scales[row])));
    }
    let len = DType::Ternary.byte_len(rows, cols);
    let mut data =
        zeroed(len.ok_or_else(|| Error::bad_model(format!("a {rows}x{cols} matrix is too large")))?)?;
    let width = padded(cols);
    let (packed, behind) = data.split_at_mut(rows * width / 4);
    for (out, scale) in behind.as_chunks_mut::<4>().0.iter_mut().zip(scales) {
        *out = scale.to_le_bytes();
    }
    for_rows(pool, rows, width / 4, width, packed, &|row, codes: &mut [u8], out| {
        codes[cols..].fill(ZERO);
        fill(row, &mut codes[..cols])?;
        pack_codes(codes, out)
            .ok_or_else(|| Error::bad_model(format!("row {row} holds a code that is no weight")))
    })?;
    Matrix::new(Bytes::new(data), DType::Ternary, rows, cols)
}

/// Packs Hugging Face's ternary tensor: uint8 `[rows / 4, cols]`. Bits 2i of byte row r hold the codes of output row
/// `r + i * rows / 4`. The weights are multiplied by `scales`.
pub fn pack_uint8(pool: &Pool, packed: &[u8], rows: usize, cols: usize, scales: &[f32]) -> Result<Matrix> {
    let quarter = rows / 4;
    if !rows.is_multiple_of(4) || quarter.checked_mul(cols) != Some(packed.len()) {
        return Err(Error::bad_model(format!(
            "a {rows}x{cols} packed ternary matrix has {} bytes, not one for each four rows of a column",
            packed.len()
        )));
    }
    pack_ternary(pool, rows, cols, scales, &|row, codes| {
        let shift = 2 * (row / quarter);
        let source = &packed[row % quarter * cols..][..cols];
        codes.iter_mut().zip(source).for_each(|(code, b)| *code = b >> shift & 3);
        Ok(())
    })
}

/// Returns a Q2_0 or PTQ1_0 matrix as `Ternary` if it is ternary: it has no value 2, and each row has a single scale,
/// except that blocks of zeros have the scale 0, which ggml's quantizer gives them. Returns None otherwise.
///
/// The activations of a BitNet model are rounded to int8 with one scale per token. This conversion ensures that
/// for BitNet files of this type.
pub fn as_ternary(pool: &Pool, m: &Matrix) -> Result<Option<Matrix>> {
    if !matches!(m.dtype, DType::Q2_0 | DType::Q2_0_128 | DType::PTQ1_0) {
        return Ok(None);
    }
    let (elements, bytes) = m.dtype.block();
    let blocks = |row| packed_row(m, row).chunks_exact(bytes);
    let mut scales = zeroed(m.rows)?;
    let other = || Error::unsupported("a matrix that is not ternary");
    let looked = for_rows(pool, m.rows, 1, m.cols, &mut scales, &|row, _: &mut [u8], out| {
        let decoded = || blocks(row).map(|block| decode(m.dtype, block));
        let mut some = decoded().map(|block| block.d).filter(|scale| *scale != 0.0);
        out[0] = some.next().unwrap_or(0.0);
        let two = || decoded().any(|block| block.values[..elements].contains(&2));
        if some.any(|scale| scale != out[0]) || two() { Err(other()) } else { Ok(()) }
    });
    match looked {
        Ok(()) => {}
        Err(error) if error.status == Status::Unsupported => return Ok(None),
        Err(error) => return Err(error),
    }
    pack_ternary(pool, m.rows, m.cols, &scales, &|row, codes| {
        for (codes, block) in codes.chunks_exact_mut(elements).zip(blocks(row)) {
            let block = decode(m.dtype, block);
            let zero = block.d == 0.0;
            let each = codes.iter_mut().zip(block.values);
            each.for_each(|(code, value)| *code = if zero { ZERO } else { (value + 1) as u8 });
        }
        Ok(())
    })
    .map(Some)
}

/// Called with a row's index, scratch space and output.
type EachRow<'a, S, T> = dyn Fn(usize, &mut [S], &mut [T]) -> Result<()> + Sync + 'a;

/// Runs `each(row, scratch, out)` for all rows in parallel. `out` is the row's `stride` elements of `data`; `scratch`
/// has `width` elements with unspecified contents. Stops at the first error.
pub(in crate::kernels) fn for_rows<S: Copy + Default, T: Send>(
    pool: &Pool,
    rows: usize,
    stride: usize,
    width: usize,
    data: &mut [T],
    each: &EachRow<S, T>,
) -> Result<()> {
    let out = SharedOut::new(data);
    by_tasks(pool, rows.saturating_mul(width.max(stride)), rows, &|task| {
        let mut scratch = zeroed(width)?;
        for row in task {
            // SAFETY: each row belongs to one task, and rows do not overlap.
            let out = unsafe { out.slice(row * stride..(row + 1) * stride) };
            each(row, &mut scratch, out)?;
        }
        Ok(())
    })
}

/// Runs `each` for all rows, a few rows per task; in parallel if `work`, the number of operations in all, is large
/// enough. Stops at the first error.
pub fn by_tasks(
    pool: &Pool,
    work: usize,
    rows: usize,
    each: &(dyn Fn(Range<usize>) -> Result<()> + Sync),
) -> Result<()> {
    let failed = Mutex::new(None);
    pool.run_if_worth(work, rows.div_ceil(TASK_ROWS), &|task| {
        if failed.lock().is_none()
            && let Err(error) = each(task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS))
        {
            failed.lock().get_or_insert(error);
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Makes a matrix of the type `to`, whose rows `each` writes as in `for_rows`. `Unsupported` if the type cannot hold
/// the shape.
fn pack_rows<S: Copy + Default>(
    pool: &Pool,
    to: DType,
    (rows, cols): (usize, usize),
    width: usize,
    each: &EachRow<S, u8>,
) -> Result<Matrix> {
    let len = to.byte_len(rows, cols);
    let len =
        len.ok_or_else(|| Error::unsupported(format!("a {rows}x{cols} matrix cannot be stored as {to:?}")))?;
    let mut data = zeroed(len)?;
    for_rows(pool, rows, len / rows.max(1), width, &mut data, each)?;
    Matrix::new(Bytes::new(data), to, rows, cols)
}

/// Returns a buffer of zeros, or an error if there is not enough memory (instead of aborting).
pub(in crate::kernels) fn zeroed<T: Copy + Default>(len: usize) -> Result<Vec<T>> {
    filled(len, T::default())
}

fn filled<T: Copy>(len: usize, value: T) -> Result<Vec<T>> {
    let mut data = Vec::new();
    let refused = |_| Error::out_of_memory("packed weights", len.saturating_mul(size_of::<T>()));
    data.try_reserve_exact(len).map_err(refused)?;
    data.resize(len, value);
    Ok(data)
}

fn f32_at(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Packs codes in I2_S's bit order (see `formats`). Returns None if a code is 3 or more.
fn pack_codes(codes: &[u8], out: &mut [u8]) -> Option<()> {
    let mut most = 0;
    for (codes, out) in codes.as_chunks::<128>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        for (p, out) in out.iter_mut().enumerate() {
            let [a, b, c, d] = [codes[p], codes[p + 32], codes[p + 64], codes[p + 96]];
            most = most.max(a).max(b).max(c).max(d);
            *out = a << 6 | b << 4 | c << 2 | d;
        }
    }
    (most <= 2).then_some(())
}

/// Packs rows whose blocks follow a scale.
fn scaled_rows(
    pool: &Pool,
    m: &Matrix,
    scale: fn(&[u8]) -> f32,
    row_codes: fn(&[u8], &mut [u8]),
) -> Result<Matrix> {
    let (mut scales, stride) = (zeroed(m.rows)?, m.data.len() / m.rows.max(1));
    scales.iter_mut().enumerate().for_each(|(row, to)| *to = scale(&m.data[row * stride..]));
    pack_ternary(pool, m.rows, m.cols, &scales, &|row, codes| {
        row_codes(packed_row(m, row), codes);
        Ok(())
    })
}

/// Packs an I2_S tensor, whose rows may begin within blocks: the file flattens the tensor before it packs it.
fn flattened_i2s(pool: &Pool, m: &Matrix) -> Result<Matrix> {
    let scales = filled(m.rows, f32_at(&m.data[m.rows * m.cols / 4..]))?;
    pack_ternary(pool, m.rows, m.cols, &scales, &|row, codes| {
        let mut at = row * m.cols;
        let mut rest = codes;
        while !rest.is_empty() {
            // Up to the next boundary, elements are in successive bytes, at the same bits.
            let (block, within) = (at / 128, at % 128);
            let (part, left) = rest.split_at_mut(rest.len().min(32 - within % 32));
            let shift = 6 - 2 * (within / 32);
            let source = &m.data[block * 32 + within % 32..];
            part.iter_mut().zip(source).for_each(|(code, b)| *code = b >> shift & 3);
            at += part.len();
            rest = left;
        }
        Ok(())
    })
}

/// Blocks of 64 elements in 13 bytes. Each of the four 16-element parts has three bytes of five elements; its last
/// element is in the last byte, where element 16i + 15 is trit 4 - i. The first element of a byte is its last trit
/// (ik_llama.cpp, iqk_quantize.cpp: quantize_one_row_1bn, dequantize_row_iq1_bn).
fn iq1_bn_codes(source: &[u8], codes: &mut [u8]) {
    for (codes, block) in codes.as_chunks_mut::<64>().0.iter_mut().zip(source.as_chunks::<13>().0) {
        for (i, codes) in codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            for (k, codes) in codes[..15].as_chunks_mut::<5>().0.iter_mut().enumerate() {
                *codes = [4, 3, 2, 1, 0].map(|n| trit(block[3 * i + k], n));
            }
            codes[15] = trit(block[12], 4 - i);
        }
    }
}

/// Blocks of 64 elements in 16 bytes: byte j holds elements j, j + 16, j + 32 and j + 48, from the low bits up
/// (ik_llama.cpp, iqk_quantize.cpp: quantize_one_row_2bn).
fn iq2_bn_codes(source: &[u8], codes: &mut [u8]) {
    for (codes, block) in codes.as_chunks_mut::<64>().0.iter_mut().zip(source.as_chunks::<16>().0) {
        for (k, codes) in codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            codes.iter_mut().zip(block).for_each(|(code, b)| *code = b >> (2 * k) & 3);
        }
    }
}

/// Converts blocks in base 3, of that LEN (see `thirds`), and their f16 scales. `pack` writes a block from its codes
/// and its scale, which is kept.
fn from_base_3<const LEN: usize>(
    pool: &Pool,
    m: &Matrix,
    to: DType,
    pack: fn(&[u8], &[u8], &mut [u8]),
) -> Result<Matrix> {
    let ((elements, from_bytes), (_, to_bytes)) = (m.dtype.block(), to.block());
    pack_rows(pool, to, (m.rows, m.cols), elements, &|row, codes: &mut [u8], out| {
        let blocks = packed_row(m, row).chunks_exact(from_bytes);
        for (block, out) in blocks.zip(out.chunks_exact_mut(to_bytes)) {
            thirds::all::<LEN, _>(block, codes, |code| code);
            pack(codes, &block[from_bytes - 2..], out);
        }
        Ok(())
    })
}

/// Packs 256 codes in TQ2_0's bit order (see `formats`) into the first 64 bytes of `out`.
pub(in crate::kernels) fn tq2_0_block(codes: &[u8], out: &mut [u8]) {
    for (codes, out) in codes.chunks_exact(128).zip(out.chunks_exact_mut(32)) {
        for (m, out) in out.iter_mut().enumerate() {
            *out = codes[m] | codes[m + 32] << 2 | codes[m + 64] << 4 | codes[m + 96] << 6;
        }
    }
}

#[cfg(test)]
mod tests;
