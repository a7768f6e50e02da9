//! The live engines, models, adapters and generated events of this process, by handle.
//!
//! A handle is a number of its own, in the half of the address space that belongs to the system, and is never read: it
//! only names an entry here. So a pointer that was destroyed, or invented, finds nothing and gives an error instead of
//! undefined behavior. The price is a look-up of about 20 ns per call.
//!
//! A fork takes all locks first (`fork::hold`), so that a child finds them free and the tables whole.

use super::types::{bn_adapter, bn_engine, bn_model};
use crate::base::sync::{Condvar, Mutex};
use crate::base::{Error, Result, Status, fork, reserve};
use crate::engine::Engine;
use crate::engine::api::{Adapter, Event, RequestId};
use crate::model::Loaded;
use crate::text::chat;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The live objects of a kind. A process has few: a scan beats a hash.
type Table<T> = Vec<(usize, Arc<T>)>;

struct Handles<T>(RwLock<Table<T>>);

/// The next handle. It does not wrap: no host makes 2^59 objects.
static NEXT: AtomicUsize = AtomicUsize::new(1 << (usize::BITS - 1));
static ENGINES: Handles<Entry> = Handles::new();
static MODELS: Handles<Loaded> = Handles::new();
static ADAPTERS: Handles<Adapter> = Handles::new();
/// The events that `bn_generate` returned.
static EVENTS: Handles<Event> = Handles::new();

impl<T> Handles<T> {
    const fn new() -> Self {
        Self(RwLock::new(Vec::new()))
    }

    fn read(&self) -> RwLockReadGuard<'_, Table<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, object: T) -> Result<usize> {
        let object = Arc::new(object);
        // Dropped before `object`, if that is refused.
        let mut table = self.write();
        reserve(&mut *table, 1, "a handle")?;
        let handle = NEXT.fetch_add(16, Ordering::Relaxed);
        table.push((handle, object));
        Ok(handle)
    }

    /// `use_it` runs under the lock.
    fn find<R>(&self, what: &str, handle: usize, use_it: impl FnOnce(&Arc<T>) -> R) -> Result<R> {
        let table = self.read();
        let found = table.iter().find(|(live, _)| *live == handle);
        found.map(|(_, object)| use_it(object)).ok_or_else(|| missing(what, handle))
    }

    fn remove(&self, what: &str, handle: usize) -> Result<Arc<T>> {
        let mut table = self.write();
        match table.iter().position(|(live, _)| *live == handle) {
            Some(at) => Ok(table.swap_remove(at).1),
            None => Err(missing(what, handle)),
        }
    }
}

fn missing(what: &str, handle: usize) -> Error {
    Error::invalid(match handle {
        0 => format!("{what} is NULL"),
        _ => format!("{what} is not a live one: freed before, or never made"),
    })
}

/// The locks that a fork holds, so that nobody else is in the tables.
type Guard<T> = RwLockWriteGuard<'static, Table<T>>;
type Guards = (Guard<Entry>, Guard<Loaded>, Guard<Adapter>, Guard<Event>);
struct Hold(UnsafeCell<Option<Guards>>);
// SAFETY: only the thread that forks touches it, between `take` and `give`; the locks keep others out.
unsafe impl Sync for Hold {}
static HOLD: Hold = Hold(UnsafeCell::new(None));

impl fork::Held for Hold {
    fn take(&self) {
        let all = (ENGINES.write(), MODELS.write(), ADAPTERS.write(), EVENTS.write());
        // SAFETY: this thread has all locks, and so is the only one here.
        unsafe { *self.0.get() = Some(all) };
    }

    fn give(&self) {
        // SAFETY: this is the thread that took them, or its copy in the child.
        drop(unsafe { (*self.0.get()).take() });
    }
}

struct Entry {
    engine: Engine,
    /// Set by the call that destroys the engine.
    destroying: AtomicBool,
    /// Number of calls that are inside the engine.
    calls: AtomicUsize,
    leaving: Mutex<()>,
    left: Condvar,
}

/// A call that is inside an engine.
struct Inside(Arc<Entry>);

impl Drop for Inside {
    fn drop(&mut self) {
        let Self(entry) = self;
        // Either this sees the flag, or destroy sees the count (both SeqCst).
        if entry.calls.fetch_sub(1, Ordering::SeqCst) == 1 && entry.destroying.load(Ordering::SeqCst) {
            drop(entry.leaving.lock());
            entry.left.notify_all();
        }
    }
}

/// Called before anything is loaded. Initializes the process-wide state of dependencies under a
/// lock that forks hold: otherwise a child could wait forever for a half-made one.
pub(super) fn begin() -> Result<()> {
    static WARM: AtomicBool = AtomicBool::new(false);
    fork::hold(&HOLD);
    let _held = MODELS.write();
    if !WARM.load(Ordering::Relaxed) {
        chat::warm_up()?;
        WARM.store(true, Ordering::Relaxed);
    }
    Ok(())
}

