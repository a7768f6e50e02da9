//! Products of int8 activations and ternary weights. Integer sums are exact, so their order does not matter.

mod columns;
mod few;
mod gated;
mod sets;
mod sweep;
#[cfg(test)]
mod tests;

use crate::base::{Error, Result};
use crate::kernels::gemm::blocks::Part;
use crate::kernels::gemm::driver::{self, Product, Scratch, shape};
pub use crate::kernels::gemm::formats::panels::padded;
use crate::kernels::gemm::formats::{f16_at, packed_row, row_scale};
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::gemm::tiles;
use crate::kernels::pack::by_tasks;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::quantize::QuantRow;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::{DType, Isa, Matrix, Pool};
pub use columns::{Columns, MOST_TOKENS, matmul_columns};
pub use gated::{Gates, gate_up};
use std::cell::RefCell;
use std::marker::PhantomData;

/// Weight rows per task.
pub(super) const TASK_ROWS: usize = 32;

/// The int8 activations of tokens, `[rows.len(), cols]`, with a scale and a sum per row. `cols` is `padded` of the
/// weights' columns; the padding is zero.
#[derive(Clone, Copy)]
pub struct Activations<'a> {
    pub values: &'a [i8],
    pub rows: &'a [QuantRow],
    pub cols: usize,
}

impl<'a> Activations<'a> {
    #[inline]
    pub(super) fn row(&self, t: usize) -> &'a [i8] {
        &self.values[t * self.cols..(t + 1) * self.cols]
    }
}

/// Refuses, with `BadModel`, a ternary matrix that has a code 3, which is no weight, or a scale that is not finite;
/// the products rely on both. Other types pass. Reads each byte once, on `pool`.
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

/// Whether any code is 3. The length of `bytes` is a multiple of 32.
fn has_three(bytes: &[u8]) -> bool {
    let low = 0x5555_5555_5555_5555u64;
    bytes.as_chunks::<8>().0.iter().any(|b| {
        let codes = u64::from_le_bytes(*b);
        codes & (codes >> 1) & low != 0
    })
}

/// Computes `out[t, column + i] = x[t] · w[i] / scale(t)` for the rows `i` of each of `parts`; other columns of `out`
/// are unchanged.
///
/// `out` is `[x.rows.len(), stride]`. Each matrix is ternary, and `padded` of its columns is `x.cols`. The integer
/// dot products are exact. I2_S and `Ternary` give `dot * (weight scale / activation scale)`; TQ2_0 adds
/// `block dot * block scale` block by block in f32, and then divides by the activation scale.
pub fn matmul(pool: &Pool, isa: Isa, x: &Activations, parts: &[Part], stride: usize, out: &mut [f32]) {
    let tokens = x.rows.len();
    assert_eq!(x.values.len(), tokens * x.cols, "activations are [tokens, cols]");
    for Part { matrix: m, .. } in parts {
        assert!(
            m.dtype.is_ternary() && padded(m.cols) == x.cols,
            "a ternary product of {:?}, {} columns",
            m.dtype,
            m.cols
        );
    }
    if tokens == 0 || x.cols == 0 {
        return out.fill(0.0);
    }
    PREPARED.with_borrow_mut(|Prepared { sums, arranged }| {
        let arranged = arrange(pool, isa, x, arranged);
        let x = &tokens_of(isa, x, parts, sums, arranged);
        let (height, depth) = shape(isa, DType::Ternary, tokens, parts, (pool, TASK_ROWS));
        let product = Product { pool, x, tokens, parts, only: None, stride, height, depth };
        product.run(out, &|task, scratch| run(isa, task, scratch));
    });
}

/// Maximum number of tokens of `gate_up`.
pub const FEW: usize = sets::TOKENS;

/// Computes `task` with few tokens.
fn few_rows(isa: Isa, task: &Task, scratch: &mut Scratch) {
    match (isa, task.dtype, task.only) {
        (Isa::Scalar, ..) => scalar::run(task, scratch),
        (_, DType::TQ2_0, None) => few::few::<Scaled>(isa, task),
        (_, DType::TQ2_0, Some(_)) => few::few::<Chosen<Scaled>>(isa, task),
        (.., None) => few::few::<Plain>(isa, task),
        (.., Some(_)) => few::few::<Chosen<Plain>>(isa, task),
    }
}

