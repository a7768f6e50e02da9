//! Mamba-2 (Dao and Gu 2024, arXiv 2405.21060) as Granite 4 and Falcon-H1 have it: a short convolution of x, B and C,
//! the recurrence, and a gate with or without a norm. The products before and after it are not part of it.

use super::Norm;
use super::net::{Host, Net, other_inputs};
use super::recurrence::{Heads, Pass, Recurrence, RecurrentScratch};
use super::spans::{Span, Taps};
use super::state::{Accepted, StatePart};
use crate::base::Result;
use crate::kernels::Isa;
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::recurrent::tile::{Inputs, TileRow};
use crate::kernels::recurrent::{conv, mamba};
use crate::kernels::rows::exp::exp;
use crate::kernels::rows::softplus::softplus;
use crate::kernels::rows::{elementwise, norm};
use std::ops::Range;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MambaShape {
    /// A multiple of `groups`.
    pub heads: usize,
    /// Elements of a head's x.
    pub head_dim: usize,
    /// Groups of heads with the same B and C, which follow each other.
    pub groups: usize,
    /// Elements of B, and of C, of a group.
    pub state_dim: usize,
    /// Tokens that the convolution sees, the current one included; at least 2.
    pub kernel: usize,
}

impl MambaShape {
    /// Elements of x of a row, and of the gate.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of B of a row, and of C.
    pub fn vectors(&self) -> usize {
        self.groups * self.state_dim
    }

    /// Elements of x, B and C of a row, side by side.
    pub fn channels(&self) -> usize {
        self.inner() + 2 * self.vectors()
    }

    /// Elements of a row of the product before it: the gate; x, B and C; a step for each head.
    pub fn inputs(&self) -> usize {
        self.inner() + self.channels() + self.heads
    }

    /// Elements of a layer's state.
    pub fn state(&self) -> usize {
        self.of_heads().state()
    }

    fn of_heads(&self) -> Heads {
        let dims = [self.state_dim, self.head_dim];
        Heads { count: self.heads, dims, channels: self.channels(), kernel: self.kernel }
    }

    /// Elements that are kept of a drafted row: x, B and C before the convolution, and the steps.
    pub fn drafted_row(&self) -> usize {
        self.channels() + self.heads
    }

    /// The group of a head.
    fn group(&self, head: usize) -> usize {
        head / (self.heads / self.groups)
    }
}

/// The weights of a layer besides its products.
#[derive(Clone)]
pub struct Mamba {
    pub shape: MambaShape,
    /// `[kernel, channels]`, the oldest token first; and the bias of each channel.
    pub conv: Arc<[f32]>,
    pub conv_bias: Arc<[f32]>,
    /// One value for each head: -e^A_log, the bias of its step, and D.
    pub a: Arc<[f32]>,
    pub dt_bias: Arc<[f32]>,
    pub d: Arc<[f32]>,
    pub norm: MambaNorm,
    pub factors: MambaFactors,
    /// Bounds of the steps.
    pub steps: [f32; 2],
}

/// The norm of each group's outputs, with the weights of all groups, `[inner]`.
#[derive(Clone)]
pub enum MambaNorm {
    Never,
    BeforeGate(Norm),
    AfterGate(Norm),
}

impl MambaNorm {
    pub fn norm(&self) -> Option<&Norm> {
        match self {
            Self::Never => None,
            Self::BeforeGate(norm) | Self::AfterGate(norm) => Some(norm),
        }
    }
}

/// Factors on the gate, on the steps before their bias, and on the gated output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MambaFactors {
    pub gate: f32,
    pub step: f32,
    pub output: f32,
}

impl Recurrence for Mamba {
    const WORK: usize = 4;

    fn heads(&self) -> Heads {
        self.shape.of_heads()
    }

    /// q is C, k is B, and v is x.
    fn inputs(&self, head: usize) -> [usize; 3] {
        let shape = &self.shape;
        let b = shape.inner() + shape.group(head) * shape.state_dim;
        [b + shape.vectors(), b, head * shape.head_dim]
    }

    fn run(&self, isa: Isa, head: usize, tile: &mut [TileRow], inputs: Inputs, out: &mut [TileRow]) {
        mamba::run(isa, tile, inputs, self.d[head], out);
    }
}

/// Inputs of rows: x, B and C, then the steps. Row r begins at r times the stride.
#[derive(Clone, Copy)]
struct Rows<'a> {
    inputs: &'a [f32],
    stride: usize,
}

impl<'a> Rows<'a> {
    fn of(&self, row: usize, elements: Range<usize>) -> &'a [f32] {
        &self.inputs[row * self.stride..][elements]
    }
}

/// Channels that a task convolves.
const PIECE: usize = 256;

impl Net for Mamba {
    fn sizes(&self) -> (usize, usize) {
        (self.shape.state(), self.shape.drafted_row())
    }

    fn width(&self) -> usize {
        self.shape.inner()
    }

    fn scratch(&self) -> usize {
        self.shape.of_heads().scratch()
    }

    fn vectors(&self) -> Vec<&Arc<[f32]>> {
        let norm = self.norm.norm().map(|norm| &norm.weight);
        let all = [&self.conv, &self.conv_bias, &self.a, &self.dt_bias, &self.d];
        all.into_iter().chain(norm).collect()
    }

