//! One decoder for all families. The configuration determines the norms, the rotation and the activation; the types
//! of the weights determine the arithmetic.

mod read;

use super::check::check_batch;
use super::config::DecoderConfig;
use super::layers::eagle::HeadKv;
use super::score::{Score, ScoreRows};
use super::{Adapter, AdapterFile, Facts, KvShape, Model, Outputs, Pooling, adapter, check_stop};
use crate::base::{Error, Result, grow};
use crate::kernels::gemm::ternary::Columns;
use crate::ops::pass::{Program, Ropes, Step};
use crate::ops::{
    Accepted, AttentionShape, Distinct, Extent, KvLayers, Memory, MemoryLayout, OpSet, Paging, RaggedBatch,
    StateShape, step_bytes,
};
use std::sync::Arc;

/// A loaded decoder.
pub(super) struct Decoder {
    config: DecoderConfig,
    /// A step with results. With a block of multi-token prediction it also writes that block's K and V.
    forward: Program,
    /// Writes K, V and states of rows from which nothing else is wanted.
    append: Program,
    /// The block of multi-token prediction, or an EAGLE-3 head: from the hidden state of the token before each row's.
    /// `None`: the files have none, or it is not wanted.
    draft: Option<Program>,
    /// What an EAGLE-3 head has beside its pass.
    head: Option<Head>,
    /// In the order of `DecoderConfig::ropes`.
    ropes: Vec<Ropes>,
    /// The head that scores pairs of texts.
    score: Option<Score>,
    states: StateShape,
    facts: Facts,
}

struct Head {
    kv: HeadKv,
    /// As `Eagle::ids`.
    ids: Option<Arc<[u32]>>,
}

impl Decoder {
    /// The shape of attention that some layers have, if it is not that of the others.
    fn other_shape(&self) -> Option<&AttentionShape> {
        let head = self.head.as_ref().filter(|head| head.kv.apart).map(|head| &head.kv.shape);
        self.config.global.as_ref().or(head)
    }

    /// The step of `batch`. `wanted`: the rows that continue after the last layer's mixer; `None`: all.
    fn step<'a>(
        &'a self,
        batch: &'a RaggedBatch,
        layout: &MemoryLayout,
        wanted: Option<Vec<u32>>,
    ) -> Result<Step<'a>> {
        let c = &self.config;
        let paging = |shape| Paging::new(batch, &layout.kv, shape);
        let (all, global) = (paging(&c.attention)?, self.other_shape().map(paging).transpose()?);
        check_batch(batch, &layout.kv, self.kv_shape(), &self.facts)?;
        let (longest, ropes) = (layout.longest, &self.ropes);
        Ok(Step { batch, paging: Some(all), global, longest, ropes, wanted, part: None })
    }
}

impl Model for Decoder {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn kv_shape(&self) -> KvShape {
        let (c, [mut layers, mut others]) = (&self.config, self.config.kv_layers());
        if let Some(Head { kv, .. }) = &self.head {
            *(if kv.apart { &mut others } else { &mut layers }) += 1;
        }
        let others = self.other_shape().map(|a| KvLayers {
            layers: others,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
        });
        let AttentionShape { kv_heads, head_dim, joint, .. } = c.attention;
        KvShape { layers, kv_heads, head_dim, others, joint, kind: None }
    }

    fn state_shape(&self) -> StateShape {
        self.states
    }

    fn drafts(&self) -> bool {
        self.draft.is_some()
    }

    fn draft(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        before: &[f32],
        memory: &mut dyn Memory,
        out: &mut Outputs,
    ) -> Result<()> {
        let Some(draft) = &self.draft else {
            return Err(Error::internal("drafts of a model without a block that predicts them"));
        };
        let step = self.step(batch, memory.layout(), None)?;
        ops.run(draft, &step, Some(memory), &[before], out, &mut || Ok(()))?;
        match self.head.as_ref().and_then(|head| head.ids.as_ref()) {
            Some(ids) => spread(&mut out.logits, ids, self.facts.vocab_size),
            None => Ok(()),
        }
    }

    fn advance(&self, ops: &dyn OpSet, memory: &mut dyn Memory, accepted: &[Accepted]) -> Result<()> {
        ops.advance(&self.forward, memory, accepted)
    }

    fn programs(&self) -> Vec<&Program> {
        [&self.forward].into_iter().chain(&self.draft).collect()
    }

    fn adapter(&self, file: &AdapterFile) -> Result<Adapter> {
        let c = &self.config;
        if self.draft.is_some() {
            return Err(Error::unsupported(format!(
                "{}: a model that is opened with mtp or drafter_path takes no adapters",
                file.what
            )));
        }
        let made = adapter::fit(file, c, &mut self.forward.products())?;
        if made.lora.head[0].is_some() && matches!(c.score, Some(ScoreRows::Tokens { .. })) {
            return Err(Error::unsupported(format!(
                "{}: it updates the model's head, whose rows score pairs of texts as they are",
                file.what
            )));
        }
        Ok(made)
    }

    fn after_pooling(&self, _: &dyn OpSet, score: bool, pooled: &[f32]) -> Result<Option<Vec<f32>>> {
        match (&self.score, score) {
            (_, false) => Ok(None),
            (Some(score), true) => Ok(Some(vec![score.of(pooled)])),
            (None, true) => Err(Error::internal("a score of a model without a head for it")),
        }
    }

