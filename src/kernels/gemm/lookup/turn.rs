//! Activations by columns: tokens side by side.

use super::{Share, TILE};
use crate::kernels::Pool;
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::pool::buffer::{Line, floats, grown, grown_lines};

/// Activations of blocks of `lanes` tokens. Tokens past the last have zeros.
#[derive(Clone, Copy)]
pub(crate) struct Turned<'a> {
    /// `[blocks, cols, lanes]`.
    values: &'a [i8],
    /// `[blocks, scales of a token, lanes]`: one for each token, or one for each 32 columns.
    scales: &'a [f32],
    pub tokens: usize,
    pub cols: usize,
    /// 16 or 32.
    pub lanes: usize,
}

impl<'a> Turned<'a> {
    /// The columns of a block of tokens, `[cols, lanes]`.
    pub(super) fn columns(&self, block: usize) -> &'a [i8] {
        let each = self.cols * self.lanes;
        &self.values[block * each..(block + 1) * each]
    }

    /// The scales of a block of tokens in a tile.
    pub(super) fn scales(&self, block: usize, tile: usize) -> &'a [f32] {
        let each = self.scales.len() / self.lanes / self.tokens.div_ceil(self.lanes);
        let n = block * each + if each == 1 { 0 } else { tile };
        &self.scales[n * self.lanes..(n + 1) * self.lanes]
    }
}

/// Buffers for turned activations; they grow to the largest product, and are kept.
#[derive(Default)]
pub(crate) struct Buffers {
    values: Vec<Line>,
    scales: Vec<Line>,
}

/// Number of columns that a task turns.
const SPAN: usize = 512;

/// Turns rows of `cols` activations, a multiple of 32. `row` returns the values and the scales of a token.
pub(crate) fn turn<'a>(
    pool: &Pool,
    Share { tokens, lanes }: Share,
    cols: usize,
    row: &(dyn Fn(usize) -> (&'a [i8], &'a [f32]) + Sync),
    buffers: &'a mut Buffers,
) -> Turned<'a> {
    assert!(cols.is_multiple_of(TILE) && tokens > 0, "whole tiles");
    let (blocks, spans, each) = (tokens.div_ceil(lanes), cols.div_ceil(SPAN), row(0).1.len());
    let values = grown_lines(&mut buffers.values, blocks * cols * lanes);
    let scales = grown(&mut buffers.scales, (blocks * each * lanes).div_ceil(16));
    let scales = &mut floats(scales).as_flattened_mut()[..blocks * each * lanes];
    let (shared, by_scale) = (SharedOut::new(values), SharedOut::new(scales));
    pool.run_if_worth(tokens * cols, blocks * spans, &|n| {
        let (block, span) = (n / spans, n % spans);
        let (start, columns) = (block * cols, span * SPAN..cols.min((span + 1) * SPAN));
        let tokens = block * lanes..tokens.min((block + 1) * lanes);
        // SAFETY (of both): each task has columns of its own, and the first of a block has the scales.
        let to = unsafe { shared.slice((start + columns.start) * lanes..(start + columns.end) * lanes) };
        for first in (0..lanes).step_by(8) {
            let mut rows: [&[i8]; 8] = [&[]; 8];
            let eight = tokens.clone().skip(first);
            rows.iter_mut().zip(eight).for_each(|(to, token)| *to = &row(token).0[columns.clone()]);
            turn_eight(&rows, to, lanes, first);
        }
        if span == 0 {
            let to = unsafe { by_scale.slice(block * each * lanes..(block + 1) * each * lanes) };
            to.fill(0.0);
            for (lane, token) in tokens.enumerate() {
                to.chunks_exact_mut(lanes).zip(row(token).1).for_each(|(to, scale)| to[lane] = *scale);
            }
        }
    });
    Turned { values, scales, tokens, cols, lanes }
}

/// Turns eight rows, to the lanes from `first` on of `[cols, lanes]`; empty rows become zeros.
fn turn_eight(rows: &[&[i8]; 8], to: &mut [i8], lanes: usize, first: usize) {
    for (n, to) in to.chunks_exact_mut(8 * lanes).enumerate() {
        let mut eight = [0; 8];
        for (to, row) in eight.iter_mut().zip(rows) {
            if let Some(bytes) = row.get(8 * n..).and_then(<[i8]>::first_chunk::<8>) {
                *to = u64::from_le_bytes(bytes.map(|byte| byte as u8));
            }
        }
        for (to, column) in to.chunks_exact_mut(lanes).zip(transposed(eight)) {
            to[first..first + 8].copy_from_slice(&column.to_le_bytes().map(|byte| byte as i8));
        }
    }
}

/// Transposes a matrix of bytes: byte i of result j is byte j of number i (Hacker's Delight, 7-3).
fn transposed(mut x: [u64; 8]) -> [u64; 8] {
    for (step, mask) in [(4, u64::MAX >> 32), (2, 0x0000_ffff_0000_ffff), (1, 0x00ff_00ff_00ff_00ff)] {
        for i in (0..8).filter(|i| i & step == 0) {
            let swap = (x[i] >> (8 * step) ^ x[i + step]) & mask;
            x[i + step] ^= swap;
            x[i] ^= swap << (8 * step);
        }
    }
    x
}