pub(super) fn insert_engine(engine: Engine) -> Result<*mut bn_engine> {
    let entry = Entry {
        engine,
        destroying: AtomicBool::new(false),
        calls: AtomicUsize::new(0),
        leaving: Mutex::new(()),
        left: Condvar::new(),
    };
    ENGINES.insert(entry).map(|handle| handle as *mut bn_engine)
}

fn enter(handle: *const bn_engine, blocking: bool) -> Result<Inside> {
    let entry = ENGINES.find("engine", handle as usize, |entry| {
        entry.calls.fetch_add(1, Ordering::SeqCst);
        Inside(entry.clone())
    })?;
    entry.0.engine.check_call(blocking)?;
    Ok(entry)
}

/// Runs a call that is allowed on any thread, callbacks included.
pub(super) fn with<T>(handle: *const bn_engine, body: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
    body(&enter(handle, false)?.0.engine)
}

/// Runs a call that may block, which is refused in a callback.
pub(super) fn blocking<T>(handle: *const bn_engine, body: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
    body(&enter(handle, true)?.0.engine)
}

/// Gives leased events of an engine back. Does nothing if the engine is gone, as its events went
/// with it.
pub(super) fn give_back(
    handle: *const bn_engine,
    leases: &mut dyn Iterator<Item = (RequestId, u64)>,
) -> Result<()> {
    match enter(handle, false) {
        Ok(inside) => {
            inside.0.engine.give_back(leases);
            Ok(())
        }
        Err(error) if error.status == Status::InvalidArgument => Ok(()),
        Err(error) => Err(error),
    }
}

/// Keeps a generated event until [`free_event`]. `view` gets the event, at its final address, and
/// its lease.
pub(super) fn insert_event<R>(event: Event, view: impl FnOnce(&Event, u64) -> R) -> Result<R> {
    let handle = EVENTS.insert(event)?;
    EVENTS.find("event", handle, |event| view(event, handle as u64))
}

/// Frees a generated event. Does nothing if it was freed before or never existed.
pub(super) fn free_event(lease: u64) {
    drop(EVENTS.remove("event", lease as usize));
}

/// Destroys the engine once, and returns when no call is inside it any more.
pub(super) fn destroy(handle: *mut bn_engine) -> Result<()> {
    let inside = enter(handle, true)?;
    let entry = inside.0.clone();
    if entry.destroying.swap(true, Ordering::SeqCst) {
        return Err(Error::invalid("engine is being destroyed by another thread"));
    }
    entry.engine.destroy()?;
    // From here on no call can enter, and no call inside is blocked.
    let _ = ENGINES.remove("engine", handle as usize);
    drop(inside);
    let mut guard = entry.leaving.lock();
    while entry.calls.load(Ordering::SeqCst) > 0 {
        guard = entry.left.wait(guard);
    }
    // The last call may have decremented the count but still hold its reference. It drops that
    // soon, without waiting for anything.
    while Arc::strong_count(&entry) > 1 {
        std::thread::yield_now();
    }
    Ok(())
}

pub(super) fn insert_model(loaded: Loaded) -> Result<*mut bn_model> {
    MODELS.insert(loaded).map(|handle| handle as *mut bn_model)
}

/// The model of a handle; a clone shares everything.
pub(super) fn model(handle: *const bn_model) -> Result<Arc<Loaded>> {
    MODELS.find("model", handle as usize, Arc::clone)
}

pub(super) fn free_model(handle: *mut bn_model) -> Result<()> {
    MODELS.remove("model", handle as usize).map(drop)
}

pub(super) fn insert_adapter(adapter: Adapter) -> Result<*mut bn_adapter> {
    ADAPTERS.insert(adapter).map(|handle| handle as *mut bn_adapter)
}

pub(super) fn adapter(handle: *const bn_adapter) -> Result<Arc<Adapter>> {
    ADAPTERS.find("adapter", handle as usize, Arc::clone)
}

pub(super) fn free_adapter(handle: *mut bn_adapter) -> Result<()> {
    ADAPTERS.remove("adapter", handle as usize).map(Adapter::free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_handles_are_refused() {
        for invented in [0x1000, 0] {
            let status = |error: Option<Error>| error.map(|e| e.status);
            assert_eq!(status(enter(invented as *const _, false).err()), Some(Status::InvalidArgument));
            assert_eq!(status(model(invented as *const _).err()), Some(Status::InvalidArgument));
            assert_eq!(status(free_model(invented as *mut _).err()), Some(Status::InvalidArgument));
        }
    }
}
