//! One encoder for all families: a text's rows see each other in both directions, in one step, and nothing is kept
//! after it. The tensors of a file say which of the norms a layer has.

mod config;
pub(super) mod family;
mod head;

use super::check::{check_batch, check_tokens_alone};
use super::{Facts, KvShape, Model, Outputs, check_stop};
use crate::base::{Error, Result};
use crate::ops::pass::{Program, Ropes, Step};
use crate::ops::{Distinct, Extent, Memory, OpSet, RaggedBatch, step_bytes};

pub(super) use config::EncoderConfig;
pub(super) use head::{Dense, HeadActivation, ScoreHead};

/// A loaded encoder.
pub(super) struct Encoder {
    config: EncoderConfig,
    /// The wanted rows after the last layer.
    program: Program,
    ropes: Vec<Ropes>,
    heads: Heads,
    facts: Facts,
}

/// The products after pooling.
#[derive(Default)]
pub(super) struct Heads {
    pub score: Option<ScoreHead>,
    /// Products that make the embedding.
    pub dense: Vec<Dense>,
}

impl Encoder {
    /// `program` runs what `config` says. `other_bytes` is the number of other bytes in its files.
    pub(super) fn new(
        config: EncoderConfig,
        program: Program,
        ropes: Vec<Ropes>,
        heads: Heads,
        other_bytes: u64,
    ) -> Self {
        let mut encoder = Self { config, program, ropes, heads, facts: Facts::default() };
        encoder.facts = facts(&encoder, other_bytes);
        encoder
    }
}

impl Model for Encoder {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Nothing is kept: a block takes no bytes.
    fn kv_shape(&self) -> KvShape {
        let a = &self.config.attention;
        KvShape { kv_heads: a.kv_heads, head_dim: a.head_dim, ..KvShape::default() }
    }

    fn programs(&self) -> Vec<&Program> {
        let Heads { score, dense } = &self.heads;
        let score = score.iter().flat_map(ScoreHead::programs);
        [&self.program].into_iter().chain(score).chain(dense.iter().map(|dense| &dense.program)).collect()
    }

    fn workspace_bytes(&self, ops: &dyn OpSet, rows: usize, logits: usize) -> usize {
        let extent = Extent { rows, logits, context: self.config.context_length };
        step_bytes([(&self.program, extent)].into_iter(), ops, &self.ropes, 0)
    }

    fn forward(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        memory: &mut dyn Memory,
        stop: &mut dyn FnMut() -> bool,
        out: &mut Outputs,
    ) -> Result<()> {
        let c = &self.config;
        check_batch(batch, &memory.layout().kv, self.kv_shape(), &self.facts)?;
        check_tokens_alone(batch)?;
        let typed = batch.types.len();
        if !batch.logits_rows.is_empty() || typed != 0 && typed != batch.tokens.len() {
            return Err(Error::invalid("an encoder has no logits, and a type for each row or for none"));
        }
        // Tokenizers give types to models without a table of them too.
        if let Some(odd) = batch.types.iter().find(|kind| c.types > 0 && **kind as usize >= c.types) {
            return Err(Error::invalid(format!("token type {odd} of a model with {}", c.types)));
        }
        if batch.hidden_rows.is_empty() {
            *out = Outputs::default();
            return Ok(());
        }
        let wanted = (batch.hidden_rows.len() < batch.tokens.len()).then(|| batch.hidden_rows.clone());
        let (ropes, longest) = (&self.ropes[..], memory.layout().longest);
        let step = Step { ropes, longest, wanted, ..Step::of_rows(batch) };
        ops.run(&self.program, &step, None, &[], out, &mut || check_stop(stop))
    }

    fn after_pooling(&self, ops: &dyn OpSet, score: bool, pooled: &[f32]) -> Result<Option<Vec<f32>>> {
        if score {
            let head = self.heads.score.as_ref();
            let head = head.ok_or_else(|| Error::internal("a score of a model without a head for it"))?;
            return head.run(ops, pooled).map(Some);
        }
        if self.heads.dense.is_empty() {
            return Ok(None);
        }
        let mut x = pooled.to_vec();
        for dense in &self.heads.dense {
            x = dense.run(ops, &x)?;
        }
        Ok(Some(x))
    }
}

fn facts(encoder: &Encoder, other_bytes: u64) -> Facts {
    let (c, heads) = (&encoder.config, &encoder.heads);
    let weights = encoder.programs().into_iter().flat_map(Program::weights);
    let Distinct { matrices, vectors, .. } = weights.collect();
    Facts {
        architecture: c.architecture.clone(),
        name: c.name.clone(),
        vocab_size: c.vocab_size,
        context_length: c.context_length,
        layers: c.layers,
        hidden_size: c.hidden,
        heads: c.attention.heads,
        kv_heads: c.attention.kv_heads,
        head_dim: c.attention.head_dim,
        ffn_size: c.ffn,
        pooling: c.pooling,
        raw_embeddings: c.raw_embeddings,
        encodes: true,
        scores: heads.score.as_ref().map(|score| score.pooling),
        ..Facts::of_weights(matrices.into_iter(), vectors.into_iter(), other_bytes)
    }
}
