//! Short convolutions.

use super::inventory::{Inventory, Product};
use super::kind::Mixer;
use super::read::LayerReader;
use super::step::{Residual, Step};
use crate::base::Result;
use crate::ops::{ConvShape, Owned, Recurrent, ShortConv, Slot};

pub struct Convolution {
    /// B, C and x: `[3 channels, hidden]`.
    input: Product,
    net: ShortConv,
    /// Index of its state.
    place: usize,
}

impl Convolution {
    pub fn read(from: &mut LayerReader, shape: ConvShape) -> Result<Self> {
        let weights = from.convolution("shortconv.conv.weight", shape.channels, shape.kernel)?;
        let input = [("shortconv.in_proj", 3 * shape.channels)];
        Ok(Self {
            input: from.product(Slot::Enter, &input, from.c.hidden, false)?,
            net: ShortConv { shape, weights },
            place: from.c.place(from.index),
        })
    }
}

impl Mixer for Convolution {
    fn list<'a>(&'a self, to: &mut Inventory<'a>) {
        to.product(&self.input);
    }

    fn run(&self, step: &Step, residual: &mut Residual) -> Result<Owned> {
        let input = residual.linear(step, &self.input)?;
        step.ops.short_conv(&input, step.paging.batch, step.kv, self.place, &self.net)
    }

    fn state(&self) -> Option<(usize, Recurrent<'_>)> {
        Some((self.place, Recurrent::ShortConv(&self.net)))
    }
}
