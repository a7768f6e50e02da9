//! The operations that the engine runs on the CPU, by our kernels.

use super::attention::{Attend, KvWrite};
use super::embed::Embed;
use super::encode::Encode;
use super::experts::Experts;
use super::latent::{Heads, Latent};
use super::linear::{Linear, Scratch};
use super::lora::{Adapt, Adapted, LoraScratch, Site};
use super::mixture::{Mixture, MixtureScratch};
use super::owned::Owned;
use super::prepare::Source;
use super::recurrence::{Pass, RecurrentScratch};
use super::rows::On;
use super::spare::Spare;
use super::state::Accepted;
use super::tensors;
use super::{
    Activation, Attention, AttentionShape, Fold, KvCache, Norm, OpSet, Paging, Projections, RaggedBatch,
    Recurrent, Rope,
};
use crate::base::sync::Mutex;
use crate::base::{Error, Result};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::ternary::{self, Gates};
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::cap::cap_all;
use crate::kernels::rows::rope;
use crate::kernels::{Isa, Matrix, Pool, available};
use std::sync::Arc;

/// The operations on the CPU, with scratch memory for one forward pass at a time. Each engine has its own.
pub struct FusedOps {
    pool: Arc<Pool>,
    isa: Isa,
    scratch: Mutex<Scratch>,
    lora: Mutex<LoraScratch>,
    spare: Arc<Spare>,
    experts: Mutex<MixtureScratch>,
    recurrent: Mutex<RecurrentScratch>,
    angles: Mutex<Angles>,
    gates: Gates,
    /// States of attention's pieces; grows to the longest context, then is reused.
    pieces: Mutex<Vec<f32>>,
}

/// The rotations of one step, shared by all layers: one table per rope of the model.
#[derive(Default)]
struct Angles {
    positions: Vec<u32>,
    tables: Vec<Table>,
}

/// The rotations of one rope.
#[derive(Default)]
struct Table {
    /// The rope's frequencies; `None` if the table is of another step.
    inv_freq: Option<Arc<[f32]>>,
    factor: f32,
    values: Vec<f32>,
}

/// Maximum number of ropes with a table: Gemma's local and global one, and some for another model on the same
/// operations.
const MOST_TABLES: usize = 8;

impl Angles {
    fn of(&mut self, pool: &Pool, batch: &RaggedBatch, rope: &Rope) -> &[f32] {
        let len = batch.positions.len() * 2 * rope.inv_freq.len();
        if self.positions != batch.positions {
            self.positions.clone_from(&batch.positions);
            self.tables.iter_mut().for_each(|table| table.inv_freq = None);
        }
        let is = |table: &Table| {
            let same = table.inv_freq.as_ref().is_some_and(|known| Arc::ptr_eq(known, &rope.inv_freq));
            same && table.factor == rope.factor
        };
        if let Some(at) = self.tables.iter().position(is) {
            return &self.tables[at].values[..len];
        }
        let free = self.tables.iter().position(|table| table.inv_freq.is_none());
        let at = match free {
            Some(at) => at,
            None if self.tables.len() == MOST_TABLES => 0,
            None => {
                self.tables.push(Table::default());
                self.tables.len() - 1
            }
        };
        let table = &mut self.tables[at];
        (table.inv_freq, table.factor) = (Some(rope.inv_freq.clone()), rope.factor);
        let values = grown(&mut table.values, len);
        rope::table(pool, &batch.positions, &rope.inv_freq, rope.factor, values);
        values
    }
}

impl FusedOps {
    /// Uses the best instruction set that this machine has and its system permits.
    pub fn new(pool: Arc<Pool>) -> Self {
        let best = available().iter().rfind(|isa| isa.permitted());
        Self::unchecked(pool, best.copied().unwrap_or(Isa::Scalar))
    }

