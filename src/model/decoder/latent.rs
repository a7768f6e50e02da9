//! Layers of latent attention.

use super::*;
use crate::ops::Latent;

/// Attention whose K and V are products of one vector of a position (`ops::Latent`).
pub struct LatentAttention {
    /// The queries' own latent, `[rank, hidden]`, and its norm. `None`: queries are products of the layer's inputs.
    pub down: Option<(Projections, Norm)>,
    /// `[heads * (nope + rope), rank or hidden]`.
    pub q: Projections,
    /// The latent, and the rotated part of the key: `[rank + rope, hidden]`.
    pub kv: Projections,
    pub latent: Latent,
}

impl LatentAttention {
    pub(super) fn projections(&self) -> impl Iterator<Item = &Projections> {
        let down = self.down.iter().map(|(down, _)| down);
        down.chain([&self.q, &self.kv]).chain(self.latent.products())
    }

    pub(super) fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.down.iter().map(|(_, norm)| norm).chain([&self.latent.norm])
    }
}

impl Decoder {
    /// The rows of attention of layer `index`.
    fn absorbed(
        &self,
        step: &Step,
        index: usize,
        x: &mut Owned,
        update: Option<Owned>,
        mixer: &LatentAttention,
    ) -> Result<Owned> {
        let ops = step.ops;
        let kv = self.enter(step, index, x, update, &mixer.kv)?;
        let (norm, site) = (self.weights.layers[index].attn_norm.as_ref(), Site::Layer(index, Slot::Gate));
        let q = match &mixer.down {
            Some((down, own)) => {
                let latent = step.all.linear(x, norm, down, Site::Layer(index, Slot::Latent))?;
                step.all.linear(&latent, Some(own), &mixer.q, site)?
            }
            None => step.all.linear(x, norm, &mixer.q, site)?,
        };
        ops.absorb(&q, &kv, &mixer.latent)
    }

    /// The attention of layer `index`: `[T, heads * value]`. `None` if the layer `ends` with its K and V.
    pub(super) fn latent_attention(
        &self,
        step: &Step,
        index: usize,
        x: &mut Owned,
        update: Option<Owned>,
        (mixer, ends): (&LatentAttention, bool),
    ) -> Result<Option<Owned>> {
        let rows = self.absorbed(step, index, x, update, mixer)?;
        let how = Attention::plain(
            &self.config.attention,
            self.weights.ropes[self.config.blocks[index].rope].of(step.kv),
        );
        let place = self.weights.layers[index].place;
        if ends {
            return step.ops.append(&rows, &step.paging, step.kv, place, &how).map(|()| None);
        }
        let out = step.ops.attention(&rows, &step.paging, step.kv, place, &how)?;
        drop(rows);
        step.ops.expand(&out, &mixer.latent).map(Some)
    }
}
