//! Requests: submit, cancel, free.

use crate::base::{Result, reserve};
use crate::engine::api::{RequestId, RequestParams, Which};
use crate::engine::in_batch;
use crate::ffi::growth;
use crate::ffi::guard::{self, guard, guard_only, slice};
use crate::ffi::registry;
use crate::ffi::request::bn_request_params;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;

/// Fills `*params` with the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_request_params_init(
    params: *mut bn_request_params,
    struct_size: u32,
) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard_only(|| unsafe { growth::init(params, struct_size) })
}

/// Queues a request and writes its id to `*out`. It does not wait for the model; compiling a new
/// `constraint` may take seconds. Events may arrive before it returns. The last is exactly one
/// `BN_EVENT_COMPLETED`, unless the request or the engine is freed before. Free every request;
/// in callback mode its last callback does so.
///
/// @return `BN_ERR_UNSUPPORTED`: the model lacks a tokenizer or chat template for what is asked;
/// `BN_ERR_TOO_LONG`; `BN_ERR_QUEUE_FULL`; `BN_ERR_TIMED_OUT`: the constraint was not compiled
/// within `timeout_ms`, or ten seconds, or others' pictures were read until the request's time
/// was up; `BN_ERR_MEMORY_LIMIT`; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_submit(
    engine: *mut bn_engine,
    params: *const bn_request_params,
    out: *mut bn_request,
    error: *mut bn_error,
) -> bn_status {
    // SAFETY: the caller's promise: one pointer to parameters, one id of room.
    unsafe { bn_submit_batch(engine, &raw const params, 1, out, error) }
}

/// Queues 1 to `queue_capacity` requests, all or none, and writes their ids to `out`. An error
/// names the request by its index.
///
/// @return as `bn_submit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_submit_batch(
    engine: *mut bn_engine,
    params: *const *const bn_request_params,
    params_count: usize,
    out: *mut bn_request,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        // SAFETY: the caller's promise: so many pointers to parameters.
        let from = unsafe { slice("params", params, params_count) }?;
        guard::out("out", out)?;
        let ids = registry::with(engine, |engine| {
            // SAFETY: the caller's promise.
            let requests = unsafe { take(from) };
            engine.submit(requests.inspect_err(|error| engine.refused(error.status, from.len()))?)
        })?;
        for (at, RequestId(id)) in ids.into_iter().enumerate() {
            // SAFETY: one id for each request, for which the caller has room.
            unsafe { out.add(at).write(id) };
        }
        Ok(())
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// # Safety
/// Each of `from` is NULL or points to parameters as the header describes them.
unsafe fn take<'a>(from: &[*const bn_request_params]) -> Result<Vec<RequestParams<'a>>> {
    let mut requests = Vec::new();
    reserve(&mut requests, from.len(), "a batch")?;
    for (at, &params) in from.iter().enumerate() {
        // SAFETY: the caller's promise.
        let request = unsafe { bn_request_params::take(params, 0) };
        requests.push(request.map_err(|error| in_batch(error, at, from.len()))?);
    }
    Ok(requests)
}

pub(super) fn one_or_any(which: bn_request) -> Which {
    if which == BN_ANY { Which::Any } else { Which::One(RequestId(which)) }
}

/// Asks the engine to end `which`, and returns at once. A running request ends with the current
/// forward pass, or within it if it is alone there. Its last event says what happened. A finished
/// request is left alone.
///
/// @return `BN_ERR_NOT_FOUND`; `BN_ERR_ENGINE_DEAD`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_cancel(
    engine: *mut bn_engine,
    which: bn_request,
    error: *mut bn_error,
) -> bn_status {
    let body = || registry::with(engine, |engine| engine.cancel(one_or_any(which)));
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Frees a request: its id becomes invalid, and its events are freed, polled ones too; no poll
/// returns any of it afterwards. Polled events may be freed before or go with it, once nobody
/// reads them. A live request is cancelled, and counts against `queue_capacity` for at most a
/// step more. A callback of it may still run: only `bn_engine_free` waits for that.
///
/// @return `BN_ERR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_request_free(
    engine: *mut bn_engine,
    request: bn_request,
    error: *mut bn_error,
) -> bn_status {
    let body = || registry::with(engine, |engine| engine.release(RequestId(request)));
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}