    fn workspace_bytes(&self, ops: &dyn OpSet, rows: usize, logits: usize) -> usize {
        let extent = Extent { rows, logits, context: self.config.context_length };
        let passes = self.programs().into_iter().chain([&self.append]).map(|program| (program, extent));
        step_bytes(passes, ops, &self.ropes, 1 + usize::from(self.other_shape().is_some()))
    }

    fn forward(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        memory: &mut dyn Memory,
        stop: &mut dyn FnMut() -> bool,
        out: &mut Outputs,
    ) -> Result<()> {
        let wanted = if self.draft.is_some() { None } else { wanted(batch) };
        let nothing = batch.logits_rows.is_empty() && batch.hidden_rows.is_empty();
        let step = self.step(batch, memory.layout(), wanted)?;
        if !self.states.is_empty() {
            let states = memory.layout().states;
            if states.shape != self.states {
                return Err(Error::internal("the memory of a model with other states"));
            }
            states.check(batch)?;
        }
        let program = if nothing { &self.append } else { &self.forward };
        ops.run(program, &step, Some(memory), &[], out, &mut || check_stop(stop))
    }
}

/// Rows of a batch from which anything is wanted, in ascending order. `None`: all.
fn wanted(batch: &RaggedBatch) -> Option<Vec<u32>> {
    let (logits, hidden) = (&batch.logits_rows, &batch.hidden_rows);
    let all = batch.tokens.len();
    if logits.len() == all || hidden.len() == all {
        return None;
    }
    let mut rows: Vec<u32> = logits.iter().chain(hidden).copied().collect();
    rows.sort_unstable();
    rows.dedup();
    (rows.len() < all).then_some(rows)
}

/// Moves logits of the tokens `ids`, which ascend, to their places among those of `vocab` tokens. All others are
/// -infinity.
fn spread(logits: &mut Vec<f32>, ids: &[u32], vocab: usize) -> Result<()> {
    let (own, rows) = (ids.len(), logits.len() / ids.len().max(1));
    let logits = grow(logits, rows * vocab, "a step's outputs")?;
    // From the end on: each place is behind the logits that are still to be moved.
    for row in (0..rows).rev() {
        let mut end = (row + 1) * vocab;
        for (at, id) in ids.iter().enumerate().rev() {
            let (logit, to) = (logits[row * own + at], row * vocab + *id as usize);
            logits[to + 1..end].fill(f32::NEG_INFINITY);
            logits[to] = logit;
            end = to;
        }
        logits[row * vocab..end].fill(f32::NEG_INFINITY);
    }
    Ok(())
}

/// The size of a sequence's state.
fn states(forward: &Program, hidden: usize) -> StateShape {
    let layers = forward.recurrent().count();
    let first = forward.recurrent().next();
    let (floats, row) = first.map(|(_, net)| net.sizes()).unwrap_or_default();
    StateShape { layers, floats, row, hidden }
}

fn facts_of(decoder: &Decoder, other_bytes: u64) -> Result<Facts> {
    let Decoder { config, score, .. } = decoder;
    let weights = decoder.programs().into_iter().flat_map(Program::weights);
    let Distinct { matrices, vectors, .. } = weights.collect();
    let columns = decoder.forward.products().filter_map(|product| product.weights.columns.as_ref());
    let copied: u64 = columns.map(|columns| Columns::bytes(columns.rows, columns.cols) as u64).sum();
    let rows = score.iter().flat_map(|score| [&*score.rows, &*score.bias]);
    Ok(Facts {
        architecture: config.architecture.clone(),
        name: config.name.clone(),
        vocab_size: config.vocab_size,
        context_length: config.context_length,
        layers: config.layers,
        hidden_size: config.hidden,
        heads: config.attention.heads,
        kv_heads: config.attention.kv_heads,
        head_dim: config.attention.head_dim,
        ffn_size: config.ffn,
        pooling: config.pooling,
        raw_embeddings: config.raw_embeddings,
        sampling: config.sampling,
        mutual: config.blocks.iter().any(|block| block.mutual),
        axes: config
            .axes
            .as_ref()
            .is_some_and(|axes| config.ropes.iter().all(|rope| rope.dims == 2 * axes.pairs())),
        scores: score.as_ref().map(|_| Pooling::Last),
        ..Facts::of_weights(matrices.into_iter(), vectors.into_iter().chain(rows), other_bytes + copied)
    })
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn logits_of_some_tokens_stand_at_their_numbers() {
        let none = f32::NEG_INFINITY;
        for (ids, want) in [
            (&[1u32, 2, 5][..], [none, 1.0, 2.0, none, none, 3.0, none, 4.0, 5.0, none, none, 6.0]),
            (&[0, 1, 2], [1.0, 2.0, 3.0, none, none, none, 4.0, 5.0, 6.0, none, none, none]),
            (&[3, 4, 5], [none, none, none, 1.0, 2.0, 3.0, none, none, none, 4.0, 5.0, 6.0]),
        ] {
            let mut logits = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
            spread(&mut logits, ids, 6).unwrap();
            assert_eq!(logits, want, "{ids:?}");
        }
        let mut all = vec![1.0, 2.0];
        spread(&mut all, &[0, 1], 2).unwrap();
        assert_eq!(all, [1.0, 2.0]);
    }
}
