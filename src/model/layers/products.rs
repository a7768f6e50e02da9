//! The products of a pass, with the adapters of its rows.

use super::inventory::Product;
use crate::base::Result;
use crate::ops::{Activation, Adapted, Head, Norm, OpSet, Owned, RaggedBatch};
use std::borrow::Cow;

/// Rows that are to be added to the residual, after `norm`.
pub struct Update<'a> {
    pub rows: Owned,
    pub norm: Option<&'a Norm>,
}

/// The products of some rows of a pass. A product that no adapter updates is fused with the operations before it; the
/// bits are the same.
pub struct Products<'a> {
    ops: &'a dyn OpSet,
    adapted: Cow<'a, [Adapted]>,
}

impl<'a> Products<'a> {
    /// Products of all of the batch's rows, or of `rows`.
    pub fn of_rows(ops: &'a dyn OpSet, batch: &'a RaggedBatch, rows: Option<&[u32]>) -> Self {
        let adapted = &batch.adapted;
        let adapted = match rows.filter(|_| !adapted.is_empty()) {
            Some(rows) => Cow::Owned(Adapted::among(adapted, rows)),
            None => Cow::Borrowed(&adapted[..]),
        };
        Self { ops, adapted }
    }

    fn plain(&self, product: &Product) -> bool {
        !self.adapted.iter().any(|adapted| adapted.lora.pairs(product.site).iter().any(Option::is_some))
    }

    pub fn linear(&self, x: &Owned, norm: Option<&Norm>, product: &Product) -> Result<Owned> {
        let weights = &product.weights;
        if self.plain(product) {
            return self.ops.linear(x, norm, weights);
        }
        let normed = norm.map(|norm| self.ops.norm(x, norm)).transpose()?;
        let x = normed.as_ref().unwrap_or(x);
        let mut y = self.ops.linear(x, None, weights)?;
        self.ops.adapt(&mut y, x, weights, &self.adapted, product.site)?;
        Ok(y)
    }

    /// Adds `update` to `x`, then multiplies `x`.
    pub fn add_linear(
        &self,
        x: &mut Owned,
        update: Update,
        norm: Option<&Norm>,
        product: &Product,
    ) -> Result<Owned> {
        if self.plain(product) {
            return self.ops.add_linear(x, &update.rows, update.norm, norm, &product.weights);
        }
        self.ops.add(x, &update.rows, update.norm)?;
        self.linear(x, norm, product)
    }

    /// `add_linear` of gate and up, whose product `activation` makes.
    pub fn add_gate_up(
        &self,
        x: &mut Owned,
        update: Update,
        norm: Option<&Norm>,
        product: &Product,
        activation: Activation,
    ) -> Result<Owned> {
        match self.plain(product) {
            true => self.ops.add_gate_up(x, &update.rows, update.norm, norm, &product.weights, activation),
            false => self.add_linear(x, update, norm, product),
        }
    }

    pub fn gated_linear(
        &self,
        gate_up: &Owned,
        activation: Activation,
        norm: Option<&Norm>,
        product: &Product,
    ) -> Result<Owned> {
        if self.plain(product) {
            return self.ops.gated_linear(gate_up, activation, norm, &product.weights);
        }
        self.linear(&self.ops.gated(gate_up, activation)?, norm, product)
    }

    /// Computes the logits of a step.
    pub fn head(&self, to: Head, x: &Owned, norm: Option<&Norm>, product: &Product) -> Result<()> {
        if self.plain(product) {
            return self.ops.head(to, x, norm, &product.weights);
        }
        to.tokens.clear();
        self.linear(x, norm, product)?.copy_to(to.logits)
    }
}
