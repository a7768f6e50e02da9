//! The stage of a request.

use crate::engine::api::RequestId;
use crate::ffi::growth;
use crate::ffi::guard::{guard, guard_only};
use crate::ffi::registry;
use crate::ffi::request::bn_request_info;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;

/// Prepares `*info` for `bn_request_get_info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_request_info_init(info: *mut bn_request_info, struct_size: u32) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard_only(|| unsafe { growth::init(info, struct_size) })
}

/// Writes the stage of a request to `*out`. Slow for a queued request, because it looks at all
/// others.
///
/// @return `BN_ERR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_request_get_info(
    engine: *mut bn_engine,
    request: bn_request,
    out: *mut bn_request_info,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        registry::with(engine, |engine| {
            let stage = engine.stage(RequestId(request))?;
            // SAFETY: the caller's promise.
            unsafe { growth::write(out, bn_request_info::of(stage)) }
        })
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}
