//! Products of int8 activations with weights that are quantized in blocks, as the file packs them.
//!
//! One order for each dot product, whatever computes it: `formats::decode` gives a block's weights as integers,
//! `scalar::run` says what is done with them. Integer sums are exact; each block adds to the running f32 sum by one fused
//! multiply-add, and by a second one where its type has minimums; blocks follow each other as their columns do.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod k;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod pairs_avx2;
#[cfg(target_arch = "x86_64")]
mod planes;
#[cfg(target_arch = "x86_64")]
mod sweep;
#[cfg(test)]
mod tests;

use crate::kernels::gemm::blocks::{Part, RowBlock, SharedOut, block_count, matrices_of, nth_block};
use crate::kernels::gemm::formats::packed_rows;
#[cfg(target_arch = "x86_64")]
use crate::kernels::gemm::formats::short_blocks::with_short;
use crate::kernels::gemm::matrix::Arithmetic;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::{DType, Isa, Matrix, Pool};
use std::cell::RefCell;
use std::ops::Range;

/// Weight rows of one task.
const TASK_ROWS: usize = 32;
/// Below this many multiplications waking others takes longer than the work.
const SMALL: usize = 1 << 18;

/// Columns of an activation block for such weights; None for types that are multiplied otherwise.
pub fn block_of(dtype: DType) -> Option<usize> {
    match dtype.arithmetic() {
        Arithmetic::Blocks32 => Some(32),
        Arithmetic::Blocks256 => Some(256),
        Arithmetic::Ternary | Arithmetic::Float => None,
    }
}

/// `out[t, column + i] = x[t] · w[i]` for the rows `i` of each of `parts`; other columns of `out` stay as they are.
///
/// `out` is `[tokens, stride]`; each matrix is of a type whose `block_of` is `x.block`, and has `x.cols` columns.
pub fn matmul(pool: &Pool, isa: Isa, x: &BlockActivations, parts: &[Part], stride: usize, out: &mut [f32]) {
    let tokens = x.tokens();
    assert!(
        x.values.len() == tokens * x.cols && out.len() == tokens * stride,
        "a product is [tokens, stride]"
    );
    for Part { matrix: m, column } in parts {
        assert!(
            block_of(m.dtype) == Some(x.block) && m.cols == x.cols && column + m.rows <= stride,
            "a product of {:?}, {} columns, with {} in blocks of {}",
            m.dtype,
            m.cols,
            x.cols,
            x.block
        );
    }
    let weights = &matrices_of(parts)[..parts.len()];
    let outputs = tokens * weights.iter().map(|m| m.rows).sum::<usize>();
    let small = outputs.saturating_mul(x.cols) < SMALL;
    let out = SharedOut::new(out);
    with_arranged(pool, isa, x, weights, |arranged| {
        let one = |n: usize| {
            let RowBlock { matrix, rows, .. } = nth_block(weights, TASK_ROWS, n);
            let Part { matrix: m, column } = parts[matrix];
            let (packed, row_bytes) = packed_rows(m, rows.clone());
            let column = column + rows.start;
            let x = in_order(&arranged, m.dtype).unwrap_or(x);
            let task =
                Task { x, dtype: m.dtype, packed, row_bytes, rows: rows.len(), column, out: &out, stride };
            SCRATCH.with_borrow_mut(|scratch| run(isa, &task, &arranged, scratch));
        };
        let tasks = block_count(weights, TASK_ROWS);
        let bytes = weights.iter().map(|m| m.data.len()).sum();
        if small { (0..tasks).for_each(one) } else { pool.run_in_order(tasks, bytes, tokens, &one) }
    });
}

/// What kernels want of the activations besides themselves; nothing on most machines.
#[cfg(target_arch = "x86_64")]
#[derive(Default)]
struct Arranged<'a> {
    pairs: Option<pairs_avx2::Pairs<'a>>,
    /// For weights of one bit and of two.
    planes: [Option<BlockActivations<'a>>; 2],
}
#[cfg(not(target_arch = "x86_64"))]
type Arranged<'a> = ();

