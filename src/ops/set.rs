//! The operations of a backend.

use super::batch::Outputs;
use super::kv::{KvCache, KvLayout};
use super::net::Net;
use super::pass::{Program, Step};
use super::state::Accepted;
use super::types::{AttentionShape, cpu_only};
use super::weight::Weight;
use crate::base::Result;
use std::collections::HashSet;

/// Runs passes. `CpuOps` has our kernels, `CudaOps` those for NVIDIA devices; tests run the same programs on plain candle.
pub trait OpSet: Send + Sync {
    /// Runs `program` for a step. Any earlier pass is over. `given` has the rows of the program's inputs. Overwrites `out`
    /// with the results that the program and the batch ask for; returns when they are there. Calls `check` at each
    /// `Op::Check`, and its error ends the pass.
    fn run(
        &self,
        program: &Program,
        step: &Step,
        given: &[&[f32]],
        out: &mut Outputs,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()>;
    /// Advances state `layer` of sequences by drafted rows of the last pass.
    fn advance(&self, _: &KvCache, _layer: usize, _: &Net, _: &[Accepted]) -> Result<()> {
        Err(cpu_only("recurrent layers"))
    }
    /// Copies a weight to where these operations run, before the first pass needs it there. `Unsupported` if they do
    /// not take it, `OutOfMemory`.
    fn hold(&self, _: Weight) -> Result<()> {
        Ok(())
    }
    /// Bytes that `hold` will take for a weight's matrices. Matrices that are already there or whose host address is
    /// in `seen` do not count. Adds all host addresses to `seen`.
    fn lacks(&self, _: Weight, _seen: &mut HashSet<usize>) -> usize {
        0
    }
    /// Bytes of free memory where these operations run. `None` on the CPU.
    fn free_bytes(&self) -> Option<Result<usize>> {
        None
    }
    /// Whether each result has memory by itself, which is reused whole, instead of a place among a pass's registers.
    fn pools(&self) -> bool {
        false
    }
    /// Creates a KV cache of zeros where these operations run. `OutOfMemory`.
    fn kv_cache(&self, layout: KvLayout) -> Result<KvCache> {
        KvCache::new(layout)
    }
    /// Number of rows that a decode step of `rows` rows should be padded to (`RaggedBatch::pad`). Steps of fewer
    /// distinct shapes are launched faster.
    fn decode_rows(&self, rows: usize) -> usize {
        rows
    }
    /// Whether passes draw tokens.
    fn draws(&self) -> bool {
        false
    }
    /// Bytes that a head keeps for `rows` rows of a vocabulary of `vocab` tokens.
    fn head_bytes(&self, _rows: usize, _vocab: usize) -> usize {
        0
    }
    /// Maximum bytes that attention keeps between calls, for steps of `rows` rows and contexts of `context` positions.
    fn attention_bytes(&self, shape: &AttentionShape, rows: usize, context: usize) -> usize;
    /// Number of gates of ReLU² so far that were looked at in passes with few tokens, and of those that were shut.
    fn gates(&self) -> [u64; 2] {
        [0; 2]
    }
    /// Number of threads that operations run on.
    fn threads(&self) -> usize {
        1
    }
}
