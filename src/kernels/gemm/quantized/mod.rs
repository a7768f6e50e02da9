//! Products of int8 activations with weights that are quantized in blocks, in the layouts of their files.
//!
//! A dot product has one order on every machine. `formats::decode` defines a block's weights as integers, and
//! `scalar::run` the arithmetic. Integer sums are exact. Each block adds to the running f32 sum with one fused
//! multiply-add, and with a second one if its type has minimums; blocks are added in the order of their columns.

mod few;
mod k;
mod planes;
pub(super) mod sweep;
#[cfg(test)]
mod tests;

use crate::kernels::gemm::blocks::Part;
pub(super) use crate::kernels::gemm::driver::Scratch;
use crate::kernels::gemm::driver::{self, Product};
use crate::kernels::gemm::formats::short_blocks::{Short, with_short};
use crate::kernels::gemm::lookup;
use crate::kernels::gemm::matrix::Arithmetic;
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::gemm::tiles;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::dispatch::by_tokens;
use crate::kernels::{DType, Isa, Pool, available};
use planes::Order;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Weight rows per task.
const TASK_ROWS: usize = 32;

/// Columns per activation block for weights of this type; None for types with another arithmetic.
pub fn block_of(dtype: DType) -> Option<usize> {
    match dtype.arithmetic() {
        Arithmetic::Blocks32 => Some(32),
        Arithmetic::Blocks256 => Some(256),
        Arithmetic::Ternary | Arithmetic::Int8 | Arithmetic::Float => None,
    }
}

/// Computes `out[t, column + i] = x[t] · w[i]` for the rows `i` of each of `parts`; other columns of `out` are
/// unchanged.
///
/// `out` is `[tokens, stride]`; each matrix is of a type whose `block_of` is `x.block`, and has `x.cols` columns.
pub fn matmul(pool: &Pool, isa: Isa, x: &BlockActivations, parts: &[Part], stride: usize, out: &mut [f32]) {
    let tokens = x.tokens();
    assert_eq!(x.values.len(), tokens * x.cols, "activations are [tokens, cols]");
    for Part { matrix: m, .. } in parts {
        assert!(
            block_of(m.dtype) == Some(x.block) && m.cols == x.cols,
            "a product of {:?}, {} columns, with {} in blocks of {}",
            m.dtype,
            m.cols,
            x.cols,
            x.block
        );
    }
    let done = look_up(pool, isa, x, parts, stride, out);
    if done == tokens {
        return;
    }
    let (x, out) = (&x.from(done), &mut out[done * stride..]);
    ARRANGED.with_borrow_mut(|buffers| {
        let arranged = &arrange(pool, isa, x, parts, buffers);
        #[cfg(target_arch = "x86_64")]
        let depth = arranged.iter().any(|a| !a.tiles.is_empty()).then(|| tiles::depth(x.block));
        #[cfg(not(target_arch = "x86_64"))]
        let depth = None;
        let tokens = tokens - done;
        let product = Product { pool, x, tokens, parts, only: None, stride, height: TASK_ROWS, depth };
        product.run(out, &|task, scratch| run(isa, task, arranged, scratch));
    });
}

/// Computes the products of the first tokens, if look-ups are faster for all of `parts`; returns their number.
fn look_up(
    pool: &Pool,
    isa: Isa,
    x: &BlockActivations,
    parts: &[Part],
    stride: usize,
    out: &mut [f32],
) -> usize {
    if parts.iter().any(|part| takes_tiles(isa, part.matrix.dtype, x)) {
        return 0;
    }
    let row = |t: usize| (x.row(t).0, x.row(t).1);
    TURNED.with_borrow_mut(|buffers| {
        lookup::products(pool, isa, parts, x.tokens(), &row, buffers, &mut |range, turned, height| {
            let (tokens, failed) = (range.len(), AtomicBool::new(false));
            let out = &mut out[range.start * stride..range.end * stride];
            let product = Product { pool, x, tokens, parts, only: None, stride, height, depth: None };
            product.run(out, &|task, scratch| {
                if !lookup::run(isa, task, turned, scratch) {
                    failed.store(true, Relaxed);
                }
            });
            !failed.into_inner()
        })
    })
}

/// The activations in an order that kernels need.
#[derive(Clone, Copy)]
struct Arranged<'a> {
    x: BlockActivations<'a>,
    /// The activations in the order of matrix tiles, if the product uses tiles; else nothing.
    tiles: &'a [Line],
}

/// The activations in each `Order` that the product of `parts` needs.
fn arrange<'a>(
    pool: &Pool,
    isa: Isa,
    x: &BlockActivations<'a>,
    parts: &[Part],
    buffers: &'a mut [Buffers; 4],
) -> [Arranged<'a>; 4] {
    let mut arranged = [Arranged { x: *x, tiles: &[] }; 4];
    for (order, buffers) in Order::ALL.into_iter().zip(buffers) {
        let taken = |by_tiles: bool| {
            parts.iter().map(|part| part.matrix.dtype).any(|dtype| {
                let tiled = takes_tiles(isa, dtype, x);
                Order::of(isa, dtype, tiled) == order && (tiled || !by_tiles)
            })
        };
        let to = &mut arranged[order as usize];
        if order != Order::Own && taken(false) {
            to.x = planes::arrange(pool, isa, order, x, &mut buffers.values);
        }
        #[cfg(any(test, target_arch = "x86_64"))]
        if taken(true) {
            // SAFETY: such a set is passed only on a machine that has tiles.
            to.tiles = unsafe { tiles::arrange(pool, &to.x, &mut buffers.tiles) };
        }
    }
    arranged
}

