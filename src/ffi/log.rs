//! Log levels and the log callback.

use super::callbacks::bn_log_callback;
use super::string::bn_string;
use super::types::Context;
use crate::base::log;
use crate::engine::api::LogSink;
use std::ffi::c_void;
use std::sync::Arc;

/// No log.
pub const BN_LOG_OFF: u32 = 0;
/// The engine or a request failed, and the caller did not cause it.
pub const BN_LOG_ERROR: u32 = 1;
/// Something is wrong, and the message says how the library goes on.
pub const BN_LOG_WARN: u32 = 2;
/// Loading, start and shutdown.
pub const BN_LOG_INFO: u32 = 3;
/// Details for work on the library.
pub const BN_LOG_DEBUG: u32 = 4;

const _: () = {
    assert!(BN_LOG_OFF == log::OFF);
    assert!(BN_LOG_ERROR == log::ERROR);
    assert!(BN_LOG_WARN == log::WARN);
    assert!(BN_LOG_INFO == log::INFO);
    assert!(BN_LOG_DEBUG == log::DEBUG);
};

pub(super) fn log_sink(call: bn_log_callback, context: *mut c_void) -> Option<LogSink> {
    let call = call?;
    let context = Context::new(context);
    Some(Arc::new(move |level, message: &str| {
        // SAFETY: the header's contract for `log`; `message` outlives the call.
        unsafe { call(level, bn_string::of(message), context.get()) }
    }))
}
