//! Rows of int8 with a scale each, in panels of sixteen: weights that are made at load (`int8::pack`).
//!
//! A panel is lines of four columns of each row after the other, as `simd::ints` has them, then a line with the rows' scales.

use crate::kernels::Matrix;
use crate::kernels::pool::buffer::Line;

/// Rows of a panel.
pub const SIDE: usize = 16;

/// Columns that rows are padded to, with zeros.
pub const WIDTH: usize = 128;

/// The width of activation rows that have a scale each, for weights of `cols` columns.
pub fn padded(cols: usize) -> usize {
    cols.next_multiple_of(WIDTH)
}

/// Lines of a panel of `cols` columns.
pub fn panel_lines(cols: usize) -> usize {
    padded(cols) / 4 + 1
}

/// The lines of panel `n` of `packed`, `each` of them. Panics where the bytes are not those of lines, which `pack` makes.
#[inline]
pub fn panel(packed: &[u8], each: usize, n: usize) -> &[Line] {
    let bytes = &packed[64 * each * n..64 * each * (n + 1)];
    assert!(bytes.as_ptr().cast::<Line>().is_aligned(), "whole lines");
    // SAFETY: a Line is any 64 bytes.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), each) }
}

/// Row `row` of such a matrix as f32.
pub fn dequantize(m: &Matrix, row: usize, out: &mut [f32]) {
    let panel = panel(&m.data, panel_lines(m.cols), row / SIDE);
    let at = 4 * (row % SIDE);
    let scale = panel[panel.len() - 1].floats()[row % SIDE];
    for (out, line) in out.chunks_mut(4).zip(panel) {
        out.iter_mut().zip(&line.0[at..]).for_each(|(out, value)| *out = *value as i8 as f32 * scale);
    }
}
