//! Int8 weights with a scale for each row. `int8::reference` says what is computed.
//!
//! Both sides lie as tiles already, so there is nothing to unpack: a left tile is 64 columns of sixteen tokens, a right one
//! so many of a panel, and a row of sums is a token's outputs. Two panels meet all tokens, some columns at a time, whose
//! weights stay in the first cache.

use super::{SIDE, in_groups, modelled};
use crate::kernels::gemm::int8::Task;
use crate::kernels::gemm::ternary::Activations;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::amx::{Set, Tiles};
use crate::kernels::simd::ints::Ints;
use crate::kernels::simd::lanes::Lanes;
use crate::kernels::{Isa, Pool};
use std::ops::Range;

/// Bytes that tiles multiply: columns of a step.
pub const DEPTH: usize = 64;
/// Steps that many tokens sweep over together.
const SPAN: usize = 8;
/// From this many tokens on tiles are faster.
const TOKENS: usize = 8;
/// How far ahead weights are asked for.
const AHEAD: usize = 4 * 1024;

/// Whether `isa` multiplies so many tokens with tiles.
pub fn pays(isa: Isa, tokens: usize) -> bool {
    isa == Isa::Amx && (tokens >= TOKENS || modelled())
}

/// Activations as left tiles: of each sixteen tokens all steps, a line a token. Tokens that are missing are anything.
pub fn arrange<'a>(pool: &Pool, x: &Activations, lines: &'a mut Vec<Line>) -> &'a [Line] {
    let each = x.cols / DEPTH * SIDE;
    let lines = grown(lines, x.rows.len().div_ceil(SIDE) * each);
    in_groups(pool, (x.rows.len(), x.values.len()), each, lines, &|group, out| {
        for t in 0..SIDE.min(x.rows.len() - group * SIDE) {
            let row = x.row(group * SIDE + t).as_chunks::<DEPTH>().0;
            for (line, values) in out[t..].iter_mut().step_by(SIDE).zip(row) {
                line.0 = values.map(|value| value as u8);
            }
        }
    });
    lines
}

entry!(
    /// `task` with any number of tokens.
    ///
    /// # Safety
    /// `Isa::Amx` is available, this thread has tiles of `DEPTH`, and `arrange` has made `task.x.arranged`.
    pub fn run(task: &Task, scratch: &mut Vec<Line>) = product
);

/// Sums of sixteen tokens with two panels.
type Sums = [[Line; SIDE]; 2];

/// `task` with any number of tokens.
#[inline(always)]
unsafe fn product<S: Set>(task: &Task, scratch: &mut Vec<Line>) {
    let groups = task.x.x.rows.len().div_ceil(SIDE);
    let partial = grown(scratch, groups * 2 * SIDE).as_chunks_mut::<SIDE>().0.as_chunks_mut::<2>().0;
    let steps = task.x.x.cols / DEPTH;
    let span = if groups > 2 { SPAN } else { steps };
    let panels = task.rows.div_ceil(SIDE);
    // SAFETY (of all): the caller's promise.
    unsafe {
        let mut tiles = S::Tiles::new(DEPTH);
        for panel in (0..panels).step_by(2) {
            for start in (0..steps).step_by(span) {
                let steps = start..steps.min(start + span);
                for (n, partial) in partial.chunks_mut(2).enumerate() {
                    let at = At { task, panel, group: 2 * n, steps: steps.clone() };
                    match (panels - panel, partial.len()) {
                        (1, 1) => at.multiply::<S, 1, 1>(&mut tiles, partial),
                        (1, _) => at.multiply::<S, 1, 2>(&mut tiles, partial),
                        (_, 1) => at.multiply::<S, 2, 1>(&mut tiles, partial),
                        _ => at.multiply::<S, 2, 2>(&mut tiles, partial),
                    }
                }
            }
        }
    }
}

/// Some columns of panels from `panel` on and of sixteen tokens from `group` on.
struct At<'a> {
    task: &'a Task<'a>,
    panel: usize,
    group: usize,
    steps: Range<usize>,
}

