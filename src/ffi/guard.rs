//! What stands around every export: no panic leaves, no bad pointer is read.

use super::growth;
use super::status::{BN_OK, bn_error, bn_status};
use crate::base::{Error, Result, panics};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs an export's body; a panic becomes `BN_ERR_INTERNAL`.
pub fn guard(body: impl FnOnce() -> Result<()>) -> bn_status {
    status_of(&caught(body))
}

/// As [`guard`], and says in `error` why.
///
/// # Safety
/// `error` is NULL or points to a `bn_error` of `struct_size` writable bytes.
pub unsafe fn guard_saying(error: *mut bn_error, body: impl FnOnce() -> Result<()>) -> bn_status {
    if !error.is_null() {
        // SAFETY: the caller's promise. A bad struct_size is refused before anything is done.
        let checked = caught(|| unsafe { growth::size_of_caller(error) }.map(drop));
        if checked.is_err() {
            return status_of(&checked);
        }
    }
    let result = caught(body);
    // SAFETY: checked above; writing nothing to NULL.
    unsafe { say(error, &result) };
    status_of(&result)
}

/// Writes a result to a `bn_error`, where one is wanted; a bad `struct_size` gets nothing.
///
/// # Safety
/// `error` is NULL or points to a `bn_error` of `struct_size` writable bytes.
pub unsafe fn say(error: *mut bn_error, result: &Result<()>) {
    if !error.is_null() {
        // SAFETY: the caller's promise.
        let _ = unsafe { growth::write(error, bn_error::from_result(result)) };
    }
}

/// For exports that return something other than a status.
pub fn guard_or<T>(otherwise: T, body: impl FnOnce() -> Result<T>) -> T {
    caught(body).unwrap_or(otherwise)
}

fn status_of(result: &Result<()>) -> bn_status {
    match result {
        Ok(()) => BN_OK,
        Err(error) => error.status as i32,
    }
}

/// Runs `body`; a panic in it is an internal error with its text and place.
fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    // `panics::catch` drops the payload, and that may panic once more: such a one is let go.
    let result = catch_unwind(AssertUnwindSafe(|| panics::catch(body))).unwrap_or_else(|second| {
        std::mem::forget(second);
        Err("a panic's payload panicked".to_owned())
    });
    result.unwrap_or_else(|text| Err(Error::internal(format!("bn_engine panicked: {text}"))))
}

/// A caller's array. NULL is fine for a length of 0.
///
/// # Safety
/// `pointer` is NULL or points to `length` readable, initialised elements that nobody changes for `'a`.
pub unsafe fn slice<'a, T>(what: &str, pointer: *const T, length: usize) -> Result<&'a [T]> {
    if length == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Error::invalid(format!("{what} is NULL, its length {length}")));
    }
    if !pointer.is_aligned() {
        return Err(Error::invalid(format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    if length > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Error::invalid(format!("{what} has an impossible length of {length}")));
    }
    // SAFETY: checked above, and the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// A caller's text.
///
/// # Safety
/// As [`slice`].
pub unsafe fn text<'a>(what: &str, pointer: *const std::ffi::c_char, length: usize) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { slice(what, pointer.cast::<u8>(), length) }?;
    std::str::from_utf8(bytes)
        .map_err(|e| Error::invalid(format!("{what} is not UTF-8 at byte {}", e.valid_up_to())))
}

/// Owned copies of a caller's data, without aborting when memory is out.
pub fn copy<T: Copy>(what: &str, from: &[T]) -> Result<Vec<T>> {
    let mut out = Vec::new();
    out.try_reserve_exact(from.len()).map_err(|_| Error::out_of_memory(what, size_of_val(from)))?;
    out.extend_from_slice(from);
    Ok(out)
}

pub fn copy_text(what: &str, from: &str) -> Result<String> {
    let bytes = copy(what, from.as_bytes())?;
    // SAFETY: a copy of a str.
    Ok(unsafe { String::from_utf8_unchecked(bytes) })
}

/// Refuses bits of `flags` that are not among `known`.
pub fn flags(flags: u32, known: u32) -> Result<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => {
            Err(Error::unsupported(format!("flags has {unknown:#x}, which this version does not know")))
        }
    }
}

