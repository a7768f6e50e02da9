//! An engine's life and what it tells of itself.

use crate::base::Error;
use crate::engine::Engine;
use crate::engine::api::ShutdownMode;
use crate::ffi::config::bn_engine_config;
use crate::ffi::facts::bn_model_facts;
use crate::ffi::guard::{copy_out, guard, guard_or, guard_saying, out};
use crate::ffi::registry::{self, Call};
use crate::ffi::stats::bn_stats;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;
use crate::ffi::{growth, metrics};
use std::ffi::c_char;

/// Fills `*config` with the defaults. `struct_size` is `sizeof(bn_engine_config)`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: `config` is NULL, `struct_size` is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_config_init(config: *mut bn_engine_config, struct_size: u32) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard(|| unsafe { growth::init(config, struct_size) })
}

/// Loads a model, starts the engine's threads (named `bn-*`, with all signals blocked) and writes the
/// engine to `*out`. Takes as long as loading does; `progress` and `log` tell how it goes. `error` (may be
/// NULL) says in words what was wrong.
///
/// Several engines may live in a process. Allocations that grow with input are checked, and refused with
/// an error when memory is out; the small ones of the Rust runtime and its packages can still end the
/// process then.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: NULL, or a field out of the range that the message names;
/// `BN_ERR_UNSUPPORTED`: a field of a newer header is set, or the model needs something that this version
/// lacks, or `instructions` names what this machine lacks; `BN_ERR_IO`: the file cannot be opened;
/// `BN_ERR_BAD_MODEL`: it is no sound model; `BN_ERR_MEMORY_LIMIT`: `memory_limit_bytes` is too small for the
/// model and one sequence;
/// `BN_ERR_OUT_OF_MEMORY`: the system refuses memory or a thread; `BN_ERR_CANCELLED`: `progress` gave it
/// up; `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_create(
    config: *const bn_engine_config,
    out: *mut *mut bn_engine,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        crate::ffi::guard::out("out", out)?;
        // SAFETY: the caller's promise, as the header states it.
        let config = unsafe { growth::read(config)?.to_engine() }?;
        let handle = registry::insert(Engine::create(config)?);
        // SAFETY: checked above.
        unsafe { out.write(handle) };
        Ok(())
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard_saying(error, body) }
}

/// Ends the acceptance of requests and returns at once. `mode` is `BN_SHUTDOWN_DRAIN` (what is accepted
/// finishes) or `BN_SHUTDOWN_CANCEL` (it is cancelled). May be called again; a cancel may follow a drain.
/// Every accepted request still gets its terminal event; when the last for `BN_ANY` has been polled, `bn_poll`
/// of `BN_ANY` gives `BN_ERR_SHUTDOWN`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: not an engine, unknown mode; `BN_ERR_ENGINE_DEAD`;
/// `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_shutdown(engine: *mut bn_engine, mode: i32) -> bn_status {
    guard(|| {
        let mode = match mode {
            BN_SHUTDOWN_DRAIN => ShutdownMode::Drain,
            BN_SHUTDOWN_CANCEL => ShutdownMode::Cancel,
            _ => {
                return Err(Error::invalid(format!(
                    "mode is {mode}; it is BN_SHUTDOWN_DRAIN ({BN_SHUTDOWN_DRAIN}) or BN_SHUTDOWN_CANCEL ({BN_SHUTDOWN_CANCEL})"
                )));
            }
        };
        registry::with(engine, Call::Any, |engine| engine.shutdown(mode))
    })
}

