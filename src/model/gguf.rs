//! GGUF files as checkpoints: metadata keys become a configuration, and tensors keep their names.

pub(super) mod drafter;
pub(super) mod eagle;
mod encoder;
mod latent;
mod layers;
mod metadata;
mod rope;
mod score;
pub(super) mod tower;

pub(crate) use metadata::Metadata;

use super::Pooling;
use super::checkpoint::Checkpoint;
use super::config::{Block, DecoderConfig, ExpertsConfig, HEADS, HIDDEN, LAYERS, Parts};
use super::encoder::EncoderConfig;
use super::family::{ExpertDefaults, FAMILIES, Factor, Family, REFUSED, ScaleSizes, SharedExpert};
use super::fused;
use super::keys::{
    DENSE_FIRST, GATING, GATING_CHOSEN, GATING_LOGISTIC, GATING_SOFTMAX, GROUPS, KNOWN, NEUTRAL,
    NEUTRAL_FLOATS, NEXTN, NO_BLOCKS, NO_COUNTS, NO_DENSE, NO_EXPERTS, NO_SHARED, SECTIONS, SHARED_COUNT,
    TEMPERATURE, USED_GROUPS,
};
use super::layers::recurrent::Recurrent;
use super::names::Names;
use super::namespaces;
use super::rotation::{self, Rotations};
use super::sampling::{GGUF_KEYS, SamplingDefaults};
use crate::base::{Error, Result, reserve};
use crate::formats::gguf::{Gguf, expert};
use crate::kernels::{DType, Matrix, Pool, pack};
use crate::ops::{Activation, AttentionShape, Axes, Choice, Gate, Groups};
use crate::text::{ChatTemplate, Tokenizer, end_tokens_of_gguf};
use metadata::size;
use std::ops::Deref;
use std::sync::Arc;

/// The value of a float or integer key; NaN if the key has another type.
fn number(gguf: &Gguf, key: &str) -> Option<f64> {
    if !gguf.contains(key) {
        return None;
    }
    let float = gguf.get::<f32>(key).map(f64::from);
    Some(float.or_else(|_| gguf.get::<i32>(key).map(f64::from)).unwrap_or(f64::NAN))
}

impl Checkpoint for Gguf {
    fn what(&self) -> &str {
        Gguf::what(self)
    }

    fn config(&self, warn: &dyn Fn(&str)) -> Result<DecoderConfig> {
        let architecture: &str = self.get("general.architecture")?;
        if let Some((_, why)) = REFUSED.iter().find(|(name, _)| *name == architecture) {
            let message = format!("{}: architecture '{architecture}' is not supported: {why}", self.what());
            return Err(Error::unsupported(message));
        }
        drafter::refuse(self, architecture)?;
        config_of(self, None, warn)
    }

    fn encoder(&self, warn: &dyn Fn(&str)) -> Result<Option<EncoderConfig>> {
        encoder::read(self, warn)
    }

    fn tokenizer(&self, warn: &dyn Fn(&str)) -> Result<Option<Tokenizer>> {
        Tokenizer::from_gguf(self, warn)
    }

    fn end_tokens(&self, n: usize) -> Result<Vec<u32>> {
        end_tokens_of_gguf(self, n)
    }

    fn chat(&self, warn: &dyn Fn(&str)) -> Result<Option<ChatTemplate>> {
        ChatTemplate::from_gguf(self, warn)
    }

    fn pair(&self) -> Result<Option<ChatTemplate>> {
        score::template(self)
    }

    fn has(&self, tensor: &str) -> bool {
        self.tensor(tensor).is_some()
    }

    fn matrix(&self, pool: &Pool, tensor: &str, rows: usize, cols: usize) -> Result<Matrix> {
        if let Some(matrix) = gathered(self, pool, tensor, cols)? {
            return Ok(matrix);
        }
        let matrix = self.prepared(pool, tensor, rows, cols)?;
        let at =
            |e: Error| Error::new(e.status, format!("{}: tensor '{tensor}': {}", self.what(), e.message));
        let matrix = as_trained(self, pool, tensor, matrix).map_err(at)?;
        if !self.maps(&matrix.data) {
            // The file's own form is no longer needed.
            Gguf::matrix(self, tensor, rows, cols)?.data.release_pages();
        }
        Ok(matrix)
    }

    fn folded(&self, tensor: &str, shape: &[usize], rows: usize, cols: usize) -> Result<Matrix> {
        self.folded_matrix(tensor, shape, rows, cols)
    }

