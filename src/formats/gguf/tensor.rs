//! Tensor infos: names, shapes, types and places of data.

use super::reader::{MAX_NAME_BYTES, Reader};
use crate::base::{Error, Result};
use crate::kernels::DType;
use std::ops::Range;

/// Limit of ggml.
pub(super) const MAX_DIMS: usize = 4;

/// A tensor of the file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub name: String,
    /// In ggml's order, with the contiguous dimension first, padded with 1: a `[rows, cols]` matrix has
    /// `[cols, rows, 1, 1]`.
    pub dims: [usize; MAX_DIMS],
    /// GGUF's number of the type. [`TensorInfo::dtype`] gives the type if we know it.
    pub type_id: u32,
    /// Bytes of the data; `None` for an unknown type.
    pub byte_len: Option<usize>,
    /// Offset of the first byte in the file's data section.
    pub offset: usize,
    /// Index of the file of a split model that holds the tensor.
    pub(super) part: usize,
    /// Bytes from its start to the start of the next tensor, or to the end of the file. Known once all tensors are.
    pub(super) extent: usize,
    /// The type that `set_extent` found for a number that several types share.
    found: Option<DType>,
}

impl TensorInfo {
    pub(super) fn parse(r: &mut Reader) -> Result<Self> {
        let name = r.name(MAX_NAME_BYTES, "a tensor's name")?;
        if name.is_empty() {
            return Err(r.error("a tensor has an empty name"));
        }
        let item = &format!("the entry of tensor '{name}'");
        let n_dims = r.u32(item)?;
        if n_dims as usize > MAX_DIMS {
            return Err(r.error(format_args!(
                "tensor '{name}' has {n_dims} dimensions; at most {MAX_DIMS} are possible"
            )));
        }
        let mut dims = [1; MAX_DIMS];
        for dim in &mut dims[..n_dims as usize] {
            let n = r.u64(item)?;
            *dim = usize::try_from(n)
                .map_err(|_| r.error(format_args!("tensor '{name}' has a dimension of {n}")))?;
        }
        let type_id = r.u32(item)?;
        let offset = r.u64(item)?;
        let offset = usize::try_from(offset)
            .map_err(|_| r.error(format_args!("tensor '{name}' starts beyond the file, at {offset}")))?;
        let mut info = Self {
            name: r.owned(name)?,
            dims,
            type_id,
            byte_len: None,
            offset,
            part: 0,
            extent: 0,
            found: None,
        };
        info.byte_len = info.expected_len().map_err(|message| r.error(message))?;
        Ok(info)
    }

    /// The type, if this build can read it.
    pub fn dtype(&self) -> Option<DType> {
        self.found.or(DType::IN_FILES.into_iter().find(|t| t.file_id() == self.type_id))
    }

    /// Sets the bytes that the tensor has in its file. They distinguish types that share a number: MXFP4 (32 elements
    /// in 17 bytes) from TL2 (in at most 8), and Q2_0 of 128 elements in 34 bytes from ggml's of 64 in 18. It is the
    /// larger one, MXFP4 or ggml's Q2_0, if there is room for that, and MXFP4 if TL2 cannot be. (Padding adds room for
    /// up to 31 bytes, so a small tensor may be mistaken. It has under 2048 elements; no model has such tensors.)
    pub(super) fn set_extent(&mut self, extent: usize) {
        self.extent = extent;
        let length = |dtype: DType| Some((dtype, self.byte_len_as(dtype)?));
        let found = match (self.dtype(), self.byte_len) {
            (Some(DType::TL2), tl2) => {
                length(DType::MXFP4).filter(|(_, len)| tl2.is_none() || *len <= extent)
            }
            (Some(DType::Q2_0), Some(len)) if extent < len => {
                length(DType::Q2_0_128).filter(|(_, len)| *len <= extent)
            }
            _ => None,
        };
        if let Some((dtype, len)) = found {
            (self.found, self.byte_len) = (Some(dtype), Some(len));
        }
    }

    fn byte_len_as(&self, dtype: DType) -> Option<usize> {
        let [cols, rows @ ..] = self.dims;
        dtype.byte_len(rows.iter().product(), cols)
    }

