//! A result of an operation, on the CPU or on a device.

use super::cuda::Part;
use super::spare::Spare;
use super::support::{f32s, ours};
use crate::base::{Error, Result, reserve};
use candle_core::{Storage, Tensor};
use std::sync::Arc;

/// Rows of f32: a candle tensor on the CPU, or a part of a device's memory. When dropped, it returns its memory to
/// the operations that made it, so clones of the tensor must not outlive it.
pub struct Owned(Place);

enum Place {
    Host { tensor: Tensor, spare: Option<Arc<Spare>> },
    Device(Part),
}

impl Owned {
    pub(super) fn new(tensor: Tensor, spare: &Arc<Spare>) -> Self {
        Self(Place::Host { tensor, spare: Some(spare.clone()) })
    }

    /// Rows and columns.
    pub fn dims(&self) -> &[usize] {
        match &self.0 {
            Place::Host { tensor, .. } => tensor.dims(),
            Place::Device(part) => &part.dims,
        }
    }

    /// The tensor. `Internal` if the result is on a device.
    pub fn tensor(&self) -> Result<&Tensor> {
        match &self.0 {
            Place::Host { tensor, .. } => Ok(tensor),
            Place::Device(_) => Err(Error::internal("a result on a device, given to the CPU")),
        }
    }

    /// The device memory. `Internal` if the result is on the CPU.
    pub(super) fn part(&self) -> Result<&Part> {
        match &self.0 {
            Place::Device(part) => Ok(part),
            Place::Host { .. } => Err(Error::internal("a result on the CPU, given to a device")),
        }
    }

    /// Copies the elements to `out`, which is reallocated only if its capacity is too small. `OutOfMemory`.
    pub fn copy_to(&self, out: &mut Vec<f32>) -> Result<()> {
        let tensor = match &self.0 {
            Place::Host { tensor, .. } => tensor,
            Place::Device(part) => return part.copy_to(out),
        };
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            return Err(Error::internal("a result is not on the CPU"));
        };
        let data = ours("a result", f32s(storage, layout))?;
        out.clear();
        reserve(out, data.len(), "a step's outputs")?;
        out.extend_from_slice(data);
        Ok(())
    }
}

impl From<Tensor> for Owned {
    /// A tensor whose memory is not returned to any operations.
    fn from(tensor: Tensor) -> Self {
        Self(Place::Host { tensor, spare: None })
    }
}

impl From<Part> for Owned {
    fn from(part: Part) -> Self {
        Self(Place::Device(part))
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Place::Host { tensor, spare: Some(spare) } = &self.0 {
            // If candle refuses, the memory is freed with the tensor.
            let _ = tensor.inplace_op1(&**spare);
        }
    }
}
