//! Statistics, metrics and the report.

use crate::engine::Engine;
use crate::engine::api::{LATENCY_BOUNDS_NS, LENGTH_BOUNDS};
use crate::ffi::growth;
use crate::ffi::guard::{guard, guard_copy, guard_only};
use crate::ffi::registry;
use crate::ffi::stats::bn_stats;
use crate::ffi::status::{bn_error, bn_status};
use crate::ffi::types::bn_engine;
use std::ffi::c_char;

/// Prepares `*stats` for `bn_engine_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_stats_init(stats: *mut bn_stats, struct_size: u32) -> bn_status {
    // SAFETY: `struct_size` bytes are the caller's promise.
    guard_only(|| unsafe { growth::init(stats, struct_size) })
}

/// Writes a snapshot to `*out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_stats(
    engine: *mut bn_engine,
    out: *mut bn_stats,
    error: *mut bn_error,
) -> bn_status {
    let body = || {
        registry::with(engine, |engine| {
            // SAFETY: the caller's promise.
            unsafe { growth::write(out, engine.stats()) }
        })
    };
    // SAFETY: the caller's promise for `error`.
    unsafe { guard(error, body) }
}

/// Writes the statistics as Prometheus text (exposition format 0.0.4): at most 32768 bytes in this
/// version with a model's name of up to 256. hosts/server/README.md lists the metrics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_metrics(
    engine: *mut bn_engine,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    // SAFETY: the caller's promises.
    unsafe { page(engine, Engine::metrics, text, capacity, length, error) }
}

/// Writes a report for people on how efficiently the engine runs, at most 4096 bytes in this
/// version. Its wording may change in any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bn_engine_report(
    engine: *mut bn_engine,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    // SAFETY: the caller's promises.
    unsafe { page(engine, Engine::report, text, capacity, length, error) }
}

/// Writes the text that `render` returns for the engine.
///
/// # Safety
/// `text` has room for `capacity` bytes or is NULL; `length` and `error` are NULL or valid.
unsafe fn page(
    engine: *mut bn_engine,
    render: fn(&Engine) -> String,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut bn_error,
) -> bn_status {
    let body = || registry::with(engine, |engine| Ok(render(engine)));
    // SAFETY: the caller's promise.
    unsafe { guard_copy(error, ("text", text.cast::<u8>(), capacity), ("length", length), body) }
}

/// The inclusive upper bound of a bucket of `bn_latency`, in nanoseconds; `UINT64_MAX` for the
/// last and for those beyond.
#[unsafe(no_mangle)]
pub extern "C" fn bn_latency_bound_ns(bucket: u32) -> u64 {
    LATENCY_BOUNDS_NS.get(bucket as usize).copied().unwrap_or(u64::MAX)
}

/// Like `bn_latency_bound_ns`, for `bn_lengths`, in tokens.
#[unsafe(no_mangle)]
pub extern "C" fn bn_length_bound(bucket: u32) -> u64 {
    LENGTH_BOUNDS.get(bucket as usize).copied().unwrap_or(u64::MAX)
}