    /// The number and, if there is one, the name: `12 (Q4_K)`.
    pub fn type_name(&self) -> String {
        let name = match self.found {
            Some(dtype) => name_of(dtype),
            None => ggml_type_name(self.type_id),
        };
        format!("{} ({})", self.type_id, name.unwrap_or("unknown"))
    }

    /// Number of elements; checked when the file was opened.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    pub(super) fn supported(&self) -> Result<DType> {
        self.dtype().ok_or_else(|| {
            Error::unsupported(format!(
                "tensor '{}' has type {}, which this build can't read; it reads {}",
                self.name,
                self.type_name(),
                names_of(&DType::IN_FILES)
            ))
        })
    }

    /// End of the data, as far as it is known: after the first byte for an unknown type.
    pub(super) fn end(&self) -> Option<usize> {
        self.offset.checked_add(self.byte_len.unwrap_or(1))
    }

    /// Range of the data in the data section; checked when the file was opened.
    pub(super) fn range(&self) -> Option<Range<usize>> {
        Some(self.offset..self.offset.checked_add(self.byte_len?)?)
    }

    fn expected_len(&self) -> std::result::Result<Option<usize>, String> {
        let too_large =
            || format!("tensor '{}' has dimensions {:?}, which are too large", self.name, self.dims);
        let [cols, rest @ ..] = self.dims;
        // Zeros are left out of the product: a 0 must not hide an overflow from `elements`.
        let bound = self.dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
        bound.ok_or_else(too_large)?;
        let Some(dtype) = self.dtype() else { return Ok(None) };
        let rows: usize = rest.iter().product();
        let blocks = dtype.block().0;
        match dtype.byte_len(rows, cols) {
            Some(len) => Ok(Some(len)),
            // TL2 cannot hold this, but MXFP4 has the same number.
            None if dtype == DType::TL2 && self.byte_len_as(DType::MXFP4).is_some() => Ok(None),
            None if blocks > 1 && !cols.is_multiple_of(blocks) => Err(format!(
                "tensor '{}' of type {} has dimensions {:?}; its type stores multiples of {blocks}",
                self.name,
                self.type_name(),
                self.dims
            )),
            None if matches!(dtype, DType::TL1 | DType::TL2) => Err(format!(
                "tensor '{}' of type {} has dimensions {:?}; its type stores multiples of 64",
                self.name,
                self.type_name(),
                self.dims
            )),
            None => Err(too_large()),
        }
    }
}

/// Names of types in a sentence: `F32, F16 and BF16`.
fn names_of(types: &[DType]) -> String {
    let mut names = types.iter().filter_map(|t| name_of(*t)).collect::<Vec<_>>();
    let last = names.pop().unwrap_or_default();
    format!("{} and {last}", names.join(", "))
}

fn name_of(dtype: DType) -> Option<&'static str> {
    if dtype == DType::MXFP4 { Some("MXFP4") } else { ggml_type_name(dtype as u32) }
}

/// Name of a type in ggml, bitnet.cpp (I2_S, TL1), ik_llama.cpp (IQ1_BN, IQ2_BN) or PrismML's fork (PQ2_0, PTQ1_0).
fn ggml_type_name(id: u32) -> Option<&'static str> {
    const FIRST: [&str; 31] = [
        "F32",
        "F16",
        "Q4_0",
        "Q4_1",
        "Q4_2, removed",
        "Q4_3, removed",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q8_1",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "Q8_K",
        "IQ2_XXS",
        "IQ2_XS",
        "IQ3_XXS",
        "IQ1_S",
        "IQ4_NL",
        "IQ3_S",
        "IQ2_S",
        "IQ4_XS",
        "I8",
        "I16",
        "I32",
        "I64",
        "F64",
        "IQ1_M",
        "BF16",
    ];
    match id {
        0..=30 => Some(FIRST[id as usize]),
        34 => Some("TQ1_0"),
        35 => Some("TQ2_0"),
        36 => Some("I2_S"),
        38 => Some("TL1"),
        // MXFP4 in ggml: `set_extent` distinguishes the two.
        39 => Some("TL2"),
        40 => Some("NVFP4"),
        41 => Some("Q1_0"),
        42 => Some("Q2_0"),
        134 => Some("IQ1_BN"),
        135 => Some("IQ2_BN"),
        142 => Some("PQ2_0"),
        143 => Some("PTQ1_0"),
        _ => None,
    }
}
