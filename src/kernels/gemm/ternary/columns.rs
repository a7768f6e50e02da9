//! Products with a copy of a ternary matrix by columns, for activations with many zeros: columns that are multiplied
//! by zeros are not read. Integer sums are exact, so the bits are those of `matmul`.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use crate::base::{Result, reserved};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::formats::{codes_of_row, packed_row, row_scale};
use crate::kernels::gemm::tokens::{Activations, padded};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::ints::{IntRegister, Ints};
use crate::kernels::simd::lanes::Register;
use crate::kernels::{DType, Isa, Matrix, Pool};
use std::cell::RefCell;

/// Rows whose codes of one column fill a line: four in each byte.
const STRIPE: usize = 256;
/// Number of columns whose codes are multiplied before sums go to memory. The sums of `IntRegister::dot` hold sixteen
/// products of four columns.
const BLOCK: usize = 32;
/// Number of columns that are multiplied with all tokens before the next ones, so that they stay in the L2
/// cache.
const SPAN: usize = 2048;
/// Minimum number of columns of a task, whose sums are added to those of the others.
const LEAST: usize = 256;
/// Maximum number of tokens of a product.
pub const MOST_TOKENS: usize = 4;

/// The maximum percentage of nonzero activations for which that is faster, for one token, two and so on.
const MOST: [usize; MOST_TOKENS] = [45, 25, 18, 14];

/// A ternary matrix with one scale, or one for each row, by columns.
pub struct Columns {
    /// The stripes of each column. Byte `16 l + 4 j + m` of a stripe has the codes of rows `64 k + 16 j + 4 l + m`,
    /// for k from 0 to 3 from the low bits up.
    lines: Vec<Line>,
    /// One scale, or one for each row.
    scales: Vec<f32>,
    pub rows: usize,
    pub cols: usize,
}

impl Columns {
    /// Whether a matrix of this type can be copied by columns.
    pub fn takes(dtype: DType) -> bool {
        matches!(dtype, DType::I2S | DType::Ternary)
    }

    /// Bytes of the copy of a matrix of `rows` and `cols`.
    pub fn bytes(rows: usize, cols: usize) -> usize {
        rows.div_ceil(STRIPE) * size_of::<Line>() * padded(cols)
    }

    /// Copies a matrix whose type `takes` takes. `OutOfMemory`.
    pub fn new(pool: &Pool, m: &Matrix) -> Result<Self> {
        assert!(Self::takes(m.dtype), "{:?} by columns", m.dtype);
        let (stripes, cols) = (m.rows.div_ceil(STRIPE), padded(m.cols));
        let mut lines = Vec::new();
        let more = lines.try_reserve_exact(stripes * cols);
        reserved(more, "weights by columns", Self::bytes(m.rows, m.cols))?;
        lines.resize(stripes * cols, Line::default());
        let shared = SharedOut::new(&mut lines);
        pool.run(cols / 128, &|n| {
            // SAFETY: each task has columns of its own.
            let lines = unsafe { shared.slice(n * 128 * stripes..(n + 1) * 128 * stripes) };
            (0..m.rows).for_each(|row| copy_row(&packed_row(m, row)[32 * n..][..32], row, stripes, lines));
        });
        let scales = if m.dtype == DType::I2S { 1 } else { m.rows };
        Ok(Self { lines, scales: (0..scales).map(|row| row_scale(m, row)).collect(), rows: m.rows, cols })
    }

    /// Whether reading only the columns with nonzero activations is faster than reading the matrix.
    pub fn pays(&self, x: &Activations) -> bool {
        let chosen = || x.values.iter().filter(|x| **x != 0).count();
        let most = x.rows.len().checked_sub(1).and_then(|n| MOST.get(n));
        most.is_some_and(|most| 100 * chosen() <= most * x.values.len())
    }

    fn stripes(&self) -> usize {
        self.rows.div_ceil(STRIPE)
    }
}

/// The byte of a stripe that has the code of a row, and the code's first bit.
#[inline(always)]
fn place(row: usize) -> (usize, usize) {
    let row = row % STRIPE;
    (row % 16 / 4 * 16 + row % 64 / 16 * 4 + row % 4, row / 64 * 2)
}

