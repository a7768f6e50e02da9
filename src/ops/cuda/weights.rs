//! Weights on a device. All engines on the device share one copy, which is freed with the last of them.

use super::kernels::{DENSE, PRODUCTS, Weights};
use super::launch::{Arg, Opened, at};
use super::repack::{self, Block};
use crate::base::sync::Mutex;
use crate::base::{Bytes, Error, Result};
use crate::device::{Buffer, Stream};
use crate::kernels::{DType, Matrix, Pool};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The bytes of a matrix that are copied to the device.
pub(super) struct Planes<'a> {
    pub codes: Cow<'a, [u8]>,
    pub scales: Cow<'a, [u8]>,
    /// 1 if each row has a scale, 0 if all share one.
    pub scale_step: i32,
}

/// How the planes of a matrix are made.
enum Layout {
    Other(for<'a> fn(&'a Matrix) -> Result<Planes<'a>>),
    Blocks(Block),
}

/// Name of the product that takes weights of a type, and the layout that it requires.
fn format(dtype: DType) -> Option<(&'static str, Layout)> {
    use DType::*;
    use Layout::{Blocks, Other};
    Some(match dtype {
        I2S => ("ternary", Other(repack::i2s)),
        Ternary => ("ternary", Other(repack::ternary)),
        Int8 => ("int8", Other(repack::int8)),
        Q8_0 => ("q8_0", Blocks(repack::Q8_0)),
        Q4_0 => ("q4_0", Blocks(repack::Q4_0)),
        Q4_1 => ("q4_1", Blocks(repack::Q4_1)),
        Q5_0 => ("q5_0", Blocks(repack::Q5_0)),
        Q5_1 => ("q5_1", Blocks(repack::Q5_1)),
        Q2_0 => ("q2_0", Blocks(repack::Q2_0)),
        Q2_0_128 => ("q2_0_128", Blocks(repack::Q2_0)),
        PTQ1_0 => ("q2_0_128", Blocks(repack::PTQ1_0)),
        Q1_0 => ("q1_0", Blocks(repack::Q1_0)),
        IQ4_NL => ("iq4_nl", Blocks(repack::IQ4_NL)),
        MXFP4 => ("mxfp4", Blocks(repack::MXFP4)),
        TQ1_0 => ("tq2_0", Blocks(repack::TQ1_0)),
        TQ2_0 => ("tq2_0", Blocks(repack::TQ2_0)),
        Q2_K => ("q2_k", Blocks(repack::Q2_K)),
        TQ1_0_256 => ("q3_k", Blocks(repack::TQ1_0_256)),
        TQ2_0_256 => ("q3_k", Blocks(repack::TQ2_0_256)),
        Q3_K => ("q3_k", Blocks(repack::Q3_K)),
        Q4_K => ("q4_k", Blocks(repack::Q4_K)),
        Q5_K => ("q5_k", Blocks(repack::Q5_K)),
        Q6_K => ("q6_k", Blocks(repack::Q6_K)),
        IQ4_XS => ("iq4_xs", Blocks(repack::IQ4_XS)),
        F32 => ("f32", Other(repack::as_it_is)),
        F16 => ("f16", Other(repack::as_it_is)),
        BF16 => ("bf16", Other(repack::as_it_is)),
        // No kernel takes them.
        IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S => return None,
        // The loader has converted these to other types.
        TL1 | TL2 | IQ1_BN | IQ2_BN => return None,
    })
}

/// Bytes that a matrix takes on the device; 0 for a type that no kernel takes.
pub(super) fn device_bytes(matrix: &Matrix) -> usize {
    match format(matrix.dtype) {
        None => 0,
        Some((_, Layout::Blocks(block))) => block.bytes(matrix),
        Some(_) => match matrix.dtype {
            DType::I2S => matrix.rows * matrix.cols / 4 + 4,
            DType::Int8 => matrix.rows * (repack::int8_width(matrix) + 4),
            _ => matrix.data.len(),
        },
    }
}

/// A matrix on the device.
pub(crate) struct OnDevice {
    pub codes: Buffer,
    pub scales: Buffer,
    pub scale_step: i32,
    /// Index into `PRODUCTS`.
    pub product: usize,
    pub rows: usize,
    /// Columns of a row on the device: those of the matrix, then zeros.
    pub columns: usize,
    /// The matrix's own bytes. While they are held, no other matrix can have their address.
    _source: Bytes,
}

impl OnDevice {
    /// Copies a matrix to the device.
    pub(crate) fn new(opened: &Opened, stream: &Stream, pool: &Pool, matrix: &Matrix) -> Result<Self> {
        let (&Matrix { dtype, rows, .. }, (product, layout, columns)) = (matrix, Self::form(matrix)?);
        let planes = match layout {
            Layout::Other(planes) => planes(matrix)?,
            Layout::Blocks(block) => block.planes(pool, matrix)?,
        };
        debug_assert_eq!(planes.codes.len() + planes.scales.len(), device_bytes(matrix), "{dtype:?}");
        let codes = copied(opened, stream, &planes.codes, "weights")?;
        let scales = copied(opened, stream, &planes.scales, "scales of weights")?;
        let (scale_step, _source) = (planes.scale_step, matrix.data.clone());
        Ok(OnDevice { codes, scales, scale_step, product, rows, columns, _source })
    }

