//! Warm-up passes before the first request, for operations that allocate memory on demand: on a device.

use super::*;
use crate::ops::{Draw, KvLayout, StateRows};

/// Number of one-row decode steps: the second of a shape is captured as a graph, and the third replays it.
const DECODES: usize = 3;

impl Core {
    /// Runs one step with the maximum number of rows and results, so that the engine holds its memory from
    /// the start. Then runs a few steps of one row, so that the driver's work for the first launch of a
    /// kernel is done too. Passes of a draft model and adapters allocate their memory on first use. Fails
    /// with `OutOfMemory` if the step does not fit.
    pub(crate) fn warm(&mut self, config: &EngineConfig, max_sequence: usize) -> Result<()> {
        let size = self.memory.layout().kv.block_size;
        let rows = config.max_batch_tokens as usize;
        let most = rows.div_ceil(size) + rows / max_sequence + config.max_batch_size as usize;
        let mut blocks = Vec::new();
        reserve(&mut blocks, most, BATCH)?;
        let cache = self.scheduler.cache_mut();
        blocks.extend(std::iter::from_fn(|| cache.take()).take(most));
        let pass = || self.warm_in(&blocks, config, max_sequence);
        let result = panics::checked("the first forward pass", pass);
        self.scheduler.cache_mut().release_all(&mut blocks);
        result
    }

    /// Each sequence writes to blocks and to a state of its own. The K and V that they read and the results have no
    /// meaning.
    fn warm_in(&mut self, blocks: &[u32], config: &EngineConfig, max_sequence: usize) -> Result<()> {
        let KvLayout { block_size: size, blocks: total, .. } = self.memory.layout().kv;
        let spare = blocks.len().checked_sub(1);
        let spare = spare.ok_or_else(|| Error::internal("a KV cache without a free block"))?;
        let states = self.memory.layout().states;
        let most = if states.shape.is_empty() { usize::MAX } else { states.slots };
        let decodes = (config.max_batch_size as usize - 1).min(spare).min(most.saturating_sub(1));
        let (own, mut prompts) = blocks.split_at(decodes);
        let batch = &mut self.batch;
        batch.clear();
        let mut logits = logits_rows(config) - decodes;
        let mut left = config.max_batch_tokens as usize - decodes;
        while left > 0 && !prompts.is_empty() && batch.seqs.len() + decodes < most {
            let (table, others) = prompts.split_at(max_sequence.div_ceil(size).min(prompts.len()));
            let rows = left.min(max_sequence).min(table.len() * size);
            warm_up(batch, table, 0, rows, logits.min(rows))?;
            (left, logits, prompts) = (left - rows, logits.saturating_sub(rows), others);
        }
        // The first sequence has the maximum length; the others have an equal share of the KV cache.
        let each = (total / (decodes + 1)).max(1).min(max_sequence.div_ceil(size));
        let mut table = Vec::new();
        reserve(&mut table, max_sequence.div_ceil(size), BATCH)?;
        for (n, &block) in own.iter().enumerate() {
            let positions = if n == 0 { max_sequence } else { max_sequence.min(each * size) };
            table.clear();
            table.resize(positions.div_ceil(size), block);
            warm_up(batch, &table, positions - 1, 1, 1)?;
        }
        let rows = batch.tokens.len() as u32;
        reserve(&mut batch.hidden_rows, rows as usize, BATCH)?;
        batch.hidden_rows.extend(0..rows);
        self.run_warm()?;
        for _ in 0..DECODES {
            self.batch.clear();
            warm_up(&mut self.batch, blocks, 0, 1, 1)?;
            self.run_warm()?;
        }
        Ok(())
    }

    /// Runs the batch with a state for each sequence, if the model keeps any. None is in use yet.
    fn run_warm(&mut self) -> Result<()> {
        if !self.memory.layout().states.shape.is_empty() {
            let slots = 0..self.batch.seqs.len() as u32;
            self.batch.states.extend(slots.map(|slot| StateRows { slot, ..StateRows::default() }));
        }
        self.run_batch()
    }

    /// Runs the batch, which nothing can stop.
    pub(super) fn run_batch(&mut self) -> Result<()> {
        let Self { backend, batch, memory, shared, outputs, .. } = self;
        shared.loaded.model.forward(&*backend.ops, batch, &mut **memory, &mut || false, outputs)
    }
}

/// Adds a sequence of `rows` rows from position `start` on. A token is drawn from each of its last `logits` rows.
fn warm_up(batch: &mut RaggedBatch, table: &[u32], start: usize, rows: usize, logits: usize) -> Result<()> {
    batch.reserve(rows, 1, logits)?;
    reserve(&mut batch.draws.rows, logits, BATCH)?;
    let first = batch.push_seq(table, start as u32, rows as u32)? as usize;
    batch.tokens.resize(first + rows, 0);
    batch.logits_rows.extend((first + rows - logits) as u32..(first + rows) as u32);
    let draw = Draw { temperature: 1.0, ..Draw::default() };
    batch.draws.rows.resize(batch.draws.rows.len() + logits, Some(draw));
    Ok(())
}
