//! Text, as it crosses the boundary.

use std::ffi::c_char;

/// A `bn_string.length`: `data` ends with a NUL byte, which is not part of the text.
pub const BN_NUL_TERMINATED: usize = usize::MAX;

/// UTF-8 text. What you pass may have the length `BN_NUL_TERMINATED`. What the library returns has
/// no NUL at its end, and its `data` is never NULL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_string {
    /// NULL with a length of 0: not set. `BN_TEXT(NULL)` is an error.
    pub data: *const c_char,
    /// In bytes.
    pub length: usize,
}

impl bn_string {
    pub const NONE: Self = Self { data: std::ptr::null(), length: 0 };

    /// A view of `text`: valid while `text` is.
    pub fn of(text: &str) -> Self {
        let data = if text.is_empty() { c"".as_ptr() } else { text.as_ptr().cast() };
        Self { data, length: text.len() }
    }
}
