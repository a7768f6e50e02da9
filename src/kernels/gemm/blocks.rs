//! How the outputs of a product are divided among tasks.

use crate::kernels::Matrix;
use std::marker::PhantomData;
use std::ops::Range;

/// Some rows of one of several matrices whose outputs stand side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowBlock {
    /// Index of the matrix.
    pub matrix: usize,
    /// Rows of that matrix.
    pub rows: Range<usize>,
    /// Column of the output where the matrix's first row goes.
    pub column: usize,
}

/// Matrices of one product at most: q, k and v.
pub const MOST: usize = 3;

/// One of the matrices of a product, whose outputs stand side by side.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub matrix: &'a Matrix,
    /// Column of the output where the matrix's first row goes.
    pub column: usize,
}

/// Blocks of at most `height` rows in all of `weights`; none spans two matrices.
pub fn block_count(weights: &[&Matrix], height: usize) -> usize {
    weights.iter().map(|m| m.rows.div_ceil(height)).sum()
}

/// Block `n` of those that `block_count` counts. Panics where there is none.
pub fn nth_block(weights: &[&Matrix], height: usize, mut n: usize) -> RowBlock {
    let mut column = 0;
    for (matrix, m) in weights.iter().enumerate() {
        let here = m.rows.div_ceil(height);
        if n < here {
            return RowBlock { matrix, rows: n * height..m.rows.min((n + 1) * height), column };
        }
        n -= here;
        column += m.rows;
    }
    panic!("no row block {n} past the last")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Bytes;
    use crate::kernels::DType;

    #[test]
    fn blocks_cover_every_row_once_in_order() {
        let make = |rows| Matrix::new(Bytes::new(vec![0u8; rows * 4]), DType::F32, rows, 1).unwrap();
        let (a, b, c) = (make(5), make(0), make(8));
        let weights = [&a, &b, &c];
        let mut columns = Vec::new();
        for n in 0..block_count(&weights, 4) {
            let block = nth_block(&weights, 4, n);
            assert!(block.rows.len() <= 4 && block.rows.end <= weights[block.matrix].rows);
            columns.extend(block.rows.map(|row| block.column + row));
        }
        assert_eq!(columns, (0..13).collect::<Vec<_>>());
    }
}
