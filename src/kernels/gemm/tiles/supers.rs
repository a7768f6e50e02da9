//! K-quants: weights in super-blocks of 256 columns. `quantized::scalar` says what is computed.
//!
//! A code times its integer scale has 14 bits: seven low ones, and a signed rest, a byte each. So a block of sixteen rows and
//! sixteen tokens is twice four tiles' products, which become floats once. Minimums meet the tokens' sums likewise.

use super::{Machine, SIDE, in_groups, modelled};
use crate::kernels::gemm::quantized::{Scratch, Task};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::amx::Tiles;
use crate::kernels::{DType, Isa, Pool};

/// Bytes that tiles multiply.
pub const DEPTH: usize = 64;
/// Columns of a block, lines of one byte of each for sixteen rows or tokens.
const COLUMNS: usize = 256;
const LINES: usize = COLUMNS / DEPTH * SIDE;
/// What `Machine::decode_super` makes of a block of sixteen rows: high bytes, low bytes, minimums.
pub const CODE_LINES: usize = 2 * LINES + SIDE;
/// What is kept of a block of sixteen tokens: values, low and high bytes of sums, scales.
const TOKEN_LINES: usize = LINES + 9;
const LOW_SUMS: usize = LINES;
const HIGH_SUMS: usize = LINES + 4;
const SCALES: usize = LINES + 8;
/// Blocks whose codes all tokens sweep over before the next ones are decoded.
const SPAN: usize = 2;

/// Whether `isa` multiplies so many tokens with such weights with tiles. To decode takes as long as to multiply with 40
/// tokens: with fewer than these AVX-512 is as fast or faster (on an Emerald Rapids, weights from memory).
pub fn pays(isa: Isa, dtype: DType, tokens: usize) -> bool {
    let least = match dtype {
        DType::Q2_K | DType::Q3_K | DType::Q6_K => 24,
        DType::Q4_K | DType::Q5_K => 40,
        _ => return false,
    };
    isa == Isa::Amx && (modelled() || tokens >= least)
}

/// Lines that `arrange` fills, and some that tiles of sums may read besides.
pub fn arranged_lines(x: &BlockActivations) -> usize {
    x.tokens().div_ceil(SIDE) * (x.cols / COLUMNS) * TOKEN_LINES + SIDE
}

/// Copies activations, in blocks of 256, into the order of right tiles.
///
/// # Safety
/// `Isa::Amx` is available.
pub unsafe fn arrange(pool: &Pool, x: &BlockActivations, out: &mut [Line]) {
    let each = x.cols / COLUMNS * TOKEN_LINES;
    in_groups(pool, x, each, out, &|group, out| {
        // SAFETY: the caller's promise.
        unsafe { on_machine!(arrange_supers, arrange_group(x, group, out)) }
    });
}

/// `task` with any number of tokens.
///
/// # Safety
/// `Isa::Amx` is available, this thread has tiles of `DEPTH`, and `arrange` has made `arranged`.
pub unsafe fn run(task: &Task, arranged: &[Line], scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe { on_machine!(supers, product(task, arranged, scratch)) }
}

/// Of sixteen tokens `TOKEN_LINES` for each block. Missing tokens repeat the last.
#[inline(always)]
pub unsafe fn arrange_group<M: Machine>(x: &BlockActivations, group: usize, out: &mut [Line]) {
    let token = |t: usize| x.row((group * SIDE + t).min(x.tokens() - 1));
    let mut rows = [x.values.as_ptr(); SIDE];
    for (t, row) in rows.iter_mut().enumerate() {
        *row = token(t).0.as_ptr();
    }
    for (b, lines) in out.as_chunks_mut::<TOKEN_LINES>().0.iter_mut().enumerate() {
        for (n, lines) in lines[..LINES].as_chunks_mut::<4>().0.iter_mut().enumerate() {
            // SAFETY: 16 of a row's columns.
            unsafe { M::columns(&rows, COLUMNS * b + 16 * n, lines) };
        }
    }
    for t in 0..SIDE {
        let (_, scales, sums) = token(t);
        let blocks = out.as_chunks_mut::<TOKEN_LINES>().0.iter_mut();
        for ((lines, scale), sums) in blocks.zip(scales).zip(sums.as_chunks::<16>().0) {
            lines[SCALES].0[4 * t..4 * t + 4].copy_from_slice(&scale.to_ne_bytes());
            for (g, sum) in sums.iter().enumerate() {
                lines[LOW_SUMS + g / 4].0[4 * t + g % 4] = (sum & 127) as u8;
                lines[HIGH_SUMS + g / 4].0[4 * t + g % 4] = (sum >> 7) as u8;
            }
        }
    }
}

