//! The memory of a pass, besides weights and the KV cache.

use super::Decoder;
use crate::ops::{AttentionShape, FEW_ROWS, OpSet, Paging};

impl Decoder {
    /// Sums up the following, and a MiB for the threads:
    /// - For each row, in f32, everything whose memory is kept from step to step: the residual; the update to it, or
    ///   q, k and v; attention's output; gate and up; the rotations.
    /// - For each row, the widest activation, normalized in f32 and quantized to int8 (twice in different orders, or
    ///   once and as 16 bits), with its scale and sum or with those of its blocks. Blocks take at most 4 bytes per 32
    ///   columns, 4 more for the other order, and 2 per 16 columns.
    /// - For each row, if projections have norms of their own, the input normed once more and the widest product by
    ///   itself.
    /// - For each row, if layers have experts, the router's logits, its choice and the output of each chosen expert; and of
    ///   the widest expert, which may have all rows, the input, gate and up, and the output. The same once more for the few
    ///   rows that a thread may work on by itself.
    /// - For each row, if layers are recurrent, what the widest of them keeps, and the product that stands beside
    ///   another; if attention has an output gate, the gate and its product.
    /// - For each row, if a block predicts further tokens, its inputs: the hidden state, that of the row before it, the
    ///   embedding, the norms of both, and their product.
    /// - For each row, if layers have inputs of their own, those of all layers, twice, and a layer's gate and its product.
    /// - For each row, if attention is latent, its queries, their own latent, the compressed row and the values; and what
    ///   each thread keeps of single heads.
    /// - For each row, its place in the KV cache, for each shape of attention; and what attention keeps.
    /// - For each logits row, its hidden state. The logits are in the caller's memory, which is not counted.
    ///
    /// A wanted hidden state takes less than a row: the residual, the row and its norm.
    pub(super) fn workspace(&self, ops: &dyn OpSet, rows: usize, logits_rows: usize) -> usize {
        let c = &self.config;
        let most = |of: fn(&AttentionShape) -> usize| c.shapes().map(of).max().unwrap_or(0);
        let (attention, qkv) = (most(|a| a.heads * a.head_dim), most(AttentionShape::qkv));
        let ffn = (0..c.blocks.len()).map(|layer| c.ffn_of(layer)).max().unwrap_or(c.ffn);
        let widest = c.hidden.max(ffn).max(attention);
        let expert = c.experts.map_or(0, |e| e.width.max(e.shared.unwrap_or(0)));
        let widest = widest.max(expert);
        let widest = c.delta.map_or(widest, |delta| widest.max(delta.values()));
        let widest = c.mamba.map_or(widest, |mamba| widest.max(mamba.shape.inner()));
        let widest = c.latent.map_or(widest, |l| widest.max(l.query_rank.unwrap_or(0)));
        let widest = self.weights.mtp.as_ref().map_or(widest, |_| widest.max(2 * c.hidden));
        let angles = c.ropes.iter().map(|rope| rope.dims).sum::<usize>();
        let own = if c.parts.projection_norms { 2 * widest } else { 0 };
        let experts =
            c.experts.map_or(0, |e| e.count + (7 + c.hidden) * e.choice.used + 4 * (c.hidden + expert));
        let beside = c.family.experts.filter(|e| e.beside && c.experts.is_some()).map_or(0, |_| 3 * c.hidden);
        let feed_forward = 2 * ffn + experts + beside;
        let inputs = c.layer_inputs.map_or(0, |width| (2 * c.layers + 2) * width);
        let gate = if c.family.attention_gate { 3 * attention + qkv } else { 0 };
        let gate = gate + if c.family.head_gates { attention + c.attention.heads } else { 0 };
        let conv = c.conv.map_or(0, |conv| conv.floats_of_row());
        let mamba = c.mamba.map_or(conv, |mamba| mamba.shape.floats_of_row() + c.hidden);
        let recurrent = c.delta.map_or(mamba, |delta| delta.floats_of_row());
        let floats = c.hidden + qkv.max(c.hidden) + attention + feed_forward + inputs + angles + widest + own;
        let mtp = self.weights.mtp.as_ref().map_or(0, |_| 6 * c.hidden);
        let latent = c.latent.map_or(0, |l| {
            l.shape.queries() + l.query_rank.unwrap_or(0) + l.shape.compressed() + l.shape.values()
        });
        let floats = floats + gate.max(recurrent) + mtp + latent;
        let paging = c.shapes().count() * Paging::ROW_BYTES;
        let row = 4 * floats + 3 * widest.next_multiple_of(256) + widest * 3 / 8 + 64 + paging;
        let logits_row = 4 * c.hidden;
        let kept = c.shapes().map(|shape| ops.attention_bytes(shape, rows, c.context_length));
        let head = ops.head_bytes(logits_rows, c.vocab_size);
        rows.saturating_mul(row)
            .saturating_add(logits_rows.saturating_mul(logits_row))
            .saturating_add(head)
            .saturating_add(c.experts.map_or(0, |_| ops.threads() * FEW_ROWS * 6 * 4 * (c.hidden + expert)))
            .saturating_add(c.latent.map_or(0, |l| ops.threads().saturating_mul(l.shape.scratch_bytes(rows))))
            .saturating_add(kept.max().unwrap_or(0))
            .saturating_add(1 << 20)
    }
}
