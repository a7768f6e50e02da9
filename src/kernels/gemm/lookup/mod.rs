//! Products by look-ups of vectors, for weights of one or two bits and many tokens (Vec-LUT, arXiv 2512.06443).
//!
//! The lanes of a vector are sixteen tokens, or 32. For a few columns, a table has the sums of their activations under
//! each combination of weights: 81 vectors for four ternary weights. So a row adds one vector from memory for every few
//! columns. Sums are integers, so their order does not matter; they fit i16 over 256 columns.
//!
//! A *tile* is 32 columns with up to eight tables, which stay in the L1 cache while all rows of a task are added. The
//! offsets of a *panel* of tiles are read from the rows first, so that only `index` knows the layouts of files.

mod add;
mod formats;
mod index;
mod sums;
mod tables;
#[cfg(test)]
mod tests;
mod thirds;
mod turn;

use crate::kernels::gemm::blocks::Part;
use crate::kernels::gemm::driver::{Scratch, Task};
use crate::kernels::pool::buffer::{Line, floats, grown};
use crate::kernels::{DType, Isa, Pool};
use add::{Ahead, Step};
use formats::{Format, with_format};
use index::Source;
use std::ops::Range;
use sums::{Digits, Sums};
use turn::turn;
pub(super) use turn::{Buffers, Turned};

/// Columns of a tile.
const TILE: usize = 32;
/// Maximum number of tiles of a panel: sums of their columns, each at most 127 in magnitude, fit an i16.
const PANEL: usize = 8;
/// Tables of a tile, at most.
const FIELDS: usize = 8;
/// Maximum number of weight rows in a task, for vectors of 16 and of 32 tokens: sums and offsets share the L2 cache.
const MOST_ROWS: [usize; 2] = [2304, 1728];
/// Minimum number, if there are as many: making tables takes as long as adding some 150 rows.
const LEAST_ROWS: usize = 512;
/// Number of tokens for which offsets are read once. It bounds the totals that wait for the next columns.
const SWEPT: usize = 64;
/// Tokens of a vector.
const LANES: usize = 16;

/// The offsets of a row's entries in each of two tiles, in bytes: sixteen bits for each table.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Offsets([[u64; FIELDS / 4]; 2]);

/// Which tokens of a product are computed by look-ups, and how many are in a vector.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub tokens: usize,
    pub lanes: usize,
}

/// Computes the products of the first of `tokens` tokens with all of `parts`, as long as look-ups are faster; returns
/// their number. `row` has the values and the scales of a token. `one` runs a product with at most this many weight
/// rows per task for the tokens of the range, which are turned; it returns false if a weight has no entry.
pub(super) fn products<'a>(
    pool: &Pool,
    isa: Isa,
    parts: &[Part],
    tokens: usize,
    row: &(dyn Fn(usize) -> (&'a [i8], &'a [f32]) + Sync),
    buffers: &mut Buffers,
    one: &mut dyn FnMut(Range<usize>, &Turned, usize) -> bool,
) -> usize {
    let (mut done, rows) = (0, parts.iter().map(|part| part.matrix.rows).sum());
    while let Some(share) = share_of(isa, parts, tokens - done) {
        let turned = turn(pool, share, row(0).0.len(), &|t| row(done + t), buffers);
        if !one(done..done + share.tokens, &turned, height(rows, pool.threads(), share.lanes)) {
            break;
        }
        done += share.tokens;
    }
    done
}

/// The first tokens, of `tokens`, whose products with all of `parts` are faster by look-ups.
fn share_of(isa: Isa, parts: &[Part], tokens: usize) -> Option<Share> {
    let mut shares = parts.iter().map(|part| share(isa, part.matrix.dtype, tokens));
    let first = shares.next().flatten()?;
    shares.all(|share| share.is_some()).then_some(first)
}

/// The first tokens, of `tokens`, that are faster by look-ups.
fn share(isa: Isa, dtype: DType, tokens: usize) -> Option<Share> {
    let (one, two) = least(isa, dtype)?;
    let (lanes, wide) = (LANES, 2 * LANES);
    match tokens {
        _ if tokens >= wide => Some(Share { tokens: tokens / wide * wide, lanes: wide }),
        _ if tokens >= two => Some(Share { tokens, lanes: wide }),
        _ if tokens >= one && one <= lanes => Some(Share { tokens: tokens.min(lanes), lanes }),
        _ => None,
    }
}

