//! Time in nanoseconds: monotonic, and of the calendar.

/// Nanoseconds of the monotonic clock; never goes back, never 0.
pub fn now_ns() -> u64 {
    #[cfg(test)]
    if let Some(time) = fake::get() {
        return time;
    }
    read(libc::CLOCK_MONOTONIC).max(1)
}

/// Nanoseconds since 1970, by the system's clock, which may be set.
pub fn unix_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and the clock is one that every system has.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
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
