//! The `echo` model: no weights, a deterministic answer, a settable cost per token.
//!
//! Its prompt ends with a separator token; it answers with the prompt's tokens and the end token, over and over.
//! What it knows of a sequence it reads back from the paged KV through the block table, one step like the
//! other models: a mistake in paging or batching shows as wrong text.

use super::{Facts, KvShape, Model};
use crate::base::{Error, Result, Status};
use crate::ops::{KvCache, RaggedBatch, SeqRows};
use crate::text::Tokenizer;
use candle_core::{CpuStorage, InplaceOp1, Layout};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The tokenizer's ids: bytes, then these two.
pub const END: u32 = 256;
pub const SEPARATOR: u32 = 257;
const VOCAB: usize = 258;
/// Positions are stored as f32 in the KV tensor, which holds integers exactly up to 2^24.
const CONTEXT: usize = 1 << 16;

pub struct Echo {
    facts: Facts,
    token_cost: Duration,
    predicted: Vec<u32>,
}

impl Echo {
    pub fn new(us_per_token: u32) -> Self {
        let facts = Facts {
            architecture: "echo".into(),
            name: "echo".into(),
            vocab_size: VOCAB,
            context_length: CONTEXT,
            layers: 1,
            kv_heads: 1,
            heads: 1,
            head_dim: 2,
            ..Facts::default()
        };
        Self { facts, token_cost: Duration::from_micros(us_per_token.into()), predicted: Vec::new() }
    }

    pub fn tokenizer() -> Result<Tokenizer> {
        Tokenizer::bytes()
    }
}

impl Model for Echo {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn kv_shape(&self) -> KvShape {
        KvShape { layers: 1, kv_heads: 1, head_dim: 2 }
    }

    fn workspace_bytes(&self, rows: usize, _logits_rows: usize) -> usize {
        rows * size_of::<u32>()
    }

    fn forward(
        &mut self,
        batch: &Arc<RaggedBatch>,
        kv: &KvCache,
        stop: &AtomicBool,
        logits: &mut Vec<f32>,
    ) -> Result<()> {
        spend(self.token_cost * batch.tokens.len() as u32, stop)?;
        let step = Step {
            batch,
            block_size: kv.block_size,
            predicted: RefCell::new(std::mem::take(&mut self.predicted)),
        };
        let ran = kv.layers[0].inplace_op1(&step);
        self.predicted = step.predicted.into_inner();
        ran.map_err(|error| Error::internal(format!("echo: {error}")))?;
        logits.clear();
        logits.resize(batch.logits_rows.len() * VOCAB, 0.0);
        for (out, &row) in logits.chunks_exact_mut(VOCAB).zip(&batch.logits_rows) {
            out[self.predicted[row as usize] as usize] = 10.0;
        }
        Ok(())
    }
}

/// Takes `cost`, asleep where that is long enough to be exact, looking at the stop flag.
fn spend(cost: Duration, stop: &AtomicBool) -> Result<()> {
    if cost.is_zero() {
        return Ok(());
    }
    const SLICE: Duration = Duration::from_millis(1);
    let until = Instant::now() + cost;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::new(Status::Cancelled, "the engine is shutting down"));
        }
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return Ok(()),
            left if left > SLICE => std::thread::sleep(SLICE / 2),
            _ => std::hint::spin_loop(),
        }
    }
}

/// One step over the KV tensor: per position its token, and one more than its latest separator's position.
struct Step<'a> {
    batch: &'a RaggedBatch,
    block_size: usize,
    predicted: RefCell<Vec<u32>>,
}

impl InplaceOp1 for Step<'_> {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        let CpuStorage::F32(cells) = storage else { candle_core::bail!("the KV cache is not f32") };
        let mut predicted = self.predicted.borrow_mut();
        predicted.clear();
        for seq in &self.batch.seqs {
            self.run(seq, cells, &mut predicted);
        }
        Ok(())
    }
}

impl Step<'_> {
    fn cell(&self, seq: &SeqRows, position: usize) -> usize {
        let block = self.batch.block_tables[seq.table as usize + position / self.block_size] as usize;
        2 * (block * self.block_size + position % self.block_size)
    }

    fn run(&self, seq: &SeqRows, cells: &mut [f32], predicted: &mut Vec<u32>) {
        for row in seq.row..seq.row + seq.rows {
            let (token, position) =
                (self.batch.tokens[row as usize], self.batch.positions[row as usize] as usize);
            let after = match (token, position) {
                (SEPARATOR, _) => position + 1,
                (_, 0) => 0,
                _ => cells[self.cell(seq, position - 1) + 1] as usize,
            };
            let at = self.cell(seq, position);
            (cells[at], cells[at + 1]) = (token as f32, after as f32);
            predicted.push(match after.checked_sub(1) {
                None => token,
                Some(separator) => match (position - separator) % (separator + 1) {
                    index if index == separator => END,
                    index => cells[self.cell(seq, index)] as u32,
                },
            });
        }
    }
}
