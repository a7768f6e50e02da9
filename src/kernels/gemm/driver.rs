//! A product divided into tasks. A task multiplies some weight rows of one matrix with all tokens.

use crate::kernels::gemm::blocks::{Part, SharedOut};
use crate::kernels::gemm::formats::packed_rows;
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::gemm::tiles;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::lanes::Register;
use crate::kernels::{DType, Matrix, Pool};
use std::cell::RefCell;
use std::ops::Range;

/// Number of activations below which waking other threads takes longer than arranging them.
const FEW: usize = 1 << 17;

/// Number of multiplications below which waking other threads takes longer than the work.
const SMALL: usize = 1 << 18;

/// Computes `out[t, column + i] = x[t] · w[i]` for the rows `i` of each of `parts`; other columns of `out` are
/// unchanged.
pub(super) struct Product<'a, X: ?Sized> {
    pub pool: &'a Pool,
    /// The activations, as tasks read them.
    pub x: &'a X,
    pub tokens: usize,
    pub parts: &'a [Part<'a>],
    /// The rows to multiply, if there is one part and not all of them are wanted, in ascending order.
    pub only: Option<&'a [u32]>,
    /// Number of columns of `out`, which is `[tokens, stride]`.
    pub stride: usize,
    /// Maximum number of weight rows in a task.
    pub height: usize,
    /// Depth of the matrix tiles in bytes, if tasks use tiles.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub depth: Option<usize>,
}

impl<X: Sync + ?Sized> Product<'_, X> {
    /// Calls `one` for each task, on the pool if that pays. Panics if `out` has another length or too few columns.
    pub(super) fn run(&self, out: &mut [f32], one: &(dyn Fn(&Task<X>, &mut Scratch) + Sync)) {
        let &Self { tokens, parts, stride, height, .. } = self;
        assert_eq!(out.len(), tokens * stride, "a product is [tokens, stride]");
        assert!(
            parts.iter().all(|p| p.column + p.matrix.rows <= stride),
            "a matrix past the end of the rows"
        );
        let out = &SharedOut::new(out);
        let task = |n: usize| with_scratch(|scratch| one(&self.task(n, out), scratch));
        let piece = |tasks: Range<usize>| {
            #[cfg(target_arch = "x86_64")]
            let _tiles = self.depth.and_then(|depth| tiles::configured(true, depth));
            tasks.for_each(task);
        };
        let sum = |of: &dyn Fn(&Matrix) -> usize| parts.iter().map(|p| of(p.matrix)).sum::<usize>();
        let rows = |m: &Matrix| self.only.map_or(m.rows, <[u32]>::len);
        let tasks = sum(&|m| rows(m).div_ceil(height));
        if tokens.saturating_mul(sum(&|m| rows(m) * m.cols)) < SMALL {
            piece(0..tasks)
        } else {
            self.pool.run_pieces(tasks, sum(&|m| m.data.len() / m.rows * rows(m)), tokens, &piece)
        }
    }

    /// Returns task number `n`. No task has rows of two matrices.
    pub(super) fn task<'a>(&'a self, mut n: usize, out: &'a SharedOut<'a>) -> Task<'a, X> {
        if let Some(only) = self.only {
            let (part, only) = (&self.parts[0], &only[n * self.height..]);
            let rows = only.len().min(self.height);
            return Task { rows, only: Some(only), ..self.rows(part, 0..part.matrix.rows, out) };
        }
        for part in self.parts {
            let here = part.matrix.rows.div_ceil(self.height);
            if n < here {
                let first = n * self.height;
                return self.rows(part, first..part.matrix.rows.min(first + self.height), out);
            }
            n -= here;
        }
        panic!("no task {n} past the last");
    }

    /// A task of rows that follow each other.
    fn rows<'a>(&'a self, part: &'a Part<'a>, rows: Range<usize>, out: &'a SharedOut<'a>) -> Task<'a, X> {
        let (x, matrix, first) = (self.x, part.matrix, rows.start);
        let (packed, row_bytes) = packed_rows(matrix, rows.clone());
        let behind = matrix.data.get(matrix.rows * row_bytes..).unwrap_or(&[]);
        let (dtype, rows, stride) = (matrix.dtype, rows.len(), self.stride);
        let column = part.column + first;
        Task { x, matrix, dtype, packed, row_bytes, behind, first, rows, only: None, out, stride, column }
    }
}

/// Calls `one` for each `side` tokens, with `each` lines of `lines`, and returns all lines. The tokens have `values`
/// activations in all.
pub(super) fn in_groups<'a>(
    pool: &Pool,
    (tokens, values): (usize, usize),
    (side, each): (usize, usize),
    lines: &'a mut Vec<Line>,
    one: &(dyn Fn(usize, &mut [Line]) + Sync),
) -> &'a [Line] {
    let groups = tokens.div_ceil(side);
    let lines = grown(lines, groups * each);
    let shared = SharedOut::new(lines);
    // SAFETY: each task has lines of its own.
    let one = |group: usize| one(group, unsafe { shared.slice(group * each..(group + 1) * each) });
    if values < FEW {
        (0..groups).for_each(one)
    } else {
        pool.run(groups, &one)
    }
    lines
}

