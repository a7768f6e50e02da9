//! Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464) as Qwen3-Next and Qwen3.5 have it: a short convolution of q, k
//! and v, the gated delta rule, and a norm that a gate scales. The products before and after it are not part of it.

use super::net::{Host, Net, other_inputs};
use super::recurrence::{Heads, Pass, Recurrence, RecurrentScratch};
use super::spans::{Span, Taps};
use super::state::{Accepted, Kept, StatePart};
use super::types::{HeadOrder, Norm};
use crate::base::Result;
use crate::kernels::Isa;
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::recurrent::tile::{Inputs, TileRow};
use crate::kernels::recurrent::{conv, delta};
use crate::kernels::rows::exp::exp;
use crate::kernels::rows::softplus::softplus;
use crate::kernels::rows::{elementwise, norm};
use std::ops::Range;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    pub key_heads: usize,
    /// A multiple of `key_heads`.
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// Tokens that the convolution sees, the current one included; at least 2.
    pub kernel: usize,
    pub order: HeadOrder,
}

impl DeltaShape {
    /// Elements of q, k and v of a row, side by side.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Elements of k of a row.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of v of a row.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Elements of a layer's state.
    pub fn state(&self) -> usize {
        self.heads().state()
    }

    fn heads(&self) -> Heads {
        let dims = [self.key_dim, self.value_dim];
        Heads { count: self.value_heads, dims, channels: self.channels(), kernel: self.kernel }
    }

    /// Elements that are kept of a drafted row: its inputs and gates.
    pub fn drafted_row(&self) -> usize {
        self.channels() + 2 * self.value_heads
    }

    fn key_head(&self, value_head: usize) -> usize {
        match self.order {
            HeadOrder::Grouped => value_head / (self.value_heads / self.key_heads),
            HeadOrder::Tiled => value_head % self.key_heads,
        }
    }
}

/// The weights of a layer besides its products.
#[derive(Clone)]
pub struct DeltaNet {
    pub shape: DeltaShape,
    /// `[kernel, channels]`, the oldest token first.
    pub conv: Arc<[f32]>,
    /// One value for each value head: -e^A_log, and the bias of its step.
    pub a: Arc<[f32]>,
    pub dt_bias: Arc<[f32]>,
    /// The norm of each head's output, before the gate.
    pub norm: Norm,
}

/// Added to the sum of squares of q, and of k (transformers' `l2norm`).
pub(super) const L2_EPS: f32 = 1e-6;

impl Recurrence for DeltaNet {
    const WORK: usize = 6;

    fn heads(&self) -> Heads {
        self.shape.heads()
    }

    fn inputs(&self, head: usize) -> [usize; 3] {
        let shape = &self.shape;
        let key = shape.key_head(head) * shape.key_dim;
        [key, shape.keys() + key, 2 * shape.keys() + head * shape.value_dim]
    }

    fn run(&self, isa: Isa, _: usize, tile: &mut [TileRow], inputs: Inputs, out: &mut [TileRow]) {
        delta::run(isa, tile, inputs, out);
    }
}

/// Inputs of rows: q, k and v, and the logits of their rates and of their decays. Row r begins at r times the stride.
#[derive(Clone, Copy)]
struct Rows<'a> {
    qkv: &'a [f32],
    stride: usize,
    gates: &'a [f32],
    gates_stride: usize,
}

impl<'a> Rows<'a> {
    fn qkv(&self, row: usize, channels: Range<usize>) -> &'a [f32] {
        &self.qkv[row * self.stride..][channels]
    }
}

impl Net for DeltaNet {
    fn sizes(&self) -> (usize, usize) {
        (self.shape.state(), self.shape.drafted_row())
    }

    fn width(&self) -> usize {
        self.shape.values()
    }

    fn scratch(&self) -> usize {
        self.shape.heads().scratch()
    }

    fn vectors(&self) -> Vec<&Arc<[f32]>> {
        vec![&self.conv, &self.a, &self.dt_bias, &self.norm.weight]
    }

    /// The first of `inputs`, `[T, channels + values]`: q, k, v and the gate of the output. The second,
    /// `[T, 2 value_heads]`: the rates' logits, then the decays'. `out` `[T, values]`.
    fn run(&self, at: Host, inputs: &[&[f32]], spans: &[Span], out: &mut [f32]) -> Result<()> {
        let (pass, Host { states, scratch, .. }) = (Pass::new(at.on, self), at);
        let StatePart { data, kept, .. } = states;
        let shape = &self.shape;
        let (rows, stride) = (out.len() / shape.values(), shape.channels() + shape.values());
        let &[mixed, gates] = inputs else { return Err(other_inputs()) };
        let fits = mixed.len() == rows * stride && gates.len() == rows * 2 * shape.value_heads;
        if !fits || out.len() != rows * shape.values() {
            return Err(other_inputs());
        }
        let inputs = Rows { qkv: mixed, stride, gates, gates_stride: 2 * shape.value_heads };
        pass.prepare(data, scratch, &inputs, spans, rows)?;
        pass.keep_drafted(kept, &inputs, spans);
        pass.recur(data, scratch, &pass.taps(&inputs), spans, rows);
        pass.norm(&scratch.outputs, mixed, stride, out);
        Ok(())
    }

