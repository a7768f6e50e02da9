//! Functions of the host that the engine calls.

use super::event::bn_event;
use super::sampling::bn_logits;
use super::span::bn_span;
use super::string::bn_string;
use std::ffi::c_void;

/// Receives one event, on the engine's delivery thread, one call at a time; the events of a request
/// come in order. `event` and what it points to are valid until the callback returns. It should not
/// take long: other events wait meanwhile, though the model keeps running.
pub type bn_event_callback = Option<unsafe extern "C" fn(event: *const bn_event, context: *mut c_void)>;

/// Receives one line of the log. `message` is valid until the callback returns. It may run on any
/// thread, on several at once, and inside the host's own calls. None runs after
/// `bn_engine_destroy`, or for a model `bn_model_open`, has returned.
pub type bn_log_callback = Option<unsafe extern "C" fn(level: i32, message: bn_string, context: *mut c_void)>;

/// Receives the progress of loading, `fraction` from 0 to 1, and what is being loaded, on a thread
/// of the library while `bn_model_open` waits. If it returns anything but 0, `bn_model_open`
/// returns `BN_ERR_CANCELLED`.
pub type bn_progress_callback =
    Option<unsafe extern "C" fn(fraction: f32, what: bn_string, context: *mut c_void) -> i32>;

/// Changes a request's logits before each of its tokens. Biases, penalties, samplers and log
/// probabilities work on the result. Anything but 0 ends the request as `BN_FINISH_FAILED` with
/// `BN_ERR_CANCELLED`.
///
/// It is called on threads of the engine, for several requests at a time, and all requests wait
/// until it returns. What `*row` points to is valid until then. The output is the same in every
/// batch only if the callback depends on `*row` alone. Keep it and its context alive until the
/// request's last event, or, if the request is released before, until `bn_engine_destroy` has
/// returned.
pub type bn_logits_callback =
    Option<unsafe extern "C" fn(row: *const bn_logits, context: *mut c_void) -> i32>;

/// Receives the spans of a request that has a `trace_id`, when it has ended: one for each phase
/// that it reached, in order. None comes for requests that end because the engine died. The thread
/// of the request's device calls it, and the requests there wait until it returns, so it should
/// copy `*span`, which is valid until then. The request's last event may come before or after. None
/// runs after `bn_engine_destroy` has returned.
pub type bn_span_callback = Option<unsafe extern "C" fn(span: *const bn_span, context: *mut c_void)>;
