//! The command queue of each engine thread, and the bell that it sleeps on.

use super::*;

/// What an engine thread has to do, as the hub sees it.
pub(super) struct Queue<C> {
    pub commands: VecDeque<Command<C>>,
    /// The thread sleeps on its bell.
    pub asleep: bool,
    /// A grant was refused here (`hungry`), and memory was returned since (`fed`).
    pub hungry: bool,
    pub fed: bool,
    /// A grant was refused to a request that has begun to give output.
    pub begun_waits: bool,
    /// The thread has ended.
    pub gone: bool,
}

/// State that only the queue's own thread waits for or looks at.
pub(super) struct Desk {
    pub bell: Condvar,
    /// An `End` or `EndAll` came that `ends` has not shown yet.
    pub urgent: AtomicBool,
}

impl Desk {
    pub fn new() -> Self {
        Self { bell: Condvar::new(), urgent: AtomicBool::new(false) }
    }
}

impl<C> Queue<C> {
    pub fn new() -> Self {
        Self {
            commands: VecDeque::new(),
            asleep: false,
            hungry: false,
            fed: false,
            begun_waits: false,
            gone: false,
        }
    }

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
        self.commands.is_empty() && !self.fed
    }

    /// Returns whether the newest command ends all requests that came before it.
    pub fn ends_all(&self) -> bool {
        matches!(self.commands.back(), Some(Command::EndAll { .. }))
    }
}

impl<E: Merge, C> State<E, C> {
    /// Returns whether a request of `replica` may ask for a grant. One that has not `begun` waits for those of
    /// other replicas that have begun and were refused.
    pub(super) fn may_ask(&self, replica: usize, begun: bool) -> bool {
        let waits = |other: usize| other != replica && self.queues[other].begun_waits;
        begun || !(0..self.queues.len()).any(waits)
    }

    /// Memory was returned: notifies every thread that was refused a grant.
    pub(super) fn feed_all(&mut self) {
        self.queues.iter_mut().for_each(Queue::feed);
    }

    /// Returns whether no thread will ever have work again.
    pub(super) fn is_done(&self) -> bool {
        self.phase > Phase::Open && self.slots.usage().unfinished == 0
    }

    /// Returns a mask of the sleeping threads to wake, and marks them as awake.
    pub(super) fn rouse(&mut self) -> u64 {
        let (done, mut ring) = (self.is_done(), 0);
        for (replica, own) in self.queues.iter_mut().enumerate() {
            if own.asleep && (done || !own.is_quiet()) {
                own.asleep = false;
                ring |= 1 << replica;
            }
        }
        ring
    }

    /// Asks threads with waiting requests to give some to others that have room.
    pub(super) fn balance(&mut self) {
        for Gift { from, to, most, idle } in self.balance.gifts() {
            self.queues[from].commands.push_back(Command::Give { to, most, idle });
        }
    }
}

impl<E: Merge, C: Cargo, R: Readable> Hub<E, C, R> {
    /// The replica with the lowest `rank`, sick or not: the choice for a request that stays.
    pub fn choose(&self, rank: &dyn Fn(usize, u64) -> u64) -> Option<usize> {
        let state = self.state.lock();
        state.balance.first(&|replica| rank(replica, state.slots.owed(replica)), true)
    }

    pub fn replicas(&self) -> usize {
        self.desks.len()
    }

    /// Number of replicas that died.
    pub fn replicas_lost(&self) -> usize {
        self.state.lock().balance.lost()
    }

    /// Wakes every thread that sleeps although something waits for it, or nothing ever will.
    pub(super) fn wake(&self, mut state: MutexGuard<'_, State<E, C>>) {
        let ring = state.rouse();
        drop(state);
        self.ring(ring);
    }

    /// Rings the bells of the threads in a mask.
    pub(super) fn ring(&self, mut replicas: u64) {
        while replicas != 0 {
            self.desks[replicas.trailing_zeros() as usize].bell.notify_one();
            replicas &= replicas - 1;
        }
    }

    /// Part of `exchange`: stores the load of `replica` and moves the requests that it gives away.
    pub(super) fn share(&self, state: &mut State<E, C>, replica: usize, out: &mut Outbox<E, C>) {
        if std::mem::take(&mut out.gave) {
            state.balance.answered(replica);
        }
        state.balance.report(replica, out.load);
        for (to, id, cargo) in out.given.drain(..) {
            let rank = |replica| cargo.rank(replica, state.slots.owed(replica), None);
            let to = state.balance.pass_on(replica, to, &rank, cargo.stays());
            let cancelled = state.slots.hand_on(id.slot(), to, cargo.tokens(to, None));
            state.queues[to].commands.push_back(Command::Start(cargo));
            // The request was cancelled while its old replica had it, so notify the new one.
            if cancelled {
                let end = if state.ending { Command::EndAll { shutdown: true } } else { Command::End(id) };
                state.queues[to].commands.push_back(end);
                self.desks[to].urgent.store(true, Ordering::Release);
            }
        }
        state.balance();
    }

    /// `replica` accepts no more requests, and those that it gives away go to others. Returns false if there are
    /// no others: the hub is then closing.
    pub fn retire(&self, replica: usize) -> bool {
        let mut state = self.state.lock();
        let others = state.balance.close(replica);
        if !others {
            state.phase = state.phase.max(Phase::Closing);
        }
        state.balance();
        self.wake(state);
        others
    }

    /// The thread of `replica` has ended. After the last one the hub is drained, or dead if the last one `died`.
    pub fn part(&self, replica: usize, died: bool) {
        let mut state = self.state.lock();
        state.balance.part(replica, died);
        let own = &mut state.queues[replica];
        own.gone = true;
        // Nothing will execute these commands. Dropping a call notifies its waiting caller.
        own.commands.clear();
        let last = state.queues.iter().all(|queue| queue.gone);
        drop(state);
        if last {
            self.advance(if died { Phase::Dead } else { Phase::Drained }, false);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
