//! The towers of folders of whole models.

use super::config::parse;
use super::fields::Fields;
use super::files::{CONFIG, MAX_CONFIG_BYTES, give_name};
use super::ordinary::ORDINARY;
use super::place::{Place, floats};
use crate::base::{Bytes, Error, Result, reserve};
use crate::formats::hf::{Folder, Tensors};
use crate::formats::safetensors::TensorInfo;
use crate::kernels::{Matrix, Pool};
use crate::model::checkpoint::Checkpoint;
use crate::model::config::DecoderConfig;
use crate::model::names::Names;
use crate::model::tower::family::{MergeKey, PositionKey, ProjectorNorm, TOWERS, TowerFamily};
use crate::model::tower::{Embedding, TowerConfig};
use crate::ops::{Activation, AttentionShape, RopeStyle};
use crate::picture::{HfFiles, Processor};
use crate::text::{ChatTemplate, Tokenizer};
use std::collections::HashMap;
use std::sync::Arc;

/// Keys of `vision_config` that do not affect a tower's arithmetic.
const IGNORED: &[&str] = &[
    "attention_bias",
    // Only Pixtral, whose positions have no table, does not read it.
    "image_size",
    "max_position_embeddings",
    "model_type",
    "num_image_tokens",
    "projection_dim",
    "projector_hidden_act",
    "size",
    "tie_word_embeddings",
    "use_base_siglip",
    "use_cache",
    "vision_use_head",
];

/// An opened folder, as far as its tower goes.
pub(crate) struct HfTower {
    folder: Folder,
    config: TowerConfig,
    tensors: Tensors,
    /// The files' own names, by GGUF's names.
    by_name: HashMap<String, String>,
    unknown: Vec<String>,
    /// Keys that nothing here reads.
    keys: Vec<String>,
}

impl HfTower {
    /// `None` if the `config.json` has no `vision_config`. `Unsupported` for a tower that this build lacks.
    pub(crate) fn open(path: &str) -> Result<Option<Self>> {
        let folder = Folder::open(path)?;
        let what = folder.path_of(CONFIG);
        let Some(json) = folder.read(CONFIG, MAX_CONFIG_BYTES)? else { return Ok(None) };
        let json = parse(&json, &what)?;
        let fields = Fields::new(&json, &what)?;
        let Some(vision) = fields.object("vision_config")? else { return Ok(None) };
        let kind = fields.text("model_type")?;
        let family = kind.and_then(TowerFamily::of_hf).ok_or_else(|| {
            let known: Vec<_> = TOWERS.iter().flat_map(|family| family.hf).copied().collect();
            fields.unsupported("model_type", format_args!("towers are read of {}", known.join(", ")))
        })?;
        let vision = vision.with_older(family.sizes.older_keys);
        let config = Keys { whole: &fields, vision: &vision, family }.config(folder.name())?;
        let keys = vision.unknown(&[ORDINARY, IGNORED].concat());
        let tensors = Tensors::open(&folder)?;
        let mut opened = Self { folder, config, tensors, by_name: HashMap::new(), unknown: Vec::new(), keys };
        opened.name_tensors()?;
        Ok(Some(opened))
    }

    /// The configuration. Keys that are not read are reported to `warn`.
    pub(crate) fn tower(&self, warn: &dyn Fn(&str)) -> TowerConfig {
        super::files::warn_of_keys(&self.folder, &self.keys, warn);
        self.config.clone()
    }

    /// How pictures are prepared, by the folder's own files. Errors as for `Processor::from_hf`.
    pub(crate) fn processor(&self) -> Result<Processor> {
        let read = |name: &str| self.folder.read(name, MAX_CONFIG_BYTES);
        let (preprocessor, processor) = (read("preprocessor_config.json")?, read("processor_config.json")?);
        let config = read(CONFIG)?.unwrap_or_default();
        let made = Processor::from_hf(&HfFiles {
            folder: self.folder.what(),
            preprocessor: preprocessor.as_deref(),
            processor: processor.as_deref(),
            config: &config,
        })?;
        match made.patch_len() == self.config.patch_len() && made.merge as usize == self.config.merge {
            true => Ok(made),
            false => Err(Error::bad_model(format!(
                "{}: pictures become patches of {} pixels for soft tokens of {}, and the vision_config has {} and {}",
                self.folder.what(),
                made.patch,
                made.merge,
                self.config.patch,
                self.config.merge
            ))),
        }
    }

