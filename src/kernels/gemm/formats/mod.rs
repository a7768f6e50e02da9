//! Conversion of a row of a weight matrix to f32: for embedding look-up, and for the weights of the dense product.

pub(in crate::kernels) mod codebooks;
pub(in crate::kernels) mod decode;
mod grids;
pub(in crate::kernels) mod panels;
pub(in crate::kernels) mod short_blocks;
pub(in crate::kernels) mod super_blocks;
pub(crate) mod thirds;

use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::{self, Element, Lanes};
use crate::kernels::{DType, Isa, Matrix};
use half::f16;
use std::ops::Range;

/// Writes row `row` of `m` to `out`, which has `m.cols` elements, with the bits that ggml gives: F32, F16 and BF16
/// are exact; the `code * scale` of other types is rounded as in ggml. Panics if there is no such row, and for types
/// that `pack::prepare` converts to others.
pub fn dequantize_row(isa: Isa, m: &Matrix, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), m.cols, "a dequantized row is as long as its source");
    if m.dtype == DType::Int8 {
        return panels::dequantize(isa, m, row, out);
    }
    let source = packed_row(m, row);
    match m.dtype {
        DType::F32 => widen::<lanes::F32>(isa, source, out, source.as_ptr()),
        DType::F16 => widen::<lanes::F16>(isa, source, out, source.as_ptr()),
        DType::BF16 => widen::<lanes::BF16>(isa, source, out, source.as_ptr()),
        DType::I2S | DType::Ternary | DType::TQ1_0 | DType::TQ2_0 => {
            codes_of_row(m.dtype, source, out, |code| code as f32 - 1.0);
            for (n, out) in out.chunks_mut(256).enumerate() {
                let scale = match m.dtype.has_scaled_blocks() {
                    true => scale_of_block(m.dtype, source, n),
                    false => row_scale(m, row),
                };
                out.iter_mut().for_each(|out| *out *= scale);
            }
        }
        DType::TL1 | DType::TL2 | DType::IQ1_BN | DType::IQ2_BN => {
            panic!("a {:?} matrix was not prepared", m.dtype)
        }
        blocks => decode::dequantize(blocks, source, out),
    }
}

/// The bytes of one row as the file packs them, without its `row_prefix`.
pub(in crate::kernels) fn packed_row(m: &Matrix, row: usize) -> &[u8] {
    let (rows, _) = packed_rows(m, row..row + 1);
    &rows[m.dtype.row_prefix()..]
}

/// The bytes of some rows, and the number of bytes per row, prefixes included. For `Int8`, `rows` must start at a
/// panel, and the bytes are whole panels.
pub(in crate::kernels) fn packed_rows(m: &Matrix, rows: Range<usize>) -> (&[u8], usize) {
    assert!(rows.end <= m.rows, "row {} of a matrix of {} rows", rows.end - 1, m.rows);
    if m.dtype == DType::Int8 {
        let (panel, end) = (panels::panel_lines(m.cols) * 64, rows.end.div_ceil(panels::SIDE));
        return (&m.data[rows.start / panels::SIDE * panel..end * panel], panel / panels::SIDE);
    }
    let (elements, bytes) = m.dtype.block();
    assert!(
        m.cols.is_multiple_of(elements) || m.dtype == DType::Ternary,
        "a {:?} matrix of {} columns was not prepared",
        m.dtype,
        m.cols
    );
    let stride = m.dtype.row_prefix() + m.cols.div_ceil(elements) * bytes;
    (&m.data[rows.start * stride..rows.end * stride], stride)
}

/// The four pairs of bits of each byte, from the low bits up.
///
/// # Safety
/// `B`'s instructions are available.
#[inline(always)]
pub(super) unsafe fn twos<B: Bytes>(v: B) -> [B; 4] {
    // SAFETY: the caller's promise.
    unsafe { [v.right::<0>(3), v.right::<2>(3), v.right::<4>(3), v.right::<6>(3)] }
}

