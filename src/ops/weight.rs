//! The weights of a model by their purposes, for devices and counts.

use super::net::Net;
use super::{Experts, Lora, Norm, Projections};
use crate::kernels::Matrix;
use std::collections::HashSet;
use std::sync::Arc;

/// A weight and its purpose.
#[derive(Clone, Copy)]
pub enum Weight<'a> {
    /// The table of an embedding.
    Table(&'a Matrix),
    Product(&'a Projections),
    Norm(&'a Norm),
    /// A norm that follows from another weight: devices need it, counts leave it out.
    Derived(&'a Norm),
    Experts(&'a Experts),
    Net(&'a dyn Net),
    /// Attention's, one of each head.
    Sinks(&'a [f32]),
    /// One element for each column of rows.
    Vector(&'a [f32]),
    Adapter(&'a Arc<Lora>),
}

impl<'a> Weight<'a> {
    /// Calls the function with each matrix.
    pub fn matrices(self, each: &mut dyn FnMut(&'a Matrix)) {
        match self {
            Self::Table(table) => each(table),
            Self::Product(product) => product.matrices.iter().for_each(each),
            Self::Experts(mixture) => mixture.products().flat_map(|product| &product.matrices).for_each(each),
            Self::Norm(_)
            | Self::Derived(_)
            | Self::Net(_)
            | Self::Sinks(_)
            | Self::Vector(_)
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
            Self::Net(net) => net.vectors().into_iter().for_each(|vector| each(vector)),
            Self::Sinks(vector) | Self::Vector(vector) => each(vector),
            Self::Table(_) | Self::Derived(_) | Self::Adapter(_) => {}
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

impl<'a> FromIterator<Weight<'a>> for Distinct<'a> {
    fn from_iter<I: IntoIterator<Item = Weight<'a>>>(weights: I) -> Self {
        let mut distinct = Self::default();
        weights.into_iter().for_each(|weight| distinct.add(weight));
        distinct
    }
}

impl<'a> Distinct<'a> {
    pub fn add(&mut self, weight: Weight<'a>) {
        let Self { matrices, vectors, seen } = self;
        weight.matrices(&mut |matrix| matrices.extend(seen.insert(matrix.data.as_ptr()).then_some(matrix)));
        weight.vectors(&mut |vector| vectors.extend(seen.insert(vector.as_ptr().cast()).then_some(vector)));
    }
}