/// `task` with any number of tokens.
#[inline(always)]
pub unsafe fn product<M: Machine>(task: &Task, arranged: &[Line], scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe {
        match task.dtype {
            DType::Q3_K | DType::Q6_K => Sweep::<M, false>::new(task, arranged, scratch).all(),
            _ => Sweep::<M, true>::new(task, arranged, scratch).all(),
        }
    }
}

struct Sweep<'a, M: Machine, const MINIMUMS: bool> {
    task: &'a Task<'a>,
    tiles: M::Tiles,
    arranged: &'a [Line],
    blocks: usize,
    groups: usize,
    /// Of `SPAN` blocks what was made of sixteen rows, and tiles of their sums: of codes, then of minimums.
    codes: &'a mut [[Line; CODE_LINES]],
    sums: &'a mut [[[Line; SIDE]; 4]; SPAN],
    /// Of as many blocks the rows' scales and negated minimums.
    scales: &'a mut [[Line; 2]],
    /// Sums so far of sixteen rows with sixteen tokens each.
    partial: &'a mut [[Line; SIDE]],
}

impl<'a, M: Machine, const MINIMUMS: bool> Sweep<'a, M, MINIMUMS> {
    unsafe fn new(task: &'a Task<'a>, arranged: &'a [Line], scratch: &'a mut Scratch) -> Self {
        let (blocks, groups) = (task.x.cols / COLUMNS, task.x.tokens().div_ceil(SIDE));
        assert_eq!(task.row_bytes, blocks * task.dtype.block().1, "rows of whole blocks");
        assert_eq!(arranged.len(), arranged_lines(task.x), "tokens in order");
        let codes = SPAN * CODE_LINES;
        let (codes, sums) = grown(&mut scratch.codes, codes + SPAN * 4 * SIDE).split_at_mut(codes);
        let sums = sums.as_chunks_mut::<SIDE>().0.as_chunks_mut::<4>().0;
        Self {
            task,
            // SAFETY: the caller's promise.
            tiles: unsafe { M::Tiles::new(DEPTH) },
            arranged,
            blocks,
            groups,
            codes: codes.as_chunks_mut().0,
            sums: sums.first_chunk_mut().expect("as many"),
            scales: grown(&mut scratch.scales, 2 * SPAN).as_chunks_mut().0,
            partial: grown(&mut scratch.partial, groups * SIDE).as_chunks_mut().0,
        }
    }

    #[inline(always)]
    unsafe fn all(&mut self) {
        for first in (0..self.task.rows).step_by(SIDE) {
            let count = SIDE.min(self.task.rows - first);
            for start in (0..self.blocks).step_by(SPAN) {
                let depth = SPAN.min(self.blocks - start);
                // SAFETY (of all): the caller's promise.
                unsafe {
                    for b in 0..depth {
                        self.decode(first, count, start, b);
                    }
                    for group in 0..self.groups {
                        self.sweep(group, start, depth);
                    }
                }
            }
            for group in 0..self.groups {
                // SAFETY: the caller's promise.
                unsafe { self.finish(first, count, group) };
            }
        }
    }

    /// Block `start + b` of `count` rows; what others have is nothing. Asks memory for as much of the next rows.
    #[inline(always)]
    unsafe fn decode(&mut self, first: usize, count: usize, start: usize, b: usize) {
        let (dtype, row_bytes) = (self.task.dtype, self.task.row_bytes);
        let bytes = dtype.block().1;
        let rows = &self.task.packed[first * row_bytes..(first + count) * row_bytes];
        let at = rows.as_ptr().wrapping_add((start + b) * bytes);
        M::fetch(rows.as_ptr().wrapping_add(SIDE * (row_bytes + (start + b) * bytes)), SIDE * bytes);
        let (d, min) = match dtype {
            DType::Q2_K => (80, 82),
            DType::Q3_K => (108, 0),
            DType::Q6_K => (208, 0),
            _ => (0, 2),
        };
        let [scales, minimums] = &mut self.scales[b];
        // SAFETY (of all): a block of these rows; two bytes before all but the first of a block, behind which are codes.
        unsafe {
            M::decode_super(dtype, at, row_bytes, count, &mut self.codes[b]);
            let d = match d {
                0 => M::halves::<false>(at, row_bytes, count),
                _ => M::halves::<true>(at.add(d), row_bytes, count),
            };
            M::store(d, scales.0.as_mut_ptr().cast());
            if MINIMUMS {
                let min = M::halves::<true>(at.add(min), row_bytes, count);
                M::store(M::mul(min, M::splat(-1.0)), minimums.0.as_mut_ptr().cast());
            }
        }
    }

