//! Buffers that are kept from call to call.

use crate::base::REFUSED;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u8; 64]);

impl Line {
    /// A line of sixteen times `x`.
    pub fn of_i32(x: i32) -> Self {
        let mut line = Self::default();
        line.0.as_chunks_mut::<4>().0.fill(x.to_ne_bytes());
        line
    }

    /// The line as sixteen f32.
    pub fn floats(&self) -> [f32; 16] {
        let bytes = self.0.as_chunks::<4>().0;
        std::array::from_fn(|i| f32::from_ne_bytes(bytes[i]))
    }
}

/// Lines as arrays of sixteen f32.
pub fn floats(lines: &mut [Line]) -> &mut [[f32; 16]] {
    // SAFETY: both are 64 bytes, of any contents; a Line is aligned for f32.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len()) }
}

/// Lines as f32.
pub fn floats_of(lines: &[Line]) -> &[f32] {
    // SAFETY: as in `floats`.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), 16 * lines.len()) }
}

/// The bytes of floats.
pub fn bytes_of(x: &[f32]) -> &[u8] {
    // SAFETY: floats are four bytes without gaps.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
}

impl Default for Line {
    fn default() -> Self {
        Self([0; 64])
    }
}

/// The first `len` bytes of a buffer, grown if needed. They begin on a cache line, so that no vector load crosses two.
pub fn grown_lines(buffer: &mut Vec<Line>, len: usize) -> &mut [i8] {
    let lines = grown(buffer, len.div_ceil(size_of::<Line>()));
    // SAFETY: the lines have at least `len` bytes, of any contents.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), len) }
}

/// The first `len` elements of a buffer, grown if needed. Panics if there is no memory; the engine's boundary turns
/// that into an error, since the callers of this function cannot return one.
pub fn grown<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        let more = len - buffer.len();
        assert!(buffer.try_reserve_exact(more).is_ok(), "{REFUSED} {len} elements of a buffer");
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}
