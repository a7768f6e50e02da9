//! Tokens drawn where the logits lie.

use super::CudaOps;
use super::launch::Arg;
use super::parts::Part;
use crate::base::{Result, reserve};
use crate::ops::{Draws, Edit, MAX_EDITS, MAX_LISTED, RaggedBatch, Report};

/// The largest vocabulary that the kernel takes, and its threads.
pub const VOCABULARY: usize = 262_144;
const THREADS: usize = 512;

/// A row's draw, as the kernel has it (`sampling::Draw`).
#[derive(Clone, Copy)]
#[repr(C)]
struct Row {
    seed: u64,
    position: u64,
    temperature: f32,
    top_k: i32,
    top_p: f32,
    /// -infinity where min_p is off.
    min_p_log: f32,
    /// Repetition, frequency, presence.
    penalties: [f32; 3],
    edits: [u32; 2],
    /// -1: no report.
    tops: i32,
    /// Counted from where edits begin.
    listed: [u32; 2],
    report: u32,
    padding: u32,
}

/// Bytes of all that a row's draw is made with and that it gives, at most.
pub const MOST: usize =
    size_of::<Row>() + MAX_EDITS * size_of::<Edit>() + MAX_LISTED * size_of::<u32>() + RESULT;
const RESULT: usize = size_of::<u64>() + Report::MOST_WORDS * size_of::<u64>();

/// Where the reports of `rows` rows begin, behind their tokens.
pub fn reports_at(rows: usize) -> usize {
    (rows * size_of::<i32>()).next_multiple_of(size_of::<u64>())
}

fn bytes<T>(of: &[T]) -> &[u8] {
    // SAFETY: rows, edits and words, which are all it is called with, have no padding that is no field.
    unsafe { std::slice::from_raw_parts(of.as_ptr().cast(), size_of_val(of)) }
}

/// All rows, all edits, and all listed tokens; a row without a draw gives its most likely token, which nobody reads.
fn packed(Draws { rows, edits, listed, .. }: &Draws) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    let most = rows.len() * size_of::<Row>() + bytes(edits).len() + bytes(listed).len();
    reserve(&mut all, most, "a step's draws")?;
    // A graph knows where edits begin, not how many there are.
    let behind = (bytes(edits).len() / size_of::<u32>()) as u32;
    for draw in rows.iter().map(|draw| draw.unwrap_or_default()) {
        let report = draw.report.unwrap_or(Report { tops: 0, listed: (0, 0), at: 0 });
        all.extend_from_slice(bytes(&[Row {
            seed: draw.seed,
            position: draw.position,
            temperature: draw.temperature,
            top_k: draw.top_k.min(i32::MAX as u32) as i32,
            top_p: draw.top_p,
            min_p_log: draw.min_p.ln(),
            penalties: [draw.repetition, draw.frequency, draw.presence],
            edits: draw.edits.into(),
            tops: draw.report.map_or(-1, |report| report.tops as i32),
            listed: <[u32; 2]>::from(report.listed).map(|token| behind + token),
            report: report.at,
            padding: 0,
        }]));
    }
    all.extend_from_slice(bytes(edits));
    all.extend_from_slice(bytes(listed));
    Ok(all)
}

impl CudaOps {
    /// Takes a step's inputs to the device.
    pub(super) fn begin_inputs(&self, batch: &RaggedBatch) -> Result<()> {
        let mut inputs = self.inputs.lock();
        inputs.begin(&self.queue, batch)?;
        match batch.draws.rows.is_empty() {
            true => Ok(()),
            false => inputs.put_draws(&self.queue, &packed(&batch.draws)?),
        }
    }

    /// A token of each row of `logits`, or what is wrong with the row, and behind them the reports.
    pub(super) fn draw(&self, logits: &Part) -> Result<Part> {
        let [rows, vocab] = logits.dims;
        let given = self.inputs.lock().at.draws;
        // As long as it ever is: a graph knows where it lies.
        let results = self.bytes(rows * RESULT)?;
        let (values, places) = (self.part(rows, vocab)?, self.part(rows, vocab)?);
        let (tokens, edits) = (results.address()?, given + (rows * size_of::<Row>()) as u64);
        let args = [
            tokens.into(),
            (tokens + reports_at(rows) as u64).into(),
            logits.arg()?,
            values.arg()?,
            places.arg()?,
            given.into(),
            edits.into(),
            edits.into(),
            Arg::int(vocab),
        ];
        let shared = 24576 + 336 + 8 * vocab.div_ceil(256);
        // SAFETY: logits and the room are `[rows, vocab]`, there is a draw for each row, and room for its result.
        unsafe { self.launch(&self.kernels().sample, [rows, 1, 1], THREADS, shared, &args)? };
        Ok(results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Draw;

    #[test]
    fn lists_stand_behind_the_rows() {
        let mut draws = Draws::default();
        let edit = |token| Edit { token, count: 2, bias: 0.5 };
        draws.edits = vec![edit(4), edit(5), edit(6)];
        let reports = [draws.report(2, &[7, 8]), draws.report(32, &[]), draws.report(0, &[9])];
        let draw = |n: usize, edits| Draw {
            position: n as u64,
            edits,
            report: reports[n].clone().ok(),
            ..Draw::default()
        };
        draws.rows = vec![Some(draw(0, (0, 2))), None, Some(draw(1, (2, 3))), Some(draw(2, (3, 3)))];
        let packed = packed(&draws).unwrap();
        let (rows, lists) = packed.split_at(4 * size_of::<Row>());
        let words = |bytes: &[u8]| -> Vec<u32> {
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
        };
        let row = |n: usize| words(&rows[n * size_of::<Row>()..][..size_of::<Row>()]);
        let bias = 0.5f32.to_bits();
        assert_eq!(words(lists), [4, 2, bias, 5, 2, bias, 6, 2, bias, 7, 8, 9]);
        // Edits; tops; listed tokens, behind nine words; where the report is; padding.
        assert_eq!(row(0)[11..], [0, 2, 2, 9, 11, 0, 0]);
        assert_eq!(row(1)[11..], [0, 0, u32::MAX, 9, 9, 0, 0]);
        assert_eq!(row(2)[11..], [2, 3, 32, 11, 11, 6, 0]);
        assert_eq!(row(3)[11..], [3, 3, 0, 11, 12, 40, 0]);
        assert_eq!(row(2)[2], 1, "the position");
        assert!(reports_at(4) + 8 * draws.report_words <= 4 * RESULT);
        assert_eq!([0, 1, 2, 3].map(reports_at), [0, 8, 8, 16]);
    }
}
