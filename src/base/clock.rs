//! Monotonic time in nanoseconds.

/// Nanoseconds of the monotonic clock; never goes back, never 0.
pub fn now_ns() -> u64 {
    #[cfg(test)]
    if let Some(time) = fake::get() {
        return time;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and the clock is one that every system has.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64).max(1)
}

/// A clock of one thread that stands still until it is set, for simulations.
#[cfg(test)]
pub mod fake {
    use std::cell::Cell;

    thread_local! {
        static TIME: Cell<Option<u64>> = const { Cell::new(None) };
    }

    pub fn get() -> Option<u64> {
        TIME.get()
    }

    /// None: the real one again.
    pub fn set(time: Option<u64>) {
        TIME.set(time);
    }
}