    /// Refuses a matrix that no kernel takes. `Unsupported`.
    pub(super) fn check(matrix: &Matrix) -> Result<()> {
        Self::form(matrix).map(drop)
    }

    /// Index into `PRODUCTS`, layout, and columns of a row on the device.
    fn form(matrix: &Matrix) -> Result<(usize, Layout, usize)> {
        let &Matrix { dtype, cols, .. } = matrix;
        let known = format(dtype).and_then(|(name, layout)| {
            Some((PRODUCTS.iter().position(|product| product.name == name)?, layout))
        });
        let (product, layout) = known.ok_or_else(|| refused(dtype, "this type of weights"))?;
        let multiple = PRODUCTS[product].columns;
        match dtype {
            // Repacked in rows of their own, which are padded.
            DType::Ternary | DType::Int8 => Ok((product, layout, cols.next_multiple_of(multiple))),
            _ if cols.is_multiple_of(multiple) => Ok((product, layout, cols)),
            _ => Err(refused(dtype, &format!("rows of {cols} columns, which is no multiple of {multiple}"))),
        }
    }

    /// Kernel arguments for an embedding from this table: rows `ids`, times `scale`, to `out` `[_, cols]`.
    pub(crate) fn embed_args(&self, ids: u64, scale: f32, out: Arg, cols: usize) -> Result<Vec<Arg>> {
        let (codes, scales) = (at(&self.codes)?, at(&self.scales)?);
        let (ids, scale, width) = (Arg::from(ids), Arg::from(scale), Arg::int(cols));
        Ok(match PRODUCTS[self.product].weights {
            Weights::Dense | Weights::Halves => {
                vec![codes, Arg::int(self.product - DENSE.start), ids, scale, out, width]
            }
            Weights::Whole => {
                vec![codes, scales, Arg::Int(self.scale_step), ids, scale, out, width]
            }
            Weights::Blocks | Weights::Supers | Weights::Scaled => {
                vec![codes, scales, ids, scale, out, Arg::int(self.rows), width]
            }
        })
    }
}

/// A vector of f32 on the device.
pub(crate) struct Vector {
    pub values: Buffer,
    _source: Arc<[f32]>,
}

/// Address on the host, type, rows and columns of a matrix.
pub(super) type Key = (usize, DType, usize, usize);

pub(super) fn key_of(matrix: &Matrix) -> Key {
    (matrix.data.as_ptr() as usize, matrix.dtype, matrix.rows, matrix.cols)
}

/// The weights on a device, by their address on the host.
#[derive(Default)]
pub(crate) struct Registry {
    matrices: Mutex<HashMap<Key, Weak<OnDevice>>>,
    vectors: Mutex<HashMap<usize, Weak<Vector>>>,
}

impl Registry {
    /// Returns the matrix on the device, and copies it there if needed. `Unsupported` if no kernel takes its type or
    /// width, `OutOfMemory`.
    pub(crate) fn matrix(
        &self,
        opened: &Opened,
        stream: &Stream,
        pool: &Pool,
        matrix: &Matrix,
    ) -> Result<Arc<OnDevice>> {
        let mut known = self.matrices.lock();
        // Not each time: models have tens of thousands of experts.
        if known.len() == known.capacity() {
            known.retain(|_, held| held.strong_count() > 0);
        }
        let key = key_of(matrix);
        if let Some(held) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(held);
        }
        let made = Arc::new(OnDevice::new(opened, stream, pool, matrix)?);
        known.insert(key, Arc::downgrade(&made));
        Ok(made)
    }

    /// Whether the matrix is on the device.
    pub(crate) fn has(&self, matrix: &Matrix) -> bool {
        self.matrices.lock().get(&key_of(matrix)).is_some_and(|held| held.strong_count() > 0)
    }

    /// Like `matrix`, for a vector.
    pub(crate) fn vector(
        &self,
        opened: &Opened,
        stream: &Stream,
        vector: &Arc<[f32]>,
    ) -> Result<Arc<Vector>> {
        let mut known = self.vectors.lock();
        known.retain(|_, held| held.strong_count() > 0);
        let key = vector.as_ptr() as usize;
        if let Some(held) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(held);
        }
        let values = copied(opened, stream, floats(vector), "a vector")?;
        let made = Arc::new(Vector { values, _source: vector.clone() });
        known.insert(key, Arc::downgrade(&made));
        Ok(made)
    }
}

/// The bytes of floats, as the device takes them.
pub(super) fn floats(values: &[f32]) -> &[u8] {
    // SAFETY: floats have no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Copies `data` to new memory on the device.
pub(super) fn copied(opened: &Opened, stream: &Stream, data: &[u8], what: &str) -> Result<Buffer> {
    let buffer = Buffer::new(&opened.device, data.len(), what)?;
    buffer.write(stream, 0, data)?;
    Ok(buffer)
}

pub(super) fn refused(dtype: DType, what: &str) -> Error {
    Error::unsupported(format!("{dtype:?}: there is no device kernel for {what}"))
}
