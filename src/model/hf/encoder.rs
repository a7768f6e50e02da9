//! Folders of encoders as checkpoints.

use super::fields::Fields;
use super::files::{give_name, warn_of_keys};
use super::ordinary::ORDINARY;
use super::place::{Place, floats};
use super::pooling::{self, Modules};
use super::{chat, config, rope, score, text};
use crate::base::{Bytes, Error, Result, reserve};
use crate::formats::hf::{Folder, Tensors};
use crate::formats::safetensors::TensorInfo;
use crate::kernels::{Matrix, Pool};
use crate::model::Pooling;
use crate::model::checkpoint::Checkpoint;
use crate::model::config::{Block, DecoderConfig, HIDDEN, LAYERS, RopeConfig};
use crate::model::encoder::family::{EncoderFamily, GEMMA_EMBEDDING, Positions};
use crate::model::encoder::{EncoderConfig, HeadActivation};
use crate::model::names::Names;
use crate::ops::AttentionShape;
use crate::text::{ChatTemplate, Tokenizer};
use std::collections::HashMap;
use std::sync::Arc;

/// The family of an encoder's `config.json`.
pub(super) fn family_of(config: &Fields) -> Result<Option<&'static EncoderFamily>> {
    let both = config.flag("use_bidirectional_attention")?.unwrap_or(false);
    Ok(match config.text("model_type")? {
        Some("gemma3_text") if both => Some(&GEMMA_EMBEDDING),
        kind => kind.and_then(EncoderFamily::of_hf),
    })
}

/// Keys that do not affect the arithmetic of an embedding or a score.
const IGNORED: &[&str] = &[
    "_sliding_window_pattern",
    "adapters",
    "attention_bias",
    "classifier_bias",
    "cls_token_id",
    "decoder_bias",
    "dense_seq_output",
    "deterministic_flash_attn",
    "export_model_type",
    "fused_bias_fc",
    "fused_dropout_add_ln",
    "initializer_cutoff_factor",
    "max_trained_positions",
    "mlp_bias",
    "mlp_dropout",
    "mlp_fc1_bias",
    "mlp_fc2_bias",
    "norm_bias",
    "pad_vocab_size_multiple",
    "parallel_block_tied_norm",
    "qkv_proj_bias",
    "reorder_and_upcast_attn",
    "sentence_transformers",
    "sparse_pred_ignore_index",
    "sparse_prediction",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "tie_word_embeddings",
    "use_flash_attn",
    "use_xentropy",
];

/// Keys that would change the arithmetic, with the values that do not.
const NEUTRAL: &[(&str, f32)] = &[("moe_every_n_layers", 0.0), ("rotary_emb_fraction", 1.0)];
const NEUTRAL_FLAGS: &[(&str, bool)] = &[
    ("causal", false),
    ("parallel_block", false),
    ("prenorm", false),
    ("rotary_emb_interleaved", false),
    ("scale_attn_by_inverse_layer_idx", false),
    ("scale_attn_weights", true),
    ("use_rms_norm", false),
];
const UNSET: &[&str] = &["rotary_emb_scale_base", "rotary_scaling_factor"];

/// An opened folder.
pub(super) struct HfEncoder {
    folder: Folder,
    config: EncoderConfig,
    tensors: Tensors,
    /// The tensors of modules after pooling, in their order.
    dense: Vec<Tensors>,
    /// The files' own names, by GGUF's names.
    by_name: HashMap<String, String>,
    unknown: Vec<String>,
    /// Keys that nothing here reads.
    keys: Vec<String>,
}

impl HfEncoder {
    /// `family` is that of the `config.json`'s `model_type`.
    pub(super) fn open(folder: Folder, config: &Fields, family: &'static EncoderFamily) -> Result<Self> {
        let modules = pooling::modules(&folder)?;
        let tensors = Tensors::open(&folder)?;
        let mut dense = Vec::new();
        for module in &modules.dense {
            dense.push(Tensors::open(&Folder::open(&folder.path_of(&module.path))?)?);
        }
        let mut read = read(config, family, folder.name())?;
        read.add(&modules, config)?;
        let keys = config.unknown(&[ORDINARY, IGNORED].concat());
        let mut opened =
            Self { folder, config: read, tensors, dense, by_name: HashMap::new(), unknown: Vec::new(), keys };
        opened.name_tensors()?;
        Ok(opened)
    }

