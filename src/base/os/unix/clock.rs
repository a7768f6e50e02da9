//! Clocks, in nanoseconds.

/// The monotonic clock.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Time since 1970 by the system's clock, which may be set at any time.
pub fn unix_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// CPU time of this thread.
pub fn thread_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The clock of `thread_ns`, for other threads to read while this one lives.
#[derive(Clone, Copy)]
pub struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// The clock of this thread; the monotonic one if the system has no clock that other threads may read.
    pub fn own() -> Self {
        #[cfg(all(target_os = "linux", not(miri)))]
        {
            let mut clock = libc::CLOCK_MONOTONIC;
            // SAFETY: the thread lives, and `clock` is writable.
            if unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) } == 0 {
                return Self(clock);
            }
        }
        Self(libc::CLOCK_MONOTONIC)
    }

    pub fn ns(self) -> u64 {
        read(self.0)
    }
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and every system has these clocks.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
