//! Shared by layers with a state: a layer of a pass, and the way of a batch's rows through the heads of Gated DeltaNet
//! and Mamba-2, which have a matrix each.

use super::rows::On;
use super::spans::{Span, Taps};
use super::tiles::{self, Columns};
use crate::base::{Result, grow};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::recurrent::tile::{Inputs, TILE, TileRow};
use crate::kernels::{Isa, Pool};
use std::ops::Range;

/// One layer of a pass.
pub(super) struct Pass<'a, N> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub net: &'a N,
}

/// The heads of a layer.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub count: usize,
    /// Rows and columns of a head's matrix: elements of its key, and of its value.
    pub dims: [usize; 2],
    /// Elements of a row that the convolution before them gives.
    pub channels: usize,
    /// Tokens that the convolution sees.
    pub kernel: usize,
}

impl Heads {
    /// Elements of a row of outputs.
    pub(super) fn width(&self) -> usize {
        self.count * self.dims[1]
    }

    /// Elements that `RecurrentScratch` keeps of each row.
    pub(super) fn scratch(&self) -> usize {
        self.channels + 2 * self.count + self.width()
    }

    /// Elements of the convolution's part of a state: the inputs of the last tokens, `[kernel - 1, channels]`.
    pub(super) fn convolution(&self) -> usize {
        (self.kernel - 1) * self.channels
    }

    /// Elements of one head's part of a state: `[tiles, key, TILE]`.
    fn head(&self) -> usize {
        self.dims[1].div_ceil(TILE) * self.dims[0] * TILE
    }

    /// Elements of a layer's state: the convolution's part, then the heads'.
    pub(super) fn state(&self) -> usize {
        self.convolution() + self.count * self.head()
    }
}

/// A layer whose heads have a matrix each.
pub(super) trait Recurrence: Sync {
    /// Operations of a token for each element of a matrix.
    const WORK: usize;
    fn heads(&self) -> Heads;
    /// Where a head's q, k and v begin in a convolved row.
    fn inputs(&self, head: usize) -> [usize; 3];
    /// Runs as many tokens as `out` has rows through a tile of a head's matrix.
    fn run(&self, isa: Isa, head: usize, tile: &mut [TileRow], inputs: Inputs, out: &mut [TileRow]);
}

/// Convolved rows and two gates of each head; grows to the largest pass, then is reused.
#[derive(Default)]
pub struct RecurrentScratch {
    /// `[rows, channels]`.
    pub(super) mixed: Vec<f32>,
    /// `[rows, heads, 2]`.
    pub(super) gates: Vec<f32>,
    /// `[rows, width]`: before the norm and the gate.
    pub(super) outputs: Vec<f32>,
}

const WHAT: &str = "a step's recurrent layers";

impl RecurrentScratch {
    /// Memory for a short convolution's inputs.
    pub(super) fn inputs(&mut self, len: usize) -> Result<&mut [f32]> {
        grow(&mut self.mixed, len, WHAT)
    }

    pub(super) fn grow(&mut self, rows: usize, heads: &Heads) -> Result<()> {
        let Self { mixed, gates, outputs } = self;
        let (inner, steps) = (rows * heads.width(), rows * 2 * heads.count);
        for (buffer, len) in [(mixed, rows * heads.channels), (gates, steps), (outputs, inner)] {
            grow(buffer, len, WHAT)?;
        }
        Ok(())
    }
}

impl<'a, N> Pass<'a, N> {
    pub(super) fn new(On { pool, isa }: On<'a>, net: &'a N) -> Self {
        Self { pool, isa, net }
    }
}

impl<N: Recurrence> Pass<'_, N> {
    /// Runs the prepared rows through the states, to `RecurrentScratch::outputs`.
    pub(super) fn recur<'t>(
        &self,
        states: &mut [f32],
        scratch: &mut RecurrentScratch,
        taps: &Taps<'t, impl Fn(usize, Range<usize>) -> &'t [f32] + Sync>,
        spans: &[Span],
        rows: usize,
    ) {
        let heads = self.net.heads();
        let RecurrentScratch { mixed, gates, outputs } = scratch;
        let (shared, states) = (SharedOut::new(outputs), SharedOut::new(states));
        let inputs = (&mixed[..], &gates[..]);
        let tasks = heads.count + 1;
        let work = rows * heads.count * heads.head() * N::WORK;
        self.pool.run_if_worth(work, spans.len() * tasks, &|task| {
            let (span, head) = (&spans[task / tasks], task % tasks);
            match head.checked_sub(1) {
                // SAFETY: each task has one head's part, or the convolution's, of its sequence's slots, which no other
                // sequence has (`StateLayout::check`), and the columns of that head in its sequence's rows.
                Some(head) => unsafe { self.head(inputs, span, head, &states, &shared) },
                None => taps.append(span, |slot| {
                    let at = slot as usize * heads.state();
                    // SAFETY: as above.
                    unsafe { states.slice(at..at + heads.convolution()) }
                }),
            }
        });
    }

    /// Runs a span through one head's tiles.
    ///
    /// # Safety
    /// No other thread uses this head's part of the span's slots, nor its columns of the span's rows.
    unsafe fn head(
        &self,
        (mixed, gates): (&[f32], &[f32]),
        span: &Span,
        head: usize,
        states: &SharedOut,
        out: &SharedOut,
    ) {
        let heads = self.net.heads();
        let (Heads { count, dims: [key, value], channels, .. }, [q, k, v]) = (heads, self.net.inputs(head));
        let mixed = &mixed[span.rows.start * channels..];
        for tile in 0..value.div_ceil(TILE) {
            let (column, width) = (tile * TILE, TILE.min(value - tile * TILE));
            let inputs = Inputs {
                q: &mixed[q..],
                k: &mixed[k..],
                v: &mixed[v + column..],
                stride: channels,
                width,
                gates: &gates[(span.rows.start * count + head) * 2..],
                gates_stride: 2 * count,
            };
            let len = key * TILE;
            let from = heads.convolution() + head * heads.head() + tile * len;
            let place = |slot| {
                let at = slot as usize * heads.state() + from;
                // SAFETY: the caller's promise.
                unsafe { states.slice(at..at + len) }.as_chunks_mut().0
            };
            let columns = Columns { out, stride: heads.width(), first: head * value + column, width };
            // SAFETY: as above.
            unsafe {
                tiles::through(span, &columns, place, |state, from, out| {
                    self.net.run(self.isa, head, state, inputs.from(from), out);
                });
            }
        }
    }
}
