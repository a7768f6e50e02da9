//! Runs passes: an arm for each operation.

use super::attention::Attend;
use super::graphs::{Results, Way};
use super::launch::{Arg, Launches};
use super::linear::{ROW_THREADS, Rows, Source, row_shared, row_threads, shared_rows};
use super::memory::DeviceMemory;
use super::ops::CudaOps;
use super::parts::Part;
use super::weights::{OnDevice, device_bytes};
use super::{attention, draw, experts, graphs, recur};
use crate::base::{Error, Result, reserve};
use crate::kernels::attention::KvType;
use crate::kernels::rows::hadamard;
use crate::kernels::{Arithmetic, Matrix};
use crate::ops::pass::{self, Ids, Input, Op, Product, Program, Reg, Step, Sum};
use crate::ops::types::cpu_only;
use crate::ops::{
    Accepted, Adapted, AttentionShape, Memory, MemoryLayout, Norm, OpSet, Outputs, Projections, RaggedBatch,
    Weight,
};
use std::borrow::Cow;
use std::collections::HashSet;

impl OpSet for CudaOps {
    fn run(
        &self,
        program: &Program,
        step: &Step,
        memory: Option<&mut dyn Memory>,
        given: &[&[f32]],
        out: &mut Outputs,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        if let Some(part) = step.batch.beyond_tokens() {
            return Err(cpu_only(part));
        }
        if !given.is_empty() {
            return Err(Error::internal(LACKING));
        }
        let memory = memory.ok_or_else(|| Error::internal("a pass on a device that keeps nothing"))?;
        let memory = memory.of::<DeviceMemory>()?;
        out.begin(step.batch);
        self.begin(program, step, memory)?;
        let values = (0..program.places().len()).map(|_| None).collect();
        let adapted = (&step.batch.adapted).into();
        let mut run = Run { ops: self, step, memory, values, adapted, waits: true, out };
        let mut free = program.free().iter().peekable();
        for (at, op) in program.ops().iter().enumerate() {
            match op {
                Op::Check => check()?,
                op => run.op(op)?,
            }
            while let Some((_, reg)) = free.next_if(|(behind, _)| *behind == at) {
                run.values[reg.index()] = None;
            }
        }
        // Reading a result has waited.
        if run.waits { self.queue.stream.synchronize() } else { Ok(()) }
    }

    fn memory(&self, layout: MemoryLayout) -> Result<Box<dyn Memory>> {
        if layout.kv.kind == KvType::Int4 {
            return Err(cpu_only("keys and values in int4"));
        }
        if layout.states.shape.hidden > 0 {
            return Err(cpu_only("hidden states of sequences"));
        }
        self.check_heads(&layout.kv)?;
        Ok(Box::new(DeviceMemory::new(&self.queue, layout)?))
    }

    fn advance(&self, program: &Program, memory: &mut dyn Memory, accepted: &[Accepted]) -> Result<()> {
        self.advance_states(program, memory.of::<DeviceMemory>()?, accepted)
    }

    fn supports(&self, program: &Program) -> Result<()> {
        program.check(|op| {
            let mut taken = lacking(op).map_or(Ok(()), |part| Err(cpu_only(part)));
            if let Op::Recur { net, .. } = op {
                taken = taken.and_then(|()| self.check_net(&**net));
            }
            op.weights(&mut |weight| {
                weight.matrices(&mut |matrix| {
                    let check = || self.check_row(matrix.cols).and_then(|()| OnDevice::check(matrix));
                    taken = taken.clone().and_then(|()| check());
                });
            });
            taken
        })
    }

    fn hold(&self, weight: Weight) -> Result<()> {
        match weight {
            Weight::Table(table) => self.matrix(table).map(drop),
            Weight::Product(weights) => {
                weights.matrices.iter().try_for_each(|matrix| self.matrix(matrix).map(drop))?;
                let norms = weights.norms.iter().map(|norm| &norm.weight);
                let signs = weights.fold.iter().filter_map(|fold| fold.signs.as_ref());
                norms.chain(&weights.bias).chain(signs).try_for_each(|vector| self.vector(vector).map(drop))
            }
            Weight::Norm(norm) | Weight::Derived(norm) => self.vector(&norm.weight).map(drop),
            Weight::Experts(experts) => self.hold_experts(experts),
            Weight::Net(net) => self.hold_net(net),
            Weight::Sinks(_) | Weight::Vector(_) => Err(Error::internal(LACKING)),
            Weight::Adapter(lora) => self.loras.lock().hold(&self.queue, &self.pool, lora).map(drop),
        }
    }

