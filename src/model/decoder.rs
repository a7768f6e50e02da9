//! One decoder for all families. The configuration determines the norms, the rotation and the activation; the types
//! of the weights determine the arithmetic.

mod read;
mod workspace;

use super::check::check_batch;
use super::config::DecoderConfig;
use super::score::{Score, ScoreRows};
use super::{Adapter, AdapterFile, Facts, KvShape, Model, Outputs, Pooling, adapter, check_stop};
use crate::base::{Error, Result};
use crate::kernels::gemm::ternary::Columns;
use crate::ops::pass::{Op, Product, Program, Ropes, Step};
use crate::ops::{
    Accepted, Adapted, AttentionShape, Head, KvCache, KvLayers, Norm, OpSet, Paging, RaggedBatch, StateShape,
    Weight, distinct,
};

/// A loaded decoder.
pub struct Decoder {
    config: DecoderConfig,
    /// The residual behind the last layer, of the wanted rows. With a block of multi-token prediction it also writes that
    /// block's K and V.
    residual: Program,
    /// Writes K, V and states of rows from which nothing else is wanted.
    append: Program,
    weights: Weights,
    facts: Facts,
}

/// The weights behind the layers.
struct Weights {
    /// `None`: the files have no block of multi-token prediction, or it is not wanted.
    mtp: Option<Predictor>,
    final_norm: Norm,
    /// The final norm before the head, which scales logits too.
    head_norm: Norm,
    /// `[vocab, hidden]`; the embedding again if they are tied.
    head: Product,
    /// In the order of `DecoderConfig::ropes`.
    ropes: Vec<Ropes>,
    /// The head that scores pairs of texts.
    score: Option<Score>,
}

/// A block of multi-token prediction.
struct Predictor {
    /// From the hidden state of the token before each row's to the residual behind the block.
    program: Program,
    norm: Norm,
    head_norm: Norm,
}

impl Decoder {
    /// The step of `batch`. `wanted`: the rows that continue after the last layer's mixer.
    fn step<'a>(
        &'a self,
        ops: &'a dyn OpSet,
        batch: &'a RaggedBatch,
        kv: &'a KvCache,
        wanted: Option<&'a [u32]>,
    ) -> Result<Step<'a>> {
        let c = &self.config;
        let paging = |shape| Paging::new(batch, &kv.layout, shape);
        let (all, global) = (paging(&c.attention)?, c.global.as_ref().map(paging).transpose()?);
        check_batch(batch, &kv.layout, self.kv_shape(), c.vocab_size, c.context_length)?;
        Ok(Step { ops, batch, paging: Some(all), global, kv, ropes: &self.weights.ropes, wanted })
    }

    /// All weights, but for the norms before heads, which follow from others. One that several operations have comes more
    /// than once.
    fn all_weights(&self) -> Vec<Weight<'_>> {
        let w = &self.weights;
        let mut all = self.residual.weights();
        all.extend(w.mtp.iter().flat_map(|mtp| mtp.program.weights()));
        all.extend(w.mtp.iter().map(|mtp| &mtp.norm).chain([&w.final_norm]).map(Weight::Norm));
        all.push(Weight::Product(&w.head.weights));
        all
    }

    /// The products that adapters may update.
    fn products(&self) -> impl Iterator<Item = &Product> {
        self.residual.products().chain([&self.weights.head])
    }
}

impl Model for Decoder {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn kv_shape(&self) -> KvShape {
        let (c, [layers, others]) = (&self.config, self.config.kv_layers());
        let others = c.global.as_ref().map(|a| KvLayers {
            layers: others,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
        });
        let AttentionShape { kv_heads, head_dim, joint, .. } = c.attention;
        KvShape { layers, kv_heads, head_dim, others, joint, kind: None }
    }

    fn state_shape(&self) -> StateShape {
        let layers = self.residual.recurrent().count();
        let first = self.residual.recurrent().next();
        let (floats, row) = first.map(|(_, net)| net.sizes()).unwrap_or_default();
        let hidden = self.weights.mtp.as_ref().map_or(0, |_| self.config.hidden);
        StateShape { layers, floats, row, hidden }
    }

    fn drafts(&self) -> bool {
        self.weights.mtp.is_some()
    }

    fn draft(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        before: &[f32],
        kv: &KvCache,
        out: &mut Outputs,
    ) -> Result<()> {
        let step = self.step(ops, batch, kv, None)?;
        ops.begin(batch, kv)?;
        let Some(mtp) = &self.weights.mtp else {
            return Err(Error::internal("drafts of a model without a block that predicts them"));
        };
        let before = ops.given(before, [batch.tokens.len(), self.config.hidden])?;
        let x = mtp.program.run(&step, Some(before), &mut || Ok(()))?;
        let x = x.ok_or_else(|| Error::internal("a draft without rows"))?;
        ops.norm(&x, &mtp.norm)?.copy_to(&mut out.hidden)?;
        let Outputs { logits, tokens, reports, .. } = out;
        let to = Head { logits, tokens, reports, draws: &batch.draws };
        self.weights.head.head(ops, to, &x, &mtp.head_norm, &batch.adapted)
    }

    fn advance(&self, ops: &dyn OpSet, kv: &KvCache, accepted: &[Accepted]) -> Result<()> {
        if self.weights.mtp.is_some() {
            kv.states()?.advance_hidden(accepted)?;
        }
        self.residual.recurrent().try_for_each(|(place, net)| ops.advance(kv, place, net, accepted))
    }