    fn name_tensors(&mut self) -> Result<()> {
        let names = &self.config.family.folder;
        for (file, tensor) in self.tensors.iter().filter(|(_, tensor)| names.has(&tensor.name)) {
            match names.canonical(&tensor.name) {
                None => {
                    reserve(&mut self.unknown, 1, "tensor names")?;
                    self.unknown.push(tensor.name.clone());
                }
                Some(gguf) => give_name(&mut self.by_name, gguf, &tensor.name, file.what())?,
            }
        }
        Ok(())
    }

    /// The tensor with this GGUF name: its bytes, its info, and its name in errors.
    fn find(&self, name: &str) -> Result<(Bytes, &TensorInfo, Place<'_>)> {
        let Some((file, info)) = self.by_name.get(name).and_then(|own| self.tensors.find(own)) else {
            let what = self.folder.what();
            return Err(Error::bad_model(format!(
                "{what}: there is no tensor for '{name}', which the config.json's vision_config asks for"
            )));
        };
        Ok((file.data(info)?, info, Place { file: file.what(), tensor: &info.name }))
    }

    fn no_language(&self) -> Error {
        Error::internal(format!("{}: the language model of a tower", self.folder.what()))
    }
}

impl Checkpoint for HfTower {
    fn what(&self) -> &str {
        self.folder.what()
    }

    fn config(&self, _: &dyn Fn(&str)) -> Result<DecoderConfig> {
        Err(self.no_language())
    }

    fn tokenizer(&self, _: &dyn Fn(&str)) -> Result<Option<Tokenizer>> {
        Err(self.no_language())
    }

    fn end_tokens(&self, _: usize) -> Result<Vec<u32>> {
        Err(self.no_language())
    }

    fn chat(&self, _: &dyn Fn(&str)) -> Result<Option<ChatTemplate>> {
        Err(self.no_language())
    }

    fn has(&self, tensor: &str) -> bool {
        self.by_name.contains_key(tensor)
    }

    fn matrix(&self, _: &Pool, tensor: &str, rows: usize, cols: usize) -> Result<Matrix> {
        self.folded(tensor, &[rows, cols], rows, cols)
    }

    fn folded(&self, tensor: &str, shape: &[usize], rows: usize, cols: usize) -> Result<Matrix> {
        let (data, info, at) = self.find(tensor)?;
        at.shape(info, shape)?;
        Matrix::new(data, at.dtype(info)?, rows, cols).map_err(|e| at.of(e))
    }

    fn vector(&self, tensor: &str, len: usize) -> Result<Arc<[f32]>> {
        let (data, info, at) = self.find(tensor)?;
        match *info.shape {
            // A number by itself.
            [] if len == 1 => {}
            _ => at.shape(info, &[len])?,
        }
        Ok(floats(&data, info.ty, len).ok_or_else(|| at.not_float(info))?.into())
    }

    fn names(&self) -> Result<Vec<String>> {
        Ok(self.by_name.keys().chain(&self.unknown).cloned().collect())
    }

    fn tensor_bytes(&self) -> u64 {
        let own = |name: &String| self.tensors.find(name).map_or(0, |(_, info)| info.byte_len() as u64);
        self.by_name.values().map(own).sum()
    }

    fn bytes_of(&self, tensor: &str) -> u64 {
        let found = self.by_name.get(tensor).and_then(|own| self.tensors.find(own));
        found.map_or(0, |(_, info)| info.byte_len() as u64)
    }

    /// The language model has them.
    fn other_bytes(&self) -> u64 {
        0
    }
}

/// The fields of a `config.json`.
struct Keys<'a> {
    whole: &'a Fields<'a>,
    vision: &'a Fields<'a>,
    family: &'static TowerFamily,
}

