//! Tensors of files: their errors, types and shapes.

use crate::base::{Error, Result, Status};
use crate::formats::safetensors::{ElementType, TensorInfo};
use crate::kernels::DType;

/// A tensor of a file, for errors.
pub(super) struct Place<'a> {
    pub file: &'a str,
    pub tensor: &'a str,
}

impl Place<'_> {
    pub(super) fn bad(&self, why: &str) -> Error {
        Error::bad_model(format!("{}: tensor '{}' {why}", self.file, self.tensor))
    }

    pub(super) fn unsupported(&self, why: &str) -> Error {
        Error { status: Status::Unsupported, ..self.bad(why) }
    }

    pub(super) fn of(&self, e: Error) -> Error {
        Error::new(e.status, format!("{}: tensor '{}': {}", self.file, self.tensor, e.message))
    }

    pub(super) fn not_float(&self, tensor: &TensorInfo) -> Error {
        self.unsupported(&format!("is {}; F32, F16 and BF16 are read here", tensor.type_name))
    }

    pub(super) fn dtype(&self, tensor: &TensorInfo) -> Result<DType> {
        match tensor.ty {
            ElementType::F32 => Ok(DType::F32),
            ElementType::F16 => Ok(DType::F16),
            ElementType::BF16 => Ok(DType::BF16),
            _ => Err(self.not_float(tensor)),
        }
    }

    pub(super) fn shape(&self, tensor: &TensorInfo, wanted: &[usize]) -> Result<()> {
        self.equal(tensor, &tensor.shape, wanted)
    }

    /// Refuses a tensor whose shape, read as `shape`, is not the one that is wanted.
    pub(super) fn equal(&self, tensor: &TensorInfo, shape: &[usize], wanted: &[usize]) -> Result<()> {
        match shape == wanted {
            true => Ok(()),
            false => {
                Err(self
                    .bad(&format!("has the shape {:?} where config.json asks for {wanted:?}", tensor.shape)))
            }
        }
    }
}

/// `len` elements as f32. `None` if the type is not a float. Takes at most twice the memory of the tensor's bytes.
pub(super) fn floats(data: &[u8], ty: ElementType, len: usize) -> Option<Vec<f32>> {
    let halves = data.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
    let out: Vec<f32> = match ty {
        ElementType::F32 => data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        ElementType::F16 => halves.map(|h| half::f16::from_bits(h).to_f32()).collect(),
        ElementType::BF16 => halves.map(|h| half::bf16::from_bits(h).to_f32()).collect(),
        _ => return None,
    };
    debug_assert_eq!(out.len(), len, "checked on opening");
    Some(out)
}
