//! Ternary weights. `ternary::scalar` says what is computed.
//!
//! 256 columns are a step: 64 packed bytes of a row are unpacked to four lines, one for each place of a code in its
//! byte, and the activations lie in that order. The next step's codes are unpacked while this one's are multiplied, into
//! other lines: what was just stored is no tile yet. Up to 32 tokens keep their sums in tiles from end to end of a row;
//! more sweep over a few steps at a time, whose codes stay in the first cache.

use super::{SIDE, by_token, halves, in_groups, in_steps, modelled};
use crate::kernels::gemm::driver::Scratch;
use crate::kernels::gemm::ternary::{Activations, Task};
use crate::kernels::pool::buffer::{Line, floats, grown};
use crate::kernels::simd::amx::{Set, Tiles};
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::ints::Ints;
use crate::kernels::simd::lanes::Lanes;
use crate::kernels::simd::wide::Wide;
use crate::kernels::{DType, Isa, Pool};
use std::ops::Range;

/// Columns of a step, their packed bytes, and lines of sixteen rows of codes or tokens.
const STEP: usize = 256;
const BYTES: usize = STEP / 4;
const LINES: usize = STEP / 64 * SIDE;
/// Steps that many tokens sweep over together.
const SPAN: usize = 2;
/// Steps whose codes there is room for: those, or one and the next.
const RING: usize = 2;
/// Bytes that tiles multiply.
pub const DEPTH: usize = 64;

/// Lines that `arrange` fills.
pub fn arranged_lines(x: &Activations) -> usize {
    x.rows.len().div_ceil(SIDE) * x.cols.div_ceil(STEP) * LINES
}

/// From this many tokens on tiles are faster, 1.3 to 1.4 times there; one fewer, 1.0 to 1.1 (on an Emerald Rapids, weights
/// from memory).
const TOKENS: usize = 6;

/// Whether `isa` multiplies so many tokens with tiles.
pub fn pays(isa: Isa, tokens: usize) -> bool {
    isa == Isa::Amx && (tokens >= TOKENS || modelled())
}

/// Copies activations into the order of right tiles.
///
/// # Safety
/// `Isa::Amx` is available.
pub unsafe fn arrange(pool: &Pool, x: &Activations, out: &mut [Line]) {
    let each = x.cols.div_ceil(STEP) * LINES;
    // SAFETY: the caller's promise.
    in_groups(pool, (x.rows.len(), x.values.len()), each, out, &|group, out| unsafe {
        arranged(x, group, out)
    });
}

entry!(fn arranged(x: &Activations, group: usize, out: &mut [Line]) = arrange_group);
entry!(
    /// `task` with any number of tokens.
    ///
    /// # Safety
    /// `Isa::Amx` is available, this thread has tiles of `DEPTH`, and `arrange` has made `task.arranged`.
    pub fn run(task: &Task, scratch: &mut Scratch) = product
);

/// Of sixteen tokens four tiles for each step. What is missing of a step is zeros; missing tokens repeat the last.
#[inline(always)]
unsafe fn arrange_group<S: Set>(x: &Activations, group: usize, out: &mut [Line]) {
    let mut rows = [x.row(0).as_ptr().cast(); SIDE];
    for (t, row) in rows.iter_mut().enumerate() {
        *row = x.row((group * SIDE + t).min(x.rows.len() - 1)).as_ptr().cast();
    }
    if !x.cols.is_multiple_of(STEP) {
        let each = out.len();
        out[each - LINES..].fill(Line::default());
    }
    // SAFETY: a row's columns.
    unsafe { in_steps::<S>(&rows, 0, x.cols, out) };
}

/// `task` with any number of tokens.
#[inline(always)]
unsafe fn product<S: Set>(task: &Task, scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut tiles = S::Tiles::new(DEPTH);
        if task.dtype == DType::TQ2_0 {
            Sweep::<S, true>::new(task, scratch, &mut tiles).all();
        } else {
            Sweep::<S, false>::new(task, scratch, &mut tiles).all();
        }
    }
}

/// 16 rows of 16 sums.
type Sums = [Line; SIDE];

struct Sweep<'a, S: Set, const SCALED: bool> {
    task: &'a Task<'a>,
    tiles: &'a mut S::Tiles,
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

