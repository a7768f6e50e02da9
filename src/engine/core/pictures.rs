//! Steps of the tower that sees pictures, beside those of the model.

use super::*;
use crate::engine::request::pictures::{Picture, Pictures};
use crate::model::Tower;

/// Nanoseconds that the tower may take before commands are read again, if no sequence decodes.
const ALONE_NS: f64 = 1e8;

/// What an engine thread needs to see pictures.
#[derive(Default)]
pub(super) struct Sight {
    /// Sequences of a step whose pictures are not ready, and the positions that it has planned.
    waiting: Vec<(SeqId, std::ops::Range<u32>)>,
    /// A picture's patches.
    patches: Vec<f32>,
}

impl Core {
    /// Leaves out sequences whose rows need pictures that the tower has not seen, and shows it some of them: at least one
    /// picture a step. Without a commit the sequences keep their state.
    pub(super) fn look_at_pictures(&mut self, plan: &mut Plan) {
        let Some(tower) = self.shared.loaded.tower.clone() else { return };
        let mut waiting = std::mem::take(&mut self.sight.waiting);
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
            'time: for (seq, range) in &waiting {
                while let Some(picture) = self.unseen(*seq, range) {
                    match self.see(&*tower, *seq, &picture) {
                        Ok(()) => {}
                        // The request ends before the next step.
                        Err(error) if error.status == Status::Cancelled => break,
                        Err(error) => {
                            self.fail(*seq, error);
                            break;
                        }
                    }
                    if now_ns() >= until {
                        break 'time;
                    }
                }
            }
        }
        self.sight.waiting = waiting;
    }

    /// The next picture that a sequence needs for positions in `range`.
    fn unseen(&self, seq: SeqId, range: &std::ops::Range<u32>) -> Option<Arc<Picture>> {
        self.sequences.get(seq)?.pictures.as_ref()?.unseen(range.clone()).cloned()
    }

    /// Shows a picture of the sequence to the tower. `Cancelled` if its request has ended meanwhile.
    fn see(&mut self, tower: &dyn Tower, seq: SeqId, picture: &Picture) -> Result<()> {
        let Self { sight: Sight { patches, .. }, backend, shared, number, sequences, .. } = self;
        patches.clear();
        let prepare = |pixels: &_| tower.processor().prepare(pixels, &picture.plan, patches);
        picture.with_pixels(prepare).unwrap_or(Ok(()))?;
        let mut vectors = Vec::new();
        let stop = &mut || all_ended(shared, *number, sequences, [seq]);
        let look = || tower.look(&*backend.ops, patches, &picture.plan.grids, stop, &mut vectors);
        panics::checked("a picture", look)?;
        picture.see(vectors);
        Ok(())
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
