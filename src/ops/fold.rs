//! Weights that are folded with a rotation of their inputs, and what activations pass through before them.

use super::types::HeadOrder;
use crate::base::{Error, Result};
use crate::kernels::Isa;
use crate::kernels::rows::hadamard::walsh_hadamard;
use std::sync::Arc;

/// The rotation of a product's inputs, `x' = H (s * x)`: H is the normalized Walsh-Hadamard transform of each `block`
/// elements. A table of embeddings has rotated rows; its inverse is `x = s * (H x')`.
#[derive(Clone, Debug, PartialEq)]
pub struct Fold {
    pub block: usize,
    /// s: 1 or -1 for each element; `None`: all 1.
    pub signs: Option<Arc<[f32]>>,
    /// The rows' heads, if weights have them in another order.
    pub heads: Option<Regrouped>,
}

/// A row has the value heads of key heads in turns (`HeadOrder::Tiled`); weights want those of each key head side by
/// side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regrouped {
    pub key_heads: usize,
    pub value_heads: usize,
}

impl Regrouped {
    /// The order of a row's heads that weights in grouped order need; `None` if that is the row's own.
    pub fn of(key_heads: usize, value_heads: usize, order: HeadOrder) -> Option<Self> {
        let differs = order == HeadOrder::Tiled && key_heads > 1 && value_heads > key_heads;
        differs.then_some(Self { key_heads, value_heads })
    }
}

impl Fold {
    /// `Internal` unless rows of `cols` elements can be rotated.
    pub fn check(&self, cols: usize) -> Result<()> {
        let blocks = self.block.is_power_of_two() && cols.is_multiple_of(self.block);
        let signs = self.signs.as_ref().is_none_or(|signs| signs.len() == cols);
        let heads = self.heads.is_none_or(|heads| cols.is_multiple_of(heads.value_heads));
        match blocks && signs && heads {
            true => Ok(()),
            false => Err(Error::internal(format!("a rotation that does not fit rows of {cols} columns"))),
        }
    }

    /// Rotates a row; `from` has the same elements.
    pub fn apply(&self, isa: Isa, from: &[f32], to: &mut [f32]) {
        match self.heads {
            Some(Regrouped { key_heads, value_heads }) => {
                let (width, each) = (from.len() / value_heads, value_heads / key_heads);
                for (head, to) in to.chunks_exact_mut(width).enumerate() {
                    let (group, n) = (head / each, head % each);
                    to.copy_from_slice(&from[(n * key_heads + group) * width..][..width]);
                }
            }
            None => to.copy_from_slice(from),
        }
        self.sign(to);
        walsh_hadamard(isa, self.block, to);
    }

    /// Undoes the rotation of a row whose heads are in their own order.
    pub fn undo(&self, isa: Isa, row: &mut [f32]) {
        walsh_hadamard(isa, self.block, row);
        self.sign(row);
    }

    /// Number of operations for each element: a sign, a sum or difference in each step of the transform, and its scale.
    pub fn operations(&self) -> usize {
        2 + self.block.max(1).ilog2() as usize
    }

    fn sign(&self, row: &mut [f32]) {
        if let Some(signs) = &self.signs {
            row.iter_mut().zip(&signs[..]).for_each(|(x, sign)| *x *= sign);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedding_comes_back() {
        let signs: Vec<f32> = (0..64).map(|i| if i % 3 == 0 { -1.0 } else { 1.0 }).collect();
        let fold = Fold { block: 32, signs: Some(signs.into()), heads: None };
        fold.check(64).unwrap();
        assert!(fold.check(96).is_err() && fold.check(48).is_err());
        let x: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
        let mut row = vec![0.0; 64];
        fold.apply(Isa::Scalar, &x, &mut row);
        assert!(x.iter().zip(&row).any(|(a, b)| (a - b).abs() > 0.1));
        fold.undo(Isa::Scalar, &mut row);
        assert!(x.iter().zip(&row).all(|(a, b)| (a - b).abs() < 1e-6), "{row:?}");
    }

    #[test]
    fn heads_in_turns_are_brought_together() {
        // Two key heads, three value heads of each, elements of 1: tiled order is (key, n) = 00 10 01 11 02 12.
        let heads = Regrouped::of(2, 6, HeadOrder::Tiled);
        let fold = Fold { block: 1, signs: None, heads };
        let mut row = [0.0; 6];
        fold.apply(Isa::Scalar, &[0.0, 10.0, 1.0, 11.0, 2.0, 12.0], &mut row);
        assert_eq!(row, [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]);
        assert_eq!(Regrouped::of(2, 6, HeadOrder::Grouped), None);
    }
}
