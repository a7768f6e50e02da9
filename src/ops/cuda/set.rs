//! The operations themselves.

use super::attention::Attend;
use super::graphs::{Results, Way};
use super::kv::DeviceKv;
use super::launch::{Arg, Launches};
use super::linear::{ROW_THREADS, Source, row_shared, row_threads, shared_rows};
use super::ops::CudaOps;
use super::weights::device_bytes;
use super::{attention, draw, graphs};
use crate::base::{Error, Result};
use crate::kernels::attention::KvType;
use crate::kernels::rows::hadamard;
use crate::kernels::{Arithmetic, Matrix};
use crate::ops::pass::Op;
use crate::ops::types::cpu_only;
use crate::ops::{
    Activation, Adapted, Attention, AttentionShape, Experts, Head, KvCache, KvLayout, Norm, OpSet, Owned,
    Paging, Projections, RaggedBatch, Site, Weight,
};
use std::collections::HashSet;

impl OpSet for CudaOps {
    fn hold(&self, weight: Weight) -> Result<()> {
        match weight {
            Weight::Table(table) => self.matrix(table).map(drop),
            Weight::Op(op) => lacking(op).map_or(Ok(()), |part| Err(cpu_only(part))),
            Weight::CpuOnly(part) => Err(cpu_only(part)),
            Weight::Product(Projections { fold: Some(_), .. }) => Err(cpu_only("rotated weights")),
            Weight::Product(weights) => {
                weights.matrices.iter().try_for_each(|matrix| self.check_row(matrix.cols))?;
                weights.matrices.iter().try_for_each(|matrix| self.matrix(matrix).map(drop))?;
                let norms = weights.norms.iter().map(|norm| &norm.weight);
                norms.chain(&weights.bias).try_for_each(|vector| self.vector(vector).map(drop))
            }
            Weight::Norm(Norm { bias: Some(_), .. }) => Err(cpu_only("layer norms")),
            Weight::Norm(norm) => self.vector(&norm.weight).map(drop),
            Weight::Experts(experts) => self.hold_experts(experts),
            Weight::Recurrent(_) => Err(cpu_only("recurrent layers")),
            Weight::Sinks(_) => Err(cpu_only("attention sinks")),
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

    fn finish(&self) -> Result<()> {
        self.queue.stream.synchronize()
    }

    fn free_bytes(&self) -> Option<Result<usize>> {
        Some(self.queue.opened.device.free_bytes())
    }

    fn kv_cache(&self, layout: KvLayout) -> Result<KvCache> {
        if layout.kind == KvType::Int4 {
            return Err(cpu_only("keys and values in int4"));
        }
        self.check_heads(&layout)?;
        Ok(KvCache::on_device(layout, DeviceKv::new(&self.queue, &layout)?))
    }

    fn begin(&self, batch: &RaggedBatch, kv: &KvCache) -> Result<()> {
        let kv = (kv.device()?.address()?, kv.layout);
        self.queue.give();
        self.loras.lock().forget();
        let outputs = batch.logits_rows.len().max(batch.hidden_rows.len());
        self.parts.begin(&self.queue, batch.tokens.len(), outputs)?;
        self.begin_inputs(batch)?;
        self.graphs.lock().begin(batch, kv);
        Ok(())
    }

    fn embed(&self, batch: &RaggedBatch, table: &Matrix, scale: f32) -> Result<Owned> {
        let (rows, cols) = (batch.tokens.len(), table.cols);
        if let Some(id) = batch.tokens.iter().find(|id| **id as usize >= table.rows) {
            return Err(Error::internal(format!("token id {id}: the embedding has {} rows", table.rows)));
        }
        match self.graphs.lock().choose(table.data.as_ptr() as usize, self.generation()) {
            Way::Give => {}
            Way::Keep => self.queue.keep(),
            Way::Leave => self.queue.leave(),
        }
        let out = self.part(rows, cols)?;
        if self.queue.leaves() {
            return Ok(out.into());
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
        Ok(out.into())
    }

    fn linear(&self, x: &Owned, norm: Option<&Norm>, weights: &Projections) -> Result<Owned> {
        Ok(self.product(Source::Rows(x.part()?), norm, weights)?.into())
    }

    fn decode_rows(&self, rows: usize) -> usize {
        graphs::bucket(rows)
    }

    fn draws(&self) -> bool {
        true
    }

    fn head(&self, to: Head, x: &Owned, norm: Option<&Norm>, weights: &Projections) -> Result<()> {
        let logits = self.product(Source::Rows(x.part()?), norm, weights)?;
        let draws = logits.dims[1] <= draw::VOCABULARY && to.draws.rows.len() == logits.dims[0];
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
            Some(made) => made.read(&self.queue, &mut self.staging.lock(), logits.dims, to),
            None => {
                to.tokens.clear();
                logits.copy_to(to.logits)
            }
        }
    }

    fn head_bytes(&self, rows: usize, vocab: usize) -> usize {
        // Logits, two work areas of a draw, its inputs and its results.
        rows.saturating_mul(vocab.saturating_mul(12).saturating_add(draw::MOST))
    }

    fn norm(&self, x: &Owned, norm: &Norm) -> Result<Owned> {
        let x = x.part()?;
        Ok(self.row_floats(Source::Rows(x), Some(norm), x.dims[1])?.into())
    }

    fn norm_columns(&self, x: &mut Owned, from: usize, norm: &Norm) -> Result<()> {
        let x = x.part()?;
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

    fn attention(
        &self,
        qkv: &Owned,
        paging: &Paging,
        kv: &KvCache,
        layer: usize,
        how: &Attention,
    ) -> Result<Owned> {
        let (qkv, layout, layer) = (qkv.part()?, &kv.layout, kv.device()?.layer(layer)?);
        paging.check_cache(layout)?;
        let pieces = self.inputs.lock().at.pieces;
        Ok(self.attend(&Attend { qkv, paging, layout, how, layer, pieces })?.into())
    }

    fn attention_bytes(&self, shape: &AttentionShape, rows: usize, context: usize) -> usize {
        attention::state_bytes(shape, rows, context)
    }

    fn gated(&self, gate_up: &Owned, activation: Activation) -> Result<Owned> {
        let gate_up = gate_up.part()?;
        Ok(self.row_floats(Source::Gated { gate_up, activation }, None, gate_up.dims[1] / 2)?.into())
    }

    fn add(&self, x: &mut Owned, y: &Owned, norm: Option<&Norm>) -> Result<()> {
        let (x, y) = (x.part()?, y.part()?);
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

    fn rows(&self, x: &Owned, rows: &[u32]) -> Result<Owned> {
        self.gather(x.part()?, rows).map(Owned::from)
    }

    fn adapt(
        &self,
        y: &mut Owned,
        x: &Owned,
        weights: &Projections,
        adapted: &[Adapted],
        site: Site,
    ) -> Result<()> {
        adapted.iter().try_for_each(|adapted| self.update(y.part()?, x.part()?, weights, adapted, site))
    }

    fn add_linear(
        &self,
        x: &mut Owned,
        y: &Owned,
        y_norm: Option<&Norm>,
        norm: Option<&Norm>,
        weights: &Projections,
    ) -> Result<Owned> {
        let (x, y) = (x.part()?, y.part()?);
        self.check_norm(y_norm, x.dims[1])?;
        Ok(self.product(Source::Sum { x, y, norm: y_norm }, norm, weights)?.into())
    }

    fn experts(
        &self,
        x: &Owned,
        norm: Option<&Norm>,
        experts: &Experts,
        activation: Activation,
    ) -> Result<Owned> {
        Ok(self.mixture(x.part()?, norm, experts, activation)?.into())
    }

    fn gated_linear(
        &self,
        gate_up: &Owned,
        activation: Activation,
        norm: Option<&Norm>,
        weights: &Projections,
    ) -> Result<Owned> {
        Ok(self.product(Source::Gated { gate_up: gate_up.part()?, activation }, norm, weights)?.into())
    }
}

/// The part of an operation that devices lack, if it has one.
fn lacking(op: &Op) -> Option<&'static str> {
    match op {
        Op::Attention { how, .. } | Op::Append { how, .. } => {
            let mtp = (how.from > 0).then_some("blocks of multi-token prediction");
            how.shape.cpu_only().or(mtp)
        }
        Op::AddLinear { activation: Some(activation), .. }
        | Op::Gated { activation, .. }
        | Op::GatedLinear { activation, .. }
        | Op::Experts { activation, .. } => activation.cpu_only(),
        Op::Unfold { .. } => Some("folded embeddings"),
        Op::NormParts { .. } | Op::GatedColumns { .. } => Some("inputs of single layers"),
        Op::Scale { .. } => Some("layers with a scale"),
        Op::SplitGate { .. } | Op::Gate { .. } => Some("gates of attention"),
        Op::Absorb { .. } | Op::Expand { .. } => Some("latent attention"),
        Op::Recur { .. } => Some("recurrent layers"),
        Op::Encode { .. } => Some("encoders"),
        Op::Beside { .. } | Op::Shift { .. } => Some("blocks of multi-token prediction"),
        Op::Check
        | Op::Embed { .. }
        | Op::Linear { .. }
        | Op::Add(_)
        | Op::AddLinear { .. }
        | Op::Norm { .. }
        | Op::NormColumns { .. }
        | Op::Want { .. } => None,
    }
}