    fn lacks(&self, weight: Weight, seen: &mut HashSet<usize>) -> usize {
        let (known, mut bytes) = (&self.queue.opened.weights, 0);
        weight.matrices(&mut |matrix| {
            if seen.insert(matrix.data.as_ptr() as usize) && !known.has(matrix) {
                bytes += device_bytes(matrix);
            }
        });
        bytes
    }

    fn free_bytes(&self) -> Option<Result<usize>> {
        Some(self.queue.opened.device.free_bytes())
    }

    fn pools(&self) -> bool {
        true
    }

    fn decode_rows(&self, rows: usize) -> usize {
        graphs::bucket(rows)
    }

    fn draws(&self) -> bool {
        true
    }

    fn head_bytes(&self, rows: usize, vocab: usize) -> usize {
        // Logits, two work areas of a draw, its inputs and its results.
        rows.saturating_mul(vocab.saturating_mul(12).saturating_add(draw::MOST))
    }

    fn attention_bytes(&self, shape: &AttentionShape, rows: usize, context: usize) -> usize {
        attention::state_bytes(shape, rows, context)
    }

    fn encode_bytes(&self, _: &AttentionShape, _: usize) -> usize {
        0 // refused
    }
}

/// The state of a pass.
struct Run<'a> {
    ops: &'a CudaOps,
    step: &'a Step<'a>,
    memory: &'a DeviceMemory,
    /// The registers.
    values: Vec<Option<Part>>,
    /// The adapters of the rows that products have now.
    adapted: Cow<'a, [Adapted]>,
    /// Nothing has waited for the pass yet.
    waits: bool,
    out: &'a mut Outputs,
}

