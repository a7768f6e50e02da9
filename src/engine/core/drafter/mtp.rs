//! Drafts from the model's own block of multi-token prediction, or from an EAGLE-3 head. The model's passes keep its K
//! and V, and the hidden state that it continues from, in the model's memory; so it never lacks any position.

use super::Wanted;
use crate::base::{Error, Result, panics, reserve};
use crate::engine::api::EngineConfig;
use crate::engine::memory::plan::DraftBytes;
use crate::model::{Loaded, Model, Outputs};
use crate::ops::{Memory, OpSet, RaggedBatch};
use crate::schedule::Work;
use std::sync::Arc;

pub(crate) struct Mtp {
    model: Arc<dyn Model>,
    /// Elements of a hidden state.
    width: usize,
    /// The pass that is being built: its rows, their states' slots, and the hidden states before them.
    batch: RaggedBatch,
    work: Work,
    slots: Vec<u32>,
    before: Vec<f32>,
    /// The slots of the previous pass's rows, whose hidden states are in `outputs`.
    previous: Vec<u32>,
    outputs: Outputs,
}

const WHAT: &str = "passes that draft";

impl Mtp {
    /// Reserves memory for a row of each sequence.
    pub(crate) fn new(config: &EngineConfig, target: &Loaded) -> Result<Self> {
        let (model, mut outputs) = (target.model.clone(), Outputs::default());
        let bytes = DraftBytes::logits(config, &*model);
        let refused = |_| Error::out_of_memory(WHAT, bytes);
        outputs.logits.try_reserve_exact(bytes / size_of::<f32>()).map_err(refused)?;
        let (rows, width) = (config.max_batch_size as usize, model.state_shape().hidden);
        let (mut slots, mut previous, mut before) = (Vec::new(), Vec::new(), Vec::new());
        reserve(&mut slots, rows, WHAT)?;
        reserve(&mut previous, rows, WHAT)?;
        reserve(&mut before, rows * width, WHAT)?;
        reserve(&mut outputs.hidden, rows * width, WHAT)?;
        let (batch, work) = (RaggedBatch::default(), Work::default());
        Ok(Self { model, width, batch, work, slots, before, previous, outputs })
    }

    pub(crate) fn model(&self) -> &dyn Model {
        &*self.model
    }

    pub(crate) fn begin(&mut self) {
        std::mem::swap(&mut self.slots, &mut self.previous);
        self.slots.clear();
        self.before.clear();
        self.batch.clear();
        self.work = Work::default();
    }

    /// Adds a sequence's row. Its first one in a step continues from the model's hidden state, the others from the
    /// block's.
    pub(crate) fn add(&mut self, wanted: &Wanted, memory: &dyn Memory) -> Result<bool> {
        let Wanted { table, last, pass, state, rotation, token } = *wanted;
        let slot = state.ok_or_else(|| Error::internal("drafts of a sequence without a state"))?;
        match pass {
            // No token comes before it, so it has no hidden state.
            0 if last == 0 => return Ok(false),
            0 => memory.read_hidden(slot, &mut self.before)?,
            _ => {
                let Some(row) = self.previous.iter().position(|other| *other == slot) else {
                    return Ok(false);
                };
                reserve(&mut self.before, self.width, WHAT)?;
                self.before.extend_from_slice(&self.outputs.hidden[row * self.width..][..self.width]);
            }
        }
        self.batch.reserve(1, 1, 1)?;
        let row = self.batch.push_seq(table, last, 1)?;
        self.batch.tokens.push(token(last));
        // All rows have rotations, or none has.
        reserve(&mut self.batch.rotations, 1, WHAT)?;
        self.batch.rotations.extend(rotation);
        self.batch.logits_rows.push(row);
        reserve(&mut self.batch.hidden_rows, 1, WHAT)?;
        self.batch.hidden_rows.push(row);
        reserve(&mut self.slots, 1, WHAT)?;
        self.slots.push(slot);
        self.work.add(Work::span(last, 1));
        Ok(true)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batch.tokens.is_empty()
    }

    pub(crate) fn run(&mut self, ops: &dyn OpSet, memory: &mut dyn Memory) -> Result<Work> {
        let Self { model, batch, before, outputs, .. } = self;
        panics::checked("it", || model.draft(ops, batch, before, memory, outputs)).map(|()| self.work)
    }

    pub(crate) fn logits(&mut self) -> &mut [f32] {
        &mut self.outputs.logits
    }
}
