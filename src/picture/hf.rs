//! A processor from the files of a Hugging Face folder.
//!
//! Keys that are missing or null have the defaults of transformers' class; keys that its class does not have say
//! nothing.

use super::processor::{Family, Lfm2, Normalize, Processor};
use super::resize::Filter;
use crate::base::{Error, Result};
use serde_json::{Map, Value};

/// The contents of the files that say how pictures are processed.
pub struct HfFiles<'a> {
    /// The folder's name in errors.
    pub folder: &'a str,
    /// `preprocessor_config.json`
    pub preprocessor: Option<&'a [u8]>,
    /// `processor_config.json`; its `image_processor`, if it has one, replaces `preprocessor`.
    pub processor: Option<&'a [u8]>,
    /// `config.json`
    pub config: &'a [u8],
}

/// Means and deviations of transformers' constants.
const CLIP: Normalize =
    Normalize { mean: [0.48145466, 0.4578275, 0.40821073], std: [0.26862954, 0.261_302_6, 0.275_777_1] };
const HALVES: Normalize = Normalize { mean: [0.5; 3], std: [0.5; 3] };
const NONE: Normalize = Normalize { mean: [0.0; 3], std: [1.0; 3] };

/// Image processors by name, and models by type where the file names no processor.
const KINDS: [(Kind, &[&str]); 6] = [
    (
        Kind::Qwen,
        &[
            "Qwen2VLImageProcessor",
            "qwen2_vl",
            "qwen2_5_vl",
            "qwen3_vl",
            "qwen3_vl_moe",
            "qwen3_5",
            "qwen3_5_moe",
        ],
    ),
    (Kind::Gemma3, &["Gemma3ImageProcessor", "gemma3"]),
    (Kind::Idefics3, &["Idefics3ImageProcessor", "SmolVLMImageProcessor", "idefics3", "smolvlm"]),
    (Kind::Pixtral, &["PixtralImageProcessor", "mistral3", "pixtral"]),
    (Kind::Lfm2, &["Lfm2VlImageProcessor", "lfm2_vl"]),
    (Kind::Gemma4, &["Gemma4ImageProcessor", "gemma4"]),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Qwen,
    Gemma3,
    Idefics3,
    Pixtral,
    Lfm2,
    Gemma4,
}

impl Processor {
    /// The processor that a folder's files describe. `BadModel` for values that make no sense or contradict each other,
    /// `Unsupported` for those that are not known, by name.
    pub fn from_hf(files: &HfFiles) -> Result<Self> {
        let parsed = Parsed::new(files)?;
        let kind = parsed.kind()?;
        let image = &parsed.image;
        for (key, wanted) in
            [("do_resize", true), ("do_rescale", true), ("do_center_crop", false), ("do_pan_and_scan", false)]
        {
            let ignored = key == "do_resize" && kind == Kind::Lfm2;
            if image.bool(key, wanted)? != wanted && !ignored {
                return Err(image.unsupported(key, !wanted));
            }
        }
        let (family, patch, merge) = match kind {
            Kind::Qwen => parsed.qwen()?,
            Kind::Gemma3 => parsed.gemma3()?,
            Kind::Idefics3 => parsed.idefics3()?,
            Kind::Pixtral => parsed.pixtral()?,
            Kind::Lfm2 => parsed.lfm2()?,
            Kind::Gemma4 => parsed.gemma4()?,
        };
        let rescale = image.f64("rescale_factor", 1.0 / 255.0)?;
        if !(rescale.is_finite() && rescale > 0.0) {
            return Err(image.bad("rescale_factor", rescale));
        }
        let (filter, usual) = match kind {
            Kind::Qwen | Kind::Pixtral => (Filter::Bicubic, CLIP),
            Kind::Gemma3 | Kind::Lfm2 => (Filter::Bilinear, HALVES),
            Kind::Idefics3 => (Filter::Lanczos, HALVES),
            Kind::Gemma4 => (Filter::Bicubic, NONE),
        };
        let normalize = match image.bool("do_normalize", kind != Kind::Gemma4)? {
            true => Some(image.normalize(usual)?),
            false => None,
        };
        let processor = Self { family, patch, merge, filter: image.filter(filter)?, rescale, normalize };
        let named = |error: Error| Error::bad_model(format!("{}: {error}", image.what));
        processor.check().map_err(named)?;
        Ok(processor)
    }
}