impl Run<'_> {
    fn get(&self, reg: Reg) -> Result<&Part> {
        let value = self.values[reg.index()].as_ref();
        value.ok_or_else(|| Error::internal("an operation's input is not there"))
    }

    fn op(&mut self, op: &Op) -> Result<()> {
        let ops = self.ops;
        let (to, made) = match op {
            Op::Check | Op::Replace { .. } => return Ok(()),
            Op::Add(Sum { x, y, norm }) => return ops.add(self.get(*x)?, self.get(*y)?, norm.as_ref()),
            Op::NormColumns { x, from, norm } => return ops.norm_columns(self.get(*x)?, *from, norm),
            Op::Unfold { x, fold } => return ops.unfold(self.get(*x)?, fold),
            Op::Scale { x, by } => return ops.scale(self.get(*x)?, *by),
            Op::Want { x } => return self.want(*x),
            Op::Hidden { x, norm } => return self.hidden(*x, norm.as_ref()),
            Op::Head { x, norm, product, .. } => return self.head(*x, norm.as_ref(), product),
            Op::Append { qkv, how } => return self.attention(*qkv, how).map(drop),
            Op::Embed { ids: Ids::Tokens, table, scale, to } => {
                (to, ops.embed(self.step.batch, table, *scale)?)
            }
            Op::Linear { input, norm, product, to } => (to, self.linear(input, norm.as_ref(), product)?),
            Op::Gated { x, activation, to } => {
                let gate_up = self.get(*x)?;
                let source = Source::Gated { gate_up, activation: *activation };
                (to, ops.row_floats(source.into(), gate_up.dims[1] / 2)?)
            }
            Op::Norm { x, norm, to } => (to, ops.normed(self.get(*x)?, norm)?),
            Op::SplitGate { x, shape, to, gate } => {
                let [qkv, gates] = ops.split_gate(self.get(*x)?, shape)?;
                self.values[gate.index()] = Some(gates);
                (to, qkv)
            }
            Op::Gate { x, gate, to } => (to, ops.gate(self.get(*x)?, self.get(*gate)?)?),
            Op::Attention { qkv, how, to } => (to, self.attention(*qkv, how)?),
            Op::Experts { x, norm, experts, activation, to } => {
                (to, ops.mixture(self.get(*x)?, norm.as_ref(), experts, *activation)?)
            }
            Op::Recur { inputs, place, net, to } => {
                let inputs = inputs.iter().map(|reg| self.get(*reg)).collect::<Result<Vec<_>>>()?;
                (to, ops.recur(&inputs, &**net, self.memory.states(*place)?)?)
            }
            _ => return Err(Error::internal(LACKING)),
        };
        self.values[to.index()] = Some(made);
        Ok(())
    }

    fn attention(&self, qkv: Reg, how: &pass::Attend) -> Result<Part> {
        let (paging, layer) = (self.step.paging(how)?, self.memory.layer(how.place)?);
        let layout = &self.memory.layout().kv;
        paging.check_cache(layout)?;
        let pieces = self.ops.inputs.lock().at.pieces;
        let (qkv, how) = (self.get(qkv)?, &self.step.attention(how)?);
        self.ops.attend(&Attend { qkv, paging, layout, how, layer, pieces })
    }

    fn linear(&self, input: &Input, norm: Option<&Norm>, product: &Product) -> Result<Part> {
        let source = match input {
            Input::Rows(x) => Source::Rows(self.get(*x)?),
            Input::Sum { sum: Sum { x, y, norm }, .. } => {
                let (x, y) = (self.get(*x)?, self.get(*y)?);
                self.ops.check_norm(norm.as_ref(), x.dims[1])?;
                Source::Sum { x, y, norm: norm.as_ref() }
            }
            Input::Gated { x, activation } => {
                Source::Gated { gate_up: self.get(*x)?, activation: *activation }
            }
        };
        let Some(adapted) = product.updated_by(&self.adapted) else {
            return self.ops.product(source, norm, &product.weights);
        };
        // Adapters need the input by itself.
        let made;
        let x = match source {
            Source::Rows(x) => x,
            Source::Sum { x, y, norm } => {
                self.ops.add(x, y, norm)?;
                x
            }
            Source::Gated { gate_up, .. } => {
                made = self.ops.row_floats(source.into(), gate_up.dims[1] / 2)?;
                &made
            }
        };
        self.ops.adapted_product(x, norm, product, adapted)
    }

    fn want(&mut self, x: Reg) -> Result<()> {
        let Some(rows) = &self.step.wanted else { return Ok(()) };
        let chosen = self.ops.gather(self.get(x)?, rows)?;
        self.values[x.index()] = Some(chosen);
        self.adapted = self.step.adapted_wanted();
        Ok(())
    }

    /// Where these rows of the batch are among those that the registers have.
    fn places(&self, rows: &[u32]) -> Vec<u32> {
        rows.iter().map(|row| self.step.place(*row) as u32).collect()
    }

    fn hidden(&mut self, x: Reg, norm: Option<&Norm>) -> Result<()> {
        let rows = &self.step.batch.hidden_rows;
        if rows.is_empty() {
            return Ok(());
        }
        let rows = self.ops.gather(self.get(x)?, &self.places(rows))?;
        let normed = norm.map(|norm| self.ops.normed(&rows, norm)).transpose()?;
        self.waits = false;
        let (rows, out) = (normed.as_ref().unwrap_or(&rows), &mut self.out.hidden);
        if out.is_empty() {
            return rows.copy_to(out);
        }
        let mut more = Vec::new();
        rows.copy_to(&mut more)?;
        reserve(out, more.len(), "a step's outputs")?;
        out.extend_from_slice(&more);
        Ok(())
    }

    fn head(&mut self, x: Reg, norm: Option<&Norm>, product: &Product) -> Result<()> {
        let rows = &self.step.batch.logits_rows;
        if rows.is_empty() {
            return Ok(());
        }
        self.waits = false;
        let places = self.places(rows);
        let Self { ops, step, values, out, .. } = self;
        let x = values[x.index()].as_ref().ok_or_else(|| Error::internal("logits of no rows"))?;
        let own = (rows.len() < x.dims[0]).then(|| ops.gather(x, &places)).transpose()?;
        let x = own.as_ref().unwrap_or(x);
        let adapted = step.adapted_logits();
        match product.updated_by(&adapted) {
            None => ops.head(x, norm, &product.weights, step, out),
            Some(adapted) => ops.adapted_product(x, norm, product, adapted)?.copy_to(&mut out.logits),
        }
    }
}