/// Copies the codes of 128 columns of a row (layout in `formats`).
fn copy_row(packed: &[u8], row: usize, stripes: usize, lines: &mut [Line]) {
    let (byte, shift) = place(row);
    let mut codes = [0; 128];
    codes_of_row(DType::I2S, packed, &mut codes, |code| code << shift);
    let lines = lines[row / STRIPE..].iter_mut().step_by(stripes);
    lines.zip(codes).for_each(|(line, code)| line.0[byte] |= code);
}

/// Computes what `matmul` computes for the matrix that `columns` copies: `out` is `[tokens, rows]`. At most
/// `MOST_TOKENS` tokens.
pub fn matmul_columns(pool: &Pool, isa: Isa, x: &Activations, columns: &Columns, out: &mut [f32]) {
    let (tokens, cols, sums) = (x.rows.len(), columns.cols, columns.stripes() * STRIPE);
    assert!(tokens <= MOST_TOKENS && x.cols == cols && x.values.len() == tokens * cols);
    assert_eq!(out.len(), tokens * columns.rows, "a product is [tokens, rows]");
    // Each task has sums of its own. There are few tasks, because the sums of all are added up.
    let tasks = (2 * pool.threads()).min(cols.div_ceil(LEAST)).max(1);
    SUMS.with_borrow_mut(|all| {
        let all = grown(all, tasks * tokens * sums);
        let shared = SharedOut::new(all);
        let span = cols.div_ceil(4 * tasks) * 4;
        let task = |n: usize| {
            // SAFETY: each task has a part of its own.
            let own = unsafe { shared.slice(n * tokens * sums..(n + 1) * tokens * sums) };
            own.fill(0);
            for from in (n * span..cols.min((n + 1) * span)).step_by(SPAN) {
                let to = (from + SPAN).min(cols.min((n + 1) * span));
                for (t, own) in own.chunks_exact_mut(sums).enumerate() {
                    add(isa, columns, &Chosen::of(&x.row(t)[from..to], from), own);
                }
            }
        };
        pool.run_if_worth(tokens * columns.rows * cols / 8, tasks, &task);
        finish(isa, x, columns, all, out);
    });
}

/// The columns of a span with nonzero activations, and these activations, in fours.
struct Chosen {
    columns: [u32; SPAN],
    values: [i8; SPAN],
    /// A multiple of four. The last column may be repeated, with zeros.
    count: usize,
}

impl Chosen {
    #[inline(always)]
    fn of(x: &[i8], from: usize) -> Self {
        let mut chosen = Self { columns: [from as u32; SPAN], values: [0; SPAN], count: 0 };
        for (i, x) in x.iter().enumerate() {
            chosen.columns[chosen.count % SPAN] = (from + i) as u32;
            chosen.values[chosen.count % SPAN] = *x;
            chosen.count += usize::from(*x != 0);
        }
        let end = chosen.count.next_multiple_of(4);
        chosen.values[chosen.count..end].fill(0);
        chosen.count = end;
        chosen
    }
}

by_isa!(
    /// Adds the products of the chosen columns' codes to the sums of rows. The second and fourth code of a byte stay
    /// shifted by two bits, which saves shifts: their sums are four times too large.
    fn add(columns: &Columns, chosen: &Chosen, sums: &mut [i32]) = add_in::<ints>, add_scalar
);

fn add_scalar(columns: &Columns, chosen: &Chosen, sums: &mut [i32]) {
    let stripes = columns.stripes();
    for (column, x) in chosen.columns.iter().zip(chosen.values).take(chosen.count) {
        for (row, sum) in sums.iter_mut().enumerate() {
            let (byte, shift) = place(row);
            let code = columns.lines[*column as usize * stripes + row / STRIPE].0[byte] >> shift & 3;
            *sum += i32::from(code << (shift % 4)) * i32::from(x);
        }
    }
}

