//! The engine's replicas, each a thread with its own queue: who gets a request, and what one hands on to another.
//!
//! A request goes to the replica that its cargo ranks first. Where a replica could not admit all that wait there and another
//! has room, the hub asks the former to give some away (`Command::Give`); it hands them over with its next step's events.

use super::*;

/// Of an engine, at most.
pub const MAX_REPLICAS: usize = 64;

/// What a replica could do besides what it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that it could begin at once.
    pub room: u32,
    /// It has no request at all.
    pub idle: bool,
    /// Requests that wait there, and that its last step did not admit.
    pub waiting: u32,
    /// Its last passes failed, all of them: others come first.
    pub sick: bool,
}

/// Beside sick replicas, one request in so many goes to one of them, each in its turn, so that it can show that it is well.
const PROBE: u32 = 16;

/// An engine thread, as the hub sees it.
pub(super) struct Replica<C> {
    pub commands: VecDeque<Command<C>>,
    /// It waits for its bell.
    pub asleep: bool,
    /// It was refused a grant, and memory has come back since.
    pub hungry: bool,
    pub fed: bool,
    /// It takes requests.
    pub open: bool,
    /// Its thread is gone, and died.
    pub gone: bool,
    died: bool,
    pub load: Load,
    /// It was asked to give to that one, and has not answered.
    giving_to: Option<usize>,
    /// Another one was asked to give to it.
    awaits: bool,
    /// A request that has begun to give was refused a grant.
    pub begun_waits: bool,
}

/// What only its own thread waits for or looks at.
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
    /// One more request is on its way there.
    fn fill(&mut self) {
        (self.room, self.idle) = (self.room.saturating_sub(1), false);
    }
}

impl<C> Replica<C> {
    /// A grant was refused, to a request that has begun to give or not.
    pub fn starve(&mut self, begun: bool) {
        self.hungry = true;
        self.begun_waits |= begun;
    }

    /// Takes up that memory came back: true.
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

    /// Nothing waits for it.
    pub fn is_quiet(&self) -> bool {
        self.commands.is_empty() && !self.fed
    }

    /// The newest command ends all that came before it.
    pub fn ends_all(&self) -> bool {
        matches!(self.commands.back(), Some(Command::EndAll { .. }))
    }

    /// A replica where requests wait that nobody asked to give any to this one, which has room.
    #[cfg(all(test, not(loom)))]
    pub fn idles_beside(&self, others: &[Self]) -> Option<usize> {
        let able = self.open && self.load.room > 0 && !self.awaits;
        others.iter().position(|other| able && other.load.waiting > 0 && other.giving_to.is_none())
    }

    /// Memory came back.
    pub fn feed(&mut self) {
        self.fed |= std::mem::take(&mut self.hungry);
    }
}

impl<E: Merge, C> State<E, C> {
    /// For a new request: as `first`, or a sick one in its turn.
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

    /// The open replica that `rank`, by its number and by the tokens that it owes, puts first; unless the request `stays`, a
    /// sick one only where all are.
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

    /// Whether a request of `replica` that has begun to give, or not, may ask for a grant: who begins waits for those of other
    /// replicas that have begun.
    pub(super) fn may_ask(&self, replica: usize, begun: bool) -> bool {
        let waits = |other: usize| other != replica && self.replicas[other].begun_waits;
        begun || !(0..self.replicas.len()).any(waits)
    }

    /// Memory came back: every replica that was refused some hears of it.
    pub(super) fn feed_all(&mut self) {
        self.replicas.iter_mut().for_each(Replica::feed);
    }

    /// No replica will ever have work again.
    pub(super) fn is_done(&self) -> bool {
        self.phase > Phase::Open && self.slots.usage().unfinished == 0
    }

    /// A mask of the replicas to ring for: they sleep no more.
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

    /// Asks replicas where requests wait to give some to those that have room.
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
            // Half of them: it will have room itself.
            let most = self.replicas[from].load.waiting.div_ceil(2).min(room);
            self.replicas[to].awaits = true;
            let giver = &mut self.replicas[from];
            giver.giving_to = Some(to);
            giver.commands.push_back(Command::Give { to, most, idle });
        }
    }
}

impl<E: Merge, C: Cargo, R: Readable> Hub<E, C, R> {
    /// The replica that `rank` puts first, as a request with that rank would find it that stays.
    pub fn choose(&self, rank: &dyn Fn(usize, u64) -> u64) -> Option<usize> {
        self.state.lock().first(rank, true)
    }

    pub fn replicas(&self) -> usize {
        self.desks.len()
    }

    /// How many died.
    pub fn replicas_lost(&self) -> usize {
        self.state.lock().replicas.iter().filter(|replica| replica.died).count()
    }

    /// Rings for every replica that sleeps though something waits for it, or nothing ever will.
    pub(super) fn wake(&self, mut state: MutexGuard<'_, State<E, C>>) {
        let ring = state.rouse();
        drop(state);
        self.ring(ring);
    }

    /// For the replicas of a mask.
    pub(super) fn ring(&self, mut replicas: u64) {
        while replicas != 0 {
            self.desks[replicas.trailing_zeros() as usize].bell.notify_one();
            replicas &= replicas - 1;
        }
    }

    /// Of `exchange`: what `replica` could do, and what it gives away.
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
            // Where nobody takes it, it comes back.
            let to = to.unwrap_or(replica);
            let cancelled = state.slots.hand_on(id.slot(), to, cargo.tokens(to, None));
            state.start(to, cargo);
            // Its end was asked for where it is no more.
            if cancelled {
                let end = if state.ending { Command::EndAll { shutdown: true } } else { Command::End(id) };
                state.replicas[to].commands.push_back(end);
                self.desks[to].urgent.store(true, Ordering::Release);
            }
        }
        state.balance();
    }

    /// `replica` takes no more requests, and what it gives away goes to others. False where there are none: the hub is
    /// closing.
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

    /// The thread of `replica` is gone. Behind the last one, the hub is drained, or dead where that one `died`.
    pub fn part(&self, replica: usize, died: bool) {
        let mut state = self.state.lock();
        let own = &mut state.replicas[replica];
        (own.gone, own.died, own.open) = (true, died, false);
        // Nobody takes them any more: who waits for an answer learns that with its sender.
        own.commands.clear();
        let last = state.replicas.iter().all(|replica| replica.gone);
        drop(state);
        if last {
            self.advance(if died { Phase::Dead } else { Phase::Drained }, false);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "hub_replicas_tests.rs"]
mod tests;
