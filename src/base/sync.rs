//! The synchronization primitives, replaced by loom's under `--cfg loom`.
//!
//! On Linux, the standard library's locks are futexes. Such a lock is one word in its owner's memory, and no table of
//! the process lists the waiting threads. So a forked child, which has none of the parent's threads, can create locks
//! of its own (`base::fork`). In contrast, parking_lot's parking table and pthread's condition variables do not
//! survive a fork.

#[cfg(loom)]
pub use loom::sync::Arc;
#[cfg(not(loom))]
pub use std::sync::Arc;

#[cfg(loom)]
use loom::sync as imp;
#[cfg(not(loom))]
use std::sync as imp;

pub use imp::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

/// A mutex without poisoning: a panic under the lock fails its own request, not all others.
#[derive(Default)]
pub struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self(imp::Mutex::new(value))
    }

    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Self(imp::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(not(loom))]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(not(loom))]
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable. Each notification is a system call, so callers keep track of whether anybody waits.
pub struct Condvar(imp::Condvar);

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl Condvar {
    pub fn new() -> Self {
        Self(imp::Condvar::new())
    }

    pub fn notify_one(&self) {
        self.0.notify_one()
    }

    pub fn notify_all(&self) {
        self.0.notify_all()
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// May return early. Loom has no time, so a timed wait is an untimed one there.
    pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
        #[cfg(loom)]
        return {
            let _ = timeout;
            self.wait(guard)
        };
        #[cfg(not(loom))]
        self.0.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
    }
}
