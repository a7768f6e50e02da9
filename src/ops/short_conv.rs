//! The gated short convolution of LFM2 (Liquid AI, arXiv 2511.23404): a product gives B, C and x of each token, and
//! `C * conv(B * x)` goes through another product. The products are not part of it.

use super::net::{Host, Net, other_inputs};
use super::recurrence::Pass;
use super::spans::{Span, Taps};
use super::state::{Accepted, StatePart};
use crate::base::Result;
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::recurrent::conv;
use std::ops::Range;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    pub channels: usize,
    /// Tokens that the convolution sees, the current one included; at least 2.
    pub kernel: usize,
}

impl ConvShape {
    /// Elements of a layer's state: the inputs of the last tokens, `[kernel - 1, channels]`.
    pub fn state(&self) -> usize {
        (self.kernel - 1) * self.channels
    }

    /// Elements that are kept of a drafted row: its input.
    pub fn drafted_row(&self) -> usize {
        self.channels
    }
}

/// The weights of a layer besides its products.
#[derive(Clone)]
pub struct ShortConv {
    pub shape: ConvShape,
    /// `[kernel, channels]`, the oldest token first.
    pub weights: Arc<[f32]>,
}

/// Channels that a task computes.
const PIECE: usize = 512;

impl Net for ShortConv {
    fn sizes(&self) -> (usize, usize) {
        (self.shape.state(), self.shape.drafted_row())
    }

    fn width(&self) -> usize {
        self.shape.channels
    }

    fn scratch(&self) -> usize {
        self.shape.channels
    }

    fn vectors(&self) -> Vec<&Arc<[f32]>> {
        vec![&self.weights]
    }

    /// One input, `[T, 3 channels]`: B, C and x. `out` `[T, channels]`.
    fn run(&self, at: Host, inputs: &[&[f32]], spans: &[Span], out: &mut [f32]) -> Result<()> {
        let (pass, Host { states, scratch, .. }) = (Pass::new(at.on, self), at);
        let StatePart { data, kept, .. } = states;
        let channels = self.shape.channels;
        let rows = out.len() / channels;
        let &[x] = inputs else { return Err(other_inputs()) };
        if x.len() != rows * 3 * channels || out.len() != rows * channels {
            return Err(other_inputs());
        }
        let inputs = scratch.inputs(rows * channels)?;
        let (shared, pieces) = (SharedOut::new(inputs), channels.div_ceil(PIECE));
        let piece = |task: usize| {
            let (row, from) = (task / pieces, task % pieces * PIECE);
            (row, from..channels.min(from + PIECE))
        };
        pass.pool.run_if_worth(rows * channels, rows * pieces, &|task| {
            let (row, own) = piece(task);
            let (b, x) = (&x[row * 3 * channels..], &x[row * 3 * channels + 2 * channels..]);
            // SAFETY: each task has channels of a row of its own.
            let out = unsafe { shared.slice(row * channels + own.start..row * channels + own.end) };
            for (out, (b, x)) in out.iter_mut().zip(b[own.clone()].iter().zip(&x[own])) {
                *out = b * x;
            }
        });
        let taps = pass.taps(inputs);
        let (shared, states) = (SharedOut::new(out), &data[..]);
        pass.pool.run_if_worth(rows * channels * self.shape.kernel, rows * pieces, &|task| {
            let (row, own) = piece(task);
            // SAFETY: as above.
            let out = unsafe { shared.slice(row * channels + own.start..row * channels + own.end) };
            let span = Span::of(spans, row);
            let state = &states[span.slot as usize * self.shape.state()..];
            conv::sum(pass.isa, taps.of(span, row, own.clone(), state), out);
            let c = &x[row * 3 * channels + channels..][own];
            out.iter_mut().zip(c).for_each(|(out, c)| *out *= c);
        });
        kept.keep(Span::drafted(spans), |row, to| {
            to.copy_from_slice(&inputs[row * channels..][..channels]);
        });
        pass.append(data, inputs, spans);
        Ok(())
    }

    fn advance(&self, at: Host, accepted: &[Accepted]) -> Result<()> {
        let (pass, StatePart { data, kept, .. }) = (Pass::new(at.on, self), at.states);
        accepted.iter().try_for_each(|accepted| {
            pass.append(data, kept.of(accepted)?, &[Span::of_accepted(accepted)]);
            Ok(())
        })
    }
}

impl Pass<'_, ShortConv> {
    /// `inputs` `[rows, channels]`: B * x.
    fn taps<'a>(&'a self, inputs: &'a [f32]) -> Taps<'a, impl Fn(usize, Range<usize>) -> &'a [f32]> {
        let ConvShape { channels, kernel } = self.net.shape;
        let input = move |row: usize, own: Range<usize>| &inputs[row * channels..][own];
        Taps { kernel, channels, input, weights: &self.net.weights }
    }

    fn append(&self, states: &mut [f32], inputs: &[f32], spans: &[Span]) {
        let (states, taps, len) = (SharedOut::new(states), self.taps(inputs), self.net.shape.state());
        for span in spans {
            // SAFETY: one thread writes, and a span's slots are apart (`StateLayout::check`).
            taps.append(span, |slot| unsafe { states.slice(slot as usize * len..(slot as usize + 1) * len) });
        }
    }
}
