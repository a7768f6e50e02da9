//! The command queue of an engine thread, and the bell that it sleeps on.

use super::ids::RequestId;
use crate::base::sync::Condvar;
use crate::engine::replicas::balance::Gift;
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
    Give(Gift),
}

/// Work that waits for an engine thread, as the hub sees it.
pub struct Queue<C> {
    pub commands: VecDeque<Command<C>>,
    /// The thread sleeps on its bell.
    pub asleep: bool,
    /// `Hub::hold` was called since the thread last looked.
    pub news: bool,
    /// A grant was refused here (`hungry`), and memory was returned since (`fed`).
    pub hungry: bool,
    pub fed: bool,
    /// A grant was refused to a request that has begun to give output.
    pub begun_waits: bool,
    /// The thread has ended.
    pub gone: bool,
}

/// State that only the queue's own thread waits for or looks at.
#[derive(Default)]
pub struct Desk {
    pub bell: Condvar,
    /// An `End` or `EndAll` came that `Hub::ends` has not shown yet.
    urgent: AtomicBool,
}

impl Desk {
    pub fn urge(&self) {
        self.urgent.store(true, Ordering::Release);
    }

    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire)
    }

    /// The thread knows of every end. Called under the hub's lock.
    pub fn calm(&self) {
        self.urgent.store(false, Ordering::Relaxed);
    }
}

impl<C> Default for Queue<C> {
    fn default() -> Self {
        Self {
            commands: VecDeque::new(),
            asleep: false,
            news: false,
            hungry: false,
            fed: false,
            begun_waits: false,
            gone: false,
        }
    }
}

impl<C> Queue<C> {
    /// Notes a refused grant. `begun`: the request has begun to give output.
    pub fn starve(&mut self, begun: bool) {
        self.hungry = true;
        self.begun_waits |= begun;
    }

    /// Clears `fed` and returns whether it was set.
    pub fn take_fed(&mut self) -> bool {
        let fed = std::mem::take(&mut self.fed);
        self.begun_waits &= !fed;
        fed
    }

    /// Notes that memory was returned.
    pub fn feed(&mut self) {
        self.fed |= std::mem::take(&mut self.hungry);
    }

    /// Returns whether nothing waits for the thread.
    pub fn is_quiet(&self) -> bool {
        self.commands.is_empty() && !self.fed && !self.news
    }

    /// Returns whether the newest command ends all requests that came before it.
    pub fn ends_all(&self) -> bool {
        matches!(self.commands.back(), Some(Command::EndAll { .. }))
    }
}