    fn name_tensors(&mut self) -> Result<()> {
        let family = self.config.family;
        for (file, tensor) in self.tensors.iter() {
            let gguf = family.canonical(&tensor.name);
            // The head of another task, or of one that the class does not have.
            let of_head = gguf.as_ref().is_some_and(|name| name.starts_with("cls"));
            if of_head && self.config.score.is_none() || gguf.is_none() && family.ignores(&tensor.name) {
                continue;
            }
            match gguf {
                None => {
                    reserve(&mut self.unknown, 1, "tensor names")?;
                    self.unknown.push(tensor.name.clone());
                }
                Some(gguf) => give_name(&mut self.by_name, gguf, &tensor.name, file.what())?,
            }
        }
        Ok(())
    }

    /// The files that have a tensor, and its name there.
    fn own<'a>(&'a self, name: &'a str) -> Option<(&'a Tensors, &'a str)> {
        if let Some((module, kind)) = name.strip_prefix("dense_").and_then(|rest| rest.split_once('.')) {
            let tensors = self.dense.get(module.parse::<usize>().ok()?.checked_sub(2)?)?;
            return Some((tensors, if kind == "bias" { "linear.bias" } else { "linear.weight" }));
        }
        self.by_name.get(name).map(|own| (&self.tensors, own.as_str()))
    }

    /// The tensor with this GGUF name: its bytes, its info, and its name in errors.
    fn find<'a>(&'a self, name: &'a str) -> Result<(Bytes, &'a TensorInfo, Place<'a>)> {
        let Some((file, info)) = self.own(name).and_then(|(tensors, own)| tensors.find(own)) else {
            let what = self.folder.what();
            return Err(Error::bad_model(format!(
                "{what}: there is no tensor for '{name}', which the config.json asks for"
            )));
        };
        Ok((file.data(info)?, info, Place { file: file.what(), tensor: &info.name }))
    }
}

impl Checkpoint for HfEncoder {
    fn what(&self) -> &str {
        self.folder.what()
    }

    fn config(&self, _: &dyn Fn(&str)) -> Result<DecoderConfig> {
        let what = self.folder.what();
        Err(Error::unsupported(format!("{what}: it is an encoder, and a decoder is asked for")))
    }

    fn encoder(&self, warn: &dyn Fn(&str)) -> Result<Option<EncoderConfig>> {
        warn_of_keys(&self.folder, &self.keys, warn);
        Ok(Some(self.config.clone()))
    }

    fn tokenizer(&self, warn: &dyn Fn(&str)) -> Result<Option<Tokenizer>> {
        text::tokenizer(&self.folder, warn)
    }

    fn end_tokens(&self, n: usize) -> Result<Vec<u32>> {
        text::end_tokens(&self.folder, n)
    }

    fn chat(&self, warn: &dyn Fn(&str)) -> Result<Option<ChatTemplate>> {
        chat::read(&self.folder, warn)
    }

    fn has(&self, tensor: &str) -> bool {
        self.own(tensor).is_some_and(|(tensors, own)| tensors.find(own).is_some())
    }

    fn matrix(&self, _: &Pool, tensor: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let (data, info, at) = self.find(tensor)?;
        at.shape(info, &[rows, cols])?;
        Matrix::new(data, at.dtype(info)?, rows, cols).map_err(|e| at.of(e))
    }

    fn vector(&self, tensor: &str, len: usize) -> Result<Arc<[f32]>> {
        let (data, info, at) = self.find(tensor)?;
        at.shape(info, &[len])?;
        Ok(floats(&data, info.ty, len).ok_or_else(|| at.not_float(info))?.into())
    }

    fn names(&self) -> Result<Vec<String>> {
        let dense = (0..self.dense.len())
            .flat_map(|n| ["weight", "bias"].map(|kind| format!("dense_{}.{kind}", n + 2)).into_iter());
        let dense = dense.filter(|name| self.has(name));
        Ok(self.by_name.keys().chain(&self.unknown).cloned().chain(dense).collect())
    }

