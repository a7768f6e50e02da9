//! Products of int8 activations and ternary weights: integers are exact, so order never shows.

use super::blocks::{RowBlock, SharedOut, block_count, nth_block};
use super::pack::by_tasks;
use super::quantize::QuantRow;
use super::rows::{f16_at, packed_row, row_scale};
#[cfg(target_arch = "x86_64")]
use super::ternary_avx2 as avx2;
use super::{DType, Isa, Matrix, Pool};
use crate::base::{Error, Result};
use std::cell::RefCell;
use std::ops::Range;

/// Weight rows of one task.
const TASK_ROWS: usize = 32;
/// Weight rows that are unpacked together and swept over the tokens.
pub(super) const GROUP: usize = 4;
/// From this many tokens on, unpacked codes pay for being written.
const SWEEP_TOKENS: usize = 4;
/// Bytes of activations that one sweep keeps in the second-level cache.
const TILE_BYTES: usize = 256 << 10;
/// Below this many multiplications waking others takes longer than the work.
const SMALL: usize = 1 << 18;

/// Columns that an activation row is padded to, with zeros.
const WIDTH: usize = 128;

/// Tokens' int8 activations, `[rows.len(), cols]`, each row with its scale and sum. `cols` is `padded` of the weights'
/// columns; what is behind those is zero.
#[derive(Clone, Copy)]
pub struct Activations<'a> {
    pub values: &'a [i8],
    pub rows: &'a [QuantRow],
    pub cols: usize,
}

/// The width of activation rows for weights of `cols` columns.
pub fn padded(cols: usize) -> usize {
    cols.next_multiple_of(WIDTH)
}

impl Activations<'_> {
    fn row(&self, t: usize) -> &[i8] {
        &self.values[t * self.cols..(t + 1) * self.cols]
    }
}

/// Refuses a ternary matrix with a code 3, which means no weight, or a scale that is not finite, with `BadModel`;
/// the products rely on both. Other types pass. Each byte is read once, on `pool`.
pub fn validate(pool: &Pool, m: &Matrix) -> Result<()> {
    if !m.dtype.is_ternary() {
        return Ok(());
    }
    by_tasks(pool, m.data.len(), m.rows, &|mut rows| rows.try_for_each(|row| validate_row(m, row)))
}

fn validate_row(m: &Matrix, row: usize) -> Result<()> {
    let finite = |scale: f32| match scale.is_finite() {
        true => Ok(()),
        false => Err(Error::bad_model(format!("a {:?} scale in row {row} is {scale}", m.dtype))),
    };
    let packed = packed_row(m, row);
    let invalid = match m.dtype {
        DType::TQ2_0 => packed.chunks_exact(66).any(|block| has_three(&block[..64])),
        _ => has_three(packed),
    };
    if invalid {
        let message = format!("a {:?} matrix holds the invalid code 3 in row {row}", m.dtype);
        return Err(Error::bad_model(message));
    }
    match m.dtype {
        DType::TQ2_0 => packed.chunks_exact(66).try_for_each(|block| finite(f16_at(&block[64..]))),
        _ => finite(row_scale(m, row)),
    }
}

/// `bytes` is a multiple of 32 long.
fn has_three(bytes: &[u8]) -> bool {
    let low = 0x5555_5555_5555_5555u64;
    bytes.as_chunks::<8>().0.iter().any(|b| {
        let codes = u64::from_le_bytes(*b);
        codes & (codes >> 1) & low != 0
    })
}

