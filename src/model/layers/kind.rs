//! The kinds of a layer's two parts.

use super::inventory::Inventory;
use super::products::{Products, Update};
use super::read::LayerReader;
use super::step::{Residual, Step};
use crate::base::Result;
use crate::ops::{Norm, OpSet, Owned, Recurrent};

/// The part of a layer that mixes tokens.
pub trait Mixer: Send + Sync {
    /// Lists its weights.
    fn list<'a>(&'a self, to: &mut Inventory<'a>);
    /// The output before its last product: `[T, width]`.
    fn run(&self, step: &Step, residual: &mut Residual) -> Result<Owned>;
    /// Does what later rows need alone: writes K and V, or a state.
    fn append(&self, step: &Step, residual: &mut Residual) -> Result<()> {
        self.run(step, residual).map(drop)
    }
    /// The part with a state, and its index among the layers with one.
    fn state(&self) -> Option<(usize, Recurrent<'_>)> {
        None
    }
}

/// The part of a layer that works on each token by itself.
pub trait FeedForward: Send + Sync {
    /// Lists its weights.
    fn list<'a>(&'a self, to: &mut Inventory<'a>);
    /// Copies its last product by columns, for inputs with many zeros. `Unsupported` if it has none.
    fn copy_columns(&mut self, from: &mut LayerReader) -> Result<()> {
        Err(from.no_relu2())
    }
    /// Adds `update` to `x`, and returns the output for the sum normed by `norm`: `[T, hidden]`.
    fn run(
        &self,
        ops: &dyn OpSet,
        products: &Products,
        x: &mut Owned,
        update: Update,
        norm: Option<&Norm>,
    ) -> Result<Owned>;
}
