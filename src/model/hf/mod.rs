//! Hugging Face folders as checkpoints: `config.json` becomes a configuration, and safetensors get GGUF's names.

mod chat;
mod config;
mod encoder;
mod experts;
#[cfg(test)]
mod family_tests;
mod fields;
mod files;
mod folder;
mod interleaved;
mod latent;
mod layers;
mod multipliers;
pub(super) mod names;
mod ordinary;
pub(super) mod peft;
mod place;
mod pooling;
mod quantization;
mod quantized;
#[cfg(test)]
mod recurrent_tests;
mod rope;
mod score;
#[cfg(test)]
mod tests;
mod text;
pub(super) mod tower;

pub(crate) use fields::Fields;
pub use folder::HfFolder;
pub(crate) use multipliers::Multipliers;

use super::checkpoint::Checkpoint;
use crate::base::Result;
use crate::formats::hf::Folder;
use config::Config;
use encoder::HfEncoder;
use files::{CONFIG, MAX_CONFIG_BYTES};

/// Opens the folder of a decoder or an encoder, as `HfFolder::open` does.
pub(super) fn open(path: &str) -> Result<Box<dyn Checkpoint>> {
    let folder = Folder::open(path)?;
    let what = folder.path_of(CONFIG);
    if let Some(json) = folder.read(CONFIG, MAX_CONFIG_BYTES)? {
        let json = config::parse(&json, &what)?;
        let config = Fields::new(&json, &what)?;
        if let Some(family) = encoder::family_of(&config)? {
            let config = config.with_older(family.older_keys);
            return Ok(Box::new(HfEncoder::open(folder, &config, family)?));
        }
    }
    Ok(Box::new(HfFolder::open(path)?))
}

/// Checks a `config.json` alone, which errors call `what`.
pub fn check_config(json: &[u8], what: &str) -> Result<()> {
    let json = config::parse(json, what)?;
    let config = Fields::new(&json, what)?;
    match encoder::family_of(&config)? {
        Some(family) => encoder::read(&config.with_older(family.older_keys), family, what).map(|_| ()),
        None => Config::read(&config, what).map(|_| ()),
    }
}
