//! Steps of the tower that sees pictures, beside those of the model.

use super::*;
use crate::engine::request::eyes::Eyes;
use crate::engine::request::pictures::{Picture, Pictures};
use crate::model::TowerRun;
use std::ops::Range;

/// Nanoseconds that the tower may take before commands are read again, if no sequence decodes.
const ALONE_NS: f64 = 1e8;

/// Nanoseconds of a multiplication of the tower, until a step of it was measured.
const GUESSED_NS: f64 = 0.05;

/// The pictures that an engine thread works on.
#[derive(Default)]
pub(super) struct Looking {
    /// Sequences of a step whose pictures are not ready, and the positions that were planned.
    waiting: Vec<(SeqId, Range<u32>)>,
    /// The picture that the tower is at.
    at: Option<(Arc<Picture>, TowerRun)>,
    /// Nanoseconds of a multiplication, of products and of attention; 0: not measured yet.
    pace: [f64; 2],
}

impl Core {
    /// Leaves out sequences whose rows need pictures that the tower has not seen, and lets it work on them: a few rows
    /// of a layer at least, and as many as the step has time for. Without a commit the sequences keep their state.
    pub(super) fn look_at_pictures(&mut self, plan: &mut Plan) {
        let shared = self.shared.clone();
        let Some(eyes) = &shared.eyes else { return };
        let mut waiting = std::mem::take(&mut self.looking.waiting);
        waiting.clear();
        plan.retain(|entry| {
            let range = entry.start..entry.start + entry.known();
            let waits = self.unseen(entry.seq, &range).is_some();
            waiting.extend(waits.then_some((entry.seq, range)));
            !waits
        });
        if !waiting.is_empty() {
            let room = self.scheduler.time_beside(plan).unwrap_or(ALONE_NS);
            let until = now_ns().saturating_add(room as u64);
            self.look(eyes, &waiting, until);
        }
        self.looking.waiting = waiting;
    }

    /// The next picture that a sequence needs for positions in `range`.
    fn unseen(&self, seq: SeqId, range: &Range<u32>) -> Option<Arc<Picture>> {
        self.sequences.get(seq)?.pictures.as_ref()?.unseen(range.clone()).cloned()
    }

    fn look(&mut self, eyes: &Eyes, waiting: &[(SeqId, Range<u32>)], until: u64) {
        // What is begun is finished first: prompts that come later may stand before its own.
        let begun = |core: &Self, (seq, range): &&(SeqId, Range<u32>)| {
            let at = core.looking.at.as_ref().map(|(picture, _)| Arc::as_ptr(picture));
            at.is_some() && core.unseen(*seq, range).as_ref().map(Arc::as_ptr) == at
        };
        let first = waiting.iter().find(|entry| begun(self, entry));
        for (seq, range) in first.into_iter().chain(waiting) {
            while let Some(picture) = self.unseen(*seq, range) {
                match panics::checked("a picture", || self.see(eyes, *seq, &picture, until)) {
                    Ok(()) => {}
                    // The request ends before the next step.
                    Err(error) if error.status == Status::Cancelled => break,
                    Err(error) => {
                        self.looking.at = None;
                        self.fail(*seq, error);
                        break;
                    }
                }
                if now_ns() >= until {
                    return;
                }
            }
        }
    }

    /// Runs the tower's next step for a picture of the sequence. `Cancelled` if its request has ended.
    fn see(&mut self, eyes: &Eyes, seq: SeqId, picture: &Arc<Picture>, until: u64) -> Result<()> {
        let Self { looking, backend, shared, number, sequences, .. } = self;
        let tower = &eyes.sight.tower;
        let (_, run) = match &mut looking.at {
            Some((at, run)) if Arc::ptr_eq(at, picture) => (at, run),
            at => {
                let begin = |patches: &[f32]| tower.begin(&[(patches, &picture.plan.grids)]);
                // Another replica may have made the vectors meanwhile.
                let Some(run) = picture.with_patches(begin).transpose()? else { return Ok(()) };
                let (picture, run) = at.insert((picture.clone(), run));
                (picture, run)
            }
        };
        let stop = &mut || all_ended(shared, *number, sequences, [seq]);
        let (pace, began) = (&mut looking.pace[usize::from(tower.attends_next(run))], now_ns());
        let known = if *pace > 0.0 { *pace } else { GUESSED_NS };
        let most = until.saturating_sub(began) as f64 / known;
        let work = tower.advance(run, &*backend.ops, most as u64, stop)?;
        if work > 0 {
            *pace = (known + (now_ns() - began) as f64 / work as f64) / 2.0;
            return Ok(());
        }
        let mut vectors = Vec::new();
        if let Some((picture, run)) = looking.at.take() {
            tower.append(run, &mut vectors)?;
            picture.see(vectors);
        }
        Ok(())
    }

    /// Frees what the tower holds of a picture that no request of this engine thread has. Another replica may hold it
    /// for its own, or as this one does, so holders are not counted.
    pub(super) fn look_away(&mut self) {
        let Self { looking, sequences, .. } = self;
        let has = |picture: &Arc<Picture>| {
            sequences.iter().filter_map(|sequence| sequence.pictures.as_ref()).any(|own| own.has(picture))
        };
        looking.at.take_if(|(picture, _)| !has(picture));
    }
}

/// Adds the vectors and the rotations of `entry`'s rows, of which `first` is the first one, to `batch`.
pub(super) fn fill(
    pictures: &Pictures,
    entry: &PlanEntry,
    first: u32,
    by_grid: bool,
    batch: &mut RaggedBatch,
) -> Result<()> {
    pictures.fill(entry.start..entry.start + entry.known(), first, batch)?;
    if by_grid {
        fill_rotations(batch, first as usize)?;
        reserve(&mut batch.rotations, entry.rows as usize, "a step's rotations")?;
        batch.rotations.extend((entry.start..entry.start + entry.rows).map(|at| pictures.rotation(at)));
    }
    Ok(())
}

/// Rotates rows up to `end` that have no rotation by their positions.
pub(super) fn fill_rotations(batch: &mut RaggedBatch, end: usize) -> Result<()> {
    let from = batch.rotations.len().min(end);
    reserve(&mut batch.rotations, end - from, "a step's rotations")?;
    batch.rotations.extend(batch.positions[from..end].iter().map(|at| [*at; 3]));
    Ok(())
}
