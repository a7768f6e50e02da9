//! Detects that a process is the forked child of one that had engines: our threads do not survive a fork.

use super::os;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Locks that are held during a fork, so that the child finds them free and the guarded data consistent.
pub trait Held: Sync {
    fn take(&self);
    fn give(&self);
}

static HELD: AtomicPtr<&'static dyn Held> = AtomicPtr::new(std::ptr::null_mut());
thread_local! {
    /// Whether this thread's fork has taken `HELD`. It may be set between the handlers of a fork, and the handlers
    /// may be registered twice.
    static TAKEN: Cell<bool> = const { Cell::new(false) };
}

fn held() -> Option<&'static dyn Held> {
    // SAFETY: NULL, or a pointer that `hold` leaked.
    unsafe { HELD.load(Ordering::Acquire).as_ref().copied() }
}

extern "C" fn before() {
    if let Some(held) = held().filter(|_| !TAKEN.get()) {
        held.take();
        TAKEN.set(true);
    }
}

extern "C" fn in_parent() {
    if TAKEN.replace(false)
        && let Some(held) = held()
    {
        held.give();
    }
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    in_parent();
}

/// A number that grows by one in each forked child. Engines remember the value at their creation.
pub fn generation() -> u32 {
    // Not a lock that waits: the child of a fork during this call would wait forever.
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    // Reads first: this is called often, and a write would move the cache line from core to core.
    if !REGISTERED.load(Ordering::Acquire) {
        os::at_fork(before, in_parent, in_child);
        REGISTERED.store(true, Ordering::Release);
    }
    GENERATION.load(Ordering::Relaxed)
}

/// Makes forks hold `held` from now on. Only the first call has an effect.
pub fn hold(held: &'static dyn Held) {
    generation();
    if HELD.load(Ordering::Acquire).is_null() {
        let new = Box::into_raw(Box::new(held));
        let null = std::ptr::null_mut();
        if HELD.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: no other thread has seen the pointer.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}