    /// One input, `[T, inputs]`: the gate; x, B and C; the steps. `out` `[T, inner]`.
    fn run(&self, at: Host, inputs: &[&[f32]], spans: &[Span], out: &mut [f32]) -> Result<()> {
        let (pass, Host { states, scratch, .. }) = (Pass::new(at.on, self), at);
        let StatePart { data, kept, .. } = states;
        let shape = &self.shape;
        let (rows, stride) = (out.len() / shape.inner(), shape.inputs());
        let &[x] = inputs else { return Err(other_inputs()) };
        if x.len() != rows * stride || out.len() != rows * shape.inner() {
            return Err(other_inputs());
        }
        let inputs = Rows { inputs: &x[shape.inner().min(x.len())..], stride };
        pass.prepare(data, scratch, &inputs, spans, rows)?;
        kept.keep(Span::drafted(spans), |row, to| {
            to.copy_from_slice(inputs.of(row, 0..to.len()));
        });
        pass.recur(data, scratch, &pass.taps(&inputs), spans, rows);
        pass.gate(&mut scratch.outputs, x, out);
        Ok(())
    }

    fn advance(&self, at: Host, accepted: &[Accepted]) -> Result<()> {
        let (pass, Host { states, scratch, .. }) = (Pass::new(at.on, self), at);
        let StatePart { data, kept, .. } = states;
        let stride = self.shape.drafted_row();
        for accepted in accepted {
            let inputs = Rows { inputs: kept.of(accepted)?, stride };
            let rows = accepted.rows as usize;
            let spans = [Span::of_accepted(accepted)];
            pass.prepare(data, scratch, &inputs, &spans, rows)?;
            pass.recur(data, scratch, &pass.taps(&inputs), &spans, rows);
        }
        Ok(())
    }
}

impl Pass<'_, Mamba> {
    /// Convolves x, B and C, and computes decays and steps.
    fn prepare(
        &self,
        states: &[f32],
        scratch: &mut RecurrentScratch,
        inputs: &Rows,
        spans: &[Span],
        rows: usize,
    ) -> Result<()> {
        let shape = &self.net.shape;
        let (channels, heads) = (shape.channels(), shape.heads);
        scratch.grow(rows, &shape.of_heads())?;
        let taps = self.taps(inputs);
        let (mixed, gates) = (SharedOut::new(&mut scratch.mixed), SharedOut::new(&mut scratch.gates));
        let pieces = channels.div_ceil(PIECE);
        self.pool.run_if_worth(rows * channels * (shape.kernel + 16), rows * (pieces + 1), &|task| {
            let (row, piece) = (task / (pieces + 1), task % (pieces + 1));
            if piece == pieces {
                let at = row * 2 * heads..(row + 1) * 2 * heads;
                // SAFETY: each task has a row, or channels of a row, of its own.
                return self.steps(inputs.of(row, channels..channels + heads), unsafe { gates.slice(at) });
            }
            let own = piece * PIECE..channels.min((piece + 1) * PIECE);
            // SAFETY: as above.
            let out = unsafe { mixed.slice(row * channels + own.start..row * channels + own.end) };
            let span = Span::of(spans, row);
            let state = &states[span.slot as usize * shape.state()..];
            let sums = &mut [0.0; PIECE][..own.len()];
            conv::sum(self.isa, taps.of(span, row, own.clone(), state), sums);
            elementwise::add(self.isa, sums, &self.net.conv_bias[own]);
            elementwise::logistic(self.isa, sums, sums, out);
        });
        Ok(())
    }

    /// The inputs of the convolution.
    fn taps<'b>(&'b self, inputs: &'b Rows<'b>) -> Taps<'b, impl Fn(usize, Range<usize>) -> &'b [f32]> {
        let (shape, input) = (&self.net.shape, |row, own| inputs.of(row, own));
        Taps { kernel: shape.kernel, channels: shape.channels(), input, weights: &self.net.conv }
    }

    /// The decay and the step of each head.
    fn steps(&self, logits: &[f32], out: &mut [f32]) {
        let Mamba { a, dt_bias, factors, steps: [least, most], .. } = self.net;
        for (head, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let step = softplus(logits[head] * factors.step + dt_bias[head]);
            // Not `clamp`, which would panic at a NaN of its bounds; a NaN of the step stays.
            let step = if step < *least { *least } else { step };
            let step = if step > *most { *most } else { step };
            *out = [exp(a[head] * step), step];
        }
    }

    /// `y` `[rows, inner]` times SiLU of the gate, which begins the rows of `x`, normed before or after.
    fn gate(&self, y: &mut [f32], x: &[f32], out: &mut [f32]) {
        let (shape, isa) = (&self.net.shape, self.isa);
        let (inner, stride, MambaFactors { gate: by, output, .. }) =
            (shape.inner(), shape.inputs(), self.net.factors);
        let rows = out.len() / inner;
        let (shared, before) = (SharedOut::new(out), SharedOut::new(y));
        self.pool.run_if_worth(rows * inner * 16, rows, &|row| {
            let at = row * inner..(row + 1) * inner;
            // SAFETY: each task has a row of its own.
            let (y, out) = unsafe { (before.slice(at.clone()), shared.slice(at)) };
            if let MambaNorm::BeforeGate(norm) = &self.net.norm {
                self.norm_groups(norm, y);
            }
            elementwise::scaled_swiglu(isa, [by, output], &x[row * stride..][..inner], y, out);
            if let MambaNorm::AfterGate(norm) = &self.net.norm {
                self.norm_groups(norm, out);
            }
        });
    }

    /// The norm of each group of a row.
    fn norm_groups(&self, Norm { weight, eps, .. }: &Norm, row: &mut [f32]) {
        let width = row.len() / self.net.shape.groups;
        for (group, weight) in row.chunks_exact_mut(width).zip(weight.chunks_exact(width)) {
            norm::rms_norm_in_place(self.isa, group, weight, *eps);
        }
    }
}
