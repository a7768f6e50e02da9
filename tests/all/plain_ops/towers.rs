//! What towers do and decoders do not: blended positions, and attention within whole pictures.

use super::*;

/// The weighted sums of a table's rows.
pub(super) fn blended(table: &Matrix, batch: &RaggedBatch) -> candle_core::Result<Tensor> {
    let table = dequantize(table)?;
    let rows = (0..batch.tokens.len()).map(|row| {
        let mut sum = table.i(0)?.zeros_like()?;
        for tap in batch.blends.of(row) {
            sum = (sum + (table.i(tap.row as usize)? * f64::from(tap.weight))?)?;
        }
        Ok(sum)
    });
    Tensor::stack(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)
}

/// `(x - minus) * by` of each row.
pub(super) fn standardized(x: &Tensor, vectors: [&[f32]; 2]) -> candle_core::Result<Tensor> {
    let [minus, by] = vectors.map(|vector| Tensor::from_slice(vector, vector.len(), &Device::Cpu));
    x.broadcast_sub(&minus?)?.broadcast_mul(&by?)
}

/// Attention of each sequence's rows to all of them.
pub(super) fn encode(qkv: &Tensor, batch: &RaggedBatch, how: &Attention) -> candle_core::Result<Tensor> {
    assert!(how.window.is_none(), "no test needs a window here");
    let s = how.shape;
    let heads = qkv.reshape((batch.tokens.len(), qkv.dim(1)? / s.head_dim, s.head_dim))?;
    let part = |from, count, norm: usize| {
        let part = heads.narrow(1, from, count)?.contiguous()?;
        let part = how.norms.map_or_else(|| Ok(part.clone()), |norms| normed(&part, &norms[norm]))?;
        rotate(&part, batch, how.rope)
    };
    let (q, k, v) = (part(0, s.heads, 0)?, part(s.heads, s.kv_heads, 1)?, values(&heads, how)?);
    let outputs = batch.seqs.iter().map(|seq| {
        let (row, rows) = (seq.row as usize, seq.rows as usize);
        let own = |x: &Tensor| x.narrow(0, row, rows)?.contiguous();
        let all = 0..rows;
        let positions = &batch.positions[row..row + rows];
        softmax_attention(&own(&q)?, &own(&k)?, &own(&v)?, positions, &[all], how)
    });
    Tensor::cat(&outputs.collect::<candle_core::Result<Vec<_>>>()?, 0)
}
