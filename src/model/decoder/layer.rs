//! The weights of a decoder: its layers, and what stands around them.

use super::{LatentAttention, Mtp};
use crate::kernels::Matrix;
use crate::kernels::gemm::ternary::Columns;
use crate::model::config::DecoderConfig;
use crate::model::score::Score;
use crate::ops::{
    DeltaNet, Experts, Fold, KvCache, Mamba, Norm, Projections, Recurrent, Rope, ShortConv, Slot,
};
use std::sync::Arc;

pub struct Layer {
    pub attn_norm: Option<Norm>,
    pub mixer: Mixer,
    /// Index among the layers with a mixer of this kind: of its KV cache, or of its state.
    pub place: usize,
    pub attn_sub_norm: Option<Norm>,
    /// `[hidden, heads * head_dim]`, or `[hidden, values]`.
    pub output: Projections,
    /// A second mixer of the same inputs, whose output is added.
    pub beside: Option<Beside>,
    pub attn_post_norm: Option<Norm>,
    pub ffn_norm: Option<Norm>,
    pub feed_forward: FeedForward,
    pub ffn_post_norm: Option<Norm>,
    /// The layer's own input, which is added last.
    pub input: Option<LayerInput>,
    /// The residual behind the layer is multiplied by it. The norm of the layer's last update holds it already.
    pub scale: Option<f32>,
}

/// How a layer takes its own input: the activation of a product of the residual, times the input, goes through another
/// product and a norm.
pub struct LayerInput {
    /// `[width, hidden]`.
    pub gate: Projections,
    /// `[hidden, width]`.
    pub output: Projections,
    pub post_norm: Norm,
}

/// The inputs of all layers: for each token, a row of a table, and a product of the token's embedding, of which each
/// layer's part is normed.
pub struct LayerInputs {
    /// `[vocab, layers * width]`.
    pub table: Matrix,
    pub scale: f32,
    /// `[layers * width, hidden]`.
    pub projection: Projections,
    /// As wide as a layer's input.
    pub norm: Norm,
}

/// The part of a layer that mixes tokens.
pub enum Mixer {
    Attention(SelfAttention),
    Latent(Box<LatentAttention>),
    DeltaNet(GatedDelta),
    ShortConv(Convolution),
    Mamba(StateSpace),
}

/// Mamba-2 beside attention.
pub struct Beside {
    pub mixer: StateSpace,
    /// Index among the layers with a state.
    pub place: usize,
    /// `[hidden, inner]`.
    pub output: Projections,
}

pub struct SelfAttention {
    /// q, k, v: `[heads * head_dim, hidden]`, and twice `[kv_heads * head_dim, hidden]`. With an output gate q has
    /// twice the rows: of each head, its query and its gate.
    pub qkv: Projections,
    /// The logits of a gate for each head of the output: `[heads, hidden]`.
    pub gate: Option<Projections>,
    /// The norm of q, and that of k: of each head, or of whole rows (`QkNorm`).
    pub qk_norms: Option<[Norm; 2]>,
    /// The norm of each v head, which has no weights.
    pub value_norm: Option<Norm>,
    /// K and V are another layer's: `qkv` is of q alone, and the norm of k is not used.
    pub shared: bool,
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

/// Mamba-2.
pub struct StateSpace {
    /// The gate; x, B and C; the steps: `[inputs, hidden]`.
    pub input: Projections,
    pub net: Mamba,
}

pub enum FeedForward {
    Gated(Gated),
    Experts(Box<Experts>),
    Both(Box<Both>),
}

/// A dense feed-forward beside a mixture of experts. Both see the same residual through norms of their own, and the
/// norms of their outputs are added.
pub struct Both {
    pub dense: Gated,
    pub experts: Experts,
    /// The experts' norm; the dense one's is the layer's.
    pub experts_norm: Norm,
    /// Those of the dense output and of the experts'.
    pub post_norms: [Norm; 2],
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
        let own = self.dense().map(|Gated { gate_up, down, .. }| [gate_up, down]);
        let input = self.input.iter().flat_map(|input| [&input.gate, &input.output]);
        let mixer = match &self.mixer {
            Mixer::Attention(attention) => [Some(&attention.qkv), attention.gate.as_ref()],
            Mixer::Latent(_) => [None, None],
            Mixer::DeltaNet(delta) => [Some(&delta.inputs), Some(&delta.gates)],
            Mixer::ShortConv(conv) => [Some(&conv.input), None],
            Mixer::Mamba(mamba) => [Some(&mamba.input), None],
        };
        let beside = self.beside.as_ref().map(|beside| [&beside.mixer.input, &beside.output]);
        let latent = self.latent().into_iter().flat_map(|latent| latent.projections());
        let mixer = mixer.into_iter().flatten().chain(beside.into_iter().flatten()).chain(latent);
        mixer.chain([&self.output]).chain(own.into_iter().flatten()).chain(input)
    }

