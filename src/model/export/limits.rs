//! Models that are not written, by their parts without a writer.

use crate::base::{Error, Result};
use crate::model::config::DecoderConfig;
use crate::model::family::SharedExpert;
use crate::model::score::ScoreRows;
use crate::ops::ConvShape;

/// `Unsupported`, by the name of the first such part.
pub(super) fn check(c: &DecoderConfig, what: &str) -> Result<()> {
    let mixture = |shared| c.experts.is_some() && c.family.experts.is_some_and(|e| e.shared == shared);
    let beside = c.experts.is_some() || c.family.head_gates;
    let parts = [
        (c.latent.is_some(), "latent attention is"),
        (mixture(SharedExpert::Added), "Granite's mixtures are"),
        (c.recurrent_as::<ConvShape>().is_some() && beside, "LFM3 and LFM2's mixtures are"),
        (c.global.is_some(), "layers whose heads differ are"),
        (c.family.sinks, "attention sinks are"),
        (c.rotations.is_some(), "rotated weights are"),
        (!matches!(c.score, None | Some(ScoreRows::Words)), "the rows of scores are"),
    ];
    if let Some(layers) = c.recurrent.as_ref().and_then(|recurrent| recurrent.unwritten()) {
        return Err(Error::unsupported(format!("{what}: {layers} are not written")));
    }
    match parts.into_iter().find(|(has, _)| *has) {
        Some((_, part)) => Err(Error::unsupported(format!("{what}: {part} not written"))),
        None => Ok(()),
    }
}
