//! Passes before the first request, where operations take memory as they need it: on a device.

use super::*;
use crate::ops::Draw;

/// Decode steps of one row: the second of a shape is kept, and the third runs what was kept.
const DECODES: usize = 3;

impl Core {
    /// Runs the largest step that there can be, so that its memory is the engine's from the beginning, and a few of the
    /// smallest: what a driver does when a kernel runs for the first time is done then. `OutOfMemory` where a step does not
    /// fit.
    pub fn warm(&mut self, config: &EngineConfig, max_sequence: usize) -> Result<()> {
        let size = self.kv.layout.block_size;
        let rows = (config.max_batch_tokens as usize).min(max_sequence);
        let most = rows.div_ceil(size) + config.max_batch_size as usize;
        let mut blocks = Vec::new();
        reserve(&mut blocks, most, BATCH)?;
        let cache = self.scheduler.cache_mut();
        blocks.extend(std::iter::from_fn(|| cache.take()).take(most));
        let result = panics::catch(|| self.warm_in(&blocks, config, max_sequence))
            .unwrap_or_else(|text| Err(Error::internal(format!("the first forward pass panicked: {text}"))));
        self.scheduler.cache_mut().release_all(&mut blocks);
        result
    }

    /// Each sequence writes to blocks of its own. What they read means nothing, nor does what comes out.
    fn warm_in(&mut self, blocks: &[u32], config: &EngineConfig, max_sequence: usize) -> Result<()> {
        let size = self.kv.layout.block_size;
        let decodes = (config.max_batch_size as usize - 1).min(blocks.len() - 1);
        let (own, prompts) = blocks.split_at(decodes);
        let rows = config.max_batch_tokens as usize - decodes;
        let rows = rows.min(max_sequence).min(prompts.len() * size);
        let batch = &mut self.batch;
        batch.clear();
        warm_up(batch, prompts, 0, rows)?;
        let mut table = Vec::new();
        reserve(&mut table, max_sequence.div_ceil(size), BATCH)?;
        table.resize(max_sequence.div_ceil(size), prompts[0]);
        for &block in own {
            table.iter_mut().rev().take(1).for_each(|last| *last = block);
            warm_up(batch, &table, max_sequence - 1, 1)?;
        }
        self.warm_step()?;
        for _ in 0..DECODES {
            self.batch.clear();
            warm_up(&mut self.batch, blocks, 0, 1)?;
            self.warm_step()?;
        }
        Ok(())
    }

    fn warm_step(&mut self) -> Result<()> {
        let Self { backend, batch, kv, shared, outputs, .. } = self;
        shared.loaded.model.forward(&*backend.ops, batch, kv, &mut || false, outputs)
    }
}

/// A sequence of so many rows from a position on, which draws a token.
fn warm_up(batch: &mut RaggedBatch, table: &[u32], start: usize, rows: usize) -> Result<()> {
    batch.reserve(rows, 1, 1)?;
    reserve(&mut batch.draws.rows, 1, BATCH)?;
    let first = batch.push_seq(table, start as u32, rows as u32)?;
    batch.tokens.resize(first as usize + rows, 0);
    batch.logits_rows.push(first + rows as u32 - 1);
    batch.draws.rows.push(Some(Draw { temperature: 1.0, ..Draw::default() }));
    Ok(())
}