    /// The products that adapters may update, with GGUF's names of their matrices in layer `index`. Latent attention's
    /// products of single heads and experts are none.
    pub fn sites(&self, index: usize, c: &DecoderConfig) -> Vec<(Slot, &Projections, Vec<&'static str>)> {
        let (mut sites, output) = match &self.mixer {
            Mixer::Attention(attention) => {
                let qkv = c.qkv_products_of(index).into_iter().map(|(name, _)| name).collect();
                let gate = attention.gate.as_ref().map(|gate| (Slot::Gate, gate, vec!["attn_gate"]));
                let enter = (Slot::Enter, &attention.qkv, qkv);
                ([enter].into_iter().chain(gate).collect::<Vec<_>>(), "attn_output")
            }
            Mixer::Latent(latent) => {
                let q = if latent.down.is_some() { "attn_q_b" } else { "attn_q" };
                let down = latent.down.as_ref().map(|(down, _)| (Slot::Latent, down, vec!["attn_q_a"]));
                let enter = (Slot::Enter, &latent.kv, vec!["attn_kv_a_mqa"]);
                let products = [enter, (Slot::Gate, &latent.q, vec![q])];
                (products.into_iter().chain(down).collect(), "attn_output")
            }
            Mixer::DeltaNet(delta) => {
                let enter = (Slot::Enter, &delta.inputs, vec!["attn_qkv", "attn_gate"]);
                (vec![enter, (Slot::Gate, &delta.gates, vec!["ssm_beta", "ssm_alpha"])], "ssm_out")
            }
            Mixer::ShortConv(conv) => {
                (vec![(Slot::Enter, &conv.input, vec!["shortconv.in_proj"])], "shortconv.out_proj")
            }
            Mixer::Mamba(mamba) => (vec![(Slot::Enter, &mamba.input, vec!["ssm_in"])], "ssm_out"),
        };
        sites.push((Slot::Output, &self.output, vec![output]));
        if let Some(Beside { mixer, output, .. }) = &self.beside {
            sites.push((Slot::Beside, &mixer.input, vec!["ssm_in"]));
            sites.push((Slot::BesideOutput, output, vec!["ssm_out"]));
        }
        if let Some(Gated { gate_up, down, .. }) = self.dense() {
            let names = c.gate_up_products(c.ffn_of(index)).into_iter().map(|(name, _)| name).collect();
            sites.push((Slot::GateUp, gate_up, names));
            sites.push((Slot::Down, down, vec!["ffn_down"]));
        }
        if let Some(LayerInput { gate, output, .. }) = &self.input {
            sites.push((Slot::InputGate, gate, vec!["inp_gate"]));
            sites.push((Slot::InputOutput, output, vec!["proj"]));
        }
        sites
    }

    fn latent(&self) -> Option<&LatentAttention> {
        match &self.mixer {
            Mixer::Latent(latent) => Some(latent),
            _ => None,
        }
    }

    fn dense(&self) -> Option<&Gated> {
        match &self.feed_forward {
            FeedForward::Gated(gated) => Some(gated),
            FeedForward::Experts(_) => None,
            FeedForward::Both(both) => Some(&both.dense),
        }
    }

    /// The part with a state, and its index among the layers with one.
    pub(super) fn recurrent(&self) -> Option<(usize, Recurrent<'_>)> {
        let net = match &self.mixer {
            Mixer::Attention(_) | Mixer::Latent(_) => {
                return self.beside.as_ref().map(|own| (own.place, Recurrent::Mamba(&own.mixer.net)));
            }
            Mixer::DeltaNet(delta) => Recurrent::DeltaNet(&delta.net),
            Mixer::ShortConv(conv) => Recurrent::ShortConv(&conv.net),
            Mixer::Mamba(mamba) => Recurrent::Mamba(&mamba.net),
        };
        Some((self.place, net))
    }