    fn vector(&self, tensor: &str, len: usize) -> Result<Arc<[f32]>> {
        match recurrent(self)? {
            Some(kind) => kind.vector(self, tensor, len),
            None => self.vector_f32(tensor, len),
        }
    }

    fn integers(&self, tensor: &str) -> Result<Vec<i64>> {
        Gguf::integers(self, tensor)
    }

    fn names(&self) -> Result<Vec<String>> {
        let architecture: &str = self.get("general.architecture")?;
        let long = rope::kind(self, architecture)? == Some(rope::LONG);
        let kind = recurrent(self)?;
        let in_pieces = kind.is_some_and(|kind| !kind.joined().is_empty());
        let mut names = Vec::new();
        reserve(&mut names, 2 * self.tensors().len(), "tensor names")?;
        for name in self.tensors().iter().map(|t| &t.name) {
            let in_config = long && rope::LONG_FACTORS.contains(&name.as_str());
            if in_config || self.is_scale(name) {
                continue;
            }
            let parts = fused::parts_of(name).filter(|_| in_pieces);
            match parts.filter(|parts| !parts.iter().any(|part| self.tensor(part).is_some())) {
                Some(parts) => names.extend(parts),
                None => names.push(kind.map_or_else(|| name.clone(), |kind| kind.usual_name(name))),
            }
        }
        Ok(names)
    }

    fn tensor_bytes(&self) -> u64 {
        Gguf::tensor_bytes(self)
    }

    fn bytes_of(&self, tensor: &str) -> u64 {
        let bytes = |name: &str| self.tensor(name).and_then(|t| t.byte_len).unwrap_or(0) as u64;
        match expert(tensor) {
            Some((all, _)) => bytes(&all) / self.tensor(&all).map_or(1, |t| t.dims[2].max(1) as u64),
            None if self.tensor(tensor).is_some() => bytes(tensor),
            None => fused::whole_of(tensor).map_or(0, |whole| bytes(&whole) / 2),
        }
    }

    fn other_bytes(&self) -> u64 {
        (self.file_bytes() as u64).saturating_sub(Gguf::tensor_bytes(self))
    }
}

/// The configuration of a file, which may be a drafter alone for `target`.
fn config_of(gguf: &Gguf, target: Option<&DecoderConfig>, warn: &dyn Fn(&str)) -> Result<DecoderConfig> {
    let architecture: &str = gguf.get("general.architecture")?;
    let family = Family::of_gguf(architecture).ok_or_else(|| {
        let mut known: Vec<_> = FAMILIES.iter().flat_map(|f| f.gguf).copied().collect();
        known.dedup();
        let why = match architecture {
            "clip" => "is the part of a model that sees; give it beside the model, as its part for pictures"
                .to_owned(),
            _ => format!("is not supported; supported are {}", known.join(", ")),
        };
        Error::unsupported(format!("{}: architecture '{architecture}' {why}", gguf.what()))
    })?;
    namespaces::check(gguf, &[architecture, rotation::PREFIX], warn)?;
    let key = |key: &str| format!("{architecture}.{key}");
    let names = Names { what: gguf.what(), key: &key };
    let keys = Keys { of: Metadata { gguf, names: &names }, family, target };
    let mut config = keys.config(architecture)?;
    config.rotations = Rotations::read(gguf)?;
    config.sampling = SamplingDefaults::read(&GGUF_KEYS, &|key| number(gguf, key), gguf.what(), warn);
    keys.warn_of_unknown(&[], warn);
    Ok(config)
}

/// The recurrent layers of the file's family, if it has any.
fn recurrent(gguf: &Gguf) -> Result<Option<&'static dyn Recurrent>> {
    let family = Family::of_gguf(gguf.get("general.architecture")?);
    Ok(family.and_then(|family| family.recurrent))
}

/// A product that the file has in pieces of another matrix; `None` if it has it as it is.
fn gathered(gguf: &Gguf, pool: &Pool, tensor: &str, cols: usize) -> Result<Option<Matrix>> {
    let whole = fused::whole_of(tensor).filter(|_| gguf.tensor(tensor).is_none());
    let Some(whole) = whole.filter(|whole| gguf.tensor(whole).is_some()) else { return Ok(None) };
    let config = Checkpoint::config(gguf, &|_| ())?;
    let shape = fused::shape(&config);
    let Some((shape, rows)) = shape.and_then(|shape| Some((shape, fused::rows(tensor, shape)?))) else {
        return Ok(None);
    };
    let raw = gguf.matrix(&whole, rows, cols)?;
    let made = fused::gather(tensor, shape, &raw).and_then(|matrix| pack::prepare(pool, matrix));
    raw.data.release_pages();
    made.map(Some)
        .map_err(|e| Error::new(e.status, format!("{}: tensor '{whole}': {}", gguf.what(), e.message)))
}

