//! Access to candle tensors for all operations: contiguous f32 slices in, an owned tensor out.

use crate::base::sync::Mutex;
use crate::base::{Error, REFUSED, Result, Status};
use candle_core::{CpuStorage, InplaceOp1, Layout, Shape, Tensor, WithDType};

/// The elements of a contiguous f32 storage.
pub fn f32s<'a>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<&'a [f32]> {
    let CpuStorage::F32(data) = storage else { candle_core::bail!("an f32 tensor is needed") };
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&data[start..end]),
        None => candle_core::bail!("a contiguous tensor is needed, this one is {layout:?}"),
    }
}

/// Like `f32s`, but mutable.
pub fn f32s_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> candle_core::Result<&'a mut [f32]> {
    let CpuStorage::F32(data) = storage else { candle_core::bail!("an f32 tensor is needed") };
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&mut data[start..end]),
        None => candle_core::bail!("a contiguous tensor is needed, this one is {layout:?}"),
    }
}

/// Number of rows of a `[T, width]` tensor.
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

/// Converts an error of candle to ours.
pub fn ours<T>(what: &str, result: candle_core::Result<T>) -> Result<T> {
    result.map_err(|error| Error::failed(Status::Internal, format!("{what}: {error}")))
}

/// The elements of a contiguous f32 tensor that fills its storage, without a copy. `x` and its clones must
/// not be used afterwards.
pub(super) fn into_vec(x: Tensor) -> candle_core::Result<Vec<f32>> {
    let taken = Taken::default();
    x.inplace_op1(&taken)?;
    Ok(taken.0.into_inner())
}

#[derive(Default)]
struct Taken(Mutex<Vec<f32>>);

impl InplaceOp1 for Taken {
    fn name(&self) -> &'static str {
        "into-vec"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let all = f32s(storage, layout)?.len();
        match storage {
            CpuStorage::F32(data) if data.len() == all => *self.0.lock() = std::mem::take(data),
            _ => candle_core::bail!("a tensor that is a part of another"),
        }
        Ok(())
    }
}

/// The error for a refused allocation of `n` numbers. It does without candle's `bt`, because capturing a backtrace
/// would hang on a lock of std when its own allocation is refused.
pub fn refused(n: usize) -> candle_core::Error {
    candle_core::Error::Msg(format!("{REFUSED} {n} numbers"))
}

/// Like `vec![0; n]`, but returns an error instead of aborting when memory runs out.
pub fn zeroed<T: WithDType>(n: usize) -> candle_core::Result<Vec<T>> {
    if n == 0 {
        return Ok(Vec::new());
    }
    let layout = std::alloc::Layout::array::<T>(n).map_err(|_| refused(n))?;
    // SAFETY: the layout is not empty. A null result is an error; any other is n zeroed numbers from the global
    // allocator with the layout of a Vec of that capacity, and all-zero bits are 0 in each of candle's types.
    unsafe {
        let start = std::alloc::alloc_zeroed(layout).cast::<T>();
        if start.is_null() { Err(refused(n)) } else { Ok(Vec::from_raw_parts(start, n, n)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn whole_tensors_become_vectors() {
        let tensor = || Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], (2, 2), &Device::Cpu).unwrap();
        assert_eq!(into_vec(tensor()).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert!(into_vec(tensor().narrow(0, 1, 1).unwrap()).is_err(), "a part");
        assert!(into_vec(tensor().t().unwrap()).is_err(), "not contiguous");
    }
}
