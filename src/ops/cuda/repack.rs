//! Repacks weights from the layout of files to that of device kernels (`cuda/kernels/weights.cuh`). Scales between
//! the codes of a file move to planes of their own, and bits of a code that a file spreads over a block are brought
//! together. The codes' values stay the same.

use super::weights::{Planes, refused};
use crate::base::{Result, reserve};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::formats::thirds;
use crate::kernels::{DType, Matrix, Pool};
use std::borrow::Cow;

const NOTHING: Cow<'static, [u8]> = Cow::Borrowed(&[]);

/// Elements that are multiplied as floats, unchanged.
pub(super) fn as_it_is(matrix: &Matrix) -> Result<Planes<'_>> {
    Ok(Planes { codes: Cow::Borrowed(&matrix.data), scales: NOTHING, scale_step: 0 })
}

/// Codes, followed by one scale.
pub(super) fn i2s(matrix: &Matrix) -> Result<Planes<'_>> {
    let (codes, behind) = matrix.data.split_at(matrix.rows * matrix.cols / 4);
    let scale = behind.get(..4).ok_or_else(|| refused(DType::I2S, "weights without a scale"))?;
    Ok(Planes { codes: Cow::Borrowed(codes), scales: Cow::Borrowed(scale), scale_step: 0 })
}

/// Codes of padded rows, followed by one scale per row.
pub(super) fn ternary(matrix: &Matrix) -> Result<Planes<'_>> {
    let (elements, bytes) = DType::Ternary.block();
    let (codes, scales) = matrix.data.split_at(matrix.rows * matrix.cols.div_ceil(elements) * bytes);
    Ok(Planes { codes: Cow::Borrowed(codes), scales: Cow::Borrowed(scales), scale_step: 1 })
}

/// Rows in order, from the panels of `formats::panels`: lines of 64 bytes with four columns of each of sixteen rows,
/// and a last line with their scales.
pub(super) fn int8(matrix: &Matrix) -> Result<Planes<'_>> {
    let width = int8_width(matrix);
    let (mut codes, mut scales) = (zeros(matrix.rows * width)?, Vec::new());
    reserve(&mut scales, 4 * matrix.rows, WHAT)?;
    for (row, to) in codes.chunks_exact_mut(width).enumerate() {
        let panel = &matrix.data[row / 16 * (width / 4 + 1) * 64 + row % 16 * 4..];
        for (n, to) in to.chunks_exact_mut(4).enumerate() {
            to.copy_from_slice(&panel[64 * n..][..4]);
        }
        scales.extend_from_slice(&panel[16 * width..][..4]);
    }
    Ok(Planes { codes: Cow::Owned(codes), scales: Cow::Owned(scales), scale_step: 1 })
}

/// Columns of a row on the device.
pub(super) fn int8_width(matrix: &Matrix) -> usize {
    matrix.cols.next_multiple_of(128)
}

const WHAT: &str = "weights on their way to the device";

fn zeros(bytes: usize) -> Result<Vec<u8>> {
    let mut list = Vec::new();
    reserve(&mut list, bytes, WHAT)?;
    list.resize(bytes, 0);
    Ok(list)
}

/// Gives the two bytes for the n-th 32 columns of a super-block.
type Group = fn(&[u8], usize) -> [u8; 2];

/// A type's block as files pack it (github.com/ggml-org/ggml, ggml-quants.c).
pub(super) struct Block {
    /// Byte offsets of the scale and of the minimum, both f16, or a scale of one byte that is an exponent.
    scale: usize,
    minimum: Option<usize>,
    exponent: bool,
    /// Bits of a code in the low plane and in the high plane.
    bits: [usize; 2],
    /// Returns the code of column `i`.
    code: fn(&[u8], usize) -> u8,
    /// Whether kernels look codes up in a table, and take them in another order.
    table: bool,
    group: Option<Group>,
}

/// Code of column `i`, with `BITS` bits per code from byte `AT` on. With four bits, columns 0 to 15 are in the low
/// halves of the bytes. With fewer, neighboring columns share a byte.
fn plain<const BITS: usize, const AT: usize>(b: &[u8], i: usize) -> u8 {
    match BITS {
        8 => b[AT + i],
        4 => b[AT + i % 16] >> (i / 16 * 4) & 15,
        _ => b[AT + i * BITS / 8] >> (i * BITS % 8) & ((1 << BITS) - 1),
    }
}

