//! The metadata of an mmproj file, whose architecture is `clip`, as a tower's configuration.

use super::size;
use crate::base::{Error, Result};
use crate::formats::gguf::Gguf;
use crate::model::config::{HEADS, HIDDEN};
use crate::model::names::Names;
use crate::model::namespaces;
use crate::model::tower::family::{Positions, Rotation, TOWERS, TowerFamily, Width};
use crate::model::tower::{Embedding, TowerConfig};
use crate::ops::{Activation, AttentionShape, RopeStyle};
use crate::picture::{Family, Filter, Lfm2, Normalize, Processor};

const ARCHITECTURE: &str = "clip";

/// Keys of arithmetic that this build lacks, and why.
const REFUSED: &[(&str, &str)] = &[
    ("n_wa_pattern", "attention within windows"),
    ("wa_layer_indexes", "attention within windows"),
    ("wa_pattern_mode", "attention within windows"),
    ("window_size", "attention within windows"),
    ("feature_layer", "states of several layers"),
    ("swiglu_clamp", "clamped gates"),
    ("expert_used_count", "mixtures of experts"),
];

/// The configuration, and how pictures are prepared. `Unsupported` for a file that is no mmproj, or for a tower that
/// this build lacks.
pub(crate) fn read(gguf: &Gguf, warn: &dyn Fn(&str)) -> Result<(TowerConfig, Processor)> {
    let architecture: &str = gguf.get("general.architecture")?;
    if architecture != ARCHITECTURE {
        return Err(Error::unsupported(format!(
            "{}: architecture '{architecture}' is no vision tower; mmproj files have '{ARCHITECTURE}'",
            gguf.what()
        )));
    }
    namespaces::check(gguf, &[ARCHITECTURE], warn)?;
    if gguf.find::<bool>("clip.has_vision_encoder")? == Some(false) {
        return Err(Error::unsupported(format!("{}: it has no tower for pictures", gguf.what())));
    }
    let own = gguf.find::<&str>("clip.projector_type")?;
    let own = own.map_or_else(|| gguf.find::<&str>("clip.vision.projector_type"), |own| Ok(Some(own)))?;
    let family = own.and_then(TowerFamily::of_gguf).ok_or_else(|| {
        let known: Vec<_> = TOWERS.iter().map(|family| family.gguf).collect();
        let own = own.map_or("missing".to_owned(), |own| format!("'{own}'"));
        let known = known.join(", ");
        Error::unsupported(format!("{}: 'clip.projector_type' is {own}; supported are {known}", gguf.what()))
    })?;
    let key = |key: &str| match key {
        "rope.freq_base" => "clip.rope.freq_base".to_owned(),
        "use_gelu" | "use_silu" => format!("clip.{key}"),
        "position_count" => "v.position_embd.weight".to_owned(),
        key => format!("clip.vision.{key}"),
    };
    let keys = Keys { gguf, names: &Names { what: gguf.what(), key: &key }, family };
    keys.refuse()?;
    let config = keys.config()?;
    let processor = keys.processor(&config)?;
    Ok((config, processor))
}

struct Keys<'a> {
    gguf: &'a Gguf,
    names: &'a Names<'a>,
    family: &'static TowerFamily,
}

