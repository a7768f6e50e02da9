//! What products that are divided among tasks share.

use crate::kernels::Matrix;
use std::marker::PhantomData;
use std::ops::Range;

/// Matrices of one product at most: q, k and v.
pub const MOST: usize = 3;

/// One of the matrices of a product, whose outputs stand side by side.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub matrix: &'a Matrix,
    /// Column of the output where the matrix's first row goes.
    pub column: usize,
}

/// One output that several tasks write to, each to places of its own.
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

    /// Where it begins: nothing to read from.
    pub fn start(&self) -> *const T {
        self.start
    }

    /// A part of the output. Panics where `range` does not lie in it.
    ///
    /// # Safety
    /// No other slice that overlaps `range` may be alive.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a task writes outside of its output");
        // SAFETY: the range lies in the slice that `new` borrowed for 'a; the caller keeps parts disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
