//! Functions of the host that the engine calls.

use super::event::bn_event;
use super::sampling::bn_logits;
use super::span::bn_span;
use super::string::bn_string;
use std::ffi::c_void;

/// Receives one event, on the engine's delivery thread: one call at a time, and the events of a
/// request in order. Other events wait for the call; the model does not.
pub type bn_event_callback = Option<unsafe extern "C" fn(event: *const bn_event, context: *mut c_void)>;

/// Receives one line of the log, on any thread, also inside the host's own calls, and possibly on
/// several threads at once. It is not called after `bn_engine_free`, or a model's `bn_model_open`,
/// has returned.
pub type bn_log_callback = Option<unsafe extern "C" fn(level: u32, message: bn_string, context: *mut c_void)>;

/// Receives the progress of loading: `fraction` from 0 to 1, and what is being loaded. It runs on a
/// thread of the library. Anything but 0 ends `bn_model_open` with `BN_ERR_CANCELLED`.
pub type bn_progress_callback =
    Option<unsafe extern "C" fn(fraction: f32, what: bn_string, context: *mut c_void) -> i32>;

/// Changes a request's logits before each of its tokens, before biases, penalties, samplers and
/// log probabilities. Anything but 0 ends the request as `BN_FINISH_FAILED` with
/// `BN_ERR_CANCELLED`.
///
/// It runs on threads of the engine, for several requests at a time, and all requests wait for
/// it. The output is the same in every batch only if it depends on `*row` alone. Keep it and its
/// context alive until the request's last event, or, if the request is freed before, until
/// `bn_engine_free` has returned.
pub type bn_logits_callback =
    Option<unsafe extern "C" fn(row: *const bn_logits, context: *mut c_void) -> i32>;

/// Receives the spans of an ended request: one for each phase that it reached, in order, before or
/// after its last event. It is not called if the engine died, or after `bn_engine_free` has
/// returned. It runs on the engine thread of the request's device, whose requests wait for it.
pub type bn_span_callback = Option<unsafe extern "C" fn(span: *const bn_span, context: *mut c_void)>;
