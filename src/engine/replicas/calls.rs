//! Calls of a host thread that replicas execute between two steps, while the caller waits.

use super::placement::session_rank;
use crate::base::{Result, Status};
use crate::engine::core::calls::Work;
use crate::engine::core::{Core, Shared};
use crate::engine::hub::dead;
use std::sync::mpsc::{Receiver, sync_channel};

impl Shared {
    /// Queues a call for a replica and returns the receiver of its result.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        replica: usize,
        work: impl FnOnce(&mut Core) -> Result<T> + Send + 'static,
    ) -> Result<Receiver<Result<T>>> {
        let (reply, answer) = sync_channel(1);
        let call = move |core: &mut Core| {
            // The caller waits for the answer, unless its process is going away.
            let _ = reply.send(core.answer(work));
        };
        self.hub.call(replica, Work::Call(Box::new(call)))?;
        Ok(answer)
    }

    /// Runs a call on every live replica and waits for all. Returns an error if one fails or if all are dead.
    pub(crate) fn call_all(
        &self,
        work: impl FnOnce(&mut Core) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let replicas = 0..self.hub.threads();
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

    /// Runs a call on the replica of a session and waits for its result. If that one dies meanwhile, runs it on the
    /// replica that the name maps to then.
    pub(crate) fn call_home<T: Send + 'static>(
        &self,
        session: &str,
        work: impl FnOnce(&mut Core, &str) -> Result<T> + Clone + Send + 'static,
    ) -> Result<T> {
        loop {
            let (home, name, own) = (self.home(session), session.to_owned(), work.clone());
            let asked = self.ask(home, move |core| own(core, &name));
            match asked.and_then(|answer| answer.recv().unwrap_or_else(|_| Err(dead()))) {
                Err(error) if error.status == Status::EngineDead && self.home(session) != home => {}
                result => return result,
            }
        }
    }

    /// The replica that the name of a session belongs to.
    pub(crate) fn home(&self, session: &str) -> usize {
        let rank = |replica, _| session_rank(session, replica);
        self.hub.team(|team| team.balance.first(&rank, true)).unwrap_or(0)
    }
}
