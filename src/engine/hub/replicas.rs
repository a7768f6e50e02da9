//! The engine's replicas, each a thread with its own queue. Chooses the replica of a request, and balances waiting
//! requests.
//!
//! A request goes to the replica with the lowest rank. If a replica could not admit all its waiting requests and
//! another has room, the hub asks the first to give some away (`Command::Give`); it hands them over together with
//! the events of its next step.

use super::*;

/// Maximum number of replicas of an engine.
pub const MAX_REPLICAS: usize = 64;

/// Spare capacity and state of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of requests that it could begin at once.
    pub room: u32,
    /// It has no request at all.
    pub idle: bool,
    /// Number of waiting requests that its last step did not admit.
    pub waiting: u32,
    /// Its last passes all failed: other replicas are preferred.
    pub sick: bool,
}

/// While replicas are sick, one of this many new requests goes to a sick one, in turn, so that it can show that it
/// has recovered.
const PROBE: u32 = 16;

/// An engine thread, as the hub sees it.
pub(super) struct Replica<C> {
    pub commands: VecDeque<Command<C>>,
    /// The thread sleeps on its bell.
    pub asleep: bool,
    /// A grant was refused here (`hungry`), and memory was returned since (`fed`).
    pub hungry: bool,
    pub fed: bool,
    /// It accepts requests.
    pub open: bool,
    /// Its thread has ended (`gone`), by a failure (`died`).
    pub gone: bool,
    died: bool,
    pub load: Load,
    /// The replica that it was asked to give requests to, until it has answered.
    giving_to: Option<usize>,
    /// Another replica was asked to give to this one.
    awaits: bool,
    /// A grant was refused to a request that has begun to give output.
    pub begun_waits: bool,
}

/// State that only the replica's own thread waits for or looks at.
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

impl Load {
    /// Counts one more request that is on its way there.
    fn fill(&mut self) {
        (self.room, self.idle) = (self.room.saturating_sub(1), false);
    }
}

impl<C> Replica<C> {
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

    pub fn new() -> Self {
        Self {
            commands: VecDeque::new(),
            asleep: false,
            hungry: false,
            fed: false,
            open: true,
            gone: false,
            died: false,
            load: Load::default(),
            giving_to: None,
            awaits: false,
            begun_waits: false,
        }
    }

    /// Returns whether nothing waits for the replica.
    pub fn is_quiet(&self) -> bool {
        self.commands.is_empty() && !self.fed
    }

    /// Returns whether the newest command ends all requests that came before it.
    pub fn ends_all(&self) -> bool {
        matches!(self.commands.back(), Some(Command::EndAll { .. }))
    }

    /// Returns a replica that has waiting requests and was not asked to give any, although this one has room.
    #[cfg(all(test, not(loom)))]
    pub fn idles_beside(&self, others: &[Self]) -> Option<usize> {
        let able = self.open && self.load.room > 0 && !self.awaits;
        others.iter().position(|other| able && other.load.waiting > 0 && other.giving_to.is_none())
    }

    /// Notes that memory was returned.
    pub fn feed(&mut self) {
        self.fed |= std::mem::take(&mut self.hungry);
    }
}

impl<E: Merge, C> State<E, C> {
    /// The replica for a new request: `first`, or now and then a sick one in turn.
    pub(super) fn choose_for_new(&mut self, rank: &dyn Fn(usize, u64) -> u64, stays: bool) -> Option<usize> {
        let sick = |replica: &usize| self.replicas[*replica].open && self.replicas[*replica].load.sick;
        let count = (0..self.replicas.len()).filter(sick).count();
        if stays || count == 0 {
            return self.first(rank, stays);
        }
        self.beside_sick = self.beside_sick.wrapping_add(1);
        if self.beside_sick.is_multiple_of(PROBE) {
            return (0..self.replicas.len()).filter(sick).nth((self.beside_sick / PROBE) as usize % count);
        }
        self.first(rank, false)
    }

    /// The open replica with the lowest `rank`, which is a function of its number and of the tokens that it owes.
    /// A sick one only if all are sick, or if the request `stays`.
    fn first(&self, rank: &dyn Fn(usize, u64) -> u64, stays: bool) -> Option<usize> {
        let open = (0..self.replicas.len()).filter(|&replica| self.replicas[replica].open);
        let sick = |replica: usize| !stays && self.replicas[replica].load.sick;
        open.min_by_key(|&replica| (sick(replica), rank(replica, self.slots.owed(replica))))
    }

    /// Queues a request for a replica.
    pub(super) fn start(&mut self, replica: usize, cargo: C) {
        let own = &mut self.replicas[replica];
        own.load.fill();
        own.commands.push_back(Command::Start(cargo));
    }

    /// Returns whether a request of `replica` may ask for a grant. One that has not `begun` waits for those of
    /// other replicas that have begun and were refused.
    pub(super) fn may_ask(&self, replica: usize, begun: bool) -> bool {
        let waits = |other: usize| other != replica && self.replicas[other].begun_waits;
        begun || !(0..self.replicas.len()).any(waits)
    }

