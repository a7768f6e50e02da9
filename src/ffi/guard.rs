//! Guards for every export: no panic leaves it, and pointers are checked before they are read.

use super::status::{BN_OK, bn_error, bn_status};
use super::string::{BN_NUL_TERMINATED, bn_string};
use crate::base::os::Uncancelled;
use crate::base::{Error, Result, Status, panics};
use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs an export's body; a panic becomes `BN_ERR_INTERNAL`. Where `error` is not NULL, it says
/// why the call failed.
///
/// # Safety
/// `error` is NULL or points to a writable `bn_error`.
pub unsafe fn guard(error: *mut bn_error, body: impl FnOnce() -> Result<()>) -> bn_status {
    let result = caught(body);
    if !error.is_null() {
        // SAFETY: the caller's promise.
        unsafe { error.write_unaligned(bn_error::from_result(&result)) };
    }
    result.map_or_else(|error| error.status as i32, |()| BN_OK)
}

/// As [`guard`], for exports that take no `bn_error`.
pub fn guard_only(body: impl FnOnce() -> Result<()>) -> bn_status {
    // SAFETY: no error.
    unsafe { guard(std::ptr::null_mut(), body) }
}

/// As [`guard`], for exports that write one value, to `*to`, when they succeed.
///
/// # Safety
/// As [`guard`]; and `to` is NULL or points to a writable `T`.
pub unsafe fn guard_out<T>(
    error: *mut bn_error,
    what: &str,
    to: *mut T,
    body: impl FnOnce() -> Result<T>,
) -> bn_status {
    let body = || {
        out(what, to)?;
        let value = body()?;
        // SAFETY: checked above, and the caller's promise.
        unsafe { to.write(value) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { guard(error, body) }
}

/// As [`guard`], for exports that write an array to `to`, a caller's buffer by its name and capacity, and its length to
/// `length`, a pointer by its name.
///
/// # Safety
/// As [`guard`] and [`copy_out`]; and the pointer of `length` is NULL or points to a writable number.
pub unsafe fn guard_copy<T: Copy, A: AsRef<[T]>>(
    error: *mut bn_error,
    (what, to, capacity): (&str, *mut T, usize),
    (name, length): (&str, *mut usize),
    body: impl FnOnce() -> Result<A>,
) -> bn_status {
    let body = || {
        out(name, length)?;
        // SAFETY: `length` was checked, and `to` is the caller's promise.
        unsafe { copy_out(what, body()?.as_ref(), to, capacity, length) }
    };
    // SAFETY: the caller's promise.
    unsafe { guard(error, body) }
}

/// As [`guard`], for exports that return a number of their own, 0 or more, or else a negative
/// status.
///
/// # Safety
/// As [`guard`].
pub unsafe fn guard_number(error: *mut bn_error, body: impl FnOnce() -> Result<i32>) -> i32 {
    let mut number = 0;
    // SAFETY: the caller's promise.
    let status = unsafe {
        guard(error, || {
            number = body()?;
            Ok(())
        })
    };
    if status == BN_OK { number } else { status }
}

/// Runs `body`. A panic becomes an internal error with the panic's text and place.
fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let _cancel = Uncancelled::begin();
    // `panics::catch` drops the payload, which may panic again; that payload is leaked.
    let result = catch_unwind(AssertUnwindSafe(|| panics::catch(body))).unwrap_or_else(|second| {
        std::mem::forget(second);
        Err("a panic's payload panicked".to_owned())
    });
    result.unwrap_or_else(|text| Err(Error::internal(format!("bn_engine panicked: {text}"))))
}

/// A caller's array. NULL is fine for a length of 0.
///
/// # Safety
/// `pointer` is NULL or points to `length` readable, initialized elements that nobody
/// changes for `'a`.
pub unsafe fn slice<'a, T>(
    what: &(impl Display + ?Sized),
    pointer: *const T,
    length: usize,
) -> Result<&'a [T]> {
    if length == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Error::invalid(format!("{what} is NULL, with {length} elements")));
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

/// A caller's text; None where it is not set.
///
/// # Safety
/// As [`slice`]; and where `length` is `BN_NUL_TERMINATED`, `data` ends with a NUL.
pub unsafe fn optional_text<'a>(what: &(impl Display + ?Sized), text: bn_string) -> Result<Option<&'a str>> {
    let bytes = match (text.data.is_null(), text.length) {
        (true, 0) => return Ok(None),
        // The result of `BN_TEXT(getenv(..))` for a missing variable.
        (true, BN_NUL_TERMINATED) => return Err(Error::invalid(format!("{what} is NULL"))),
        // SAFETY: the caller's promise.
        (false, BN_NUL_TERMINATED) => unsafe { CStr::from_ptr(text.data) }.to_bytes(),
        // SAFETY: the caller's promise.
        (_, length) => unsafe { slice(what, text.data.cast::<u8>(), length) }?,
    };
    let text = std::str::from_utf8(bytes);
    text.map(Some).map_err(|e| Error::invalid(format!("{what} is not UTF-8 at byte {}", e.valid_up_to())))
}

/// A caller's text; one that is not set is empty.
///
/// # Safety
/// As [`optional_text`].
pub unsafe fn text<'a>(what: &(impl Display + ?Sized), text: bn_string) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    unsafe { optional_text(what, text) }.map(Option::unwrap_or_default)
}

