//! Inputs and outputs shared by the tasks of a product.

use crate::kernels::Matrix;
use std::marker::PhantomData;
use std::ops::Range;

/// Maximum number of matrices in one product: q, k and v.
pub const MOST: usize = 3;

/// One of the matrices of a product; their outputs are side by side.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub matrix: &'a Matrix,
    /// Output column of the matrix's first row.
    pub column: usize,
}

/// An output that several tasks write to, each to its own part.
pub struct SharedOut<'a, T = f32> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the only access is `slice`, whose callers promise that no two threads hold overlapping parts.
unsafe impl<T: Send> Sync for SharedOut<'_, T> {}

impl<'a, T> SharedOut<'a, T> {
    pub fn new(out: &'a mut [T]) -> Self {
        Self { start: out.as_mut_ptr(), len: out.len(), borrow: PhantomData }
    }

    /// The start of the output, as an address only: nothing may be read from it.
    pub fn start(&self) -> *const T {
        self.start
    }

    /// A part of the output. Panics if `range` is not within it.
    ///
    /// # Safety
    /// No other slice that overlaps `range` may be alive.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a task writes outside of its output");
        // SAFETY: the range is within the slice that `new` borrowed for 'a; the caller keeps parts disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
