//! Requests: submit, poll, cancel, release, and all of it in one blocking call.

use crate::base::{Error, Result, Status};
use crate::engine::Engine;
use crate::engine::api::{Embedding, Event, FinishReason, RequestId, RequestParams, Which};
use crate::ffi::event::{Completion, bn_completion, bn_event};
use crate::ffi::growth;
use crate::ffi::guard::{copy_out, guard, guard_saying, out, say, slice};
use crate::ffi::registry::{self, Call};
use crate::ffi::request::{BN_REQUEST_EMBED, bn_request_params};
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;
use std::time::Duration;

/// Fills `*params` with the defaults. `struct_size` is `sizeof(bn_request_params)`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: `params` is NULL, `struct_size` is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_request_params_init(
    params: *mut bn_request_params,
    struct_size: u32,
) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard(|| unsafe { growth::init(params, struct_size) })
}

/// Queues a request and writes its id to `*out`. It never waits for the engine. The request's events may
/// arrive, on other threads, before this returns. Exactly one `BN_EVENT_COMPLETED` follows, as its last
/// event, unless it is released first or the engine destroyed; the id stays good until `bn_release` (in callback mode: until the terminal callback returns).
/// `params->error`, where set, says in words why a request is refused.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: NULL, not an engine, a parameter out of range, a text
/// that is not UTF-8, a token id outside the vocabulary; `BN_ERR_UNSUPPORTED`: an unknown flag or field,
/// text for a model without tokenizer; `BN_ERR_TOO_LONG`: the prompt leaves no room for a new token;
/// `BN_ERR_QUEUE_FULL`; `BN_ERR_MEMORY_LIMIT`; `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_SHUTDOWN`;
/// `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_submit(
    engine: *mut bn_engine,
    params: *const bn_request_params,
    out: *mut bn_request,
) -> bn_status {
    // SAFETY: the caller's promise: one pointer to parameters, one id of room.
    guard(|| unsafe { submit(engine, &[params], out) })
}

/// Queues `n` requests, all or none, and writes their ids to `out[0]` to `out[n - 1]`. Otherwise as
/// `bn_submit`; on a refusal the `error` of every one of them says the same, naming the culprit by its index.
/// `n` is at least 1.
///
/// [any thread]
/// @return as `bn_submit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_submit_batch(
    engine: *mut bn_engine,
    params: *const *const bn_request_params,
    n: usize,
    out: *mut bn_request,
) -> bn_status {
    guard(|| {
        if n == 0 {
            return Err(Error::invalid("n is 0: a batch has at least one request"));
        }
        // SAFETY: the caller's promise: `n` pointers to parameters, room for `n` ids.
        unsafe { submit(engine, slice("params", params, n)?, out) }
    })
}

/// # Safety
/// Each of `from` is NULL or points to parameters; `to` is NULL or has room for as many ids.
unsafe fn submit(
    engine: *mut bn_engine,
    from: &[*const bn_request_params],
    to: *mut bn_request,
) -> Result<()> {
    let mut tell = Vec::new();
    tell.try_reserve_exact(from.len()).map_err(|_| Error::out_of_memory("a batch", from.len()))?;
    let result = registry::with(engine, Call::Any, |engine| {
        out("out", to)?;
        engine.room_for(from.len()).inspect_err(|error| engine.refused(error.status, from.len()))?;
        // SAFETY: the caller's promise.
        let requests = unsafe { take(engine, from, &mut tell) };
        engine.submit(requests.inspect_err(|error| engine.refused(error.status, from.len()))?)
    });
    let (ids, result) = match result {
        Ok(ids) => (ids, Ok(())),
        Err(error) => (Vec::new(), Err(error)),
    };
    for error in tell {
        // SAFETY: the caller's promise for each `error`.
        unsafe { say(error, &result) };
    }
    for (at, RequestId(id)) in ids.into_iter().enumerate() {
        // SAFETY: one id for each request, for which the caller has room.
        unsafe { to.add(at).write(id) };
    }
    result
}

/// # Safety
/// Each of `from` is NULL or points to parameters.
unsafe fn take(
    engine: &Engine,
    from: &[*const bn_request_params],
    tell: &mut Vec<*mut bn_error>,
) -> Result<Vec<RequestParams>> {
    let mut requests = Vec::new();
    requests.try_reserve_exact(from.len()).map_err(|_| Error::out_of_memory("a batch", from.len()))?;
    for (at, &params) in from.iter().enumerate() {
        // SAFETY: the caller's promise.
        let (request, error) = unsafe { bn_request_params::take(engine, params, 0) };
        tell.push(error);
        requests.push(request.map_err(|error| match from.len() {
            1 => error,
            _ => Error::new(error.status, format!("request {at}: {error}")),
        })?);
    }
    Ok(requests)
}

