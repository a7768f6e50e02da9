//! Arrays that stand for the processor.

use super::{Machine, SIDE};
use crate::kernels::gemm::formats::decode::decode;
use crate::kernels::pool::buffer::Line;
use crate::kernels::simd::amx;
use crate::kernels::{DType, Isa};
use half::f16;
use std::array::from_fn;
use std::cell::Cell;

thread_local! {
    /// Set by tests.
    pub static WANTED: Cell<Option<Isa>> = const { Cell::new(None) };
}

/// The vectors that products take beside the model's tiles.
pub fn wanted() -> Option<Isa> {
    WANTED.get()
}

pub struct Model;

// SAFETY of all blocks: the caller has what pointers point to.
impl Machine for Model {
    type Tiles = amx::Model;
    type Floats = [f32; SIDE];

    unsafe fn planes<const HIGH_FIRST: bool>(from: *const u8, len: usize, to: *mut Line) {
        for k in 0..4 {
            let shift = 2 * if HIGH_FIRST { 3 - k } else { k };
            // SAFETY: a line, which nobody else has, and `len` bytes.
            unsafe {
                let byte = |i| if i < len { *from.add(i) >> shift & 3 } else { 0 };
                to.add(SIDE * k).write(Line(from_fn(byte)));
            }
        }
    }

    unsafe fn columns(rows: &[*const i8; SIDE], at: usize, to: &mut [Line; 4]) {
        for (n, line) in to.iter_mut().enumerate() {
            // SAFETY: 16 bytes of each row.
            line.0 = from_fn(|i| unsafe { *rows[i / 4].add(at + 4 * n + i % 4) as u8 });
        }
    }

    unsafe fn splat(x: f32) -> Self::Floats {
        [x; SIDE]
    }
    unsafe fn load(from: *const f32) -> Self::Floats {
        from_fn(|i| unsafe { from.add(i).read_unaligned() })
    }
    unsafe fn decode(
        dtype: DType,
        from: *const u8,
        stride: usize,
        count: usize,
        depth: usize,
        to: *mut [u8; 32],
    ) {
        let (elements, bytes) = dtype.block();
        let of_block = elements / 32;
        for (r, b) in (0..count).flat_map(|r| (0..depth).map(move |b| (r, b))) {
            // SAFETY: a block of a row; sixteen rows of each of `depth` blocks.
            unsafe {
                let block = std::slice::from_raw_parts(from.add(r * stride + b / of_block * bytes), bytes);
                let codes = decode(dtype, block).values;
                to.add(b * SIDE + r).write(from_fn(|i| codes[b % of_block * 32 + i] as u8));
            }
        }
    }
    unsafe fn halves<const LAST: bool>(from: *const u8, stride: usize, count: usize) -> Self::Floats {
        from_fn(|i| {
            // SAFETY: one of so many.
            let half =
                |i: usize| unsafe { f16::from_bits(from.add(i * stride).cast::<u16>().read_unaligned()) };
            if i < count { half(i).to_f32() } else { 0.0 }
        })
    }
    unsafe fn load_i32(from: *const i32) -> Self::Floats {
        from_fn(|i| unsafe { from.add(i).read_unaligned() as f32 })
    }
    unsafe fn store(x: Self::Floats, to: *mut f32) {
        (0..SIDE).for_each(|i| unsafe { to.add(i).write_unaligned(x[i]) });
    }
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        from_fn(|i| a[i] + b[i])
    }
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        from_fn(|i| a[i] * b[i])
    }
    unsafe fn div(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        from_fn(|i| a[i] / b[i])
    }
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    unsafe fn transpose(x: [Self::Floats; SIDE]) -> [Self::Floats; SIDE] {
        from_fn(|i| from_fn(|j| x[j][i]))
    }
    fn fetch(_: *const u8, _: usize) {}
}
