//! Calls of a host that replicas execute between two steps, while the host waits.

use super::*;
use crate::cache::CacheEvent;
use crate::engine::replicas::placement::session_rank;
use std::sync::mpsc::{Receiver, sync_channel};

impl Engine {
    /// Runs a call on a replica and waits for its result.
    fn call<T: Send + 'static>(
        &self,
        replica: usize,
        work: impl FnOnce(&mut Core) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.ask(replica, work)?.recv().unwrap_or_else(|_| Err(dead()))
    }

    /// Like `call`, but returns the receiver instead of waiting.
    pub(in crate::engine) fn ask<T: Send + 'static>(
        &self,
        replica: usize,
        work: impl FnOnce(&mut Core) -> Result<T> + Send + 'static,
    ) -> Result<Receiver<Result<T>>> {
        let (reply, answer) = sync_channel(1);
        let call = move |core: &mut Core| {
            // The caller waits for the answer, unless its process is going away.
            let _ = reply.send(core.answer(work));
        };
        self.shared.hub.call(replica, Work::Call(Box::new(call)))?;
        Ok(answer)
    }

    /// Runs a call on every live replica and waits for all. Returns an error if one fails or if all are dead.
    pub(in crate::engine) fn call_all(
        &self,
        work: impl FnOnce(&mut Core) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let replicas = 0..self.shared.hub.replicas();
        let asked: Vec<_> = replicas.map(|replica| self.ask(replica, work.clone())).collect();
        let mut result = Err(dead());
        for answer in asked {
            match answer.and_then(|answer| answer.recv().unwrap_or_else(|_| Err(dead()))) {
                Ok(()) => result = Ok(()),
                Err(error) if error.status == Status::EngineDead => {}
                Err(error) => return Err(error),
            }
        }
        result
    }

    /// Runs a call on the replica of a session. If that one dies meanwhile, runs it on the replica that the name
    /// maps to then.
    fn call_home<T: Send + 'static>(
        &self,
        session: &str,
        work: impl FnOnce(&mut Core, &str) -> Result<T> + Clone + Send + 'static,
    ) -> Result<T> {
        loop {
            let (home, name, own) = (self.home(session), session.to_owned(), work.clone());
            match self.call(home, move |core| own(core, &name)) {
                Err(error) if error.status == Status::EngineDead && self.home(session) != home => {}
                result => return result,
            }
        }
    }

    /// The replica that has a session of this name, if there is one.
    pub(in crate::engine) fn home(&self, session: &str) -> usize {
        self.shared.hub.choose(&|replica, _| session_rank(session, replica)).unwrap_or(0)
    }

    /// Drops a session. `NotFound` if there is none of this name.
    pub fn drop_session(&self, name: &str) -> Result<()> {
        self.call_home(name, Core::drop_session)
    }

    /// Returns a session as bytes, for an engine with the same model and KV type.
    pub fn save_session(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = self.call_home(name, Core::save_session)?;
        session_file::seal(&mut bytes);
        Ok(bytes)
    }

    /// Number of bytes that `save_session` returns, without encoding them.
    pub fn session_size(&self, name: &str) -> Result<usize> {
        self.call_home(name, Core::session_size)
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
        self.call_home(name, move |core, name| core.restore_session(name, &copy))
    }

    /// Passes up to `capacity` changes of the prefix caches to `sink`, oldest first.
    pub fn kv_events(&self, capacity: usize, sink: &mut dyn FnMut(CacheEvent)) -> Result<()> {
        self.shared.kv_events.read(capacity, sink)
    }

    /// Forgets every prefix that no request and no session holds.
    pub fn clear_cache(&self) -> Result<()> {
        self.call_all(|core| {
            core.clear_cache();
            Ok(())
        })
    }
}
