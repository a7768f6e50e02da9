//! The command queue of an engine thread, and the bell that it sleeps on.

use super::ids::RequestId;
use crate::base::sync::Condvar;
use std::collections::VecDeque;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// Commands to an engine thread, from host threads and from the hub itself.
#[derive(Debug, PartialEq)]
pub enum Command<C> {
    Start(C),
    /// The request was cancelled, or released while live.
    End(RequestId),
    /// The output for which the request was paused has been polled.
    Resume(RequestId),
    /// Ends all requests that were started before.
    EndAll {
        shutdown: bool,
    },
}

/// Work that waits for an engine thread, as the hub sees it.
pub struct Queue<C> {
    pub commands: VecDeque<Command<C>>,
    /// The thread sleeps on its bell.
    pub asleep: bool,
    /// `Hub::hold` or `Hub::knock` was called since the thread last looked.
    pub news: bool,
    /// Whether a grant was refused to a request of this thread since `retry_grants` was last set.
    pub grant_refused: bool,
    /// Memory was returned after a grant was refused: ask again.
    pub retry_grants: bool,
    /// A grant was refused to a request that has begun to give output.
    pub begun_waits: bool,
    /// The thread has ended.
    pub gone: bool,
}

/// The part of a queue that only its thread waits for or reads.
#[derive(Default)]
pub struct Mailbox {
    pub bell: Condvar,
    /// An `End` or `EndAll` came that `Hub::ends` has not shown yet.
    cancel: AtomicBool,
}

impl Mailbox {
    pub fn raise_cancel(&self) {
        self.cancel.store(true, Ordering::Release);
    }

    pub fn cancel_raised(&self) -> bool {
        self.cancel.load(Ordering::Acquire)
    }

    /// Clears the flag once the thread knows of every end. Called under the hub's lock.
    pub fn clear_cancel(&self) {
        self.cancel.store(false, Ordering::Relaxed);
    }
}

impl<C> Default for Queue<C> {
    fn default() -> Self {
        Self {
            commands: VecDeque::new(),
            asleep: false,
            news: false,
            grant_refused: false,
            retry_grants: false,
            begun_waits: false,
            gone: false,
        }
    }
}

impl<C> Queue<C> {
    /// Notes a refused grant. `begun`: the request has begun to give output.
    pub fn refuse_grant(&mut self, begun: bool) {
        self.grant_refused = true;
        self.begun_waits |= begun;
    }

    /// Clears `retry_grants` and returns whether it was set.
    pub fn take_retry(&mut self) -> bool {
        let retry = std::mem::take(&mut self.retry_grants);
        self.begun_waits &= !retry;
        retry
    }

    /// Notes that memory was returned, so that the thread retries its refused grants.
    pub fn retry(&mut self) {
        self.retry_grants |= std::mem::take(&mut self.grant_refused);
    }

    /// Returns whether nothing waits for the thread.
    pub fn is_quiet(&self) -> bool {
        self.commands.is_empty() && !self.retry_grants && !self.news
    }

    /// Returns whether the newest command ends all requests that came before it.
    pub fn ends_all(&self) -> bool {
        matches!(self.commands.back(), Some(Command::EndAll { .. }))
    }
}
