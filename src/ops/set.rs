//! The operations of a backend.

use super::batch::Outputs;
use super::memory::{HostMemory, Memory, MemoryLayout};
use super::pass::{Program, Step};
use super::state::Accepted;
use super::types::AttentionShape;
use super::weight::Weight;
use crate::base::{Error, Result};
use std::collections::HashSet;

/// Runs passes. `CpuOps` has our kernels, `CudaOps` those for NVIDIA devices; tests run the same programs on plain
/// candle.
pub trait OpSet: Send + Sync {
    /// Runs `program` for a step. Any earlier pass is over. `memory` is one that `memory` made; `None`: nothing is kept
    /// from step to step. `given` has the rows of the program's inputs. Overwrites `out` with the results that the
    /// program and the batch ask for; returns when they are there. Calls `check` at each `Op::Check`, and its error
    /// ends the pass.
    fn run(
        &self,
        program: &Program,
        step: &Step,
        memory: Option<&mut dyn Memory>,
        given: &[&[f32]],
        out: &mut Outputs,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()>;
    /// Creates memory of zeros where these operations run. `OutOfMemory`, `Unsupported`.
    fn memory(&self, layout: MemoryLayout) -> Result<Box<dyn Memory>> {
        Ok(Box::new(HostMemory::new(layout)?))
    }
    /// Advances the states of sequences by drafted rows of the last pass, which `program` ran.
    fn advance(&self, _program: &Program, _: &mut dyn Memory, _: &[Accepted]) -> Result<()> {
        Err(Error::internal("drafts of a backend that keeps none of their rows"))
    }
    /// Refuses a program with an operation or a weight that these lack, and says in which layer. `Unsupported`.
    fn supports(&self, _: &Program) -> Result<()> {
        Ok(())
    }
    /// Copies a weight of a program that is supported to where these operations run, before the first pass needs it
    /// there. `OutOfMemory`, `Unsupported` for experts that these lack.
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
    /// Bytes that a product of `Projections::whole` keeps for `rows` rows of `cols` columns, besides its inputs.
    fn whole_bytes(&self, _rows: usize, _cols: usize) -> usize {
        0
    }
    /// Maximum bytes that attention keeps between calls, for steps of `rows` rows and contexts of `context` positions.
    fn attention_bytes(&self, shape: &AttentionShape, rows: usize, context: usize) -> usize;
    /// Maximum bytes that `Op::Encode` keeps between calls, for texts of `rows` rows.
    fn encode_bytes(&self, shape: &AttentionShape, rows: usize) -> usize;
    /// Rows of a sequence that `Op::Encode` has in one task.
    fn task_rows(&self) -> usize {
        1
    }
    /// Number of gates of ReLU² so far that were looked at in passes with few tokens, and of those that were shut.
    fn gates(&self) -> [u64; 2] {
        [0; 2]
    }
    /// Number of threads that operations run on.
    fn threads(&self) -> usize {
        1
    }
}
