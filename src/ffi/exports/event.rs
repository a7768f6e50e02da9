//! Events: poll, free, and a whole request in one blocking call.

use super::request::one_or_any;
use crate::base::{Error, Result, Status};
use crate::engine::Engine;
use crate::engine::api::{Event, FinishReason, RequestId};
use crate::ffi::event::{bn_event, finish_name};
use crate::ffi::growth::Array;
use crate::ffi::guard::{guard, guard_only, guard_out};
use crate::ffi::registry;
use crate::ffi::request::{BN_TASK_GENERATE, bn_request_params};
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;
use std::ffi::c_char;
use std::time::Duration;

/// Writes up to `capacity` (1 or more) events of `which`, a request or `BN_ANY`, to `events`.
/// Waits up to `timeout_ms` milliseconds for the first, with `BN_NO_LIMIT` as long as it takes; a
/// count of 0 means that none came. A signal does not end the wait.
///
/// An event goes to one caller: at most one of a request in a call, and those of a request in
/// order. Free them with `bn_events_free`, or with their request.
///
/// [not from a callback]
/// @return `BN_ERR_FINISHED`; `BN_ERR_SHUTDOWN`, `BN_ERR_ENGINE_DEAD`: no event for `BN_ANY` is
/// left; `BN_ERR_NOT_FOUND`: also if the request is freed meanwhile; `BN_ERR_BUSY`;
/// `BN_ERR_MEMORY_LIMIT`: too many events are not freed; `BN_ERR_WRONG_MODE`: callback mode.
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
        let timeout = (timeout_ms != BN_NO_LIMIT).then(|| Duration::from_millis(timeout_ms.into()));
        let mut at = 0;
        let mut put = |lease: u64, event: &Event| {
            // SAFETY: `at < capacity`, for which the caller has room; and the engine keeps `event` in
            // place as long as the header says.
            unsafe { to.write(at, bn_event::new(event, engine, lease)) };
            at += 1;
        };
        registry::blocking(engine, |engine| engine.poll(one_or_any(which), capacity, timeout, &mut put))
    };
    // SAFETY: the caller's promise for `error` and `count`.
    unsafe { guard_out(error, "count", count, body) }
}

/// Frees events of any engine, from `bn_poll` and `bn_generate`, with what they point to. One
/// that was freed before, by itself or with its request or engine, is skipped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_events_free(
    events: *const bn_event,
    event_size: usize,
    events_count: usize,
) -> bn_status {
    let body = || {
        let from = Array::new(events.cast_mut(), event_size, events_count)?;
        let name = |at| {
            let event: *const bn_event = from.at(at);
            // SAFETY: the caller's promise; the smallest event has these fields.
            unsafe {
                (
                    (&raw const (*event).engine).read_unaligned(),
                    RequestId((&raw const (*event).request).read_unaligned()),
                    (&raw const (*event).lease).read_unaligned(),
                )
            }
        };
        let mut at = 0;
        while at < events_count {
            let (engine, _, lease) = name(at);
            let end = (at..events_count).find(|&at| name(at).0 != engine).unwrap_or(events_count);
            match engine.is_null() {
                true => registry::free_event(lease),
                false => registry::give_back(
                    engine,
                    &mut (at..end).map(|at| {
                        let (_, request, lease) = name(at);
                        (request, lease)
                    }),
                )?,
            }
            at = if engine.is_null() { at + 1 } else { end };
        }
        Ok(())
    };
    guard_only(body)
}

/// Submits one request, waits for its end and writes its only event, with the whole text and all
/// tokens, to `*out`. `bn_events_free` frees it, also after the engine; the request is freed
/// already. Works in both delivery modes; `BN_REQUEST_NO_STREAM` and `BN_REQUEST_POLL_BY_ID` make
/// no difference.
///
/// A request that was cancelled or timed out is a success, with what it had. Only a timeout,
/// `bn_cancel` of `BN_ANY`, `BN_SHUTDOWN_CANCEL` and `bn_engine_free` end it early.
///
/// [not from a callback]
/// @return as `bn_submit`; or the status of a request that failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_generate(
    engine: *mut bn_engine,
    params: *const bn_request_params,
    out: *mut bn_event,
    event_size: usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        let to = Array::new(out, event_size, 1)?;
        registry::blocking(engine, |engine| {
            // SAFETY: the caller's promise.
            let event = finished(unsafe { generate(engine, params, BN_TASK_GENERATE) }?)?;
            let view = |event: &Event, lease| bn_event::new(event, std::ptr::null_mut(), lease);
            // SAFETY: the caller's promise: room for one event.
            registry::insert_event(*event, view).map(|view| unsafe { to.write(0, view) })
        })
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// # Safety
/// `params` is NULL or points to parameters as the header describes them.
pub(super) unsafe fn generate(
    engine: &Engine,
    params: *const bn_request_params,
    task: u32,
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

/// A finish reason in a word, like `stop`, or `unknown`.
#[unsafe(no_mangle)]
pub extern "C" fn bn_finish_reason_name(reason: u32) -> *const c_char {
    finish_name(reason).as_ptr()
}
