//! LoRA adapters.
use crate::engine::Engine;
use crate::error::{Result, check_status};
use crate::handle::Handle;
use crate::sys;
use std::fmt;
use std::sync::Arc;

/// A LoRA adapter of an engine, for its requests. Clones are the same adapter, which is freed with the last of them and
/// of the requests that run with it. It keeps its engine.
#[derive(Clone)]
pub struct Adapter(Arc<Inner>);

struct Inner {
    handle: Handle<sys::bn_adapter>,
    /// Dropped after the handle that `drop` frees.
    _engine: Engine,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the handle is this one's own.
        unsafe { sys::bn_adapter_free(self.handle.raw()) };
    }
}

impl Adapter {
    pub(crate) fn new(handle: Handle<sys::bn_adapter>, engine: Engine) -> Self {
        Self(Arc::new(Inner { handle, _engine: engine }))
    }

    pub(crate) fn raw(&self) -> *const sys::bn_adapter {
        self.0.handle.raw()
    }

    /// A hash of its contents, the same in each engine that opens it.
    pub fn fingerprint(&self) -> Result<u64> {
        let mut hash = 0;
        // SAFETY: `hash` can be written.
        check_status(unsafe { sys::bn_adapter_fingerprint(self.raw(), &mut hash) })?;
        Ok(hash)
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").finish_non_exhaustive()
    }
}
