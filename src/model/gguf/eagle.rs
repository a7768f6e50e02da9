//! The metadata of EAGLE-3 heads, as llama.cpp's converter writes them (conversion/llama.py, src/models/eagle3.cpp).
//! The head's layer is described like a Llama of one layer.

use super::{Keys, Metadata};
use crate::base::{Error, Result};
use crate::formats::gguf::Gguf;
use crate::model::family::Family;
use crate::model::layers::eagle::{EagleConfig, TAPS};
use crate::model::names::Names;
use crate::model::namespaces;

const ARCHITECTURE: &str = "eagle3";
/// The family of the head's layer, with the order of rows of its q and k.
const LAYER: &str = "llama";

/// The layers whose inputs the head continues from: a file's key, and that of files from before llama.cpp's release.
const LAYERS: [&str; 2] = ["target_layers", "extract_layers"];
const WIDTH: &str = "target_hidden_size";
const NORM_BEFORE_FC: &str = "norm_before_fc";
const NORM_BEFORE_RESIDUAL: &str = "norm_before_residual";

/// Reads the configuration of a head. `Unsupported` for heads of other kinds, `BadModel` for impossible values. Both
/// name the key.
pub(crate) fn config(gguf: &Gguf, warn: &dyn Fn(&str)) -> Result<EagleConfig> {
    let architecture: &str = gguf.get("general.architecture")?;
    let family = Family::of_gguf(LAYER).ok_or_else(|| Error::internal("no family of the layer of heads"))?;
    if architecture != ARCHITECTURE {
        let why = format!("it is an EAGLE drafter of architecture '{architecture}'; {ARCHITECTURE} is read");
        return Err(Error::unsupported(format!("{}: {why}", gguf.what())));
    }
    namespaces::check(gguf, &[ARCHITECTURE], warn)?;
    let key = |key: &str| format!("{ARCHITECTURE}.{key}");
    let names = Names { what: gguf.what(), key: &key };
    let keys = Keys { of: Metadata { gguf, names: &names }, family, target: None };
    let layer = keys.config(ARCHITECTURE)?;
    if layer.layers != 1 || layer.further > 0 {
        return Err(names.unsupported("block_count", layer.layers + layer.further));
    }
    let [new, old] = LAYERS.map(|key| keys.find::<Vec<u32>>(key));
    let found = new?.or(old?).unwrap_or_default();
    let taps: [u32; TAPS] = found.as_slice().try_into().map_err(|_| {
        let why = "it must be three layers of the model";
        names.bad(LAYERS[0], format_args!("a list of {}", found.len()), why)
    })?;
    let flag = |key| Ok::<_, Error>(keys.find::<bool>(key)?.unwrap_or(false));
    let config = EagleConfig {
        taps: taps.map(|layer| layer as usize),
        width: keys.size(WIDTH, Some(layer.hidden))?,
        norm_before_fc: flag(NORM_BEFORE_FC)?,
        norm_before_residual: flag(NORM_BEFORE_RESIDUAL)?,
        layer,
    };
    let own = [&LAYERS[..], &[WIDTH, NORM_BEFORE_FC, NORM_BEFORE_RESIDUAL]].concat();
    keys.warn_of_unknown(&own, warn);
    Ok(config)
}
