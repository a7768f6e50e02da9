//! A draft model: its weights, its memory and its passes.
//!
//! Its KV blocks have the same ids as the target model's, so a sequence has one block table, and prefixes,
//! preemption and sessions need nothing more. The model computes what it lacks of a sequence when that sequence
//! drafts. With recurrent layers it has computed a position only if it has K, V and the state after it.

use super::Wanted;
use super::states::DraftStates;
use crate::base::{Error, Result, panics, reserve};
use crate::engine::api::EngineConfig;
use crate::engine::memory::plan::{DraftBytes, MemoryPlan, kv_type};
use crate::engine::memory::states::DRAFT_SLOTS;
use crate::model::{Loaded, Model, Outputs};
use crate::ops::{Memory, MemoryLayout, OpSet, RaggedBatch, StateLayout, StateRows, Unit};
use crate::schedule::{MAX_DRAFT, Work};
use std::sync::Arc;

pub(crate) struct DraftModel {
    model: Arc<dyn Model>,
    memory: Box<dyn Memory>,
    /// For each block, the number of leading positions whose K and V are valid here.
    filled: Vec<u8>,
    /// None without recurrent layers.
    states: Option<DraftStates>,
    /// Maximum number of rows of the pass that is being built, and the pass itself.
    max_rows: usize,
    batch: RaggedBatch,
    work: Work,
    outputs: Outputs,
}

impl DraftModel {
    /// Creates the draft model with the memory that `plan` counts.
    pub(crate) fn new(
        config: &EngineConfig,
        draft: &Loaded,
        ops: &dyn OpSet,
        plan: &MemoryPlan,
    ) -> Result<Self> {
        let (model, block_size) = (draft.model.clone(), config.kv_block_size as usize);
        let kind = kv_type(config, &*model)?;
        let context = model.facts().context_length;
        let asked = config.context_length as usize;
        let (shape, sequences) = (model.state_shape(), plan.states.drafting);
        let memory = ops.memory(MemoryLayout {
            longest: if asked == 0 { context } else { asked.min(context) },
            // No row is a draft to it: a draft is computed in a copy of the state.
            states: StateLayout { shape, slots: DRAFT_SLOTS * sequences, drafted: 0 },
            ..MemoryLayout::of(model.kv_shape().layout(kind, plan.blocks, block_size))
        })?;
        let mut filled = Vec::new();
        reserve(&mut filled, plan.blocks, "the draft model's blocks")?;
        filled.resize(plan.blocks, 0);
        let mut outputs = Outputs::default();
        let logits = DraftBytes::logits(config, &*model);
        let refused = |_| Error::out_of_memory("the draft model's logits", logits);
        outputs.logits.try_reserve_exact(logits / size_of::<f32>()).map_err(refused)?;
        let states = match shape.is_empty() {
            true => None,
            false => Some(DraftStates::new(sequences, block_size)?),
        };
        let (batch, work) = (RaggedBatch::default(), Work::default());
        Ok(Self { model, memory, filled, states, max_rows: 0, batch, work, outputs })
    }

    /// Invalidates the positions `start..end` of a sequence with this block table: their tokens have changed.
    pub(crate) fn overwritten(&mut self, table: &[u32], start: u32, end: u32) {
        let size = self.memory.layout().kv.block_size as u32;
        for index in start / size..end.div_ceil(size) {
            let left = start.saturating_sub(index * size) as u8;
            self.cut(table[index as usize], left);
        }
    }

    /// Only the first `left` positions of a block are valid any more.
    fn cut(&mut self, block: u32, left: u8) {
        let filled = &mut self.filled[block as usize];
        *filled = left.min(*filled);
        if let Some(states) = &mut self.states {
            states.cut(block, *filled);
        }
    }

    /// Invalidates a block: its tokens have changed.
    pub(crate) fn forget(&mut self, block: u32) {
        self.cut(block, 0);
    }

