//! What every operation needs of candle: contiguous f32 slices in, an owned tensor out.

use crate::base::{Error, Result};
use candle_core::{CpuStorage, Layout, Shape};

/// The elements of a contiguous f32 storage.
pub fn f32s<'a>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<&'a [f32]> {
    let CpuStorage::F32(data) = storage else { candle_core::bail!("an f32 tensor is needed") };
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&data[start..end]),
        None => candle_core::bail!("a contiguous tensor is needed, this one is {layout:?}"),
    }
}

/// As `f32s`, to be written to.
pub fn f32s_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> candle_core::Result<&'a mut [f32]> {
    let CpuStorage::F32(data) = storage else { candle_core::bail!("an f32 tensor is needed") };
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&mut data[start..end]),
        None => candle_core::bail!("a contiguous tensor is needed, this one is {layout:?}"),
    }
}

/// Rows of `width` of a `[T, width]` tensor.
pub fn rows(layout: &Layout, width: usize) -> candle_core::Result<usize> {
    match layout.dims() {
        [rows, found] if *found == width => Ok(*rows),
        dims => candle_core::bail!("a [T, {width}] tensor is needed, this one is {dims:?}"),
    }
}

pub fn output(data: Vec<f32>, rows: usize, width: usize) -> (CpuStorage, Shape) {
    debug_assert_eq!(data.len(), rows * width);
    (CpuStorage::F32(data), Shape::from((rows, width)))
}

/// What went wrong in candle, as ours.
pub fn ours<T>(what: &str, result: candle_core::Result<T>) -> Result<T> {
    result.map_err(|error| Error::internal(format!("{what}: {error}")))
}