    /// Adds `depth` blocks from `start` on to the sums of a group of tokens.
    #[inline(always)]
    unsafe fn sweep(&mut self, group: usize, start: usize, depth: usize) {
        let from = (group * self.blocks + start) * TOKEN_LINES;
        // SAFETY (of all): the caller's promise; lines of this kernel's own.
        unsafe {
            for b in 0..depth {
                self.multiply(from + b * TOKEN_LINES, b);
            }
            let mut totals = [M::splat(0.0); SIDE];
            if start > 0 {
                for (total, line) in totals.iter_mut().zip(&self.partial[group]) {
                    *total = M::load(line.0.as_ptr().cast());
                }
            }
            for b in 0..depth {
                self.add(from + b * TOKEN_LINES, b, &mut totals);
            }
            for (total, line) in totals.iter().zip(&mut self.partial[group]) {
                M::store(*total, line.0.as_mut_ptr().cast());
            }
        }
    }

    /// The sums of block `b` of the span with the tokens' lines from `x` on.
    #[inline(always)]
    unsafe fn multiply(&mut self, x: usize, b: usize) {
        // Tiles of sums read past them, where left tiles have zeros.
        let x: *const u8 = self.arranged[x..][..HIGH_SUMS + SIDE].as_ptr().cast();
        let codes: *const u8 = self.codes[b].as_ptr().cast();
        let to: *mut u8 = self.sums[b].as_mut_ptr().cast();
        // SAFETY (of all): tiles of these lines.
        unsafe {
            self.tiles.zero::<0>();
            self.tiles.zero::<1>();
            for at in [0, 1024, 2048, 3072] {
                self.tiles.load::<6>(x.add(at), 64);
                self.tiles.load::<4>(codes.add(at), 64);
                self.tiles.dot_signed::<0, 4, 6>();
                self.tiles.load::<5>(codes.add(64 * LINES + at), 64);
                self.tiles.dot_signed::<1, 5, 6>();
            }
            if MINIMUMS {
                self.tiles.zero::<2>();
                self.tiles.zero::<3>();
                self.tiles.load::<4>(codes.add(128 * LINES), 64);
                self.tiles.load::<6>(x.add(64 * HIGH_SUMS), 64);
                self.tiles.dot_signed::<2, 4, 6>();
                self.tiles.load::<7>(x.add(64 * LOW_SUMS), 64);
                self.tiles.dot_signed::<3, 4, 7>();
            }
            self.tiles.store::<0>(to, 64);
            self.tiles.store::<1>(to.add(1024), 64);
            if MINIMUMS {
                self.tiles.store::<2>(to.add(2048), 64);
                self.tiles.store::<3>(to.add(3072), 64);
            }
        }
    }

    /// Adds them, times the scales.
    #[inline(always)]
    unsafe fn add(&self, x: usize, b: usize, totals: &mut [M::Floats; SIDE]) {
        let [scales, minimums] = &self.scales[b];
        let (scales, minimums): (*const f32, *const f32) =
            (scales.0.as_ptr().cast(), minimums.0.as_ptr().cast());
        let sums = self.sums[b].each_ref().map(|tile| tile.as_ptr().cast::<i32>());
        // SAFETY (of all): a line is sixteen numbers.
        unsafe {
            let own = M::load(self.arranged[x + SCALES].0.as_ptr().cast());
            for (r, total) in totals.iter_mut().enumerate() {
                let dots = M::load_split(sums[0].add(SIDE * r), sums[1].add(SIDE * r));
                *total = M::fma(dots, M::mul(M::splat(*scales.add(r)), own), *total);
                if MINIMUMS {
                    let lows = M::load_split(sums[2].add(SIDE * r), sums[3].add(SIDE * r));
                    *total = M::fma(lows, M::mul(M::splat(*minimums.add(r)), own), *total);
                }
            }
        }
    }

    /// Writes the outputs of sixteen tokens for `count` rows from `first` on.
    #[inline(always)]
    unsafe fn finish(&mut self, first: usize, count: usize, group: usize) {
        // SAFETY: a line is sixteen floats.
        unsafe {
            let mut values = [M::splat(0.0); SIDE];
            for (value, line) in values.iter_mut().zip(&self.partial[group]) {
                *value = M::load(line.0.as_ptr().cast());
            }
            let columns = M::transpose(values);
            for (t, column) in columns.into_iter().enumerate().take(self.task.x.tokens() - SIDE * group) {
                let mut values = [0.0; SIDE];
                M::store(column, values.as_mut_ptr());
                match count {
                    SIDE => self.task.write(SIDE * group + t, first, &values),
                    _ => self.task.write(SIDE * group + t, first, &values[..count]),
                }
            }
        }
    }
}
