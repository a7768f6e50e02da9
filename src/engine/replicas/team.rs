//! The engine threads of an engine, one per replica, as the hub sees them: their command queues and their balance. It
//! is a part of the hub's state.

use super::balance::{Assignment, Balance, Load};
use crate::base::sync::Arc;
use crate::base::{Result, reserved};
use crate::engine::hub::ids::RequestId;
use crate::engine::hub::queue::{Command, Mailbox, Queue};
use crate::engine::hub::slots::{Merge, RequestSlots};

/// Work for a replica.
pub trait Cargo {
    /// Tells the cargo its request id, and the tokens that its replica owes for it.
    fn assign(&mut self, id: RequestId, tokens: u64);
    /// Rank of a replica for a request that stays with the one of the lowest rank, even if that one is sick. None: any
    /// may have the request.
    fn home(&self, _replica: usize) -> Option<u64> {
        None
    }
    /// Tokens that `replica` owes for this request. `before`: the replica of the previous request in the same submit.
    fn tokens(&self, replica: usize, before: Option<usize>) -> u64;
}

/// A replica's report to the others after a step.
pub struct Share<C> {
    pub load: Load,
    /// Requests that never ran, of a replica that fails.
    pub handed_on: Vec<(RequestId, C)>,
}

pub struct Team<C> {
    pub queues: Vec<Queue<C>>,
    /// The hub has these too, and uses them without its lock.
    pub mailboxes: Arc<Vec<Mailbox>>,
    pub balance: Balance,
}

impl<C> Default for Share<C> {
    fn default() -> Self {
        Self { load: Load::default(), handed_on: Vec::new() }
    }
}

impl<C: Cargo> Team<C> {
    pub fn new(replicas: usize) -> Self {
        Self {
            queues: (0..replicas).map(|_| Queue::default()).collect(),
            mailboxes: Arc::new((0..replicas).map(|_| Mailbox::default()).collect()),
            balance: Balance::new(replicas),
        }
    }

    /// Reserves room for `most` more commands in each queue: any replica may get any request in the end.
    pub fn make_room(&mut self, most: usize) -> Result<()> {
        let made = self.queues.iter_mut().try_for_each(|queue| queue.commands.try_reserve(most));
        reserved(made, "the request queue", most * size_of::<Command<C>>())
    }

    /// Chooses the replica of a new request, which then owes its tokens. `before`: see `Cargo::tokens`.
    pub fn choose(&mut self, cargo: &C, before: Option<usize>) -> Assignment {
        let thread = self.balance.choose(&rank(cargo, before), cargo.home(0).is_some());
        self.assign(Assignment { thread, tokens: cargo.tokens(thread, before) })
    }

    fn assign(&mut self, assignment: Assignment) -> Assignment {
        self.balance.begin(assignment);
        assignment
    }

    pub fn send(&mut self, replica: usize, command: Command<C>) {
        if matches!(command, Command::End(_) | Command::EndAll { .. }) {
            self.mailboxes[replica].raise_cancel();
        }
        self.queues[replica].commands.push_back(command);
    }

    /// Tells all replicas to end all their requests. Several such commands in a row become one.
    pub fn end_all(&mut self, shutdown: bool) {
        for replica in 0..self.queues.len() {
            let own = &self.queues[replica];
            if !own.gone && !own.ends_all() {
                self.send(replica, Command::EndAll { shutdown });
            }
        }
    }

    /// Returns whether a request of `replica` may ask for a grant. One that has not `begun` waits for those of
    /// other replicas that have begun and were refused.
    pub fn may_ask(&self, replica: usize, begun: bool) -> bool {
        let waits = |other: usize| other != replica && self.queues[other].begun_waits;
        begun || !(0..self.queues.len()).any(waits)
    }

    /// Memory was returned: notifies every thread that was refused a grant.
    pub fn retry_grants(&mut self) {
        self.queues.iter_mut().for_each(Queue::retry);
    }

    /// Returns a mask of the sleeping threads to wake, and marks them as awake. `done`: none will ever have work again.
    pub fn take_wakeups(&mut self, done: bool) -> u64 {
        let mut ring = 0;
        for (replica, own) in self.queues.iter_mut().enumerate() {
            if own.asleep && (done || !own.is_quiet()) {
                own.asleep = false;
                ring |= 1 << replica;
            }
        }
        ring
    }

    /// Records a replica's load, and moves the requests that it hands on. They come back if no other replica is open.
    /// `ending`: all requests were told to end because the engine shuts down.
    pub fn share<E: Merge>(
        &mut self,
        from: usize,
        news: &mut Share<C>,
        slots: &mut RequestSlots<E>,
        ending: bool,
    ) {
        self.balance.report(from, news.load);
        for (id, mut cargo) in news.handed_on.drain(..) {
            let thread = self.balance.first(&rank(&cargo, None), cargo.home(0).is_some()).unwrap_or(from);
            let assignment = self.assign(Assignment { thread, tokens: cargo.tokens(thread, None) });
            let (old, cancelled) = slots.reassign(id.slot(), assignment);
            self.balance.end(old);
            cargo.assign(id, assignment.tokens);
            self.send(thread, Command::Start(cargo));
            // The request was cancelled while its old replica had it, so notify the new one.
            if cancelled {
                let end = if ending { Command::EndAll { shutdown: true } } else { Command::End(id) };
                self.send(thread, end);
            }
        }
    }

    /// The thread of `replica` has ended, by a failure if it `died`. Returns whether it was the last one.
    pub fn part(&mut self, replica: usize, died: bool) -> bool {
        self.balance.part(replica, died);
        let own = &mut self.queues[replica];
        own.gone = true;
        // Nothing will execute these commands. Dropping a call notifies its waiting caller.
        own.commands.clear();
        self.queues.iter().all(|queue| queue.gone)
    }
}

/// Ranks the replicas for a request: by the tokens that they owe with it, unless it stays.
fn rank<C: Cargo>(cargo: &C, before: Option<usize>) -> impl Fn(usize, u64) -> u64 {
    move |replica, owed| cargo.home(replica).unwrap_or_else(|| owed + cargo.tokens(replica, before))
}

// `tests/concurrency` includes this file, so the path must be explicit.
#[cfg(all(test, not(loom)))]
#[path = "team/tests.rs"]
mod tests;
