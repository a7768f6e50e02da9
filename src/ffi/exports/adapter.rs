//! Adapters: open, free.

use crate::base::Error;
use crate::ffi::guard::{self, guard_only, guard_out};
use crate::ffi::registry;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;

/// Reads a LoRA adapter for requests of this engine: a PEFT folder (`adapter_config.json`,
/// `adapter_model.safetensors`) or a GGUF file of llama.cpp's, with tensors in F32, F16 or BF16,
/// of the layers' products but experts', and the head. The files are not needed afterwards.
/// Requests go on meanwhile; one batch may have any number of adapters.
///
/// An adapter counts against `memory_limit_bytes`, as does, from the first one on, the room that
/// forward passes keep for adapters. Both take from `adapter_bytes`, then from what requests
/// leave.
///
/// @return `BN_ERR_IO`; `BN_ERR_BAD_MODEL`: it is not sound, or for a model of other sizes;
/// `BN_ERR_UNSUPPORTED`: it is more than LoRA (DoRA, biases, embeddings, ...), or the model takes
/// none; `BN_ERR_MEMORY_LIMIT`. With a device, this waits for the engine's thread: also
/// `BN_ERR_SHUTDOWN`, `BN_ERR_ENGINE_DEAD`, and `BN_ERR_REENTRANT` in a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_adapter_open(
    engine: *mut bn_engine,
    path: bn_string,
    out: *mut *mut bn_adapter,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        // SAFETY: the caller's promise.
        let path = unsafe { guard::text("path", path) }?;
        if path.is_empty() {
            return Err(Error::invalid("path is empty"));
        }
        registry::insert_adapter(registry::with(engine, |engine| engine.open_adapter(path))?)
    };
    // SAFETY: the caller's promise for `error` and `out`.
    unsafe { guard_out(error, "out", out, body) }
}

/// Writes a hash of the adapter's contents, the same in each engine that opens it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_adapter_fingerprint(adapter: *const bn_adapter, out: *mut u64) -> bn_status {
    let body = || registry::adapter(adapter).map(|adapter| adapter.fingerprint);
    // SAFETY: no error, and the caller's promise for `out`.
    unsafe { guard_out(std::ptr::null_mut(), "out", out, body) }
}

/// Frees a handle. Requests that run with the adapter keep it until they end; then its bytes come
/// back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_adapter_free(adapter: *mut bn_adapter) -> bn_status {
    guard_only(|| if adapter.is_null() { Ok(()) } else { registry::free_adapter(adapter) })
}
