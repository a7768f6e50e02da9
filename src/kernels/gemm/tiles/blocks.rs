//! Weights with a scale for each 32 columns. `quantized::scalar` says what is computed.
//!
//! A block is a step: a tile of its codes, one of the tokens' values, a tile of sums, which become floats and are added
//! to those of the blocks before, times both scales. Sixteen rows and sixteen tokens stay in registers meanwhile.

use super::{Machine, SIDE, in_groups, modelled};
use crate::kernels::gemm::quantized::{Scratch, Task};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::amx::Tiles;
use crate::kernels::{DType, Isa, Pool};

/// Bytes that tiles multiply: a block.
pub const DEPTH: usize = 32;
/// Lines of codes of a block of sixteen rows, and of values of sixteen tokens.
const CODES: usize = SIDE * DEPTH / 64;
/// What is kept of a block of sixteen tokens: values, scales, and scales times sums.
const TOKEN_LINES: usize = CODES + 2;
/// Blocks whose codes are swept over by all tokens before the next ones are decoded.
const SPAN: usize = 32;
/// So many blocks behind its multiplication a block's sums are stored, and added: both would wait.
const STORED: usize = 2;
const ADDED: usize = 3;
/// Tiles of sums that there are, and room for.
const RING: usize = 4;

/// Whether `isa` multiplies so many tokens with such weights with tiles. Few tokens take as long as sixteen, and a few
/// more than sixteen as long as 32: with the first numbers below tiles are 1.0 to 1.1 times as fast as AVX-512 (on an
/// Emerald Rapids, weights from memory).
pub fn pays(isa: Isa, dtype: DType, tokens: usize) -> bool {
    let (one, two) = match dtype {
        DType::Q8_0 => (8, 17),
        DType::Q4_0 | DType::Q5_0 | DType::Q5_1 => (12, 20),
        DType::Q1_0 | DType::Q2_0 | DType::Q2_0_128 => (14, 24),
        DType::Q4_1 => (12, 24),
        _ => return false,
    };
    isa == Isa::Amx && (modelled() || (one..=SIDE).contains(&tokens) || tokens >= two)
}

/// Lines that `arrange` fills.
pub fn arranged_lines(x: &BlockActivations) -> usize {
    x.tokens().div_ceil(SIDE) * (x.cols / DEPTH) * TOKEN_LINES
}

/// Copies activations, in blocks of 32, into the order of right tiles.
///
/// # Safety
/// `Isa::Amx` is available.
pub unsafe fn arrange(pool: &Pool, x: &BlockActivations, out: &mut [Line]) {
    let each = x.cols / DEPTH * TOKEN_LINES;
    in_groups(pool, x, each, out, &|group, out| {
        // SAFETY: the caller's promise.
        unsafe { on_machine!(arrange_blocks, arrange_group(x, group, out)) }
    });
}

/// `task` with any number of tokens.
///
/// # Safety
/// `Isa::Amx` is available, this thread has tiles of `DEPTH`, and `arrange` has made `arranged`.
pub unsafe fn run(task: &Task, arranged: &[Line], scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe { on_machine!(blocks, product(task, arranged, scratch)) }
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
        let (low, rest) = lines.split_first_chunk_mut().expect("four lines");
        let (high, _) = rest.split_first_chunk_mut().expect("four lines");
        // SAFETY: 32 of a row's columns.
        unsafe {
            M::columns(&rows, 32 * b, low);
            M::columns(&rows, 32 * b + 16, high);
        }
    }
    for t in 0..SIDE {
        let (_, scales, sums) = token(t);
        for ((lines, scale), sum) in out.as_chunks_mut::<TOKEN_LINES>().0.iter_mut().zip(scales).zip(sums) {
            let at = 4 * t..4 * t + 4;
            lines[CODES].0[at.clone()].copy_from_slice(&scale.to_ne_bytes());
            lines[CODES + 1].0[at].copy_from_slice(&(scale * *sum as f32).to_ne_bytes());
        }
    }
}

/// `task` with any number of tokens.
#[inline(always)]
pub unsafe fn product<M: Machine>(task: &Task, arranged: &[Line], scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe {
        match task.dtype {
            DType::Q4_1 | DType::Q5_1 => Sweep::<M, true>::new(task, arranged, scratch).all(),
            _ => Sweep::<M, false>::new(task, arranged, scratch).all(),
        }
    }
}