#[cfg(any(test, target_arch = "x86_64"))]
fn takes_tiles(isa: Isa, dtype: DType, x: &BlockActivations) -> bool {
    tiles::pays(isa, dtype, x.tokens())
}

#[cfg(not(any(test, target_arch = "x86_64")))]
fn takes_tiles(_: Isa, _: DType, _: &BlockActivations) -> bool {
    false
}

fn run(isa: Isa, task: &Task, arranged: &[Arranged; 4], scratch: &mut Scratch) {
    let (elements, bytes) = task.dtype.block();
    assert_eq!(task.row_bytes, task.x.cols / elements * bytes, "rows of whole blocks");
    let (dtype, tokens, tiled) = (task.dtype, task.x.tokens(), takes_tiles(isa, task.dtype, task.x));
    let arranged = &arranged[Order::of(isa, dtype, tiled) as usize];
    let task = &Task { x: &arranged.x, ..*task };
    match dtype.arithmetic() {
        _ if isa == Isa::Scalar => scalar::run(task, scratch),
        // SAFETY: such a set is passed only on a machine that has tiles.
        #[cfg(any(test, target_arch = "x86_64"))]
        _ if tiled => unsafe { tiles::run(task, arranged.tiles, scratch) },
        Arithmetic::Blocks256 => k::run(of_width(isa, dtype, tokens), task, scratch),
        _ => with_short!(dtype, F => match tokens {
            _ if tokens > most_in_place::<F>(isa) => sweep::sweep::<F>(isa, task, scratch),
            _ => {
                let isa = of_width(isa, dtype, tokens);
                by_tokens!(tokens, T, few::few::<F, T>(isa, task))
            }
        }),
    }
}

/// Maximum number of tokens for which reading short blocks in place is faster than unpacking rows once. Unpacking pays
/// earlier with few registers, later for codes that fill their bytes, and for bytes with many codes, which take little
/// work to unpack.
fn most_in_place<F: Short>(isa: Isa) -> usize {
    match F::BITS {
        8 if !isa.has_avx512() => 4,
        4 if !isa.has_avx512() => 3,
        4 | 8 => 16,
        _ if isa.has_avx512() => 14,
        _ => 8,
    }
}

/// The set to run instead of `isa`. A product of one token is bound by memory. Reading eight rows at once comes closer
/// to the speed of memory than sixteen, if it takes no more instructions.
fn of_width(isa: Isa, dtype: DType, tokens: usize) -> Isa {
    use DType::*;
    match dtype {
        _ if tokens != 1 || !isa.has_avx2() => isa,
        Q8_0 if isa.has_avx512() && available().contains(&Isa::AvxVnni) => Isa::AvxVnni,
        // AVX2 needs less work per scale than VNNI, but more for signed codes and for look-ups.
        Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | TQ2_0_256 => Isa::Avx2,
        _ => isa,
    }
}

pub(super) type Task<'a> = driver::Task<'a, BlockActivations<'a>>;

impl<'a> Task<'a> {
    /// The values, scales and sums of token `t` for some blocks of 32 columns.
    #[inline(always)]
    pub fn token(&self, t: usize, blocks: Range<usize>) -> (&'a [i8], &'a [f32], &'a [i16]) {
        let (values, scales, sums) = self.x.row(t);
        (&values[32 * blocks.start..32 * blocks.end], &scales[blocks.clone()], &sums[blocks])
    }
}

/// Buffers for an order of activations. They grow to the largest product, and are kept.
#[derive(Default)]
struct Buffers {
    values: Vec<i8>,
    tiles: Vec<Line>,
}

thread_local! {
    /// The buffers of the thread that calls a product, by `Order`.
    static ARRANGED: RefCell<[Buffers; 4]> = RefCell::default();
    static TURNED: RefCell<lookup::Buffers> = RefCell::default();
}

mod scalar {
    use super::{Scratch, Task, grown};
    use crate::kernels::gemm::formats::decode::{Codes, decode};

    /// Decodes each block once and multiplies it with all tokens.
    pub(super) fn run(task: &Task, scratch: &mut Scratch) {
        let (x, tokens) = (task.x, task.x.tokens());
        let (elements, bytes) = task.dtype.block();
        let sums = grown(&mut scratch.floats, tokens);
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

    /// Adds the next 32 columns to `total`.
    fn add_short(codes: &Codes, w: &[i8; 32], x: &[i8], scale: f32, sum: i16, total: f32) -> f32 {
        let dot = dot(w, x);
        let total = (dot as f32).mul_add(codes.d * scale, total);
        match codes.min {
            Some(min) => min.mul_add(scale * sum as f32, total),
            None => total,
        }
    }

    /// Adds the next 256 columns to `total`; `sums` has one sum per 16 columns.
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
