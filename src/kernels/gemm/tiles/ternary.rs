//! Ternary weights. `ternary::scalar` says what is computed.
//!
//! 256 columns are a step: 64 packed bytes of a row are unpacked to four lines, one for each place of a code in its
//! byte, and the activations lie in that order. The next step's codes are unpacked while this one's are multiplied, into
//! other lines: what was just stored is no tile yet. Up to 32 tokens keep their sums in tiles from end to end of a row;
//! more sweep over a few steps at a time, whose codes stay in the first cache.

use super::{Machine, SIDE, modelled, on_machine};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::ternary::{Activations, Scratch, Task};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::amx::Tiles;
use crate::kernels::{DType, Isa, Pool};

/// Columns of a step, their packed bytes, and lines of sixteen rows of codes or tokens.
const STEP: usize = 256;
const BYTES: usize = STEP / 4;
const LINES: usize = STEP / 64 * SIDE;
/// Steps that many tokens sweep over together.
const SPAN: usize = 2;
/// Steps whose codes there is room for: those, or one and the next.
const RING: usize = 2;
/// Fewer activations than this are arranged faster than others are woken.
const SMALL: usize = 1 << 17;

/// Bytes that tiles multiply.
pub const DEPTH: usize = 64;

/// Lines that `arrange` fills.
pub fn arranged_lines(x: &Activations) -> usize {
    x.rows.len().div_ceil(SIDE) * x.cols.div_ceil(STEP) * LINES
}

/// From this many tokens on tiles are faster.
const TOKENS: usize = 8;

/// Whether `isa` multiplies so many tokens with tiles.
pub fn pays(isa: Isa, tokens: usize) -> bool {
    isa == Isa::Amx && (tokens >= TOKENS || modelled())
}

/// Copies activations into the order of right tiles.
///
/// # Safety
/// `Isa::Amx` is available.
pub unsafe fn arrange(pool: &Pool, x: &Activations, out: &mut [Line]) {
    let groups = x.rows.len().div_ceil(SIDE);
    let each = out.len() / groups;
    let shared = SharedOut::new(out);
    let one = |group: usize| {
        // SAFETY: each task has lines of its own; the caller's promise.
        unsafe { on_machine!(arrange_ternary, arrange_group(x, group, shared.slice(group * each..(group + 1) * each))) }
    };
    if x.values.len() < SMALL { (0..groups).for_each(one) } else { pool.run(groups, &one) }
}

/// `task` with any number of tokens.
///
/// # Safety
/// `Isa::Amx` is available, this thread has tiles of `DEPTH`, and `arrange` has made `task.arranged`.
pub unsafe fn run(task: &Task, scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe { on_machine!(ternary, product(task, scratch)) }
}

/// Of sixteen tokens four tiles for each step. Row `j` of tile `k` has columns `32 k + 4 j ..` of the step's first half
/// where j < 8, else of its second one. What is missing of a step is zeros; missing tokens repeat the last.
#[inline(always)]
pub unsafe fn arrange_group<M: Machine>(x: &Activations, group: usize, out: &mut [Line]) {
    let mut rows = [x.row(0).as_ptr(); SIDE];
    for (t, row) in rows.iter_mut().enumerate() {
        *row = x.row((group * SIDE + t).min(x.rows.len() - 1)).as_ptr();
    }
    if !x.cols.is_multiple_of(STEP) {
        let each = out.len();
        out[each - LINES..].fill(Line::default());
    }
    for at in (0..x.cols).step_by(16) {
        let (step, half, k, j) = (at / STEP, at % STEP / 128, at % 128 / 32, at % 32 / 4);
        let to = out[step * LINES + k * SIDE + half * 8 + j..].first_chunk_mut().expect("four lines");
        // SAFETY: 16 of a row's columns at `at`.
        unsafe { M::columns(&rows, at, to) };
    }
}

/// `task` with any number of tokens.
#[inline(always)]
pub unsafe fn product<M: Machine>(task: &Task, scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut tiles = M::Tiles::new(DEPTH);
        if task.weights.dtype == DType::TQ2_0 {
            Sweep::<M, true>::new(task, scratch, &mut tiles).all();
        } else {
            Sweep::<M, false>::new(task, scratch, &mut tiles).all();
        }
    }
}

/// 16 rows of 16 sums.
type Sums = [Line; SIDE];

