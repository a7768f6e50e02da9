//! Requests: submit, poll, cancel, release, and all of it in one blocking call.

use crate::base::{Error, Result, Status, reserve};
use crate::engine::api::{Event, FinishReason, RequestId, RequestParams, Which};
use crate::engine::{Engine, in_batch};
use crate::ffi::event::{Completion, bn_event};
use crate::ffi::growth::{self, Array};
use crate::ffi::guard::{self, guard, guard_only, guard_out, slice};
use crate::ffi::registry;
use crate::ffi::request::{BN_TASK_GENERATE, bn_request_params};
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;
use std::time::Duration;

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
/// `BN_EVENT_COMPLETED`, unless the request is released or the engine destroyed before. Release
/// every request; in callback mode its last callback does so.
///
/// @return `BN_ERR_UNSUPPORTED`: the model lacks a tokenizer or chat template for what is asked;
/// `BN_ERR_TOO_LONG`; `BN_ERR_QUEUE_FULL`; `BN_ERR_TIMED_OUT`: the constraint was not compiled
/// within `timeout_ms`, or ten seconds; `BN_ERR_MEMORY_LIMIT`; `BN_ERR_SHUTDOWN`;
/// `BN_ERR_ENGINE_DEAD`.
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

/// Writes up to `capacity` (1 or more) events of `which`, a request or `BN_ANY`, to `events`. Waits
/// up to `timeout_ms` milliseconds for the first; a count of 0 means that none came. A signal does
/// not end the wait.
///
/// An event goes to one caller: at most one of a request in a call, and those of a request in
/// order. Give them back with `bn_events_free`; release a request only after all its events were
/// given back.
///
/// [not from a callback]
/// @return `BN_ERR_FINISHED`; `BN_ERR_SHUTDOWN`, `BN_ERR_ENGINE_DEAD`: no event for `BN_ANY` is
/// left; `BN_ERR_NOT_FOUND`: also if the request is released meanwhile; `BN_ERR_BUSY`;
/// `BN_ERR_MEMORY_LIMIT`: too many events are not given back; `BN_ERR_WRONG_MODE`: callback mode.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_poll(
    engine: *mut bn_engine,
    which: bn_request,
    events: *mut bn_event,
    event_size: usize,
    capacity: usize,
    timeout_ms: u32,
    count: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        let to = Array::new(events, event_size, capacity)?;
        let timeout = (timeout_ms != BN_FOREVER).then(|| Duration::from_millis(timeout_ms.into()));
        let mut at = 0;
        let mut put = |lease: u64, event: &Event| {
            // SAFETY: `at < capacity`, for which the caller has room; and the engine keeps `event` in
            // place as long as the header says.
            unsafe { to.write(at, bn_event::new(event, lease)) };
            at += 1;
        };
        registry::blocking(engine, |engine| engine.poll(one_or_any(which), capacity, timeout, &mut put))
    };
    // SAFETY: the caller's promise for `error` and `count`.
    unsafe { guard_out(error, "count", count, body) }
}

fn one_or_any(which: bn_request) -> Which {
    if which == BN_ANY { Which::Any } else { Which::One(RequestId(which)) }
}

/// Gives back events of any polls, and frees what they point to. One that was given back before, or
/// whose request was released, is skipped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_events_free(
    engine: *mut bn_engine,
    events: *const bn_event,
    event_size: usize,
    events_count: usize,
) -> bn_status {
    let body = || {
        let from = Array::new(events.cast_mut(), event_size, events_count)?;
        let mut leases = (0..events_count).map(|at| {
            let event = from.at(at);
            // SAFETY: the caller's promise; both fields are of the first version.
            unsafe {
                (
                    RequestId((&raw const (*event).request).read_unaligned()),
                    (&raw const (*event).lease).read_unaligned(),
                )
            }
        });
        registry::with(engine, |engine| {
            engine.give_back(&mut leases);
            Ok(())
        })
    };
    guard_only(body)
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

/// Releases a request: its id becomes invalid, and its events, polled ones too, are freed. A live
/// one is cancelled, and counts against `queue_capacity` for at most a step more. A callback of it
/// may still run: only `bn_engine_destroy` waits for that.
///
/// @return `BN_ERR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_release(
    engine: *mut bn_engine,
    request: bn_request,
    error: *mut bn_error,
) -> bn_status {
    let body = || registry::with(engine, |engine| engine.release(RequestId(request)));
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Submits one request, waits for its end and writes its only event, with the whole text and all
/// tokens, to `*out`. Free it with `bn_completion_free`, also after the engine; there is nothing to
/// release. Works in both delivery modes; `BN_REQUEST_NO_STREAM` and `BN_REQUEST_POLL_BY_ID` make
/// no difference.
///
/// A request that was cancelled or timed out is a success, with what it had. Only a timeout,
/// `bn_cancel` of `BN_ANY`, `BN_SHUTDOWN_CANCEL` and `bn_engine_destroy` end it early.
///
/// [not from a callback]
/// @return as `bn_submit`; or the status of a request that failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_generate(
    engine: *mut bn_engine,
    params: *const bn_request_params,
    out: *mut *mut bn_event,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        registry::blocking(engine, |engine| {
            // SAFETY: the caller's promise.
            finished(unsafe { generate(engine, params, BN_TASK_GENERATE) }?).map(Completion::hand_out)
        })
    };
    // SAFETY: the caller's promise for `error` and `out`.
    unsafe { guard_out(error, "out", out, body) }
}

/// # Safety
/// `params` is NULL or points to parameters as the header describes them.
pub(super) unsafe fn generate(
    engine: &Engine,
    params: *const bn_request_params,
    task: i32,
) -> Result<Box<Event>> {
    // SAFETY: the caller's promise.
    let request = unsafe { bn_request_params::take(params, task) };
    engine.generate(request.inspect_err(|error| engine.refused(error.status, 1))?)
}

pub(super) fn finished(event: Box<Event>) -> Result<Box<Event>> {
    match event.finish {
        FinishReason::Failed if event.status == Status::Ok => {
            Err(Error::internal("a request failed without a status"))
        }
        FinishReason::Failed => Err(Error::new(event.status, event.message)),
        _ => Ok(event),
    }
}

/// Frees what `bn_generate` returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_completion_free(completion: *mut bn_event) {
    guard_only(|| {
        // SAFETY: the caller's promise.
        unsafe { Completion::free(completion) };
        Ok(())
    });
}
