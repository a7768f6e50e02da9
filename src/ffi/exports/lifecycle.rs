//! The state of an engine: pause, threads, shutdown and its descriptors.

use crate::engine::Engine;
use crate::engine::api::ShutdownMode;
use crate::engine::hub::Phase;
use crate::ffi::config::choice;
use crate::ffi::guard::{guard, guard_number, guard_out, out};
use crate::ffi::registry;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::bn_engine;
use std::ffi::c_void;

/// The engine accepts requests.
pub const BN_STATE_RUNNING: u32 = 0;
/// The engine accepts no more requests, and finishes those that it has.
pub const BN_STATE_DRAINING: u32 = 1;
/// Every request has finished. Events may still wait to be polled or delivered.
pub const BN_STATE_DRAINED: u32 = 2;
/// The engine is dead; see `BN_ERR_ENGINE_DEAD`.
pub const BN_STATE_DEAD: u32 = 3;

/// Accept nothing new, finish what was accepted.
pub const BN_SHUTDOWN_DRAIN: u32 = 0;
/// Accept nothing new, cancel what was accepted. May follow a drain.
pub const BN_SHUTDOWN_CANCEL: u32 = 1;

/// Writes the state of an engine, `BN_STATE_*`, to `*out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_state(engine: *const bn_engine, out: *mut u32) -> bn_status {
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
    // SAFETY: no error, and the caller's promise for `out`.
    unsafe { guard_out(std::ptr::null_mut(), "out", out, body) }
}

/// Pauses the engine: waits for the running step; none begins after the call has returned. All
/// other calls still work: requests may be submitted and wait, their timeouts pass, and they can
/// be cancelled, freed and polled. `bn_generate` and `bn_embed` wait too. A shutdown ends the
/// pause. A paused engine takes no CPU and keeps its memory (but see `idle_release_ms`). Pauses
/// do not add up: one `bn_engine_resume` is enough.
///
/// [not from a callback]
/// @return `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_pause(engine: *mut bn_engine, error: *mut bn_error) -> bn_status {
    let body = || registry::blocking(engine, Engine::pause);
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Ends a pause, and returns at once. Requests go on where they were, with the same output. An
/// engine that is not paused, or has shut down, is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_resume(engine: *mut bn_engine, error: *mut bn_error) -> bn_status {
    let body = || registry::with(engine, Engine::resume);
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Waits for the running step, and computes the next ones on `threads` threads: 1 to what
/// `bn_stats.threads` is at first, 0: that number. The others sleep and keep their memory. Outputs
/// do not change. Several devices share them equally, rounded down, at least one each.
///
/// [not from a callback]
/// @return `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_set_threads(
    engine: *mut bn_engine,
    threads: u32,
    error: *mut bn_error,
) -> bn_status {
    let body = || registry::blocking(engine, |engine| engine.set_threads(threads));
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Ends the acceptance of requests and returns at once. `mode` is `BN_SHUTDOWN_*`. It may be
/// called again. Every accepted request still gets its last event; when all are polled, `bn_poll`
/// of `BN_ANY` returns `BN_ERR_SHUTDOWN`. A drain waits for paused requests until their output is
/// polled. In callback mode, wait for `BN_STATE_DRAINED`, then free the engine, which makes the
/// callbacks still due.
///
/// @return `BN_ERR_ENGINE_DEAD`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_shutdown(
    engine: *mut bn_engine,
    mode: u32,
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

/// A descriptor for epoll, kqueue, poll or select, readable while an event for `BN_ANY` waits, and
/// for good once the engine is drained or dead: leave the loop when `bn_poll` returns
/// `BN_ERR_SHUTDOWN` or `BN_ERR_ENGINE_DEAD`. It is the engine's: do not read, write or close it.
/// The end wakes one edge-triggered thread of each epoll instance, which must wake the others.
///
/// @return the descriptor, which is 0 or more; or `BN_ERR_WRONG_MODE`: callback mode;
/// `BN_ERR_UNSUPPORTED`: Windows; or another error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_wait_fd(engine: *const bn_engine, error: *mut bn_error) -> i32 {
    let body = || registry::with(engine, Engine::wait_fd);
    // SAFETY: the caller's promise for `error`.
    unsafe { guard_number(error, body) }
}

/// The same for Windows: an event with manual reset, for WaitForMultipleObjects, which is set
/// while the descriptor of `bn_engine_wait_fd` would be readable. It is the engine's: do not set,
/// reset or close it.
///
/// @return `BN_ERR_WRONG_MODE`: callback mode. `BN_ERR_UNSUPPORTED`: any other system.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_wait_handle(
    engine: *const bn_engine,
    handle: *mut *mut c_void,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        out("handle", handle)?;
        let found = registry::with(engine, Engine::wait_handle)?;
        // SAFETY: checked, and the caller's promise.
        unsafe { handle.write(found) };
        Ok(())
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}
