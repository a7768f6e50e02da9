//! A run of a tower in steps: one for each of its programs.

use super::Tower;
use super::family::Positions;
use super::grids::{Patches, ROWS};
use crate::base::{Error, Result, reserve};
use crate::model::stop::check_stop;
use crate::ops::pass::Step;
use crate::ops::{OpSet, Outputs, RaggedBatch, Tap};
use crate::picture::Grid;

/// Pictures on their way through a tower. Between two steps other passes may run on the same operations.
pub struct TowerRun {
    batch: RaggedBatch,
    /// The number of soft tokens.
    tokens: usize,
    /// The next program.
    at: usize,
    /// Its input: the patches, then their hidden states, then the soft tokens.
    rows: Vec<f32>,
    out: Outputs,
}

impl Tower {
    /// Begins a run as `forward` describes it. Errors as there.
    pub fn begin(&self, pictures: &[(&[f32], &[Grid])]) -> Result<TowerRun> {
        let Patches { batch, rows } = Patches::new(&self.config, pictures)?;
        let tokens = batch.tokens.len() / self.config.group();
        Ok(TowerRun { batch, tokens, at: 0, rows, out: Outputs::default() })
    }

    /// Bytes of a patch in a batch.
    pub(super) fn row_bytes(&self) -> usize {
        let taps = match self.config.family.positions {
            Positions::None => 0,
            Positions::Nearest => 1,
            Positions::Sides => 2,
            Positions::Corners => 4,
            // A table that is coarser than the grid has two for each side, and a finer one as many as fit.
            Positions::Resized => (2 * self.config.side() + 1).pow(2).min(64),
        };
        // Lists grow to at most twice what they need.
        2 * (4 * size_of::<u32>() + size_of::<[u32; 3]>() + taps * size_of::<Tap>())
    }
}

impl Tower {
    /// Runs the next program of a run that it began. False: the soft tokens are there. Calls `stop` first; true ends the
    /// step with `Status::Cancelled`, and a later call takes it again.
    pub fn advance(
        &self,
        run: &mut TowerRun,
        ops: &dyn OpSet,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let TowerRun { batch, tokens, at, rows, out } = run;
        let Some(program) = self.programs.get(*at) else { return Ok(false) };
        let last = *at + 1 == self.programs.len();
        if last {
            batch.tokens.truncate(*tokens);
            batch.positions.truncate(*tokens);
            batch.hidden_rows.truncate(*tokens);
        }
        let step = Step { ropes: &self.ropes, ..Step::of_rows(batch) };
        if *tokens > 0 {
            ops.run(program, &step, None, &[&rows[..]], out, &mut || check_stop(stop))?;
            std::mem::swap(rows, &mut out.hidden);
        }
        *at += 1;
        Ok(!last)
    }

    /// Appends the soft tokens of a run, `[soft tokens, width]`. `Internal` before the last step.
    pub fn append(&self, run: TowerRun, out: &mut Vec<f32>) -> Result<()> {
        if run.at < self.programs.len() {
            return Err(Error::internal("soft tokens of a tower before its last step"));
        }
        reserve(out, run.rows.len(), ROWS)?;
        out.extend_from_slice(&run.rows);
        Ok(())
    }
}
