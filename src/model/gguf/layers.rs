//! How layers of a GGUF file differ: heads of layers without a window, shared K and V, widths of feed-forwards, and
//! inputs of single layers.

use super::Keys;
use crate::base::Result;
use crate::model::config::{Block, ExpertsConfig, share};
use crate::model::family::Windows;
use crate::model::keys::{LAYER_INPUTS, SHARED_KV};
use crate::ops::AttentionShape;

impl Keys<'_> {
    /// Elements of a head, of keys and of values alike.
    pub(super) fn head_dim(&self, [key, value]: [&str; 2], default: Option<usize>) -> Result<usize> {
        let head_dim = self.size(key, default)?;
        let value_dim = self.size(value, Some(head_dim))?;
        if value_dim != head_dim {
            let found = format_args!("{value_dim} beside keys of {head_dim}");
            return Err(self.names.unsupported(value, found));
        }
        Ok(head_dim)
    }

    /// Whether each layer has a window, in families in which not all have.
    fn windows(&self, layers: usize) -> Result<Vec<bool>> {
        match self.family.windows {
            Windows::AllBut { every, .. } => self.windowed(layers, every),
            _ => Ok(vec![false; layers]),
        }
    }

    /// The KV heads of the layers with a window, or of the others: one number, or one for each layer.
    pub(super) fn kv_heads_of(&self, layers: usize, windowed: bool) -> Result<usize> {
        const KEY: &str = "attention.head_count_kv";
        let Ok(Some(list)) = self.find::<Vec<i32>>(KEY) else { return self.size(KEY, None) };
        let found = format_args!("a list of {}", list.len());
        if list.len() != layers {
            return Err(self.names.bad(KEY, found, &format!("there are {layers} layers")));
        }
        let windows = self.windows(layers)?;
        let mut own: Vec<i32> =
            list.iter().zip(&windows).filter(|(_, has)| **has == windowed).map(|(n, _)| *n).collect();
        own.dedup();
        match own[..] {
            [] => Ok(usize::try_from(list[0]).unwrap_or(0)),
            [count] => Ok(usize::try_from(count).unwrap_or(0)),
            _ => Err(self.names.bad(KEY, found, "layers with a window must be alike, and the others too")),
        }
    }

    /// The attention of layers without a window, given that of the others. `None`: all attend alike.
    pub(super) fn global(&self, windowed: &AttentionShape, layers: usize) -> Result<Option<AttentionShape>> {
        if !self.family.global_heads {
            return Ok(None);
        }
        let head_dim = self.head_dim(["attention.key_length", "attention.value_length"], None)?;
        let first = self.windows(layers)?.iter().position(|windowed| !windowed);
        let keys_are_values = first.is_some_and(|layer| !self.has(layer, "attn_v.weight"));
        let kv_heads = self.kv_heads_of(layers, false)?;
        Ok(Some(AttentionShape { kv_heads, head_dim, keys_are_values, ..windowed.clone() }))
    }

    /// The width of feed-forwards, of the first of several; `blocks` get those of layers that differ. Files need not
    /// say it if no layer is dense.
    pub(super) fn feed_forwards(
        &self,
        experts: Option<&ExpertsConfig>,
        blocks: &mut [Block],
    ) -> Result<usize> {
        const KEY: &str = "feed_forward_length";
        let list = self.find::<Vec<i32>>(KEY).ok().flatten().filter(|_| self.family.global_heads);
        let Some(list) = list else { return self.size(KEY, experts.map(|experts| experts.width)) };
        if list.len() != blocks.len() {
            let why = format!("there are {} layers", blocks.len());
            return Err(self.names.bad(KEY, format_args!("a list of {}", list.len()), &why));
        }
        let width = |n: i32| usize::try_from(n).unwrap_or(0);
        let first = width(list[0]);
        for (block, n) in blocks.iter_mut().zip(list) {
            block.ffn = Some(width(n)).filter(|ffn| *ffn != first);
        }
        Ok(first)
    }

    /// Marks the layers that share K and V.
    pub(super) fn share(&self, blocks: &mut [Block]) -> Result<()> {
        match self.family.global_heads {
            true => share(blocks, self.size(SHARED_KV, Some(0))?, self.names),
            false => Ok(()),
        }
    }

    /// Elements of a row's input to each layer, if there is such an input.
    pub(super) fn layer_inputs(&self) -> Result<Option<usize>> {
        match self.family.global_heads {
            true => Ok(Some(self.size(LAYER_INPUTS, Some(0))?).filter(|width| *width > 0)),
            false => Ok(None),
        }
    }
}
