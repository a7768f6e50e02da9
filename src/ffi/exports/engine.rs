//! An engine's life and what it tells of itself.

use crate::engine::Engine;
use crate::engine::api::ShutdownMode;
use crate::engine::hub::Phase;
use crate::ffi::config::{bn_engine_config, choice};
use crate::ffi::constraint::constraint;
use crate::ffi::guard::{copy_out, guard, guard_number, guard_only, guard_out, out};
use crate::ffi::registry;
use crate::ffi::stats::bn_stats;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::string::bn_string;
use crate::ffi::types::*;
use crate::ffi::{growth, metrics, report};
use std::ffi::c_char;

/// Fills `*config` with the defaults. `struct_size` is `sizeof(bn_engine_config)`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_config_init(config: *mut bn_engine_config, struct_size: u32) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard_only(|| unsafe { growth::init(config, struct_size) })
}

/// Makes an engine and writes it to `*out`: loads the model, if `config` has none that is open,
/// and starts the engine's threads (named `bn-*`, with all signals blocked). A process may have
/// several engines.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: a field is out of range; `BN_ERR_UNSUPPORTED`: the
/// machine lacks `instructions`, or a field of a newer header is set; `BN_ERR_MEMORY_LIMIT`: the
/// limit, or the memory that is free, is too small for the model and one sequence;
/// `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_INTERNAL`; and as `bn_model_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_create(
    config: *const bn_engine_config,
    out: *mut *mut bn_engine,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        registry::begin()?;
        // SAFETY: the caller's promise, as the header states it.
        let config = unsafe { growth::read(config)?.to_engine() }?;
        registry::insert_engine(Engine::create(config)?)
    };
    // SAFETY: the caller's promise for `error` and `out`.
    unsafe { guard_out(error, "out", out, body) }
}

/// Stops the acceptance of requests and returns at once. `mode` is `BN_SHUTDOWN_DRAIN` or
/// `BN_SHUTDOWN_CANCEL`. It may be called again; a cancel may follow a drain. Every accepted
/// request still gets its last event. When the last event has been polled, `bn_poll` of `BN_ANY`
/// returns `BN_ERR_SHUTDOWN`. A drain waits for requests that are paused until their output is
/// polled. In callback mode wait for `BN_STATE_DRAINED` and then destroy the
/// engine, which makes the callbacks that are still due.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_ENGINE_DEAD`; `BN_ERR_FORKED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_shutdown(
    engine: *mut bn_engine,
    mode: i32,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        let modes = [(BN_SHUTDOWN_DRAIN, ShutdownMode::Drain), (BN_SHUTDOWN_CANCEL, ShutdownMode::Cancel)];
        let mode = choice("mode", mode, "BN_SHUTDOWN", &modes)?;
        registry::with(engine, |engine| engine.shutdown(mode))
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Compiles a constraint as `bn_submit` does, and keeps it compiled for requests that follow.
/// `kind` and `text` are as `bn_request_params.constraint_kind` and `constraint`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: the constraint is wrong or too complex, the message
/// says why; `BN_ERR_UNSUPPORTED`: the model has no tokenizer or no end token;
/// `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_check_constraint(
    engine: *mut bn_engine,
    kind: i32,
    text: bn_string,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        // SAFETY: the caller's promise.
        let constraint = unsafe { constraint(kind, text) }?;
        registry::with(engine, |engine| constraint.iter().try_for_each(|one| engine.check_constraint(one)))
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Destroys an engine: cancels every request, joins every thread, closes every descriptor and
/// frees everything, events included. NULL is ignored.
///
/// A `bn_poll` that blocks in another thread returns `BN_ERR_SHUTDOWN`; a blocked `bn_generate`
/// returns what it has, as `BN_FINISH_CANCELLED`; a blocked `bn_embed` returns
/// `BN_ERR_CANCELLED`. In poll mode unread events are lost. In callback mode every unreleased
/// request gets its last callback first, and none follows. In a forked child nothing happens.
///
/// [not from a callback]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: not a live engine; `BN_ERR_REENTRANT`: nothing
/// happened; `BN_ERR_FORKED`: nothing happened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_destroy(engine: *mut bn_engine) -> bn_status {
    guard_only(|| if engine.is_null() { Ok(()) } else { registry::destroy(engine) })
}

/// Writes a handle of the engine's model to `*out`, to be freed with `bn_model_free`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_FORKED`; `BN_ERR_OUT_OF_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_model(
    engine: *mut bn_engine,
    out: *mut *mut bn_model,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        let model = registry::with(engine, |engine| Ok(engine.loaded().clone()))?;
        registry::insert_model(model)
    };
    // SAFETY: the caller's promise for `error` and `out`.
    unsafe { guard_out(error, "out", out, body) }
}

