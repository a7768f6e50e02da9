//! The operation set that the engine runs: our kernels as candle operations.

use super::attention::{Attend, KvWrite, Paging, RopeInPlace};
use super::elementwise::{Add, Gated, Rows};
use super::embed::Embed;
use super::linear::{Linear, Scratch};
use super::norm::RmsNorm;
use super::support::ours;
use super::{Activation, Attention, KvCache, Norm, OpSet, Projections, RaggedBatch, Rope};
use crate::base::{Error, Result};
use crate::kernels::{Isa, Matrix, Pool, available, isa, rope};
use candle_core::{Device, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;

pub struct FusedOps {
    pool: Arc<Pool>,
    isa: Isa,
    scratch: Mutex<Scratch>,
    angles: Mutex<Angles>,
}

/// The rotations of one step, which all its layers share: a table for each of a model's ropes.
#[derive(Default)]
struct Angles {
    positions: Vec<u32>,
    tables: Vec<Table>,
}

/// The rotations of one rope.
#[derive(Default)]
struct Table {
    /// Whose they are; None where they are of another step.
    inv_freq: Option<Arc<[f32]>>,
    factor: f32,
    values: Vec<f32>,
}

/// Ropes whose tables are kept: Gemma's local and global one, and some for another model on the same operations.
const MOST_TABLES: usize = 8;

impl Angles {
    fn of(&mut self, batch: &RaggedBatch, rope: &Rope) -> &[f32] {
        if self.positions != batch.positions {
            self.positions.clone_from(&batch.positions);
            self.tables.iter_mut().for_each(|table| table.inv_freq = None);
        }
        let is = |table: &Table| {
            let same = table.inv_freq.as_ref().is_some_and(|known| Arc::ptr_eq(known, &rope.inv_freq));
            same && table.factor == rope.factor
        };
        if let Some(at) = self.tables.iter().position(is) {
            return &self.tables[at].values;
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
        rope::table(&batch.positions, &rope.inv_freq, rope.factor, &mut table.values);
        &table.values
    }
}

impl FusedOps {
    /// On the best instructions of this machine.
    pub fn new(pool: Arc<Pool>) -> Self {
        Self::with_isa(pool, isa())
    }

    /// `isa` must be one that this machine has: kernels do not look again.
    pub fn with_isa(pool: Arc<Pool>, isa: Isa) -> Self {
        assert!(available().contains(&isa), "{} on a machine that lacks it", isa.name());
        Self { pool, isa, scratch: Mutex::default(), angles: Mutex::default() }
    }
}

impl OpSet for FusedOps {
    fn embed(&self, batch: &Arc<RaggedBatch>, table: &Matrix, scale: f32) -> Result<Tensor> {
        let op = Embed { table, scale, isa: self.isa };
        let ids = Tensor::from_slice(&batch.tokens, batch.tokens.len(), &Device::Cpu);
        ours("embed", ids.and_then(|ids| ids.apply_op1_no_bwd(&op)))
    }

    fn linear(&self, x: &Tensor, norm: Option<&Norm>, weights: &Projections) -> Result<Tensor> {
        let op = Linear { pool: &self.pool, isa: self.isa, scratch: &self.scratch, norm, weights };
        ours("linear", x.apply_op1_no_bwd(&op))
    }

    fn norm(&self, x: &Tensor, norm: &Norm) -> Result<Tensor> {
        let op = RmsNorm { pool: &self.pool, isa: self.isa, norm };
        ours("norm", x.apply_op1_no_bwd(&op))
    }

    fn attention(
        &self,
        qkv: &Tensor,
        batch: &Arc<RaggedBatch>,
        kv: &KvCache,
        layer: usize,
        how: &Attention,
    ) -> Result<Tensor> {
        let cache =
            kv.layers.get(layer).ok_or_else(|| Error::internal(format!("no KV cache for layer {layer}")))?;
        let paging = ours("attention", Paging::new(batch, kv, how.shape))?;
        let (pool, isa) = (&*self.pool, self.isa);
        let mut angles = self.angles.lock();
        let turn = RopeInPlace { pool, isa, how, table: angles.of(batch, how.rope) };
        ours("rope", qkv.inplace_op1(&turn))?;
        ours("kv write", cache.inplace_op2(qkv, &KvWrite { pool, paging: &paging }))?;
        ours("attention", qkv.apply_op2_no_bwd(cache, &Attend { pool, isa, paging: &paging, how }))
    }

    fn gated(&self, gate_up: &Tensor, activation: Activation) -> Result<Tensor> {
        let op = Gated { pool: &self.pool, isa: self.isa, activation };
        ours("gated", gate_up.apply_op1_no_bwd(&op))
    }

    fn add(&self, x: Tensor, y: &Tensor, norm: Option<&Norm>) -> Result<Tensor> {
        ours("add", x.inplace_op2(y, &Add { isa: self.isa, norm }))?;
        Ok(x)
    }

    fn rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        ours("rows", x.apply_op1_no_bwd(&Rows(rows)))
    }
}
