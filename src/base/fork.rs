//! How a process knows that it is the child of one that had engines: no thread of ours crosses a fork.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Locks that a fork holds, so that the child finds them free and what they guard whole.
pub trait Held: Sync {
    fn take(&self);
    fn give(&self);
}

static HELD: AtomicPtr<&'static dyn Held> = AtomicPtr::new(std::ptr::null_mut());
thread_local! {
    /// Whether this thread's fork has taken `HELD`, which may be set between its handlers; they may be registered twice.
    static TAKEN: Cell<bool> = const { Cell::new(false) };
}

fn held() -> Option<&'static dyn Held> {
    // SAFETY: NULL, or what `hold` leaked.
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

/// Grows by one in each forked child; engines remember the value they were made under.
pub fn generation() -> u32 {
    // Never a lock that waits: a child of a thread that is here would wait for good.
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    // Read first: every call comes here, and a write would pass the line from core to core.
    if !REGISTERED.load(Ordering::Acquire) {
        // SAFETY: the handlers live as long as this object: glibc drops those of an object that dlclose unloads. Failing
        // (no memory) leaves forks undetected.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        REGISTERED.store(true, Ordering::Release);
    }
    GENERATION.load(Ordering::Relaxed)
}

/// From now on forks hold `held`. The first call counts.
pub fn hold(held: &'static dyn Held) {
    generation();
    if HELD.load(Ordering::Acquire).is_null() {
        let new = Box::into_raw(Box::new(held));
        let null = std::ptr::null_mut();
        if HELD.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}