#[cfg(target_arch = "x86_64")]
fn with_arranged(
    pool: &Pool,
    isa: Isa,
    x: &BlockActivations,
    weights: &[&Matrix],
    product: impl FnOnce(Arranged),
) {
    if !isa.has_avx2() {
        return product(Arranged::default());
    }
    let some = |of: &dyn Fn(DType) -> bool| weights.iter().any(|m| of(m.dtype));
    let pairs = !isa.has_avx512() && x.tokens() >= pairs_avx2::TOKENS && some(&|t| t == DType::Q8_0);
    ARRANGED.with_borrow_mut(|(of_pairs, of_planes)| {
        // SAFETY: such a set stands for a machine that has AVX2.
        let pairs = pairs.then(|| unsafe { pairs_avx2::arrange(pool, x, of_pairs) });
        let mut arranged = Arranged { pairs, ..Arranged::default() };
        for (bits, values) in of_planes.iter_mut().enumerate() {
            if some(&|t| planes::bits(t) == Some(bits + 1)) {
                // SAFETY: as above.
                arranged.planes[bits] = Some(unsafe { planes::arrange(pool, bits + 1, x, values) });
            }
        }
        product(arranged)
    });
}

/// The activations as kernels for such weights read them, where that is not their own order.
#[cfg(target_arch = "x86_64")]
fn in_order<'a>(arranged: &'a Arranged, dtype: DType) -> Option<&'a BlockActivations<'a>> {
    arranged.planes[planes::bits(dtype)? - 1].as_ref()
}

#[cfg(not(target_arch = "x86_64"))]
fn in_order<'a>(_: &'a Arranged, _: DType) -> Option<&'a BlockActivations<'a>> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn with_arranged(_: &Pool, _: Isa, _: &BlockActivations, _: &[&Matrix], product: impl FnOnce(Arranged)) {
    product(());
}

#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
fn run(isa: Isa, task: &Task, arranged: &Arranged, scratch: &mut Scratch) {
    // Each instruction set's form, by the kind of block; what has none is computed as the reference is.
    match (isa, task.dtype.arithmetic()) {
        (Isa::Scalar, _) => scalar::run(task, scratch),
        (_, Arithmetic::Blocks256) => k::run(isa, task, scratch),
        #[cfg(target_arch = "aarch64")]
        // SAFETY: `Isa::Neon` stands for a machine that has NEON and its dot products.
        (Isa::Neon, _) => unsafe { neon::run(task, scratch) },
        #[cfg(target_arch = "x86_64")]
        (_, Arithmetic::Blocks32) => match (arranged.pairs, task.dtype) {
            // SAFETY (of all): such a set stands for a machine that has the instructions.
            (Some(pairs), DType::Q8_0) => unsafe { pairs_avx2::run(task, pairs, scratch) },
            _ if isa.has_avx512() && unsafe { avx512::run(task) } => {}
            _ if !isa.has_avx512() && unsafe { avx2::run(task) } => {}
            _ => with_short!(task.dtype, F => sweep::sweep::<F>(isa, task, scratch)),
        },
        _ => scalar::run(task, scratch),
    }
}

/// Some rows of one matrix, to be multiplied with all tokens.
pub(super) struct Task<'a> {
    pub x: &'a BlockActivations<'a>,
    pub dtype: DType,
    /// The rows as the file packs them, one behind the other, and how many bytes each one has.
    pub packed: &'a [u8],
    pub row_bytes: usize,
    pub rows: usize,
    /// Column of the output where the first row goes.
    column: usize,
    out: &'a SharedOut<'a>,
    stride: usize,
}

/// A token's values, scales and sums.
type Row<'a> = (&'a [i8], &'a [f32], &'a [i16]);

impl<'a> Task<'a> {
    /// Row `row` of the task's.
    pub fn row(&self, row: usize) -> &'a [u8] {
        &self.packed[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    // This and what follows are no closures of the kernels: of functions with more features than `array::from_fn` has,
    // compilers leave those as calls, which takes a tenth of a product's time.

    /// `N` rows from `first` on; where the task has no more, its last one stands for them.
    #[inline]
    pub fn group<const N: usize>(&self, first: usize) -> [&'a [u8]; N] {
        std::array::from_fn(|r| self.row((first + r).min(self.rows - 1)))
    }

    /// Token `t`'s values, scales and sums of some blocks of 32 columns.
    #[inline(always)]
    pub fn token(&self, t: usize, blocks: Range<usize>) -> Row<'a> {
        let (values, scales, sums) = self.x.row(t);
        (&values[32 * blocks.start..32 * blocks.end], &scales[blocks.clone()], &sums[blocks])
    }