fn tokens_of<'a>(
    isa: Isa,
    x: &Activations<'a>,
    parts: &[Part],
    sums: &'a mut Vec<i32>,
    arranged: &'a [Line],
) -> Tokens<'a> {
    let scaled = parts.iter().any(|part| part.matrix.dtype == DType::TQ2_0);
    let sums = grown(sums, if scaled { x.values.len() / 256 } else { 0 });
    if scaled {
        block_sums(isa, x.values, sums);
    }
    let Activations { values, rows, cols } = *x;
    Tokens { values, rows, cols, sums, arranged }
}

/// The activations, as tasks read them.
pub struct Tokens<'a> {
    values: &'a [i8],
    pub rows: &'a [QuantRow],
    pub cols: usize,
    /// `[tokens, cols / 256]` sums of the activations of each block, if weights are TQ2_0.
    sums: &'a [i32],
    /// The activations as `arrange` ordered them.
    pub arranged: &'a [Line],
}

impl<'a> Tokens<'a> {
    #[inline]
    pub fn row(&self, t: usize) -> &'a [i8] {
        &self.values[t * self.cols..(t + 1) * self.cols]
    }

    pub fn sums(&self, t: usize) -> &'a [i32] {
        let blocks = self.cols / 256;
        &self.sums[t * blocks..(t + 1) * blocks]
    }
}

pub(super) type Task<'a> = driver::Task<'a, Tokens<'a>>;

impl Task<'_> {
    /// The scale of a row of I2_S or `Ternary`, as in `row_scale`.
    #[inline]
    pub fn scale(&self, row: usize) -> f32 {
        let at = if self.dtype == DType::Ternary { 4 * (self.first + self.place_of(row)) } else { 0 };
        f32::from_le_bytes([self.behind[at], self.behind[at + 1], self.behind[at + 2], self.behind[at + 3]])
    }

    /// The scales of rows from `first` on, repeated as in `group`.
    #[inline(always)]
    fn scales(&self, first: usize, to: &mut [f32]) {
        for (r, to) in to.iter_mut().enumerate() {
            *to = self.scale((first + r).min(self.rows - 1));
        }
    }
}

fn run(isa: Isa, task: &Task, scratch: &mut Scratch) {
    let kernel = if task.dtype == DType::TQ2_0 { run_kind::<Scaled> } else { run_kind::<Plain> };
    match isa {
        // SAFETY: such a set is passed only on a machine that has the instructions.
        #[cfg(any(test, target_arch = "x86_64"))]
        _ if tiles::ternary::pays(isa, task.x.rows.len()) => unsafe { tiles::ternary::run(task, scratch) },
        Isa::Scalar => scalar::run(task, scratch),
        _ => kernel(isa, task, scratch),
    }
}

fn run_kind<K: Kind>(isa: Isa, task: &Task, scratch: &mut Scratch) {
    match sweep_pays(isa, task) {
        true => sweep::sweep::<K>(isa, task, scratch),
        false => few::few::<K>(isa, task),
    }
}

/// The packing of rows.
trait Kind {
    /// Whether each 256 columns have a scale, as in TQ2_0; otherwise each row has one scale, and is packed as in
    /// I2_S.
    const SCALED: bool;
    /// Whether only some rows of a task are wanted: code that others would pay for in each step.
    const CHOSEN: bool = false;

    /// Bytes of a row of `cols` columns.
    fn row_bytes(cols: usize) -> usize {
        if Self::SCALED { cols / 256 * 66 } else { cols / 4 }
    }
}

struct Plain;
struct Scaled;

impl Kind for Plain {
    const SCALED: bool = false;
}
impl Kind for Scaled {
    const SCALED: bool = true;
}

struct Chosen<K>(PhantomData<K>);

impl<K: Kind> Kind for Chosen<K> {
    const SCALED: bool = K::SCALED;
    const CHOSEN: bool = true;
}

/// Whether unpacking rows once is faster than reading them in place; the results are the same.
fn sweep_pays(isa: Isa, task: &Task) -> bool {
    let (tokens, scaled) = (task.x.rows.len(), task.dtype == DType::TQ2_0);
    match isa {
        _ if isa.has_neon() => tokens >= 4,
        // Rows that are read in place add up their lanes at each scale. I2_S does that once a row, which is faster
        // than unpacking.
        Isa::AvxVnni => tokens >= 5 && scaled,
        _ if isa.has_avx512() => tokens >= if scaled { 5 } else { 8 },
        _ => tokens >= if scaled { 5 } else { 13 },
    }
}