/// Some rows of one matrix, to be multiplied with all tokens.
pub struct Task<'a, X: ?Sized> {
    pub x: &'a X,
    pub matrix: &'a Matrix,
    pub dtype: DType,
    /// The rows as the file packs them, one after another, and the number of bytes per row.
    pub packed: &'a [u8],
    pub row_bytes: usize,
    /// The bytes after all rows of the matrix, which are scales. Finding them anew for each row would take
    /// long.
    pub behind: &'a [u8],
    /// Index in the matrix of the task's first row.
    pub first: usize,
    pub rows: usize,
    /// The task's rows among those of `packed`, then those of the tasks after it; `None`: all of `packed`.
    pub only: Option<&'a [u32]>,
    /// The product, `[tokens, stride]`, and the first of the task's columns.
    pub(super) out: &'a SharedOut<'a>,
    pub(super) stride: usize,
    pub(super) column: usize,
}

impl<X: ?Sized> Clone for Task<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X: ?Sized> Copy for Task<'_, X> {}

impl<'a, X: ?Sized> Task<'a, X> {
    /// Index of row `row` of the task among the rows of `packed`.
    #[inline(always)]
    pub fn place_of(&self, row: usize) -> usize {
        self.only.map_or(row, |only| only[row] as usize)
    }

    /// The scale of a row of I2_S or `Ternary`, as in `row_scale`.
    #[inline]
    pub fn scale(&self, row: usize) -> f32 {
        let at = if self.dtype == DType::Ternary { 4 * (self.first + self.place_of(row)) } else { 0 };
        f32::from_le_bytes([self.behind[at], self.behind[at + 1], self.behind[at + 2], self.behind[at + 3]])
    }

    /// Bytes of row `row` of the task.
    #[inline(always)]
    pub fn row(&self, row: usize) -> &'a [u8] {
        let row = self.place_of(row);
        &self.packed[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    /// Address of the outputs of token `t` for the rows from `row` on, for prefetching only. They need not exist.
    #[inline(always)]
    pub fn place(&self, t: usize, row: usize) -> *const u8 {
        self.out.start().wrapping_add(t * self.stride + self.column + row).cast()
    }

    /// Addresses of `count` rows, at most sixteen, from `first` on, of a task whose rows follow each other; past the
    /// task's end, its last row is repeated.
    #[inline(always)]
    pub fn addresses(&self, first: usize, count: usize) -> [*const u8; 16] {
        assert!(self.only.is_none() && self.rows > 0 && self.packed.len() >= self.rows * self.row_bytes);
        let mut rows = [self.packed.as_ptr(); 16];
        // A loop, because a closure of `array::from_fn` would be a call: the function has more target
        // features than it.
        for (r, row) in rows.iter_mut().enumerate().take(count) {
            *row = row.wrapping_add((first + r).min(self.rows - 1) * self.row_bytes);
        }
        rows
    }

    /// Writes a register of outputs of token `t` for the rows from `row` on, as many as there are.
    ///
    /// # Safety
    /// `R`'s instructions are available.
    #[inline(always)]
    pub unsafe fn write_register<R: Register>(&self, t: usize, row: usize, values: R) {
        let mut all = [0.0; 16];
        // SAFETY: the caller has the instructions; no register is larger.
        unsafe { values.store(all.as_mut_ptr()) };
        self.write(t, row, &all[..R::WIDTH.min(self.rows - row)]);
    }

    /// Like `write_register`, for an array.
    #[inline(always)]
    pub fn write_array<const N: usize>(&self, t: usize, row: usize, values: &[f32; N]) {
        match self.rows - row {
            rows if rows < N => self.write(t, row, &values[..rows]),
            // Copies of constant length are faster.
            _ => self.write(t, row, values),
        }
    }

    /// Writes the outputs of token `t` for the task's rows from `row` on.
    pub fn write(&self, t: usize, row: usize, values: &[f32]) {
        assert!(row + values.len() <= self.rows);
        let start = t * self.stride + self.column;
        // SAFETY (of both): the columns are those of this task's own rows, no other task has them, and the slice ends
        // here.
        match self.only {
            None => {
                unsafe { self.out.slice(start + row..start + row + values.len()) }.copy_from_slice(values)
            }
            Some(only) => only[row..].iter().zip(values).for_each(|(row, value)| {
                let at = start + *row as usize;
                unsafe { self.out.slice(at..at + 1) }.fill(*value);
            }),
        }
    }
}

/// A thread's buffers. They grow to the size that the widest tasks need, and are kept.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Codes of a group of rows.
    pub codes: Vec<Line>,
    /// Scales, and minimums, of a group of rows.
    pub scales: Vec<Line>,
    /// Partial sums of each token with a group of rows.
    pub partial: Vec<Line>,
    /// Tables of sums, and sums of i16, of look-ups.
    pub tables: Vec<Line>,
    pub shorts: Vec<i16>,
    /// Rows or sums of the reference.
    pub floats: Vec<f32>,
}

/// Calls `then` with the thread's scratch memory.
pub(super) fn with_scratch<R>(then: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(then)
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}
