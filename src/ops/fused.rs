//! The operation set that the engine runs: our kernels as candle operations.

use super::attention::{Attend, KvWrite, Paging, RopeInPlace};
use super::elementwise::{Add, Gated, Rows};
use super::embed::Embed;
use super::linear::{Linear, Scratch};
use super::norm::RmsNorm;
use super::support::ours;
use super::{Activation, AttentionShape, KvCache, Norm, OpSet, RaggedBatch, Rope, RopeStyle};
use crate::base::{Error, Result};
use crate::kernels::{Isa, Matrix, Pool, isa, rope};
use candle_core::{Device, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;

pub struct FusedOps {
    pool: Arc<Pool>,
    isa: Isa,
    scratch: Mutex<Scratch>,
    angles: Mutex<Angles>,
}

/// The rotations of one step, which all its layers share.
#[derive(Default)]
struct Angles {
    positions: Vec<u32>,
    inv_freq: Option<Arc<[f32]>>,
    table: Vec<f32>,
}

impl Angles {
    fn of(&mut self, batch: &RaggedBatch, rope: &Rope) -> &[f32] {
        let same_model = self.inv_freq.as_ref().is_some_and(|known| Arc::ptr_eq(known, &rope.inv_freq));
        if !same_model || self.positions != batch.positions {
            self.inv_freq = Some(rope.inv_freq.clone());
            self.positions.clone_from(&batch.positions);
            rope::table(&batch.positions, &rope.inv_freq, &mut self.table);
        }
        &self.table
    }
}

impl FusedOps {
    /// On the best instructions of this machine.
    pub fn new(pool: Arc<Pool>) -> Self {
        Self::with_isa(pool, isa())
    }

    /// `isa` must be one that this machine has.
    pub fn with_isa(pool: Arc<Pool>, isa: Isa) -> Self {
        Self { pool, isa, scratch: Mutex::default(), angles: Mutex::default() }
    }
}

impl OpSet for FusedOps {
    fn embed(&self, batch: &Arc<RaggedBatch>, table: &Matrix) -> Result<Tensor> {
        let op = Embed { table, isa: self.isa };
        let ids = Tensor::from_slice(&batch.tokens, batch.tokens.len(), &Device::Cpu);
        ours("embed", ids.and_then(|ids| ids.apply_op1_no_bwd(&op)))
    }

    fn linear(&self, x: &Tensor, norm: Option<&Norm>, weights: &[Matrix]) -> Result<Tensor> {
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
        shape: &AttentionShape,
        rope: &Rope,
    ) -> Result<Tensor> {
        let cache =
            kv.layers.get(layer).ok_or_else(|| Error::internal(format!("no KV cache for layer {layer}")))?;
        let paging = ours("attention", Paging::new(batch, kv, shape))?;
        let pool = &*self.pool;
        let mut angles = self.angles.lock();
        let (width, interleaved) = (2 * rope.inv_freq.len(), rope.style == RopeStyle::Interleaved);
        let turn = RopeInPlace { pool, shape, table: angles.of(batch, rope), width, interleaved };
        ours("rope", qkv.inplace_op1(&turn))?;
        ours("kv write", cache.inplace_op2(qkv, &KvWrite { pool, paging: &paging }))?;
        ours("attention", qkv.apply_op2_no_bwd(cache, &Attend { pool, isa: self.isa, paging: &paging }))
    }

    fn gated(&self, gate_up: &Tensor, activation: Activation) -> Result<Tensor> {
        let op = Gated { pool: &self.pool, isa: self.isa, activation };
        ours("gated", gate_up.apply_op1_no_bwd(&op))
    }

    fn add(&self, x: Tensor, y: &Tensor) -> Result<Tensor> {
        ours("add", x.inplace_op2(y, &Add))?;
        Ok(x)
    }

    fn rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        ours("rows", x.apply_op1_no_bwd(&Rows(rows)))
    }
}
