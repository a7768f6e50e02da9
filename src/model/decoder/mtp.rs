//! A block of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2; Qwen3-Next and Qwen3.5 have one):
//! from a token and the hidden state of the token before it, it predicts the token after it. It drafts; the layers of
//! the model verify.
//!
//! The block's K and V of a position depend on the tokens up to that position, so they are cached like any layer's. Position
//! 0 has none, as no token comes before it. Each pass of the model writes them; a draft pass computes the whole block.

use super::*;

/// The block's weights beside its layer, which is the last of `Weights::layers`.
pub struct Mtp {
    /// The norms of the token's embedding, and of the hidden state.
    pub norms: [Norm; 2],
    /// `[hidden, 2 hidden]`: the product of both side by side.
    pub join: Projections,
    /// The norm of the block's hidden state, and the same before the head.
    pub norm: Norm,
    pub head_norm: Norm,
}

impl Mtp {
    pub(super) fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.norms.iter().chain([&self.norm])
    }
}

impl Decoder {
    /// The inputs of the block's layer for each row: its token, and the hidden state of the token before it.
    fn joined(&self, step: &Step, mtp: &Mtp, before: &Owned) -> Result<Owned> {
        let embedded = self.embed(step)?;
        let [of_token, of_state] = &mtp.norms;
        let both = step.ops.beside([(&embedded, of_token), (before, of_state)])?;
        step.ops.linear(&both, None, &mtp.join)
    }

    /// Writes the block's K and V of the batch's rows. `x` is the residual of all rows after the last layer.
    pub(super) fn follow(&self, step: &Step, mtp: &Mtp, x: &Owned) -> Result<()> {
        let h = step.ops.norm(x, &self.weights.final_norm)?;
        let before = step.ops.shift(&h, step.paging.batch, step.kv)?;
        drop(h);
        let mut x = self.joined(step, mtp, &before)?;
        let index = self.config.layers;
        match &self.weights.layers[index].mixer {
            Mixer::Attention(attention) => self.append(step, index, &mut x, None, attention),
            _ => Err(Error::internal("a recurrent block of multi-token prediction")),
        }
    }

    /// Drafts the next token of each row; see `Model::draft`.
    pub(super) fn predict(
        &self,
        ops: &dyn OpSet,
        (batch, before): (&RaggedBatch, &[f32]),
        kv: &KvCache,
        out: &mut Outputs,
    ) -> Result<()> {
        let Some(mtp) = &self.weights.mtp else {
            return Err(Error::internal("drafts of a model without a block that predicts them"));
        };
        let (rows, hidden) = (batch.tokens.len(), self.config.hidden);
        let (paging, global) = self.paging(batch, &kv.layout)?;
        check_batch(batch, &kv.layout, self.kv_shape(), self.config.vocab_size, self.config.context_length)?;
        ops.begin(batch, kv)?;
        let [all, wanted] = [(); 2].map(|()| Products::of_rows(ops, batch, None));
        let step = Step { ops, paging, global, kv, all, wanted };
        let mut x = self.joined(&step, mtp, &ops.given(before, [rows, hidden])?)?;
        let index = self.config.layers;
        if let Some(update) = self.layer(&step, index, &mut x, None, None, None)? {
            ops.add(&mut x, &update, self.post_norm(index))?;
        }
        ops.norm(&x, &mtp.norm)?.copy_to(&mut out.hidden)?;
        let Outputs { logits, tokens, reports, .. } = out;
        let to = Head { logits, tokens, reports, draws: &batch.draws };
        step.all.head(to, &x, Some(&mtp.head_norm), &self.weights.head)
    }
}
