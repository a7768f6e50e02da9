//! Texts and buffers, as they cross the boundary.
use crate::error::{Error, ErrorKind, Result};
use crate::sys;
use std::borrow::Cow;
use std::ffi::c_char;
use std::path::Path;
use std::ptr;
use std::slice;

pub(crate) const NONE: sys::bn_string = sys::bn_string { data: ptr::null(), length: 0 };

/// A view of a text that is set, though it may be empty: valid while `text` is.
pub(crate) fn view(text: &str) -> sys::bn_string {
    sys::bn_string { data: text.as_ptr().cast(), length: text.len() }
}

/// Like `view`, for a text that may not be set.
pub(crate) fn optional(text: Option<&str>) -> sys::bn_string {
    text.map_or(NONE, view)
}

/// Refuses an empty path, which would count as not set.
pub(crate) fn check_path(path: Option<&Path>) -> Result<()> {
    match path.is_some_and(|path| path.as_os_str().is_empty()) {
        true => Err(Error::new(ErrorKind::InvalidArgument, "the path is empty")),
        false => Ok(()),
    }
}

/// Like `optional`, for a path. The library refuses one that is not UTF-8.
pub(crate) fn path(path: Option<&Path>) -> sys::bn_string {
    path.map_or(NONE, |path| {
        let bytes = path.as_os_str().as_encoded_bytes();
        sys::bn_string { data: bytes.as_ptr().cast(), length: bytes.len() }
    })
}

pub(crate) fn views(list: &[String]) -> Vec<sys::bn_string> {
    list.iter().map(|text| view(text)).collect()
}

/// A pointer for an array, NULL if it is empty.
pub(crate) fn array<T>(list: &[T]) -> *const T {
    if list.is_empty() { ptr::null() } else { list.as_ptr() }
}

/// An array of the library, which is NULL if there is none.
///
/// # Safety
/// `data` is NULL or points to `count` elements that live for `'a`.
pub(crate) unsafe fn slice<'a, T>(data: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if data.is_null() { &[] } else { unsafe { slice::from_raw_parts(data, count) } }
}

/// A text of the library, which is UTF-8.
///
/// # Safety
/// As [`slice`], for the text's bytes.
pub(crate) unsafe fn text<'a>(text: sys::bn_string) -> Cow<'a, str> {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { slice(text.data.cast(), text.length) })
}

/// Makes a call that writes to a buffer and says how many elements it needs, until there is room. `guess` elements are
/// likely to be enough, so that nothing is computed twice.
pub(crate) fn sized<T: Copy + Default>(
    guess: usize,
    mut call: impl FnMut(*mut T, usize, *mut usize) -> Result<()>,
) -> Result<Vec<T>> {
    let mut list: Vec<T> = vec![T::default(); guess];
    loop {
        let mut count = 0;
        let data = if list.is_empty() { ptr::null_mut() } else { list.as_mut_ptr() };
        match call(data, list.len(), &mut count) {
            Ok(()) => {
                list.truncate(count);
                return Ok(list);
            }
            Err(error) if error.kind() == ErrorKind::BufferTooSmall => list.resize(count, T::default()),
            Err(error) => return Err(error),
        }
    }
}

/// Like `sized`, for a text.
pub(crate) fn sized_text(
    guess: usize,
    mut call: impl FnMut(*mut c_char, usize, *mut usize) -> Result<()>,
) -> Result<String> {
    let bytes = sized::<u8>(guess, |data, capacity, length| call(data.cast(), capacity, length))?;
    String::from_utf8(bytes)
        .map_err(|_| Error::new(ErrorKind::Internal, "the library wrote a text that is not UTF-8"))
}
