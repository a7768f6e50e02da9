//! Clocks, in nanoseconds.

use std::time::{SystemTime, UNIX_EPOCH};
use windows_sys::Win32::Foundation::{CloseHandle, FILETIME, HANDLE};
use windows_sys::Win32::System::Performance::{QueryPerformanceCounter, QueryPerformanceFrequency};
use windows_sys::Win32::System::Threading::{
    GetCurrentThread, GetCurrentThreadId, GetThreadTimes, OpenThread, THREAD_QUERY_LIMITED_INFORMATION,
};

/// The monotonic clock.
pub fn monotonic_ns() -> u64 {
    let (mut ticks, mut per_second) = (0, 0);
    // SAFETY: both are writable. Neither call fails on a system that Rust supports; the frequency never changes.
    unsafe {
        QueryPerformanceCounter(&mut ticks);
        QueryPerformanceFrequency(&mut per_second);
    }
    (ticks as u128 * 1_000_000_000 / per_second.max(1) as u128) as u64
}

/// Time since 1970 by the system's clock, which may be set at any time.
pub fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// CPU time of this thread. Windows counts whole scheduler ticks of up to 16 ms.
pub fn thread_ns() -> u64 {
    // SAFETY: a handle of this thread that needs no closing.
    times(unsafe { GetCurrentThread() })
}

/// The clock of `thread_ns`, for other threads to read while this one lives.
#[derive(Clone, Copy)]
pub struct ThreadClock(u32);

impl ThreadClock {
    /// The clock of this thread.
    pub fn own() -> Self {
        // SAFETY: no arguments.
        Self(unsafe { GetCurrentThreadId() })
    }

    pub fn ns(self) -> u64 {
        // SAFETY: no pointers; the result is checked.
        let thread = unsafe { OpenThread(THREAD_QUERY_LIMITED_INFORMATION, 0, self.0) };
        if thread.is_null() {
            return 0;
        }
        let ns = times(thread);
        // SAFETY: the handle is ours.
        unsafe { CloseHandle(thread) };
        ns
    }
}

/// CPU time of a thread in kernel and user mode, in nanoseconds.
fn times(thread: HANDLE) -> u64 {
    let none = FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 };
    let [mut made, mut ended, mut kernel, mut user] = [none; 4];
    // SAFETY: the handle is open and the four times are writable. They stay 0 if it fails.
    unsafe { GetThreadTimes(thread, &mut made, &mut ended, &mut kernel, &mut user) };
    let ns = |time: FILETIME| (u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime)) * 100;
    ns(kernel) + ns(user)
}