/// Writes up to `capacity` waiting events to `events` and their number to `*count`, waiting up to
/// `timeout_ms` milliseconds for the first: 0 does not wait, `BN_WAIT_FOREVER` waits for good. `which` is a
/// request, or `BN_ANY`. Nothing in time is `BN_OK` with a count of 0, and so at once, whatever
/// `timeout_ms` is, is a request whose terminal event was taken: stop polling it at `BN_EVENT_COMPLETED`. Each event goes to one caller; events
/// of one request come in order. What the events point to: see `bn_event`. Where several threads poll `BN_ANY`,
/// another's poll may return a later event of a request and so end the life of the one being read: use
/// `BN_REQUEST_NO_STREAM` or `BN_REQUEST_POLL_BY_ID` there, or a lock of your own from poll to last use.
///
/// [not from a callback]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: NULL, not an engine, `capacity` 0, `timeout_ms` under -1;
/// `BN_ERR_NOT_FOUND`: no such request, also when it is released while this waits; `BN_ERR_BUSY`: another
/// thread is polling this request; `BN_ERR_WRONG_MODE`: the engine is in callback mode;
/// `BN_ERR_REENTRANT`; `BN_ERR_SHUTDOWN`: to `BN_ANY`, shut down, and no event for it is left or
/// to come (those of `BN_REQUEST_POLL_BY_ID` may still wait under their ids); or destroyed while
/// this waits; `BN_ERR_ENGINE_DEAD`: likewise after the engine died; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_poll(
    engine: *mut bn_engine,
    which: bn_request,
    events: *mut bn_event,
    capacity: usize,
    timeout_ms: i32,
    count: *mut usize,
) -> bn_status {
    guard(|| {
        out("events", events)?;
        out("count", count)?;
        if capacity == 0 {
            return Err(Error::invalid("capacity is 0: there is room for no event"));
        }
        let timeout = match timeout_ms {
            BN_WAIT_FOREVER => None,
            0.. => Some(Duration::from_millis(timeout_ms as u64)),
            _ => {
                return Err(Error::invalid(format!(
                    "timeout_ms is {timeout_ms}; it goes from -1 (no limit) up"
                )));
            }
        };
        let mut put = |at: usize, event: &Event| {
            // SAFETY: `at < capacity`, for which the caller has room; and the engine keeps `event` in
            // place as long as the header says.
            unsafe { events.add(at).write(bn_event::new(event)) }
        };
        let polled = registry::with(engine, Call::BlockingEvenDead, |engine| {
            engine.poll(one_or_any(which), capacity, timeout, &mut put)
        })?;
        // SAFETY: checked above.
        unsafe { count.write(polled) };
        Ok(())
    })
}

fn one_or_any(which: bn_request) -> Which {
    if which == BN_ANY { Which::Any } else { Which::One(RequestId(which)) }
}

/// Asks for the end of a request, or with `BN_ANY` of all, and returns at once. It ends after the forward pass that runs, and its
/// terminal event tells
/// what happened: `BN_FINISH_CANCELLED`, or another reason where that came first. Cancelling a finished
/// request does nothing.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_NOT_FOUND`: no such request; `BN_ERR_INVALID_ARGUMENT`: not an engine;
/// `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_cancel(engine: *mut bn_engine, which: bn_request) -> bn_status {
    guard(|| registry::with(engine, Call::Any, |engine| engine.cancel(one_or_any(which))))
}

/// Retires a request's id and frees what its events pointed to. A live request is cancelled and its
/// remaining events are discarded; its place under `queue_capacity` is free when the engine has let go of
/// it, a step later. In callback mode release happens by itself after the terminal callback; where it is called
/// on another thread, a callback of the request that is under way or about to begin may still run: only
/// destroy waits for it.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_NOT_FOUND`: no such request, or released before;
/// `BN_ERR_INVALID_ARGUMENT`: not an engine; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_release(engine: *mut bn_engine, request: bn_request) -> bn_status {
    guard(|| registry::with(engine, Call::AnyEvenDead, |engine| engine.release(RequestId(request))))
}