    fn tensor_bytes(&self) -> u64 {
        let all = self.dense.iter().chain([&self.tensors]).flat_map(|tensors| tensors.iter());
        all.map(|(_, tensor)| tensor.byte_len() as u64).sum()
    }

    fn bytes_of(&self, tensor: &str) -> u64 {
        let found = self.own(tensor).and_then(|(tensors, own)| tensors.find(own));
        found.map_or(0, |(_, info)| info.byte_len() as u64)
    }

    fn other_bytes(&self) -> u64 {
        self.tensors.header_bytes()
    }
}

impl EncoderConfig {
    /// Adds what the folder's modules say about the way from hidden states to an embedding.
    fn add(&mut self, modules: &Modules, config: &Fields) -> Result<()> {
        if modules.tokens.is_some() {
            let what = config.what();
            return Err(Error::unsupported(format!("{what}: a module LogitScore is for decoders")));
        }
        // Without modules, as sentence-transformers pools.
        self.pooling = modules.pooling.unwrap_or(Pooling::Mean);
        self.raw_embeddings = modules.raw;
        let mut width = self.hidden;
        for module in &modules.dense {
            if module.from != width {
                return Err(Error::bad_model(format!(
                    "{}: the module {} takes {} elements where {width} come",
                    config.what(),
                    module.path,
                    module.from
                )));
            }
            width = module.to;
            self.dense.push((module.to, module.activation));
        }
        match width == self.hidden {
            true => Ok(()),
            false => Err(Error::unsupported(format!(
                "{}: its modules make embeddings of {width} elements of hidden states of {}; only those of as many \
                 are made",
                config.what(),
                self.hidden
            ))),
        }
    }
}

/// `config` knows the family's older keys.
pub(super) fn read(config: &Fields, family: &'static EncoderFamily, name: &str) -> Result<EncoderConfig> {
    neutral(config)?;
    let key = |gguf: &str| config.own(&key(gguf, family)).to_owned();
    let names = Names { what: config.what(), key: &key };
    let hidden = config.need("hidden_size")?;
    names.within("embedding_length", hidden, HIDDEN)?;
    let layers = config.need("num_hidden_layers")?;
    names.within("block_count", layers, LAYERS)?;
    let heads = config.need("num_attention_heads")?;
    let head_dim = match config.size("head_dim")? {
        Some(head_dim) => head_dim,
        None => EncoderConfig::head_dim(&names, hidden, heads)?,
    };
    let positions = config.need("max_position_embeddings")?;
    let vocab_size = config.need("vocab_size")?;
    let offset = match family.positions {
        Positions::BehindPadding => match config.size("pad_token_id")?.unwrap_or(1) {
            id if id < vocab_size => id + 1,
            _ => return Err(config.bad("pad_token_id", format_args!("there are {vocab_size} tokens"))),
        },
        _ => 0,
    };
    if let Some(kind) = config.text("position_embedding_type")?.filter(|kind| *kind != "absolute") {
        return Err(
            config.unsupported("position_embedding_type", format_args!("{kind} positions are not read"))
        );
    }
    let activation = match config.text(family.activation_key)? {
        None => family.activation,
        Some(name) => EncoderConfig::activation(name, family.activation.gated()).ok_or_else(|| {
            config.unsupported(
                family.activation_key,
                "known are gelu, gelu_new, gelu_pytorch_tanh and, gated, silu",
            )
        })?,
    };
    let rotates = matches!(family.positions, Positions::Rotated(_));
    let (ropes, blocks) = spans(config, family, if rotates { head_dim } else { 0 }, layers)?;
    let mut attention =
        AttentionShape::new(heads, config.size("num_key_value_heads")?.unwrap_or(heads), head_dim);
    if let Some(number) = config.float("query_pre_attn_scalar")? {
        attention.scale = 1.0 / number.sqrt();
    }
    let decoder = EncoderConfig {
        family,
        architecture: config.text("model_type")?.unwrap_or(family.gguf).to_owned(),
        name: name.to_owned(),
        vocab_size,
        context_length: positions.saturating_sub(offset),
        layers,
        hidden,
        ffn: config.need("intermediate_size")?,
        attention,
        eps: config.float(family.eps_key)?.unwrap_or(if rotates { 1e-5 } else { 1e-12 }),
        activation,
        embedding_scale: family.embedding_scale(hidden),
        norm_offset: family.norm_offset,
        position_offset: offset,
        types: config.size("type_vocab_size")?.unwrap_or(if rotates { 0 } else { 2 }),
        ropes,
        blocks,
        pooling: Pooling::Mean,
        raw_embeddings: false,
        score: head(config, family)?,
        dense: Vec::new(),
    };
    decoder.check(&names)?;
    Ok(decoder)
}