/// Some types are used by two kinds of models. Converts a matrix of such a type to the form whose product has the
/// arithmetic of its training: one scale of activations per token, or one per 32 columns.
///
/// BitNet's and Falcon's models were trained with int8 activations and one scale per token. They are the
/// architectures `bitnet*`, `llama` (whose ternary files are Falcon's and Llama3-8B-1.58), and bodies with a norm for
/// each projection. Other models, such as Bonsai, were not. Q2_0 has a fourth value and a scale per block, so it
/// counts as ternary only in the layers of `bitnet*` files, and only if its numbers are ternary.
fn as_trained(gguf: &Gguf, pool: &Pool, tensor: &str, matrix: Matrix) -> Result<Matrix> {
    let architecture: &str = gguf.get("general.architecture")?;
    let bitnet = architecture.starts_with("bitnet");
    let by_token = bitnet || architecture == "llama" || gguf.tensor("blk.0.attn_q_norm_in.weight").is_some();
    match matrix.dtype {
        DType::TQ1_0 if !by_token => Ok(Matrix { dtype: DType::TQ1_0_256, ..matrix }),
        DType::TQ2_0 if !by_token => Ok(Matrix { dtype: DType::TQ2_0_256, ..matrix }),
        DType::Q2_0 | DType::Q2_0_128 | DType::PTQ1_0 if bitnet && tensor.starts_with("blk.") => {
            Ok(pack::as_ternary(pool, &matrix)?.unwrap_or(matrix))
        }
        _ => Ok(matrix),
    }
}

/// The metadata of one file, as its family has them.
struct Keys<'a> {
    of: Metadata<'a>,
    family: &'static Family,
    /// The model of a file that is a drafter alone.
    target: Option<&'a DecoderConfig>,
}

impl<'a> Deref for Keys<'a> {
    type Target = Metadata<'a>;

    fn deref(&self) -> &Metadata<'a> {
        &self.of
    }
}

impl<'a> Keys<'a> {
    fn config(&self, architecture: &str) -> Result<DecoderConfig> {
        self.refuse_features()?;
        let hidden = self.size("embedding_length", None)?;
        self.names.within("embedding_length", hidden, HIDDEN)?;
        let (layers, further) = self.layers()?;
        let context_length = self.size("context_length", None)?;
        let rms_eps = self.gguf.get(&self.full(self.family.eps_key()))?;
        let (latent, mut attention) = self.heads_of(hidden, layers, rms_eps)?;
        attention.value_eps = Some(rms_eps).filter(|_| self.family.global_heads);
        let global = self.global(&attention, layers)?;
        let dense = self.dense_first()?;
        let experts = if dense < layers { self.experts()? } else { None };
        let dims = [global.as_ref().unwrap_or(&attention).head_dim, attention.head_dim];
        let (ropes, mut blocks) = self.blocks(layers, context_length, dims)?;
        let sizes = ScaleSizes { layers, hidden, heads: attention.heads, head_dim: attention.head_dim };
        let scales = &self.family.scales;
        let kind = self.family.recurrent;
        let recurrent = kind.map_or(Ok(None), |kind| kind.read_gguf(self, hidden, &mut blocks))?;
        let first = match self.target {
            Some(_) => layers,
            None => blocks.iter().position(|block| !block.recurrent).unwrap_or(0),
        };
        let sparse = |index| experts.is_some() && index >= dense;
        blocks.iter_mut().enumerate().for_each(|(index, block)| block.sparse = sparse(index));
        let rows = self.gguf.tensor("token_embd.weight").map(|t| t.dims[1]);
        let rows = rows.or(self.target.map(|target| target.vocab_size));
        let ffn = self.feed_forwards(experts.as_ref(), &mut blocks)?;
        self.share(&mut blocks)?;
        let layer_inputs = self.layer_inputs()?;
        Block::mark_mutual(&mut blocks, self.family.mutual, layer_inputs.is_none());
        let config = DecoderConfig {
            family: self.family,
            architecture: architecture.to_owned(),
            name: self.gguf.find::<&str>("general.name")?.unwrap_or(architecture).to_owned(),
            // The key, or the number of the embedding's rows in files without it.
            vocab_size: self.size("vocab_size", rows)?,
            context_length,
            layers,
            further,
            hidden,
            ffn,
            experts,
            attention,
            latent,
            global,
            layer_inputs,
            recurrent,
            blocks,
            ropes,
            rope_style: self.family.gguf_rope,
            axes: self.axes()?,
            rms_eps,
            projection_eps: rms_eps,
            // Converters add it themselves.
            norm_offset: 0.0,
            activation: self.activation()?,
            embedding_scale: self.factor(&scales.embedding, &sizes)?,
            residual_scale: self.factor(&scales.residual, &sizes)?,
            logit_scale: self.factor(&scales.logits, &sizes)?,
            logit_cap: self.cap(&scales.logit_cap, &sizes)?,
            norms: self.norms(first),
            parts: self.parts(first),
            pooling: self.pooling()?,
            raw_embeddings: false,
            score: self.score()?,
            rotations: None,
            sampling: SamplingDefaults::default(),
        };
        config.check(self.names).map(|()| config)
    }

