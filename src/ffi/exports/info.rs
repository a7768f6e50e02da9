//! Names and versions. Nothing here can fail.

use crate::ffi::event::finish_name;
use crate::ffi::growth;
use crate::ffi::guard::guard;
use crate::ffi::status::{self, bn_error, bn_status};
use crate::ffi::types::BN_ABI_VERSION;
use std::ffi::{CStr, c_char};

/// Empties `*error` and sets its `struct_size`, `sizeof(bn_error)`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: `error` is NULL, `struct_size` is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_error_init(error: *mut bn_error, struct_size: u32) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard(|| unsafe { growth::init(error, struct_size) })
}

/// The constant's name, like `BN_ERR_QUEUE_FULL`; `BN_ERR_UNKNOWN` for a number that this version does not
/// know. NUL-terminated, static, never NULL.
///
/// [any thread]
#[unsafe(no_mangle)]
pub extern "C" fn bn_status_name(status: bn_status) -> *const c_char {
    status::name(status).as_ptr()
}

/// What a status means, as half a sentence in English. NUL-terminated, static, never NULL.
///
/// [any thread]
#[unsafe(no_mangle)]
pub extern "C" fn bn_status_message(status: bn_status) -> *const c_char {
    status::sentence(status).as_ptr()
}

/// A `BN_FINISH_*` in a word, like `stop`; `unknown` for a number that this version does not know.
/// NUL-terminated, static, never NULL.
///
/// [any thread]
#[unsafe(no_mangle)]
pub extern "C" fn bn_finish_reason_name(reason: i32) -> *const c_char {
    finish_name(reason).as_ptr()
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// The version of the linked library, like `0.1.0`. NUL-terminated, static.
///
/// [any thread]
#[unsafe(no_mangle)]
pub extern "C" fn bn_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The `BN_ABI_VERSION` that the linked library was built with.
///
/// [any thread]
#[unsafe(no_mangle)]
pub extern "C" fn bn_abi_version() -> u32 {
    BN_ABI_VERSION
}