impl CudaOps {
    /// Begins a step, and decides how its launches are run.
    fn begin(&self, program: &Program, step: &Step, memory: &DeviceMemory) -> Result<()> {
        let (batch, memory) = (step.batch, (memory.addresses()?, *memory.layout()));
        self.queue.give();
        self.loras.lock().forget();
        let outputs = batch.logits_rows.len().max(batch.hidden_rows.len());
        self.parts.begin(&self.queue, batch.tokens.len(), outputs)?;
        self.begin_inputs(batch)?;
        let mut graphs = self.graphs.lock();
        graphs.begin(batch, memory);
        match graphs.choose(program.id(), self.generation()) {
            Way::Give => {}
            Way::Keep => self.queue.keep(),
            Way::Leave => self.queue.leave(),
        }
        Ok(())
    }

    /// The product of `x` after `norm`, and the updates of adapters.
    fn adapted_product(
        &self,
        x: &Part,
        norm: Option<&Norm>,
        product: &Product,
        adapted: &[Adapted],
    ) -> Result<Part> {
        let normed = norm.map(|norm| self.normed(x, norm)).transpose()?;
        let x = normed.as_ref().unwrap_or(x);
        let y = self.product(Source::Rows(x), None, &product.weights)?;
        let Some(site) = product.site else { return Ok(y) };
        adapted.iter().try_for_each(|adapted| self.update(&y, x, &product.weights, adapted, site))?;
        Ok(y)
    }

    /// `norm` of each row.
    fn normed(&self, x: &Part, norm: &Norm) -> Result<Part> {
        self.row_floats(Rows { norm: Some(norm), ..Source::Rows(x).into() }, x.dims[1])
    }

    /// Rows of `table` for the batch's tokens, times `scale`.
    fn embed(&self, batch: &RaggedBatch, table: &Matrix, scale: f32) -> Result<Part> {
        let (rows, cols) = (batch.tokens.len(), table.cols);
        if let Some(id) = batch.tokens.iter().find(|id| **id as usize >= table.rows) {
            return Err(Error::internal(format!("token id {id}: the embedding has {} rows", table.rows)));
        }
        let out = self.part(rows, cols)?;
        if self.queue.leaves() {
            return Ok(out);
        }
        let held = self.matrix(table)?;
        let rotated = table.dtype.arithmetic() == Arithmetic::Int8 && hadamard::rotation(cols) > 1;
        let by = if rotated { 1.0 } else { scale };
        let args = held.embed_args(self.inputs.lock().at.tokens, by, out.arg()?, cols)?;
        let kernel = &self.kernels().products[held.product].embed;
        // SAFETY: ids are rows of the table; out is `[rows, cols]`.
        unsafe { self.launch(kernel, shared_rows(rows, cols, ROW_THREADS, 1), ROW_THREADS, 0, &args)? };
        if rotated {
            self.unrotate(&out, scale)?;
        }
        Ok(out)
    }

    /// The logits of the rows of `x`, and what is drawn from them.
    fn head(
        &self,
        x: &Part,
        norm: Option<&Norm>,
        weights: &Projections,
        step: &Step,
        out: &mut Outputs,
    ) -> Result<()> {
        let logits = self.product(Source::Rows(x), norm, weights)?;
        let rows = step.batch.draws.rows.len();
        let draws = logits.dims[1] <= draw::VOCABULARY && rows == logits.dims[0];
        let drawn = if draws { Some(self.draw(&logits)?) } else { None };
        let made = Results::of(&logits, drawn.as_ref());
        let made = match (self.queue.end(), made) {
            (Launches::Left, _) => self.graphs.lock().launch(&self.queue, self.generation())?,
            (Launches::Kept(kept), Some(made)) => {
                // SAFETY: weights stay as long as these operations, all other memory as long as this generation.
                unsafe { self.graphs.lock().keep(&self.queue, kept, &made) };
                Some(made)
            }
            (_, made) => made,
        };
        match made {
            Some(made) => {
                let draws = &step.batch.draws;
                made.read(&self.queue, &mut self.staging.lock(), logits.dims, draws, out)
            }
            None => logits.copy_to(&mut out.logits),
        }
    }

