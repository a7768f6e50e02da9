//! One decoder for all families. The configuration determines the norms, the rotation and the activation; the types
//! of the weights determine the arithmetic.

mod read;
mod workspace;

use super::check::check_batch;
use super::config::DecoderConfig;
use super::layers::{Inventory, Layer, LayerInputs, Mtp, Product, Products, Ropes, Step, Update};
use super::score::{Score, ScoreRows};
use super::{Adapter, AdapterFile, Facts, KvShape, Model, Outputs, Pooling, adapter, check_stop};
use crate::base::{Error, Result};
use crate::kernels::Matrix;
use crate::ops::{
    Accepted, AttentionShape, Fold, Head, KvCache, KvLayers, Norm, OpSet, Owned, Paging, RaggedBatch,
    StateShape, Weight,
};

/// A loaded decoder.
pub struct Decoder {
    config: DecoderConfig,
    weights: Weights,
    facts: Facts,
}

struct Weights {
    /// `[vocab, hidden]`.
    embedding: Matrix,
    /// The rotation of the embedding's rows.
    unfold: Option<Fold>,
    inputs: Option<LayerInputs>,
    layers: Vec<Layer>,
    /// `None`: the files have no block of multi-token prediction, or it is not wanted.
    mtp: Option<Mtp>,
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

impl Weights {
    /// All weights, but for the norms before heads, which follow from others.
    fn list(&self) -> Inventory<'_> {
        let mut list = Inventory::default();
        list.table(&self.embedding);
        self.inputs.iter().for_each(|inputs| inputs.list(&mut list));
        self.layers.iter().for_each(|layer| layer.list(&mut list));
        self.mtp.iter().for_each(|mtp| mtp.list(&mut list));
        list.norms([&self.final_norm]);
        list.product(&self.head);
        list
    }
}

