//! Monotonic time in nanoseconds since the process first asked.

use once_cell::sync::Lazy;
use std::time::Instant;

static START: Lazy<Instant> = Lazy::new(Instant::now);

/// Nanoseconds since the first call in this process; never goes back.
pub fn now_ns() -> u64 {
    START.elapsed().as_nanos() as u64
}
