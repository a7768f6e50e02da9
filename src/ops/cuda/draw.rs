//! Draws of tokens on the device that holds the logits.

use super::graphs::reports_at;
use super::launch::Arg;
use super::ops::CudaOps;
use super::parts::Part;
use crate::base::{Result, reserve};
use crate::ops::{Draws, Edit, MAX_EDITS, MAX_LISTED, RaggedBatch, Report};

/// The largest vocabulary that the kernel takes, and the threads of its blocks.
pub(super) const VOCABULARY: usize = 262_144;
const THREADS: usize = 512;

/// A row's draw in the layout of the kernel (`sampling::Draw`).
#[derive(Clone, Copy)]
#[repr(C)]
struct Row {
    seed: u64,
    position: u64,
    temperature: f32,
    top_k: i32,
    top_p: f32,
    /// Natural logarithm of min_p: -infinity if it is off.
    min_p_log: f32,
    /// Repetition, frequency, presence.
    penalties: [f32; 3],
    edits: [u32; 2],
    /// -1: no report.
    tops: i32,
    /// First and end, in words from the first edit.
    listed: [u32; 2],
    report: u32,
    padding: u32,
}

/// Maximum bytes of a row's inputs and results together.
pub(super) const MOST: usize =
    size_of::<Row>() + MAX_EDITS * size_of::<Edit>() + MAX_LISTED * size_of::<u32>() + RESULT;
const RESULT: usize = size_of::<u64>() + Report::MOST_WORDS * size_of::<u64>();

fn bytes<T>(of: &[T]) -> &[u8] {
    // SAFETY: it is called with rows, edits and words only, which have no padding but explicit fields.
    unsafe { std::slice::from_raw_parts(of.as_ptr().cast(), size_of_val(of)) }
}

/// All rows, then all edits, then all listed tokens. A row without a draw gets its most likely token, which
/// is ignored.
fn packed(Draws { rows, edits, listed, .. }: &Draws) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    let most = rows.len() * size_of::<Row>() + bytes(edits).len() + bytes(listed).len();
    reserve(&mut all, most, "a step's draws")?;
    // A graph fixes the address of the first edit, but not the number of edits: so listed tokens are counted from
    // there too.
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
    /// Copies a step's inputs to the device.
    pub(super) fn begin_inputs(&self, batch: &RaggedBatch) -> Result<()> {
        let mut inputs = self.inputs.lock();
        inputs.begin(&self.queue, batch)?;
        match batch.draws.rows.is_empty() {
            true => Ok(()),
            false => inputs.put_draws(&self.queue, &packed(&batch.draws)?),
        }
    }

    /// Draws a token from each row of `logits`, or gives a code for the row's fault. The reports follow the
    /// tokens.
    pub(super) fn draw(&self, logits: &Part) -> Result<Part> {
        let [rows, vocab] = logits.dims;
        let given = self.inputs.lock().at.draws;
        // Always of the maximum size, because a graph fixes its address.
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
        // SAFETY: logits and the two work areas are `[rows, vocab]`; each row has a draw and room for its result.
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
        // Edits; tops; listed tokens, counted after the nine words of edits; index of the report; padding.
        assert_eq!(row(0)[11..], [0, 2, 2, 9, 11, 0, 0]);
        assert_eq!(row(1)[11..], [0, 0, u32::MAX, 9, 9, 0, 0]);
        assert_eq!(row(2)[11..], [2, 3, 32, 11, 11, 6, 0]);
        assert_eq!(row(3)[11..], [3, 3, 0, 11, 12, 40, 0]);
        assert_eq!(row(2)[2], 1, "the position");
        assert!(reports_at(4) + 8 * draws.report_words <= 4 * RESULT);
        assert_eq!([0, 1, 2, 3].map(reports_at), [0, 8, 8, 16]);
    }
}