impl Keys<'_> {
    fn size(&self, key: &str, default: Option<usize>) -> Result<usize> {
        size(self.gguf, &(self.names.key)(key), default)
    }

    fn optional(&self, key: &str) -> Result<Option<usize>> {
        let value = self.gguf.find::<u64>(&(self.names.key)(key))?;
        Ok(value.map(|value| usize::try_from(value).unwrap_or(usize::MAX)))
    }

    fn refuse(&self) -> Result<()> {
        for (key, why) in REFUSED {
            if self.gguf.contains(&(self.names.key)(key)) {
                return Err(self.names.unsupported(key, why));
            }
        }
        const DEEP: &str = "is_deepstack_layers";
        if self.gguf.find::<Vec<bool>>(&(self.names.key)(DEEP))?.is_some_and(|layers| layers.contains(&true))
        {
            return Err(self.names.unsupported(DEEP, "a list with layers whose states are read too"));
        }
        Ok(())
    }

    fn config(&self) -> Result<TowerConfig> {
        let (family, sizes) = (self.family, &self.family.sizes);
        let hidden = self.size("embedding_length", None)?;
        self.names.within("embedding_length", hidden, HIDDEN)?;
        let heads = self.size("attention.head_count", None)?;
        self.names.within("attention.head_count", heads, HEADS)?;
        let head_dim = self.optional("attention.head_dim")?;
        if head_dim.is_none() && !hidden.is_multiple_of(heads) {
            let why = format!("it must divide the hidden size, {hidden}");
            return Err(self.names.bad("attention.head_count", heads, &why));
        }
        let kv_heads = self.size("attention.head_count_kv", Some(heads))?;
        let mut attention = AttentionShape::new(heads, kv_heads, head_dim.unwrap_or(hidden / heads));
        let eps = self.gguf.get(&(self.names.key)("attention.layer_norm_epsilon"))?;
        if family.normed_heads {
            (attention.scale, attention.value_eps) = (1.0, Some(eps));
        }
        let ffn = self.size("feed_forward_length", None)?;
        let dims = |name: &str| self.gguf.tensor(name).map(|tensor| tensor.dims);
        let swapped =
            dims("v.blk.0.ffn_up.weight").is_some_and(|[cols, rows, ..]| [rows, cols] == [hidden, ffn]);
        let inner = family.projector.products.iter().find(|(_, width)| *width == Width::Inner);
        let inner = inner.and_then(|(name, _)| dims(&format!("{name}.weight"))).map_or(0, |dims| dims[1]);
        let config = TowerConfig {
            family,
            name: self.gguf.find::<&str>("general.name")?.unwrap_or(family.gguf).to_owned(),
            layers: self.size("block_count", None)?,
            hidden,
            ffn,
            attention,
            eps,
            activation: self.activation()?,
            patch: self.size("patch_size", None)?,
            frames: if sizes.frames.is_some() { 2 } else { 1 },
            merge: self.merge()?,
            positions: dims("v.position_embd.weight").map_or(0, |dims| dims[1]),
            rope_base: self.gguf.find(&(self.names.key)("rope.freq_base"))?.unwrap_or(sizes.rope_base),
            rope_style: match family.rotation {
                // Converters permute the rows of q and k as those of Llama.
                Some(Rotation::Alternating) => RopeStyle::Interleaved,
                _ => RopeStyle::Neox,
            },
            embedding: if sizes.frames.is_some() { Embedding::Frames } else { Embedding::Convolution },
            inner,
            width: self.size("projection_dim", None)?,
            projector_activation: family.projector.activation,
            projector_eps: eps,
            // Converters add it themselves.
            projector_offset: 0.0,
            token: None,
            swapped: swapped && hidden != ffn,
        };
        if family.positions != Positions::None && config.positions == 0 {
            return Err(Error::bad_model(format!(
                "{}: tensor 'v.position_embd.weight' is missing",
                self.gguf.what()
            )));
        }
        config.check(self.names)?;
        Ok(config)
    }

    /// Of llama.cpp's three activations, quick GELU belongs to CLIP's own towers.
    fn activation(&self) -> Result<Activation> {
        let flag =
            |key: &str| Ok::<_, Error>(self.gguf.find::<bool>(&(self.names.key)(key))?.unwrap_or(false));
        match ([flag("use_gelu")?, flag("use_silu")?], self.family.activation.gated()) {
            ([true, false], _) => Ok(self.family.activation),
            ([false, true], true) => Ok(Activation::SwiGlu),
            ([true, true], _) => Err(self.names.bad("use_gelu", true, "and so is clip.use_silu")),
            ([false, true], false) => {
                Err(self.names.unsupported("use_silu", "true, for layers without gates"))
            }
            // Files of Gemma 4 have neither key.
            ([false, false], true) if self.family.normed_heads => Ok(self.family.activation),
            ([false, false], _) => {
                Err(self.names.unsupported("use_gelu", "false, so that GELU is approximated"))
            }
        }
    }

    /// The sides of a soft token.
    fn merge(&self) -> Result<usize> {
        let own = self.optional("spatial_merge_size")?;
        let own = own.map_or_else(|| self.optional("projector.scale_factor"), |own| Ok(Some(own)))?;
        Ok(own.unwrap_or(match self.family.gguf {
            // Of all sizes of the model.
            "gemma3" => 4,
            "gemma4v" => 3,
            "pixtral" => 1,
            _ => 2,
        }))
    }

    /// How pictures are prepared. A key that the file lacks, as most do, has the value of the published models.
    fn processor(&self, c: &TowerConfig) -> Result<Processor> {
        let colors = |key: &str| {
            let list: Vec<f32> = self.gguf.get(&(self.names.key)(key))?;
            let three = <[f32; 3]>::try_from(&list[..]).ok().filter(|all| all.iter().all(|x| x.is_finite()));
            let why = "it must have a number for each of three colors";
            three.ok_or_else(|| self.names.bad(key, format_args!("a list of {}", list.len()), why))
        };
        let side = |key: &str, default: Option<u32>| {
            let value = self.size(key, default.map(|side| side as usize))?;
            u32::try_from(value).map_err(|_| self.names.bad(key, value, "it is too large"))
        };
        let (mean, std) = (colors("image_mean")?, colors("image_std")?);
        if std.iter().any(|std| *std <= 0.0) {
            return Err(self.names.bad("image_std", "a list", "its numbers must be positive"));
        }
        let pixels =
            |key: &str, default: u64| Ok::<_, Error>(self.optional(key)?.map_or(default, |own| own as u64));
        let image = side("image_size", None)?;
        let (filter, family) = match self.family.gguf {
            "gemma3" => (Filter::Bilinear, Family::Gemma3 { width: image, height: image }),
            "gemma4v" => (Filter::Bicubic, Family::Gemma4 { max_tokens: 280 }),
            "idefics3" => {
                let longest = side("preproc_image_size", Some(image))?;
                (Filter::Lanczos, Family::Idefics3 { longest, tile: image, split: true })
            }
            "lfm2" => (Filter::Bilinear, Family::Lfm2(LFM2)),
            "pixtral" => (Filter::Bicubic, Family::Pixtral { width: image, height: image }),
            _ => {
                let min_pixels = pixels("image_min_pixels", 1 << 16)?;
                let max_pixels = pixels("image_max_pixels", 1 << 24)?;
                (Filter::Bicubic, Family::Qwen { min_pixels, max_pixels, frames: c.frames as u32 })
            }
        };
        let plain = mean == [0.0; 3] && std == [1.0; 3];
        let processor = Processor {
            family,
            patch: c.patch as u32,
            merge: c.merge as u32,
            filter,
            rescale: 1.0 / 255.0,
            normalize: Some(Normalize { mean, std }).filter(|_| !plain),
        };
        let named = |e: Error| Error::bad_model(format!("{}: {}", self.gguf.what(), e.message));
        processor.check().map_err(named)?;
        Ok(processor)
    }
}

/// That of LFM2-VL's files, which the converter does not write.
const LFM2: Lfm2 = Lfm2 {
    min_tokens: 64,
    max_tokens: 256,
    tolerance: 2.0,
    tile: 512,
    min_tiles: 2,
    max_tiles: 10,
    thumbnail: true,
    marked: true,
};