    pub(crate) fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        for &(from, to) in pairs {
            self.filled[to as usize] = self.filled[from as usize];
            self.states.iter_mut().for_each(|states| states.copied(from, to));
        }
        self.memory.copy(Unit::Block, pairs)
    }

    /// Number of positions before the token at `last` that are not computed yet.
    pub(crate) fn lacks(&self, table: &[u32], last: u32) -> u32 {
        let computed = self.computed(table, last);
        last - self.states.as_ref().map_or(computed, |states| states.reach(table, computed))
    }

    /// The first position whose K and V are not computed yet, at most `to`.
    fn computed(&self, table: &[u32], to: u32) -> u32 {
        let size = self.memory.layout().kv.block_size as u32;
        let is_full = |block: &&u32| u32::from(self.filled[**block as usize]) == size;
        let full = table.iter().take_while(is_full).count() as u32;
        let rest = table.get(full as usize).map_or(0, |&block| u32::from(self.filled[block as usize]));
        (full * size + rest).min(to)
    }

    /// Begins a pass of at most `rows` rows.
    pub(crate) fn begin(&mut self, rows: usize) {
        self.max_rows = rows;
        self.batch.clear();
        self.work = Work::default();
        self.states.iter_mut().for_each(DraftStates::begin);
    }

    pub(crate) fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// Adds the rows that a sequence lacks up to its last token, whose row gives logits. Returns false if it cannot
    /// have all of them in this pass: there is no room or no free state, or another sequence writes the same positions.
    pub(crate) fn add(&mut self, wanted: &Wanted) -> Result<bool> {
        let Wanted { table, last, token, .. } = *wanted;
        let computed = self.computed(table, last);
        let start = self.states.as_ref().map(|states| states.start(wanted, computed));
        let first = match start {
            None => computed,
            Some(Some(start)) => start.first,
            Some(None) => return Ok(false),
        };
        let room = self.max_rows - self.batch.tokens.len();
        let rows = (last + 1 - first).min(room as u32);
        if rows == 0 || first < computed && self.writes(table, first, first + rows) {
            return Ok(false);
        }
        let Self { batch, states, memory, .. } = self;
        batch.reserve(rows as usize, 1, 1)?;
        if let (Some(states), Some(start)) = (states, start.flatten()) {
            let slot = states.take(start, wanted, rows, &mut **memory)?;
            batch.states.push(StateRows { slot, ..StateRows::default() });
        }
        let row = batch.push_seq(table, first, rows)?;
        batch.tokens.extend((first..first + rows).map(token));
        self.work.add(Work::span(first, rows));
        // Other sequences with these blocks can rely on them within this pass: layers write before they read.
        self.fill(table, first, first + rows);
        let complete = first + rows > last;
        if complete {
            self.batch.logits_rows.push(row + rows - 1);
        }
        Ok(complete)
    }

    /// Whether another sequence of the pass writes K and V of the positions `start..end` to the same blocks. The bytes
    /// would be the same, but a byte has one writer.
    fn writes(&self, table: &[u32], start: u32, end: u32) -> bool {
        let (batch, size) = (&self.batch, self.memory.layout().kv.block_size as u32);
        batch.seqs.iter().any(|seq| {
            let first = batch.positions[seq.row as usize];
            let (from, to) = (first.max(start), (first + seq.rows).min(end));
            let other = &batch.block_tables[seq.table as usize..];
            (from / size..to.div_ceil(size)).any(|n| from < to && other[n as usize] == table[n as usize])
        })
    }

    fn fill(&mut self, table: &[u32], start: u32, end: u32) {
        let size = self.memory.layout().kv.block_size as u32;
        for index in start / size..end.div_ceil(size) {
            let filled = &mut self.filled[table[index as usize] as usize];
            // Positions behind `end` may be valid too: a state goes on from before them.
            *filled = (*filled).max((end - index * size).min(size) as u8);
        }
    }

    /// Runs the pass. Returns its work, and whether it was a decode pass: about all of its rows gave logits.
    pub(crate) fn run(&mut self, ops: &dyn OpSet, stop: &mut dyn FnMut() -> bool) -> Result<(Work, bool)> {
        let Self { model, memory, batch, outputs, .. } = self;
        let ran = panics::checked("it", || model.forward(ops, batch, &mut **memory, stop, outputs));
        if ran.is_ok() {
            self.states.iter_mut().for_each(DraftStates::ran);
        }
        // After accepted drafts a sequence lacks two rows; with a state, all rows since the certain one.
        let most = if self.states.is_some() { MAX_DRAFT + 1 } else { 2 };
        let decodes = self.batch.tokens.len() <= most * self.batch.logits_rows.len();
        ran.map(|()| (self.work, decodes))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batch.tokens.is_empty()
    }

    /// One row for each `add` that returned true, in order: `[rows, vocab]`.
    pub(crate) fn logits(&mut self) -> &mut [f32] {
        &mut self.outputs.logits
    }
}
