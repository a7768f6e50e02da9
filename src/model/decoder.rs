//! One decoder for all families. The configuration determines the norms, the rotation and the activation; the types
//! of the weights determine the arithmetic.

mod latent;
mod layer;
mod mtp;
mod workspace;

use super::check::check_batch;
use super::config::DecoderConfig;
use super::family::QkNorm;
use super::products::Products;
use super::score::ScoreRows;
use super::{Adapter, AdapterFile, Facts, KvShape, Model, Outputs, Pooling, adapter, check_stop};
use crate::base::{Error, Result};
use crate::ops::{
    Accepted, Attention, AttentionShape, Head, KvCache, KvLayers, KvLayout, Norm, OpSet, Owned, Paging,
    Projections, RaggedBatch, Site, Slot, StateShape, Weight,
};

pub use latent::LatentAttention;
pub use layer::{
    Beside, Both, Convolution, FeedForward, Gated, GatedDelta, Layer, LayerInput, LayerInputs, Mixer, Ropes,
    SelfAttention, StateSpace, Weights,
};
pub use mtp::Mtp;

/// A loaded decoder.
pub struct Decoder {
    config: DecoderConfig,
    weights: Weights,
    facts: Facts,
}

impl Decoder {
    /// Creates a decoder. `weights` must have the shapes that `config` gives; the loader has checked them.
    /// `other_bytes` is the number of other bytes in their files.
    pub fn new(config: DecoderConfig, weights: Weights, other_bytes: u64) -> Self {
        let facts = facts(&config, &weights, other_bytes);
        Self { config, weights, facts }
    }