    /// The same of `T` tokens from `first` on.
    #[inline]
    pub fn tokens<const T: usize>(&self, first: usize, blocks: Range<usize>) -> [Row<'a>; T] {
        std::array::from_fn(|t| self.token(first + t, blocks.clone()))
    }

    /// Writes the outputs of token `t` for the rows of the task that begin at `row`.
    pub fn write(&self, t: usize, row: usize, values: &[f32]) {
        assert!(row + values.len() <= self.rows);
        let at = t * self.stride + self.column + row;
        // SAFETY: the columns lie in this task's own rows, tasks have rows of their own, and the slice ends here.
        unsafe { self.out.slice(at..at + values.len()) }.copy_from_slice(values);
    }
}

/// A thread's buffers; they grow to what the widest tasks take and stay.
#[derive(Default)]
pub(super) struct Scratch {
    /// Codes of a group of rows, one a byte.
    pub codes: Vec<Line>,
    /// Scales, and minimums, of a group of rows.
    pub scales: Vec<Line>,
    /// Sums of each token with a group of rows so far: floats.
    pub partial: Vec<Line>,
    /// Sums of each token with one row so far, of the reference.
    pub sums: Vec<f32>,
}

#[cfg(target_arch = "x86_64")]
thread_local! {
    /// Of the thread that asks for a product.
    static ARRANGED: RefCell<(pairs_avx2::Arranged, [Vec<i8>; 2])> = RefCell::default();
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch { codes: Vec::new(), scales: Vec::new(), partial: Vec::new(), sums: Vec::new() })
    };
}

mod scalar {
    use super::{Scratch, Task, grown};
    use crate::kernels::gemm::formats::decode::{Codes, decode};

    /// Decodes each block once and multiplies it with all tokens.
    pub fn run(task: &Task, scratch: &mut Scratch) {
        let (x, tokens) = (task.x, task.x.tokens());
        let (elements, bytes) = task.dtype.block();
        let sums = grown(&mut scratch.sums, tokens);
        for row in 0..task.rows {
            sums.fill(0.0);
            for (n, block) in task.row(row).chunks_exact(bytes).enumerate() {
                let codes = decode(task.dtype, block);
                for (t, sum) in sums.iter_mut().enumerate() {
                    let (values, scales, columns) = x.row(t);
                    if x.block == 256 {
                        let (x, columns) = (&values[256 * n..][..256], &columns[16 * n..][..16]);
                        *sum = add_long(&codes, x, scales[n], columns, *sum);
                        continue;
                    }
                    for (i, w) in codes.values[..elements].as_chunks::<32>().0.iter().enumerate() {
                        let b = n * elements / 32 + i;
                        *sum = add_short(&codes, w, &values[32 * b..][..32], scales[b], columns[b], *sum);
                    }
                }
            }
            sums.iter().enumerate().for_each(|(t, sum)| task.write(t, row, &[*sum]));
        }
    }

    /// `total` and the next 32 columns.
    fn add_short(codes: &Codes, w: &[i8; 32], x: &[i8], scale: f32, sum: i16, total: f32) -> f32 {
        let dot = dot(w, x);
        let total = (dot as f32).mul_add(codes.d * scale, total);
        match codes.min {
            Some(min) => min.mul_add(scale * sum as f32, total),
            None => total,
        }
    }

    /// `total` and the next 256 columns; `sums` of each 16.
    fn add_long(codes: &Codes, x: &[i8], scale: f32, sums: &[i16], total: f32) -> f32 {
        let (mut dots, mut lows) = (0, 0);
        let groups = codes.values.as_chunks::<16>().0.iter().zip(x.as_chunks::<16>().0);
        for (group, (values, x)) in groups.enumerate() {
            dots += codes.scales[group] as i32 * dot(values, x);
            lows += codes.mins[group] as i32 * sums[group] as i32;
        }
        let total = (dots as f32).mul_add(codes.d * scale, total);
        match codes.min {
            Some(min) => (lows as f32).mul_add(-(min * scale), total),
            None => total,
        }
    }

    fn dot(w: &[i8], x: &[i8]) -> i32 {
        w.iter().zip(x).map(|(w, x)| *w as i32 * *x as i32).sum()
    }
}
