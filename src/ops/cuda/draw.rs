//! Tokens drawn where the logits lie.

use super::CudaOps;
use super::launch::Arg;
use super::parts::Part;
use crate::base::{Result, reserve};
use crate::ops::{Draws, Edit, MAX_EDITS, RaggedBatch};

/// The largest vocabulary that the kernel takes, and its threads.
pub const VOCABULARY: usize = 262_144;
const THREADS: usize = 512;

/// What the kernel takes of each row: bytes of a seed and a position; of temperature, top_k, top_p, min_p, three penalties,
/// and the first of its edits and their end.
const ROW: usize = 2 * size_of::<u64>() + 9 * size_of::<u32>();
/// Bytes of all that a row's draw is made with, at most.
pub const MOST: usize = ROW + MAX_EDITS * size_of::<Edit>();

/// Where the fields of `rows` rows begin, one field behind the other, and what lies behind them.
fn fields(rows: usize) -> [usize; 12] {
    [0, 8, 16, 20, 24, 28, 32, 36, 40, 44, 48, ROW].map(|before| before * rows)
}

/// The fields of all rows, and all edits; a row without a draw gives its most likely token, which nobody reads.
fn packed(Draws { rows, edits }: &Draws) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reserve(&mut bytes, rows.len() * ROW + size_of_val(&edits[..]), "a step's draws")?;
    bytes.resize(rows.len() * ROW, 0);
    let at = fields(rows.len());
    let mut put = |field: usize, n: usize, value: &[u8]| {
        bytes[at[field] + n * value.len()..][..value.len()].copy_from_slice(value);
    };
    for (n, draw) in rows.iter().map(|draw| draw.unwrap_or_default()).enumerate() {
        put(0, n, &draw.seed.to_le_bytes());
        put(1, n, &draw.position.to_le_bytes());
        put(2, n, &draw.temperature.to_le_bytes());
        put(3, n, &draw.top_k.min(i32::MAX as u32).to_le_bytes());
        put(4, n, &draw.top_p.to_le_bytes());
        // -infinity where it is off.
        put(5, n, &draw.min_p.ln().to_le_bytes());
        put(6, n, &draw.repetition.to_le_bytes());
        put(7, n, &draw.frequency.to_le_bytes());
        put(8, n, &draw.presence.to_le_bytes());
        put(9, n, &draw.edits.0.to_le_bytes());
        put(10, n, &draw.edits.1.to_le_bytes());
    }
    // SAFETY: an edit is three words in C's layout, without padding.
    bytes.extend_from_slice(unsafe {
        std::slice::from_raw_parts(edits.as_ptr().cast(), size_of_val(&edits[..]))
    });
    Ok(bytes)
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

    /// A token of each row of `logits`, or what is wrong with the row.
    pub(super) fn draw(&self, logits: &Part) -> Result<Part> {
        let [rows, vocab] = logits.dims;
        let given = self.inputs.lock().at.draws;
        let tokens = self.part(1, rows)?;
        let (values, places) = (self.part(rows, vocab)?, self.part(rows, vocab)?);
        let mut args = vec![tokens.arg()?, logits.arg()?, values.arg()?, places.arg()?];
        args.extend(fields(rows).map(|at| Arg::from(given + at as u64)));
        args.push(Arg::int(vocab));
        let shared = 24576 + 336 + 8 * vocab.div_ceil(256);
        // SAFETY: logits and the room are `[rows, vocab]`; each field has a value for each row.
        unsafe { self.launch(&self.kernels().sample, [rows, 1, 1], THREADS, shared, &args)? };
        Ok(tokens)
    }
}
