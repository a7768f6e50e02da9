//! Calls for sessions and the prefix cache.

use super::*;
use crate::cache::CacheEvent;

impl Engine {
    /// Drops a session. `NotFound` if there is none of this name.
    pub fn drop_session(&self, name: &str) -> Result<()> {
        self.shared.call_home(name, Core::drop_session)
    }

    /// Returns a session as bytes, for an engine with the same model and KV type.
    pub fn save_session(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = self.shared.call_home(name, Core::save_session)?;
        session_file::seal(&mut bytes);
        Ok(bytes)
    }

    /// Number of bytes that `save_session` returns, without encoding them.
    pub fn session_size(&self, name: &str) -> Result<usize> {
        self.shared.call_home(name, Core::session_size)
    }

    /// Restores a session from the result of `save_session`. `InvalidArgument` for anything else; `MemoryLimit` if
    /// it does not fit.
    pub fn restore_session(&self, name: &str, bytes: &[u8]) -> Result<()> {
        config::session_name(name)?;
        let content = session_file::unseal(bytes)?;
        let mut copy = Vec::new();
        reserve(&mut copy, content.len(), "a restored session")?;
        copy.extend_from_slice(content);
        let copy = Arc::new(copy);
        self.shared.call_home(name, move |core, name| core.restore_session(name, &copy))
    }

    /// Passes up to `capacity` changes of the prefix caches to `sink`, oldest first.
    pub fn kv_events(&self, capacity: usize, sink: &mut dyn FnMut(CacheEvent)) -> Result<()> {
        self.shared.kv_events.read(capacity, sink)
    }

    /// Forgets every prefix that no request and no session holds.
    pub fn clear_cache(&self) -> Result<()> {
        self.shared.call_all(|core| {
            core.clear_cache();
            Ok(())
        })
    }
}