    /// The axes of pairs, which only pictures tell apart.
    fn axes(&self) -> Result<Option<Axes>> {
        let sections = self.find::<Vec<i32>>(SECTIONS)?.filter(|_| self.family.rope_sections);
        let sizes =
            |list: Vec<i32>| list.into_iter().map(|n| usize::try_from(n).ok()).collect::<Option<Vec<_>>>();
        Ok(sections.and_then(sizes).and_then(|sections| super::rope::axes(&sections)))
    }

    /// Number of the model's layers, and of the blocks after them that predict further tokens.
    fn layers(&self) -> Result<(usize, usize)> {
        let blocks = self.size("block_count", None)?;
        self.names.within("block_count", blocks, LAYERS)?;
        let further = self.size(NEXTN, Some(0))?;
        self.names.within(NEXTN, further, 0..=blocks - 1)?;
        Ok((blocks - further, further))
    }

    fn heads(&self) -> Result<usize> {
        let heads = self.size("attention.head_count", None)?;
        self.names.within("attention.head_count", heads, HEADS)?;
        Ok(heads)
    }

    fn attention(&self, hidden: usize, layers: usize) -> Result<AttentionShape> {
        let heads = self.heads()?;
        let kv_heads = match self.family.global_heads {
            true => self.kv_heads_of(layers, true)?,
            false => {
                match self.kv_heads(layers, self.family.recurrent.is_some_and(|kind| kind.lacks_heads()))? {
                    Some(by_layer) => by_layer.into_iter().max().unwrap_or(0),
                    None => self.size("attention.head_count_kv", Some(heads))?,
                }
            }
        };
        let given = self.find::<u64>("attention.key_length")?.is_some();
        if !given && !hidden.is_multiple_of(heads) {
            let why =
                format!("it must divide embedding_length, {hidden}, where there is no attention.key_length");
            return Err(self.names.bad("attention.head_count", heads, &why));
        }
        let head_dim = match self.family.global_heads {
            true => self.head_dim(["attention.key_length_swa", "attention.value_length_swa"], None)?,
            false => {
                self.head_dim(["attention.key_length", "attention.value_length"], Some(hidden / heads))?
            }
        };
        let mut shape = self.family.attention(heads, kv_heads, head_dim);
        let sizes = ScaleSizes { layers, hidden, heads, head_dim };
        let scale = (self.family.scales.scores.gguf)(&sizes);
        shape.scale = self.float("attention.scale", scale)?;
        shape.temperature = self.temperature()?;
        shape.cap = self.cap(&self.family.scales.score_cap, &sizes)?;
        Ok(shape)
    }

    /// Whether this key gives one of the family's factors, or a part that only some families have.
    fn reads_factor(&self, key: &str) -> bool {
        key == TEMPERATURE && self.family.temperature
            || key == "expert_weights_scale"
                && self.family.experts.is_some_and(|e| e.scaled || e.gate == Gate::Logistic)
            || self.family.factor_keys().any(|(_, gguf)| gguf == key)
    }

    fn factor(&self, factor: &Factor, sizes: &ScaleSizes) -> Result<f32> {
        let given = factor.keys.map_or(Ok(None), |(_, key)| self.find::<f32>(key))?;
        Ok(given.unwrap_or((factor.gguf)(sizes)))
    }