/// Runs one request beside all others, waits for its end and writes it to `*out`, for the caller to free
/// with `bn_completion_free`. Works in both delivery modes and gives no other event of it;
/// `BN_REQUEST_NO_STREAM` and `BN_REQUEST_POLL_BY_ID` change nothing here. A request that was cancelled or
/// timed out is `BN_OK` with that finish reason and what it had; one that failed is an error. `error` (may
/// be NULL) says in words what was wrong.
///
/// [not from a callback]
/// @return as `bn_submit`; `BN_ERR_REENTRANT`; or the status of a request that failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_generate(
    engine: *mut bn_engine,
    params: *const bn_request_params,
    out: *mut *mut bn_completion,
    error: *mut bn_error,
) -> bn_status {
    let mut tell = std::ptr::null_mut();
    let body = || {
        let result = registry::with(engine, Call::Blocking, |engine| {
            crate::ffi::guard::out("out", out)?;
            // SAFETY: the caller's promise.
            let (request, error) = unsafe { bn_request_params::take(engine, params, 0) };
            tell = error;
            let request = request.inspect_err(|error| engine.refused(error.status, 1))?;
            let request = RequestParams { stream: false, poll_by_id: false, ..request };
            finished(engine.generate(request)?)
        });
        let (event, result) = match result {
            Ok(event) => (Some(event), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // SAFETY: the caller's promise for `params->error`.
        unsafe { say(tell, &result) };
        if let Some(event) = event {
            // SAFETY: checked above.
            unsafe { out.write(Completion::hand_out(event)) };
        }
        result
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard_saying(error, body) }
}

fn finished(event: Event) -> Result<Event> {
    match event.finish {
        FinishReason::Failed if event.status == Status::Ok => {
            Err(Error::internal("a request failed without a status"))
        }
        FinishReason::Failed => Err(Error::new(event.status, event.message)),
        _ => Ok(event),
    }
}

/// Runs one request for an embedding beside all others, waits for its vector and writes it to `values`, which has
/// room for `capacity` floats, and their number, `bn_model_facts.embedding_size`, to `*count`. As `bn_generate` of
/// `params` with `BN_REQUEST_EMBED`, which is implied, but that a request that was cancelled or timed out is an
/// error. `values` may be NULL where `capacity` is 0, to ask for the number: `BN_ERR_BUFFER_TOO_SMALL` is then the
/// answer, no failure; `params` is not looked at and nothing runs. `error` (may be NULL) says in words what was wrong.
///
/// [not from a callback]
/// @return as `bn_submit`; `BN_ERR_BUFFER_TOO_SMALL`: nothing but `*count` was written, and nothing ran;
/// `BN_ERR_UNSUPPORTED`: also where the model makes no embeddings; `BN_ERR_CANCELLED`; `BN_ERR_TIMED_OUT`;
/// `BN_ERR_REENTRANT`; or the status of a request that failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_embed(
    engine: *mut bn_engine,
    params: *const bn_request_params,
    values: *mut f32,
    capacity: usize,
    count: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let mut tell = std::ptr::null_mut();
    let body = || {
        let result = registry::with(engine, Call::Blocking, |engine| {
            out("count", count)?;
            let width = engine.embedding_size()?;
            if capacity < width {
                // SAFETY: checked above.
                unsafe { count.write(width) };
                return Err(Error::new(
                    Status::BufferTooSmall,
                    format!("values needs room for {width}, has {capacity}"),
                ));
            }
            out("values", values)?;
            // SAFETY: the caller's promise.
            let (request, error) = unsafe { bn_request_params::take(engine, params, BN_REQUEST_EMBED) };
            tell = error;
            let request = request.inspect_err(|error| engine.refused(error.status, 1))?;
            embedded(engine.generate(RequestParams { poll_by_id: false, ..request })?)
        });
        let (embedding, result) = match result {
            Ok(embedding) => (Some(embedding), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // SAFETY: the caller's promise for `params->error`.
        unsafe { say(tell, &result) };
        if let Some(embedding) = embedding {
            // SAFETY: `count` was checked, and `values` is the caller's promise.
            unsafe { copy_out("values", embedding.values(), values, capacity, count) }?;
        }
        result
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard_saying(error, body) }
}

fn embedded(event: Event) -> Result<Box<Embedding>> {
    match event.embedding {
        Some(embedding) => Ok(embedding),
        None if event.status == Status::Ok => Err(Error::internal("an embedding ended without its vector")),
        None => Err(Error::new(event.status, event.message)),
    }
}

/// Frees what `bn_generate` returned. NULL is fine.
///
/// [any thread]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_completion_free(completion: *mut bn_completion) {
    guard(|| {
        // SAFETY: the caller's promise: from `bn_generate`, and once.
        unsafe { Completion::free(completion) };
        Ok(())
    });
}