impl<'a, S: Set, const SCALED: bool> Sweep<'a, S, SCALED> {
    unsafe fn new(task: &'a Task<'a>, scratch: &'a mut Scratch, tiles: &'a mut S::Tiles) -> Self {
        let groups = task.x.rows.len().div_ceil(SIDE);
        let steps = task.x.cols.div_ceil(STEP);
        let starts = if SCALED { steps } else { 1 };
        let codes = RING * 2 * LINES;
        let tokens = groups * (1 + starts);
        // A few tokens have those of two passes, and TQ2_0 of two steps.
        let partial = (2 * groups.next_multiple_of(2).max(4) + 8) * SIDE;
        let lines = grown(&mut scratch.codes, codes + tokens + partial);
        let (codes, rest) = lines.split_at_mut(codes);
        let (tokens, partial) = rest.split_at_mut(tokens);
        for (t, of_group) in tokens.chunks_exact_mut(1 + starts).enumerate() {
            for i in 0..SIDE {
                let token = (SIDE * t + i).min(task.x.rows.len() - 1);
                let row = task.x.rows[token];
                put(&mut of_group[0], i, row.scale.to_ne_bytes());
                if SCALED {
                    for (line, sum) in of_group[1..].iter_mut().zip(task.x.sums(token)) {
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
            scales: floats(grown(&mut scratch.scales, 4 * RING)),
            tokens,
            partial: partial.as_chunks_mut().0,
        }
    }

    #[inline(always)]
    unsafe fn all(&mut self) {
        // SAFETY (of all): the caller's promise.
        unsafe {
            match self.task.x.rows.len().div_ceil(SIDE) {
                1 => self.along::<1>(),
                2 => self.along::<2>(),
                groups => self.across(groups),
            }
        }
    }

    /// `N` times sixteen tokens, step after step of rows after rows. What was stored last waits: the rows before are
    /// finished behind the first step of the next ones.
    #[inline(always)]
    unsafe fn along<const N: usize>(&mut self) {
        let all = self.passes();
        // SAFETY (of all): the caller's promise.
        unsafe {
            self.unpack(&all.pass(0), 0, 0, 0..4);
            for n in 0..all.count() {
                if !SCALED {
                    self.clear::<N>(0, 1);
                }
                for step in 0..self.steps {
                    let turn = n * self.steps + step;
                    let next = match step + 1 < self.steps {
                        true => (all.pass(n), step + 1),
                        false => (all.pass(n + 1), 0),
                    };
                    self.step::<N>(0, step, turn, Some(next).filter(|(rows, _)| !rows.is_empty()));
                    if SCALED && step > 0 {
                        self.add::<N>(n % 2 * 4, step == 1, turn - 1);
                    }
                    if step == 0 && n > 0 {
                        self.finish_all(all.pass(n - 1), N, (n - 1) % 2 * 4);
                    }
                }
                match SCALED {
                    true => self.add::<N>(n % 2 * 4, self.steps == 1, (n + 1) * self.steps - 1),
                    false => self.keep::<N>(n % 2 * 4),
                }
            }
            self.finish_all(all.pass(all.count() - 1), N, (all.count() - 1) % 2 * 4);
        }
    }

    /// All tokens, `SPAN` steps at a time.
    #[inline(always)]
    unsafe fn across(&mut self, groups: usize) {
        let all = self.passes();
        // SAFETY (of all): the caller's promise.
        unsafe {
            for n in 0..all.count() {
                for start in (0..self.steps).step_by(SPAN) {
                    let steps = start..self.steps.min(start + SPAN);
                    for step in steps.clone() {
                        self.unpack(&all.pass(n), step, step, 0..4);
                    }
                    for group in (0..groups).step_by(2) {
                        match groups - group {
                            1 => self.sweep::<1>(group, steps.clone()),
                            _ => self.sweep::<2>(group, steps.clone()),
                        }
                    }
                }
                self.finish_all(all.pass(n), groups, 0);
            }
        }
    }

    /// Some steps of the rows with `N` times sixteen tokens.
    #[inline(always)]
    unsafe fn sweep<const N: usize>(&mut self, group: usize, steps: Range<usize>) {
        // SAFETY (of all): the caller's promise.
        unsafe {
            if !SCALED {
                self.begin::<N>(group, steps.start);
            }
            for step in steps.clone() {
                self.step::<N>(group, step, step, None);
                if SCALED && step > steps.start {
                    self.add::<N>(2 * group, step == 1, step - 1);
                }
            }
            match SCALED {
                true => self.add::<N>(2 * group, steps.end == 1, steps.end - 1),
                false => self.keep::<N>(2 * group),
            }
        }
    }

    fn passes(&self) -> Passes {
        Passes(0..self.task.rows)
    }

    /// Multiplies the codes of step `step`, and unpacks the next ones meanwhile. Of TQ2_0 these sums are for `add`.
    #[inline(always)]
    unsafe fn step<const N: usize>(
        &mut self,
        group: usize,
        step: usize,
        turn: usize,
        next: Option<(Range<usize>, usize)>,
    ) {
        // SAFETY (of all): the caller's promise.
        unsafe {
            if SCALED {
                self.clear::<N>(group, 1 + step);
            }
            for k in 0..4 {
                if let Some((rows, step)) = &next {
                    self.unpack(rows, *step, turn + 1, k..k + 1);
                }
                self.multiply::<N>(group, step, turn, k);
            }
            if SCALED {
                self.keep::<N>(self.partial.len() - 4 * (1 + turn % 2));
            }
        }
    }

    /// Writes the outputs of `groups` times sixteen tokens, whose sums begin at `partial[at]`.
    #[inline(always)]
    unsafe fn finish_all(&mut self, rows: Range<usize>, groups: usize, at: usize) {
        for group in 0..groups {
            for (r, first) in rows.clone().step_by(SIDE).enumerate() {
                let at = at + group / 2 * 4 + 2 * r + group % 2;
                // SAFETY: the caller's promise.
                unsafe { self.finish(first..rows.end.min(first + SIDE), group, at) };
            }
        }
    }

    /// Codes of step `step` of some rows, up to twice sixteen; those of others are nothing. All, in four parts.
    #[inline(always)]
    unsafe fn unpack(&mut self, rows: &Range<usize>, step: usize, turn: usize, parts: Range<usize>) {
        let (task, count) = (self.task, rows.len());
        let row_bytes = task.row_bytes;
        let at = step * if SCALED { BYTES + 2 } else { BYTES };
        let len = BYTES.min(row_bytes - at);
        let all = &task.row(rows.start).as_ptr();
        assert!(count <= 2 * SIDE && task.row(rows.end - 1).len() == row_bytes);
        let (base, next) = (all.wrapping_add(at), all.wrapping_add(2 * SIDE * (row_bytes + at)));
        let codes = self.codes[turn % RING * 2..][..2].as_mut_ptr().cast::<Line>();
        for row in parts.start * SIDE / 2..count.min(parts.end * SIDE / 2) {
            S::Lanes::fetch(next.wrapping_add(row * BYTES));
            // SAFETY (of all): within the rows that were looked up, lines of this step's.
            unsafe {
                let to = codes.add(row / SIDE * LINES + row % SIDE);
                let packed = S::Wide::first(base.add(row * row_bytes), len);
                let planes =
                    [packed.right::<0>(3), packed.right::<2>(3), packed.right::<4>(3), packed.right::<6>(3)];
                // TQ2_0 has the first columns in the low bits, I2_S in the high ones.
                for (k, plane) in planes.into_iter().enumerate() {
                    plane.store(to.add(SIDE * if SCALED { k } else { 3 - k }).cast());
                }
            }
        }
        for r in parts.start.div_ceil(2)..parts.end.div_ceil(2) {
            if SCALED && count > SIDE * r {
                let from = base.wrapping_add(SIDE * r * row_bytes + BYTES);
                // SAFETY: two bytes behind the rows' codes.
                unsafe {
                    let to = self.scales[turn % (2 * RING) * 2 + r].as_mut_ptr();
                    halves::<S>(from, row_bytes, count - SIDE * r).store(to);
                }
            }
        }
    }

    /// Loads the sums so far.
    #[inline(always)]
    unsafe fn begin<const N: usize>(&mut self, group: usize, start: usize) {
        // SAFETY (of all): four tiles of sums.
        unsafe {
            if start == 0 {
                return self.clear::<N>(group, 1);
            }
            let from: *const u8 = self.partial[2 * group..2 * group + 4].as_ptr().cast();
            self.tiles.load::<0>(from, 64);
            self.tiles.load::<2>(from.add(2048), 64);
            if N == 2 {
                self.tiles.load::<1>(from.add(1024), 64);
                self.tiles.load::<3>(from.add(3072), 64);
            }
        }
    }

    /// Sets sums to what line `line` of the tokens' says.
    #[inline(always)]
    unsafe fn clear<const N: usize>(&mut self, group: usize, line: usize) {
        let each = if SCALED { 1 + self.steps } else { 2 };
        let line = |group: usize| self.tokens[group * each + line].0.as_ptr();
        let (a, b) = (line(group), line(group + N - 1));
        // SAFETY (of all): one line is all rows of a tile.
        unsafe {
            self.tiles.load::<0>(a, 0);
            self.tiles.load::<2>(a, 0);
            if N == 2 {
                self.tiles.load::<1>(b, 0);
                self.tiles.load::<3>(b, 0);
            }
        }
    }

    /// Stores sums from `partial[at]` on: of the first sixteen rows and the tokens, then of the others.
    #[inline(always)]
    unsafe fn keep<const N: usize>(&mut self, at: usize) {
        let to: *mut u8 = self.partial[at..at + 4].as_mut_ptr().cast();
        // SAFETY (of all): room for four tiles.
        unsafe {
            self.tiles.store::<0>(to, 64);
            self.tiles.store::<2>(to.add(2048), 64);
            if N == 2 {
                self.tiles.store::<1>(to.add(1024), 64);
                self.tiles.store::<3>(to.add(3072), 64);
            }
        }
    }

    /// Adds the products of the `k`th quarter of a step's codes and tokens.
    #[inline(always)]
    unsafe fn multiply<const N: usize>(&mut self, group: usize, step: usize, turn: usize, k: usize) {
        let tokens = |group: usize| &self.task.x.arranged[(group * self.steps + step) * LINES..][..LINES];
        let (a, b) = (tokens(group).as_ptr().cast::<u8>(), tokens(group + N - 1).as_ptr().cast::<u8>());
        let codes: *const u8 = self.codes[turn % RING * 2..][..2].as_ptr().cast();
        let at = 1024 * k;
        // SAFETY (of all): tiles of these lines.
        unsafe {
            self.tiles.load::<4>(codes.add(at), 64);
            self.tiles.load::<6>(a.add(at), 64);
            self.tiles.dot_unsigned::<0, 4, 6>();
            self.tiles.load::<5>(codes.add(4096 + at), 64);
            self.tiles.dot_unsigned::<2, 5, 6>();
            if N == 2 {
                self.tiles.load::<7>(b.add(at), 64);
                self.tiles.dot_unsigned::<1, 4, 7>();
                self.tiles.dot_unsigned::<3, 5, 7>();
            }
        }
    }

    /// Adds the sums of the step of turn `turn`, times its scales, to those from `partial[at]` on.
    #[inline(always)]
    unsafe fn add<const N: usize>(&mut self, at: usize, first: bool, turn: usize) {
        let own = self.partial.len() - 4 * (1 + turn % 2);
        let (totals, sums) = self.partial.split_at_mut(own);
        for r in 0..2 {
            let scales = &self.scales[turn % (2 * RING) * 2 + r];
            for n in 0..N {
                let totals: *mut f32 = totals[at + 2 * r + n].as_mut_ptr().cast();
                let sums: *const i32 = sums[2 * r + n].as_ptr().cast();
                for (i, scale) in scales.iter().enumerate() {
                    // SAFETY (of all): a tile of sums.
                    unsafe {
                        let value = S::Ints::load(sums.add(SIDE * i)).to_f32().mul(S::Lanes::splat(*scale));
                        let total = totals.add(SIDE * i);
                        let before = if first { S::Lanes::splat(0.0) } else { S::Lanes::load(total) };
                        before.add(value).store(total);
                    }
                }
            }
        }
    }

    /// Writes the outputs of sixteen tokens for some rows, up to sixteen, whose sums are `partial[at]`.
    #[inline(always)]
    unsafe fn finish(&mut self, rows: Range<usize>, group: usize, at: usize) {
        let (x, task) = (self.task.x, self.task);
        let each = if SCALED { 1 + self.steps } else { 2 };
        // SAFETY (of all): lines are sixteen numbers.
        unsafe {
            let own = S::Lanes::load(self.tokens[group * each].0.as_ptr().cast());
            let mut scale = own;
            for (i, line) in self.partial[at].iter_mut().enumerate() {
                let line: *mut f32 = line.0.as_mut_ptr().cast();
                if SCALED {
                    S::Lanes::load(line).div(own).store(line);
                    continue;
                }
                if i == 0 || task.dtype == DType::Ternary {
                    scale = S::Lanes::splat(task.scale(rows.start + i.min(rows.len() - 1))).div(own);
                }
                S::Ints::load(line.cast()).to_f32().mul(scale).store(line);
            }
            let tokens = SIDE.min(x.rows.len() - SIDE * group);
            by_token::<S>(&self.partial[at], tokens, rows.len(), |t, values| {
                self.task.write(SIDE * group + t, rows.start, values);
            });
        }
    }
}

/// A task's rows, twice sixteen at a time.
struct Passes(Range<usize>);

impl Passes {
    fn count(&self) -> usize {
        self.0.len().div_ceil(2 * SIDE)
    }

    fn pass(&self, n: usize) -> Range<usize> {
        let first = self.0.start + 2 * SIDE * n;
        first..self.0.end.min(first + 2 * SIDE).max(first)
    }
}

fn put(line: &mut Line, i: usize, bytes: [u8; 4]) {
    line.0[4 * i..4 * i + 4].copy_from_slice(&bytes);
}
