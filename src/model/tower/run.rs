//! A run of a tower in steps: each is a part of the rows of one of its programs.

use super::family::Positions;
use super::grids::{Patches, ROWS};
use super::{Stage, Tower};
use crate::base::{Error, Result, reserve};
use crate::model::stop::check_stop;
use crate::ops::pass::Step;
use crate::ops::{OpSet, Outputs, RaggedBatch, SeqRows, Tap};
use crate::picture::Grid;
use std::ops::Range;

/// Rows of a step, but for attention: enough that weights are read seldom.
pub(super) const MOST_ROWS: usize = 512;
/// Fewer rows of a product take as long.
const FEWEST_ROWS: usize = 32;

/// Pictures on their way through a tower. Between two steps other passes may run on the same operations.
pub struct TowerRun {
    batch: RaggedBatch,
    /// The number of soft tokens.
    tokens: usize,
    /// The next program, and its next row.
    at: usize,
    row: usize,
    /// Its input: the patches, then their hidden states, then the soft tokens.
    rows: Vec<f32>,
    /// The products for attention, and what it makes.
    qkv: Vec<f32>,
    mixed: Vec<f32>,
    /// The results of its first rows.
    made: Vec<f32>,
    part: RaggedBatch,
    out: Outputs,
}

impl Tower {
    /// Begins a run as `forward` describes it. Errors as there.
    pub fn begin(&self, pictures: &[(&[f32], &[Grid])]) -> Result<TowerRun> {
        let Patches { batch, rows } = Patches::new(&self.config, pictures)?;
        let tokens = batch.tokens.len() / self.config.group();
        let at = if tokens == 0 { self.programs.len() } else { 0 };
        let (part, out) = (RaggedBatch::default(), Outputs::default());
        let (qkv, mixed, made) = (Vec::new(), Vec::new(), Vec::new());
        Ok(TowerRun { batch, tokens, at, row: 0, rows, qkv, mixed, made, part, out })
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

    /// Whether a run's next step is one of attention, which has a speed of its own.
    pub fn attends_next(&self, run: &TowerRun) -> bool {
        self.stage(run.at) == Stage::Attention
    }
}

/// Where tasks of `size` rows of these sequences end that begin at row `from` and have about `rows` rows; one at least.
fn tasks_end(seqs: &[SeqRows], size: usize, from: usize, rows: usize) -> usize {
    let ends = seqs.iter().flat_map(|seq| {
        let (row, all) = (seq.row as usize, seq.rows as usize);
        (0..all).step_by(size).map(move |start| row + all.min(start + size))
    });
    let ends = || ends.clone().filter(|end| *end > from);
    ends().take_while(|end| *end <= from.saturating_add(rows)).last().or(ends().next()).unwrap_or(from)
}

impl TowerRun {
    /// The number of rows of the next program.
    fn all(&self, tower: &Tower) -> usize {
        if tower.stage(self.at) == Stage::SoftTokens { self.tokens } else { self.batch.tokens.len() }
    }

    /// The rows of the next step, of about `most` multiplications, and how many they take.
    fn next_rows(&self, tower: &Tower, ops: &dyn OpSet, most: u64) -> (Range<usize>, u64) {
        let (mut cost, from) = (tower.costs[self.at].max(1), self.row);
        let attends = tower.stage(self.at) == Stage::Attention;
        if attends {
            let seq = self.batch.seqs.iter().find(|seq| (seq.row + seq.rows) as usize > from);
            cost *= seq.map_or(1, |seq| u64::from(seq.rows));
        }
        let rows = usize::try_from(most / cost).unwrap_or(usize::MAX);
        let end = match attends {
            true => tasks_end(&self.batch.seqs, ops.task_rows(), from, rows),
            false => self.all(tower).min(from + rows.clamp(FEWEST_ROWS, MOST_ROWS)),
        };
        (from..end, cost * (end - from) as u64)
    }