/// Like `plain` with four bits; the fifth bits are in the four bytes before `AT`.
fn five<const AT: usize>(b: &[u8], i: usize) -> u8 {
    plain::<4, AT>(b, i) | (b[AT - 4 + i / 8] >> (i % 8) & 1) << 4
}

/// Two-bit codes from byte `AT` on: 32 bytes hold 128 columns.
fn quarter<const AT: usize>(b: &[u8], i: usize) -> u8 {
    b[AT + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3
}

/// Four-bit codes of Q4_K from byte `AT` on.
fn half<const AT: usize>(b: &[u8], i: usize) -> u8 {
    b[AT + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15
}

/// The six-bit scale and minimum of group `n`. Those of the first four groups are in bytes of their own, which also
/// hold the high bits of the other groups.
fn sixes(b: &[u8], n: usize) -> [u8; 2] {
    match n {
        0..4 => [b[4 + n] & 63, b[8 + n] & 63],
        _ => [b[8 + n] & 15 | b[n] >> 6 << 4, b[8 + n] >> 4 | b[4 + n] >> 6 << 4],
    }
}

/// The scales of Q3_K: first the low four bits of all sixteen, then the high two bits of each. They are stored with
/// an offset of 32.
fn threes(b: &[u8], n: usize) -> [u8; 2] {
    [2 * n, 2 * n + 1].map(|group| {
        let (low, high) =
            (b[96 + group % 8] >> (group / 8 * 4) & 15, b[104 + group % 4] >> (group / 4 * 2) & 3);
        (low | high << 4).wrapping_sub(32)
    })
}

/// The scales of IQ4_XS: the high two bits of all eight, then the low four bits of each. They are stored with an offset
/// of 32.
fn fours(b: &[u8], n: usize) -> [u8; 2] {
    let (low, high) = (b[4 + n / 2] >> (n % 2 * 4) & 15, b[2 + n / 4] >> (n % 4 * 2) & 3);
    [(low | high << 4).wrapping_sub(32); 2]
}

const fn short(bits: [usize; 2], minimum: Option<usize>, code: fn(&[u8], usize) -> u8) -> Block {
    Block { scale: 0, minimum, exponent: false, bits, code, table: false, group: None }
}

pub(super) const Q8_0: Block = short([8, 0], None, plain::<8, 2>);
pub(super) const Q4_0: Block = short([4, 0], None, plain::<4, 2>);
pub(super) const Q4_1: Block = short([4, 0], Some(2), plain::<4, 4>);
pub(super) const Q5_0: Block = short([4, 1], None, five::<6>);
pub(super) const Q5_1: Block = short([4, 1], Some(2), five::<8>);
pub(super) const Q2_0: Block = short([2, 0], None, plain::<2, 2>);
/// As Q2_0, whose codes have the same meaning.
pub(super) const PTQ1_0: Block = Block { scale: 26, ..short([2, 0], None, thirds::code::<16>) };
pub(super) const Q1_0: Block = short([1, 0], None, plain::<1, 2>);
pub(super) const IQ4_NL: Block = Block { table: true, ..short([4, 0], None, plain::<4, 2>) };
pub(super) const MXFP4: Block = Block { table: true, exponent: true, ..short([4, 0], None, plain::<4, 1>) };
pub(super) const TQ2_0: Block = Block { scale: 64, ..short([2, 0], None, quarter::<0>) };
/// As TQ2_0, whose codes have the same meaning.
pub(super) const TQ1_0: Block = Block { scale: thirds::SCALE, ..short([2, 0], None, thirds::code::<32>) };
pub(super) const TQ1_0_256: Block =
    Block { scale: thirds::SCALE, code: |b, i| thirds::code::<32>(b, i) + 3, ..TQ2_0_256 };
/// As Q3_K, whose codes are 4 above their integers where these are 1 above.
pub(super) const TQ2_0_256: Block =
    Block { scale: 64, group: Some(|_, _| [1, 1]), ..short([2, 1], None, |b, i| quarter::<0>(b, i) + 3) };
pub(super) const Q2_K: Block = Block {
    scale: 80,
    group: Some(|b, n| [b[2 * n], b[2 * n + 1]]),
    ..short([2, 0], Some(82), quarter::<16>)
};
pub(super) const Q3_K: Block = Block {
    scale: 108,
    group: Some(threes),
    ..short([2, 1], None, |b, i| quarter::<32>(b, i) | (b[i % 32] >> (i / 32) & 1) << 2)
};
pub(super) const Q4_K: Block = Block { group: Some(sixes), ..short([4, 0], Some(2), half::<16>) };
pub(super) const Q5_K: Block = Block {
    group: Some(sixes),
    ..short([4, 1], Some(2), |b, i| half::<48>(b, i) | (b[16 + i % 32] >> (i / 32) & 1) << 4)
};
pub(super) const Q6_K: Block = Block {
    scale: 208,
    group: Some(|b, n| [b[192 + 2 * n], b[193 + 2 * n]]),
    ..short([4, 2], None, |b, i| {
        b[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15 | quarter::<128>(b, i) << 4
    })
};
/// Sixteen bytes of codes for each 32 columns.
pub(super) const IQ4_XS: Block = Block {
    table: true,
    group: Some(fours),
    ..short([4, 0], None, |b, i| plain::<4, 8>(&b[i / 32 * 16..], i % 32))
};

/// Writes the bits of column `i` to the words of its 32 columns, in the order that kernels read: neighboring columns
/// in neighboring bytes of a word, or for a `table` in neighboring halves of bytes.
fn put(bits: usize, table: bool, words: &mut [u8], i: usize, code: u8) {
    let in_byte = 8 / bits;
    let (byte, place) = match bits {
        4 if table => (i / 4 % 4 * 4 + i / 16 * 2 + i % 4 / 2, i % 2),
        4 => (i / 4 % 4 * 4 + i % 4, i / 16),
        _ => (i / (4 * in_byte) * 4 + i % 4, i / 4 % in_byte),
    };
    words[byte] |= code << (place * bits);
}

/// One row's part of each plane.
struct Row<'a> {
    low: &'a mut [u8],
    high: &'a mut [u8],
    groups: &'a mut [u8],
    scales: &'a mut [u8],
}

impl Block {
    /// Bytes of a scale, and of its minimum.
    fn scale_bytes(&self) -> usize {
        match self.minimum {
            Some(_) => 4,
            None if self.exponent => 1,
            None => 2,
        }
    }

    fn row(&self, elements: usize, from: &[u8], bytes: usize, to: Row) {
        let ([bits, high], each) = (self.bits, self.scale_bytes());
        for (n, block) in from.chunks_exact(bytes).enumerate() {
            let (scale, own) = (&mut to.scales[n * each..][..each], each.min(2));
            scale[..own].copy_from_slice(&block[self.scale..][..own]);
            if let Some(minimum) = self.minimum {
                scale[2..].copy_from_slice(&block[minimum..][..2]);
            }
            for i in 0..elements {
                let (code, b) = ((self.code)(block, i), (n * elements + i) / 32);
                let low = &mut to.low[b * 4 * bits..][..4 * bits];
                put(bits, self.table, low, i % 32, code & (!0u8 >> (8 - bits)));
                if high > 0 {
                    put(high, false, &mut to.high[b * 4 * high..][..4 * high], i % 32, code >> bits);
                }
            }
            if let Some(group) = self.group {
                let to = &mut to.groups[n * elements / 16..][..elements / 16];
                to.chunks_exact_mut(2).enumerate().for_each(|(n, to)| to.copy_from_slice(&group(block, n)));
            }
        }
    }

    /// Bytes of a row in the low plane, the high plane, the plane of groups, and the scales.
    fn row_bytes(&self, matrix: &Matrix) -> [usize; 4] {
        let (cols, (elements, _), [bits, high]) = (matrix.cols, matrix.dtype.block(), self.bits);
        let whole = |bits: usize| (cols * bits / 8).next_multiple_of(16);
        let groups = if self.group.is_some() { cols / 16 } else { 0 };
        [whole(bits), whole(high), groups, cols / elements * self.scale_bytes()]
    }

    /// Bytes of all planes together.
    pub(super) fn bytes(&self, matrix: &Matrix) -> usize {
        matrix.rows * self.row_bytes(matrix).iter().sum::<usize>()
    }

    /// The planes of codes one after the other, each with its rows padded to 16 bytes, and the scales of blocks.
    pub(super) fn planes(&self, pool: &Pool, matrix: &Matrix) -> Result<Planes<'static>> {
        let &Matrix { rows, cols, dtype, .. } = matrix;
        let (elements, bytes) = dtype.block();
        let [low, high, groups, each] = self.row_bytes(matrix);
        let (mut codes, mut scales) = (zeros(rows * (low + high + groups))?, zeros(rows * each)?);
        let (to, to_scales) = (SharedOut::new(&mut codes), SharedOut::new(&mut scales));
        let from = cols / elements * bytes;
        pool.run(rows, &|row| {
            let plane =
                |start: usize, each: usize| rows * start + row * each..rows * start + (row + 1) * each;
            // SAFETY: each task has its own row in each plane, and planes do not overlap.
            let row_to = unsafe {
                Row {
                    low: to.slice(plane(0, low)),
                    high: to.slice(plane(low, high)),
                    groups: to.slice(plane(low + high, groups)),
                    scales: to_scales.slice(plane(0, each)),
                }
            };
            self.row(elements, &matrix.data[row * from..][..from], bytes, row_to);
        });
        Ok(Planes { codes: Cow::Owned(codes), scales: Cow::Owned(scales), scale_step: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Bytes;
    use crate::kernels::Isa;
    use crate::kernels::gemm::formats::dequantize_row;
    use half::f16;

    const UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    const ROWS: usize = 3;
    const COLS: usize = 512;

    /// Any bytes, but for the scale of each block, which is a number.
    fn any_matrix(dtype: DType) -> Matrix {
        let (bytes, mut state) = (dtype.byte_len(ROWS, COLS).unwrap(), 1u64);
        let mut data: Vec<u8> = (0..bytes)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        if dtype != DType::MXFP4 {
            data.chunks_exact_mut(dtype.block().1).for_each(|block| block[1] &= 0xbf);
        }
        Matrix::new(Bytes::new(data), dtype, ROWS, COLS).unwrap()
    }

    /// The weight in column `col` of a row, read as `look_up`, `load_scale` and `group_of` of the kernels do.
    fn weight(dtype: DType, planes: &Planes, row: usize, col: usize) -> f32 {
        let (at, i, codes, scales) = (row * COLS + col, col % 32, &planes.codes, &planes.scales);
        let word = &codes[(at - i) / 2 + i % 16 / 4 * 4..][..4];
        let code = u32::from_le_bytes(word.try_into().unwrap()) >> (16 * (i / 16) + 4 * (i % 4)) & 15;
        let half = |n: usize| f16::from_le_bytes([scales[2 * n], scales[2 * n + 1]]).to_f32();
        match dtype {
            DType::IQ4_NL => half(at / 32) * UNEVEN[code as usize] as f32,
            DType::IQ4_XS => {
                let groups = &codes[ROWS * COLS / 2 + at / 32 * 2..][..2];
                assert_eq!(groups[0], groups[1]);
                half(at / 256) * (groups[0] as i8) as f32 * UNEVEN[code as usize] as f32
            }
            _ => (scales[at / 32] as f32 - 128.0).exp2() * DOUBLED[code as usize] as f32,
        }
    }

    #[test]
    fn codes_that_kernels_look_up_keep_their_values() {
        let pool = Pool::new(1).unwrap();
        for (dtype, block) in [(DType::IQ4_NL, IQ4_NL), (DType::MXFP4, MXFP4), (DType::IQ4_XS, IQ4_XS)] {
            let matrix = any_matrix(dtype);
            let planes = block.planes(&pool, &matrix).unwrap();
            assert_eq!(planes.codes.len() + planes.scales.len(), block.bytes(&matrix), "{dtype:?}");
            let mut want = [0.0; COLS];
            for row in 0..ROWS {
                dequantize_row(Isa::Scalar, &matrix, row, &mut want);
                for (col, want) in want.iter().enumerate() {
                    let got = weight(dtype, &planes, row, col);
                    assert_eq!(got.to_bits(), want.to_bits(), "{dtype:?}, row {row}, column {col}");
                }
            }
        }
    }
}
