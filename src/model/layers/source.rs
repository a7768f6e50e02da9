//! The tensors of one layer, as a kind asks for them.

use crate::base::Result;
use crate::ops::Slot;
use crate::ops::pass::Product;
use std::sync::Arc;

/// Gives the tensors of a layer, by GGUF's names without the layer.
pub(crate) trait Source {
    /// Elements of a row of the residual.
    fn hidden(&self) -> usize;

    fn rms_eps(&self) -> f32;

    /// The index of the layer's state.
    fn state_place(&self) -> usize;

    /// Matrices (name without `.weight`, rows) of `cols` columns that are multiplied with the same activations, with
    /// their biases and norms. Adapters may update them at `slot`.
    fn product(&mut self, slot: Slot, wanted: &[(&str, usize)], cols: usize, bias: bool) -> Result<Product>;

    fn vector(&mut self, part: &str, len: usize) -> Result<Arc<[f32]>>;

    /// The weights of a short convolution, `[kernel, channels]`. Files have them by channel.
    fn convolution(&mut self, part: &str, channels: usize, kernel: usize) -> Result<Arc<[f32]>>;

    /// The rates at which states decay, none above 0. `BadModel` if a state would grow.
    fn decays(&mut self, part: &str, heads: usize) -> Result<Arc<[f32]>>;
}