struct Sweep<'a, M: Machine, const SCALED: bool> {
    task: &'a Task<'a>,
    tiles: &'a mut M::Tiles,
    steps: usize,
    /// Of `RING` steps the codes of two times sixteen rows.
    codes: &'a mut [[Line; LINES]],
    /// Of twice as many steps, the last ones, the scales of these rows, of TQ2_0.
    scales: &'a mut [[f32; SIDE]],
    /// For each sixteen tokens their scales, and what their sums of each step, or of all, begin with.
    tokens: &'a mut [Line],
    /// For each sixteen tokens and sixteen rows the sums so far: of TQ2_0 floats.
    partial: &'a mut [Sums],
}

impl<'a, M: Machine, const SCALED: bool> Sweep<'a, M, SCALED> {
    unsafe fn new(task: &'a Task<'a>, scratch: &'a mut Scratch, tiles: &'a mut M::Tiles) -> Self {
        let groups = task.x.rows.len().div_ceil(SIDE);
        let steps = task.x.cols.div_ceil(STEP);
        let starts = if SCALED { steps } else { 1 };
        let codes = RING * 2 * LINES;
        let tokens = groups * (1 + starts);
        // Two more for the sums of one step.
        let partial = (2 * groups.next_multiple_of(2) + 8) * SIDE;
        let lines = grown(&mut scratch.codes, codes + tokens + partial);
        let (codes, rest) = lines.split_at_mut(codes);
        let (tokens, partial) = rest.split_at_mut(tokens);
        for (t, of_group) in tokens.chunks_exact_mut(1 + starts).enumerate() {
            for i in 0..SIDE {
                let token = (SIDE * t + i).min(task.x.rows.len() - 1);
                let row = task.x.rows[token];
                put(&mut of_group[0], i, row.scale.to_ne_bytes());
                if SCALED {
                    for (line, sum) in of_group[1..].iter_mut().zip(task.sums(token)) {
                        put(line, i, (-sum).to_ne_bytes());
                    }
                } else {
                    put(&mut of_group[1], i, (-row.sum).to_ne_bytes());
                }
            }
        }
        Self {
            task,
            tiles,
            steps,
            codes: codes.as_chunks_mut().0,
            scales: grown(&mut scratch.scales, 4 * RING),
            tokens,
            partial: partial.as_chunks_mut().0,
        }
    }

    #[inline(always)]
    unsafe fn all(&mut self) {
        let rows = self.task.block.rows.clone();
        for first in rows.clone().step_by(2 * SIDE) {
            // SAFETY: the caller's promise.
            unsafe {
                match rows.end - first {
                    0..=SIDE => self.rows::<1>(first, rows.end - first),
                    left => self.rows::<2>(first, left.min(2 * SIDE)),
                }
            }
        }
    }

    /// `R` times sixteen rows from `first` on, of which there are `count`, and all tokens.
    #[inline(always)]
    unsafe fn rows<const R: usize>(&mut self, first: usize, count: usize) {
        let groups = self.task.x.rows.len().div_ceil(SIDE);
        // SAFETY (of all): the caller's promise.
        unsafe {
            match groups {
                1 => self.along::<R, 1>(first, count),
                2 => self.along::<R, 2>(first, count),
                _ => self.across::<R>(first, count, groups),
            }
            for group in 0..groups {
                for r in 0..R {
                    self.finish(first + SIDE * r, SIDE.min(count - SIDE * r), group, r);
                }
            }
        }
    }

    /// `N` times sixteen tokens, step after step.
    #[inline(always)]
    unsafe fn along<const R: usize, const N: usize>(&mut self, first: usize, count: usize) {
        // SAFETY (of all): the caller's promise.
        unsafe {
            self.unpack::<R>(first, count, 0);
            if !SCALED {
                self.clear::<R, N>(0, 1);
            }
            for step in 0..self.steps {
                if step + 1 < self.steps {
                    self.unpack::<R>(first, count, step + 1);
                }
                self.step::<R, N>(0, step);
                if SCALED && step > 0 {
                    self.add::<R, N>(0, step - 1);
                }
            }
            match SCALED {
                true => self.add::<R, N>(0, self.steps - 1),
                false => self.keep::<R, N>(0),
            }
        }
    }

