//! How a process knows that it is the child of one that had engines: no thread of ours crosses a fork.

use once_cell::sync::Lazy;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

static REGISTERED: Lazy<()> = Lazy::new(|| {
    // SAFETY: `in_child` is async-signal-safe (one atomic addition) and lives as long as this object: glibc
    // drops the handlers of an object that dlclose unloads. Failing (no memory) leaves forks undetected.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
});

/// Grows by one in each forked child; engines remember the value they were made under.
pub fn generation() -> u32 {
    Lazy::force(&REGISTERED);
    GENERATION.load(Ordering::Relaxed)
}