    /// A soft cap.
    fn cap(&self, factor: &Factor, sizes: &ScaleSizes) -> Result<Option<f32>> {
        Ok(Some(self.factor(factor, sizes)?).filter(|cap| *cap != 0.0))
    }

    /// The family's activation, with the file's limit if there is one.
    fn activation(&self) -> Result<Activation> {
        const KEY: &str = "swiglu_clamp_exp";
        let mut limits = match self.find::<Vec<f32>>(KEY) {
            Ok(limits) => limits.unwrap_or_default(),
            Err(_) => vec![self.float(KEY, 0.0)?],
        };
        limits.dedup();
        match (self.family.activation, &limits[..]) {
            (Activation::SteepSwiGlu { alpha, .. }, [limit]) if *limit != 0.0 => {
                Ok(Activation::SteepSwiGlu { alpha, limit: *limit })
            }
            // 0 stands for no limit.
            (Activation::ClampedSwiGlu { .. }, [0.0]) => Ok(Activation::SwiGlu),
            (Activation::ClampedSwiGlu { .. }, [limit]) => Ok(Activation::ClampedSwiGlu { limit: *limit }),
            (own, [] | [0.0]) => Ok(own),
            (_, [limit]) => Err(self.names.unsupported(KEY, limit)),
            (_, limits) => {
                Err(self.names.unsupported(KEY, format_args!("a list of {} limits", limits.len())))
            }
        }
    }

    /// The experts of all layers, if the family has any.
    fn experts(&self) -> Result<Option<ExpertsConfig>> {
        let Some(defaults) = self.family.experts else { return Ok(None) };
        if defaults.beside && self.size("expert_count", Some(0))? == 0 {
            return Ok(None);
        }
        let renormalize = self.find("expert_weights_norm")?.unwrap_or(defaults.renormalize_gguf);
        let count = self.size("expert_count", defaults.optional.then_some(0))?;
        if count == 0 && defaults.optional {
            return Ok(None);
        }
        let used = self.size("expert_used_count", None)?;
        let width = self.size(defaults.width.1, None)?;
        let other = |name: &str, dims: &[usize; 4]| name.ends_with("_exps.weight") && dims[2] != count;
        if let Some(tensor) = self.gguf.tensors().iter().find(|t| other(&t.name, &t.dims)) {
            let why = format!("tensor '{}' has {}", tensor.name, tensor.dims[2]);
            return Err(self.names.bad("expert_count", count, &why));
        }
        let has_bias = self.gguf.tensors().iter().any(|tensor| tensor.name.ends_with(".exp_probs_b.bias"));
        let gated = match self.find::<u32>(GATING)? {
            Some(gated) => gated,
            // GLM-4.7-Flash's files do not say it.
            None if defaults.by_file && has_bias => GATING_LOGISTIC,
            None => GATING_SOFTMAX,
        };
        let gate = match gated {
            GATING_SOFTMAX | GATING_CHOSEN => Gate::Softmax,
            GATING_LOGISTIC => Gate::Logistic,
            other => return Err(self.names.unsupported(GATING, other)),
        };
        if gate != defaults.gate && !defaults.by_file {
            return Err(self.names.unsupported(GATING, gated));
        }
        let choice = Choice {
            gate,
            renormalize: (renormalize || gated == GATING_CHOSEN).then_some(defaults.more),
            scale: self.float("expert_weights_scale", 1.0)?,
            used,
            groups: self.groups(&defaults, gate)?,
        };
        let rows = self.gguf.tensor("blk.0.ffn_up_shexp.weight").map(|tensor| tensor.dims[1]);
        const SHARED: &str = "expert_shared_feed_forward_length";
        let shared = match defaults.shared {
            SharedExpert::Weighed => Some(self.size(SHARED, rows)?),
            SharedExpert::Added => Some(self.size(SHARED, rows.or(Some(0)))?).filter(|width| *width > 0),
            SharedExpert::Counted => {
                Some(self.size(SHARED_COUNT, Some(0))?.saturating_mul(width)).filter(|width| *width > 0)
            }
            SharedExpert::Never => None,
        };
        let bias = if defaults.by_file { has_bias } else { defaults.bias.is_some() };
        Ok(Some(ExpertsConfig { count, width, shared, choice, bias }))
    }

    /// The groups of experts. `None`: a row's experts may be of any.
    fn groups(&self, defaults: &ExpertDefaults, gate: Gate) -> Result<Option<Groups>> {
        let count = self.size(GROUPS, Some(0))?;
        if defaults.groups.is_none() || count == 0 {
            return Ok(None);
        }
        Ok(Groups::of(count, self.size(USED_GROUPS, Some(count))?, gate))
    }

