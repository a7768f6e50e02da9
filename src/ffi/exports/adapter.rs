//! Adapters: open, free.

use crate::ffi::guard::{self, guard_only, guard_out};
use crate::ffi::registry;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::*;

/// Reads a LoRA adapter for requests of this engine (`bn_request_params.adapter`) and writes it to
/// `*out`. `path` is a folder of PEFT's (`adapter_config.json`, `adapter_model.safetensors`) or a
/// GGUF file of llama.cpp's. The tensors are F32, F16 or BF16, of any linear layer and the head. The
/// files are not needed afterwards. Requests go on meanwhile; any number of adapters may run in one
/// batch.
///
/// An adapter counts against `memory_limit_bytes`, as its share of a forward pass does from the
/// first one on, beside requests and within what `bn_engine_config.adapter_bytes` and they leave.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`; `BN_ERR_IO`: a file cannot be opened;
/// `BN_ERR_BAD_MODEL`: it is not sound, or for a model of other sizes; `BN_ERR_UNSUPPORTED`: it is
/// more than LoRA (DoRA, biases, embeddings, ...), or the model takes none; `BN_ERR_MEMORY_LIMIT`;
/// `BN_ERR_OUT_OF_MEMORY`; `BN_ERR_FORKED`; `BN_ERR_INTERNAL`. An engine on a device waits for its
/// thread here: also `BN_ERR_SHUTDOWN`, `BN_ERR_ENGINE_DEAD`, and `BN_ERR_REENTRANT` in a callback.
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
        registry::insert_adapter(registry::with(engine, |engine| engine.open_adapter(path))?)
    };
    // SAFETY: the caller's promise for `error` and `out`.
    unsafe { guard_out(error, "out", out, body) }
}

/// Frees an adapter's handle. Requests that run with it keep it until they end; then its bytes come
/// back. NULL is ignored.
///
/// [any thread]
/// @return `BN_OK`; `BN_ERR_INVALID_ARGUMENT`: not a live adapter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_adapter_free(adapter: *mut bn_adapter) -> bn_status {
    guard_only(|| if adapter.is_null() { Ok(()) } else { registry::free_adapter(adapter) })
}