/// The state of an engine.
///
/// [any thread]
/// @return `BN_STATE_*`, which are 0 or more; or `BN_ERR_INVALID_ARGUMENT`: not a live engine;
/// `BN_ERR_FORKED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_state(engine: *const bn_engine) -> i32 {
    let body = || {
        registry::with(engine, |engine| {
            Ok(match engine.phase() {
                Phase::Open => BN_STATE_RUNNING,
                Phase::Closing => BN_STATE_DRAINING,
                Phase::Drained | Phase::Destroyed => BN_STATE_DRAINED,
                Phase::Dead => BN_STATE_DEAD,
            })
        })
    };
    // SAFETY: no error.
    unsafe { guard_number(std::ptr::null_mut(), body) }
}

/// A file descriptor for epoll, kqueue, poll or select. It is readable while an event for
/// `BN_ANY` waits, and for good once the engine is drained or dead: leave the loop when `bn_poll`
/// returns `BN_ERR_SHUTDOWN` or `BN_ERR_ENGINE_DEAD`. It belongs to the engine: do not read,
/// write or close it.
///
/// With edge-triggered waiting, call `bn_poll` with a timeout of 0 after each wake-up until it
/// returns fewer events than there was room for. The end wakes such a loop once more: one thread
/// of each epoll instance, which then has to wake the others.
///
/// [any thread]
/// @return the descriptor, which is 0 or more; or `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_WRONG_MODE`:
/// callback mode; `BN_ERR_FORKED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_wait_fd(engine: *const bn_engine, error: *mut bn_error) -> i32 {
    let body = || registry::with(engine, Engine::wait_fd);
    // SAFETY: the caller's promise for `error`.
    unsafe { guard_number(error, body) }
}

/// Prepares `*stats` for `bn_engine_stats`. `struct_size` is `sizeof(bn_stats)`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_stats_init(stats: *mut bn_stats, struct_size: u32) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard_only(|| unsafe { growth::init(stats, struct_size) })
}

/// Writes a snapshot of the engine's counters to `*out`, which `bn_stats_init` has prepared.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_FORKED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_stats(
    engine: *mut bn_engine,
    out: *mut bn_stats,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        registry::with(engine, |engine| {
            // SAFETY: the caller's promise.
            unsafe { growth::write(out, bn_stats::new(&engine.stats())) }
        })
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Writes the statistics as Prometheus text (exposition format 0.0.4) to `text`, which has room
/// for `capacity` bytes, and its length to `*length`. 32768 bytes are enough for this version and
/// a model's name of up to 256. To ask for the length alone, pass NULL and 0: the call returns
/// `BN_ERR_BUFFER_TOO_SMALL`. Metrics have vLLM's names with `bn_` for `vllm:` where they mean the
/// same. `bn_model_info` and `bn_cache_config_info` have what does not change as labels;
/// `bn_engine_state` is 1 for the state that the engine is in.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: only `*length` was written;
/// `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_FORKED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_metrics(
    engine: *mut bn_engine,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let render =
        |engine: &Engine| metrics::text(&engine.stats(), engine.facts(), engine.model_name(), engine.phase());
    // SAFETY: the caller's promises.
    unsafe { page(engine, render, text, capacity, length, error) }
}

/// Writes a report for people on how efficiently the engine runs, as lines of text: the share of
/// time spent in forward passes, the mean batch, rows and their prompt share, tokens per second,
/// an estimate of the speed-up over one request at a time, and what kept requests out of the
/// batch. Its wording may change in any version; programs read `bn_stats`. `text`, `capacity` and
/// `length` are as in `bn_engine_metrics`; 4096 bytes are enough for this version.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: only `*length` was written;
/// `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_FORKED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_report(
    engine: *mut bn_engine,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    // SAFETY: the caller's promises.
    unsafe { page(engine, |engine| report::text(&engine.stats()), text, capacity, length, error) }
}

/// Writes what `render` tells of the engine.
///
/// # Safety
/// `text` has room for `capacity` bytes or is NULL; `length` and `error` are NULL or valid.
unsafe fn page(
    engine: *mut bn_engine,
    render: fn(&Engine) -> String,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        out("length", length)?;
        let page = registry::with(engine, |engine| Ok(render(engine)))?;
        // SAFETY: `length` was checked; `text` is the caller's promise.
        unsafe { copy_out("text", page.as_bytes(), text.cast(), capacity, length) }
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}
