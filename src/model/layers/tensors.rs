//! The tensors of a layer in a GGUF file that `export` writes.

use super::heads::{Heads, Part};
use crate::model::config::DecoderConfig;
use crate::ops::ConvShape;

/// Takes a tensor, by GGUF's name without the layer.
pub(crate) type Add<'a> = dyn FnMut(String, Kind) + 'a;

/// Kind of a tensor in the file.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// A norm's weights and the offset to add to them.
    Norm {
        len: usize,
        offset: f32,
    },
    /// `heads` is set if the rows are reordered within each head (q and k).
    Bias {
        len: usize,
        heads: Option<usize>,
    },
    Projection {
        rows: usize,
        cols: usize,
        heads: Option<usize>,
    },
    /// The embedding or the head.
    Table {
        rows: usize,
        cols: usize,
    },
    Router {
        rows: usize,
        cols: usize,
    },
    /// The one row that weighs the shared expert.
    Gate {
        cols: usize,
    },
    /// All experts' matrices of one part.
    Experts {
        count: usize,
        rows: usize,
        cols: usize,
    },
    /// A part of a layer of Gated DeltaNet.
    Delta(Heads, Part),
    /// A short convolution.
    Convolution(ConvShape),
    /// Divisors of frequencies.
    RopeFactors(Divisors),
}

/// The contexts that divisors of frequencies belong to: any (Llama 3's scaling), or LongRoPE's short and long ones.
#[derive(Clone, Copy)]
pub(crate) enum Divisors {
    Any,
    Short,
    Long,
}

impl Kind {
    /// Dimensions in ggml's order.
    pub(crate) fn dims(self, c: &DecoderConfig) -> Vec<u64> {
        match self {
            Kind::Norm { len, .. } | Kind::Bias { len, .. } => vec![len as u64],
            Kind::Projection { rows, cols, .. }
            | Kind::Router { rows, cols }
            | Kind::Table { rows, cols } => {
                vec![cols as u64, rows as u64]
            }
            Kind::Gate { cols } => vec![cols as u64],
            Kind::Delta(heads, part) => heads.dims(part, c.hidden),
            Kind::Convolution(shape) => vec![shape.kernel as u64, shape.channels as u64],
            Kind::Experts { count, rows, cols } => vec![cols as u64, rows as u64, count as u64],
            Kind::RopeFactors(_) => vec![c.described().dims as u64 / 2],
        }
    }
}

/// Adds products of `cols` columns (name, rows) with their norms and biases. `heads`: those of a product whose rows are
/// reordered within each.
pub(super) fn products(
    c: &DecoderConfig,
    parts: &[(&str, usize)],
    cols: usize,
    bias: bool,
    heads: &dyn Fn(&str) -> Option<usize>,
    add: &mut Add,
) {
    for (part, rows) in parts {
        let (rows, heads) = (*rows, heads(part));
        add(format!("{part}.weight"), Kind::Projection { rows, cols, heads });
        if bias {
            add(format!("{part}.bias"), Kind::Bias { len: rows, heads });
        }
        if c.parts.projection_norms {
            add(format!("{part}_norm_in.weight"), Kind::Norm { len: cols, offset: 0.0 });
        }
    }
}
