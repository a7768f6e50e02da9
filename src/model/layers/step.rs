//! A step, as layers see it.

use super::inventory::Product;
use super::products::{Products, Update};
use super::ropes::Ropes;
use crate::base::Result;
use crate::ops::{KvCache, Norm, OpSet, Owned, Paging, Rope};

/// State shared by the layers of one pass.
pub struct Step<'a> {
    pub ops: &'a dyn OpSet,
    pub paging: Paging<'a>,
    /// As `paging`, for layers that attend as `DecoderConfig::global` says.
    pub global: Option<Paging<'a>>,
    pub kv: &'a KvCache,
    pub ropes: &'a [Ropes],
    pub all: Products<'a>,
    /// The products of the wanted rows.
    pub wanted: Products<'a>,
}

/// The residual as a mixer takes it.
pub struct Residual<'a> {
    pub x: &'a mut Owned,
    /// Still to be added: the first product does it.
    pub update: Option<Update<'a>>,
    /// The norm of the mixer's inputs.
    pub norm: Option<&'a Norm>,
}

impl<'a> Step<'a> {
    pub fn paging_of(&self, global: bool) -> &Paging<'a> {
        self.global.as_ref().filter(|_| global).unwrap_or(&self.paging)
    }

    /// `index`: that in `DecoderConfig::ropes`.
    pub fn rope(&self, index: usize) -> &Rope {
        self.ropes[index].of(self.kv)
    }
}

impl Residual<'_> {
    /// A product of the normed residual, of all rows.
    pub fn linear(&mut self, step: &Step, product: &Product) -> Result<Owned> {
        match self.update.take() {
            Some(update) => step.all.add_linear(self.x, update, self.norm, product),
            None => step.all.linear(self.x, self.norm, product),
        }
    }
}
