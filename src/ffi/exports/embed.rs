//! Embeddings in one blocking call.

use super::event::{finished, generate};
use crate::base::{Error, Result};
use crate::engine::api::{Embedding, Event};
use crate::ffi::guard::{guard_copy, out, room};
use crate::ffi::registry;
use crate::ffi::request::{BN_TASK_EMBED, bn_request_params};
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::bn_engine;

/// Computes one embedding: submits `params` with `BN_TASK_EMBED`, waits, and writes the
/// `bn_model_info.embedding_size` elements of the vector. If `capacity` is too small, nothing
/// runs, and `params` is not read.
///
/// [not from a callback]
/// @return as `bn_submit`; `BN_ERR_UNSUPPORTED`: also if the model makes no embeddings;
/// `BN_ERR_CANCELLED`; `BN_ERR_TIMED_OUT`; or the status of a request that failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_embed(
    engine: *mut bn_engine,
    params: *const bn_request_params,
    values: *mut f32,
    capacity: usize,
    count: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        registry::blocking(engine, |engine| {
            // SAFETY: `guard_copy` has checked `count`.
            unsafe { room("values", engine.embedding_size()?, capacity, count) }?;
            out("values", values)?;
            // SAFETY: the caller's promise.
            embedded(unsafe { generate(engine, params, BN_TASK_EMBED) }?).map(|embedding| embedding.values)
        })
    };
    // SAFETY: the caller's promise for `error`, `values` and `count`.
    unsafe { guard_copy(error, ("values", values, capacity), ("count", count), body) }
}

fn embedded(event: Box<Event>) -> Result<Embedding> {
    let event = finished(event)?;
    match event.embedding {
        Some(embedding) => Ok(embedding),
        None => Err(Error::new(event.status, event.message)),
    }
}
