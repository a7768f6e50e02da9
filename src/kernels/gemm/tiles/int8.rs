//! Int8 weights with one scale per row. `int8::reference` defines the result.
//!
//! Both operands are already in the layout of tiles, so nothing is unpacked. A left tile is 64 columns of sixteen
//! tokens, a right tile is 64 columns of a panel, and a row of sums is the outputs of a token.

use super::sweep::{self, At, Kind, Tile};
use super::{DEPTH, LINES, SIDE, STEP, multiply_sides};
use crate::kernels::Pool;
use crate::kernels::gemm::driver::{Scratch, in_groups};
use crate::kernels::gemm::tokens::{Activations, Task, Tokens};
use crate::kernels::pool::buffer::{Line, floats};
use crate::kernels::simd::amx::Set;
use crate::kernels::simd::ints::Ints;
use crate::kernels::simd::lanes::{Lanes, Real};

/// Prefetch distance of weights, in bytes.
const AHEAD: usize = 4 * 1024;

/// Arranges activations as left tiles: for each sixteen tokens all steps, one line per token. Lines of missing tokens
/// and columns have unspecified contents.
pub(crate) fn arrange<'a>(pool: &Pool, x: &Activations, lines: &'a mut Vec<Line>) -> &'a [Line] {
    let each = x.cols.div_ceil(STEP) * LINES;
    in_groups(pool, (x.rows.len(), x.values.len()), (SIDE, each), lines, &|group, out| {
        for t in 0..SIDE.min(x.rows.len() - group * SIDE) {
            let row = x.row(group * SIDE + t).as_chunks::<DEPTH>().0;
            for (line, values) in out[t..].iter_mut().step_by(SIDE).zip(row) {
                line.0 = values.map(|value| value as u8);
            }
        }
    })
}

entry!(
    /// Computes `task` with any number of tokens.
    ///
    /// # Safety
    /// `Isa::Amx` is available, this thread has tiles of `DEPTH`, and `arrange` has made `task.x.arranged`.
    pub(crate) fn run(task: &Task, scratch: &mut Scratch) = product
);

#[inline(always)]
unsafe fn product<S: Set>(task: &Task, scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe { sweep::run::<S, Int8>(task, task.x.arranged, scratch) }
}

struct Int8;

impl Kind for Int8 {
    type X<'a> = Tokens<'a>;
    const TOKENS: usize = LINES;
    const CODES: usize = 0;
    const SCALES: usize = 0;
    const TOKENS_LEFT: bool = true;
    const WHOLE: bool = true;

    fn tokens(x: &Tokens) -> usize {
        x.rows.len()
    }

    #[inline(always)]
    unsafe fn multiply<S: Set, const N: usize>(tiles: &mut S::Tiles, at: &At<Self>, part: usize) {
        let At { task, strip, x, .. } = at;
        let first = strip.step * LINES + part * SIDE;
        if 4 * first >= task.x.cols {
            return;
        }
        let panel = strip.row / SIDE;
        // A missing panel is replaced by the last one.
        let second = (panel + 1).min(task.rows.div_ceil(SIDE) - 1);
        let right = [&task.panel(panel)[first..], &task.panel(second)[first..]];
        if strip.group == 0 {
            for panel in right {
                let next = panel.as_ptr().cast::<u8>().wrapping_add(AHEAD);
                (0..SIDE).for_each(|line| S::Lanes::fetch(next.wrapping_add(64 * line)));
            }
        }
        // SAFETY: these are tiles.
        unsafe {
            let left = [&x[0][SIDE * part..], &x[1][SIDE * part..]];
            multiply_sides::<S, N, 2>(tiles, left, right);
        }
    }

    #[inline(always)]
    unsafe fn finish<S: Set>(task: &Task, row: usize, token: usize, sums: &mut Tile) {
        let scales = task.panel(row / SIDE).last().expect("a line of scales").0.as_ptr().cast();
        for (token, sums) in task.x.rows[token..].iter().zip(floats(sums)) {
            // SAFETY (of all): lines are sixteen numbers.
            unsafe {
                let scales = S::Lanes::load(scales).mul(S::Lanes::splat(1.0 / token.scale));
                S::Ints::load(sums.as_ptr().cast()).to_f32().mul(scales).store(sums.as_mut_ptr());
            }
        }
    }
}