struct Sweep<'a, M: Machine, const MINIMUMS: bool> {
    task: &'a Task<'a>,
    tiles: M::Tiles,
    arranged: &'a [Line],
    /// Of 32 columns of each row and column of tokens, and of those in a block of the type.
    blocks: usize,
    of_block: usize,
    groups: usize,
    /// Of `SPAN` blocks the codes of sixteen rows, then `RING` tiles of sums.
    codes: &'a mut [Line],
    sums: &'a mut [[Line; SIDE]; RING],
    /// Of as many blocks the rows' scales and minimums.
    scales: &'a mut [[Line; 2]],
    /// Sums so far of sixteen rows with sixteen tokens each.
    partial: &'a mut [[Line; SIDE]],
}

/// Blocks that are swept over together.
struct Span {
    /// The first row's first one.
    base: *const u8,
    /// Rows, of sixteen.
    count: usize,
    start: usize,
    depth: usize,
}

/// Where left tiles are: that of a block, the way to the next one's, and from row to row.
#[derive(Clone, Copy)]
struct Left {
    at: *const u8,
    block: usize,
    row: usize,
}

impl<'a, M: Machine, const MINIMUMS: bool> Sweep<'a, M, MINIMUMS> {
    unsafe fn new(task: &'a Task<'a>, arranged: &'a [Line], scratch: &'a mut Scratch) -> Self {
        let (blocks, groups) = (task.x.cols / DEPTH, task.x.tokens().div_ceil(SIDE));
        let (elements, bytes) = task.dtype.block();
        let of_block = elements / DEPTH;
        assert_eq!(task.row_bytes, blocks / of_block * bytes, "rows of whole blocks");
        assert_eq!(arranged.len(), blocks * groups * TOKEN_LINES, "tokens in order");
        let (codes, sums) = grown(&mut scratch.codes, SPAN * CODES + RING * SIDE).split_at_mut(SPAN * CODES);
        Self {
            task,
            // SAFETY: the caller's promise.
            tiles: unsafe { M::Tiles::new(DEPTH) },
            arranged,
            blocks,
            of_block,
            groups,
            codes,
            sums: sums.as_chunks_mut().0.first_chunk_mut().expect("as many"),
            scales: grown(&mut scratch.scales, 2 * SPAN).as_chunks_mut().0,
            partial: grown(&mut scratch.partial, groups * SIDE).as_chunks_mut().0,
        }
    }

    #[inline(always)]
    unsafe fn all(&mut self) {
        let (row_bytes, bytes) = (self.task.row_bytes, self.task.dtype.block().1);
        for first in (0..self.task.rows).step_by(SIDE) {
            let count = SIDE.min(self.task.rows - first);
            let rows = &self.task.packed[first * row_bytes..(first + count) * row_bytes];
            for start in (0..self.blocks).step_by(SPAN) {
                let base = rows.as_ptr().wrapping_add(start / self.of_block * bytes);
                let span = Span { base, count, start, depth: SPAN.min(self.blocks - start) };
                // SAFETY: the caller's promise.
                unsafe {
                    let left = self.decode(base, count, span.depth);
                    for group in 0..self.groups {
                        self.sweep(&span, left, group);
                    }
                }
            }
            for group in 0..self.groups {
                // SAFETY: the caller's promise.
                unsafe { self.finish(first, count, group) };
            }
        }
    }

    /// The codes of `depth` blocks from `base` on of `count` rows; those of others are nothing.
    #[inline(always)]
    unsafe fn decode(&mut self, base: *const u8, count: usize, depth: usize) -> Left {
        let (dtype, row_bytes) = (self.task.dtype, self.task.row_bytes);
        if dtype == DType::Q8_0 && count == SIDE && self.groups <= 2 {
            return Left { at: base.wrapping_add(2), block: dtype.block().1, row: row_bytes };
        }
        // SAFETY: the caller's promise; there is room for `SPAN` blocks.
        unsafe { M::decode(dtype, base, row_bytes, count, depth, self.codes.as_mut_ptr().cast()) };
        Left { at: self.codes.as_ptr().cast(), block: SIDE * DEPTH, row: DEPTH }
    }

    /// The scales of the `b`th block from `base` on. Asks memory for as much of the next rows, which lie behind these.
    #[inline(always)]
    unsafe fn scales(&mut self, base: *const u8, count: usize, start: usize, b: usize) {
        let (row_bytes, bytes) = (self.task.row_bytes, self.task.dtype.block().1);
        if !b.is_multiple_of(self.of_block) {
            self.scales[b] = self.scales[b - 1];
            return;
        }
        let at = base.wrapping_add(b / self.of_block * bytes);
        let before = (start + b) / self.of_block * bytes;
        M::fetch(at.wrapping_add(SIDE * row_bytes + (SIDE - 1) * before), SIDE * bytes);
        let [scales, minimums] = &mut self.scales[b];
        // SAFETY: a block of these rows, which begins with its scale.
        unsafe {
            M::store(M::halves::<false>(at, row_bytes, count), scales.0.as_mut_ptr().cast());
            if MINIMUMS {
                M::store(M::halves::<false>(at.add(2), row_bytes, count), minimums.0.as_mut_ptr().cast());
            }
        }
    }