    pub(super) fn sinks(&self) -> Option<&[f32]> {
        match &self.mixer {
            Mixer::Attention(attention) => attention.sinks.as_deref(),
            _ => None,
        }
    }

    pub(super) fn experts(&self) -> Option<&Experts> {
        match &self.feed_forward {
            FeedForward::Gated(_) => None,
            FeedForward::Experts(experts) => Some(experts.as_ref()),
            FeedForward::Both(both) => Some(&both.experts),
        }
    }

    pub(super) fn norms(&self) -> impl Iterator<Item = &Norm> {
        let Self { attn_norm, attn_sub_norm, attn_post_norm, ffn_norm, ffn_post_norm, .. } = self;
        let norms = [attn_norm, attn_sub_norm, attn_post_norm, ffn_norm, ffn_post_norm];
        let sub_norm = self.dense().and_then(|gated| gated.sub_norm.as_ref());
        let qk_norms: &[Norm] = match &self.mixer {
            Mixer::Attention(SelfAttention { qk_norms: Some(norms), shared, .. }) => {
                if *shared {
                    &norms[..1]
                } else {
                    norms
                }
            }
            _ => &[],
        };
        let both = match &self.feed_forward {
            FeedForward::Both(both) => Some([&both.experts_norm].into_iter().chain(&both.post_norms)),
            _ => None,
        };
        let router = self.experts().and_then(|experts| experts.router_norm.as_ref());
        let more = both.into_iter().flatten().chain(router).chain(self.input.iter().map(|i| &i.post_norm));
        let latent = self.latent().into_iter().flat_map(|latent| latent.norms());
        let own = self.projections().flat_map(|p| &p.norms).chain(more).chain(latent);
        norms.into_iter().flatten().chain(sub_norm).chain(qk_norms).chain(own)
    }
}

pub struct Weights {
    /// `[vocab, hidden]`.
    pub embedding: Matrix,
    /// The rotation of the embedding's rows.
    pub unfold: Option<Fold>,
    pub inputs: Option<LayerInputs>,
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
    /// What scores pairs of texts.
    pub score: Option<Score>,
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
        let inputs = self.inputs.iter().map(|inputs| &inputs.projection);
        let products = layers.chain(self.mtp.iter().map(|mtp| &mtp.join)).chain(inputs);
        let tables = [&self.embedding].into_iter().chain(self.inputs.iter().map(|inputs| &inputs.table));
        tables.chain(head).chain(products.flat_map(|p| &p.matrices))
    }

    /// Bytes of the copies by columns.
    pub(super) fn copied_bytes(&self) -> u64 {
        let columns = self.layers.iter().flat_map(Layer::projections).filter_map(|p| p.columns.as_ref());
        columns.map(|columns| Columns::bytes(columns.rows, columns.cols) as u64).sum()
    }

    pub(super) fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        let norms = self.layers.iter().flat_map(Layer::norms).chain([&self.final_norm]);
        let norms = norms.chain(self.mtp.iter().flat_map(Mtp::norms));
        let norms = norms.chain(self.inputs.iter().map(|inputs| &inputs.norm));
        let experts = self.layers.iter().filter_map(Layer::experts);
        let scales = experts.clone().filter_map(|experts| experts.scales.as_deref());
        let products =
            self.layers.iter().flat_map(Layer::projections).chain(experts.flat_map(Experts::products));
        let biases = products.filter_map(|p| p.bias.as_deref());
        let biases = biases.chain(self.layers.iter().filter_map(Layer::sinks));
        let nets = self.layers.iter().filter_map(Layer::recurrent);
        let nets = nets.flat_map(|(_, net)| net.vectors());
        let norms = norms.flat_map(|norm| [Some(&*norm.weight), norm.bias.as_deref()]);
        let score = self.score.iter().flat_map(|score| [&*score.rows, &*score.bias]);
        norms.flatten().chain(biases).chain(nets).chain(scales).chain(score)
    }
}
