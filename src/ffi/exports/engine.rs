//! Making and freeing an engine, and its facts.

use crate::engine::Engine;
use crate::ffi::config::bn_engine_config;
use crate::ffi::growth;
use crate::ffi::guard::{guard_only, guard_out};
use crate::ffi::registry;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;

/// Fills `*config` with the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_config_init(config: *mut bn_engine_config, struct_size: u32) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard_only(|| unsafe { growth::init(config, struct_size) })
}

/// Makes an engine: loads the model, unless `config` has an open one, and starts threads (named
/// `bn-*`, all signals blocked). A process may have several.
///
/// @return `BN_ERR_UNSUPPORTED`: the machine lacks `instructions`, or `device` is missing, has too
/// old a driver or cannot take the weights, or the library has no kernels for it;
/// `BN_ERR_MEMORY_LIMIT`: the limit, or the free memory, is too small for the model and one
/// sequence; and as `bn_model_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_create(
    config: *const bn_engine_config,
    out: *mut *mut bn_engine,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        registry::begin()?;
        // SAFETY: the caller's promise, as the header states it.
        let config = unsafe { growth::read(config)?.as_engine() }?;
        registry::insert_engine(Engine::create(config)?)
    };
    // SAFETY: the caller's promise for `error` and `out`.
    unsafe { guard_out(error, "out", out, body) }
}

/// Frees an engine: cancels every request, joins every thread, closes every descriptor and frees
/// everything, polled events included.
///
/// A blocked `bn_poll` returns `BN_ERR_SHUTDOWN`, a `bn_generate` what it has, a `bn_embed`
/// `BN_ERR_CANCELLED`. In poll mode, unread events are lost; in callback mode, every live
/// request first gets its last callback, and none follows. In a forked child nothing
/// happens, and it returns `BN_ERR_FORKED`.
///
/// [not from a callback]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_free(engine: *mut bn_engine) -> bn_status {
    guard_only(|| if engine.is_null() { Ok(()) } else { registry::destroy(engine) })
}