    /// Memory was returned: notifies every replica that was refused a grant.
    pub(super) fn feed_all(&mut self) {
        self.replicas.iter_mut().for_each(Replica::feed);
    }

    /// Returns whether no replica will ever have work again.
    pub(super) fn is_done(&self) -> bool {
        self.phase > Phase::Open && self.slots.usage().unfinished == 0
    }

    /// Returns a mask of the sleeping replicas to wake, and marks them as awake.
    pub(super) fn rouse(&mut self) -> u64 {
        let (done, mut ring) = (self.is_done(), 0);
        for (replica, own) in self.replicas.iter_mut().enumerate() {
            if own.asleep && (done || !own.is_quiet()) {
                own.asleep = false;
                ring |= 1 << replica;
            }
        }
        ring
    }

    /// `replica` gave what it was asked for, or never will.
    fn answered(&mut self, replica: usize) {
        if let Some(to) = self.replicas[replica].giving_to.take() {
            self.replicas[to].awaits = false;
        }
    }

    /// Asks replicas with waiting requests to give some to replicas that have room.
    fn balance(&mut self) {
        for to in 0..self.replicas.len() {
            let Replica { load: Load { room, idle, .. }, open, awaits, .. } = self.replicas[to];
            if room == 0 || awaits || !open {
                continue;
            }
            let busiest = |replica: &usize| self.replicas[*replica].load.waiting;
            let able =
                |from: &usize| *from != to && busiest(from) > 0 && self.replicas[*from].giving_to.is_none();
            let Some(from) = (0..self.replicas.len()).filter(able).max_by_key(busiest) else { continue };
            // Only half of them: the giving replica will have room itself.
            let most = self.replicas[from].load.waiting.div_ceil(2).min(room);
            self.replicas[to].awaits = true;
            let giver = &mut self.replicas[from];
            giver.giving_to = Some(to);
            giver.commands.push_back(Command::Give { to, most, idle });
        }
    }
}

impl<E: Merge, C: Cargo, R: Readable> Hub<E, C, R> {
    /// The replica with the lowest `rank`, sick or not: the choice for a request that stays.
    pub fn choose(&self, rank: &dyn Fn(usize, u64) -> u64) -> Option<usize> {
        self.state.lock().first(rank, true)
    }

    pub fn replicas(&self) -> usize {
        self.desks.len()
    }

    /// Number of replicas that died.
    pub fn replicas_lost(&self) -> usize {
        self.state.lock().replicas.iter().filter(|replica| replica.died).count()
    }

    /// Wakes every replica that sleeps although something waits for it, or nothing ever will.
    pub(super) fn wake(&self, mut state: MutexGuard<'_, State<E, C>>) {
        let ring = state.rouse();
        drop(state);
        self.ring(ring);
    }

    /// Rings the bells of the replicas in a mask.
    pub(super) fn ring(&self, mut replicas: u64) {
        while replicas != 0 {
            self.desks[replicas.trailing_zeros() as usize].bell.notify_one();
            replicas &= replicas - 1;
        }
    }

    /// Part of `exchange`: stores the load of `replica` and moves the requests that it gives away.
    pub(super) fn share(&self, state: &mut State<E, C>, replica: usize, out: &mut Outbox<E, C>) {
        if std::mem::take(&mut out.gave) {
            state.answered(replica);
        }
        if state.replicas[replica].open {
            state.replicas[replica].load = out.load;
        }
        for (to, id, cargo) in out.given.drain(..) {
            let able = to.filter(|&to| state.replicas[to].open && !state.replicas[to].load.sick);
            let rank = |replica, owed| cargo.rank(replica, owed, None);
            let to = able.or_else(|| state.first(&rank, cargo.stays()));
            // If no other replica takes the request, it comes back.
            let to = to.unwrap_or(replica);
            let cancelled = state.slots.hand_on(id.slot(), to, cargo.tokens(to, None));
            state.start(to, cargo);
            // The request was cancelled while its old replica had it, so notify the new one.
            if cancelled {
                let end = if state.ending { Command::EndAll { shutdown: true } } else { Command::End(id) };
                state.replicas[to].commands.push_back(end);
                self.desks[to].urgent.store(true, Ordering::Release);
            }
        }
        state.balance();
    }

    /// `replica` accepts no more requests, and those that it gives away go to others. Returns false if there are
    /// no others: the hub is then closing.
    pub fn retire(&self, replica: usize) -> bool {
        let mut state = self.state.lock();
        state.answered(replica);
        let own = &mut state.replicas[replica];
        (own.open, own.load) = (false, Load::default());
        let others = state.replicas.iter().any(|replica| replica.open);
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
        let own = &mut state.replicas[replica];
        (own.gone, own.died, own.open) = (true, died, false);
        // Nothing will execute these commands. Dropping a call notifies its waiting caller.
        own.commands.clear();
        let last = state.replicas.iter().all(|replica| replica.gone);
        drop(state);
        if last {
            self.advance(if died { Phase::Dead } else { Phase::Drained }, false);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