/// `out[t, i] = x[t] · w[i] / scale(t)` for the rows `i` of all of `weights`, side by side in their order.
///
/// `out` is `[x.rows.len(), sum of rows]`, and each matrix a ternary one whose columns `padded` makes `x.cols`. The
/// integer dot products are exact. I2_S and `Ternary` give `dot * (weight scale / activation scale)`; TQ2_0 adds `block dot * block scale` block by
/// block in f32 and divides by the activation scale.
pub fn matmul(pool: &Pool, isa: Isa, x: &Activations, weights: &[&Matrix], out: &mut [f32]) {
    let tokens = x.rows.len();
    let stride: usize = weights.iter().map(|m| m.rows).sum();
    assert_eq!(x.values.len(), tokens * x.cols, "activations are [tokens, cols]");
    assert_eq!(out.len(), tokens * stride, "a product is [tokens, sum of rows]");
    for m in weights {
        assert!(
            m.dtype.is_ternary() && padded(m.cols) == x.cols,
            "a ternary product of {:?}, {} columns",
            m.dtype,
            m.cols
        );
    }
    if out.is_empty() || x.cols == 0 {
        return out.fill(0.0);
    }
    let small = out.len().saturating_mul(x.cols) < SMALL;
    let out = SharedOut::new(out);
    let one = |n: usize| {
        let block = nth_block(weights, TASK_ROWS, n);
        let m = weights[block.matrix];
        let output = Output { out: &out, stride };
        SCRATCH.with_borrow_mut(|scratch| {
            if tokens < SWEEP_TOKENS {
                few(isa, x, m, &block, &output, scratch);
            } else {
                sweep(isa, x, m, &block, &output, scratch);
            }
        });
    };
    let tasks = block_count(weights, TASK_ROWS);
    if small { (0..tasks).for_each(one) } else { pool.run(tasks, &one) }
}

struct Output<'a> {
    out: &'a SharedOut<'a>,
    stride: usize,
}

impl Output<'_> {
    /// Writes the outputs of token `t` for the weight rows that begin at `row` of the task's block.
    fn write(&self, t: usize, block: &RowBlock, row: usize, values: &[f32]) {
        let at = t * self.stride + block.column + row;
        assert!(row >= block.rows.start && row + values.len() <= block.rows.end);
        // SAFETY: the columns lie in this task's own row block, blocks do not overlap, and the slice ends here.
        unsafe { self.out.slice(at..at + values.len()) }.copy_from_slice(values);
    }
}

/// A thread's buffers; they grow to the largest matrix and stay.
#[derive(Default)]
struct Scratch {
    /// `[GROUP, padded cols]` codes 0, 1, 2, one a byte.
    codes: Vec<u8>,
    /// `[cols / 256, GROUP]` TQ2_0 scales.
    scales: Vec<f32>,
    /// `[tokens, cols / 256]` sums of the activations of each TQ2_0 block.
    sums: Vec<i32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { codes: Vec::new(), scales: Vec::new(), sums: Vec::new() }) };
}

/// The first `len` elements of a buffer, grown where needed. Out of memory is a panic, which the engine's boundary
/// turns into an error: kernels have none to give.
pub(super) fn grown<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        let more = len - buffer.len();
        assert!(
            buffer.try_reserve_exact(more).is_ok(),
            "could not allocate {len} elements of a kernel's buffer"
        );
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}

/// One task's group of unpacked weight rows.
struct Group<'a> {
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    first: usize,
    /// How many of the GROUP rows count.
    rows: usize,
}

/// Unpacks each group of weight rows once per tile of tokens and multiplies it with all of them.
fn sweep(isa: Isa, x: &Activations, m: &Matrix, block: &RowBlock, output: &Output, scratch: &mut Scratch) {
    let tokens = x.rows.len();
    let tile = (TILE_BYTES / x.cols).clamp(16, 1024);
    let scaled = m.dtype == DType::TQ2_0;
    let blocks = if scaled { x.cols / 256 } else { 0 };
    let codes = grown(&mut scratch.codes, GROUP * x.cols);
    let scales = grown(&mut scratch.scales, GROUP * blocks);
    let sums = grown(&mut scratch.sums, tokens * blocks);
    if scaled {
        block_sums(isa, x.values, sums);
    }
    for start in (0..tokens).step_by(tile) {
        let end = tokens.min(start + tile);
        for first in block.rows.clone().step_by(GROUP) {
            let rows = GROUP.min(block.rows.end - first);
            let mut group = Group { codes, scales, first, rows };
            unpack_group(isa, m, &mut group);
            if scaled {
                for t in start..end {
                    let sums = &sums[t * blocks..(t + 1) * blocks];
                    let totals = dots_scaled(isa, group.codes, group.scales, x.row(t), sums);
                    output.write(t, block, first, &totals.map(|v| v / x.rows[t].scale)[..rows]);
                }
            } else {
                sweep_i2s(isa, x, m, start..end, &group, |t, values| output.write(t, block, first, values));
            }
        }
    }
}

