//! The bytes of candle tensors, which hold K and V.

use crate::base::{Error, Result, Status};
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Storage, Tensor, WithDType};
use std::cell::RefCell;
use std::ops::Range;

/// A tensor of zeros, whose pages the system provides when they are first written. `OutOfMemory`.
pub(super) fn zeros<T: WithDType>(what: &str, shape: &[usize]) -> Result<Tensor> {
    let elements = shape.iter().product();
    let data = zeroed::<T>(elements)
        .ok_or_else(|| Error::out_of_memory(what, elements.saturating_mul(size_of::<T>())))?;
    ours(Tensor::from_vec(data, shape, &Device::Cpu))
}

/// Calls `f` with the bytes of a tensor of F32, F16 or U8.
pub(super) fn read_bytes<T>(x: &Tensor, f: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
    fn of<T: WithDType>(data: &[T]) -> &[u8] {
        // SAFETY: numbers have no padding, so they can be read as bytes.
        unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
    }
    let (storage, layout) = x.storage_and_layout();
    match &*storage {
        Storage::Cpu(CpuStorage::F32(data)) => f(of(&data[span(layout, data.len())?])),
        Storage::Cpu(CpuStorage::F16(data)) => f(of(&data[span(layout, data.len())?])),
        Storage::Cpu(CpuStorage::U8(data)) => f(&data[span(layout, data.len())?]),
        _ => Err(not("F32, F16 or bytes", layout)),
    }
}

/// A view of a tensor's first element, for `update_bytes`.
pub(super) fn first(x: &Tensor) -> Result<Tensor> {
    match x.elem_count() {
        0 => Ok(x.clone()),
        _ => ours(x.flatten_all().and_then(|flat| flat.narrow(0, 0, 1))),
    }
}

/// Like `read_bytes`, for a function that changes the bytes. `first` is a view of the tensor's first element: candle
/// looks for overlaps in the layout of what it changes, which allocates for dimensions above 1.
pub(super) fn update_bytes<T>(first: &Tensor, f: impl FnOnce(&mut [u8]) -> Result<T>) -> Result<T> {
    fn of<T: WithDType>(data: &mut [T]) -> &mut [u8] {
        // SAFETY: numbers have no padding and any bits are a valid number, so they can be read and written as bytes.
        unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
    }
    in_place(first, |storage, layout| match storage {
        CpuStorage::F32(data) => f(of(data)),
        CpuStorage::F16(data) => f(of(data)),
        CpuStorage::U8(data) => f(data),
        _ => Err(not("F32, F16 or bytes", layout)),
    })
}

/// A function as an operation of candle, which alone gives access to a tensor's storage.
struct InPlace<F, T>(RefCell<State<F, T>>);

enum State<F, T> {
    Ready(F),
    Running,
    Done(Result<T>),
}

impl<F, T> InplaceOp1 for InPlace<F, T>
where
    F: FnOnce(&mut CpuStorage, &Layout) -> Result<T>,
{
    fn name(&self) -> &'static str {
        "in place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        if let State::Ready(f) = self.0.replace(State::Running) {
            self.0.replace(State::Done(f(storage, layout)));
        }
        Ok(())
    }
}

fn in_place<T>(x: &Tensor, f: impl FnOnce(&mut CpuStorage, &Layout) -> Result<T>) -> Result<T> {
    let op = InPlace(RefCell::new(State::Ready(f)));
    ours(x.inplace_op1(&op))?;
    match op.0.into_inner() {
        State::Done(result) => result,
        _ => Err(Error::internal("a tensor that is not on the CPU")),
    }
}

fn span(layout: &Layout, len: usize) -> Result<Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) if end <= len => Ok(start..end),
        _ => Err(not("a contiguous tensor", layout)),
    }
}

fn not(wanted: &str, layout: &Layout) -> Error {
    Error::internal(format!("{wanted} is needed, this is one of {:?}", layout.dims()))
}

/// Converts an error of candle to ours.
fn ours<T>(result: candle_core::Result<T>) -> Result<T> {
    result.map_err(|error| Error::new(Status::Internal, error.to_string()))
}

/// Like `vec![0; n]`, but `None` instead of an abort when memory runs out.
pub(super) fn zeroed<T: WithDType>(n: usize) -> Option<Vec<T>> {
    if n == 0 {
        return Some(Vec::new());
    }
    let layout = std::alloc::Layout::array::<T>(n).ok()?;
    // SAFETY: the layout is not empty. A null result is an error; any other is n zeroed numbers from the global
    // allocator with the layout of a Vec of that capacity, and all-zero bits are 0 in each of candle's types.
    unsafe {
        let start = std::alloc::alloc_zeroed(layout).cast::<T>();
        (!start.is_null()).then(|| Vec::from_raw_parts(start, n, n))
    }
}
