//! Products of int8 activations with weights that are quantized in blocks, as the file packs them.
//!
//! One order for each dot product, whatever computes it: `decode` gives a block's weights as integers, `scalar::run`
//! says what is done with them. Integer sums are exact; each block adds to the running f32 sum by one fused
//! multiply-add, and by a second one where its type has minimums; blocks follow each other as their columns do.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) mod k_avx2;
#[cfg(target_arch = "x86_64")]
mod k_avx512;
#[cfg(target_arch = "x86_64")]
mod k_panel;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod pairs_avx2;
#[cfg(test)]
mod tests;

use crate::kernels::gemm::blocks::{Part, RowBlock, SharedOut, block_count, matrices_of, nth_block};
use crate::kernels::gemm::formats::{f16_at, packed_rows};
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
            let task =
                Task { x, dtype: m.dtype, packed, row_bytes, rows: rows.len(), column, out: &out, stride };
            SCRATCH.with_borrow_mut(|scratch| run(isa, &task, arranged, scratch));
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
#[derive(Clone, Copy, Default)]
struct Arranged<'a> {
    tiles: Option<&'a [Line]>,
    #[cfg(target_arch = "x86_64")]
    pairs: Option<pairs_avx2::Pairs<'a>>,
}

fn with_arranged(
    pool: &Pool,
    isa: Isa,
    x: &BlockActivations,
    weights: &[&Matrix],
    product: impl FnOnce(Arranged),
) {
    #[cfg(any(test, target_arch = "x86_64"))]
    if weights.iter().any(|m| tiles::pays(isa, m.dtype, x.tokens())) {
        return TILES.with_borrow_mut(|lines| {
            // SAFETY: such a set stands for a machine that has tiles.
            let tiles = Some(unsafe { tiles::arrange(pool, x, lines) });
            product(Arranged { tiles, ..Arranged::default() });
        });
    }
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2()
        && !isa.has_avx512()
        && x.tokens() >= pairs_avx2::TOKENS
        && weights.iter().any(|m| m.dtype == DType::Q8_0)
    {
        return PAIRS.with_borrow_mut(|arranged| {
            // SAFETY: such a set stands for a machine that has AVX2.
            let pairs = Some(unsafe { pairs_avx2::arrange(pool, x, arranged) });
            product(Arranged { pairs, ..Arranged::default() });
        });
    }
    product(Arranged::default());
}