    /// The places of a step's rows for layers that attend as `DecoderConfig::attention` says, and as `global`.
    fn paging<'a>(
        &'a self,
        batch: &'a RaggedBatch,
        kv: &KvLayout,
    ) -> Result<(Paging<'a>, Option<Paging<'a>>)> {
        let of = |shape| Paging::new(batch, kv, shape);
        Ok((of(&self.config.attention)?, self.config.global.as_ref().map(of).transpose()?))
    }

    /// A product of the normed residual `x` at the start of layer `index`. Adds `update`, the output of the previous
    /// layer, to `x` first.
    fn enter(
        &self,
        step: &Step,
        index: usize,
        x: &mut Owned,
        update: Option<Owned>,
        weights: &Projections,
    ) -> Result<Owned> {
        let (norm, site) = (self.weights.layers[index].attn_norm.as_ref(), Site::Layer(index, Slot::Enter));
        match update {
            Some(update) => step.all.add_linear(x, (&update, self.post_norm(index - 1)), norm, weights, site),
            None => step.all.linear(x, norm, weights, site),
        }
    }

    /// How layer `index` attends.
    fn how<'a>(&'a self, step: &Step, index: usize, attention: &'a SelfAttention) -> Attention<'a> {
        let span = self.config.blocks[index];
        Attention {
            shape: self.config.attention_of(index),
            rope: self.weights.ropes[span.rope].of(step.kv),
            window: span.window,
            from: usize::from(index == self.config.layers),
            sinks: attention.sinks.as_deref(),
            norms: attention.qk_norms.as_ref().filter(|_| self.config.family.qk_norm != QkNorm::Row),
            value_norm: attention.value_norm.as_ref(),
            shared: attention.shared,
        }
    }

    /// q, k and v of layer `index`, and with an output gate its logits.
    fn qkv(
        &self,
        step: &Step,
        index: usize,
        x: &mut Owned,
        update: Option<Owned>,
        attention: &SelfAttention,
    ) -> Result<(Owned, Option<Owned>)> {
        let (ops, family) = (step.ops, self.config.family);
        let mut qkv = self.enter(step, index, x, update, &attention.qkv)?;
        if let (QkNorm::Row, Some([q, k])) = (family.qk_norm, &attention.qk_norms) {
            ops.norm_columns(&mut qkv, 0, q)?;
            ops.norm_columns(&mut qkv, q.weight.len(), k)?;
        }
        if !family.attention_gate {
            return Ok((qkv, None));
        }
        let [qkv, gate] = ops.split_gate(&qkv, &self.config.attention)?;
        Ok((qkv, Some(gate)))
    }

    /// The attention of layer `index`: `[T, heads * head_dim]`.
    fn attention(
        &self,
        step: &Step,
        index: usize,
        x: &mut Owned,
        update: Option<Owned>,
        attention: &SelfAttention,
    ) -> Result<Owned> {
        let (qkv, gate) = self.qkv(step, index, x, update, attention)?;
        let (how, place) = (self.how(step, index, attention), self.weights.layers[index].place);
        let out =
            step.ops.attention(&qkv, step.paging_of(self.config.is_global(index)), step.kv, place, &how)?;
        drop(qkv);
        let norm = self.weights.layers[index].attn_norm.as_ref();
        match (gate, &attention.gate) {
            (Some(gate), _) => step.ops.gate(&out, &gate),
            (None, Some(weights)) => {
                let gate = step.all.linear(x, norm, weights, Site::Layer(index, Slot::Gate))?;
                step.ops.gate(&out, &gate)
            }
            (None, None) => Ok(out),
        }
    }

    /// The part of layer `index` that later rows need: K and V.
    fn append(
        &self,
        step: &Step,
        index: usize,
        x: &mut Owned,
        update: Option<Owned>,
        attention: &SelfAttention,
    ) -> Result<()> {
        let (qkv, _) = self.qkv(step, index, x, update, attention)?;
        let (how, place) = (self.how(step, index, attention), self.weights.layers[index].place);
        step.ops.append(&qkv, step.paging_of(self.config.is_global(index)), step.kv, place, &how)
    }

    /// The recurrence of layer `index`: `[T, values]`.
    fn recurrence(
        &self,
        step: &Step,
        index: usize,
        x: &mut Owned,
        update: Option<Owned>,
        delta: &GatedDelta,
    ) -> Result<Owned> {
        let layer = &self.weights.layers[index];
        let mixed = self.enter(step, index, x, update, &delta.inputs)?;
        let site = Site::Layer(index, Slot::Gate);
        let gates = step.all.linear(x, layer.attn_norm.as_ref(), &delta.gates, site)?;
        step.ops.delta_net(&mixed, &gates, step.paging.batch, step.kv, layer.place, &delta.net)
    }

    /// The convolution of layer `index`: `[T, channels]`.
    fn convolution(
        &self,
        step: &Step,
        index: usize,
        x: &mut Owned,
        update: Option<Owned>,
        conv: &Convolution,
    ) -> Result<Owned> {
        let input = self.enter(step, index, x, update, &conv.input)?;
        let place = self.weights.layers[index].place;
        step.ops.short_conv(&input, step.paging.batch, step.kv, place, &conv.net)
    }

    /// Mamba-2 in layer `index`: `[T, inner]`.
    fn state_space(
        &self,
        step: &Step,
        index: usize,
        x: &mut Owned,
        update: Option<Owned>,
        mamba: &StateSpace,
    ) -> Result<Owned> {
        let input = self.enter(step, index, x, update, &mamba.input)?;
        step.ops.mamba(&input, step.paging.batch, step.kv, self.weights.layers[index].place, &mamba.net)
    }

    /// As `state_space`, beside another mixer, which has added the update to `x`.
    fn beside(&self, step: &Step, index: usize, x: &Owned) -> Result<Option<Owned>> {
        let layer = &self.weights.layers[index];
        let Some(Beside { mixer, place, .. }) = &layer.beside else { return Ok(None) };
        let site = Site::Layer(index, Slot::Beside);
        let input = step.all.linear(x, layer.attn_norm.as_ref(), &mixer.input, site)?;
        step.ops.mamba(&input, step.paging.batch, step.kv, *place, &mixer.net).map(Some)
    }

    /// The mixer of layer `index`. `None` if the layer ends with its K and V.
    fn mixed(
        &self,
        step: &Step,
        index: usize,
        x: &mut Owned,
        update: Option<Owned>,
        ends: bool,
    ) -> Result<Option<Owned>> {
        match &self.weights.layers[index].mixer {
            Mixer::Attention(attention) if ends => {
                return self.append(step, index, x, update, attention).map(|()| None);
            }
            Mixer::Attention(attention) => self.attention(step, index, x, update, attention),
            Mixer::Latent(latent) => return self.latent_attention(step, index, x, update, (latent, ends)),
            Mixer::DeltaNet(delta) => self.recurrence(step, index, x, update, delta),
            Mixer::ShortConv(conv) => self.convolution(step, index, x, update, conv),
            Mixer::Mamba(mamba) => self.state_space(step, index, x, update, mamba),
        }
        .map(Some)
    }

    /// Runs layer `index` on `x`, to which `update` is still to be added, and returns the layer's own update. With
    /// `wanted`, only those rows continue after the mixer. If it is empty, the layer ends with K and V, or with its
    /// state, and returns `None`. `inputs` are those of all layers, if the layers have any.
    fn layer(
        &self,
        step: &Step,
        index: usize,
        x: &mut Owned,
        update: Option<Owned>,
        inputs: Option<&Owned>,
        wanted: Option<&[u32]>,
    ) -> Result<Option<Owned>> {
        let nothing = wanted.is_some_and(<[u32]>::is_empty);
        let mixed = self.mixed(step, index, x, update, nothing)?;
        let mut beside = self.beside(step, index, x)?;
        let Some(mut mixed) = mixed.filter(|_| !nothing) else { return Ok(None) };
        let (ops, mut products, mut own) = (step.ops, &step.all, None);
        if let Some(rows) = wanted {
            products = &step.wanted;
            mixed = ops.rows(&mixed, rows)?;
            beside = beside.map(|beside| ops.rows(&beside, rows)).transpose()?;
            *x = ops.rows(x, rows)?;
            own = inputs.map(|inputs| ops.rows(inputs, rows)).transpose()?;
        }
        let output = self.output(ops, products, index, mixed, beside)?;
        let update = self.feed_forward(ops, products, index, x, output)?;
        self.close(ops, products, index, x, (update, own.as_ref().or(inputs))).map(Some)
    }

    /// The product of what the mixer of layer `index` gave, with that of a second one added.
    fn output(
        &self,
        ops: &dyn OpSet,
        products: &Products,
        index: usize,
        mixed: Owned,
        beside: Option<Owned>,
    ) -> Result<Owned> {
        let layer = &self.weights.layers[index];
        let norm = layer.attn_sub_norm.as_ref();
        let mut output = products.linear(&mixed, norm, &layer.output, Site::Layer(index, Slot::Output))?;
        drop(mixed);
        if let (Some(mixed), Some(beside)) = (beside, &layer.beside) {
            let site = Site::Layer(index, Slot::BesideOutput);
            ops.add(&mut output, &products.linear(&mixed, None, &beside.output, site)?, None)?;
        }
        Ok(output)
    }

    /// The end of layer `index`, behind its feed-forward: its own input, and its scale.
    fn close(
        &self,
        ops: &dyn OpSet,
        products: &Products,
        index: usize,
        x: &mut Owned,
        (mut update, inputs): (Owned, Option<&Owned>),
    ) -> Result<Owned> {
        let layer = &self.weights.layers[index];
        if let (Some(input), Some(inputs), Some(width)) = (&layer.input, inputs, self.config.layer_inputs) {
            ops.add(x, &update, layer.ffn_post_norm.as_ref())?;
            drop(update);
            let gate = products.linear(x, None, &input.gate, Site::Layer(index, Slot::InputGate))?;
            let gated = ops.gated_columns(&gate, inputs, index * width, self.config.activation)?;
            update = products.linear(&gated, None, &input.output, Site::Layer(index, Slot::InputOutput))?;
        }
        layer.scale.map_or(Ok(()), |by| ops.scale(x, by))?;
        Ok(update)
    }

    /// The inputs of all layers side by side: `[T, layers * width]`.
    fn layer_inputs(&self, step: &Step, x: &Owned) -> Result<Option<Owned>> {
        let Some(LayerInputs { table, scale, projection, norm }) = &self.weights.inputs else {
            return Ok(None);
        };
        let mut inputs = step.ops.linear(x, None, projection)?;
        step.ops.norm_parts(&mut inputs, norm)?;
        let rows = step.ops.embed(step.paging.batch, table, *scale)?;
        step.ops.add(&mut inputs, &rows, None)?;
        Ok(Some(inputs))
    }

    fn feed_forward(
        &self,
        ops: &dyn OpSet,
        products: &Products,
        index: usize,
        x: &mut Owned,
        output: Owned,
    ) -> Result<Owned> {
        let layer = &self.weights.layers[index];
        let (post_norm, norm) = (layer.attn_post_norm.as_ref(), layer.ffn_norm.as_ref());
        let activation = self.config.activation;
        let dense = |x: &mut Owned, output: Owned, Gated { gate_up, sub_norm, down }: &Gated| {
            let update = (&output, post_norm);
            let site = Site::Layer(index, Slot::GateUp);
            let gate_up = products.add_gate_up(x, update, norm, gate_up, activation, site)?;
            drop(output);
            let site = Site::Layer(index, Slot::Down);
            products.gated_linear(&gate_up, activation, sub_norm.as_ref(), down, site)
        };
        match &layer.feed_forward {
            FeedForward::Gated(gated) => dense(x, output, gated),
            FeedForward::Both(both) => {
                let Both { dense: gated, experts, experts_norm, post_norms: [dense_norm, sparse_norm] } =
                    &**both;
                let output = dense(x, output, gated)?;
                let sparse = ops.experts(x, Some(experts_norm), experts, activation)?;
                let mut sum = ops.norm(&output, dense_norm)?;
                ops.add(&mut sum, &sparse, Some(sparse_norm))?;
                Ok(sum)
            }
            FeedForward::Experts(experts) => {
                ops.add(x, &output, post_norm)?;
                drop(output);
                ops.experts(x, norm, experts, activation)
            }
        }
    }

    /// The norm of the update that layer `index` adds to the residual.
    fn post_norm(&self, index: usize) -> Option<&Norm> {
        let layer = &self.weights.layers[index];
        layer.input.as_ref().map(|input| &input.post_norm).or(layer.ffn_post_norm.as_ref())
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
        let (ops, last) = (step.ops, self.config.layers - 1);
        let (mut x, mut update) = (self.embed(step)?, None);
        let inputs = self.layer_inputs(step, &x)?;
        // Later rows need nothing of the layers behind it.
        let written = self.config.last_written();
        for index in 0..=last {
            check_stop(stop)?;
            let ends = |rows: &&[u32]| index == last || rows.is_empty() && index == written;
            update = self.layer(step, index, &mut x, update, inputs.as_ref(), wanted.filter(ends))?;
            if update.is_none() {
                break;
            }
        }
        let Some(update) = update else { return Ok(None) };
        ops.add(&mut x, &update, self.post_norm(last))?;
        Ok(Some(x))
    }
}