fn neutral(config: &Fields) -> Result<()> {
    const WHY: &str = "encoders here have no such part";
    for &(key, fine) in NEUTRAL {
        if config.float(key)?.is_some_and(|value| value != fine) {
            return Err(config.unsupported(key, WHY));
        }
    }
    for &(key, fine) in NEUTRAL_FLAGS {
        if config.flag(key)?.is_some_and(|value| value != fine) {
            return Err(config.unsupported(key, WHY));
        }
    }
    match UNSET.iter().find(|key| config.is_set(key)) {
        Some(key) => Err(config.unsupported(key, WHY)),
        None => Ok(()),
    }
}

/// The rotations of layers, of `dims` elements of a head, and the layers.
fn spans(
    config: &Fields,
    family: &EncoderFamily,
    dims: usize,
    layers: usize,
) -> Result<(Vec<RopeConfig>, Vec<Block>)> {
    let (window, every) = windows(config, family)?;
    let slides = rope::slides(config, None, layers)?;
    let seeing = family.windows.map_or(0, |windows| windows.seeing);
    let sees = |index: usize| match &slides {
        Some(slides) => !slides[index],
        // The last of each `every`, or the first.
        None => index % every == if seeing == 0 { 0 } else { every - 1 },
    };
    let bases = bases(config, family)?;
    Ok(family.layers(dims, bases, layers, window, sees))
}

/// The head of a class that classifies.
fn head(config: &Fields, family: &EncoderFamily) -> Result<Option<(Pooling, HeadActivation)>> {
    let classes = config.texts("architectures")?.unwrap_or_default();
    if let Some(class) = classes.iter().find(|class| !family.classes.contains(*class)) {
        let known = family.classes.join(", ");
        return Err(config.unsupported("architectures", format_args!("{class} is not known; {known} are")));
    }
    let classifies = classes.first().is_some_and(|class| class.ends_with("ForSequenceClassification"));
    let pooling = match config.text("classifier_pooling")? {
        None | Some("cls") => Pooling::First,
        Some("mean") => Pooling::Mean,
        Some(_) => return Err(config.unsupported("classifier_pooling", "known are cls and mean")),
    };
    if config.text("classifier_activation")?.is_some_and(|name| name != "gelu") {
        return Err(config.unsupported("classifier_activation", "only gelu is known"));
    }
    match score::label_count(config)?.filter(|(count, _)| classifies && *count != 1) {
        Some((count, key)) => {
            Err(config.unsupported(key, format_args!("a score is made of one label, and there are {count}")))
        }
        None => Ok(classifies.then_some((pooling, family.head))),
    }
}

/// The width of windows, both sides together, and the number of layers between two without.
fn windows(config: &Fields, family: &EncoderFamily) -> Result<(Option<usize>, usize)> {
    let Some(windows) = family.windows else { return Ok((None, 1)) };
    let mut every = windows.every;
    for key in ["global_attn_every_n_layers", "sliding_window_pattern", "_sliding_window_pattern"] {
        every = config.size(key)?.unwrap_or(every);
        if every == 0 {
            return Err(config.bad(key, "it must be at least 1"));
        }
    }
    let local = config.size("local_attention")?;
    Ok((if local.is_some() { local } else { config.size("sliding_window")? }, every))
}

