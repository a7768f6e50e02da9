//! A block of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2; Qwen3-Next and Qwen3.5 have one):
//! from a token and the hidden state of the token before it, it predicts the token after it. It drafts; the layers of
//! the model verify.
//!
//! The block's K and V of a position depend on the tokens up to that position, so they are cached like any layer's.
//! Position 0 has none, as no token comes before it. Each pass of the model writes them; a draft pass computes the
//! whole block.

use super::ends::{Ends, Own};
use super::layer;
use crate::base::Result;
use crate::model::config::{Block, DecoderConfig};
use crate::model::family::Named;
use crate::model::options::LoadOptions;
use crate::model::reader::{Reader, join_of};
use crate::ops::pass::{Op, Pass, Product, Reg};

/// Names of Hugging Face below `mtp.`, and of GGUF below `nextn.`, beside those of the block's layer.
pub(crate) const PARTS: &[Named] = &[
    ("fc", "eh_proj"),
    ("pre_fc_norm_embedding", "enorm"),
    ("pre_fc_norm_hidden", "hnorm"),
    ("norm", "shared_head_norm"),
];

/// A block, as a pass of its own.
pub(crate) struct Mtp {
    pub pass: Pass,
    /// The hidden state of the token before each row's, which is given.
    pub before: Reg,
    /// The residual after the block, which predicts the next token of each row.
    pub output: Reg,
    /// The block's own, or the model's.
    pub ends: Ends,
}

/// The block's layer, behind those of `c`.
pub(crate) fn layer_of(c: &DecoderConfig) -> Block {
    Block { sparse: c.experts.is_some(), ..Block::default() }
}

impl Mtp {
    /// `c` has a block for its layer after those of the model. `ends` are those of the model, or of the block's files.
    pub(crate) fn read(
        reader: &mut Reader,
        c: &DecoderConfig,
        ends: &Ends,
        options: &LoadOptions,
    ) -> Result<Self> {
        let name = |part: &str| format!("blk.{}.nextn.{part}", c.layers);
        let own = Own {
            table: &name("embed_tokens.weight"),
            norm: &name("shared_head_norm"),
            head: &name("shared_head_head.weight"),
        };
        let ends = ends.or_own(reader, c, &own)?;
        let norms = [reader.norm(&name("enorm"), c.hidden, c)?, reader.norm(&name("hnorm"), c.hidden, c)?];
        let join = Product::fixed([reader.matrix(&join_of(c), c.hidden, 2 * c.hidden)?]);
        let mut pass = Pass::default();
        let before = pass.register(c.hidden);
        let a = ends.embed(&mut pass);
        let both = pass.make(|to| Op::Beside { a, b: before, norms, to });
        let output = pass.linear(both, None, join);
        layer::read(reader, c, c.layers, options, &mut pass, output, None)?;
        Ok(Self { pass, before, output, ends })
    }
}
