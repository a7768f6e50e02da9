//! What a host has the engine's replicas do between two steps, and waits for.

use super::super::choice::session_rank;
use super::*;
use crate::cache::{CacheEvent, chain};
use std::sync::mpsc::{Receiver, sync_channel};

impl Engine {
    /// Has a replica do something, and waits for it.
    fn call<T: Send + 'static>(
        &self,
        replica: usize,
        work: impl FnOnce(&mut Core) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.ask(replica, work)?.recv().unwrap_or_else(|_| Err(dead()))
    }

    /// As `call`, and somebody else waits.
    pub(in super::super) fn ask<T: Send + 'static>(
        &self,
        replica: usize,
        work: impl FnOnce(&mut Core) -> Result<T> + Send + 'static,
    ) -> Result<Receiver<Result<T>>> {
        let (reply, answer) = sync_channel(1);
        let call = move |core: &mut Core| {
            // The caller waits for it, unless it has gone with its process.
            let _ = reply.send(core.answer(work));
        };
        self.shared.hub.call(replica, Work::Call(Box::new(call)))?;
        Ok(answer)
    }

    /// Has every replica that lives do something, and waits for all. An error where one fails, or all are dead.
    pub(in super::super) fn call_all(
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

    /// Has the replica of a session do something; where that one died meanwhile, the one that has the name now.
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

    /// The replica that has a session, if there is one of this name.
    pub(in super::super) fn home(&self, session: &str) -> usize {
        self.shared.hub.choose(&|replica, _| session_rank(session, replica)).unwrap_or(0)
    }

    /// Positions of a prompt that each of several replicas has in its cache.
    pub(super) fn cached_at(&self, sequence: &Sequence) -> Result<Vec<u32>> {
        let (size, reuse) = (self.kv_block_size as usize, sequence.request().reuse);
        if self.shared.hub.replicas() == 1 || !reuse.shared {
            return Ok(Vec::new());
        }
        let (mut keys, mut key) = (Vec::new(), reuse.salt);
        reserve(&mut keys, sequence.prompt.len() / size, "the keys of a prompt")?;
        for block in sequence.prompt.chunks_exact(size) {
            key = chain(key, block);
            keys.push(key);
        }
        let mut positions = self.shared.kv_events.leading(&keys)?;
        positions.iter_mut().for_each(|blocks| *blocks *= size as u32);
        Ok(positions)
    }

    /// Of requests that are submitted together: what each prompt has in common with the one before.
    pub(super) fn compare(&self, requests: &mut [(Place, Work)]) {
        if self.shared.hub.replicas() == 1 {
            return;
        }
        for at in 1..requests.len() {
            let (before, own) = requests.split_at_mut(at);
            let (Work::Sequence(before), Work::Sequence(own)) = (&before[at - 1].1, &mut own[0].1) else {
                continue;
            };
            let (a, b) = (before.request().reuse, own.request().reuse);
            if a.shared && b.shared && a.salt == b.salt {
                let pairs = before.prompt.iter().zip(&own.prompt);
                own.like_before = pairs.take_while(|(a, b)| a == b).count() as u32;
            }
        }
    }

    /// Gives up what a session holds. `NotFound` where there is none of this name.
    pub fn drop_session(&self, name: &str) -> Result<()> {
        self.call_home(name, Core::drop_session)
    }

    /// A session as bytes, for an engine with the same model and KV type.
    pub fn save_session(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = self.call_home(name, Core::save_session)?;
        session_file::seal(&mut bytes);
        Ok(bytes)
    }

    /// How many bytes `save_session` gives, without making them.
    pub fn session_size(&self, name: &str) -> Result<usize> {
        self.call_home(name, Core::session_size)
    }

    /// Makes a session of what `save_session` gave. `InvalidArgument` for anything else; `MemoryLimit` where it does not
    /// fit.
    pub fn restore_session(&self, name: &str, bytes: &[u8]) -> Result<()> {
        config::session_name(name)?;
        let content = session_file::unseal(bytes)?;
        let mut copy = Vec::new();
        reserve(&mut copy, content.len(), "a restored session")?;
        copy.extend_from_slice(content);
        let copy = Arc::new(copy);
        self.call_home(name, move |core, name| core.restore_session(name, &copy))
    }

    /// Hands up to `capacity` changes of the prefix caches to `sink`, oldest first.
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
