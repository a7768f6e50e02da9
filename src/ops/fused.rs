//! The operations that the engine runs on the CPU: our kernels as candle operations.

use super::attention::{Attend, KvWrite};
use super::elementwise::{Add, Gated, Rows};
use super::embed::Embed;
use super::linear::{AddLinear, GatedLinear, Linear, Scratch};
use super::lora::{Adapt, Adapted, LoraScratch, Site};
use super::norm::RmsNorm;
use super::owned::Owned;
use super::spare::Spare;
use super::support::{into_vec, ours};
use super::{
    Activation, Attention, AttentionShape, KvCache, Norm, OpSet, Paging, Projections, RaggedBatch, Rope,
};
use crate::base::sync::Mutex;
use crate::base::{Error, Result};
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::rope;
use crate::kernels::{Isa, Matrix, Pool, available};
use candle_core::{Device, Tensor};
use std::sync::Arc;

/// The operations on the CPU, with scratch memory for one forward pass at a time. Each engine has its own.
pub struct FusedOps {
    pool: Arc<Pool>,
    isa: Isa,
    scratch: Mutex<Scratch>,
    lora: Mutex<LoraScratch>,
    spare: Arc<Spare>,
    angles: Mutex<Angles>,
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
            angles: Mutex::default(),
            pieces: Mutex::default(),
        }
    }
}

impl FusedOps {
    fn owned(&self, what: &str, result: candle_core::Result<Tensor>) -> Result<Owned> {
        ours(what, result).map(|tensor| Owned::new(tensor, &self.spare))
    }

    fn product<'a>(&'a self, norm: Option<&'a Norm>, weights: &'a Projections) -> Linear<'a> {
        let Self { pool, isa, scratch, spare, .. } = self;
        Linear { pool, isa: *isa, scratch, spare, norm, weights, memory: Mutex::default() }
    }
}

impl OpSet for FusedOps {
    fn begin(&self, batch: &RaggedBatch, _: &KvCache) -> Result<()> {
        self.spare.begin(batch.tokens.len(), batch.logits_rows.len().max(batch.hidden_rows.len()));
        Ok(())
    }

    fn embed(&self, batch: &RaggedBatch, table: &Matrix, scale: f32) -> Result<Owned> {
        let op = Embed { table, scale, isa: self.isa, pool: &self.pool, spare: &self.spare };
        let ids = Tensor::from_slice(&batch.tokens, batch.tokens.len(), &Device::Cpu);
        self.owned("embed", ids.and_then(|ids| ids.apply_op1_no_bwd(&op)))
    }

    fn linear(&self, x: &Owned, norm: Option<&Norm>, weights: &Projections) -> Result<Owned> {
        self.owned("linear", x.tensor()?.apply_op1_no_bwd(&self.product(norm, weights)))
    }

    fn linear_to(
        &self,
        out: &mut Vec<f32>,
        x: &Owned,
        norm: Option<&Norm>,
        weights: &Projections,
    ) -> Result<()> {
        // Not cleared: memory that is overwritten needs no zeros first.
        let op = Linear { memory: Mutex::new(std::mem::take(out)), ..self.product(norm, weights) };
        *out = ours("linear", x.tensor()?.apply_op1_no_bwd(&op).and_then(into_vec))?;
        Ok(())
    }

    fn norm(&self, x: &Owned, norm: &Norm) -> Result<Owned> {
        let op = RmsNorm { pool: &self.pool, isa: self.isa, norm, spare: &self.spare };
        self.owned("norm", x.tensor()?.apply_op1_no_bwd(&op))
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
        ours("kv write", cache.inplace_op2(qkv.tensor()?, &KvWrite { pool, isa, paging, how, table }))?;
        let attend = Attend { pool, spare: &self.spare, isa, paging, how, table, pieces };
        self.owned("attention", qkv.tensor()?.apply_op2_no_bwd(cache, &attend))
    }

    fn attention_bytes(&self, shape: &AttentionShape, _rows: usize, context: usize) -> usize {
        shape.scratch_bytes(self.pool.threads(), context)
    }

    fn gated(&self, gate_up: &Owned, activation: Activation) -> Result<Owned> {
        let op = Gated { pool: &self.pool, isa: self.isa, activation, spare: &self.spare };
        self.owned("gated", gate_up.tensor()?.apply_op1_no_bwd(&op))
    }

    fn add(&self, x: &mut Owned, y: &Owned, norm: Option<&Norm>) -> Result<()> {
        ours("add", x.tensor()?.inplace_op2(y.tensor()?, &Add { pool: &self.pool, isa: self.isa, norm }))
    }

    fn rows(&self, x: &Owned, rows: &[u32]) -> Result<Owned> {
        self.owned("rows", x.tensor()?.apply_op1_no_bwd(&Rows { rows, spare: &self.spare }))
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
        ours("adapt", y.tensor()?.inplace_op2(x.tensor()?, &op))
    }

    fn add_linear(
        &self,
        x: &mut Owned,
        y: &Owned,
        y_norm: Option<&Norm>,
        norm: Option<&Norm>,
        weights: &Projections,
    ) -> Result<Owned> {
        let op = AddLinear { norm: y_norm, linear: self.product(norm, weights), out: Mutex::default() };
        ours("add-linear", x.tensor()?.inplace_op2(y.tensor()?, &op))?;
        let shape = (x.dims()[0], op.linear.width());
        self.owned("add-linear", Tensor::from_vec(op.out.into_inner(), shape, &Device::Cpu))
    }

    fn gated_linear(
        &self,
        gate_up: &Owned,
        activation: Activation,
        norm: Option<&Norm>,
        weights: &Projections,
    ) -> Result<Owned> {
        let op = GatedLinear(activation, self.product(norm, weights));
        self.owned("gated-linear", gate_up.tensor()?.apply_op1_no_bwd(&op))
    }
}
