//! Latent attention in GGUF files. Old ones have the sizes of heads as others do; newer ones have those of the latent
//! there, and the heads' under keys of their own.

use super::Keys;
use super::rope::LOG_MULTIPLIER;
use crate::base::Result;
use crate::model::config::LatentConfig;
use crate::ops::{AttentionShape, LatentShape};

impl Keys<'_> {
    /// How layers attend, and of what their heads are made if attention is latent.
    pub(super) fn heads_of(
        &self,
        hidden: usize,
        layers: usize,
        eps: f32,
    ) -> Result<(Option<LatentConfig>, AttentionShape)> {
        let latent = self.latent(self.heads()?, eps)?;
        let attention = match &latent {
            Some(latent) => self.latent_attention(&latent.shape)?,
            None => self.attention(hidden, layers)?,
        };
        Ok((latent, attention))
    }

    /// The sizes of attention, if the family's is latent.
    fn latent(&self, heads: usize, eps: f32) -> Result<Option<LatentConfig>> {
        if !self.family.latent {
            return Ok(None);
        }
        let own = |new: &str, old: &str| match self.find::<u64>(new)? {
            Some(_) => self.size(new, None),
            None => self.size(old, None),
        };
        let query = own("attention.key_length_mla", "attention.key_length")?;
        let rope = self.size("rope.dimension_count", None)?;
        if rope >= query {
            let why = format!("a part of a head's {query} elements is rotated, and another is not");
            return Err(self.names.bad("rope.dimension_count", rope, &why));
        }
        let shape = LatentShape {
            heads,
            rank: self.size("attention.kv_lora_rank", None)?,
            rope,
            nope: query - rope,
            value: own("attention.value_length_mla", "attention.value_length")?,
        };
        // Files of models without it may have a 0.
        let query_rank = Some(self.size("attention.q_lora_rank", Some(0))?).filter(|rank| *rank > 0);
        Ok(Some(LatentConfig { shape, query_rank, eps }))
    }

    /// How the heads attend. YaRN multiplies their scores.
    fn latent_attention(&self, shape: &LatentShape) -> Result<AttentionShape> {
        let mut by = 1.0;
        if self.find::<&str>("rope.scaling.type")? == Some("yarn") {
            let stretched = f64::from(self.float("rope.scaling.factor", 1.0)?.max(1.0)).ln();
            by = 1.0 + f64::from(self.float(LOG_MULTIPLIER, 0.0)?) * stretched;
        }
        Ok(shape.attention((by * by / (shape.query() as f64).sqrt()) as f32))
    }
}
