//! Files of drafters alone, which predict tokens from hidden states of a model that is not in the file.

use crate::base::{Error, Result};
use crate::formats::gguf::Gguf;
use crate::model::keys::NEXTN;

/// Parts of the names of architectures and keys, and the drafters that have them.
const KINDS: [(&str, &str); 2] = [("dflash", "a DFlash drafter"), ("eagle", "an EAGLE drafter")];
const BLOCK: &str = "a block of multi-token prediction";

/// `Unsupported` if the file is a drafter without its model. The error says which kind it is.
pub(super) fn refuse(gguf: &Gguf, architecture: &str) -> Result<()> {
    let has = |word: &str| architecture.contains(word) || gguf.keys().any(|key| key.contains(word));
    let (kind, why) = match KINDS.iter().find(|(word, _)| has(word)) {
        Some((_, kind)) => {
            (*kind, "it is not read; a draft_model is a small model of attention alone, complete in its file")
        }
        None if architecture.contains("mtp") || alone(gguf, architecture) => {
            (BLOCK, "blocks are read from their model's own file, with mtp")
        }
        None => return Ok(()),
    };
    let what = gguf.what();
    Err(Error::unsupported(format!(
        "{what}: it is {kind} (architecture '{architecture}') without the model that it drafts for: {why}"
    )))
}

/// Whether all blocks of the file predict further tokens.
fn alone(gguf: &Gguf, architecture: &str) -> bool {
    let further = gguf.get::<u32>(&format!("{architecture}.{NEXTN}")).is_ok_and(|further| further > 0);
    let number = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse::<u32>().ok();
    let predicts = |block: u32| gguf.tensor(&format!("blk.{block}.nextn.eh_proj.weight")).is_some();
    let mut blocks = gguf.tensors().iter().filter_map(|tensor| number(&tensor.name)).peekable();
    further && blocks.peek().is_some() && blocks.all(predicts)
}