/// The bases of the rotations, in the files' new form or in the old ones.
fn bases(config: &Fields, family: &EncoderFamily) -> Result<[f32; 2]> {
    if config.is_set("rope_scaling") {
        return Err(config.unsupported("rope_scaling", "rotations of encoders are not scaled"));
    }
    let mut bases = family.bases;
    let old = [["global_rope_theta", "rope_theta"], ["local_rope_theta", "rope_local_base_freq"]];
    for (base, keys) in bases.iter_mut().zip(old) {
        for key in keys {
            *base = config.float(key)?.unwrap_or(*base);
        }
    }
    if let Some(new) = config.object("rope_parameters")? {
        if let Some(base) = new.float("rope_theta")? {
            bases = [base; 2];
        }
        for (base, key) in bases.iter_mut().zip(["full_attention", "sliding_attention"]) {
            let Some(rope) = new.object(key)? else { continue };
            if rope.text("rope_type")?.is_some_and(|kind| kind != "default") {
                return Err(rope.unsupported("rope_type", "rotations of encoders are not scaled"));
            }
            *base = rope.float("rope_theta")?.unwrap_or(*base);
        }
    }
    Ok(bases)
}

/// Maps GGUF's key to the key of this file.
fn key(gguf: &str, family: &EncoderFamily) -> String {
    match gguf {
        "attention.layer_norm_epsilon" => family.eps_key.into(),
        "token_type_count" => "type_vocab_size".into(),
        other => config::key(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn blocks(types: Value) -> Result<Vec<bool>> {
        let json = json!({
            "model_type": "modernbert", "hidden_size": 36, "num_hidden_layers": 4, "num_attention_heads": 3,
            "intermediate_size": 52, "vocab_size": 64, "max_position_embeddings": 128, "local_attention": 8,
            "layer_types": types,
        });
        let config = config::parse(json.to_string().as_bytes(), "config.json")?;
        let fields = Fields::new(&config, "config.json")?;
        let family = EncoderFamily::of_hf("modernbert").expect("a family");
        Ok(read(&fields, family, "m")?.blocks.iter().map(|block| block.window.is_some()).collect())
    }

    #[test]
    fn the_list_of_layer_types_has_one_that_is_known_for_each_layer() {
        let (full, slides) = ("full_attention", "sliding_attention");
        assert_eq!(blocks(json!([full, slides, full, slides])).unwrap(), [false, true, false, true]);
        assert_eq!(blocks(json!(null)).unwrap(), [false, true, true, false]);
        for types in [json!([full, slides]), json!([full, slides, full, "chunked_attention"])] {
            let error = blocks(types.clone()).err().unwrap_or_else(|| panic!("{types}"));
            assert!(error.message.contains("layer_types"), "{error}");
        }
    }

    #[test]
    fn nomic_by_its_own_keys() {
        let family = EncoderFamily::of_hf("nomic_bert").expect("a family");
        let parsed = |json: &Value| -> Result<String> {
            let config = config::parse(json.to_string().as_bytes(), "config.json")?;
            let fields = Fields::new(&config, "config.json")?.with_older(family.older_keys);
            let mut read = read(&fields, family, "m")?;
            // No layer has a window.
            read.ropes.truncate(1);
            Ok(format!("{read:?}"))
        };
        let new = json!({
            "model_type": "nomic_bert", "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3,
            "intermediate_size": 52, "max_position_embeddings": 128, "layer_norm_eps": 1e-6, "hidden_act": "silu",
            "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}, "type_vocab_size": 2, "vocab_size": 64,
        });
        let old = json!({
            "model_type": "nomic_bert", "n_embd": 36, "n_layer": 2, "n_head": 3, "n_inner": 52, "n_positions": 128,
            "layer_norm_epsilon": 1e-6, "activation_function": "swiglu", "rotary_emb_base": 500,
            "type_vocab_size": 2, "vocab_size": 64, "causal": false, "prenorm": false, "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": false, "rotary_emb_scale_base": null, "rotary_scaling_factor": null,
            "scale_attn_weights": true, "use_rms_norm": false,
        });
        assert_eq!(parsed(&old).unwrap(), parsed(&new).unwrap());
        for (key, value) in [
            ("causal", json!(true)),
            ("moe_every_n_layers", json!(2)),
            ("prenorm", json!(true)),
            ("rotary_emb_fraction", json!(0.5)),
            ("rotary_scaling_factor", json!(2)),
            ("use_rms_norm", json!(true)),
            ("activation_function", json!("odd")),
            ("n_head", json!(0)),
            ("n_layer", json!("two")),
        ] {
            let mut changed = old.clone();
            changed[key] = value;
            let error = parsed(&changed).expect_err(key);
            assert!(error.message.contains(key), "{error}");
        }
    }
}