impl At<'_> {
    /// Adds the products of `P` panels and `G` times sixteen tokens; behind the last columns these are outputs.
    #[inline(always)]
    unsafe fn multiply<S: Set, const P: usize, const G: usize>(
        &self,
        tiles: &mut S::Tiles,
        partial: &mut [Sums],
    ) {
        let Self { task, panel, group, steps } = self;
        let each = task.x.x.cols / DEPTH * SIDE;
        let tokens = |g: usize| task.x.arranged[(group + g) * each..][..each].as_ptr().cast::<u8>();
        let lines = |p: usize| task.panel(panel + p)[..each].as_ptr().cast::<u8>();
        let (x, w) = ([tokens(0), tokens(G - 1)], [lines(0), lines(P - 1)]);
        let sums: *mut u8 = partial[..G].as_mut_ptr().cast();
        let (first, last) = (group * SIDE, steps.end * DEPTH == task.x.x.cols);
        // SAFETY (of all): tiles of these lines, and of sums.
        unsafe {
            if steps.start == 0 {
                tiles.zero::<0>();
                tiles.zero::<1>();
                tiles.zero::<2>();
                tiles.zero::<3>();
            } else {
                tiles.load::<0>(sums, 64);
                if P == 2 {
                    tiles.load::<1>(sums.add(1024), 64);
                }
                if G == 2 {
                    tiles.load::<2>(sums.add(2048), 64);
                }
                if P == 2 && G == 2 {
                    tiles.load::<3>(sums.add(3072), 64);
                }
            }
            for step in steps.clone() {
                let at = step * 1024;
                if *group == 0 {
                    for w in &w[..P] {
                        fetch::<S>(w.wrapping_add(at + AHEAD), 1024);
                    }
                }
                if last {
                    // Outputs are far apart, and none of them is in the caches.
                    for t in 0..4 * G {
                        let t = first + (step % 4) * 4 * G + t;
                        fetch::<S>(task.place(t, panel * SIDE), P * 64 + 64);
                    }
                }
                tiles.load::<6>(w[0].add(at), 64);
                tiles.load::<4>(x[0].add(at), 64);
                tiles.dot_signed::<0, 4, 6>();
                if P == 2 {
                    tiles.load::<7>(w[1].add(at), 64);
                    tiles.dot_signed::<1, 4, 7>();
                }
                if G == 2 {
                    tiles.load::<5>(x[1].add(at), 64);
                    tiles.dot_signed::<2, 5, 6>();
                    if P == 2 {
                        tiles.dot_signed::<3, 5, 7>();
                    }
                }
            }
            tiles.store::<0>(sums, 64);
            if P == 2 {
                tiles.store::<1>(sums.add(1024), 64);
            }
            if G == 2 {
                tiles.store::<2>(sums.add(2048), 64);
            }
            if P == 2 && G == 2 {
                tiles.store::<3>(sums.add(3072), 64);
            }
            if last {
                self.finish::<S, P>(partial);
            }
        }
    }

    /// Writes the outputs of `P` panels.
    #[inline(always)]
    unsafe fn finish<S: Set, const P: usize>(&self, partial: &[Sums]) {
        let Self { task, panel, group, .. } = self;
        for p in 0..P {
            let scales = task.panel(panel + p).last().expect("a line of scales");
            for (g, sums) in partial.iter().enumerate() {
                let first = (group + g) * SIDE;
                for (token, sums) in task.x.x.rows[first..].iter().take(SIDE).enumerate().zip(&sums[p]) {
                    let (t, token) = token;
                    let mut values = [0.0; SIDE];
                    // SAFETY (of all): lines are sixteen numbers.
                    unsafe {
                        let scales =
                            S::Lanes::load(scales.0.as_ptr().cast()).mul(S::Lanes::splat(1.0 / token.scale));
                        S::Ints::load(sums.0.as_ptr().cast()).to_f32().mul(scales).store(values.as_mut_ptr());
                    }
                    task.write_panel(first + t, panel + p, &values);
                }
            }
        }
    }
}

/// Asks memory for the lines of `bytes` at `from`, which need not be anybody's.
#[inline(always)]
fn fetch<S: Set>(from: *const u8, bytes: usize) {
    (0..bytes).step_by(64).for_each(|at| S::Lanes::fetch(from.wrapping_add(at)));
}