fn sweep_i2s(
    isa: Isa,
    x: &Activations,
    m: &Matrix,
    tile: Range<usize>,
    group: &Group,
    mut write: impl FnMut(usize, &[f32]),
) {
    // A group that the block cuts short repeats its last row.
    let scales: [f32; GROUP] = std::array::from_fn(|r| row_scale(m, group.first + r.min(group.rows - 1)));
    // Two tokens share the loads of the weights.
    for t in tile.clone().step_by(2) {
        let second = (t + 1 < tile.end).then(|| x.row(t + 1));
        let dots = dots(isa, group.codes, x.row(t), second);
        for (i, dots) in dots.iter().take(1 + second.is_some() as usize).enumerate() {
            let token = x.rows[t + i];
            let values: [f32; GROUP] =
                std::array::from_fn(|r| i2s_value(dots[r] - token.sum, scales[r], token.scale));
            write(t + i, &values[..group.rows]);
        }
    }
}

fn i2s_value(dot: i32, weight_scale: f32, activation_scale: f32) -> f32 {
    dot as f32 * (weight_scale / activation_scale)
}

fn unpack_group(isa: Isa, m: &Matrix, group: &mut Group) {
    for (r, codes) in group.codes.chunks_exact_mut(padded(m.cols)).enumerate() {
        // A group that the block cuts short repeats its last row; the surplus results are dropped.
        let packed = packed_row(m, group.first + r.min(group.rows - 1));
        if m.dtype != DType::TQ2_0 {
            unpack_i2s(isa, packed, codes);
            continue;
        }
        unpack_tq2_0(isa, packed, codes);
        for (scales, block) in group.scales.chunks_exact_mut(GROUP).zip(packed.chunks_exact(66)) {
            scales[r] = f16_at(&block[64..]);
        }
    }
}

/// Works on the packed codes: few tokens do not repay unpacking.
fn few(isa: Isa, x: &Activations, m: &Matrix, block: &RowBlock, output: &Output, scratch: &mut Scratch) {
    let scaled = m.dtype == DType::TQ2_0;
    let blocks = if scaled { x.cols / 256 } else { 0 };
    let sums = grown(&mut scratch.sums, x.rows.len() * blocks);
    if scaled {
        block_sums(isa, x.values, sums);
    }
    for row in block.rows.clone() {
        let packed = packed_row(m, row);
        for (t, token) in x.rows.iter().enumerate() {
            let value = if scaled {
                packed_tq2_0(isa, packed, x.row(t), &sums[t * blocks..(t + 1) * blocks]) / token.scale
            } else {
                i2s_value(packed_i2s(isa, packed, x.row(t)) - token.sum, row_scale(m, row), token.scale)
            };
            output.write(t, block, row, &[value]);
        }
    }
}

/// Codes of an I2_S row in the order of its elements (layout in `rows`).
fn unpack_i2s(isa: Isa, packed: &[u8], codes: &mut [u8]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Avx2` stands for a machine that has AVX2.
        Isa::Avx2 => unsafe { avx2::unpack_i2s(packed, codes) },
        _ => scalar::unpack_i2s(packed, codes),
    }
}

/// Codes of a TQ2_0 row in the order of its elements (layout in `rows`).
fn unpack_tq2_0(isa: Isa, packed: &[u8], codes: &mut [u8]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Avx2` stands for a machine that has AVX2.
        Isa::Avx2 => unsafe { avx2::unpack_tq2_0(packed, codes) },
        _ => scalar::unpack_tq2_0(packed, codes),
    }
}

/// Sums of each 256 values.
fn block_sums(isa: Isa, values: &[i8], sums: &mut [i32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Avx2` stands for a machine that has AVX2.
        Isa::Avx2 => unsafe { avx2::block_sums(values, sums) },
        _ => scalar::block_sums(values, sums),
    }
}

/// `code · x` of GROUP rows of codes and one or two rows of activations.
fn dots(isa: Isa, codes: &[u8], first: &[i8], second: Option<&[i8]>) -> [[i32; GROUP]; 2] {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Avx2` stands for a machine that has AVX2.
        Isa::Avx2 => unsafe { avx2::dots(codes, first, second.unwrap_or(first)) },
        _ => [scalar::dots(codes, first), second.map_or([0; GROUP], |x| scalar::dots(codes, x))],
    }
}