    /// `Unsupported` if this machine lacks `isa` or its system refuses it. Kernels do not check again.
    pub fn with_isa(pool: Arc<Pool>, isa: Isa) -> Result<Self> {
        if available().contains(&isa) {
            return match isa.permitted() {
                true => Ok(Self::unchecked(pool, isa)),
                false => Err(Error::unsupported(format!(
                    "instructions is {}, which the system does not permit this process: a thread has a signal stack \
                     (sigaltstack) without room for matrix tiles, or a filter forbids arch_prctl",
                    isa.name()
                ))),
            };
        }
        let names: Vec<_> = available().iter().map(|isa| isa.name()).collect();
        let (name, names) = (isa.name(), names.join(", "));
        Err(Error::unsupported(format!("instructions is {name}, which this machine lacks: it has {names}")))
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads that operations run on.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn unchecked(pool: Arc<Pool>, isa: Isa) -> Self {
        Self {
            pool,
            isa,
            scratch: Mutex::default(),
            lora: Mutex::default(),
            spare: Arc::default(),
            experts: Mutex::default(),
            recurrent: Mutex::default(),
            angles: Mutex::default(),
            gates: Gates::default(),
            pieces: Mutex::default(),
        }
    }
}

impl FusedOps {
    fn on(&self) -> On<'_> {
        On { pool: &self.pool, isa: self.isa, spare: &self.spare }
    }

    /// A result: `[rows, columns]`.
    fn made(&self, data: Vec<f32>, rows: usize, columns: usize) -> Result<Owned> {
        Owned::new(data, [rows, columns], &self.spare)
    }

    /// A layer with a state.
    fn pass<'a, N>(&'a self, kv: &'a KvCache, layer: usize, net: &'a N) -> Result<Pass<'a, N>> {
        let Self { pool, isa, spare, .. } = self;
        Ok(Pass { pool, isa: *isa, spare, net, states: kv.states()?, layer })
    }

    fn product<'a>(&'a self, norm: Option<&'a Norm>, weights: &'a Projections) -> Linear<'a> {
        let Self { pool, isa, scratch, spare, .. } = self;
        Linear { pool, isa: *isa, scratch, spare, norm, weights, gates: None }
    }
}

impl OpSet for FusedOps {
    fn begin(&self, batch: &RaggedBatch, _: &KvCache) -> Result<()> {
        self.spare.begin(batch.tokens.len(), batch.logits_rows.len().max(batch.hidden_rows.len()));
        Ok(())
    }

    fn embed(&self, batch: &RaggedBatch, table: &Matrix, scale: f32) -> Result<Owned> {
        let op = Embed { table, scale, isa: self.isa, pool: &self.pool, spare: &self.spare };
        self.made(op.run(&batch.tokens)?, batch.tokens.len(), table.cols)
    }

    fn unfold(&self, x: &mut Owned, fold: &Fold) -> Result<()> {
        x.update(|x, [rows, width]| {
            fold.check(width)?;
            let shared = SharedOut::new(x);
            self.pool.run_if_worth(16 * rows * width, rows, &|row| {
                // SAFETY: each task has a row of its own.
                fold.undo(self.isa, unsafe { shared.slice(row * width..(row + 1) * width) });
            });
            Ok(())
        })
    }

    fn linear(&self, x: &Owned, norm: Option<&Norm>, weights: &Projections) -> Result<Owned> {
        let product = self.product(norm, weights);
        let out = x.read(|x, dims| product.run(Source::Rows(x), dims, Vec::new()))?;
        self.made(out, x.dims()[0], product.width())
    }

    fn linear_to(
        &self,
        out: &mut Vec<f32>,
        x: &Owned,
        norm: Option<&Norm>,
        weights: &Projections,
    ) -> Result<()> {
        // Not cleared: memory that is overwritten needs no zeros first.
        let memory = std::mem::take(out);
        *out = x.read(|x, dims| self.product(norm, weights).run(Source::Rows(x), dims, memory))?;
        Ok(())
    }

    fn cap(&self, logits: &mut [f32], cap: f32) -> Result<()> {
        const PIECE: usize = 4096;
        let (len, shared) = (logits.len(), SharedOut::new(logits));
        self.pool.run_if_worth(16 * len, len.div_ceil(PIECE), &|n| {
            // SAFETY: each task has a piece of its own.
            let piece = unsafe { shared.slice(n * PIECE..len.min((n + 1) * PIECE)) };
            cap_all(self.isa, piece, cap);
        });
        Ok(())
    }

    fn norm(&self, x: &Owned, norm: &Norm) -> Result<Owned> {
        let out = x.read(|x, dims| self.on().norm(x, dims, norm))?;
        self.made(out, x.dims()[0], norm.weight.len())
    }

    fn norm_parts(&self, x: &mut Owned, norm: &Norm) -> Result<()> {
        x.update(|x, dims| self.on().norm_parts(x, dims, norm))
    }

