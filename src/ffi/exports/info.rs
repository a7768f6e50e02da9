//! Names and versions. Nothing here can fail.

use crate::engine::api::{LATENCY_BOUNDS_NS, LENGTH_BOUNDS};
use crate::ffi::event::finish_name;
use crate::ffi::growth;
use crate::ffi::guard::guard_only;
use crate::ffi::status::{self, bn_error, bn_status};
use crate::ffi::types::BN_ABI_VERSION;
use std::ffi::{CStr, c_char};

/// Prepares `*error`. `struct_size` is `sizeof(bn_error)`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_error_init(error: *mut bn_error, struct_size: u32) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard_only(|| unsafe { growth::init(error, struct_size) })
}

/// The name of a status, like `BN_ERR_QUEUE_FULL`, or `BN_ERR_UNKNOWN`. A static NUL-terminated
/// string.
///
/// [any thread]
#[unsafe(no_mangle)]
pub extern "C" fn bn_status_name(status: bn_status) -> *const c_char {
    status::name(status).as_ptr()
}

/// What a status means, in English. A static NUL-terminated string.
///
/// [any thread]
#[unsafe(no_mangle)]
pub extern "C" fn bn_status_message(status: bn_status) -> *const c_char {
    status::sentence(status).as_ptr()
}

/// A finish reason in a word, like `stop`, or `unknown`. A static NUL-terminated string.
///
/// [any thread]
#[unsafe(no_mangle)]
pub extern "C" fn bn_finish_reason_name(reason: i32) -> *const c_char {
    finish_name(reason).as_ptr()
}

/// The upper bound of a bucket of `bn_latency`, inclusive, in nanoseconds; `UINT64_MAX` for the last
/// and for those that do not exist.
///
/// [any thread]
#[unsafe(no_mangle)]
pub extern "C" fn bn_latency_bound_ns(bucket: u32) -> u64 {
    LATENCY_BOUNDS_NS.get(bucket as usize).copied().unwrap_or(u64::MAX)
}

/// The upper bound of a bucket of `bn_lengths`, inclusive, in tokens; `UINT64_MAX` for the last and
/// for those that do not exist.
///
/// [any thread]
#[unsafe(no_mangle)]
pub extern "C" fn bn_length_bound(bucket: u32) -> u64 {
    LENGTH_BOUNDS.get(bucket as usize).copied().unwrap_or(u64::MAX)
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// The version of the linked library, like `0.1.0`. A static NUL-terminated string.
///
/// [any thread]
#[unsafe(no_mangle)]
pub extern "C" fn bn_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The `BN_ABI_VERSION` of the linked library.
///
/// [any thread]
#[unsafe(no_mangle)]
pub extern "C" fn bn_abi_version() -> u32 {
    BN_ABI_VERSION
}
