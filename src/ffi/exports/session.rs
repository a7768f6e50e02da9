//! Sessions and the prefix cache.

use crate::engine::Engine;
use crate::ffi::growth::Array;
use crate::ffi::guard::{self, guard, guard_copy, guard_out};
use crate::ffi::registry;
use crate::ffi::session::bn_kv_event;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;

/// Frees a session: forgets its name. Its KV blocks stay in the prefix cache until others need the
/// room; requests that use them go on. It waits for the end of a step: an event loop leaves it to
/// another thread, or lets the engine drop the least recently used.
///
/// [not from a callback]
/// @return `BN_ERR_NOT_FOUND`; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_session_free(
    engine: *mut bn_engine,
    name: bn_string,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        // SAFETY: the caller's promise.
        let name = unsafe { guard::text("name", name) }?;
        registry::blocking(engine, |engine| engine.drop_session(name))
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Writes a session's tokens, keys and values, digests of its pictures, and `cache_salt`, for an
/// engine with the same model, `kv_type` and `kv_block_size`. The size changes when a request of
/// the session ends. Its number of tokens is at byte 52 of the data, in 64 bits, little-endian.
/// Writing makes a copy for a moment, which `memory_limit_bytes` does not count.
///
/// [not from a callback]
/// @return `BN_ERR_NOT_FOUND`; `BN_ERR_BUSY`; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_session_save(
    engine: *mut bn_engine,
    name: bn_string,
    data: *mut u8,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        // SAFETY: the caller's promise.
        let name = unsafe { guard::text("name", name) }?;
        if capacity == 0 {
            let size = registry::blocking(engine, |engine| engine.session_size(name))?;
            // SAFETY: `guard_copy` has checked `length`.
            unsafe { guard::room("data", size, capacity, length) }?;
        }
        registry::blocking(engine, |engine| engine.save_session(name))
    };
    // SAFETY: the caller's promise for `error`, `data` and `length`.
    unsafe { guard_copy(error, ("data", data, capacity), ("length", length), body) }
}

/// Makes a session from the data of `bn_session_save`, replacing one of this name. Other sessions
/// are dropped if it needs their room. Load only what you have saved yourself: the checksum finds
/// damage, not forgery (SECURITY.md).
///
/// [not from a callback]
/// @return `BN_ERR_INVALID_ARGUMENT`: also for no session, a damaged one, or one of another model,
/// `kv_type`, `kv_block_size` or version, or one with pictures that another tower has seen, or this
/// one in other sizes (`picture_tokens`; in Gemma 4 also the rows of a step);
/// `BN_ERR_MEMORY_LIMIT`: it needs more KV blocks than sessions may hold together, or than requests
/// and sessions leave now; `BN_ERR_BUSY`; `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_session_restore(
    engine: *mut bn_engine,
    name: bn_string,
    data: *const u8,
    size: usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        // SAFETY: the caller's promise.
        let (name, data) = unsafe { (guard::text("name", name)?, guard::slice("data", data, size)?) };
        registry::blocking(engine, |engine| engine.restore_session(name, data))
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Forgets every prefix in the KV cache that no request and no session uses.
///
/// [not from a callback]
/// @return `BN_ERR_SHUTDOWN`; `BN_ERR_ENGINE_DEAD`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_cache_clear(engine: *mut bn_engine, error: *mut bn_error) -> bn_status {
    let body = || registry::blocking(engine, Engine::clear_cache);
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Writes up to `capacity` changes of the prefix cache, oldest first, each once. Never waits.
///
/// @return `BN_ERR_WRONG_MODE`: `kv_events_capacity` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_kv_events(
    engine: *mut bn_engine,
    events: *mut bn_kv_event,
    event_size: usize,
    capacity: usize,
    count: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        let to = Array::new(events, event_size, capacity)?;
        let mut n = 0;
        registry::with(engine, |engine| {
            engine.kv_events(capacity, &mut |event| {
                // SAFETY: `n` is below `capacity`, for which there is room by the caller's promise.
                unsafe { to.write(n, bn_kv_event::of(event)) };
                n += 1;
            })
        })?;
        Ok(n)
    };
    // SAFETY: the caller's promise for `error` and `count`.
    unsafe { guard_out(error, "count", count, body) }
}