    fn gated_columns(
        &self,
        gate: &Owned,
        inputs: &Owned,
        from: usize,
        activation: Activation,
    ) -> Result<Owned> {
        let (rows, width) = (gate.dims()[0], gate.dims()[1]);
        let out = gate.read(|gate, dims| {
            inputs.read(|inputs, own| self.on().gated_columns((gate, dims), (inputs, own), from, activation))
        })?;
        self.made(out, rows, width)
    }

    fn scale(&self, x: &mut Owned, by: f32) -> Result<()> {
        x.update(|x, dims| {
            self.on().scale(x, dims, by);
            Ok(())
        })
    }

    fn norm_columns(&self, x: &mut Owned, from: usize, norm: &Norm) -> Result<()> {
        x.update(|x, dims| self.on().norm_columns(x, dims, from, norm))
    }

    fn attention(
        &self,
        qkv: &Owned,
        paging: &Paging,
        kv: &KvCache,
        layer: usize,
        how: &Attention,
    ) -> Result<Owned> {
        let cache = kv.layer(layer)?;
        let (pool, isa, pieces) = (&*self.pool, self.isa, &self.pieces);
        let mut angles = self.angles.lock();
        let table = angles.of(pool, paging.batch, how.rope);
        let write = KvWrite { pool, isa, paging, how, table };
        let attend = Attend { pool, spare: &self.spare, isa, paging, how, table, pieces };
        let out = qkv.read(|qkv, dims| {
            if !how.shared {
                tensors::update_bytes(cache, |kv| write.run(kv, qkv, dims))?;
            }
            tensors::read_bytes(cache, |kv| attend.run(kv, qkv, dims))
        })?;
        self.made(out, paging.rows(), how.shape.heads * how.shape.head_dim)
    }

    fn given(&self, data: &[f32], [rows, columns]: [usize; 2]) -> Result<Owned> {
        let mut copy = self.spare.take(rows * columns)?;
        if copy.len() != data.len() {
            return Err(Error::internal(format!("{} elements for {rows} rows of {columns}", data.len())));
        }
        copy.copy_from_slice(data);
        self.made(copy, rows, columns)
    }

    fn encode(&self, qkv: &mut Owned, batch: &RaggedBatch, how: &Attention) -> Result<Owned> {
        let (pool, mut angles) = (&*self.pool, self.angles.lock());
        let table = angles.of(pool, batch, how.rope);
        let op = Encode { pool, spare: &self.spare, isa: self.isa, batch, how, table };
        let out = qkv.update(|qkv, dims| op.run(qkv, dims))?;
        self.made(out, batch.tokens.len(), how.shape.heads * how.shape.head_dim)
    }

    fn append(
        &self,
        qkv: &Owned,
        paging: &Paging,
        kv: &KvCache,
        layer: usize,
        how: &Attention,
    ) -> Result<()> {
        let (pool, cache) = (&*self.pool, kv.layer(layer)?);
        let mut angles = self.angles.lock();
        let write =
            KvWrite { pool, isa: self.isa, paging, how, table: angles.of(pool, paging.batch, how.rope) };
        qkv.read(|qkv, dims| tensors::update_bytes(cache, |kv| write.run(kv, qkv, dims)))
    }

    fn beside(&self, [(a, a_norm), (b, b_norm)]: [(&Owned, &Norm); 2]) -> Result<Owned> {
        let (rows, widths) = (a.dims()[0], [a.dims()[1], b.dims()[1]]);
        if b.dims()[0] != rows {
            return Err(Error::internal(format!("{:?} beside {:?}", a.dims(), b.dims())));
        }
        let out = a.read(|a, _| b.read(|b, _| self.on().beside([(a, a_norm), (b, b_norm)], rows, widths)))?;
        self.made(out, rows, widths[0] + widths[1])
    }

    fn shift(&self, h: &Owned, batch: &RaggedBatch, kv: &KvCache) -> Result<Owned> {
        let states = kv.states()?;
        let dims = [batch.tokens.len(), states.shape.hidden];
        if h.dims() != dims {
            return Err(Error::internal(format!("hidden states {:?} where {dims:?} belong", h.dims())));
        }
        let mut out = self.spare.take(dims[0] * dims[1])?;
        h.read(|h, _| {
            states.shift(h, batch, &mut out);
            Ok(())
        })?;
        self.made(out, dims[0], dims[1])
    }

