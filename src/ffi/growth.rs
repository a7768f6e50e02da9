//! Structs that grow: `struct_size` says how much of one the caller compiled, and no more is touched.

use crate::base::{Error, Result};
use std::ptr;

/// Larger sizes are garbage, not a newer header.
const LARGEST: usize = 64 * 1024;

/// A C struct whose first field is `uint32_t struct_size`, and that only ever grows at its end.
///
/// # Safety
/// `repr(C)`, `struct_size` first, and every bit pattern of the rest is a valid value.
pub unsafe trait Grown: Sized {
    const NAME: &'static str;
    /// Its size when it was first published: the smallest `struct_size` that can be met.
    const FIRST: usize;
    /// What fields hold that the caller's version does not have.
    fn defaults() -> Self;
    fn set_struct_size(&mut self, size: u32);
}

fn check_size<T: Grown>(size: usize) -> Result<()> {
    if (T::FIRST..=LARGEST).contains(&size) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{name}.struct_size is {size}; this library knows {known} (call {name}_init with sizeof)",
        name = T::NAME,
        known = size_of::<T>()
    )))
}

fn not_null<T: Grown>(pointer: *const T) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::invalid(format!("the pointer to {} is NULL", T::NAME)));
    }
    Ok(())
}

/// Copies a caller's struct in.
///
/// # Safety
/// `from` is NULL or points to `struct_size` readable bytes.
pub unsafe fn read<T: Grown>(from: *const T) -> Result<T> {
    not_null(from)?;
    let bytes = from.cast::<u8>();
    // SAFETY: the caller's struct begins with its size; C may hand us any alignment.
    let size = unsafe { bytes.cast::<u32>().read_unaligned() } as usize;
    check_size::<T>(size)?;
    let known = size.min(size_of::<T>());
    for at in known..size {
        // SAFETY: `at` lies within the caller's `struct_size` bytes.
        if unsafe { bytes.add(at).read() } != 0 {
            return Err(Error::unsupported(format!(
                "{} has a field at byte {at} that this version of bn_engine does not know",
                T::NAME
            )));
        }
    }
    let mut value = T::defaults();
    // SAFETY: `known` bytes are readable there and writable here, and by the trait's promise any bytes
    // make a valid T.
    unsafe { ptr::copy_nonoverlapping(bytes, (&raw mut value).cast::<u8>(), known) };
    Ok(value)
}

/// Writes `value` over a caller's struct of `size` bytes: what it has room for, then zeros.
///
/// # Safety
/// `to` points to `size` writable bytes.
unsafe fn put<T: Grown>(to: *mut T, size: usize, mut value: T) {
    value.set_struct_size(size as u32);
    let known = size.min(size_of::<T>());
    let bytes = to.cast::<u8>();
    // SAFETY: within `size` bytes, which the caller owns; source and target are different objects.
    unsafe {
        ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), bytes, known);
        ptr::write_bytes(bytes.add(known), 0, size - known);
    }
}

/// `bn_X_init`: the defaults, into `size` bytes.
///
/// # Safety
/// `to` is NULL or points to `size` writable bytes.
pub unsafe fn init<T: Grown>(to: *mut T, size: u32) -> Result<()> {
    not_null(to.cast_const())?;
    check_size::<T>(size as usize)?;
    // SAFETY: checked above, and the caller's promise.
    unsafe { put(to, size as usize, T::defaults()) };
    Ok(())
}

/// Fills a caller's output struct, whose `struct_size` the caller has set.
///
/// # Safety
/// `to` is NULL or points to `struct_size` writable bytes.
pub unsafe fn write<T: Grown>(to: *mut T, value: T) -> Result<()> {
    // SAFETY: as above.
    let size = unsafe { size_of_caller(to) }?;
    // SAFETY: as above.
    unsafe { put(to, size, value) };
    Ok(())
}

/// The checked `struct_size` of a caller's output struct.
///
/// # Safety
/// `to` is NULL or points to at least four readable bytes.
pub unsafe fn size_of_caller<T: Grown>(to: *mut T) -> Result<usize> {
    not_null(to.cast_const())?;
    // SAFETY: the struct begins with its size.
    let size = unsafe { to.cast::<u32>().read_unaligned() } as usize;
    check_size::<T>(size)?;
    Ok(size)
}
