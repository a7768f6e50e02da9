//! Short convolutions.

use super::read::LayerReader;
use super::{Mixed, Residual};
use crate::base::Result;
use crate::ops::pass::{Op, Pass};
use crate::ops::{ConvShape, Net, ShortConv, Slot};
use std::sync::Arc;

pub(super) fn mix(from: &mut LayerReader, pass: &mut Pass, shape: ConvShape, of: &Residual) -> Result<Mixed> {
    // B, C and x
    let input = [("shortconv.in_proj", 3 * shape.channels)];
    let input = of.linear(pass, from.product(Slot::Enter, &input, from.c.hidden, false)?);
    let weights = from.convolution("shortconv.conv.weight", shape.channels, shape.kernel)?;
    let net = Net::ShortConv(Arc::new(ShortConv { shape, weights }));
    let place = from.c.place(from.index);
    let rows = pass.make(|to| Op::Recur { inputs: vec![input], place, net, to });
    Ok(Mixed { rows, output: "shortconv.out_proj", width: shape.channels })
}
