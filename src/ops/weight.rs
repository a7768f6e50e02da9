//! The weights of a model by their purposes, for devices and counts.

use super::pass::Op;
use super::recurrence::Recurrence;
use super::{DeltaNet, Experts, Lora, Mamba, Norm, Projections, ShortConv};
use crate::kernels::Matrix;
use std::collections::HashSet;
use std::sync::Arc;

/// A weight and its purpose.
#[derive(Clone, Copy)]
pub enum Weight<'a> {
    /// The table of an embedding.
    Table(&'a Matrix),
    /// No weight, but what is done with them.
    Op(&'a Op),
    Product(&'a Projections),
    Norm(&'a Norm),
    /// A norm that follows from another weight: devices need it, counts leave it out.
    Derived(&'a Norm),
    Experts(&'a Experts),
    Recurrent(Recurrent<'a>),
    /// Attention's, one of each head.
    Sinks(&'a [f32]),
    Adapter(&'a Arc<Lora>),
}

impl<'a> Weight<'a> {
    /// Calls the function with each matrix.
    pub fn matrices(self, each: &mut dyn FnMut(&'a Matrix)) {
        match self {
            Self::Table(table) => each(table),
            Self::Product(product) => product.matrices.iter().for_each(each),
            Self::Experts(mixture) => mixture.products().flat_map(|product| &product.matrices).for_each(each),
            Self::Op(_)
            | Self::Norm(_)
            | Self::Derived(_)
            | Self::Recurrent(_)
            | Self::Sinks(_)
            | Self::Adapter(_) => {}
        }
    }

    /// Calls the function with each vector.
    pub fn vectors(self, each: &mut dyn FnMut(&'a [f32])) {
        match self {
            Self::Product(product) => product.bias.as_deref().into_iter().for_each(each),
            Self::Norm(norm) => {
                [Some(&norm.weight), norm.bias.as_ref()].into_iter().flatten().for_each(|v| each(v));
            }
            Self::Experts(mixture) => {
                let biases = mixture.products().filter_map(|product| product.bias.as_deref());
                mixture.scales.as_deref().into_iter().chain(biases).for_each(each);
            }
            Self::Recurrent(net) => net.vectors().for_each(each),
            Self::Sinks(sinks) => each(sinks),
            Self::Table(_) | Self::Op(_) | Self::Derived(_) | Self::Adapter(_) => {}
        }
    }
}

/// The matrices and the vectors of weights, each once: a tied head has the embedding's very bytes.
#[derive(Default)]
pub struct Distinct<'a> {
    pub matrices: Vec<&'a Matrix>,
    pub vectors: Vec<&'a [f32]>,
    seen: HashSet<*const u8>,
}

impl<'a> Distinct<'a> {
    pub fn add(&mut self, weight: Weight<'a>) {
        let Self { matrices, vectors, seen } = self;
        weight.matrices(&mut |matrix| matrices.extend(seen.insert(matrix.data.as_ptr()).then_some(matrix)));
        weight.vectors(&mut |vector| vectors.extend(seen.insert(vector.as_ptr().cast()).then_some(vector)));
    }
}

/// The weights of a layer whose past is a state of fixed size, besides its products.
#[derive(Clone, Copy)]
pub enum Recurrent<'a> {
    DeltaNet(&'a DeltaNet),
    ShortConv(&'a ShortConv),
    Mamba(&'a Mamba),
}

impl<'a> Recurrent<'a> {
    /// f32 elements of a sequence's state, and of what is kept of a drafted row.
    pub fn sizes(self) -> (usize, usize) {
        match self {
            Self::DeltaNet(net) => (net.shape.state(), net.shape.drafted_row()),
            Self::ShortConv(net) => (net.shape.state(), net.shape.drafted_row()),
            Self::Mamba(net) => (net.shape.state(), net.shape.drafted_row()),
        }
    }

    /// Elements of a row of the layer's output.
    pub fn width(self) -> usize {
        match self {
            Self::DeltaNet(net) => net.shape.values(),
            Self::ShortConv(net) => net.shape.channels,
            Self::Mamba(net) => net.shape.inner(),
        }
    }

    /// f32 that a pass keeps of each row besides its registers.
    pub fn scratch(self) -> usize {
        match self {
            Self::DeltaNet(net) => net.heads().scratch(),
            Self::ShortConv(net) => net.shape.channels,
            Self::Mamba(net) => net.heads().scratch(),
        }
    }

    /// All weights.
    pub fn vectors(self) -> impl Iterator<Item = &'a [f32]> {
        let vectors: Vec<&'a [f32]> = match self {
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
