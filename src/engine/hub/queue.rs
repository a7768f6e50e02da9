//! The command queue of an engine thread, and the bell that it sleeps on.

use super::ids::RequestId;
use crate::base::sync::Condvar;
use crate::engine::replicas::balance::Migration;
use std::collections::VecDeque;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// Commands from host threads, and from the hub itself, to an engine thread.
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
    /// Hand waiting requests on.
    Migrate(Migration),
}

/// Work that waits for an engine thread, as the hub sees it.
pub struct Queue<C> {
    pub commands: VecDeque<Command<C>>,
    /// The thread sleeps on its bell.
    pub asleep: bool,
    /// `Hub::hold` was called since the thread last looked.
    pub news: bool,
    /// A grant was refused here (`grant_refused`), and memory was returned since (`retry_grants`).
    pub grant_refused: bool,
    pub retry_grants: bool,
    /// A grant was refused to a request that has begun to give output.
    pub begun_waits: bool,
    /// The thread has ended.
    pub gone: bool,
}

/// State that only the queue's own thread waits for or looks at.
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

    /// The thread knows of every end. Called under the hub's lock.
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

    /// Notes that memory was returned.
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