/// A caller's out parameter.
pub fn out<T>(what: &str, pointer: *mut T) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::invalid(format!("{what} is NULL")));
    }
    if !pointer.is_aligned() {
        return Err(Error::invalid(format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    Ok(())
}

/// Copies `from` to a caller's buffer of `capacity` elements and its length to `*count`.
///
/// # Safety
/// `to` is NULL or points to `capacity` writable elements; `count` is valid.
pub unsafe fn copy_out<T: Copy>(
    what: &str,
    from: &[T],
    to: *mut T,
    capacity: usize,
    count: *mut usize,
) -> Result<()> {
    // SAFETY: the caller checked `count`.
    unsafe { count.write(from.len()) };
    if from.len() > capacity {
        return Err(Error::new(
            crate::base::Status::BufferTooSmall,
            format!("{what} needs room for {}, has {capacity}", from.len()),
        ));
    }
    if from.is_empty() {
        return Ok(());
    }
    out(what, to)?;
    // SAFETY: room for `capacity >= from.len()` elements; ours and theirs do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Status;
    use crate::ffi::growth::Grown;
    use crate::ffi::status::BN_ERR_INTERNAL;

    #[test]
    fn a_panic_becomes_a_status_and_a_message() {
        let mut error = bn_error { struct_size: 512, ..bn_error::defaults() };
        // SAFETY: a whole bn_error.
        let status = unsafe { guard_saying(&raw mut error, || panic!("at the {}", "disco")) };
        assert_eq!(status, BN_ERR_INTERNAL);
        // SAFETY: NUL-terminated by `from_result`.
        let message = unsafe { std::ffi::CStr::from_ptr(error.message.as_ptr()) };
        let message = message.to_str().unwrap();
        assert!(
            message.starts_with("bn_engine panicked: ") && message.ends_with("at the disco"),
            "{message}"
        );
        assert_eq!(guard_or(-1, || panic!("again")), -1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "such a payload is leaked")]
    fn a_payload_that_panics_when_dropped_is_let_go() {
        struct Mean;
        impl Drop for Mean {
            fn drop(&mut self) {
                panic!("and again");
            }
        }
        assert_eq!(guard(|| std::panic::panic_any(Mean)), BN_ERR_INTERNAL);
    }

    #[test]
    fn long_messages_lose_their_middle() {
        let error = bn_error::from_result(&Err(Error::invalid(format!("x{}", "ü".repeat(400)))));
        // SAFETY: NUL-terminated.
        let message = unsafe { std::ffi::CStr::from_ptr(error.message.as_ptr()) }.to_str().unwrap();
        assert_eq!(message, format!("x{} ... {}", "ü".repeat(124), "ü".repeat(124)));
    }

    #[test]
    fn arrays_and_texts_are_checked() {
        let none = std::ptr::null::<u32>();
        // SAFETY: nothing is read that is not there.
        unsafe {
            assert!(slice("x", none, 0).unwrap().is_empty());
            assert_eq!(slice("x", none, 1).unwrap_err().message, "x is NULL, its length 1");
            assert!(slice("x", none.wrapping_byte_add(1), 1).is_err());
            assert!(slice("x", none.wrapping_add(4), usize::MAX).is_err());
            let error = text("x", c"ab\xff".as_ptr(), 3).unwrap_err();
            assert_eq!(
                (error.status, error.message.as_str()),
                (Status::InvalidArgument, "x is not UTF-8 at byte 2")
            );
        }
    }

    #[test]
    fn a_small_buffer_gets_the_size_and_nothing_else() {
        let (mut to, mut count) = ([9u32; 3], 0);
        // SAFETY: three elements.
        unsafe {
            let error = copy_out("x", &[1, 2, 3, 4], to.as_mut_ptr(), 3, &raw mut count).unwrap_err();
            assert_eq!((error.status, count, to), (Status::BufferTooSmall, 4, [9; 3]));
            copy_out("x", &[1, 2], to.as_mut_ptr(), 3, &raw mut count).unwrap();
            assert_eq!((count, to), (2, [1, 2, 9]));
            copy_out("x", &[], std::ptr::null_mut::<u32>(), 0, &raw mut count).unwrap();
            assert_eq!(count, 0);
        }
    }
}
