//! One pass on the CPU: an arm for each operation.

use super::registers::{Registers, Rows};
use super::{CpuOps, Scratch};
use crate::base::{Error, Result, grow};
use crate::kernels::Matrix;
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::rows::cap::cap_all;
use crate::ops::attention::{self, KvWrite};
use crate::ops::batch::{Outputs, RaggedBatch};
use crate::ops::blend::Blend;
use crate::ops::embed::Embed;
use crate::ops::encode::Encode;
use crate::ops::experts::Experts;
use crate::ops::fold::Fold;
use crate::ops::latent::Heads;
use crate::ops::lora::Adapted;
use crate::ops::memory::HostMemory;
use crate::ops::mixture::Mixture;
use crate::ops::net::{Host, Net, other_inputs};
use crate::ops::pass::{Attend, Ids, Op, Product, Reg, Step, Sum};
use crate::ops::spans::Span;
use crate::ops::tensors;
use crate::ops::types::{Activation, Norm};
use std::borrow::Cow;

pub(super) struct Run<'a> {
    pub ops: &'a CpuOps,
    pub step: &'a Step<'a>,
    memory: Option<&'a mut HostMemory>,
    pub registers: Registers<'a>,
    pub scratch: &'a mut Scratch,
    /// The adapters of the rows that products have now.
    pub adapted: Cow<'a, [Adapted]>,
    /// The rows of each sequence, once a layer with a state has asked for them.
    spans: Option<Vec<Span<'a>>>,
    out: &'a mut Outputs,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        ops: &'a CpuOps,
        step: &'a Step<'a>,
        memory: Option<&'a mut HostMemory>,
        registers: Registers<'a>,
        scratch: &'a mut Scratch,
        out: &'a mut Outputs,
    ) -> Self {
        out.begin(step.batch);
        let adapted = (&step.batch.adapted).into();
        Self { ops, step, memory, registers, scratch, adapted, spans: None, out }
    }

    /// Copies the rows of the program's inputs.
    pub(super) fn give(&mut self, inputs: &[Reg], given: &[&[f32]]) -> Result<()> {
        if inputs.len() != given.len() {
            return Err(Error::internal(format!(
                "{} inputs of a pass that has {}",
                given.len(),
                inputs.len()
            )));
        }
        for (reg, given) in inputs.iter().zip(given) {
            let [to] = self.registers.made(self.step.batch.tokens.len(), [], *reg)?;
            if to.data.len() != given.len() {
                return Err(Error::internal(format!("{} elements for {:?}", given.len(), to.dims())));
            }
            to.data.copy_from_slice(given);
        }
        Ok(())
    }

    pub(super) fn op(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Embed { ids, table, scale, to } => self.embed(*ids, table, *scale, *to),
            Op::Blend { table, to } => self.blend(table, *to),
            Op::Replace { x, scale } => self.replace(*x, *scale),
            Op::Unfold { x, fold } => self.unfold(*x, fold),
            Op::Linear { input, norm, product, to } => self.linear(input, norm.as_ref(), product, *to),
            Op::Attention { qkv, how, to } => self.attention(*qkv, how, Some(*to)),
            Op::Append { qkv, how } => self.attention(*qkv, how, None),
            Op::Encode { qkv, how, to } => self.encode(*qkv, how, *to),
            Op::Recur { inputs, place, net, to } => self.recur(inputs, *place, &**net, *to),
            Op::Experts { x, norm, experts, activation, to } => {
                self.experts(*x, norm.as_ref(), experts, *activation, *to)
            }
            Op::Shift { x, to } => self.shift(*x, *to),
            Op::Want { x } => self.want(*x),
            Op::Hidden { x, norm } => self.hidden(*x, norm.as_ref()),
            Op::Head { x, rows, norm, product, cap } => self.head([*x, *rows], norm.as_ref(), product, *cap),
            Op::Check => Ok(()),
            Op::Add(_)
            | Op::Gated { .. }
            | Op::Norm { .. }
            | Op::NormParts { .. }
            | Op::NormColumns { .. }
            | Op::Scale { .. }
            | Op::GatedColumns { .. }
            | Op::SplitGate { .. }
            | Op::Gate { .. }
            | Op::Absorb { .. }
            | Op::Expand { .. }
            | Op::Columns { .. }
            | Op::Beside { .. } => self.by_rows(op),
            Op::Clamp { .. } | Op::Standardize { .. } | Op::Average { .. } => self.of_towers(op),
        }
    }

    /// Operations on rows by themselves.
    fn by_rows(&mut self, op: &Op) -> Result<()> {
        let on = self.ops.on();
        match op {
            Op::Add(Sum { x, y, norm }) => {
                let [x, y] = self.registers.of([*x, *y])?;
                on.add(x.data, y.data, [x.rows, x.width], norm.as_ref())
            }
            Op::Gated { x, activation, to } => {
                let [x, to] = self.registers.like(*x, *to)?;
                on.gated(x.data, to.dims(), *activation, to.data)
            }
            Op::Norm { x, norm, to } => {
                let [x, to] = self.registers.like(*x, *to)?;
                on.norm(x.data, x.dims(), norm, to.data)
            }
            Op::NormParts { x, norm } => {
                let [x] = self.registers.of([*x])?;
                on.norm_parts(x.data, [x.rows, x.width], norm)
            }
            Op::NormColumns { x, from, norm } => {
                let [x] = self.registers.of([*x])?;
                on.norm_columns(x.data, [x.rows, x.width], *from, norm)
            }
            Op::Scale { x, by } => {
                let [x] = self.registers.of([*x])?;
                on.scale(x.data, [x.rows, x.width], *by);
                Ok(())
            }
            Op::GatedColumns { gate, inputs, from, activation, to } => {
                let rows = self.registers.rows(*gate);
                let [gate, inputs, to] = self.registers.made(rows, [*gate, *inputs], *to)?;
                let (gate, inputs) = ((&*gate.data, gate.dims()), (&*inputs.data, inputs.dims()));
                on.gated_columns(gate, inputs, *from, *activation, to.data)
            }
            Op::SplitGate { x, shape, to, gate } => {
                self.registers.make(*gate, self.registers.rows(*x))?;
                let [x, gate, to] = self.registers.made(self.registers.rows(*x), [*x, *gate], *to)?;
                on.split_gate(x.data, x.dims(), shape, [to.data, gate.data])
            }
            Op::Gate { x, gate, to } => {
                let [x, gate, to] = self.registers.made(self.registers.rows(*x), [*x, *gate], *to)?;
                on.logistic((gate.data, gate.width), x.data, x.dims(), to.data)
            }
            Op::Absorb { q, kv, latent, to } => {
                let [q, kv, to] = self.registers.made(self.registers.rows(*q), [*q, *kv], *to)?;
                let heads = Heads { on, scratch: &self.scratch.product, latent };
                heads.absorb(q.data, kv.data, [q.dims(), kv.dims()], to.data)
            }
            Op::Expand { x, latent, to } => {
                let [x, to] = self.registers.like(*x, *to)?;
                Heads { on, scratch: &self.scratch.product, latent }.expand(x.data, x.dims(), to.data)
            }
            Op::Beside { a, b, norms: [a_norm, b_norm], to } => {
                let [a, b, to] = self.registers.made(self.registers.rows(*a), [*a, *b], *to)?;
                let widths = [a.width, b.width];
                on.beside([(a.data, a_norm), (b.data, b_norm)], a.rows, widths, to.data)
            }
            Op::Columns { x, from, to } => {
                let [x, to] = match from {
                    0 => self.registers.like(*x, *to)?,
                    _ => self.registers.of([*x, *to])?,
                };
                on.put(x.data, x.dims(), *from, (to.data, to.width))
            }
            _ => Err(Error::internal("an operation without an arm")),
        }
    }

    /// Operations on rows of vision towers.
    fn of_towers(&mut self, op: &Op) -> Result<()> {
        let on = self.ops.on();
        match op {
            Op::Clamp { x, min, max } => {
                let [x] = self.registers.of([*x])?;
                on.clamp(x.data, [x.rows, x.width], [*min, *max]);
                Ok(())
            }
            Op::Standardize { x, minus, by } => {
                let [x] = self.registers.of([*x])?;
                on.standardize(x.data, [x.rows, x.width], [minus, by])
            }
            Op::Average { x, parts, to } => {
                let [x, to] = self.registers.like(*x, *to)?;
                on.average(x.data, to.dims(), *parts, to.data)
            }
            _ => Err(Error::internal("an operation without an arm")),
        }
    }

    fn embed(&mut self, ids: Ids, table: &Matrix, scale: f32, to: Reg) -> Result<()> {
        let CpuOps { pool, isa, .. } = self.ops;
        let ids = self.step.ids(ids);
        let [to] = self.registers.made(ids.len(), [], to)?;
        Embed { table, scale, isa: *isa, pool }.run(&ids, to.data)
    }

    fn blend(&mut self, table: &Matrix, to: Reg) -> Result<()> {
        let (RaggedBatch { tokens, blends, .. }, CpuOps { pool, isa, .. }) = (self.step.batch, self.ops);
        let [to] = self.registers.made(tokens.len(), [], to)?;
        Blend { table, blends, isa: *isa, pool }.run(tokens.len(), to.data)
    }

    fn replace(&mut self, x: Reg, scale: f32) -> Result<()> {
        let RaggedBatch { vectors, vector_rows, .. } = self.step.batch;
        let [Rows { data, rows, width }] = self.registers.of([x])?;
        let fits = vector_rows.iter().all(|row| (*row as usize) < rows);
        if !fits || vectors.len() != vector_rows.len() * width {
            return Err(Error::internal(format!("{} elements for rows {vector_rows:?}", vectors.len())));
        }
        for (row, vector) in vector_rows.iter().zip(vectors.chunks_exact(width.max(1))) {
            let to = &mut data[*row as usize * width..][..width];
            to.iter_mut().zip(vector).for_each(|(to, x)| *to = x * scale);
        }
        Ok(())
    }

    fn unfold(&mut self, x: Reg, fold: &Fold) -> Result<()> {
        let [Rows { data, rows, width }] = self.registers.of([x])?;
        fold.check(width)?;
        let shared = SharedOut::new(data);
        self.ops.pool.run_if_worth(16 * rows * width, rows, &|row| {
            // SAFETY: each task has a row of its own.
            fold.undo(self.ops.isa, unsafe { shared.slice(row * width..(row + 1) * width) });
        });
        Ok(())
    }

    /// Without `to` it only writes K and V.
    fn attention(&mut self, qkv: Reg, how: &Attend, to: Option<Reg>) -> Result<()> {
        let (step, CpuOps { pool, isa, .. }) = (self.step, self.ops);
        let (paging, place, isa) = (step.paging(how)?, how.place, *isa);
        let (memory, how) = (kept(&mut self.memory)?, &step.attention(how)?);
        let Scratch { angles, pieces, .. } = &mut *self.scratch;
        let table = angles.of(pool, step.batch, how.rope)?;
        let write = KvWrite { pool, isa, paging, how, table };
        if !how.shared {
            let [qkv] = self.registers.of([qkv])?;
            memory.update(place, |kv| write.run(kv, qkv.data, qkv.dims()))?;
        }
        let Some(to) = to else { return Ok(()) };
        let [qkv, to] = self.registers.made(paging.rows(), [qkv], to)?;
        let attend = attention::Attend { pool, isa, paging, how, table, pieces };
        tensors::read_bytes(memory.layer(place)?, |kv| attend.run(kv, qkv.data, qkv.dims(), to.data))
    }

    fn encode(&mut self, qkv: Reg, how: &Attend, to: Reg) -> Result<()> {
        let (batch, part, CpuOps { pool, isa, .. }) = (self.step.batch, self.step.part.clone(), self.ops);
        let how = &self.step.attention(how)?;
        let table = self.scratch.angles.of(pool, batch, how.rope)?;
        let [qkv, to] = self.registers.made(batch.tokens.len(), [qkv], to)?;
        let dims = qkv.dims();
        Encode { pool, isa: *isa, batch, how, table, part }.run(qkv.data, dims, to.data)
    }

    fn recur(&mut self, inputs: &[Reg], layer: usize, net: &dyn Net, to: Reg) -> Result<()> {
        let (on, batch, scratch) = (self.ops.on(), self.step.batch, &mut self.scratch.recurrent);
        let states = kept(&mut self.memory)?.states.layer(layer)?;
        let spans = match &self.spans {
            Some(spans) => spans,
            None => self.spans.insert(Span::all(batch)?),
        };
        self.registers.make(to, batch.tokens.len())?;
        let at = Host { on, states, scratch };
        match *inputs {
            [x] => {
                let [x, to] = self.registers.of([x, to])?;
                net.run(at, &[x.data], spans, to.data)
            }
            [a, b] => {
                let [a, b, to] = self.registers.of([a, b, to])?;
                net.run(at, &[a.data, b.data], spans, to.data)
            }
            _ => Err(other_inputs()),
        }
    }

    fn experts(
        &mut self,
        x: Reg,
        norm: Option<&Norm>,
        experts: &Experts,
        activation: Activation,
        to: Reg,
    ) -> Result<()> {
        let on = self.ops.on();
        let [x, to] = self.registers.like(x, to)?;
        let mixture = Mixture { on, scratch: &self.scratch.product, experts, activation };
        mixture.run(&mut self.scratch.experts, x.data, x.dims(), norm, to.data)
    }

    fn shift(&mut self, x: Reg, to: Reg) -> Result<()> {
        let [x, to] = self.registers.like(x, to)?;
        kept(&mut self.memory)?.states.shift(x.data, x.dims(), self.step.batch, to.data)
    }

    fn want(&mut self, x: Reg) -> Result<()> {
        let step = self.step;
        let Some(wanted) = &step.wanted else { return Ok(()) };
        let [Rows { data, rows, width }] = self.registers.of([x])?;
        // In ascending order, no row is overwritten before it is read.
        let ascending = wanted.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || wanted.last().is_some_and(|last| *last as usize >= rows) {
            return Err(Error::internal(format!("wanted rows {wanted:?} of {rows}")));
        }
        for (to, from) in wanted.iter().map(|row| *row as usize).enumerate() {
            data.copy_within(from * width..(from + 1) * width, to * width);
        }
        self.registers.shorten(x, wanted.len());
        self.adapted = step.adapted_wanted();
        Ok(())
    }

    fn hidden(&mut self, x: Reg, norm: Option<&Norm>) -> Result<()> {
        let (on, step) = (self.ops.on(), self.step);
        let wanted = &step.batch.hidden_rows;
        let [Rows { data, rows, width }] = self.registers.of([x])?;
        if norm.is_some_and(|norm| norm.weight.len() != width)
            || wanted.iter().any(|row| step.place(*row) >= rows)
        {
            return Err(Error::internal(format!("hidden states of {rows} rows of {width}")));
        }
        let (before, count) = (self.out.hidden.len(), wanted.len());
        let out = grow(&mut self.out.hidden, before + count * width, "a step's outputs")?;
        let out = SharedOut::new(&mut out[before..]);
        let data = &*data;
        on.pool.run_if_worth(count * width, count, &|n| {
            let row = &data[step.place(wanted[n]) * width..][..width];
            // SAFETY: each task has a row of its own.
            let out = unsafe { out.slice(n * width..(n + 1) * width) };
            match norm {
                Some(norm) => norm.apply(on.isa, row, out),
                None => out.copy_from_slice(row),
            }
        });
        Ok(())
    }

    /// `rows` is for the rows of `x` that have logits.
    fn head(
        &mut self,
        [x, rows]: [Reg; 2],
        norm: Option<&Norm>,
        product: &Product,
        cap: Option<f32>,
    ) -> Result<()> {
        let step = self.step;
        let wanted = &step.batch.logits_rows;
        if wanted.is_empty() {
            return Ok(());
        }
        let all = wanted.len() == self.registers.rows(x);
        if !all {
            let [x, to] = self.registers.made(wanted.len(), [x], rows)?;
            for (to, row) in
                to.data.chunks_exact_mut(x.width.max(1)).zip(wanted.iter().map(|row| step.place(*row)))
            {
                let from = x.data.get(row * x.width..(row + 1) * x.width);
                to.copy_from_slice(from.ok_or_else(|| Error::internal(format!("logits of row {row}")))?);
            }
        }
        self.adapted = step.adapted_logits();
        let (count, width) = (wanted.len(), product.weights.width());
        // Not cleared: memory that is overwritten needs no zeros first.
        let mut logits = std::mem::take(&mut self.out.logits);
        let len = count.checked_mul(width).ok_or_else(|| Error::internal("logits that no memory holds"))?;
        grow(&mut logits, len, "a step's outputs")?;
        logits.truncate(len);
        let done = self.head_product(if all { x } else { rows }, norm, product, &mut logits);
        cap.iter().for_each(|cap| self.cap(&mut logits, *cap));
        self.out.logits = logits;
        done
    }

    fn cap(&self, logits: &mut [f32], cap: f32) {
        const PIECE: usize = 4096;
        let (len, shared) = (logits.len(), SharedOut::new(logits));
        self.ops.pool.run_if_worth(16 * len, len.div_ceil(PIECE), &|n| {
            // SAFETY: each task has a piece of its own.
            let piece = unsafe { shared.slice(n * PIECE..len.min((n + 1) * PIECE)) };
            cap_all(self.ops.isa, piece, cap);
        });
    }
}

/// The memory of a pass. `Internal` if nothing is kept.
fn kept<'a>(memory: &'a mut Option<&mut HostMemory>) -> Result<&'a mut HostMemory> {
    let none = || Error::internal("a layer that keeps something, in a pass that keeps nothing");
    memory.as_deref_mut().ok_or_else(none)
}
