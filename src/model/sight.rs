//! What a decoder needs to see pictures.

use super::options::LoadOptions;
use super::tower::{Pictures, Tower};
use super::{Facts, Source, load_tower};
use crate::base::log::WARN;
use crate::base::{Error, Result, Status};
use crate::kernels::Pool;
use crate::picture::{Family, Filter, HfFiles, Lfm2, Normalize, Processor};
use crate::text::Tokenizer;
use serde_json::Value;
use std::path::Path;

/// The tower of a decoder, and how pictures are prepared for it.
pub struct Sight {
    pub tower: Tower,
    pub processor: Processor,
    /// The token that stands for a picture in prompts.
    pub placeholder: u32,
    /// Rows of pictures are rotated by their lines and columns (M-RoPE).
    pub by_grid: bool,
}

/// Bounds of Qwen's pictures where a file says none: those of its processor in transformers.
const QWEN_PIXELS: [u64; 2] = [1 << 16, 1 << 24];

/// Loads the tower of a model with these facts, if it has one. A tower of its own file has to fit; a folder's that is not
/// read is named in the log.
pub(super) fn load(
    source: &Source,
    options: &LoadOptions,
    facts: &Facts,
    tokenizer: Option<&Tokenizer>,
    pool: &Pool,
    log: &dyn Fn(u32, &str),
    progress: &mut dyn FnMut(f32, &str) -> bool,
) -> Result<Option<Sight>> {
    let most = options.max_weight_bytes;
    let folder = match source {
        Source::File(path) if Path::new(path).is_dir() => Some(&**path),
        _ => None,
    };
    match (&options.pictures, folder) {
        (Some(path), None) => {
            let source = Source::File(path.clone());
            let tower = load_tower(&source, most, pool, log, progress).map_err(named)?;
            let tower = tower.ok_or_else(|| named(Error::unsupported("there is no tower in it")))?;
            Sight::new(tower, None, facts, tokenizer).map(Some).map_err(named)
        }
        (Some(_), Some(_)) => {
            Err(Error::invalid("pictures_path is set, and a folder has its tower among its own files"))
        }
        (None, Some(folder)) if !facts.encodes => {
            let sight = load_tower(source, most, pool, log, progress)
                .and_then(|tower| tower.map(|tower| Sight::new(tower, Some(folder), facts, tokenizer)).transpose());
            sight.or_else(|error| match error.status {
                Status::Unsupported => {
                    log(WARN, &format!("pictures are refused: {error}"));
                    Ok(None)
                }
                _ => Err(error),
            })
        }
        (None, _) => Ok(None),
    }
}

fn named(mut error: Error) -> Error {
    error.message = format!("pictures_path: {}", error.message);
    error
}

impl Sight {
    fn new(tower: Tower, folder: Option<&str>, facts: &Facts, tokenizer: Option<&Tokenizer>) -> Result<Self> {
        let (processor, token) = match (folder, tower.pictures()) {
            (Some(folder), _) => of_folder(folder)?,
            (None, Some(pictures)) => (of_keys(pictures)?, None),
            (None, None) => return Err(Error::internal("a tower without a word of its pictures")),
        };
        processor.check()?;
        let by_grid = match processor.family {
            Family::Qwen { .. } => true,
            Family::Idefics3 { .. } | Family::Pixtral { .. } | Family::Lfm2(_) => false,
            // Their pictures' rows see each other in both directions.
            Family::Gemma3 { .. } | Family::Gemma4 { .. } => {
                return Err(Error::unsupported("the model has a tower, and pictures of Gemma are not taken yet"));
            }
        };
        if (processor.patch_len(), tower.width()) != (tower.patch_len(), facts.hidden_size) {
            let (patch, width, hidden) = (tower.patch_len(), tower.width(), facts.hidden_size);
            return Err(Error::bad_model(format!(
                "a tower with patches of {patch} and vectors of {width}, where the model has a hidden size of {hidden} and its \
                 pictures patches of {}",
                processor.patch_len()
            )));
        }
        if by_grid && !facts.axes {
            return Err(Error::unsupported("the model has a tower, and does not rotate by lines and columns"));
        }
        let text = processor.placeholder();
        let token = token.or_else(|| tokenizer?.control_token(text));
        let token = token.filter(|token| (*token as usize) < facts.vocab_size);
        let placeholder = token.ok_or_else(|| {
            Error::unsupported(format!("the tokenizer has no token {text}, which stands for pictures"))
        })?;
        Ok(Self { tower, processor, placeholder, by_grid })
    }
}

