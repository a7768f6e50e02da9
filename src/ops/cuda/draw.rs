//! Tokens drawn where the logits lie.

use super::CudaOps;
use super::parts::Part;
use crate::base::{Result, reserve};
use crate::ops::Draw;

/// The largest vocabulary that the kernel takes, and its threads.
pub const VOCABULARY: usize = 262_144;
const THREADS: usize = 512;

/// What the kernel takes of each row: bytes of a seed and a position, temperature, top_k, top_p and min_p.
const ROW: usize = 2 * size_of::<u64>() + 4 * size_of::<u32>();

/// Where the fields of `rows` rows begin, one field behind the other.
fn fields(rows: usize) -> [usize; 6] {
    [0, 8, 16, 20, 24, 28].map(|before| before * rows)
}

/// The fields of all rows; a row without a draw gives its most likely token, which nobody reads.
fn packed(draws: &[Option<Draw>]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reserve(&mut bytes, draws.len() * ROW, "a step's draws")?;
    bytes.resize(draws.len() * ROW, 0);
    let at = fields(draws.len());
    let mut put = |field: usize, n: usize, value: &[u8]| {
        bytes[at[field] + n * value.len()..][..value.len()].copy_from_slice(value);
    };
    let none = Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position: 0 };
    for (n, draw) in draws.iter().map(|draw| draw.unwrap_or(none)).enumerate() {
        put(0, n, &draw.seed.to_le_bytes());
        put(1, n, &draw.position.to_le_bytes());
        put(2, n, &draw.temperature.to_le_bytes());
        put(3, n, &draw.top_k.min(i32::MAX as u32).to_le_bytes());
        put(4, n, &draw.top_p.to_le_bytes());
        // -infinity where it is off.
        put(5, n, &draw.min_p.ln().to_le_bytes());
    }
    Ok(bytes)
}

impl CudaOps {
    /// A token of each row of `logits`, or what is wrong with the row.
    pub(super) fn draw(&self, logits: &Part, draws: &[Option<Draw>]) -> Result<Part> {
        let [rows, vocab] = logits.dims;
        let given = self.inputs.lock().draws(&self.queue, &packed(draws)?)?;
        let tokens = self.part(1, rows)?;
        let (values, places) = (self.part(rows, vocab)?, self.part(rows, vocab)?);
        let [seeds, positions, temperatures, top_ks, top_ps, min_ps] =
            fields(rows).map(|at| given + at as u64);
        let args = [
            tokens.arg()?,
            logits.arg()?,
            values.arg()?,
            places.arg()?,
            temperatures.into(),
            top_ks.into(),
            top_ps.into(),
            min_ps.into(),
            seeds.into(),
            positions.into(),
            super::Arg::int(vocab),
        ];
        let shared = 24576 + 336 + 8 * vocab.div_ceil(256);
        // SAFETY: logits and the room are `[rows, vocab]`; each field has a value for each row.
        unsafe { self.launch(&self.kernels().sample, [rows, 1, 1], THREADS, shared, &args)? };
        Ok(tokens)
    }
}
