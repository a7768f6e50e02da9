//! Conversion of a row of a weight matrix to f32: for embedding look-up, and for the weights of the dense product.

pub(in crate::kernels) mod codebooks;
pub(in crate::kernels) mod decode;
mod grids;
pub(in crate::kernels) mod panels;
pub(in crate::kernels) mod short_blocks;
pub(in crate::kernels) mod super_blocks;

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
        return panels::dequantize(m, row, out);
    }
    let source = packed_row(m, row);
    match m.dtype {
        DType::F32 => widen::<lanes::F32>(isa, source, out, source.as_ptr()),
        DType::F16 => widen::<lanes::F16>(isa, source, out, source.as_ptr()),
        DType::BF16 => widen::<lanes::BF16>(isa, source, out, source.as_ptr()),
        DType::I2S | DType::Ternary => i2s_row(source, row_scale(m, row), out),
        DType::TQ2_0 => tq2_0_row(source, out),
        DType::TQ1_0 | DType::PTQ1_0 | DType::TL1 | DType::TL2 | DType::IQ1_BN | DType::IQ2_BN => {
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

/// The last elements of a row, fewer than sixteen, followed by zeros.
pub(super) fn last_of<E: Element>(source: &[u8]) -> [f32; 16] {
    let mut out = [0.0; 16];
    in_scalars::<E>(source, &mut out, source.as_ptr());
    out
}

/// Blocks of 128 elements in 32 bytes: byte p holds elements p, p+32, p+64 and p+96, from the high bits down. `out`
/// may end within the last block.
fn i2s_row(source: &[u8], scale: f32, out: &mut [f32]) {
    let values = [-1.0f32, 0.0, 1.0, 2.0].map(|v| v * scale);
    for (out, block) in out.chunks_mut(128).zip(source.chunks_exact(32)) {
        for (k, out) in out.chunks_mut(32).enumerate() {
            for (out, b) in out.iter_mut().zip(block) {
                *out = values[(b >> (6 - 2 * k) & 3) as usize];
            }
        }
    }
}

/// Blocks of 256 elements in 66 bytes: two halves of 32 bytes, where byte m holds elements m, m+32, m+64 and m+96 of
/// its half, from the low bits up; then an f16 scale.
fn tq2_0_row(source: &[u8], out: &mut [f32]) {
    for (out, block) in out.chunks_exact_mut(256).zip(source.chunks_exact(66)) {
        let d = f16_at(&block[64..]);
        let values = [-1.0f32, 0.0, 1.0, 2.0].map(|v| v * d);
        for (k, out) in out.chunks_exact_mut(32).enumerate() {
            for (out, b) in out.iter_mut().zip(&block[k / 4 * 32..]) {
                *out = values[(b >> (2 * (k % 4)) & 3) as usize];
            }
        }
    }
}
