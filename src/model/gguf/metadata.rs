//! Access to the metadata of one file's architecture, whatever its family.

use crate::base::Result;
use crate::formats::gguf::{FromMetadata, Gguf};
use crate::model::names::Names;

/// The keys `<architecture>.<key>` of one file.
pub(crate) struct Metadata<'a> {
    pub gguf: &'a Gguf,
    pub names: &'a Names<'a>,
}

impl<'a> Metadata<'a> {
    pub(super) fn full(&self, key: &str) -> String {
        (self.names.key)(key)
    }

    pub(crate) fn find<T: FromMetadata<'a>>(&self, key: &str) -> Result<Option<T>> {
        self.gguf.find(&self.full(key))
    }

    /// An integer. The key may be absent if there is a `default`.
    pub(crate) fn size(&self, key: &str, default: Option<usize>) -> Result<usize> {
        size(self.gguf, &self.full(key), default)
    }

    pub(super) fn float(&self, key: &str, default: f32) -> Result<f32> {
        Ok(self.find(key)?.unwrap_or(default))
    }

    /// Whether a layer has the tensor.
    pub(crate) fn has(&self, layer: usize, part: &str) -> bool {
        self.gguf.tensor(&format!("blk.{layer}.{part}")).is_some()
    }

    /// The KV heads of each layer. `None`: one number is for all layers. `may_lack`: layers may have 0.
    pub(crate) fn kv_heads(&self, layers: usize, may_lack: bool) -> Result<Option<Vec<usize>>> {
        const KEY: &str = "attention.head_count_kv";
        let Ok(Some(list)) = self.find::<Vec<i32>>(KEY) else { return Ok(None) };
        let most = list.iter().copied().max().unwrap_or(0);
        if list.len() != layers || list.iter().any(|n| *n != most && !(*n == 0 && may_lack)) {
            let or = if may_lack { "0 or " } else { "" };
            let why = format!("it must be {or}the same number for each of {layers} layers");
            return Err(self.names.bad(KEY, format_args!("a list of {}", list.len()), &why));
        }
        Ok(Some(list.into_iter().map(|n| usize::try_from(n).unwrap_or(0)).collect()))
    }

    /// The number of heads of a recurrent layer's state, and the elements of each.
    pub(crate) fn heads_of_state(&self) -> Result<[usize; 2]> {
        let (heads, inner) = (self.size("ssm.time_step_rank", None)?, self.size("ssm.inner_size", None)?);
        if heads == 0 || !inner.is_multiple_of(heads) {
            let why = format!("it must be a multiple of ssm.time_step_rank, {heads}");
            return Err(self.names.bad("ssm.inner_size", inner, &why));
        }
        Ok([heads, inner / heads])
    }
}

/// The value of an integer key, which may be absent if there is a `default`.
pub(super) fn size(gguf: &Gguf, key: &str, default: Option<usize>) -> Result<usize> {
    let value = match (gguf.find::<u64>(key)?, default) {
        (Some(value), _) => value,
        (None, Some(default)) => default as u64,
        (None, None) => gguf.get(key)?,
    };
    Ok(usize::try_from(value).unwrap_or(usize::MAX))
}