impl Keys<'_> {
    fn config(&self, name: &str) -> Result<TowerConfig> {
        self.refuse()?;
        let (family, sizes, vision) = (self.family, &self.family.sizes, self.vision);
        let size = |key: &str, default: usize| Ok::<_, Error>(vision.size(key)?.unwrap_or(default));
        let key = |gguf: &str| vision.own(&self.key(gguf)).to_owned();
        let names = Names { what: vision.what(), key: &key };
        let hidden = size("hidden_size", sizes.hidden)?;
        let heads = size("num_attention_heads", sizes.heads)?;
        let head_dim = vision.size("head_dim")?;
        if head_dim.is_none() && !(heads > 0 && hidden.is_multiple_of(heads)) {
            return Err(
                vision.bad("num_attention_heads", format_args!("it must divide hidden_size, {hidden}"))
            );
        }
        let kv_heads = size("num_key_value_heads", heads)?;
        let mut attention = AttentionShape::new(heads, kv_heads, head_dim.unwrap_or(hidden / heads.max(1)));
        let eps = vision.float(sizes.eps_key)?.unwrap_or(family.eps);
        if family.normed_heads {
            (attention.scale, attention.value_eps) = (1.0, Some(eps));
        }
        let (patch, width) = (size("patch_size", sizes.patch)?, self.width()?);
        let (projector_eps, projector_offset) = self.projector_norm(eps)?;
        let config = TowerConfig {
            family,
            name: name.to_owned(),
            layers: size("num_hidden_layers", sizes.layers)?,
            hidden,
            ffn: size("intermediate_size", sizes.ffn)?,
            attention,
            eps,
            activation: activation(vision, sizes.act_key, family.activation)?,
            patch,
            frames: sizes.frames.map_or(Ok(None), |key| vision.size(key))?.unwrap_or(match sizes.frames {
                Some(_) => 2,
                None => 1,
            }),
            merge: self.merge(patch)?,
            positions: self.positions(patch)?,
            rope_base: self.rope_base()?,
            rope_style: RopeStyle::Neox,
            embedding: if family.colors_last { Embedding::Matrix } else { Embedding::Convolution },
            inner: match sizes.inner {
                Some((key, default)) => self.whole.size(key)?.unwrap_or(default),
                None => 0,
            },
            width,
            projector_activation: match sizes.projector_act {
                Some(key) => activation(self.whole, key, family.projector.activation)?,
                None => family.projector.activation,
            },
            projector_eps,
            projector_offset,
            token: self.token()?,
            swapped: false,
        };
        config.check(&names)?;
        Ok(config)
    }

    /// Refuses what would change the arithmetic.
    fn refuse(&self) -> Result<()> {
        const WHY: &str = "towers here have no such part";
        for (key, fine) in [("in_channels", 3), ("num_channels", 3)] {
            if self.vision.size(key)?.is_some_and(|value| value != fine) {
                return Err(self.vision.unsupported(key, "pictures have three colors"));
            }
        }
        if self.vision.sizes("deepstack_visual_indexes")?.is_some_and(|layers| !layers.is_empty()) {
            return Err(self.vision.unsupported("deepstack_visual_indexes", WHY));
        }
        // Read off the tensors.
        ["use_clipped_linears", "standardize"]
            .into_iter()
            .try_for_each(|key| self.vision.flag(key).map(drop))?;
        if self.whole.float("vision_feature_layer")?.is_some_and(|layer| layer != -1.0) {
            return Err(self
                .whole
                .unsupported("vision_feature_layer", "soft tokens are made of the last layer's states"));
        }
        Ok(())
    }

    /// The width of the language model.
    fn width(&self) -> Result<usize> {
        let text = self.whole.object("text_config")?;
        let own = text.map_or(Ok(None), |text| text.size("hidden_size"))?;
        let made = self.vision.size("out_hidden_size")?.filter(|_| self.family.sizes.frames.is_some());
        match (own, made) {
            (Some(own), Some(made)) if own != made => {
                let why = format!("it must be the language model's hidden_size, {own}");
                Err(self.vision.bad("out_hidden_size", why))
            }
            (Some(width), _) | (None, Some(width)) => Ok(width),
            (None, None) => Err(self.whole.bad("text_config", "it must have a hidden_size")),
        }
    }

    fn merge(&self, patch: usize) -> Result<usize> {
        match self.family.sizes.merge {
            MergeKey::Vision(key, default) => Ok(self.vision.size(key)?.unwrap_or(default)),
            MergeKey::Model(key, default) => Ok(self.whole.size(key)?.unwrap_or(default)),
            MergeKey::Tokens(key, default) => {
                let tokens = self.whole.size(key)?.unwrap_or(default).isqrt().max(1);
                match self.image()? / patch.max(1) / tokens {
                    0 => Err(self.whole.bad(key, "it is more than there are patches")),
                    merge => Ok(merge),
                }
            }
        }
    }

    fn positions(&self, patch: usize) -> Result<usize> {
        match self.family.sizes.positions {
            PositionKey::None => Ok(0),
            PositionKey::Key(key, default) => Ok(self.vision.size(key)?.unwrap_or(default)),
            PositionKey::Image => Ok((self.image()? / patch.max(1)).saturating_pow(2)),
        }
    }

    fn image(&self) -> Result<usize> {
        Ok(self.vision.size("image_size")?.unwrap_or(self.family.sizes.image))
    }

    fn rope_base(&self) -> Result<f32> {
        let base = self.vision.float("rope_theta")?.unwrap_or(self.family.sizes.rope_base);
        let Some(rope) = self.vision.object("rope_parameters")? else { return Ok(base) };
        if rope.text("rope_type")?.is_some_and(|kind| !["axial", "default"].contains(&kind)) {
            return Err(rope.unsupported("rope_type", "rotations of towers are not scaled"));
        }
        Ok(rope.float("rope_theta")?.unwrap_or(base))
    }

    /// The eps of the projector's norm, and what is added to its weights.
    fn projector_norm(&self, eps: f32) -> Result<(f32, f32)> {
        let text = self.whole.object("text_config")?.filter(|_| self.family.sizes.model_eps);
        let own = text.map_or(Ok(None), |text| text.float("rms_norm_eps"))?;
        let offset = match self.family.projector.norm {
            Some(ProjectorNorm::Rms(_, offset)) => offset,
            _ => 0.0,
        };
        Ok((own.unwrap_or(eps), offset))
    }

    fn token(&self) -> Result<Option<u32>> {
        for key in self.family.token_keys {
            if let Some(id) = self.whole.size(key)? {
                let id = u32::try_from(id).map_err(|_| self.whole.bad(key, "it must be a token's id"))?;
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Maps GGUF's key to the key of this file.
    fn key(&self, gguf: &str) -> String {
        let sizes = &self.family.sizes;
        match gguf {
            "block_count" => "num_hidden_layers",
            "embedding_length" => "hidden_size",
            "feed_forward_length" => "intermediate_size",
            "attention.head_count" => "num_attention_heads",
            "attention.head_count_kv" => "num_key_value_heads",
            "attention.key_length" => "head_dim",
            "attention.layer_norm_epsilon" => sizes.eps_key,
            "rope.freq_base" => "rope_parameters.rope_theta",
            "projection_dim" => "text_config.hidden_size",
            "inner_size" => sizes.inner.map_or(gguf, |(key, _)| key),
            "spatial_merge_size" => match sizes.merge {
                MergeKey::Vision(key, _) | MergeKey::Model(key, _) | MergeKey::Tokens(key, _) => key,
            },
            "position_count" => match sizes.positions {
                PositionKey::Key(key, _) => key,
                PositionKey::None | PositionKey::Image => "image_size",
            },
            other => other,
        }
        .to_owned()
    }
}

/// The activation that a key names, with a gate if the family's has one.
fn activation(fields: &Fields, key: &str, default: Activation) -> Result<Activation> {
    let Some(name) = fields.text(key)? else { return Ok(default) };
    Ok(match (name, default.gated()) {
        ("gelu", true) => Activation::GeGluErf,
        ("gelu", false) => Activation::GeluErf,
        ("gelu_pytorch_tanh", true) => Activation::GeGlu,
        ("gelu_pytorch_tanh", false) => Activation::Gelu,
        ("silu", true) => Activation::SwiGlu,
        _ => return Err(fields.unsupported(key, "known are gelu, gelu_pytorch_tanh and, gated, silu")),
    })
}
