//! The weights of a decoder: its layers, and what stands around them.

use super::Mtp;
use crate::kernels::Matrix;
use crate::ops::{DeltaNet, Experts, Fold, KvCache, Norm, Projections, Recurrent, Rope, ShortConv};
use std::sync::Arc;

pub struct Layer {
    pub attn_norm: Option<Norm>,
    pub mixer: Mixer,
    /// Index among the layers with a mixer of this kind: of its KV cache, or of its state.
    pub place: usize,
    pub attn_sub_norm: Option<Norm>,
    /// `[hidden, heads * head_dim]`, or `[hidden, values]`.
    pub output: Projections,
    pub attn_post_norm: Option<Norm>,
    pub ffn_norm: Option<Norm>,
    pub feed_forward: FeedForward,
    pub ffn_post_norm: Option<Norm>,
}

/// The part of a layer that mixes tokens.
pub enum Mixer {
    Attention(SelfAttention),
    DeltaNet(GatedDelta),
    ShortConv(Convolution),
}

pub struct SelfAttention {
    /// q, k, v: `[heads * head_dim, hidden]`, and twice `[kv_heads * head_dim, hidden]`. With an output gate q has
    /// twice the rows: of each head, its query and its gate.
    pub qkv: Projections,
    /// The norm of q, and that of k: of each head, or of whole rows (`QkNorm`).
    pub qk_norms: Option<[Norm; 2]>,
    /// One of each head, if the model has them (`ops::Attention`).
    pub sinks: Option<Arc<[f32]>>,
}

pub struct GatedDelta {
    /// q, k and v, and the gate of the output: `[channels, hidden]`, `[values, hidden]`.
    pub inputs: Projections,
    /// The logits of rates, and of decays: each `[value_heads, hidden]`.
    pub gates: Projections,
    pub net: DeltaNet,
}

pub struct Convolution {
    /// B, C and x: `[3 channels, hidden]`.
    pub input: Projections,
    pub net: ShortConv,
}

pub enum FeedForward {
    Gated(Gated),
    Experts(Experts),
}

pub struct Gated {
    /// gate, up: `[ffn, hidden]`.
    pub gate_up: Projections,
    pub sub_norm: Option<Norm>,
    /// `[hidden, ffn]`.
    pub down: Projections,
}

impl Layer {
    /// The products that no expert has.
    pub(super) fn projections(&self) -> impl Iterator<Item = &Projections> {
        let own = match &self.feed_forward {
            FeedForward::Gated(Gated { gate_up, down, .. }) => Some([gate_up, down]),
            FeedForward::Experts(_) => None,
        };
        let mixer = match &self.mixer {
            Mixer::Attention(attention) => [Some(&attention.qkv), None],
            Mixer::DeltaNet(delta) => [Some(&delta.inputs), Some(&delta.gates)],
            Mixer::ShortConv(conv) => [Some(&conv.input), None],
        };
        mixer.into_iter().flatten().chain([&self.output]).chain(own.into_iter().flatten())
    }

    pub(super) fn recurrent(&self) -> Option<Recurrent<'_>> {
        match &self.mixer {
            Mixer::Attention(_) => None,
            Mixer::DeltaNet(delta) => Some(Recurrent::DeltaNet(&delta.net)),
            Mixer::ShortConv(conv) => Some(Recurrent::ShortConv(&conv.net)),
        }
    }

    pub(super) fn sinks(&self) -> Option<&[f32]> {
        match &self.mixer {
            Mixer::Attention(attention) => attention.sinks.as_deref(),
            Mixer::DeltaNet(_) | Mixer::ShortConv(_) => None,
        }
    }

    pub(super) fn experts(&self) -> Option<&Experts> {
        match &self.feed_forward {
            FeedForward::Gated(_) => None,
            FeedForward::Experts(experts) => Some(experts),
        }
    }

    pub(super) fn norms(&self) -> impl Iterator<Item = &Norm> {
        let Self { attn_norm, attn_sub_norm, attn_post_norm, ffn_norm, ffn_post_norm, .. } = self;
        let norms = [attn_norm, attn_sub_norm, attn_post_norm, ffn_norm, ffn_post_norm];
        let sub_norm = match &self.feed_forward {
            FeedForward::Gated(gated) => gated.sub_norm.as_ref(),
            FeedForward::Experts(_) => None,
        };
        let qk_norms = match &self.mixer {
            Mixer::Attention(attention) => attention.qk_norms.as_ref(),
            Mixer::DeltaNet(_) | Mixer::ShortConv(_) => None,
        };
        let own = self.projections().flat_map(|p| &p.norms);
        norms.into_iter().flatten().chain(sub_norm).chain(qk_norms.into_iter().flatten()).chain(own)
    }
}

pub struct Weights {
    /// `[vocab, hidden]`.
    pub embedding: Matrix,
    /// The rotation of the embedding's rows.
    pub unfold: Option<Fold>,
    /// Those of the model, then that of `mtp`.
    pub layers: Vec<Layer>,
    /// `None`: the files have no block of multi-token prediction, or it is not wanted.
    pub mtp: Option<Mtp>,
    pub final_norm: Norm,
    /// The final norm before the head, which scales logits too.
    pub head_norm: Norm,
    /// `[vocab, hidden]`; the embedding again if they are tied.
    pub head: Projections,
    /// In the order of `DecoderConfig::ropes`.
    pub ropes: Vec<Ropes>,
}

/// A rotation of layers.
pub struct Ropes {
    pub rope: Rope,
    /// That of caches whose sequences may be longer than this number of tokens, if it is another one.
    pub long: Option<(usize, Rope)>,
}

impl Ropes {
    pub(super) fn of(&self, kv: &KvCache) -> &Rope {
        match &self.long {
            Some((above, long)) if kv.longest > *above => long,
            _ => &self.rope,
        }
    }
}

impl Weights {
    /// All matrices, each once: a tied head has the embedding's very bytes.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let head = self.head.matrices.iter().filter(|m| m.data.as_ptr() != self.embedding.data.as_ptr());
        let experts = self.layers.iter().filter_map(Layer::experts).flat_map(Experts::products);
        let layers = self.layers.iter().flat_map(Layer::projections).chain(experts);
        let products = layers.chain(self.mtp.iter().map(|mtp| &mtp.join)).flat_map(|p| &p.matrices);
        [&self.embedding].into_iter().chain(head).chain(products)
    }

    pub(super) fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        let norms = self.layers.iter().flat_map(Layer::norms).chain([&self.final_norm]);
        let norms = norms.chain(self.mtp.iter().flat_map(Mtp::norms));
        let experts = self.layers.iter().filter_map(Layer::experts).flat_map(Experts::products);
        let products = self.layers.iter().flat_map(Layer::projections).chain(experts);
        let biases = products.filter_map(|p| p.bias.as_deref());
        let biases = biases.chain(self.layers.iter().filter_map(Layer::sinks));
        let nets = self.layers.iter().filter_map(Layer::recurrent);
        let nets = nets.flat_map(|net| net.vectors());
        let norms = norms.flat_map(|norm| [Some(&*norm.weight), norm.bias.as_deref()]);
        norms.flatten().chain(biases).chain(nets)
    }
}