/// `Σ over blocks of (code · x - sum) * scale` of GROUP rows, in f32 block by block.
fn dots_scaled(isa: Isa, codes: &[u8], scales: &[f32], x: &[i8], sums: &[i32]) -> [f32; GROUP] {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Avx2` stands for a machine that has AVX2.
        Isa::Avx2 => unsafe { avx2::dots_scaled(codes, scales, x, sums) },
        _ => scalar::dots_scaled(codes, scales, x, sums),
    }
}

/// `code · x` of one packed row.
fn packed_i2s(isa: Isa, packed: &[u8], x: &[i8]) -> i32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Avx2` stands for a machine that has AVX2.
        Isa::Avx2 => unsafe { avx2::packed_i2s(packed, x) },
        _ => scalar::packed_i2s(packed, x),
    }
}

/// As `dots_scaled`, of one packed row.
fn packed_tq2_0(isa: Isa, packed: &[u8], x: &[i8], sums: &[i32]) -> f32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Avx2` stands for a machine that has AVX2.
        Isa::Avx2 => unsafe { avx2::packed_tq2_0(packed, x, sums) },
        _ => scalar::packed_tq2_0(packed, x, sums),
    }
}

mod scalar {
    use super::{GROUP, f16_at};

    pub fn unpack_i2s(packed: &[u8], codes: &mut [u8]) {
        for (codes, block) in codes.chunks_exact_mut(128).zip(packed.chunks_exact(32)) {
            for (k, codes) in codes.chunks_exact_mut(32).enumerate() {
                for (code, b) in codes.iter_mut().zip(block) {
                    *code = b >> (6 - 2 * k) & 3;
                }
            }
        }
    }

    pub fn unpack_tq2_0(packed: &[u8], codes: &mut [u8]) {
        for (codes, block) in codes.chunks_exact_mut(256).zip(packed.chunks_exact(66)) {
            for (k, codes) in codes.chunks_exact_mut(32).enumerate() {
                for (code, b) in codes.iter_mut().zip(&block[k / 4 * 32..]) {
                    *code = b >> (2 * (k % 4)) & 3;
                }
            }
        }
    }

    pub fn block_sums(values: &[i8], sums: &mut [i32]) {
        for (sum, block) in sums.iter_mut().zip(values.chunks_exact(256)) {
            *sum = block.iter().map(|v| *v as i32).sum();
        }
    }

    fn dot(codes: &[u8], x: &[i8]) -> i32 {
        codes.iter().zip(x).map(|(c, x)| *c as i32 * *x as i32).sum()
    }

    pub fn dots(codes: &[u8], x: &[i8]) -> [i32; GROUP] {
        std::array::from_fn(|r| dot(&codes[r * x.len()..(r + 1) * x.len()], x))
    }

    pub fn dots_scaled(codes: &[u8], scales: &[f32], x: &[i8], sums: &[i32]) -> [f32; GROUP] {
        let mut totals = [0.0; GROUP];
        for (r, total) in totals.iter_mut().enumerate() {
            let row = &codes[r * x.len()..(r + 1) * x.len()];
            for (b, (codes, x)) in row.chunks_exact(256).zip(x.chunks_exact(256)).enumerate() {
                *total += (dot(codes, x) - sums[b]) as f32 * scales[b * GROUP + r];
            }
        }
        totals
    }

    pub fn packed_i2s(packed: &[u8], x: &[i8]) -> i32 {
        let mut codes = [0; 128];
        let mut sum = 0;
        for (block, x) in packed.chunks_exact(32).zip(x.chunks_exact(128)) {
            unpack_i2s(block, &mut codes);
            sum += dot(&codes, x);
        }
        sum
    }

    pub fn packed_tq2_0(packed: &[u8], x: &[i8], sums: &[i32]) -> f32 {
        let mut codes = [0; 256];
        let mut total = 0.0;
        for ((block, x), sum) in packed.chunks_exact(66).zip(x.chunks_exact(256)).zip(sums) {
            unpack_tq2_0(block, &mut codes);
            total += (dot(&codes, x) - sum) as f32 * f16_at(&block[64..]);
        }
        total
    }
}