/// Cancels and completes what is left, wakes blocked pollers (they get `BN_ERR_SHUTDOWN`; one that comes later
/// gets `BN_ERR_INVALID_ARGUMENT`: both are the end) and waits for them, joins every thread, closes every file
/// descriptor, frees everything. A blocked `bn_generate` returns what it has, as `BN_FINISH_CANCELLED`; a blocked
/// `bn_embed` returns `BN_ERR_CANCELLED`. In poll mode unread events are discarded: what `user_data` stands for is
/// the caller's to clean up. In callback mode every request not released gets its terminal callback before this
/// returns, and no callback runs after it. NULL is fine. In a forked child it does nothing.
///
/// [not from a callback]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: not a live engine, as after a first destroy;
/// `BN_ERR_REENTRANT`: called from a callback, nothing happened; `BN_ERR_FORKED`: nothing happened;
/// `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_destroy(engine: *mut bn_engine) -> bn_status {
    guard(|| if engine.is_null() { Ok(()) } else { registry::destroy(engine) })
}

/// A file descriptor for epoll, kqueue, poll or select, readable exactly while an event for `BN_ANY` waits
/// or the engine is drained or dead; from then on it stays readable: leave the loop at `BN_ERR_SHUTDOWN`. It is non-blocking and the engine's: don't read, write or close it;
/// it may be dup'ed. Under edge-triggered epoll, poll with timeout 0 until the count is 0 each time it
/// fires.
///
/// [any thread]
/// @return the descriptor, or -1: callback mode, not an engine, a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_wait_fd(engine: *const bn_engine) -> i32 {
    guard_or(-1, || registry::with(engine, Call::AnyEvenDead, |engine| Ok(engine.wait_fd())))
}

/// Prepares `*stats` for `bn_engine_stats`. `struct_size` is `sizeof(bn_stats)`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: `stats` is NULL, `struct_size` is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_stats_init(stats: *mut bn_stats, struct_size: u32) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard(|| unsafe { growth::init(stats, struct_size) })
}

/// Writes a snapshot of the engine's counters to `*out`, prepared by `bn_stats_init`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: NULL, not an engine, wrong `struct_size`;
/// `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_stats(engine: *mut bn_engine, out: *mut bn_stats) -> bn_status {
    guard(|| {
        registry::with(engine, Call::AnyEvenDead, |engine| {
            // SAFETY: the caller's promise.
            unsafe { growth::write(out, bn_stats::new(&engine.stats())) }
        })
    })
}

/// Writes the statistics as Prometheus text (UTF-8, not NUL-terminated) to `text`, which has room for
/// `capacity` bytes, and the bytes of it all to `*length`. 8192 bytes are enough for this version. `text` may be
/// NULL where `capacity` is 0, to ask for the length: `BN_ERR_BUFFER_TOO_SMALL` is then the answer, no failure.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_BUFFER_TOO_SMALL`: nothing but `*length` was written;
/// `BN_ERR_INVALID_ARGUMENT`: NULL, not an engine; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_metrics_text(
    engine: *mut bn_engine,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> bn_status {
    guard(|| {
        out("length", length)?;
        let page = registry::with(engine, Call::AnyEvenDead, |engine| Ok(metrics::text(&engine.stats())))?;
        // SAFETY: `length` was checked; `text` is the caller's promise.
        unsafe { copy_out("text", page.as_bytes(), text.cast(), capacity, length) }
    })
}

/// Prepares `*facts` for `bn_engine_model_facts`. `struct_size` is `sizeof(bn_model_facts)`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: `facts` is NULL, `struct_size` is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_model_facts_init(facts: *mut bn_model_facts, struct_size: u32) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard(|| unsafe { growth::init(facts, struct_size) })
}

/// Writes what is known of the loaded model to `*out`, prepared by `bn_model_facts_init`.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: NULL, not an engine, wrong `struct_size`;
/// `BN_ERR_FORKED`; `BN_ERR_INTERNAL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_model_facts(
    engine: *mut bn_engine,
    out: *mut bn_model_facts,
) -> bn_status {
    guard(|| {
        registry::with(engine, Call::AnyEvenDead, |engine| {
            // SAFETY: the caller's promise. The pointers lie in the engine, which lives until destroy.
            unsafe { growth::write(out, bn_model_facts::of(engine)) }
        })
    })
}
