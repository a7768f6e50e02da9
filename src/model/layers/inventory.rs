//! The weights of a decoder, listed for those who go through all of them: devices, adapters, counts.

use crate::kernels::Matrix;
use crate::kernels::gemm::ternary::Columns;
use crate::ops::{Experts, Norm, Projections, Recurrent, Site, Weight};

/// A product that adapters may update.
pub struct Product {
    pub weights: Projections,
    pub site: Site,
    /// GGUF's names of its matrices, without `.weight`.
    pub names: Vec<String>,
}

#[derive(Clone, Copy)]
pub enum Part<'a> {
    Product(&'a Product),
    /// One that no adapter updates.
    Weight(Weight<'a>),
}

/// All weights, each once: those of a tied head are the embedding's.
#[derive(Default)]
pub struct Inventory<'a> {
    parts: Vec<Part<'a>>,
}

impl<'a> Part<'a> {
    fn weight(self) -> Weight<'a> {
        match self {
            Self::Product(product) => Weight::Product(&product.weights),
            Self::Weight(weight) => weight,
        }
    }
}

impl<'a> Inventory<'a> {
    pub fn product(&mut self, product: &'a Product) {
        self.parts.push(Part::Product(product));
        self.norms(&product.weights.norms);
    }

    /// A product that no adapter updates.
    pub fn fixed(&mut self, product: &'a Projections) {
        self.parts.push(Part::Weight(Weight::Product(product)));
        self.norms(&product.norms);
    }

    pub fn norms(&mut self, norms: impl IntoIterator<Item = &'a Norm>) {
        self.parts.extend(norms.into_iter().map(|norm| Part::Weight(Weight::Norm(norm))));
    }

    pub fn table(&mut self, table: &'a Matrix) {
        self.parts.push(Part::Weight(Weight::Table(table)));
    }

    pub fn sinks(&mut self, sinks: &'a [f32]) {
        self.parts.push(Part::Weight(Weight::Sinks(sinks)));
    }

    pub fn experts(&mut self, experts: &'a Experts) {
        self.parts.push(Part::Weight(Weight::Experts(experts)));
        self.norms(&experts.router_norm);
    }

    pub fn recurrent(&mut self, net: Recurrent<'a>) {
        self.parts.push(Part::Weight(Weight::Recurrent(net)));
    }

    pub fn weights(&self) -> impl Iterator<Item = Weight<'a>> {
        self.parts.iter().map(|part| part.weight())
    }

    /// The products that adapters may update.
    pub fn products(&self) -> impl Iterator<Item = &'a Product> {
        self.parts.iter().filter_map(|part| match part {
            Part::Product(product) => Some(*product),
            Part::Weight(_) => None,
        })
    }

    /// Bytes of the copies by columns.
    pub fn copied_bytes(&self) -> u64 {
        let columns = self.products().filter_map(|product| product.weights.columns.as_ref());
        columns.map(|columns| Columns::bytes(columns.rows, columns.cols) as u64).sum()
    }
}
