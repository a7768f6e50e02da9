//! Names, limits and checks that the files of folders share.

use crate::base::{Error, Result};
use crate::formats::hf::Folder;
use std::collections::HashMap;

pub(super) const CONFIG: &str = "config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
/// The file repeats the added tokens, and may have a chat template: up to 1.2 MB in real folders.
pub(super) const MAX_TOKENIZER_CONFIG_BYTES: u64 = 8 << 20;
/// About 2 KiB in real folders. The limit also bounds the memory of a file's JSON tree.
pub(super) const MAX_CONFIG_BYTES: u64 = 1 << 18;

/// Warns of keys of a `config.json` that nothing here reads.
pub(super) fn warn_of_keys(folder: &Folder, keys: &[String], warn: &dyn Fn(&str)) {
    for key in keys {
        warn(&format!("{}: key '{key}' is not known and not used", folder.path_of(CONFIG)));
    }
}

/// Gives the tensor `own` of a file its GGUF name, which no other tensor may have.
pub(super) fn give_name(
    by_name: &mut HashMap<String, String>,
    gguf: String,
    own: &str,
    file: &str,
) -> Result<()> {
    let made = by_name.try_reserve(1);
    made.map_err(|_| Error::out_of_memory("tensor names", 48 * by_name.len()))?;
    match by_name.insert(gguf, own.to_owned()) {
        None => Ok(()),
        Some(first) => Err(Error::bad_model(format!(
            "{file}: tensors '{first}' and '{own}' are the same part of the model"
        ))),
    }
}
