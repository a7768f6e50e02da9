//! A kind of layer whose past is a state of fixed size. Each kind is a file beside this one.

use super::recurrence::RecurrentScratch;
use super::rows::On;
use super::spans::Span;
use super::state::{Accepted, StatePart};
use crate::base::{Error, Result};
use std::any::Any;
use std::sync::Arc;

/// The weights of such a layer besides its products, and how the CPU runs it. A device that has the kind knows it by
/// its type.
pub trait Net: Any + Send + Sync {
    /// f32 elements of a sequence's state, and of what is kept of a drafted row.
    fn sizes(&self) -> (usize, usize);
    /// Elements of a row of the layer's output.
    fn width(&self) -> usize;
    /// f32 that a pass keeps of each row besides its registers.
    fn scratch(&self) -> usize;
    /// All weights.
    fn vectors(&self) -> Vec<&Arc<[f32]>>;
    /// Runs the rows of a pass through the layer. `inputs` are those of `Op::Recur`, `[T, n]` each; `out` is
    /// `[T, width]`. Keeps what `advance` needs of drafted rows.
    fn run(&self, at: Host, inputs: &[&[f32]], spans: &[Span], out: &mut [f32]) -> Result<()>;
    /// Advances states by drafted rows of the last pass.
    fn advance(&self, at: Host, accepted: &[Accepted]) -> Result<()>;
}

/// The CPU, the states of the layer, and memory for a pass.
pub struct Host<'a> {
    pub(super) on: On<'a>,
    pub(super) states: &'a mut StatePart,
    pub(super) scratch: &'a mut RecurrentScratch,
}

/// The error of a layer whose inputs have other widths, or are of another number.
pub(super) fn other_inputs() -> Error {
    Error::internal("inputs of a layer with a state that have other widths")
}