    /// `norm` of the columns of `x` that begin at `from`, in place.
    fn norm_columns(&self, x: &Part, from: usize, norm: &Norm) -> Result<()> {
        let ([rows, stride], cols) = (x.dims, norm.weight.len());
        if from + cols > stride {
            return Err(Error::internal(format!("a norm of columns {from} to {} of {stride}", from + cols)));
        }
        if self.queue.leaves() {
            return Ok(());
        }
        let (weight, eps) = self.norm_args(Some(norm))?;
        let first = x.address()? + (from * size_of::<f32>()) as u64;
        let args = [first.into(), weight, eps, Arg::int(cols), Arg::int(stride)];
        // SAFETY: the columns are within rows of `stride`, as checked; the weight is `[cols]`.
        unsafe {
            let (kernel, threads) = (&self.kernels().norm_columns, row_threads(cols));
            self.launch(kernel, [rows, 1, 1], threads, row_shared(cols), &args)
        }
    }

    /// `x += y`, with `norm(y)` if there is a norm.
    fn add(&self, x: &Part, y: &Part, norm: Option<&Norm>) -> Result<()> {
        let [rows, cols] = x.dims;
        y.check("a sum", x.dims)?;
        if self.queue.leaves() {
            return Ok(());
        }
        self.check_norm(norm, cols)?;
        let (to, from) = (x.arg()?, y.arg()?);
        if norm.is_none() {
            let grid = [(rows * cols).div_ceil(ROW_THREADS), 1, 1];
            let args = [to, from, Arg::long(rows * cols)];
            // SAFETY: both have this many elements.
            return unsafe { self.launch(&self.kernels().add, grid, ROW_THREADS, 0, &args) };
        }
        let (weight, eps) = self.norm_args(norm)?;
        let args = [to, from, weight, eps, Arg::int(cols)];
        // SAFETY: both are `[rows, cols]`, the weight is `[cols]`.
        unsafe {
            let (kernel, threads) = (&self.kernels().add_rms_norm, row_threads(cols));
            self.launch(kernel, [rows, 1, 1], threads, row_shared(cols), &args)
        }
    }
}

const LACKING: &str = "an operation or a weight that is not supported on a device";

/// The part of an operation and of its weights that devices lack, if there is one.
fn lacking(op: &Op) -> Option<&'static str> {
    let mut part = lacking_of(op);
    op.weights(&mut |weight| {
        part = part.or(match weight {
            Weight::Norm(norm) | Weight::Derived(norm) => norm.bias.as_ref().map(|_| "layer norms"),
            Weight::Experts(experts) => experts::lacking(experts),
            Weight::Sinks(_) => Some("attention sinks"),
            Weight::Vector(_) => Some("standardized rows"),
            Weight::Table(_) | Weight::Product(_) | Weight::Net(_) | Weight::Adapter(_) => None,
        })
    });
    part
}

/// As `lacking`, without the weights.
fn lacking_of(op: &Op) -> Option<&'static str> {
    match op {
        Op::Attention { how, .. } | Op::Append { how, .. } => {
            let mtp = (how.from > 0).then_some("blocks of multi-token prediction");
            how.shape.cpu_only().or(mtp)
        }
        Op::Linear { input: Input::Sum { activation: Some(activation), .. }, .. }
        | Op::Linear { input: Input::Gated { activation, .. }, .. }
        | Op::Gated { activation, .. }
        | Op::Experts { activation, .. } => activation.cpu_only(),
        Op::NormParts { .. } | Op::GatedColumns { .. } => Some("inputs of single layers"),
        Op::Absorb { .. } | Op::Expand { .. } => Some("latent attention"),
        Op::Recur { net, .. } => recur::lacking(&**net),
        Op::Encode { .. } => Some("encoders"),
        Op::Blend { .. } | Op::Average { .. } | Op::Clamp { .. } | Op::Standardize { .. } => {
            Some("vision towers")
        }
        Op::Beside { .. } | Op::Shift { .. } => Some("blocks of multi-token prediction"),
        Op::Columns { .. } => Some("EAGLE heads"),
        Op::Head { cap: Some(_), .. } => Some("capped logits"),
        Op::Embed { ids: Ids::Types | Ids::Positions(_), .. } => Some("encoders"),
        Op::Check
        | Op::Replace { .. }
        | Op::Embed { .. }
        | Op::Unfold { .. }
        | Op::Linear { .. }
        | Op::Add(_)
        | Op::Norm { .. }
        | Op::NormColumns { .. }
        | Op::Scale { .. }
        | Op::SplitGate { .. }
        | Op::Gate { .. }
        | Op::Want { .. }
        | Op::Hidden { .. }
        | Op::Head { .. } => None,
    }
}