    fn weights(&self, each: &mut dyn FnMut(Weight) -> Result<()>) -> Result<()> {
        self.config.logit_cap.map_or(Ok(()), |_| each(Weight::CpuOnly("capped logits")))?;
        let heads = self.weights.mtp.iter().map(|mtp| &mtp.head_norm).chain([&self.weights.head_norm]);
        let mut layers = 0;
        self.all_weights().into_iter().chain(heads.map(Weight::Norm)).try_for_each(|weight| {
            layers += usize::from(matches!(weight, Weight::Op(Op::Check)));
            let refused = |e: Error| match (weight, layers) {
                (Weight::Op(_), 1..) => Error::new(e.status, format!("layer {}: {}", layers - 1, e.message)),
                _ => e,
            };
            each(weight).map_err(refused)
        })
    }

    fn adapter(&self, file: &AdapterFile) -> Result<Adapter> {
        let c = &self.config;
        if self.weights.mtp.is_some() {
            return Err(Error::unsupported(format!(
                "{}: a model that is opened with mtp takes no adapters",
                file.what
            )));
        }
        let made = adapter::fit(file, c, &mut self.products())?;
        if made.lora.head[0].is_some() && matches!(c.score, Some(ScoreRows::Tokens { .. })) {
            return Err(Error::unsupported(format!(
                "{}: it updates the model's head, whose rows score pairs of texts as they are",
                file.what
            )));
        }
        Ok(made)
    }

    fn after_pooling(&self, _: &dyn OpSet, score: bool, pooled: &[f32]) -> Result<Option<Vec<f32>>> {
        match (&self.weights.score, score) {
            (_, false) => Ok(None),
            (Some(score), true) => Ok(Some(vec![score.of(pooled)])),
            (None, true) => Err(Error::internal("a score of a model without a head for it")),
        }
    }

    fn workspace_bytes(&self, ops: &dyn OpSet, rows: usize, logits_rows: usize) -> usize {
        self.workspace(ops, rows, logits_rows)
    }

    fn forward(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        kv: &KvCache,
        stop: &mut dyn FnMut() -> bool,
        out: &mut Outputs,
    ) -> Result<()> {
        let wanted = if self.weights.mtp.is_some() { Wanted(None) } else { Wanted::of(batch) };
        let step = self.step(ops, batch, kv, wanted.rows())?;
        if !self.state_shape().is_empty() {
            kv.states()?.check(batch)?;
        }
        ops.begin(batch, kv)?;
        let nothing = wanted.rows().is_some_and(<[u32]>::is_empty);
        let program = if nothing { &self.append } else { &self.residual };
        let x = program.run(&step, None, &mut || check_stop(stop))?;
        check_stop(stop)?;
        out.hidden.clear();
        out.tokens.clear();
        let none = batch.logits_rows.is_empty() && batch.hidden_rows.is_empty();
        let (Some(x), norm) = (x.filter(|_| !none), &self.weights.final_norm) else {
            out.logits.clear();
            return ops.finish();
        };
        if !batch.hidden_rows.is_empty() {
            let rows = ops.rows(&x, &wanted.places(&batch.hidden_rows))?;
            ops.norm(&rows, norm)?.copy_to(&mut out.hidden)?;
        }
        if batch.logits_rows.is_empty() {
            out.logits.clear();
            return Ok(());
        }
        let all = batch.logits_rows.len() == x.dims()[0];
        let x = if all { x } else { ops.rows(&x, &wanted.places(&batch.logits_rows))? };
        let adapted = Adapted::among(&batch.adapted, &batch.logits_rows);
        let Outputs { logits, tokens, reports, .. } = out;
        let to = Head { logits: &mut *logits, tokens, reports, draws: &batch.draws };
        self.weights.head.head(ops, to, &x, &self.weights.head_norm, &adapted)?;
        self.config.logit_cap.map_or(Ok(()), |cap| ops.cap(logits, cap))
    }
}

/// Rows of a batch from which anything is wanted, in ascending order. `None`: all.
struct Wanted(Option<Vec<u32>>);

impl Wanted {
    fn of(batch: &RaggedBatch) -> Self {
        let (logits, hidden) = (&batch.logits_rows, &batch.hidden_rows);
        let all = batch.tokens.len();
        if logits.len() == all || hidden.len() == all {
            return Self(None);
        }
        let mut rows: Vec<u32> = logits.iter().chain(hidden).copied().collect();
        rows.sort_unstable();
        rows.dedup();
        Self((rows.len() < all).then_some(rows))
    }

    fn rows(&self) -> Option<&[u32]> {
        self.0.as_deref()
    }

    /// Positions of these rows of the batch within the list of wanted ones.
    fn places(&self, rows: &[u32]) -> Vec<u32> {
        match &self.0 {
            Some(wanted) => rows.iter().map(|row| wanted.partition_point(|w| w < row) as u32).collect(),
            None => rows.to_vec(),
        }
    }
}

fn facts(decoder: &Decoder, other_bytes: u64) -> Facts {
    let Decoder { config, weights, .. } = decoder;
    let (matrices, vectors) = distinct(&decoder.all_weights());
    let columns = decoder.products().filter_map(|product| product.weights.columns.as_ref());
    let copied: u64 = columns.map(|columns| Columns::bytes(columns.rows, columns.cols) as u64).sum();
    let score = weights.score.iter().flat_map(|score| [&*score.rows, &*score.bias]);
    Facts {
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
        scores: weights.score.as_ref().map(|_| Pooling::Last),
        ..Facts::of_weights(matrices.into_iter(), vectors.into_iter().chain(score), other_bytes + copied)
    }
}
