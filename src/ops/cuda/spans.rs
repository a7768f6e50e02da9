//! The sequences of a step for layers with states, as `cuda/kernels/recurrent.cu` takes them.

use crate::base::{Result, reserve};
use crate::ops::{Accepted, RaggedBatch};

/// Rows of a sequence that one warp convolves.
pub(super) const CHUNK: usize = 16;

/// Words of a span, and of a task or a save.
const SPAN: usize = 8;
const PAIR: usize = 2;

/// Spans of rows on the device, the tasks that they are cut into, and the saves, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spans {
    pub count: usize,
    pub tasks: usize,
    pub address: u64,
}

impl Spans {
    /// Addresses of the spans, of the tasks and of the saves.
    pub(super) fn addresses(&self) -> [u64; 3] {
        let tasks = SPAN * self.count;
        [0, tasks, tasks + PAIR * self.tasks].map(|words| self.address + (words * size_of::<u32>()) as u64)
    }
}

const WHAT: &str = "a step's states";

/// Writes the spans of a batch. Padding has no state, and one task.
pub(super) fn of_batch(batch: &RaggedBatch, words: &mut Vec<u32>) -> Result<Spans> {
    let (mut kept, states) = (0, &batch.states);
    let spans = batch.seqs.iter().enumerate().map(|(n, seq)| match states.get(n) {
        None => [seq.row, 0, 0, 0, 1, 0, 0, 0],
        Some(state) => {
            let fresh = u32::from(batch.positions[seq.row as usize] == 0);
            let first = kept;
            kept += state.drafted;
            [seq.row, seq.rows, state.drafted, state.slot, fresh, first, state.saves.0, state.saves.1]
        }
    });
    write(spans, batch.seqs.len(), &batch.saves, words)
}

/// Writes the spans of accepted rows among those that were kept.
pub(super) fn of_accepted(accepted: &[Accepted], words: &mut Vec<u32>) -> Result<Spans> {
    let some = || accepted.iter().filter(|accepted| accepted.rows > 0);
    let spans = some().map(|accepted| [accepted.first, accepted.rows, 0, accepted.slot, 0, 0, 0, 0]);
    write(spans, some().count(), &[], words)
}

fn write(
    spans: impl Iterator<Item = [u32; SPAN]>,
    count: usize,
    saves: &[(u32, u32)],
    words: &mut Vec<u32>,
) -> Result<Spans> {
    words.clear();
    reserve(words, SPAN * count, WHAT)?;
    spans.for_each(|span| words.extend(span));
    let rows = |words: &[u32], span: usize| words[SPAN * span + 1].max(1) as usize;
    let tasks = (0..count).map(|span| rows(words, span).div_ceil(CHUNK)).sum();
    reserve(words, PAIR * (tasks + saves.len()), WHAT)?;
    for span in 0..count {
        for from in (0..rows(words, span)).step_by(CHUNK) {
            words.extend([span as u32, from as u32]);
        }
    }
    words.extend(saves.iter().flat_map(|(rows, slot)| [*rows, *slot]));
    Ok(Spans { count, tasks, address: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{SeqRows, StateRows};

    #[test]
    fn batches_are_cut_into_tasks() {
        let seq = |row, rows| SeqRows { row, rows, table: 0, table_len: 1 };
        let state = |slot, drafted, saves| StateRows { slot, drafted, saves };
        let mut positions: Vec<u32> = (0..33).collect();
        positions.extend([7, 8, 9, 7]);
        let batch = RaggedBatch {
            positions,
            seqs: vec![seq(0, 33), seq(33, 3), seq(36, 1)],
            states: vec![state(5, 2, (0, 1)), state(1, 1, (1, 1))],
            saves: vec![(16, 4)],
            padding: 1,
            ..RaggedBatch::default()
        };
        let mut words = vec![9; 3];
        let spans = Spans { address: 1000, ..of_batch(&batch, &mut words).unwrap() };
        let want = [0, 33, 2, 5, 1, 0, 0, 1, 33, 3, 1, 1, 0, 2, 1, 1, 36, 0, 0, 0, 1, 0, 0, 0];
        assert_eq!(words[..24], want);
        assert_eq!(words[24..34], [0, 0, 0, 16, 0, 32, 1, 0, 2, 0]);
        assert_eq!(words[34..], [16, 4]);
        assert_eq!((spans.count, spans.tasks), (3, 5));
        assert_eq!(spans.addresses(), [1000, 1096, 1136]);
    }

    #[test]
    fn accepted_rows_are_spans_of_what_was_kept() {
        let accepted = |slot, first, rows| Accepted { slot, first, rows };
        let mut words = Vec::new();
        let spans = of_accepted(&[accepted(3, 2, 4), accepted(1, 6, 0)], &mut words).unwrap();
        assert_eq!((spans.count, spans.tasks), (1, 1));
        assert_eq!(words, [2, 4, 0, 3, 0, 0, 0, 0, 0, 0]);
    }
}