/// The scale of a row of an I2_S or `Ternary` matrix. Scales follow the codes: one for all rows, or one per row.
/// Weights are `(code - 1) * scale`.
pub(in crate::kernels) fn row_scale(m: &Matrix, row: usize) -> f32 {
    let at = match m.dtype {
        DType::I2S => m.rows * (m.cols / 4),
        _ => m.rows * (m.cols.div_ceil(128) * 32) + 4 * row,
    };
    f32::from_le_bytes([m.data[at], m.data[at + 1], m.data[at + 2], m.data[at + 3]])
}

/// The scale of block `n` of a row whose type `has_scaled_blocks`.
pub(in crate::kernels) fn scale_of_block(dtype: DType, source: &[u8], n: usize) -> f32 {
    f16_at(&source[(n + 1) * dtype.block().1 - 2..])
}

pub(in crate::kernels) fn f16_at(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

by_isa!(
    /// Converts elements to f32, and prefetches as many bytes at `next`; any address is allowed there.
    pub(super) fn widen<E: Element>(source: &[u8], out: &mut [f32], next: *const u8) = in_lanes::<lanes>, in_scalars
);

#[inline(always)]
unsafe fn in_lanes<L: Lanes, E: Element>(source: &[u8], out: &mut [f32], next: *const u8) {
    assert_eq!(source.len(), out.len() * E::BYTES, "a row as long as its elements");
    let (whole, rest) = out.as_chunks_mut::<16>();
    for (i, out) in whole.iter_mut().enumerate() {
        // SAFETY: sixteen elements; prefetched memory need not exist.
        unsafe {
            L::fetch(next.wrapping_add(16 * E::BYTES * i));
            E::load::<L>(source.as_ptr().add(16 * E::BYTES * i)).store(out.as_mut_ptr());
        }
    }
    let last = last_of::<E>(&source[16 * E::BYTES * whole.len()..]);
    rest.copy_from_slice(&last[..rest.len()]);
}

fn in_scalars<E: Element>(source: &[u8], out: &mut [f32], _: *const u8) {
    for (out, bytes) in out.iter_mut().zip(source.chunks_exact(E::BYTES)) {
        *out = E::value(bytes);
    }
}

/// The last elements of a row, if fewer than sixteen, followed by zeros.
pub(super) fn last_of<E: Element>(source: &[u8]) -> [f32; 16] {
    let mut out = [0.0; 16];
    in_scalars::<E>(source, &mut out, source.as_ptr());
    out
}

/// Writes `of(code)` for each code of a ternary row. I2_S and `Ternary` have blocks of 128 columns in 32 bytes: byte p
/// holds columns p, p+32, p+64 and p+96, from the high bits down. TQ2_0 has blocks of 256 columns in 66 bytes: two
/// halves of 32 bytes, where byte p holds columns p, p+32, p+64 and p+96 of its half, from the low bits up; then an
/// f16 scale. `out` may end within the last block. TQ1_0 is in `thirds`.
pub(super) fn codes_of_row<T>(dtype: DType, source: &[u8], out: &mut [T], of: impl Fn(u8) -> T) {
    if dtype == DType::TQ1_0 {
        let blocks = source.chunks_exact(thirds::BYTES).zip(out.chunks_exact_mut(256));
        return blocks.for_each(|(block, out)| thirds::all::<32, _>(block, out, &of));
    }
    for (n, out) in out.chunks_mut(128).enumerate() {
        let scaled = dtype == DType::TQ2_0;
        let half = &source[if scaled { n / 2 * 66 + n % 2 * 32 } else { n * 32 }..];
        for (k, out) in out.chunks_mut(32).enumerate() {
            let shift = 2 * if scaled { k } else { 3 - k };
            out.iter_mut().zip(half).for_each(|(out, b)| *out = of(b >> shift & 3));
        }
    }
}
