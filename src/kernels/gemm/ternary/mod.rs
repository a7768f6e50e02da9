//! Products of int8 activations and ternary weights. Integer sums are exact, so their order does not matter.

mod columns;
mod few;
mod gated;
mod lanes;
mod sets;
mod sweep;
#[cfg(test)]
mod tests;

use crate::base::{Error, Result};
use crate::kernels::gemm::driver::Scratch;
use crate::kernels::gemm::formats::{codes_of_row, packed_row, row_scale, scale_of_block, thirds as base_3};
use crate::kernels::gemm::tokens::Task;
use crate::kernels::pack::by_tasks;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::{DType, Isa, Matrix, Pool};
pub use columns::{Columns, MOST_TOKENS, matmul_columns};
pub use gated::{Gates, gate_up};

/// Refuses, with `BadModel`, a ternary matrix that has a code 3, which is no weight, or a scale that is not finite;
/// the products rely on both. Other types pass. Reads each byte once, on `pool`.
pub fn validate(pool: &Pool, m: &Matrix) -> Result<()> {
    if !m.dtype.is_ternary() {
        return Ok(());
    }
    by_tasks(pool, m.data.len(), m.rows, &|mut rows| rows.try_for_each(|row| validate_row(m, row)))
}

fn validate_row(m: &Matrix, row: usize) -> Result<()> {
    let (packed, scaled) = (packed_row(m, row), m.dtype.has_scaled_blocks());
    for block in packed.chunks(if scaled { m.dtype.block().1 } else { packed.len().max(1) }) {
        let (codes, scale) = match scaled {
            true => (&block[..block.len() - 2], scale_of_block(m.dtype, block, 0)),
            false => (block, row_scale(m, row)),
        };
        // Any bytes are codes in base 3.
        if m.dtype != DType::TQ1_0 && has_three(codes) {
            let message = format!("a {:?} matrix holds the invalid code 3 in row {row}", m.dtype);
            return Err(Error::bad_model(message));
        }
        if !scale.is_finite() {
            return Err(Error::bad_model(format!("a {:?} scale in row {row} is {scale}", m.dtype)));
        }
    }
    Ok(())
}

/// Whether any code is 3. The length of `bytes` is a multiple of 32.
fn has_three(bytes: &[u8]) -> bool {
    let low = 0x5555_5555_5555_5555u64;
    bytes.as_chunks::<8>().0.iter().any(|b| {
        let codes = u64::from_le_bytes(*b);
        codes & (codes >> 1) & low != 0
    })
}

/// Maximum number of tokens of `gate_up`.
pub const FEW: usize = sets::TOKENS;

impl Task<'_> {
    /// The scales of rows from `first` on, repeated as in `addresses`.
    #[inline(always)]
    fn scales(&self, first: usize, to: &mut [f32]) {
        match self.dtype {
            DType::Ternary => {
                (first..).zip(to).for_each(|(row, to)| *to = self.scale(row.min(self.rows - 1)))
            }
            // One scale for all rows.
            _ => to.fill(self.scale(0)),
        }
    }
}

/// Computes `task` without tiles.
pub(super) fn run(isa: Isa, task: &Task, scratch: &mut Scratch) {
    let tokens = task.x.rows.len();
    match task.dtype {
        DType::I2S | DType::Ternary if isa.has_avx512() && tokens >= 5 => lanes::run::<Plain>(isa, task),
        DType::TQ2_0 if isa.has_avx512() && tokens >= 2 => lanes::run::<Scaled>(isa, task),
        _ if !sweep_pays(isa, task) => run_few(isa, task, scratch),
        DType::TQ1_0 => sweep::sweep::<Thirds<false>>(isa, task, scratch),
        DType::TQ2_0 => sweep::sweep::<Scaled>(isa, task, scratch),
        _ => sweep::sweep::<Plain>(isa, task, scratch),
    }
}