    fn advance(&self, at: Host, accepted: &[Accepted]) -> Result<()> {
        let (pass, Host { states, scratch, .. }) = (Pass::new(at.on, self), at);
        let StatePart { data, kept, .. } = states;
        let shape = &self.shape;
        let stride = shape.drafted_row();
        for accepted in accepted {
            let (own, rows) = (kept.of(accepted)?, accepted.rows as usize);
            let inputs = Rows { qkv: own, stride, gates: &own[shape.channels()..], gates_stride: stride };
            let spans = [Span::of_accepted(accepted)];
            pass.prepare(data, scratch, &inputs, &spans, rows)?;
            pass.recur(data, scratch, &pass.taps(&inputs), &spans, rows);
        }
        Ok(())
    }
}

impl Pass<'_, DeltaNet> {
    /// Convolves q, k and v, normalizes the heads of q and k, and computes decays and rates.
    fn prepare(
        &self,
        states: &[f32],
        scratch: &mut RecurrentScratch,
        inputs: &Rows,
        spans: &[Span],
        rows: usize,
    ) -> Result<()> {
        let shape = &self.net.shape;
        let (channels, heads) = (shape.channels(), shape.value_heads);
        scratch.grow(rows, &shape.heads())?;
        let taps = self.taps(inputs);
        let (mixed, gates) = (SharedOut::new(&mut scratch.mixed), SharedOut::new(&mut scratch.gates));
        let units = 2 * shape.key_heads + shape.value_heads;
        self.pool.run_if_worth(rows * channels * (shape.kernel + 16), rows * (units + 1), &|task| {
            let (row, unit) = (task / (units + 1), task % (units + 1));
            if unit == units {
                let at = row * 2 * heads..(row + 1) * 2 * heads;
                // SAFETY: each task has a row, or channels of a row, of its own.
                return self.gates(&inputs.gates[row * inputs.gates_stride..], unsafe { gates.slice(at) });
            }
            let (span, own) = (Span::of(spans, row), self.channels_of(unit));
            let at = row * channels + own.start..row * channels + own.end;
            // SAFETY: as above.
            let out = unsafe { mixed.slice(at) };
            let state = &states[span.slot as usize * shape.state()..];
            let sums = &mut [0.0; MAX_HEAD][..own.len()];
            conv::run(self.isa, taps.of(span, row, own, state), sums, out);
            match unit {
                unit if unit < shape.key_heads => {
                    norm::l2_norm_in_place(self.isa, out, L2_EPS, 1.0 / (shape.key_dim as f32).sqrt())
                }
                unit if unit < 2 * shape.key_heads => norm::l2_norm_in_place(self.isa, out, L2_EPS, 1.0),
                _ => {}
            }
        });
        Ok(())
    }

    /// The channels of a head: of q, then of k, then of v.
    fn channels_of(&self, unit: usize) -> Range<usize> {
        let DeltaShape { key_heads, key_dim, value_dim, .. } = self.net.shape;
        match unit.checked_sub(2 * key_heads) {
            None => unit * key_dim..(unit + 1) * key_dim,
            Some(head) => {
                let from = 2 * key_heads * key_dim + head * value_dim;
                from..from + value_dim
            }
        }
    }

    /// The inputs of the convolution.
    fn taps<'b>(&'b self, inputs: &'b Rows<'b>) -> Taps<'b, impl Fn(usize, Range<usize>) -> &'b [f32]> {
        let (shape, input) = (&self.net.shape, |row, own| inputs.qkv(row, own));
        Taps { kernel: shape.kernel, channels: shape.channels(), input, weights: &self.net.conv }
    }

    /// The decay and the rate of each head, from the logits of all rates and then of all decays.
    fn gates(&self, logits: &[f32], out: &mut [f32]) {
        let heads = self.net.shape.value_heads;
        for (head, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let (rate, step) = (logits[head], softplus(logits[heads + head] + self.net.dt_bias[head]));
            *out = [exp(self.net.a[head] * step), 1.0 / (1.0 + exp(-rate))];
        }
    }

    /// Keeps the inputs of drafted rows, for `advance`.
    fn keep_drafted(&self, kept: &mut Kept, inputs: &Rows, spans: &[Span]) {
        let DeltaShape { value_heads, .. } = self.net.shape;
        kept.keep(Span::drafted(spans), |row, to| {
            let (qkv, gates) = to.split_at_mut(self.net.shape.channels());
            qkv.copy_from_slice(inputs.qkv(row, 0..qkv.len()));
            gates.copy_from_slice(&inputs.gates[row * inputs.gates_stride..][..2 * value_heads]);
        });
    }

    /// The norm of each head of `x` `[rows, values]`, times SiLU of the output's gate, which follows the channels in
    /// the rows of `mixed`.
    fn norm(&self, x: &[f32], mixed: &[f32], stride: usize, out: &mut [f32]) {
        let (shape, norm) = (&self.net.shape, &self.net.norm);
        let (values, dim) = (shape.values(), shape.value_dim);
        let (rows, shared) = (out.len() / values, SharedOut::new(out));
        self.pool.run_if_worth(rows * values * 16, rows, &|row| {
            let gate = &mixed[row * stride + shape.channels()..][..values];
            let mut normed = [0.0; MAX_HEAD];
            let normed = &mut normed[..dim];
            for (head, gate) in gate.chunks_exact(dim).enumerate() {
                let at = row * values + head * dim..row * values + (head + 1) * dim;
                norm::rms_norm(self.isa, &x[at.clone()], &norm.weight, norm.eps, normed);
                // SAFETY: each task has a row of its own.
                elementwise::swiglu(self.isa, gate, normed, unsafe { shared.slice(at) });
            }
        });
    }
}

/// Maximum elements of a head's key, and of its value.
pub const MAX_HEAD: usize = 512;
