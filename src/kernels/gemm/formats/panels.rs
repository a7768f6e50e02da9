//! Rotated rows of int8 with one scale each, in panels of sixteen: weights that are made at load (`int8::pack`).
//!
//! A panel is a sequence of lines with four columns of each row, as in `simd::ints`, and then a line with the rows'
//! scales.

use crate::kernels::pool::buffer::Line;
use crate::kernels::rows::hadamard::unrotate;
use crate::kernels::{Isa, Matrix};

/// Rows per panel.
pub(crate) const SIDE: usize = 16;

/// Rows are padded with zeros to a multiple of this number of columns.
pub(crate) const WIDTH: usize = 128;

/// The width of activation rows with one scale each, for weights of `cols` columns.
pub fn padded(cols: usize) -> usize {
    cols.next_multiple_of(WIDTH)
}

/// Number of lines of a panel with `cols` columns.
pub(crate) fn panel_lines(cols: usize) -> usize {
    padded(cols) / 4 + 1
}

/// Panel `n` of `packed`, where a panel has `each` lines. Panics if the bytes are not aligned as lines are; `pack`
/// aligns them.
#[inline]
pub(crate) fn panel(packed: &[u8], each: usize, n: usize) -> &[Line] {
    let bytes = &packed[64 * each * n..64 * each * (n + 1)];
    assert!(bytes.as_ptr().cast::<Line>().is_aligned(), "whole lines");
    // SAFETY: a Line is any 64 bytes.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), each) }
}

/// Converts row `row` of such a matrix to f32, and undoes its rotation.
pub(crate) fn dequantize(isa: Isa, m: &Matrix, row: usize, out: &mut [f32]) {
    let panel = panel(&m.data, panel_lines(m.cols), row / SIDE);
    let at = 4 * (row % SIDE);
    let scale = panel[panel.len() - 1].floats()[row % SIDE];
    for (out, line) in out.chunks_mut(4).zip(panel) {
        out.iter_mut().zip(&line.0[at..]).for_each(|(out, value)| *out = *value as i8 as f32 * scale);
    }
    unrotate(isa, out);
}
