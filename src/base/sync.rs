//! The primitives that cross threads, swapped for loom's under `--cfg loom`.

#[cfg(loom)]
pub use loom::sync::Arc;
#[cfg(not(loom))]
pub use std::sync::Arc;

#[cfg(not(loom))]
pub use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
mod shim {
    //! parking_lot's surface over loom's mutex and condition variable.
    pub use loom::sync::MutexGuard;
    use std::time::Duration;

    pub struct Mutex<T>(loom::sync::Mutex<T>);
    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    pub struct Condvar(loom::sync::Condvar);
    impl Condvar {
        #[allow(clippy::new_without_default)]
        pub fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }
        pub fn notify_one(&self) {
            self.0.notify_one()
        }
        pub fn notify_all(&self) {
            self.0.notify_all()
        }
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            // loom's wait takes the guard by value; parking_lot's by reference.
            // SAFETY: `guard` is overwritten with the returned guard before anybody can see it, and
            // loom's wait does not unwind between (a loom panic ends the model run).
            unsafe {
                let owned = std::ptr::read(guard);
                std::ptr::write(guard, self.0.wait(owned).unwrap());
            }
        }
        /// Loom has no time: a timed wait is an untimed one.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            self.wait(guard)
        }
    }
}
#[cfg(loom)]
pub use shim::{Condvar, Mutex, MutexGuard};

/// A multi-producer queue: crossbeam's, or under loom a locked deque with the same guarantees.
#[cfg(not(loom))]
pub use crossbeam::queue::SegQueue as Queue;

#[cfg(loom)]
pub struct Queue<T>(Mutex<std::collections::VecDeque<T>>);
#[cfg(loom)]
impl<T> Queue<T> {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(Mutex::new(Default::default()))
    }
    pub fn push(&self, value: T) {
        self.0.lock().push_back(value)
    }
    pub fn pop(&self) -> Option<T> {
        self.0.lock().pop_front()
    }
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