impl Decoder {
    /// The step of `batch`. `wanted`: the rows that continue after the last layer's mixer.
    fn step<'a>(
        &'a self,
        ops: &'a dyn OpSet,
        batch: &'a RaggedBatch,
        kv: &'a KvCache,
        wanted: Option<&[u32]>,
    ) -> Result<Step<'a>> {
        let c = &self.config;
        let paging = |shape| Paging::new(batch, &kv.layout, shape);
        let (all, global) = (paging(&c.attention)?, c.global.as_ref().map(paging).transpose()?);
        check_batch(batch, &kv.layout, self.kv_shape(), c.vocab_size, c.context_length)?;
        Ok(Step {
            ops,
            paging: all,
            global,
            kv,
            ropes: &self.weights.ropes,
            all: Products::of_rows(ops, batch, None),
            wanted: Products::of_rows(ops, batch, wanted),
        })
    }

    /// The embeddings of the batch's tokens.
    fn embed(&self, step: &Step) -> Result<Owned> {
        let scale = self.config.embedding_scale / self.config.residual_scale;
        let mut x = step.ops.embed(step.paging.batch, &self.weights.embedding, scale)?;
        self.weights.unfold.as_ref().map_or(Ok(()), |fold| step.ops.unfold(&mut x, fold))?;
        Ok(x)
    }

    /// The residual after the last layer, of the rows `wanted` or of all rows. `None` if no row is wanted.
    fn residual(
        &self,
        step: &Step,
        stop: &mut dyn FnMut() -> bool,
        wanted: Option<&[u32]>,
    ) -> Result<Option<Owned>> {
        let mut x = self.embed(step)?;
        let inputs = self.weights.inputs.as_ref().map(|inputs| inputs.run(step, &x)).transpose()?;
        let mut update: Option<Update> = None;
        let last = self.config.layers - 1;
        // If nothing is wanted, later rows need nothing of the layers behind it.
        let written = self.config.last_written();
        for (index, layer) in self.weights.layers.iter().enumerate() {
            check_stop(stop)?;
            if index == written && wanted.is_some_and(<[u32]>::is_empty) {
                return layer.append(step, &mut x, update).map(|()| None);
            }
            let wanted = wanted.filter(|_| index == last);
            update = Some(layer.run(step, &mut x, update, inputs.as_ref(), wanted)?);
        }
        if let Some(update) = update {
            step.ops.add(&mut x, &update.rows, update.norm)?;
        }
        Ok(Some(x))
    }

    /// Drafts the next token of each row; see `Model::draft`.
    fn predict(&self, step: &Step, before: &[f32], out: &mut Outputs) -> Result<()> {
        let Some(mtp) = &self.weights.mtp else {
            return Err(Error::internal("drafts of a model without a block that predicts them"));
        };
        let batch = step.paging.batch;
        let before = step.ops.given(before, [batch.tokens.len(), self.config.hidden])?;
        let x = mtp.predict(step, &self.embed(step)?, &before)?;
        step.ops.norm(&x, &mtp.norm)?.copy_to(&mut out.hidden)?;
        let Outputs { logits, tokens, reports, .. } = out;
        let to = Head { logits, tokens, reports, draws: &batch.draws };
        step.all.head(to, &x, Some(&mtp.head_norm), &self.weights.head)
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
        let mut sizes = self.weights.layers.iter().filter_map(Layer::state).map(|(_, net)| net.sizes());
        let layers = sizes.clone().count();
        let (floats, row) = sizes.next().unwrap_or_default();
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
        self.predict(&step, before, out)
    }

    fn advance(&self, ops: &dyn OpSet, kv: &KvCache, accepted: &[Accepted]) -> Result<()> {
        if self.weights.mtp.is_some() {
            kv.states()?.advance_hidden(accepted)?;
        }
        let mut states = self.weights.layers.iter().filter_map(Layer::state);
        states.try_for_each(|(place, net)| ops.advance(kv, place, net, accepted))
    }

    fn weights(&self, each: &mut dyn FnMut(Weight) -> Result<()>) -> Result<()> {
        let c = &self.config;
        c.latent.map_or(Ok(()), |_| each(Weight::CpuOnly("latent attention")))?;
        c.shapes().try_for_each(|shape| each(Weight::Attention(shape)))?;
        c.logit_cap.map_or(Ok(()), |_| each(Weight::CpuOnly("capped logits")))?;
        c.activation.cpu_only().map_or(Ok(()), |part| each(Weight::CpuOnly(part)))?;
        let heads = self.weights.mtp.iter().map(|mtp| &mtp.head_norm).chain([&self.weights.head_norm]);
        self.weights.list().weights().chain(heads.map(Weight::Norm)).try_for_each(each)
    }

    fn adapter(&self, file: &AdapterFile) -> Result<Adapter> {
        let c = &self.config;
        if self.weights.mtp.is_some() {
            return Err(Error::unsupported(format!(
                "{}: a model that is opened with mtp takes no adapters",
                file.what
            )));
        }
        let made = adapter::fit(file, c, &self.weights.list())?;
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
        let mtp = self.weights.mtp.as_ref();
        let wanted = if mtp.is_some() { Wanted(None) } else { Wanted::of(batch) };
        let step = self.step(ops, batch, kv, wanted.rows())?;
        if !self.state_shape().is_empty() {
            kv.states()?.check(batch)?;
        }
        ops.begin(batch, kv)?;
        let x = self.residual(&step, stop, wanted.rows())?;
        check_stop(stop)?;
        if let (Some(mtp), Some(x)) = (mtp, &x) {
            let hidden = ops.norm(x, &self.weights.final_norm)?;
            let before = ops.shift(&hidden, batch, kv)?;
            drop(hidden);
            mtp.follow(&step, &self.embed(&step)?, &before)?;
        }
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
        let products = Products::of_rows(ops, batch, Some(&batch.logits_rows));
        let Outputs { logits, tokens, reports, .. } = out;
        let to = Head { logits: &mut *logits, tokens, reports, draws: &batch.draws };
        products.head(to, &x, Some(&self.weights.head_norm), &self.weights.head)?;
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

fn facts(config: &DecoderConfig, weights: &Weights, other_bytes: u64) -> Facts {
    let (list, mut matrices, mut vectors) = (weights.list(), Vec::new(), Vec::new());
    for weight in list.weights() {
        weight.matrices(&mut |matrix| matrices.push(matrix));
        weight.vectors(&mut |vector| vectors.push(vector));
    }
    // A tied head, which is listed last, has the embedding's very bytes.
    let tied = weights.head.weights.matrices[0].data.as_ptr() == weights.embedding.data.as_ptr();
    matrices.truncate(matrices.len() - usize::from(tied));
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
        ..Facts::of_weights(
            matrices.into_iter(),
            vectors.into_iter().chain(score),
            other_bytes + list.copied_bytes(),
        )
    }
}
