//! Handles of the library's objects, and freeing of engines.
use crate::error::{Result, check_status};
use crate::log::Log;
use crate::model::Model;
use crate::span::OnSpan;
use crate::sys;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

/// A handle of an object of the library.
pub(crate) struct Handle<T>(NonNull<T>);

// SAFETY: the library looks handles up, from any thread, and refuses those that are freed. None is ever dereferenced.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> Handle<T> {
    /// A handle that a successful call wrote.
    pub fn new(raw: *mut T) -> Self {
        Self(NonNull::new(raw).expect("the library writes a handle when it succeeds"))
    }

    pub fn raw(self) -> *mut T {
        self.0.as_ptr()
    }
}

/// Everything that an engine's threads use until it is freed. The library has pointers into it.
pub(crate) struct Keep {
    pub log: Option<Log>,
    pub on_span: Option<OnSpan>,
    /// Models, with the bytes from which they were read.
    pub _models: [Option<Model>; 2],
}

/// Frees an engine, then the data that its threads used. In a callback, where this would wait for itself, another
/// thread does it.
pub(crate) fn free_engine(engine: Handle<sys::bn_engine>, keep: Arc<Keep>) -> Result<()> {
    // SAFETY: handles may be freed at any time, in any thread.
    let status = unsafe { sys::bn_engine_free(engine.raw()) };
    if status != sys::BN_ERR_REENTRANT {
        drop(keep);
        return check_status(status);
    }
    // This thread forgets the data. If no other thread can be started, the engine stays, and with it the data
    // that it uses.
    let keep = ManuallyDrop::new(keep);
    let free = move || {
        // SAFETY: as above; this is no callback.
        unsafe { sys::bn_engine_free(engine.raw()) };
        drop(ManuallyDrop::into_inner(keep));
    };
    let _ = thread::Builder::new().name("bn-free".into()).spawn(free);
    Ok(())
}
