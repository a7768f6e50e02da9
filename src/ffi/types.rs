//! The engine and its requests by name.

pub use super::string::*;
use std::ffi::c_void;

/// A model: weights, tokenizer and chat template, for any number of engines. Immutable. From
/// `bn_model_open` or `bn_engine_model` to `bn_model_free`.
pub struct bn_model {
    _opaque: [u8; 0],
}

/// An engine: the threads, KV cache and requests of one model, from `bn_engine_create` to
/// `bn_engine_free`.
pub struct bn_engine {
    _opaque: [u8; 0],
}

/// A LoRA adapter of an engine, from `bn_adapter_open` to `bn_adapter_free`.
pub struct bn_adapter {
    _opaque: [u8; 0],
}

/// The id of a request, never 0 or `BN_ANY`, valid for its engine until `bn_request_free`. A
/// stale or foreign one gives `BN_ERR_NOT_FOUND`.
pub type bn_request = u64;

/// For `bn_poll`: any request without `BN_REQUEST_POLL_BY_ID`. For `bn_cancel`: all requests.
pub const BN_ANY: u64 = 0x7fff_ffff_ffff_ffff;
const _: () = assert!(BN_ANY == crate::engine::api::RequestId::ANY.0);

/// No limit, where 0 has a meaning of its own: the `timeout_ms` of `bn_poll`, and fields that
/// name it.
pub const BN_NO_LIMIT: u32 = 0xffff_ffff;
const _: () = assert!(BN_NO_LIMIT == crate::engine::api::TIMEOUT_NONE);

/// A context pointer that is passed to the threads that call back.
pub(super) struct Context(*mut c_void);
// SAFETY: never dereferenced here; the header asks the caller for callbacks that any thread may call.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn new(pointer: *mut c_void) -> Self {
        Self(pointer)
    }

    // A method, so that closures capture the whole and not the bare pointer.
    pub(super) fn get(&self) -> *mut c_void {
        self.0
    }
}
