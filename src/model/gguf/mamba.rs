//! Layers of Mamba-2 in GGUF files.

use super::Keys;
use crate::base::Result;
use crate::formats::gguf::Gguf;
use crate::model::config::{Block, GateNorm, MambaConfig};
use crate::model::family::{Family, MambaDefaults};
use crate::ops::MambaShape;
use std::sync::Arc;

impl Keys<'_> {
    /// The shape of the layers of Mamba-2, if there are any; they are marked in `blocks`.
    pub(super) fn mamba(&self, blocks: &mut [Block]) -> Result<Option<MambaConfig>> {
        let Some(MambaDefaults { beside, .. }) = self.family.mamba else { return Ok(None) };
        if beside {
            blocks.iter_mut().for_each(|block| block.beside = true);
        } else if let Some(by_layer) = self.kv_heads(blocks.len())? {
            blocks.iter_mut().zip(by_layer).for_each(|(block, kv_heads)| block.recurrent = kv_heads == 0);
        }
        let Some(first) = blocks.iter().position(Block::has_state) else { return Ok(None) };
        let (heads, inner) = (self.size("ssm.time_step_rank", None)?, self.size("ssm.inner_size", None)?);
        if heads == 0 || !inner.is_multiple_of(heads) {
            let why = format!("it must be a multiple of ssm.time_step_rank, {heads}");
            return Err(self.names.bad("ssm.inner_size", inner, &why));
        }
        let shape = MambaShape {
            heads,
            head_dim: inner / heads,
            groups: self.size("ssm.group_count", None)?,
            state_dim: self.size("ssm.state_size", None)?,
            kernel: self.size("ssm.conv_kernel", None)?,
        };
        let normed = self.has(first, "ssm_norm.weight");
        Ok(Some(MambaConfig {
            shape,
            norm: if normed { GateNorm::AfterGate } else { GateNorm::Never },
            conv_bias: self.has(first, "ssm_conv1d.bias"),
            steps: [0.0, f32::INFINITY],
            inputs: [1.0; 5],
            output: 1.0,
        }))
    }
}

/// Norms whose names have no `.weight` in files of Falcon-H1.
const BARE: &str = ".ffn_norm";

/// A name as other files have it.
pub(super) fn canonical(name: &str) -> String {
    if name.ends_with(BARE) { format!("{name}.weight") } else { name.to_owned() }
}

/// A vector of a family with Mamba-2. That of heads has a second dimension, that of groups too.
pub(super) fn vector(gguf: &Gguf, name: &str, len: usize) -> Result<Arc<[f32]>> {
    let bare =
        name.strip_suffix(".weight").filter(|bare| bare.ends_with(BARE) && gguf.tensor(name).is_none());
    let name = bare.unwrap_or(name);
    let dims = gguf.tensor(name).map(|tensor| tensor.dims);
    match dims {
        Some([1, n, 1, 1]) if n == len && is_of(name, &[".ssm_a", ".ssm_d"]) => gguf.vector_of(name, [1, n]),
        Some([width, groups, 1, 1])
            if width.checked_mul(groups) == Some(len) && is_of(name, &[".ssm_norm.weight"]) =>
        {
            gguf.vector_of(name, [width, groups])
        }
        _ => gguf.vector_f32(name, len),
    }
}

fn is_of(name: &str, ends: &[&str]) -> bool {
    ends.iter().any(|end| name.ends_with(end))
}

/// Whether the file's architecture is of a family with Mamba-2.
pub(super) fn has(gguf: &Gguf) -> Result<bool> {
    let family = Family::of_gguf(gguf.get("general.architecture")?);
    Ok(family.is_some_and(|family| family.mamba.is_some()))
}