    /// All tokens, `SPAN` steps at a time.
    #[inline(always)]
    unsafe fn across<const R: usize>(&mut self, first: usize, count: usize, groups: usize) {
        for start in (0..self.steps).step_by(SPAN) {
            let end = self.steps.min(start + SPAN);
            // SAFETY (of all): the caller's promise.
            unsafe {
                for step in start..end {
                    self.unpack::<R>(first, count, step);
                }
                for group in (0..groups).step_by(2) {
                    match groups - group {
                        1 => self.sweep::<R, 1>(group, start, end),
                        _ => self.sweep::<R, 2>(group, start, end),
                    }
                }
            }
        }
    }

    /// Steps `start..end` of the rows with `N` times sixteen tokens.
    #[inline(always)]
    unsafe fn sweep<const R: usize, const N: usize>(&mut self, group: usize, start: usize, end: usize) {
        // SAFETY (of all): the caller's promise.
        unsafe {
            if !SCALED {
                self.begin::<R, N>(group, start);
            }
            for step in start..end {
                self.step::<R, N>(group, step);
                if SCALED && step > start {
                    self.add::<R, N>(group, step - 1);
                }
            }
            match SCALED {
                true => self.add::<R, N>(group, end - 1),
                false => self.keep::<R, N>(2 * group),
            }
        }
    }

    /// Multiplies the codes of step `step`. Of TQ2_0 these sums are for `add`.
    #[inline(always)]
    unsafe fn step<const R: usize, const N: usize>(&mut self, group: usize, step: usize) {
        // SAFETY (of all): the caller's promise.
        unsafe {
            if SCALED {
                self.clear::<R, N>(group, 1 + step);
            }
            self.multiply::<R, N>(group, step);
            if SCALED {
                self.keep::<R, N>(self.partial.len() - 4 * (1 + step % 2));
            }
        }
    }

    /// Codes of step `step` of `count` rows from `first` on; those of others are nothing.
    #[inline(always)]
    unsafe fn unpack<const R: usize>(&mut self, first: usize, count: usize, step: usize) {
        let weights = &self.task.weights;
        let row_bytes = weights.stride;
        let at = step * if SCALED { BYTES + 2 } else { BYTES };
        let len = BYTES.min(row_bytes - at);
        let whole = weights.row(first).as_ptr();
        let _ = weights.row(first + count - 1);
        let base = whole.wrapping_add(at);
        let slot = step % RING * 2;
        M::fetch(whole.wrapping_add(R * SIDE * (row_bytes + at)), R * SIDE * BYTES);
        for r in 0..R {
            let lines = self.codes[slot + r].as_mut_ptr();
            for i in 0..SIDE.min(count - SIDE * r) {
                // SAFETY: within the row that was looked up, and lines of this step's.
                unsafe {
                    let from = base.add((SIDE * r + i) * row_bytes);
                    if SCALED {
                        M::planes::<false>(from, BYTES, lines.add(i));
                    } else {
                        M::planes::<true>(from, len, lines.add(i));
                    }
                }
            }
            if SCALED {
                let to = self.scales[step % (2 * RING) * 2 + r].as_mut_ptr();
                let from = base.wrapping_add(SIDE * r * row_bytes + BYTES);
                // SAFETY: two bytes behind the codes of each row, and codes before them; sixteen floats.
                unsafe { M::store(M::halves::<true>(from, row_bytes, SIDE.min(count - SIDE * r)), to) };
            }
        }
    }

    /// Loads the sums so far.
    #[inline(always)]
    unsafe fn begin<const R: usize, const N: usize>(&mut self, group: usize, start: usize) {
        if start == 0 {
            return unsafe { self.clear::<R, N>(group, 1) };
        }
        let from = self.partial[2 * group..].as_ptr().cast::<u8>();
        unsafe {
            self.tiles.load::<0>(from, 64);
            if N == 2 {
                self.tiles.load::<1>(from.add(1024), 64);
            }
            if R == 2 {
                self.tiles.load::<2>(from.add(2048), 64);
            }
            if R == 2 && N == 2 {
                self.tiles.load::<3>(from.add(3072), 64);
            }
        }
    }

    /// Sets sums to what line `line` of the tokens' says.
    #[inline(always)]
    unsafe fn clear<const R: usize, const N: usize>(&mut self, group: usize, line: usize) {
        let each = if SCALED { 1 + self.steps } else { 2 };
        let a = self.tokens[group * each + line].0.as_ptr();
        unsafe {
            self.tiles.load::<0>(a, 0);
            if R == 2 {
                self.tiles.load::<2>(a, 0);
            }
            if N == 2 {
                let b = self.tokens[(group + 1) * each + line].0.as_ptr();
                self.tiles.load::<1>(b, 0);
                if R == 2 {
                    self.tiles.load::<3>(b, 0);
                }
            }
        }
    }