type Sizes = (Family, u32, u32);

struct Parsed {
    image: Fields,
    processor: Fields,
    config: Fields,
    vision: Fields,
}

impl Parsed {
    fn new(files: &HfFiles) -> Result<Self> {
        let path = |name: &str| format!("{}/{name}", files.folder);
        let config = Fields::parse(files.config, path("config.json"))?;
        let vision = config.object("vision_config")?;
        let processor = match files.processor {
            Some(bytes) => Fields::parse(bytes, path("processor_config.json"))?,
            None => Fields { map: Map::new(), what: path("processor_config.json") },
        };
        let image = match (processor.has("image_processor"), files.preprocessor) {
            (true, _) => processor.object("image_processor")?,
            (false, Some(bytes)) => Fields::parse(bytes, path("preprocessor_config.json"))?,
            (false, None) => {
                let missing = path("preprocessor_config.json");
                return Err(Error::bad_model(format!(
                    "{missing} is missing: it says how pictures are processed"
                )));
            }
        };
        Ok(Self { image, processor, config, vision })
    }

    fn kind(&self) -> Result<Kind> {
        let (fields, key) = match self.image.has("image_processor_type") {
            true => (&self.image, "image_processor_type"),
            false => (&self.config, "model_type"),
        };
        let name = fields.text(key)?.unwrap_or_default();
        let plain = ["Fast", "Pil"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let known = KINDS.iter().find(|(_, names)| names.contains(&plain));
        known.map(|(kind, _)| *kind).ok_or_else(|| fields.unsupported(key, format_args!("'{name}'")))
    }

    fn qwen(&self) -> Result<Sizes> {
        let image = &self.image;
        let patch = agree((image, "patch_size", 14), &[(&self.vision, "patch_size")])?;
        let merge = agree((image, "merge_size", 2), &[(&self.vision, "spatial_merge_size")])?;
        let frames = agree((image, "temporal_patch_size", 2), &[(&self.vision, "temporal_patch_size")])?;
        let size = image.object("size")?;
        let bound = |old: &str, key: &str, usual: u64| match image.u64(old)? {
            Some(pixels) => Ok(pixels),
            None if !image.has("size") => Ok(usual),
            None => size.required(key, size.u64(key)?),
        };
        let min_pixels = bound("min_pixels", "shortest_edge", 56 * 56)?;
        let max_pixels = bound("max_pixels", "longest_edge", 28 * 28 * 1280)?;
        Ok((Family::Qwen { min_pixels, max_pixels, frames }, patch, merge))
    }

    fn gemma3(&self) -> Result<Sizes> {
        let (width, height) = self.image.square("size", 224)?;
        let patch = self.vision.required("patch_size", self.vision.u32("patch_size")?)?;
        if let Some(side) = self.vision.u32("image_size")?.filter(|side| (*side, *side) != (width, height)) {
            return Err(self
                .vision
                .bad("image_size", format_args!("{side}, but pictures become {width}x{height}")));
        }
        let tokens =
            agree((&self.processor, "image_seq_length", 256), &[(&self.config, "mm_tokens_per_image")])?;
        let merge = merge_of(&self.processor, "image_seq_length", tokens, width, patch)?;
        Ok((Family::Gemma3 { width, height }, patch, merge))
    }

    fn idefics3(&self) -> Result<Sizes> {
        let longest = |key: &str, usual: u32| match self.image.has(key) {
            true => {
                let size = self.image.object(key)?;
                size.required("longest_edge", size.u32("longest_edge")?)
            }
            false => Ok(usual),
        };
        let (longest, tile) = (longest("size", 4 * 364)?, longest("max_image_size", 364)?);
        let split = self.image.bool("do_image_splitting", true)?;
        let patch = self.vision.required("patch_size", self.vision.u32("patch_size")?)?;
        let merge = self.config.u32("scale_factor")?.unwrap_or(2);
        if let Some(tokens) = self.processor.u32("image_seq_len")?
            && merge_of(&self.processor, "image_seq_len", tokens, tile, patch)? != merge
        {
            let other = format_args!("{tokens}, but scale_factor = {merge} in config.json");
            return Err(self.processor.bad("image_seq_len", other));
        }
        Ok((Family::Idefics3 { longest, tile, split }, patch, merge))
    }

    fn pixtral(&self) -> Result<Sizes> {
        let size = self.image.object("size")?;
        let (width, height) = match (self.image.has("size"), size.u32("longest_edge")?) {
            (false, _) => (1024, 1024),
            (true, Some(side)) => (side, side),
            (true, None) => self.image.square("size", 0)?,
        };
        let patch = agree((&self.processor, "patch_size", 16), &[(&self.vision, "patch_size")])?;
        let merge =
            agree((&self.processor, "spatial_merge_size", 1), &[(&self.config, "spatial_merge_size")])?;
        for (key, usual) in
            [("image_token", "[IMG]"), ("image_break_token", "[IMG_BREAK]"), ("image_end_token", "[IMG_END]")]
        {
            if let Some(token) = self.processor.text(key)?.filter(|token| *token != usual) {
                return Err(self.processor.unsupported(key, format_args!("'{token}'")));
            }
        }
        Ok((Family::Pixtral { width, height }, patch, merge))
    }

    fn lfm2(&self) -> Result<Sizes> {
        let image = &self.image;
        let patch = agree((image, "encoder_patch_size", 16), &[(&self.vision, "patch_size")])?;
        let merge = agree((image, "downsample_factor", 2), &[(&self.config, "downsample_factor")])?;
        let number = |key: &str, usual: u32| Ok(image.u32(key)?.unwrap_or(usual));
        let split = image.bool("do_image_splitting", true)?;
        let lfm2 = Lfm2 {
            min_tokens: number("min_image_tokens", 64)?,
            max_tokens: number("max_image_tokens", 256)?,
            tolerance: image.f64("max_pixels_tolerance", 2.0)?,
            tile: number("tile_size", 512)?,
            min_tiles: if split { number("min_tiles", 2)? } else { 1 },
            max_tiles: if split { number("max_tiles", 10)? } else { 1 },
            thumbnail: image.bool("use_thumbnail", true)?,
            marked: self.processor.bool("use_image_special_tokens", true)?,
        };
        Ok((Family::Lfm2(lfm2), patch, merge))
    }

    fn gemma4(&self) -> Result<Sizes> {
        let image = &self.image;
        let patch = agree((image, "patch_size", 16), &[(&self.vision, "patch_size")])?;
        let merge = agree((image, "pooling_kernel_size", 3), &[(&self.vision, "pooling_kernel_size")])?;
        let max_tokens = image.u32("max_soft_tokens")?.unwrap_or(280);
        if ![70, 140, 280, 560, 1120].contains(&max_tokens) {
            return Err(
                image.bad("max_soft_tokens", format_args!("{max_tokens}, not 70, 140, 280, 560 or 1120"))
            );
        }
        Ok((Family::Gemma4 { max_tokens }, patch, merge))
    }
}

/// A number by its key or default; others, if they are there, must be equal.
fn agree((fields, key, usual): (&Fields, &str, u32), others: &[(&Fields, &str)]) -> Result<u32> {
    let value = fields.u32(key)?.unwrap_or(usual);
    for (other, name) in others {
        if let Some(other_value) = other.u32(name)?.filter(|other| *other != value) {
            let what = &fields.what;
            return Err(other.bad(name, format_args!("{other_value}, but {what} has '{key}' = {value}")));
        }
    }
    Ok(value)
}

/// Side of a soft token in patches, if an image with this side has `tokens` of them.
fn merge_of(fields: &Fields, key: &str, tokens: u32, side: u32, patch: u32) -> Result<u32> {
    let per_side = tokens.isqrt();
    let merge = side.checked_div(patch.saturating_mul(per_side)).unwrap_or(0);
    let fits = u64::from(per_side).pow(2) == u64::from(tokens)
        && u64::from(merge) * u64::from(per_side) * u64::from(patch) == u64::from(side);
    match fits && merge > 0 {
        true => Ok(merge),
        false => Err(fields.bad(key, format_args!("{tokens}, for a side of {side} in patches of {patch}"))),
    }
}

/// A JSON object with its name in errors.
struct Fields {
    map: Map<String, Value>,
    what: String,
}

impl Fields {
    fn parse(bytes: &[u8], what: String) -> Result<Self> {
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(map)) => Ok(Self { map, what }),
            Ok(_) => Err(Error::bad_model(format!("{what} is no JSON object"))),
            Err(error) => Err(Error::bad_model(format!("{what}: {error}"))),
        }
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    fn bad(&self, key: &str, value: impl std::fmt::Display) -> Error {
        Error::bad_model(format!("{}: '{key}' is {value}", self.what))
    }