    /// Makes the batch of a step of these rows, by themselves.
    fn take_part(&mut self, stage: Stage, rows: &Range<usize>) -> Result<()> {
        let (all, part, count) = (&self.batch, &mut self.part, rows.len() as u32);
        part.clear();
        part.reserve(rows.len(), 1, 0)?;
        reserve(&mut part.hidden_rows, rows.len(), ROWS)?;
        part.tokens.resize(rows.len(), 0);
        part.positions.extend(0..count);
        part.hidden_rows.extend(0..count);
        part.seqs.push(SeqRows { row: 0, rows: count, table: 0, table_len: 0 });
        // The first program adds positions.
        if stage == Stage::Patches && !all.blends.ends.is_empty() {
            reserve(&mut part.blends.ends, rows.len(), ROWS)?;
            for row in rows.clone() {
                let taps = all.blends.of(row);
                reserve(&mut part.blends.taps, taps.len(), ROWS)?;
                part.blends.taps.extend_from_slice(taps);
                part.blends.ends.push(part.blends.taps.len() as u32);
            }
        }
        Ok(())
    }

    /// Keeps the results of a step of these rows. After a program's last ones, the next program is next.
    fn keep(&mut self, tower: &Tower, rows: &Range<usize>) -> Result<()> {
        let (all, stage) = (self.all(tower), tower.stage(self.at));
        let to = match stage {
            Stage::Products => &mut self.qkv,
            Stage::Attention => &mut self.mixed,
            _ => &mut self.made,
        };
        let (from, width) = (&self.out.hidden, self.out.hidden.len() / rows.len());
        reserve(to, (all - rows.start) * width, ROWS)?;
        to.extend_from_slice(from);
        self.row = rows.end;
        if self.row == all {
            match stage {
                Stage::Products => {}
                Stage::Attention => self.qkv = Vec::new(),
                _ => (self.rows, self.mixed) = (std::mem::take(&mut self.made), Vec::new()),
            }
            (self.at, self.row) = (self.at + 1, 0);
        }
        Ok(())
    }
}

impl Tower {
    /// Runs a step of a run that it began, of about `most` multiplications, or as few as it can. Returns how many it
    /// took; 0: the soft tokens are there. Calls `stop` first; true ends the step with `Status::Cancelled`, and a
    /// later call takes it again.
    pub fn advance(
        &self,
        run: &mut TowerRun,
        ops: &dyn OpSet,
        most: u64,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<u64> {
        let Some(program) = self.programs.get(run.at) else { return Ok(0) };
        let (stage, (rows, work)) = (self.stage(run.at), run.next_rows(self, ops, most));
        let mut check = || check_stop(stop);
        if stage == Stage::Attention {
            run.batch.hidden_rows.clear();
            run.batch.hidden_rows.extend(rows.start as u32..rows.end as u32);
            let part = Some(rows.clone());
            let step = Step { ropes: &self.ropes, part, ..Step::of_rows(&run.batch) };
            ops.run(program, &step, None, &[&run.qkv], &mut run.out, &mut check)?;
        } else {
            run.take_part(stage, &rows)?;
            let all = run.all(self);
            let own = |list: &[f32]| rows.start * (list.len() / all)..rows.end * (list.len() / all);
            let given = [&run.rows[own(&run.rows)], &run.mixed[own(&run.mixed)]];
            let given = &given[..1 + usize::from(!run.mixed.is_empty())];
            let step = Step { ropes: &self.ropes, ..Step::of_rows(&run.part) };
            ops.run(program, &step, None, given, &mut run.out, &mut check)?;
        }
        run.keep(self, &rows)?;
        Ok(work)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_end_where_tasks_do() {
        let seq = |row, rows| SeqRows { row, rows, table: 0, table_len: 0 };
        let seqs = [seq(0, 21), seq(21, 5)];
        let end = |from, rows| tasks_end(&seqs, 10, from, rows);
        assert_eq!([0, 1, 10, 19].map(|rows| end(0, rows)), [10; 4]);
        assert_eq!([end(0, 20), end(10, 11), end(20, 1)], [20, 21, 21]);
        assert_eq!([1, usize::MAX].map(|rows| end(21, rows)), [26; 2]);
        assert_eq!(end(26, 9), 26, "none are left");
    }
}