/// A caller's texts.
///
/// # Safety
/// As for `slice`, and each string as the header says.
pub unsafe fn texts<'a>(what: &str, strings: *const bn_string, count: usize) -> Result<Vec<Cow<'a, str>>> {
    // SAFETY: the caller's promise.
    let strings = unsafe { slice(what, strings, count) }?;
    let one = |(at, string): (usize, &bn_string)| {
        // SAFETY: the caller's promise.
        unsafe { text(&format_args!("{what}[{at}]"), *string) }.map(Cow::Borrowed)
    };
    strings.iter().enumerate().map(one).collect()
}

/// Refuses an array of more than `most` elements.
pub fn count(what: &str, count: usize, most: usize) -> Result<()> {
    match count <= most {
        true => Ok(()),
        false => Err(Error::invalid(format!("{what}_count is {count}; it goes from 0 to {most}"))),
    }
}

/// Refuses bits of `flags`, the value of `what`, that are not among `known`.
pub fn flags(what: &str, flags: u32, known: u32) -> Result<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => {
            Err(Error::unsupported(format!("{what} has {unknown:#x}, which this version does not know")))
        }
    }
}

/// Refuses nonzero bytes in the `reserved` room of the field `what`, where a newer header has
/// fields.
pub fn reserved(what: &str, reserved: &[u64]) -> Result<()> {
    match reserved.iter().all(|word| *word == 0) {
        true => Ok(()),
        false => Err(Error::unsupported(format!(
            "{what}.reserved is not 0: it has a field that this version of bn_engine does not know"
        ))),
    }
}

/// Checks a caller's out parameter, which must not be NULL.
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
    // SAFETY: the caller's promise.
    unsafe { room(what, from.len(), capacity, count) }?;
    if !from.is_empty() {
        out(what, to)?;
        // SAFETY: checked above. Room for `capacity >= from.len()` elements; ours and theirs do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }
    // SAFETY: the caller's promise.
    unsafe { count.write(from.len()) };
    Ok(())
}

/// `BufferTooSmall`, with `needed` in `*count`, where a caller's buffer has less room.
///
/// # Safety
/// `count` is valid.
pub unsafe fn room(what: &str, needed: usize, capacity: usize, count: *mut usize) -> Result<()> {
    if needed <= capacity {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { count.write(needed) };
    let message = format!("{what} needs room for {needed}, has {capacity}");
    Err(Error::new(Status::BufferTooSmall, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::status::BN_ERR_INTERNAL;

    #[test]
    fn a_panic_becomes_a_status_and_a_message() {
        let mut error = bn_error::from_result(&Ok(()));
        // SAFETY: a whole bn_error.
        let status = unsafe { guard(&raw mut error, || panic!("at the {}", "disco")) };
        assert_eq!(status, BN_ERR_INTERNAL);
        // SAFETY: NUL-terminated by `from_result`.
        let message = unsafe { std::ffi::CStr::from_ptr(error.message.as_ptr()) };
        let message = message.to_str().unwrap();
        assert!(
            message.starts_with("bn_engine panicked: ") && message.ends_with("at the disco"),
            "{message}"
        );
        // SAFETY: no error.
        assert_eq!(unsafe { guard_number(std::ptr::null_mut(), || panic!("again")) }, BN_ERR_INTERNAL);
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
        // SAFETY: no error.
        let status = unsafe { guard(std::ptr::null_mut(), || std::panic::panic_any(Mean)) };
        assert_eq!(status, BN_ERR_INTERNAL);
    }

    #[test]
    fn long_messages_lose_their_middle() {
        let error = bn_error::from_result(&Err(Error::invalid(format!("x{}", "ü".repeat(400)))));
        // SAFETY: NUL-terminated.
        let message = unsafe { std::ffi::CStr::from_ptr(error.message.as_ptr()) }.to_str().unwrap();
        assert_eq!(message, format!("x{} ... {}", "ü".repeat(125), "ü".repeat(125)));
    }

    #[test]
    fn arrays_and_texts_are_checked() {
        let none = std::ptr::null::<u32>();
        // SAFETY: nothing is read that is not there.
        unsafe {
            assert!(slice("x", none, 0).unwrap().is_empty());
            assert_eq!(slice("x", none, 1).unwrap_err().message, "x is NULL, with 1 elements");
            assert!(slice("x", none.wrapping_byte_add(1), 1).is_err());
            assert!(slice("x", none.wrapping_add(4), usize::MAX).is_err());
            for length in [3, BN_NUL_TERMINATED] {
                let error = text("x", bn_string { data: c"ab\xff".as_ptr(), length }).unwrap_err();
                assert_eq!(
                    (error.status, error.message.as_str()),
                    (Status::InvalidArgument, "x is not UTF-8 at byte 2")
                );
            }
            let set = bn_string { data: c"ab".as_ptr(), length: BN_NUL_TERMINATED };
            assert_eq!(optional_text("x", set).unwrap(), Some("ab"));
            assert_eq!(optional_text("x", bn_string { length: 0, ..set }).unwrap(), Some(""));
            assert_eq!(optional_text("x", bn_string::NONE).unwrap(), None);
            let null = bn_string { length: BN_NUL_TERMINATED, ..bn_string::NONE };
            assert_eq!(optional_text("x", null).unwrap_err().message, "x is NULL");
            assert!(text("x", bn_string { length: 1, ..bn_string::NONE }).is_err());
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