    fn split_gate(&self, x: &Owned, shape: &AttentionShape) -> Result<[Owned; 2]> {
        let [qkv, gate] = x.read(|x, dims| self.on().split_gate(x, dims, shape))?;
        let rows = x.dims()[0];
        Ok([self.made(qkv, rows, shape.qkv())?, self.made(gate, rows, shape.heads * shape.head_dim)?])
    }

    fn gate(&self, x: &Owned, gate: &Owned) -> Result<Owned> {
        let ([rows, width], [own, gates]) = ([x.dims()[0], x.dims()[1]], [gate.dims()[0], gate.dims()[1]]);
        if rows != own || gates == 0 || !width.is_multiple_of(gates) {
            return Err(Error::internal(format!("{:?} for gates of {:?}", gate.dims(), x.dims())));
        }
        let out = x.read(|x, dims| gate.read(|gate, _| self.on().logistic((gate, gates), x, dims)))?;
        self.made(out, x.dims()[0], x.dims()[1])
    }

    fn recur(
        &self,
        inputs: &[&Owned],
        batch: &RaggedBatch,
        kv: &KvCache,
        layer: usize,
        net: Recurrent,
    ) -> Result<Owned> {
        let rows = batch.tokens.len();
        match (net, inputs) {
            (Recurrent::DeltaNet(net), [mixed, gates]) => {
                let (op, scratch) = (self.pass(kv, layer, net)?, &mut *self.recurrent.lock());
                let out =
                    mixed.read(|mixed, _| gates.read(|gates, _| op.run(scratch, mixed, gates, batch)))?;
                self.made(out, rows, net.shape.values())
            }
            (Recurrent::ShortConv(net), [x]) => {
                let op = self.pass(kv, layer, net)?;
                self.made(x.read(|x, _| op.run(x, batch))?, rows, net.shape.channels)
            }
            (Recurrent::Mamba(net), [x]) => {
                let (op, scratch) = (self.pass(kv, layer, net)?, &mut *self.recurrent.lock());
                self.made(x.read(|x, _| op.run(scratch, x, batch))?, rows, net.shape.inner())
            }
            _ => Err(Error::internal(format!("{} inputs of a layer with a state", inputs.len()))),
        }
    }

    fn absorb(&self, q: &Owned, kv: &Owned, latent: &Latent) -> Result<Owned> {
        let heads = Heads { on: self.on(), scratch: &self.scratch, latent };
        let out = q.read(|q, dims| kv.read(|kv, kv_dims| heads.absorb(q, kv, [dims, kv_dims])))?;
        let columns = (latent.shape.heads + 1) * latent.shape.head_dim();
        self.made(out, q.dims()[0], columns)
    }

    fn expand(&self, x: &Owned, latent: &Latent) -> Result<Owned> {
        let heads = Heads { on: self.on(), scratch: &self.scratch, latent };
        let out = x.read(|x, dims| heads.expand(x, dims))?;
        self.made(out, x.dims()[0], latent.shape.values())
    }

    fn advance(&self, kv: &KvCache, layer: usize, net: Recurrent, accepted: &[Accepted]) -> Result<()> {
        match net {
            Recurrent::DeltaNet(net) => {
                self.pass(kv, layer, net)?.advance(&mut self.recurrent.lock(), accepted)
            }
            Recurrent::ShortConv(net) => self.pass(kv, layer, net)?.advance(accepted),
            Recurrent::Mamba(net) => self.pass(kv, layer, net)?.advance(&mut self.recurrent.lock(), accepted),
        }
    }

    fn attention_bytes(&self, shape: &AttentionShape, _rows: usize, context: usize) -> usize {
        shape.scratch_bytes(self.pool.threads(), context)
    }

    fn gates(&self) -> [u64; 2] {
        self.gates.counts()
    }

    fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn gated(&self, gate_up: &Owned, activation: Activation) -> Result<Owned> {
        let dims = activation.of_dims([gate_up.dims()[0], gate_up.dims()[1]])?;
        let out = gate_up.read(|x, _| self.on().gated(x, dims, activation))?;
        self.made(out, dims[0], dims[1])
    }

    fn add(&self, x: &mut Owned, y: &Owned, norm: Option<&Norm>) -> Result<()> {
        same_shape(x, y)?;
        x.update(|x, dims| y.read(|y, _| self.on().add(x, y, dims, norm)))
    }