/// The processor that a folder's files describe, and the token of a picture if they name it.
fn of_folder(folder: &str) -> Result<(Processor, Option<u32>)> {
    let read = |name: &str| {
        let path = Path::new(folder).join(name);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::new(Status::Io, format!("{}: {error}", path.display()))),
        }
    };
    let config = read("config.json")?.unwrap_or_default();
    let (preprocessor, processor) = (read("preprocessor_config.json")?, read("processor_config.json")?);
    let processor = Processor::from_hf(&HfFiles {
        folder,
        preprocessor: preprocessor.as_deref(),
        processor: processor.as_deref(),
        config: &config,
    })?;
    let whole: Value = serde_json::from_slice(&config).unwrap_or_default();
    let token = ["image_token_id", "image_token_index"].iter().find_map(|key| whole.get(key)?.as_u64());
    Ok((processor, token.and_then(|token| token.try_into().ok())))
}

/// The processor that the keys of an mmproj file describe. What has no key there is as in transformers' processors.
fn of_keys(keys: &Pictures) -> Result<Processor> {
    let number = |n: usize| u32::try_from(n).map_err(|_| Error::bad_model(format!("{n} pixels of a picture")));
    let (patch, merge, side) = (number(keys.patch)?, number(keys.merge)?, number(keys.side)?);
    let bound = |at: usize, default: u64| keys.pixels[at].map_or(default, |pixels| pixels as u64);
    let cell = u64::from(patch.saturating_mul(merge)).pow(2).max(1);
    let tokens = |at: usize, default: u64| u32::try_from(bound(at, default * cell) / cell).unwrap_or(u32::MAX);
    let (family, filter) = match keys.projector {
        "idefics3" => {
            let longest = number(keys.longest.unwrap_or(4 * keys.side))?;
            (Family::Idefics3 { longest, tile: side, split: true }, Filter::Lanczos)
        }
        "pixtral" => (Family::Pixtral { width: side, height: side }, Filter::Bicubic),
        "lfm2" => {
            let tiles = |at: usize, default: usize| number(keys.tiles[at].unwrap_or(default));
            let lfm2 = Lfm2 {
                min_tokens: tokens(0, 64),
                max_tokens: tokens(1, 256),
                tolerance: 2.0,
                tile: 512,
                min_tiles: tiles(0, 2)?,
                max_tiles: tiles(1, 10)?,
                thumbnail: true,
                marked: true,
            };
            (Family::Lfm2(lfm2), Filter::Bilinear)
        }
        "gemma3" => (Family::Gemma3 { width: side, height: side }, Filter::Bilinear),
        projector if projector.starts_with("qwen") => {
            let [min_pixels, max_pixels] = [bound(0, QWEN_PIXELS[0]), bound(1, QWEN_PIXELS[1])];
            (Family::Qwen { min_pixels, max_pixels, frames: number(keys.frames)? }, Filter::Bicubic)
        }
        projector => {
            return Err(Error::unsupported(format!("pictures for a projector of type {projector} are not taken yet")));
        }
    };
    let normalize = Some(Normalize { mean: keys.mean, std: keys.std });
    Ok(Processor { family, patch, merge, filter, rescale: 1.0 / 255.0, normalize })
}