/// The activations in the order in which the kernels of `isa` read them, if that differs from their own order; else
/// nothing.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
fn arrange<'a>(pool: &Pool, isa: Isa, x: &Activations, lines: &'a mut Vec<Line>) -> &'a [Line] {
    match isa {
        #[cfg(any(test, target_arch = "x86_64"))]
        // SAFETY: such a set is passed only on a machine that has tiles.
        _ if tiles::ternary::pays(isa, x.rows.len()) => unsafe { tiles::ternary::arrange(pool, x, lines) },
        _ => &[],
    }
}

/// Buffers for the activations of a product, in the thread that calls for it. They grow to the largest product, and
/// are kept.
#[derive(Default)]
struct Prepared {
    /// `Tokens::sums`.
    sums: Vec<i32>,
    /// `Tokens::arranged`.
    arranged: Vec<Line>,
}

thread_local! {
    static PREPARED: RefCell<Prepared> =
        const { RefCell::new(Prepared { sums: Vec::new(), arranged: Vec::new() }) };
}

by_isa!(
    /// Sums of each 256 values.
    fn block_sums(values: &[i8], sums: &mut [i32]) = sums_of
);

#[inline(always)]
fn sums_of(values: &[i8], sums: &mut [i32]) {
    for (sum, block) in sums.iter_mut().zip(values.as_chunks::<256>().0) {
        *sum = block.iter().map(|v| *v as i32).sum();
    }
}

mod scalar {
    use super::{DType, Line, Scratch, Task, f16_at, grown};

    /// Unpacks each row once and multiplies it with all tokens.
    pub fn run(task: &Task, scratch: &mut Scratch) {
        let cols = task.x.cols;
        let lines = grown(&mut scratch.codes, cols / size_of::<Line>());
        // SAFETY: a Line is 64 bytes without gaps.
        let codes = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), cols) };
        for row in 0..task.rows {
            let packed = task.row(row);
            let scaled = task.dtype == DType::TQ2_0;
            if scaled {
                unpack_tq2_0(packed, codes)
            } else {
                unpack_i2s(packed, codes)
            }
            for (t, token) in task.x.rows.iter().enumerate() {
                let x = task.x.row(t);
                let value = if scaled {
                    dot_scaled(codes, packed, x, task.x.sums(t)) / token.scale
                } else {
                    (dot(codes, x) - token.sum) as f32 * (task.scale(row) / token.scale)
                };
                task.write(t, row, &[value]);
            }
        }
    }

    /// Unpacks the codes of an I2_S row in the order of its elements (layout in `formats`).
    fn unpack_i2s(packed: &[u8], codes: &mut [u8]) {
        for (codes, block) in codes.chunks_exact_mut(128).zip(packed.chunks_exact(32)) {
            for (k, codes) in codes.chunks_exact_mut(32).enumerate() {
                for (code, b) in codes.iter_mut().zip(block) {
                    *code = b >> (6 - 2 * k) & 3;
                }
            }
        }
    }

    /// Unpacks the codes of a TQ2_0 row in the order of its elements (layout in `formats`).
    fn unpack_tq2_0(packed: &[u8], codes: &mut [u8]) {
        for (codes, block) in codes.chunks_exact_mut(256).zip(packed.chunks_exact(66)) {
            for (k, codes) in codes.chunks_exact_mut(32).enumerate() {
                for (code, b) in codes.iter_mut().zip(&block[k / 4 * 32..]) {
                    *code = b >> (2 * (k % 4)) & 3;
                }
            }
        }
    }

    fn dot(codes: &[u8], x: &[i8]) -> i32 {
        codes.iter().zip(x).map(|(c, x)| *c as i32 * *x as i32).sum()
    }

    /// `Σ over blocks of (code · x - sum) * scale`, added in f32 block by block.
    fn dot_scaled(codes: &[u8], packed: &[u8], x: &[i8], sums: &[i32]) -> f32 {
        let mut total = 0.0;
        let blocks = codes.chunks_exact(256).zip(x.chunks_exact(256)).zip(packed.chunks_exact(66));
        for (((codes, x), packed), sum) in blocks.zip(sums) {
            total += (dot(codes, x) - sum) as f32 * f16_at(&packed[64..]);
        }
        total
    }
}