    fn rows(&self, x: &Owned, rows: &[u32]) -> Result<Owned> {
        let out = x.read(|x, dims| self.on().select(x, dims, rows))?;
        self.made(out, rows.len(), x.dims()[1])
    }

    fn experts(
        &self,
        x: &Owned,
        norm: Option<&Norm>,
        experts: &Experts,
        activation: Activation,
    ) -> Result<Owned> {
        let (dims, scratch) = ([x.dims()[0], x.dims()[1]], &mut *self.experts.lock());
        let normed = norm.map(|norm| self.norm(x, norm)).transpose()?;
        let mixture = Mixture { on: self.on(), scratch: &self.scratch, experts, activation };
        let seen = experts.router_norm.as_ref().map(|norm| self.norm(x, norm)).transpose()?;
        let normed = normed.as_ref().unwrap_or(x);
        let seen = seen.as_ref().unwrap_or(normed);
        let out = normed.read(|x, _| seen.read(|seen, _| mixture.run(scratch, x, seen, dims)))?;
        self.made(out, dims[0], dims[1])
    }

    fn adapt(
        &self,
        y: &mut Owned,
        x: &Owned,
        weights: &Projections,
        adapted: &[Adapted],
        site: Site,
    ) -> Result<()> {
        let op = Adapt { pool: &self.pool, isa: self.isa, scratch: &self.lora, weights, adapted, site };
        y.update(|y, y_dims| x.read(|x, x_dims| op.run(y, y_dims, x, x_dims)))
    }

    fn add_linear(
        &self,
        x: &mut Owned,
        y: &Owned,
        y_norm: Option<&Norm>,
        norm: Option<&Norm>,
        weights: &Projections,
    ) -> Result<Owned> {
        self.sum_linear(x, y, y_norm, self.product(norm, weights))
    }

    fn add_gate_up(
        &self,
        x: &mut Owned,
        y: &Owned,
        y_norm: Option<&Norm>,
        norm: Option<&Norm>,
        weights: &Projections,
        activation: Activation,
    ) -> Result<Owned> {
        let relu2 = activation == Activation::Relu2 && weights.bias.is_none() && weights.norms.is_empty();
        let few = relu2 && x.dims()[0] <= ternary::FEW;
        let gates = few.then_some(&self.gates);
        self.sum_linear(x, y, y_norm, Linear { gates, ..self.product(norm, weights) })
    }

    fn gated_linear(
        &self,
        gate_up: &Owned,
        activation: Activation,
        norm: Option<&Norm>,
        weights: &Projections,
    ) -> Result<Owned> {
        let product = self.product(norm, weights);
        let out = gate_up.read(|gate_up, dims| {
            product.run(Source::Gated { gate_up, activation }, activation.of_dims(dims)?, Vec::new())
        })?;
        self.made(out, gate_up.dims()[0], product.width())
    }
}

impl FusedOps {
    /// `x += y`, or `x += norm(y)`, then `product` of the sum.
    fn sum_linear(&self, x: &mut Owned, y: &Owned, y_norm: Option<&Norm>, product: Linear) -> Result<Owned> {
        same_shape(x, y)?;
        let rows = x.dims()[0];
        if y_norm.is_some_and(|norm| norm.weight.len() != x.dims()[1]) {
            return Err(Error::internal("the norm of a sum is not as wide as its rows"));
        }
        let out = x.update(|x, dims| {
            y.read(|y, _| {
                let source = Source::Sum { x: SharedOut::new(x), y, norm: y_norm };
                product.run(source, dims, Vec::new())
            })
        })?;
        self.made(out, rows, product.width())
    }
}

impl Activation {
    /// The shape of up in rows that may have gates beside it.
    fn of_dims(self, [rows, both]: [usize; 2]) -> Result<[usize; 2]> {
        match both.is_multiple_of(self.products()) {
            true => Ok([rows, both / self.products()]),
            false => Err(Error::internal(format!("gate and up side by side, in {both} columns"))),
        }
    }
}

fn same_shape(x: &Owned, y: &Owned) -> Result<()> {
    match x.dims() == y.dims() {
        true => Ok(()),
        false => Err(Error::internal(format!("a sum of {:?} and {:?}", x.dims(), y.dims()))),
    }
}
