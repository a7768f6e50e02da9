//! A head of EAGLE-3 (Li et al. 2025, arXiv 2503.01840; llama.cpp's src/models/eagle3.cpp): a layer that predicts
//! tokens from hidden states of three layers of the model. It drafts; the layers of the model verify.
//!
//! The three states of a token side by side become one state by a product, `fc`. The layer's attention has that state
//! of the token before beside the embedding of the token, each normed, and the residual begins with that state. Later
//! drafts of a step continue from the residual after the layer. The head may know a part of the model's tokens alone.
//!
//! As of a block of multi-token prediction, K and V of a position depend on the tokens up to that position, position 0
//! has none, and each pass of the model writes them. Only differences of positions matter to the rotation, so that it
//! is by the token's position, where the reference takes that of the state.

use super::ends::Ends;
use super::read::LayerReader;
use super::source::Source;
use super::{Mixed, gated, layer, ropes};
use crate::base::Result;
use crate::model::config::DecoderConfig;
use crate::model::options::LoadOptions;
use crate::model::reader::Reader;
use crate::ops::pass::{Attend, Input, Op, Pass, Product, Reg, Ropes};
use crate::ops::{AttentionShape, Norm, Slot};
use std::sync::Arc;

/// Number of layers of the model that a head continues from.
pub(crate) const TAPS: usize = 3;

/// The tensor with the numbers of the head's tokens in the model.
const IDS: &str = "d2t";

pub(crate) struct EagleConfig {
    /// The sizes of the head's layer, as those of a model of one layer.
    pub layer: DecoderConfig,
    /// The layers of the model whose inputs it continues from.
    pub taps: [usize; TAPS],
    /// Elements of the model's hidden states.
    pub width: usize,
    /// The states side by side are normed before `fc`.
    pub norm_before_fc: bool,
    /// The residual begins with the normed state.
    pub norm_before_residual: bool,
}

/// A head, as a pass of its own.
pub(crate) struct Eagle {
    pub pass: Pass,
    /// The state of the token before each row's, which is given.
    pub before: Reg,
    /// The residual after the layer, which predicts the next token of each row.
    pub output: Reg,
    pub ends: Ends,
    /// The numbers of its tokens in the model, ascending. `None`: it has those of the model.
    pub ids: Option<Arc<[u32]>>,
    /// Rotations behind those of the model.
    pub ropes: Vec<Ropes>,
    pub kv: HeadKv,
    fc_norm: Option<Norm>,
    fc: Arc<Product>,
}

/// How the head's K and V are kept behind those of the model's layers.
pub(crate) struct HeadKv {
    pub shape: AttentionShape,
    /// They have another shape, and stand in a group of their own.
    pub apart: bool,
}

impl Eagle {
    /// Reads the head of the model `m` from `reader`'s files, which may lack ends that are the model's.
    pub(crate) fn read(
        reader: &mut Reader,
        config: &EagleConfig,
        m: &DecoderConfig,
        ends: &Ends,
    ) -> Result<Self> {
        let (c, width) = (&config.layer, TAPS * m.hidden);
        let ids = reader.has(IDS).then(|| reader.ids(IDS, m.vocab_size)).transpose()?;
        let ends = ends.of_head(reader, c, ids.as_ref().map_or(m.vocab_size, |ids| ids.len()))?;
        let fc_norm = config.norm_before_fc.then(|| reader.norm("enc.output_norm", width, c)).transpose()?;
        let fc = Arc::new(Product::fixed([reader.matrix("fc.weight", c.hidden, width)?]));
        let ropes = ropes::read(reader, c)?;
        let (shape, options) = (c.attention.clone(), LoadOptions::default());
        let kv = HeadKv { apart: !alike(&shape, &m.attention), shape };
        let block = c.blocks[0];
        let how = Attend {
            global: kv.apart,
            window: block.window,
            from: 1,
            place: m.kv_layers()[0],
            ..Attend::plain(kv.shape.clone(), m.ropes.len() + block.rope)
        };
        let mut pass = Pass::default();
        let before = pass.register(c.hidden);
        let mut from = LayerReader { reader, c, index: 0, options: &options };
        let output = config.push(&mut from, &mut pass, &ends, before, how)?;
        Ok(Self { pass, before, output, ends, ids, ropes, kv, fc_norm, fc })
    }

    /// Pushes to a pass of the model what writes the head's K and V of the batch's rows. `taps` has the inputs of the
    /// layers side by side, divided by `scale`.
    pub(crate) fn follow(&self, pass: &mut Pass, taps: Reg, scale: f32) {
        pass.push(Op::Check);
        if scale != 1.0 {
            pass.push(Op::Scale { x: taps, by: scale });
        }
        let (input, norm, product) = (Input::Rows(taps), self.fc_norm.clone(), self.fc.clone());
        let states = pass.make(|to| Op::Linear { input, norm, product, to });
        let before = pass.make(|to| Op::Shift { x: states, to });
        pass.append(&self.pass, [self.before, before]);
    }
}

impl EagleConfig {
    /// Pushes the layer, which continues from `before`. Returns its residual.
    fn push(
        &self,
        from: &mut LayerReader,
        pass: &mut Pass,
        ends: &Ends,
        before: Reg,
        how: Attend,
    ) -> Result<Reg> {
        let c = from.c;
        pass.push(Op::Check);
        let norms = [from.norm_of("attn_norm", c.hidden)?, from.norm_of("attn_norm_2", c.hidden)?];
        let a = ends.embed(pass);
        let x = match self.norm_before_residual {
            true => pass.make(|to| Op::Norm { x: before, norm: norms[1].clone(), to }),
            false => before,
        };
        let both = pass.make(|to| Op::Beside { a, b: before, norms, to });
        let product = from.product(Slot::Enter, &c.qkv_products(), 2 * c.hidden, c.parts.qkv_bias)?;
        let qkv = pass.linear(both, None, product);
        let width = how.shape.heads * how.shape.head_dim;
        let rows = pass.make(|to| Op::Attention { qkv, how: Arc::new(how), to });
        let mixed = Mixed { rows, output: "attn_output", width };
        let update = layer::output(from, pass, &mixed, None)?;
        pass.add(x, update, None);
        let norm = from.norm("ffn_norm")?;
        let update = gated::feed_forward(from, pass, x, norm)?;
        pass.add(x, update, None);
        Ok(x)
    }
}

/// Whether layers of these shapes share a step's places in the KV cache.
fn alike(a: &AttentionShape, b: &AttentionShape) -> bool {
    let sizes = |shape: &AttentionShape| (shape.heads, shape.kv_heads, shape.head_dim, shape.keys_are_values);
    sizes(a) == sizes(b)
}
