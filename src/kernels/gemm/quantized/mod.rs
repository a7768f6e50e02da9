//! Products of int8 activations with weights that are quantized in blocks, as the file packs them.
//!
//! One order for each dot product, whatever computes it: `formats::decode` gives a block's weights as integers,
//! `scalar::run` says what is done with them. Integer sums are exact; each block adds to the running f32 sum by one fused
//! multiply-add, and by a second one where its type has minimums; blocks follow each other as their columns do.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod few_planes;
mod k;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod pairs_avx2;
mod planes;
mod sweep;
#[cfg(test)]
mod tests;

use crate::kernels::gemm::blocks::{Part, RowBlock, SharedOut, block_count, matrices_of, nth_block};
use crate::kernels::gemm::formats::packed_rows;
use crate::kernels::gemm::formats::short_blocks::with_short;
use crate::kernels::gemm::matrix::Arithmetic;
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::gemm::tiles;
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
        Arithmetic::Ternary | Arithmetic::Int8 | Arithmetic::Float => None,
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
        let piece = |tasks: Range<usize>| {
            #[cfg(target_arch = "x86_64")]
            let _tiles = tiles::configured(arranged.tiles.is_some(), tiles::depth(x.block));
            tasks.for_each(one);
        };
        let tasks = block_count(weights, TASK_ROWS);
        let bytes = weights.iter().map(|m| m.data.len()).sum();
        if small { piece(0..tasks) } else { pool.run_pieces(tasks, bytes, tokens, &piece) }
    });
}

/// What kernels want of the activations besides themselves.
#[derive(Default)]
struct Arranged<'a> {
    /// Of matrix tiles.
    tiles: Option<&'a [Line]>,
    #[cfg(target_arch = "x86_64")]
    pairs: Option<pairs_avx2::Pairs<'a>>,
    /// For weights of one bit and of two.
    planes: [Option<BlockActivations<'a>>; 2],
}

fn with_arranged(
    pool: &Pool,
    isa: Isa,
    x: &BlockActivations,
    weights: &[&Matrix],
    product: impl FnOnce(Arranged),
) {
    if isa == Isa::Scalar {
        return product(Arranged::default());
    }
    let some = |of: &dyn Fn(DType) -> bool| weights.iter().any(|m| of(m.dtype));
    ARRANGED.with_borrow_mut(|buffers| {
        let mut arranged = Arranged::default();
        #[cfg(any(test, target_arch = "x86_64"))]
        if some(&|t| takes_tiles(isa, t, x)) {
            // SAFETY: such a set stands for a machine that has tiles.
            arranged.tiles = Some(unsafe { tiles::arrange(pool, x, &mut buffers.tiles) });
        }
        #[cfg(target_arch = "x86_64")]
        if !isa.has_avx512() && x.tokens() >= pairs_avx2::TOKENS && some(&|t| t == DType::Q8_0) {
            // SAFETY: such a set stands for a machine that has AVX2.
            arranged.pairs = Some(unsafe { pairs_avx2::arrange(pool, x, &mut buffers.pairs) });
        }
        for (bits, values) in buffers.planes.iter_mut().enumerate() {
            if some(&|t| planes::bits(t) == Some(bits + 1) && !takes_tiles(isa, t, x)) {
                arranged.planes[bits] = Some(planes::arrange(pool, isa, bits + 1, x, values));
            }
        }
        product(arranged)
    });
}

#[cfg(any(test, target_arch = "x86_64"))]
fn takes_tiles(isa: Isa, dtype: DType, x: &BlockActivations) -> bool {
    tiles::pays(isa, dtype, x.tokens())
}

#[cfg(not(any(test, target_arch = "x86_64")))]
fn takes_tiles(_: Isa, _: DType, _: &BlockActivations) -> bool {
    false
}

/// The activations as kernels for such weights read them, where that is not their own order.
fn in_order<'a>(arranged: &'a Arranged, dtype: DType) -> Option<&'a BlockActivations<'a>> {
    arranged.planes[planes::bits(dtype)? - 1].as_ref()
}

fn run(isa: Isa, task: &Task, arranged: &Arranged, scratch: &mut Scratch) {
    let (elements, bytes) = task.dtype.block();
    assert_eq!(task.row_bytes, task.x.cols / elements * bytes, "rows of whole blocks");
    match task.dtype.arithmetic() {
        _ if isa == Isa::Scalar => scalar::run(task, scratch),
        #[cfg(any(test, target_arch = "x86_64"))]
        _ if takes_tiles(isa, task.dtype, task.x) => {
            let arranged = arranged.tiles.expect("made for such weights");
            // SAFETY: such a set stands for a machine that has tiles.
            unsafe { tiles::run(task, arranged, scratch) }
        }
        Arithmetic::Blocks256 => k::run(isa, task, scratch),
        _ if special(isa, task, arranged, scratch) => {}
        _ => with_short!(task.dtype, F => sweep::sweep::<F>(isa, task, scratch)),
    }
}

/// Forms of one instruction set and one arithmetic; false, and nothing done, where there is none.
#[cfg(target_arch = "x86_64")]
fn special(isa: Isa, task: &Task, arranged: &Arranged, scratch: &mut Scratch) -> bool {
    // SAFETY (of all): such a set stands for a machine that has the instructions.
    match arranged.pairs {
        Some(pairs) if task.dtype == DType::Q8_0 => {
            unsafe { pairs_avx2::run(task, pairs, scratch) };
            true
        }
        _ if isa.has_avx512() => unsafe { avx512::run(task) },
        _ => unsafe { avx2::run(task) },
    }
}

#[cfg(target_arch = "aarch64")]
fn special(_: Isa, task: &Task, _: &Arranged, _: &mut Scratch) -> bool {
    // SAFETY: `Isa::Neon` stands for a machine that has NEON and its dot products.
    unsafe { neon::run(task) }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn special(_: Isa, _: &Task, _: &Arranged, _: &mut Scratch) -> bool {
    false
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

/// Buffers of what `Arranged` holds; they grow to the largest product and stay.
#[derive(Default)]
struct Buffers {
    tiles: Vec<Line>,
    #[cfg(target_arch = "x86_64")]
    pairs: pairs_avx2::Arranged,
    planes: [Vec<i8>; 2],
}

thread_local! {
    /// Of the thread that asks for a product.
    static ARRANGED: RefCell<Buffers> = RefCell::default();
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
