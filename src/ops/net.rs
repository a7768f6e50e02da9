//! The kinds of layers whose past is a state of fixed size.

use super::delta::DeltaNet;
use super::mamba::Mamba;
use super::recurrence::Recurrence;
use super::short_conv::ShortConv;
use std::sync::Arc;

/// The weights of a layer whose past is a state, besides its products.
#[derive(Clone)]
pub enum Net {
    DeltaNet(Arc<DeltaNet>),
    ShortConv(Arc<ShortConv>),
    Mamba(Arc<Mamba>),
}

impl Net {
    /// f32 elements of a sequence's state, and of what is kept of a drafted row.
    pub fn sizes(&self) -> (usize, usize) {
        match self {
            Self::DeltaNet(net) => (net.shape.state(), net.shape.drafted_row()),
            Self::ShortConv(net) => (net.shape.state(), net.shape.drafted_row()),
            Self::Mamba(net) => (net.shape.state(), net.shape.drafted_row()),
        }
    }

    /// Elements of a row of the layer's output.
    pub fn width(&self) -> usize {
        match self {
            Self::DeltaNet(net) => net.shape.values(),
            Self::ShortConv(net) => net.shape.channels,
            Self::Mamba(net) => net.shape.inner(),
        }
    }

    /// f32 that a pass keeps of each row besides its registers.
    pub fn scratch(&self) -> usize {
        match self {
            Self::DeltaNet(net) => net.heads().scratch(),
            Self::ShortConv(net) => net.shape.channels,
            Self::Mamba(net) => net.heads().scratch(),
        }
    }

    /// All weights.
    pub fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        let vectors: Vec<&[f32]> = match self {
            Self::DeltaNet(net) => vec![&net.conv, &net.a, &net.dt_bias, &net.norm.weight],
            Self::ShortConv(net) => vec![&net.weights],
            Self::Mamba(net) => {
                let norm = net.norm.norm().map(|norm| &*norm.weight);
                let all = [&*net.conv, &net.conv_bias, &net.a, &net.dt_bias, &net.d];
                all.into_iter().chain(norm).collect()
            }
        };
        vectors.into_iter()
    }
}