    /// Stores sums from `partial[at]` on: of the first sixteen rows and the tokens, then of the others.
    #[inline(always)]
    unsafe fn keep<const R: usize, const N: usize>(&mut self, at: usize) {
        let to = self.partial[at..at + 4].as_mut_ptr().cast::<u8>();
        unsafe {
            self.tiles.store::<0>(to, 64);
            if N == 2 {
                self.tiles.store::<1>(to.add(1024), 64);
            }
            if R == 2 {
                self.tiles.store::<2>(to.add(2048), 64);
            }
            if R == 2 && N == 2 {
                self.tiles.store::<3>(to.add(3072), 64);
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<const R: usize, const N: usize>(&mut self, group: usize, step: usize) {
        let slot = step % RING * 2;
        let a: *const u8 = self.codes[slot..slot + 2].as_ptr().cast();
        let own = (group * self.steps + step) * LINES;
        let b: *const u8 = self.task.arranged[own..own + LINES].as_ptr().cast();
        let next = if N == 2 { own + self.steps * LINES } else { own };
        let c: *const u8 = self.task.arranged[next..next + LINES].as_ptr().cast();
        for k in 0..4 {
            let at = 1024 * k;
            unsafe {
                self.tiles.load::<4>(a.add(at), 64);
                self.tiles.load::<6>(b.add(at), 64);
                self.tiles.dot_unsigned::<0, 4, 6>();
                if R == 2 {
                    self.tiles.load::<5>(a.add(4096 + at), 64);
                    self.tiles.dot_unsigned::<2, 5, 6>();
                }
                if N == 2 {
                    self.tiles.load::<7>(c.add(at), 64);
                    self.tiles.dot_unsigned::<1, 4, 7>();
                }
                if R == 2 && N == 2 {
                    self.tiles.dot_unsigned::<3, 5, 7>();
                }
            }
        }
    }

    /// Adds the sums of step `step`, times its scales.
    #[inline(always)]
    unsafe fn add<const R: usize, const N: usize>(&mut self, group: usize, step: usize) {
        let own = self.partial.len() - 4 * (1 + step % 2);
        let (totals, sums) = self.partial.split_at_mut(own);
        for r in 0..R {
            let scales = &self.scales[step % (2 * RING) * 2 + r];
            for n in 0..N {
                let totals: *mut f32 = totals[2 * group + 2 * r + n].as_mut_ptr().cast();
                let sums: *const i32 = sums[2 * r + n].as_ptr().cast();
                for (i, scale) in scales.iter().enumerate() {
                    unsafe {
                        let value = M::mul(M::load_i32(sums.add(SIDE * i)), M::splat(*scale));
                        let total = totals.add(SIDE * i);
                        let before = if step == 0 { M::splat(0.0) } else { M::load(total) };
                        M::store(M::add(before, value), total);
                    }
                }
            }
        }
    }

    /// Writes the outputs of sixteen tokens for `count` rows from `first` on, the `r`th sixteen.
    #[inline(always)]
    unsafe fn finish(&mut self, first: usize, count: usize, group: usize, r: usize) {
        let (x, weights) = (self.task.x, &self.task.weights);
        let each = if SCALED { 1 + self.steps } else { 2 };
        let sums = self.partial[group / 2 * 4 + 2 * r + group % 2].as_ptr();
        unsafe {
            let own = M::load(self.tokens[group * each].0.as_ptr().cast());
            let mut values = [M::splat(0.0); SIDE];
            let mut scale = own;
            for (i, value) in values.iter_mut().enumerate() {
                let sums = sums.add(i);
                if SCALED {
                    *value = M::div(M::load(sums.cast()), own);
                    continue;
                }
                if i == 0 || weights.dtype == DType::Ternary {
                    scale = M::div(M::splat(weights.scale(first + i.min(count - 1))), own);
                }
                *value = M::mul(M::load_i32(sums.cast()), scale);
            }
            let columns = M::transpose(values);
            for (t, column) in columns.into_iter().enumerate().take(x.rows.len() - SIDE * group) {
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

fn put(line: &mut Line, i: usize, bytes: [u8; 4]) {
    line.0[4 * i..4 * i + 4].copy_from_slice(&bytes);
}
