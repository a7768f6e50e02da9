//! The live engines of this process, by handle.
//!
//! A `bn_engine *` is the address of a small block that is never freed and never read: it only names an
//! entry here. So a pointer that was destroyed, or invented, finds nothing and gives an error instead of
//! undefined behaviour, and no later engine can get the same address. The price is the block (8 bytes
//! and the allocator's overhead for each engine ever made) and a look-up of about 20 ns per call.

use super::types::bn_engine;
use crate::base::{Error, Result, Status, fork};
use crate::engine::Engine;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

struct Entry {
    engine: Engine,
    /// Set by the one destroy that goes through.
    destroying: AtomicBool,
}

struct Registry {
    /// A process has few: a scan beats a hash.
    live: Vec<(usize, Arc<Entry>)>,
    /// Kept, so that a leak checker sees them as what they are.
    retired: Vec<usize>,
}

static REGISTRY: RwLock<Registry> = RwLock::new(Registry { live: Vec::new(), retired: Vec::new() });
/// The fork generation that wrote there last.
static OWNER: AtomicU32 = AtomicU32::new(0);

pub(super) fn insert(engine: Engine) -> *mut bn_engine {
    let handle = Box::into_raw(Box::new(0u64)) as usize;
    let entry = Arc::new(Entry { engine, destroying: AtomicBool::new(false) });
    OWNER.store(fork::generation(), Ordering::Relaxed);
    let mut registry = REGISTRY.write();
    registry.live.push((handle, entry));
    handle as *mut bn_engine
}

fn find(handle: *const bn_engine) -> Result<Arc<Entry>> {
    // A fork can leave the lock held by a thread that the child does not have: no wait is for good.
    let registry = loop {
        match REGISTRY.try_read().or_else(|| REGISTRY.try_read_for(Duration::from_millis(200))) {
            Some(guard) => break guard,
            None if OWNER.load(Ordering::Relaxed) != fork::generation() => {
                return Err(Error::new(Status::Forked, "the engine was made by the parent of this process"));
            }
            None => {}
        }
    };
    let found = registry.live.iter().find(|(live, _)| *live == handle as usize);
    found.map(|(_, entry)| entry.clone()).ok_or_else(|| {
        Error::invalid(if handle.is_null() {
            "engine is NULL"
        } else {
            "engine is not a live engine: destroyed, or never created"
        })
    })
}

/// What a call asks of the engine before it begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// From any thread, callbacks included.
    Any,
    /// Blocks: not from a callback.
    Blocking,
    /// As `Any` and `Blocking`, and a dead engine still answers.
    AnyEvenDead,
    BlockingEvenDead,
}

pub(super) fn with<T>(
    handle: *const bn_engine,
    call: Call,
    body: impl FnOnce(&Engine) -> Result<T>,
) -> Result<T> {
    let entry = find(handle)?;
    check(&entry, call)?;
    body(&entry.engine)
}

fn check(entry: &Entry, call: Call) -> Result<()> {
    let blocking = matches!(call, Call::Blocking | Call::BlockingEvenDead);
    let even_dead = matches!(call, Call::AnyEvenDead | Call::BlockingEvenDead);
    entry.engine.check_call(blocking)?;
    if even_dead { Ok(()) } else { entry.engine.alive() }
}

/// Destroys the engine once, and returns when nobody is inside it any more.
pub(super) fn destroy(handle: *mut bn_engine) -> Result<()> {
    let entry = find(handle)?;
    check(&entry, Call::BlockingEvenDead)?;
    if entry.destroying.swap(true, Ordering::AcqRel) {
        return Err(Error::invalid("engine is being destroyed by another thread"));
    }
    if let Err(error) = entry.engine.destroy() {
        entry.destroying.store(false, Ordering::Release);
        return Err(error);
    }
    {
        let mut registry = REGISTRY.write();
        registry.live.retain(|(live, _)| *live != handle as usize);
        registry.retired.push(handle as usize);
    }
    // Calls that were under way hold the entry; none of them blocks now.
    while Arc::strong_count(&entry) > 1 {
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_handles_are_refused() {
        let invented = 0x1000 as *const bn_engine;
        assert_eq!(find(invented).err().map(|e| e.status), Some(Status::InvalidArgument));
        assert_eq!(find(std::ptr::null()).err().map(|e| e.status), Some(Status::InvalidArgument));
    }
}
