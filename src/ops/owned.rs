//! A result of an operation, on the CPU or on a device.

use super::cuda::Part;
use super::spare::Spare;
use super::tensors;
use crate::base::{Error, Result, reserve};
use candle_core::Tensor;
use std::sync::Arc;

/// Rows of f32: a candle tensor on the CPU, or a part of a device's memory. When dropped, it returns its memory to
/// the operations that made it, so clones of the tensor must not outlive it.
pub struct Owned(Place);

enum Place {
    Host { tensor: Tensor, spare: Option<Arc<Spare>> },
    Device(Part),
}

impl Owned {
    /// A result on the CPU: `[rows, columns]`.
    pub(super) fn new(data: Vec<f32>, [rows, columns]: [usize; 2], spare: &Arc<Spare>) -> Result<Self> {
        let tensor = tensors::rows(data, rows, columns)?;
        Ok(Self(Place::Host { tensor, spare: Some(spare.clone()) }))
    }

    /// Calls `f` with the elements `[rows, columns]`. `Internal` if they are on a device.
    pub(super) fn read<T>(&self, f: impl FnOnce(&[f32], [usize; 2]) -> Result<T>) -> Result<T> {
        tensors::read(self.tensor()?, f)
    }

    /// Like `read`, for a function that changes the elements.
    pub(super) fn update<T>(&mut self, f: impl FnOnce(&mut [f32], [usize; 2]) -> Result<T>) -> Result<T> {
        tensors::update(self.tensor()?, f)
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
        if let Place::Device(part) = &self.0 {
            return part.copy_to(out);
        }
        self.read(|data, _| {
            out.clear();
            reserve(out, data.len(), "a step's outputs")?;
            out.extend_from_slice(data);
            Ok(())
        })
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
        if let Place::Host { tensor, spare: Some(spare) } = &self.0
            && let Ok(data) = tensors::take(tensor)
        {
            spare.give(data);
        }
    }
}