    /// Adds `depth` blocks from `start` on to the sums of a group of tokens. The `first` group finds out the scales.
    #[inline(always)]
    unsafe fn sweep(&mut self, span: &Span, left: Left, group: usize) {
        let lines = &self.arranged[(group * self.blocks + span.start) * TOKEN_LINES..];
        let x = &lines.as_chunks::<TOKEN_LINES>().0[..span.depth];
        // SAFETY (of all): the caller's promise; lines of this kernel's own.
        unsafe {
            let mut totals = [M::splat(0.0); SIDE];
            if span.start > 0 {
                for (total, line) in totals.iter_mut().zip(&self.partial[group]) {
                    *total = M::load(line.0.as_ptr().cast());
                }
            }
            for b in (0..span.depth + ADDED).step_by(4) {
                self.turn::<0>(span, left, group, x, b, &mut totals);
                self.turn::<1>(span, left, group, x, b + 1, &mut totals);
                self.turn::<2>(span, left, group, x, b + 2, &mut totals);
                self.turn::<3>(span, left, group, x, b + 3, &mut totals);
            }
            for (total, line) in totals.iter().zip(&mut self.partial[group]) {
                M::store(*total, line.0.as_mut_ptr().cast());
            }
        }
    }

    /// Multiplies block `b` of the span, whose number is `P` but for multiples of four, stores sums and adds sums.
    #[inline(always)]
    unsafe fn turn<const P: usize>(
        &mut self,
        span: &Span,
        left: Left,
        group: usize,
        x: &[[Line; TOKEN_LINES]],
        b: usize,
        totals: &mut [M::Floats; SIDE],
    ) {
        // SAFETY (of all): the caller's promise.
        unsafe {
            if let Some(x) = x.get(b) {
                if group == 0 {
                    self.scales(span.base, span.count, span.start, b);
                }
                self.multiply::<P>(left.at.wrapping_add(b * left.block), left.row, x);
            }
            if b >= STORED && b < x.len() + STORED {
                self.keep::<P>((b - STORED) % RING);
            }
            if let Some(x) = b.checked_sub(ADDED).and_then(|b| x.get(b)) {
                self.add(x, b - ADDED, totals);
            }
        }
    }

    /// To tile `P`.
    #[inline(always)]
    unsafe fn multiply<const P: usize>(&mut self, a: *const u8, row: usize, x: &[Line; TOKEN_LINES]) {
        let x: *const u8 = x.as_ptr().cast();
        // SAFETY (of all): a tile each.
        unsafe {
            self.tiles.zero::<P>();
            if P.is_multiple_of(2) {
                self.tiles.load::<4>(a, row);
                self.tiles.load::<6>(x, 64);
                self.tiles.dot_signed::<P, 4, 6>();
            } else {
                self.tiles.load::<5>(a, row);
                self.tiles.load::<7>(x, 64);
                self.tiles.dot_signed::<P, 5, 7>();
            }
        }
    }

    /// Stores the sums of `STORED` blocks before the one whose tile is `P`.
    #[inline(always)]
    unsafe fn keep<const P: usize>(&mut self, slot: usize) {
        let to = self.sums[slot].as_mut_ptr().cast();
        // SAFETY: room for a tile.
        unsafe {
            match P {
                0 => self.tiles.store::<2>(to, 64),
                1 => self.tiles.store::<3>(to, 64),
                2 => self.tiles.store::<0>(to, 64),
                _ => self.tiles.store::<1>(to, 64),
            }
        }
    }

    /// Adds the sums of block `b`, times the scales.
    #[inline(always)]
    unsafe fn add(&self, x: &[Line; TOKEN_LINES], b: usize, totals: &mut [M::Floats; SIDE]) {
        let [scales, minimums] = &self.scales[b];
        let (scales, minimums): (*const f32, *const f32) =
            (scales.0.as_ptr().cast(), minimums.0.as_ptr().cast());
        // SAFETY (of all): a line is sixteen numbers.
        unsafe {
            let own = M::load(x[CODES].0.as_ptr().cast());
            for (r, total) in totals.iter_mut().enumerate() {
                let dots = M::load_i32(self.sums[b % RING][r].0.as_ptr().cast());
                *total = M::fma(dots, M::mul(M::splat(*scales.add(r)), own), *total);
            }
            if MINIMUMS {
                let own = M::load(x[CODES + 1].0.as_ptr().cast());
                for (r, total) in totals.iter_mut().enumerate() {
                    *total = M::fma(M::splat(*minimums.add(r)), own, *total);
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