    /// The number of dense layers before the sparse ones.
    fn dense_first(&self) -> Result<usize> {
        let default = self.family.experts.and_then(|experts| experts.dense_first);
        let dense = default.map_or(Ok(0), |(_, default)| self.size(DENSE_FIRST, Some(default)))?;
        self.names.within(DENSE_FIRST, dense, 0..=*LAYERS.end()).map(|()| dense)
    }

    /// In llama.cpp's numbers. 0 means that hidden states are not pooled.
    fn pooling(&self) -> Result<Pooling> {
        match self.find::<u32>("pooling_type")? {
            None | Some(0 | 3 | score::RANK) => Ok(Pooling::Last),
            Some(1) => Ok(Pooling::Mean),
            Some(2) => Ok(Pooling::First),
            Some(other) => Err(self.names.unsupported("pooling_type", other)),
        }
    }

    /// The norms of the family, and those of its optional ones that the layer has.
    fn norms(&self, layer: usize) -> Vec<&'static str> {
        let has = |norm: &&str| self.has(layer, &format!("{norm}.weight"));
        let optional = self.family.optional_norms.iter().copied().filter(has);
        self.family.norms.iter().map(|(_, gguf)| *gguf).chain(optional).collect()
    }

    /// The parts that the tensors of a layer of attention show.
    fn parts(&self, layer: usize) -> Parts {
        let has = |part| self.has(layer, part);
        Parts {
            projection_norms: has("attn_q_norm_in.weight"),
            qkv_bias: has(if self.family.fused.qkv { "attn_qkv.bias" } else { "attn_q.bias" }),
            output_bias: has("attn_output.bias"),
            ffn_bias: has("ffn_down.bias"),
        }
    }

    /// Refuses features that would load but compute something other than the model's authors intended.
    fn refuse_features(&self) -> Result<()> {
        let experts = if self.family.experts.is_none() { NO_EXPERTS } else { &[] };
        let blocks = if self.family.mtp { &[] } else { NO_BLOCKS };
        let dense = if self.family.experts.is_some_and(|experts| experts.dense_first.is_some()) {
            &[]
        } else {
            NO_DENSE
        };
        let shared = if self.family.global_heads { &[] } else { NO_SHARED };
        let counted = self.family.experts.is_some_and(|experts| experts.shared == SharedExpert::Counted);
        let counts = if counted { &[] } else { NO_COUNTS };
        let all = NEUTRAL.iter().chain(experts).chain(blocks).chain(dense).chain(shared).chain(counts);
        for &(key, fine) in all {
            let value = match self.find::<bool>(key) {
                Ok(value) => value.map(u32::from),
                Err(_) => self.find::<u32>(key)?,
            };
            if let Some(value) = value.filter(|&v| v != fine) {
                return Err(self.names.unsupported(key, value));
            }
        }
        let sections = self.find::<Vec<i32>>(SECTIONS)?.unwrap_or_default();
        if !self.family.rope_sections && sections.iter().any(|&n| n != 0) {
            return Err(self.names.unsupported(SECTIONS, format_args!("a list of {}", sections.len())));
        }
        for &(key, fine) in NEUTRAL_FLOATS.iter().filter(|(key, _)| !self.reads_factor(key)) {
            if let Some(value) = self.find::<f32>(key)?.filter(|&v| v != fine) {
                return Err(self.names.unsupported(key, value));
            }
        }
        Ok(())
    }

    /// Warns of keys of this architecture that nothing reads, in order: they may mean something. The caller reads those
    /// of `own`.
    fn warn_of_unknown(&self, own: &[&str], warn: &dyn Fn(&str)) {
        let known = |key: &str| {
            KNOWN.contains(&key)
                || own.contains(&key)
                || self.family.recurrent.is_some_and(|kind| kind.gguf_keys().contains(&key))
                || NEUTRAL_FLOATS.iter().any(|(k, _)| *k == key)
                || NEUTRAL.iter().any(|(k, _)| *k == key)
        };
        let prefix = self.full("");
        let unknown = |key: &str| key.strip_prefix(&prefix).is_some_and(|key| !known(key));
        let mut keys: Vec<&str> = self.gguf.keys().filter(|key| unknown(key)).collect();
        keys.sort_unstable();
        let what = self.gguf.what();
        keys.iter().for_each(|key| warn(&format!("{what}: metadata key '{key}' is not known and not used")));
    }
}