#[inline(always)]
unsafe fn add_in<I: Ints>(columns: &Columns, chosen: &Chosen, sums: &mut [i32]) {
    let stripes = columns.stripes();
    assert!(sums.len() == stripes * STRIPE && chosen.count <= SPAN && chosen.count.is_multiple_of(4));
    assert!(chosen.columns.iter().all(|column| (*column as usize) < columns.cols));
    assert!(columns.lines.len() == stripes * columns.cols);
    let at =
        |n: usize| columns.lines.as_ptr().wrapping_add(chosen.columns[n] as usize * stripes).cast::<u8>();
    for first in (0..chosen.count).step_by(BLOCK) {
        let end = (first + BLOCK).min(chosen.count);
        let mut ahead = end;
        for stripe in 0..stripes {
            // Each column is prefetched at once: memory is fastest when a page's lines are read in order.
            while ahead < chosen.count && (ahead - end) * stripes < (stripe + 1) * BLOCK {
                <I::Register as IntRegister>::Floats::fetch_lines(at(ahead), 64 * stripes);
                ahead += 1;
            }
            let sums = &mut sums[stripe * STRIPE..][..STRIPE];
            for piece in (0..64).step_by(4 * I::Register::ROWS) {
                // SAFETY: the caller has the instructions; the columns are within `lines`, as was checked.
                unsafe {
                    let from = |n: usize| at(n).add(64 * stripe + piece);
                    let sums = sums.as_mut_ptr().add(piece / 4);
                    match I::Register::REGISTERS {
                        32.. => add_piece::<I::Register, 4>(from, first..end, chosen, 0, sums),
                        _ => {
                            add_piece::<I::Register, 2>(from, first..end, chosen, 0, sums);
                            add_piece::<I::Register, 2>(from, first..end, chosen, 2, sums);
                        }
                    }
                }
            }
        }
    }
}

/// Adds the products of `PLANES` codes, from code `plane` on, of a register of each column to the sums of their rows.
#[inline(always)]
unsafe fn add_piece<P: IntRegister, const PLANES: usize>(
    from: impl Fn(usize) -> *const u8,
    columns: std::ops::Range<usize>,
    chosen: &Chosen,
    plane: usize,
    sums: *mut i32,
) {
    // SAFETY: the caller has the instructions, the bytes and the sums.
    unsafe {
        let at = |k: usize, j: usize| sums.add(64 * (plane + k) + 16 * j).cast::<u8>();
        let mut all = [[P::splat(0); 4]; PLANES];
        if !P::NARROW {
            for k in 0..PLANES {
                for j in 0..4 {
                    all[k][j] = P::load(at(k, j));
                }
            }
        }
        for n in columns.step_by(4) {
            let codes = P::quads([0, 1, 2, 3].map(|i| P::load(from(n + i))));
            let x = P::splat(chosen.values.as_ptr().add(n).cast::<i32>().read_unaligned());
            for k in 0..PLANES {
                for j in 0..4 {
                    let codes = match plane + k {
                        0 => codes[j].right::<0>(3),
                        1 => codes[j].right::<0>(12),
                        2 => codes[j].right::<4>(3),
                        _ => codes[j].right::<4>(12),
                    };
                    all[k][j] = all[k][j].dot(codes, x);
                }
            }
        }
        for k in 0..PLANES {
            for j in 0..4 {
                let sum = match P::NARROW {
                    true => P::load(at(k, j)).add(all[k][j], P::splat(P::ONE)),
                    false => all[k][j],
                };
                sum.store(at(k, j));
            }
        }
    }
}

by_isa!(
    /// Adds up the sums of all tasks, `[tasks, tokens, rows]`, and scales them.
    fn finish(x: &Activations, columns: &Columns, sums: &[i32], out: &mut [f32]) = finish_in
);

#[inline(always)]
fn finish_in(x: &Activations, columns: &Columns, sums: &[i32], out: &mut [f32]) {
    let (tokens, rows, width) = (x.rows.len(), columns.rows, columns.stripes() * STRIPE);
    for (t, out) in out.chunks_exact_mut(rows).enumerate() {
        let token = &x.rows[t];
        for (first, out) in (0..rows).step_by(STRIPE).zip(out.chunks_mut(STRIPE)) {
            let mut dots = [0; STRIPE];
            for sums in sums.chunks_exact(tokens * width) {
                let sums = &sums[t * width + first..][..STRIPE];
                dots.iter_mut().zip(sums).for_each(|(dot, sum)| *dot += sum);
            }
            for (n, dots) in dots.chunks_exact_mut(64).enumerate() {
                dots.iter_mut().for_each(|dot| *dot = (*dot >> (n % 2 * 2)) - token.sum);
            }
            let same = [columns.scales[0]; STRIPE];
            let scales = if columns.scales.len() == 1 { &same } else { &columns.scales[first..] };
            for ((out, dot), scale) in out.iter_mut().zip(dots).zip(scales) {
                *out = dot as f32 * (scale / token.scale);
            }
        }
    }
}

thread_local! {
    /// The sums of rows, in the thread that calls the product.
    static SUMS: RefCell<Vec<i32>> = RefCell::default();
}
