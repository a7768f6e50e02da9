//! Files of drafters alone, which predict tokens from hidden states of a model that is not in the file.

use super::config_of;
use crate::base::{Error, Result};
use crate::formats::gguf::Gguf;
use crate::model::config::DecoderConfig;
use crate::model::keys::NEXTN;

/// The kinds of drafters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A block of multi-token prediction.
    Block,
    Eagle,
    DFlash,
}

/// Parts of the names of architectures and keys, and the drafters that have them.
const WORDS: [(&str, Kind); 2] = [("dflash", Kind::DFlash), ("eagle", Kind::Eagle)];

impl Kind {
    /// The kind of drafter that a file holds without its model; `None` for other files.
    pub(crate) fn of(gguf: &Gguf) -> Result<Option<Self>> {
        let architecture: &str = gguf.get("general.architecture")?;
        let has = |word: &str| architecture.contains(word) || gguf.keys().any(|key| key.contains(word));
        let known = WORDS.iter().find(|(word, _)| has(word)).map(|(_, kind)| *kind);
        let block = || architecture.contains("mtp") || alone(gguf, architecture);
        Ok(known.or_else(|| block().then_some(Self::Block)))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Block => "a block of multi-token prediction",
            Self::Eagle => "an EAGLE drafter",
            Self::DFlash => "a DFlash drafter",
        }
    }
}

/// `Unsupported` if the file is a drafter without its model. The error says which kind it is, and how it is used.
pub(super) fn refuse(gguf: &Gguf, architecture: &str) -> Result<()> {
    let Some(kind) = Kind::of(gguf)? else { return Ok(()) };
    let how = match kind {
        Kind::Block | Kind::Eagle => "open that model, with this file as drafter_path",
        _ => "it is not read; a draft_model is a small model, complete in its file",
    };
    let (what, kind) = (gguf.what(), kind.name());
    Err(Error::unsupported(format!(
        "{what}: it is {kind} (architecture '{architecture}') without the model that it drafts for: {how}"
    )))
}

/// The configuration of the model that a drafter alone describes as its own. What the file leaves out is that of
/// `target`. Errors as for `Checkpoint::config`.
pub(crate) fn config(gguf: &Gguf, target: &DecoderConfig, warn: &dyn Fn(&str)) -> Result<DecoderConfig> {
    config_of(gguf, Some(target), warn)
}

/// Whether all blocks of the file predict further tokens: those behind the layers that its metadata counts, and others
/// that join a token and a hidden state.
fn alone(gguf: &Gguf, architecture: &str) -> bool {
    let key = |key: &str| gguf.get::<u32>(&format!("{architecture}.{key}")).unwrap_or(0);
    let further = key(NEXTN);
    let first = key("block_count").checked_sub(further).filter(|layers| *layers > 0).unwrap_or(u32::MAX);
    let number = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse::<u32>().ok();
    let predicts = |block: u32| gguf.tensor(&format!("blk.{block}.nextn.eh_proj.weight")).is_some();
    let mut blocks = gguf.tensors().iter().filter_map(|tensor| number(&tensor.name)).peekable();
    further > 0 && blocks.peek().is_some() && blocks.all(|block| block >= first || predicts(block))
}
