//! Names and versions. Nothing here can fail.

use crate::ffi::status::{self, bn_status};
use crate::ffi::version::BN_ABI_VERSION;
use std::ffi::{CStr, c_char};

/// The name of a status, like `BN_ERR_QUEUE_FULL`, or `BN_ERR_UNKNOWN`.
#[unsafe(no_mangle)]
pub extern "C" fn bn_status_name(status: bn_status) -> *const c_char {
    status::name(status).as_ptr()
}

/// The meaning of a status, in English.
#[unsafe(no_mangle)]
pub extern "C" fn bn_status_message(status: bn_status) -> *const c_char {
    status::sentence(status).as_ptr()
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// The version of the linked library, like `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn bn_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The `BN_ABI_VERSION` of the linked library.
#[unsafe(no_mangle)]
pub extern "C" fn bn_abi_version() -> u32 {
    BN_ABI_VERSION
}