/// State shared by the layers of one pass.
struct Step<'a> {
    ops: &'a dyn OpSet,
    paging: Paging<'a>,
    /// As `paging`, for layers that attend as `DecoderConfig::global` says.
    global: Option<Paging<'a>>,
    kv: &'a KvCache,
    all: Products<'a>,
    /// The products of the wanted rows.
    wanted: Products<'a>,
}

impl<'a> Step<'a> {
    fn paging_of(&self, global: bool) -> &Paging<'a> {
        self.global.as_ref().filter(|_| global).unwrap_or(&self.paging)
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
        let layers = self.config.blocks.iter().filter(|block| block.has_state()).count();
        let delta = self.config.delta.map(|delta| (delta.state(), delta.drafted_row()));
        let conv = self.config.conv.map(|conv| (conv.state(), conv.drafted_row()));
        let mamba = self.config.mamba.map(|mamba| (mamba.shape.state(), mamba.shape.drafted_row()));
        let (floats, row) = delta.or(conv).or(mamba).unwrap_or_default();
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
        self.predict(ops, (batch, before), kv, out)
    }

    fn advance(&self, ops: &dyn OpSet, kv: &KvCache, accepted: &[Accepted]) -> Result<()> {
        if self.weights.mtp.is_some() {
            kv.states()?.advance_hidden(accepted)?;
        }
        let layers = self.weights.layers.iter();
        layers.filter_map(Layer::recurrent).try_for_each(|(place, net)| ops.advance(kv, place, net, accepted))
    }

    fn weights(&self, each: &mut dyn FnMut(Weight) -> Result<()>) -> Result<()> {
        let Weights { embedding, inputs, layers, mtp, final_norm, head_norm, head, .. } = &self.weights;
        self.config.latent.map_or(Ok(()), |_| each(Weight::CpuOnly("latent attention")))?;
        self.config.shapes().try_for_each(|shape| each(Weight::Attention(shape)))?;
        self.config.logit_cap.map_or(Ok(()), |_| each(Weight::CpuOnly("capped logits")))?;
        each(Weight::Table(embedding))?;
        if let Some(inputs) = inputs {
            each(Weight::Table(&inputs.table))?;
            each(Weight::Product(&inputs.projection))?;
            each(Weight::Norm(&inputs.norm))?;
        }
        for layer in layers {
            layer.projections().try_for_each(|weights| each(Weight::Product(weights)))?;
            layer.sinks().map_or(Ok(()), |_| each(Weight::CpuOnly("attention sinks")))?;
            layer.experts().map_or(Ok(()), |experts| each(Weight::Experts(experts)))?;
            layer.recurrent().map_or(Ok(()), |(_, net)| each(Weight::Recurrent(net)))?;
            layer.norms().try_for_each(|norm| each(Weight::Norm(norm)))?;
        }
        if let Some(mtp) = mtp {
            each(Weight::Product(&mtp.join))?;
            mtp.norms().chain([&mtp.head_norm]).try_for_each(|norm| each(Weight::Norm(norm)))?;
        }
        self.config.activation.cpu_only().map_or(Ok(()), |part| each(Weight::CpuOnly(part)))?;
        each(Weight::Norm(final_norm))?;
        each(Weight::Norm(head_norm))?;
        each(Weight::Product(head))
    }

    fn adapter(&self, file: &AdapterFile) -> Result<Adapter> {
        let c = &self.config;
        if self.weights.mtp.is_some() {
            return Err(Error::unsupported(format!(
                "{}: a model that is opened with mtp takes no adapters",
                file.what
            )));
        }
        let made = adapter::fit(file, c, &self.weights)?;
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
        let (paging, global) = self.paging(batch, &kv.layout)?;
        check_batch(batch, &kv.layout, self.kv_shape(), self.config.vocab_size, self.config.context_length)?;
        if !self.state_shape().is_empty() {
            kv.states()?.check(batch)?;
        }
        ops.begin(batch, kv)?;
        let mtp = self.weights.mtp.as_ref();
        let wanted = if mtp.is_some() { Wanted(None) } else { Wanted::of(batch) };
        let [all, some] = [None, wanted.rows()].map(|rows| Products::of_rows(ops, batch, rows));
        let step = Step { ops, paging, global, kv, all, wanted: some };
        let x = self.residual(&step, stop, wanted.rows())?;
        check_stop(stop)?;
        if let (Some(mtp), Some(x)) = (mtp, &x) {
            self.follow(&step, mtp, x)?;
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
        ..Facts::of_weights(weights.matrices(), weights.vectors(), other_bytes + weights.copied_bytes())
    }
}