    fn unsupported(&self, key: &str, value: impl std::fmt::Display) -> Error {
        Error::unsupported(format!("{}: '{key}' = {value} is not supported", self.what))
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| Error::bad_model(format!("{}: '{key}' is missing", self.what)))
    }

    fn bool(&self, key: &str, usual: bool) -> Result<bool> {
        let Some(value) = self.get(key) else { return Ok(usual) };
        value.as_bool().ok_or_else(|| self.bad(key, format_args!("{value}, not true or false")))
    }

    fn u64(&self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || self.bad(key, format_args!("{value}, not a number of this kind"));
        value.as_u64().map(Some).ok_or_else(wrong)
    }

    /// A number, or a list of two equal ones, or an object with equal `height` and `width`: a side.
    fn u32(&self, key: &str) -> Result<Option<u32>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let both = match value {
            Value::Array(list) if list.len() == 2 => Some((&list[0], &list[1])),
            Value::Object(map) => map.get("height").zip(map.get("width")),
            _ => Some((value, value)),
        };
        let side = both.filter(|(a, b)| a == b).and_then(|(side, _)| side.as_u64());
        let side = side.and_then(|side| u32::try_from(side).ok());
        side.map(Some).ok_or_else(|| self.bad(key, format_args!("{value}, not a number of this kind")))
    }

    fn f64(&self, key: &str, usual: f64) -> Result<f64> {
        let Some(value) = self.get(key) else { return Ok(usual) };
        value.as_f64().ok_or_else(|| self.bad(key, format_args!("{value}, not a number")))
    }

    fn text(&self, key: &str) -> Result<Option<&str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.bad(key, format_args!("{value}, not a string")))
    }

    /// An object in this one; empty if it is missing.
    fn object(&self, key: &str) -> Result<Fields> {
        let what = format!("{}: '{key}'", self.what);
        match self.get(key) {
            None => Ok(Fields { map: Map::new(), what }),
            Some(Value::Object(map)) => Ok(Fields { map: map.clone(), what }),
            Some(value) => Err(self.bad(key, format_args!("{value}, not an object"))),
        }
    }

    /// `width` and `height` of an object, or both the default.
    fn square(&self, key: &str, usual: u32) -> Result<(u32, u32)> {
        if !self.has(key) {
            return Ok((usual, usual));
        }
        let size = self.object(key)?;
        let side = |key: &str| size.required(key, size.u32(key)?);
        Ok((side("width")?, side("height")?))
    }

    /// Pillow's number of a filter.
    fn filter(&self, usual: Filter) -> Result<Filter> {
        match self.u64("resample")? {
            None => Ok(usual),
            Some(1) => Ok(Filter::Lanczos),
            Some(2) => Ok(Filter::Bilinear),
            Some(3) => Ok(Filter::Bicubic),
            Some(other) => Err(self.unsupported("resample", other)),
        }
    }

    fn normalize(&self, usual: Normalize) -> Result<Normalize> {
        let (mean, std) = (self.channels("image_mean", usual.mean)?, self.channels("image_std", usual.std)?);
        if std.iter().any(|std| *std <= 0.0) {
            return Err(self.bad("image_std", format_args!("{std:?}, not positive")));
        }
        Ok(Normalize { mean, std })
    }

    /// A number for each channel, or one for all.
    fn channels(&self, key: &str, usual: [f32; 3]) -> Result<[f32; 3]> {
        let Some(value) = self.get(key) else { return Ok(usual) };
        let number = |value: &Value| value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        let all = match value {
            Value::Array(list) if list.len() == 3 => {
                number(&list[0]).zip(number(&list[1])).zip(number(&list[2])).map(|((r, g), b)| [r, g, b])
            }
            value => number(value).map(|x| [x; 3]),
        };
        all.ok_or_else(|| self.bad(key, format_args!("{value}, not three numbers")))
    }
}