/// Like `run`, with rows that are read in place.
fn run_few(isa: Isa, task: &Task, scratch: &mut Scratch) {
    match (task.dtype, task.only) {
        _ if isa == Isa::Scalar => scalar::run(task, scratch),
        (DType::TQ1_0, None) => lanes::run::<Thirds<false>>(isa, task),
        (DType::TQ1_0, _) => lanes::run::<Thirds<true>>(isa, task),
        (DType::TQ2_0, None) => few::few::<Scaled>(isa, task),
        (DType::TQ2_0, _) => few::few::<Packing<true, true>>(isa, task),
        (_, None) => few::few::<Plain>(isa, task),
        _ => few::few::<Packing<false, true>>(isa, task),
    }
}

/// The packing of rows.
trait Kind {
    /// Whether each 256 columns have a scale, as in TQ1_0 and TQ2_0; otherwise each row has one scale, and is packed
    /// as in I2_S.
    const SCALED: bool;
    /// Whether codes are packed as in TQ1_0.
    const THIRDS: bool = false;
    /// Whether only some rows of a task are wanted. A constant, so that other products need not check it in
    /// each step.
    const CHOSEN: bool;

    /// Bytes of a row of `cols` columns.
    fn row_bytes(cols: usize) -> usize {
        match (Self::THIRDS, Self::SCALED) {
            (true, _) => cols / 256 * base_3::BYTES,
            (_, true) => cols / 256 * 66,
            _ => cols / 4,
        }
    }
}

struct Packing<const SCALED: bool, const CHOSEN: bool>;
type Plain = Packing<false, false>;
type Scaled = Packing<true, false>;

impl<const SCALED: bool, const CHOSEN: bool> Kind for Packing<SCALED, CHOSEN> {
    const SCALED: bool = SCALED;
    const CHOSEN: bool = CHOSEN;
}

struct Thirds<const CHOSEN: bool>;

impl<const CHOSEN: bool> Kind for Thirds<CHOSEN> {
    const SCALED: bool = true;
    const THIRDS: bool = true;
    const CHOSEN: bool = CHOSEN;
}

/// Whether unpacking rows once is faster than reading them in place; the results are the same.
fn sweep_pays(isa: Isa, task: &Task) -> bool {
    let (tokens, scaled) = (task.x.rows.len(), task.dtype.has_scaled_blocks());
    match isa {
        Isa::Scalar => false,
        _ if isa.has_neon() => tokens >= 4,
        // Rows that are read in place add up their lanes at each scale. I2_S does that once a row, which is faster
        // than unpacking.
        Isa::AvxVnni => tokens >= 5 && scaled,
        // `lanes` is faster for any number of tokens.
        _ if isa.has_avx512() => false,
        _ => tokens >= if scaled { 5 } else { 13 },
    }
}

mod scalar {
    use super::{Line, Scratch, Task, codes_of_row, grown, scale_of_block};
    use crate::kernels::DType;

    /// Unpacks each row once and multiplies it with all tokens.
    pub(super) fn run(task: &Task, scratch: &mut Scratch) {
        let cols = task.x.cols;
        let lines = grown(&mut scratch.codes, cols / size_of::<Line>());
        // SAFETY: a Line is 64 bytes without gaps.
        let codes = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), cols) };
        for row in 0..task.rows {
            let packed = task.row(row);
            codes_of_row(task.dtype, packed, codes, |code| code);
            for (t, token) in task.x.rows.iter().enumerate() {
                let x = task.x.row(t);
                let value = if task.dtype.has_scaled_blocks() {
                    dot_scaled(task.dtype, codes, packed, x, task.x.sums(t)) / token.scale
                } else {
                    (dot(codes, x) - token.sum) as f32 * (task.scale(row) / token.scale)
                };
                task.write(t, row, &[value]);
            }
        }
    }

    fn dot(codes: &[u8], x: &[i8]) -> i32 {
        codes.iter().zip(x).map(|(c, x)| *c as i32 * *x as i32).sum()
    }

    /// `Σ over blocks of (code · x - sum) * scale`, added in f32 block by block.
    fn dot_scaled(dtype: DType, codes: &[u8], packed: &[u8], x: &[i8], sums: &[i32]) -> f32 {
        let mut total = 0.0;
        let blocks = codes.chunks_exact(256).zip(x.chunks_exact(256));
        for (n, ((codes, x), sum)) in blocks.zip(sums).enumerate() {
            total += (dot(codes, x) - sum) as f32 * scale_of_block(dtype, packed, n);
        }
        total
    }
}
