//! Time in nanoseconds, of a monotonic clock, of the calendar and of a thread.

use super::os::clock;
pub use super::os::clock::{ThreadClock, thread_ns, unix_ns};

/// Nanoseconds of the monotonic clock. Never goes back and is never 0.
pub fn now_ns() -> u64 {
    #[cfg(test)]
    if let Some(time) = fake::get() {
        return time;
    }
    clock::monotonic_ns().max(1)
}

/// A clock of the current thread that stands still until it is set, for simulations.
#[cfg(test)]
pub mod fake {
    use std::cell::Cell;

    thread_local! {
        static TIME: Cell<Option<u64>> = const { Cell::new(None) };
    }

    pub fn get() -> Option<u64> {
        TIME.get()
    }

    /// `None` switches back to the real clock.
    pub fn set(time: Option<u64>) {
        TIME.set(time);
    }
}