/// The least numbers of tokens for which a vector of 16 and one of 32 are faster than other kernels, if there are
/// tables for the type (on a Zen 4, weights from memory; unmeasured for NEON). A vector takes as long as all of its
/// tokens.
fn least(isa: Isa, dtype: DType) -> Option<(usize, usize)> {
    let (wide, dots) = (isa.has_avx512(), isa.has_avx512() || isa == Isa::AvxVnni);
    let least = match dtype {
        _ if !isa.has_avx2() && isa != Isa::Neon => return None,
        DType::I2S | DType::Ternary | DType::TQ1_0 | DType::TQ2_0 if wide => (LANES + 1, 29),
        DType::I2S | DType::Ternary | DType::TQ1_0 | DType::TQ2_0 if dots => (14, 24),
        DType::I2S | DType::Ternary | DType::TQ1_0 | DType::TQ2_0 => (12, 25),
        DType::Q1_0 if dots => (15, 23),
        DType::Q1_0 => (8, 21),
        DType::Q2_0 | DType::Q2_0_128 | DType::PTQ1_0 if dots => (LANES + 1, 29),
        DType::Q2_0 | DType::Q2_0_128 | DType::PTQ1_0 => (11, 24),
        _ => return None,
    };
    Some(least)
}

/// Number of weight rows per task, of `rows` in all. Threads get as many tasks each.
fn height(rows: usize, threads: usize, lanes: usize) -> usize {
    let each = rows.div_ceil(threads);
    let most = MOST_ROWS[lanes / LANES - 1];
    each.div_ceil(each.div_ceil(most)).max(LEAST_ROWS).next_multiple_of(16)
}

/// Computes `task` for the tokens that are turned. Returns false, and the task is not computed, if it has a weight for
/// which there are no tables: the value 2 of Q2_0.
pub(super) fn run<X>(isa: Isa, task: &Task<X>, turned: &Turned, scratch: &mut Scratch) -> bool {
    with_format!(task.dtype, F => sweep::<F, X>(isa, task, turned, scratch))
}

fn sweep<F: Format, X>(isa: Isa, task: &Task<X>, turned: &Turned, scratch: &mut Scratch) -> bool {
    let (rows, lanes) = (task.rows.next_multiple_of(16), turned.lanes);
    let tiles = turned.cols / TILE;
    let in_panel = PANEL.min(tiles);
    let units = in_panel.div_ceil(F::TILES);
    let Scratch { codes, scales, partial, tables, shorts, .. } = scratch;
    let offsets = offsets(grown(codes, in_panel * rows / 4));
    let scales = floats(grown(scales, units * rows / 16)).as_flattened_mut();
    // Tiles with a scale of their own are added two by two, so that totals are read and written half as often.
    let together = if F::Sums::LONG { 1 } else { 2 };
    let each = <F::Sums as Sums>::Digits::ENTRIES * lanes * 2 / size_of::<Line>();
    let tables = grown(tables, together * each);
    let shorts = grown(shorts, if F::Sums::LONG { rows * lanes } else { 0 });
    for begin in (0..turned.tokens).step_by(SWEPT) {
        let blocks = begin / lanes..turned.tokens.min(begin + SWEPT).div_ceil(lanes);
        let totals = floats(grown(partial, blocks.len() * rows * lanes / 16)).as_flattened_mut();
        totals.fill(0.0);
        for first in (0..tiles).step_by(PANEL) {
            let count = PANEL.min(tiles - first);
            let source = Source::new::<F, X>(task, first, count);
            if !index::index::<F>(isa, &source, lanes, &mut offsets[..count / 2 * rows], scales) {
                return false;
            }
            for (n, (block, totals)) in blocks.clone().zip(totals.chunks_exact_mut(rows * lanes)).enumerate()
            {
                for tile in (0..count).step_by(together) {
                    for (n, tables) in tables.chunks_exact_mut(each).enumerate() {
                        let start = (first + tile + n) * TILE;
                        tables::fill::<F>(isa, lanes, turned.columns(block), start, tables);
                    }
                    let unit = tile / F::TILES * rows;
                    let last = tile + together == count;
                    let step = Step {
                        offsets: &offsets[tile / 2 * rows..][..rows],
                        second: tile % 2 == 1,
                        tables,
                        scales: &scales[unit..unit + rows],
                        tokens: [0, together - 1].map(|n| turned.scales(block, first + tile + n)),
                        ahead: Ahead::new(&source, n * count + tile, count * blocks.len(), together),
                        shorts,
                        totals,
                    };
                    step.add::<F::Sums>(isa, tile == 0, last);
                }
            }
        }
        if F::SCALE.is_none() {
            (0..task.rows).zip(&mut *scales).for_each(|(row, scale)| *scale = task.scale(row));
        }
        for (block, totals) in blocks.zip(totals.chunks_exact_mut(rows * lanes)) {
            add::finish::<F::Sums>(isa, totals, &scales[..rows], turned.scales(block, 0));
            let tokens = block * lanes..turned.tokens.min((block + 1) * lanes);
            add::write(isa, task, tokens, lanes, totals);
        }
    }
    true
}

/// Lines as offsets.
fn offsets(lines: &mut [Line]) -> &mut [Offsets] {
    // SAFETY: a Line is as many bytes as two `Offsets`, of any contents, and is aligned for them.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), 2 * lines.len()) }
}