#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
fn run(isa: Isa, task: &Task, arranged: Arranged, scratch: &mut Scratch) {
    // Each instruction set's form, by the kind of block; what has none is computed as the reference is.
    match (isa, task.dtype.arithmetic()) {
        #[cfg(any(test, target_arch = "x86_64"))]
        _ if tiles::pays(isa, task.dtype, task.x.tokens()) => {
            let arranged = arranged.tiles.expect("made for such weights");
            // SAFETY: such a set stands for a machine that has tiles.
            unsafe { tiles::run(task, arranged, scratch) }
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: `Isa::Neon` stands for a machine that has NEON and its dot products.
        (Isa::Neon, _) => unsafe { neon::run(task, scratch) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a set stands for a machine that has these instructions.
        (_, Arithmetic::Blocks256) if isa.has_avx512() => unsafe { k_avx512::run(task, scratch) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a set stands for a machine that has AVX2, FMA and F16C.
        (_, Arithmetic::Blocks256) if isa.has_avx2() => unsafe { k_avx2::run(task, scratch) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        (_, Arithmetic::Blocks32) if isa.has_avx512() => unsafe { avx512::run(task, scratch) },
        #[cfg(target_arch = "x86_64")]
        (_, Arithmetic::Blocks32) if isa.has_avx2() => match (arranged.pairs, task.dtype) {
            // SAFETY: as above.
            (Some(pairs), DType::Q8_0) => unsafe { pairs_avx2::run(task, pairs, scratch) },
            // SAFETY: as above.
            _ => unsafe { avx2::run(task, scratch) },
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

    /// Of `T` tokens from `first` on the values, scales and sums of some blocks of 32 columns.
    #[inline]
    pub fn tokens<const T: usize>(&self, first: usize, blocks: Range<usize>) -> [Row<'a>; T] {
        std::array::from_fn(|t| {
            let (values, scales, sums) = self.x.row(first + t);
            (&values[32 * blocks.start..32 * blocks.end], &scales[blocks.clone()], &sums[blocks.clone()])
        })
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

#[cfg(any(test, target_arch = "x86_64"))]
thread_local! {
    /// Of the thread that asks for a product.
    static TILES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

#[cfg(target_arch = "x86_64")]
thread_local! {
    /// As well.
    static PAIRS: RefCell<pairs_avx2::Arranged> = RefCell::default();
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch { codes: Vec::new(), scales: Vec::new(), partial: Vec::new(), sums: Vec::new() })
    };
}

/// A block's weights as integers: weight i is `values[i] * scales[i / 16] * d - mins[i / 16] * min`. A block of 32 has
/// scales of 1, and its minimum is added: `values[i] * d + min`.
pub(super) struct Codes {
    /// The type's offset is in them already. The first 32 are a short block's.
    pub values: [i8; 256],
    pub scales: [i8; 16],
    pub mins: [u8; 16],
    pub d: f32,
    /// None where the type has no minimums.
    pub min: Option<f32>,
}

/// The block of `dtype`, as its file packs it (layouts in `quants`). Panics for types without such blocks.
pub(super) fn decode(dtype: DType, block: &[u8]) -> Codes {
    let mut codes = Codes { values: [0; 256], scales: [1; 16], mins: [0; 16], d: 0.0, min: None };
    let (d, min) = match dtype {
        DType::Q2_K => (80, Some(82)),
        DType::Q3_K => (108, None),
        DType::Q6_K => (208, None),
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => (0, Some(2)),
        _ => (0, None),
    };
    codes.d = f16_at(&block[d..]);
    codes.min = min.map(|at| f16_at(&block[at..]));
    match dtype {
        DType::Q8_0 => codes.values.iter_mut().zip(&block[2..]).for_each(|(v, b)| *v = *b as i8),
        DType::Q4_0 => nibbles(&block[2..], None, -8, &mut codes.values),
        DType::Q4_1 => nibbles(&block[4..], None, 0, &mut codes.values),
        DType::Q5_0 => nibbles(&block[6..], Some(&block[2..6]), -16, &mut codes.values),
        DType::Q5_1 => nibbles(&block[8..], Some(&block[4..8]), 0, &mut codes.values),
        DType::Q2_K => q2_k(block, &mut codes),
        DType::Q3_K => q3_k(block, &mut codes),
        DType::Q4_K => q4_k(block, None, &block[16..], &mut codes),
        DType::Q5_K => q4_k(block, Some(&block[16..48]), &block[48..], &mut codes),
        DType::Q6_K => q6_k(block, &mut codes),
        other => panic!("{other:?} is no type of blocks with integers"),
    }
    codes
}

/// 32 elements of 4 bits, with fifth bits or without.
fn nibbles(packed: &[u8], high: Option<&[u8]>, offset: i8, values: &mut [i8; 256]) {
    for (j, value) in values[..32].iter_mut().enumerate() {
        let fifth = high.map_or(0, |high| high[j / 8] >> (j % 8) & 1);
        *value = (packed[j % 16] >> (4 * (j / 16)) & 15 | fifth << 4) as i8 + offset;
    }
}

fn q2_k(block: &[u8], codes: &mut Codes) {
    for (group, packed) in block[..16].iter().enumerate() {
        (codes.scales[group], codes.mins[group]) = ((packed & 15) as i8, packed >> 4);
    }
    for (i, value) in codes.values.iter_mut().enumerate() {
        *value = two_bits(&block[16..], i);
    }
}

/// Element `i` of 64 bytes, the two halves of a block: four in a byte, 32 elements apart.
fn two_bits(packed: &[u8], i: usize) -> i8 {
    (packed[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) as i8
}

fn q3_k(block: &[u8], codes: &mut Codes) {
    let packed = &block[96..108];
    for (group, scale) in codes.scales.iter_mut().enumerate() {
        let low = packed[group % 8] >> (group / 8 * 4) & 15;
        let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        *scale = (low | high << 4) as i8 - 32;
    }
    for (i, value) in codes.values.iter_mut().enumerate() {
        let unset = !block[i % 32] >> (i / 32) & 1;
        *value = two_bits(&block[32..], i) - 4 * unset as i8;
    }
}

/// `packed` are the elements, 4 bits each; `high` their fifth bits.
fn q4_k(block: &[u8], high: Option<&[u8]>, packed: &[u8], codes: &mut Codes) {
    for group in 0..16 {
        let (scale, min) = scale_and_min(&block[4..16], group / 2);
        (codes.scales[group], codes.mins[group]) = (scale as i8, min);
    }
    for (i, value) in codes.values.iter_mut().enumerate() {
        let fifth = high.map_or(0, |high| high[i % 32] >> (i / 32) & 1);
        *value = (packed[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15 | fifth << 4) as i8;
    }
}

/// Six bits of scale and of minimum of group `i` of 8, as Q4_K and Q5_K pack them in 12 bytes.
pub(super) fn scale_and_min(packed: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        (packed[i] & 63, packed[i + 4] & 63)
    } else {
        (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4)
    }
}

fn q6_k(block: &[u8], codes: &mut Codes) {
    codes.scales.iter_mut().zip(&block[192..208]).for_each(|(scale, b)| *scale = *b as i8);
    for (i, value) in codes.values.iter_mut().enumerate() {
        let (half, of_half) = (i / 128, i % 128);
        let low = block[half * 64 + of_half % 64] >> (of_half / 64 * 4) & 15;
        let high = two_bits(&block[128..192], i) << 4;
        *value = (low as i8 | high) - 32;
    }
}

mod scalar {
    use super::{Codes, Scratch, Task, decode, grown};

    /// Decodes each block once and multiplies it with all tokens.
    pub fn run(task: &Task, scratch: &mut Scratch) {
        let (x, tokens) = (task.x, task.x.tokens());
        let bytes = task.dtype.block().1;
        let sums = grown(&mut scratch.sums, tokens);
        for row in 0..task.rows {
            sums.fill(0.0);
            for (b, block) in task.row(row).chunks_exact(bytes).enumerate() {
                let codes = decode(task.dtype, block);
                for (t, sum) in sums.iter_mut().enumerate() {
                    let (values, scales, columns) = x.row(t);
                    *sum = match x.block {
                        32 => add_short(&codes, &values[32 * b..][..32], scales[b], columns[b], *sum),
                        _ => add_long(
                            &codes,
                            &values[256 * b..][..256],
                            scales[b],
                            &columns[16 * b..][..16],
                            *sum,
                        ),
                    };
                }
            }
            sums.iter().enumerate().for_each(|(t, sum)| task.write(t, row, &[*sum]));
        }
    }

    /// `total` and the next 32 columns.
    fn add_short(codes: &Codes, x: &[i8], scale: f32, sum: i16, total: f32) -> f32 {
        let dot = dot(&codes.values, x);
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
