//! Chooses the replica of each request, and balances waiting requests. It is a part of the hub's state, without
//! queues and threads.
//!
//! A request goes to the replica with the lowest rank. If a replica could not admit all its waiting requests and
//! another has room, the first is asked to hand some on ([`Migration`]), which it does together with the events of its
//! next step.

/// Maximum number of replicas of an engine.
pub(crate) const MAX_REPLICAS: usize = 64;

/// While replicas are sick, one of this many new requests goes to a sick one, in turn, so that it can show that it
/// has recovered.
const PROBE: u32 = 16;

/// Spare capacity and state of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of requests that the replica could begin at once.
    pub room: u32,
    /// The replica has no request at all.
    pub idle: bool,
    /// Number of waiting requests that its last step did not admit.
    pub waiting: u32,
    /// Its last passes all failed: other replicas are preferred.
    pub sick: bool,
}

/// The assignment of a request: the thread that has it, by the number of its replica, and the tokens that the
/// thread owes for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    pub thread: usize,
    pub tokens: u64,
}

/// A migration: a replica hands on at most `most` waiting requests that have never run, to replica `to` or to any
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    pub to: Option<usize>,
    pub most: u32,
    /// The receiver has no request. Otherwise only requests go that were not handed on before.
    pub idle: bool,
}

struct Member {
    /// The replica accepts requests.
    open: bool,
    /// The replica's thread ended by a failure.
    died: bool,
    load: Load,
    /// The target of the migration that the replica was asked for and has not executed yet.
    migrating_to: Option<usize>,
    /// Another replica was asked to migrate requests to this one.
    awaits: bool,
}

pub struct Balance {
    members: Vec<Member>,
    /// Number of requests submitted beside sick replicas that could go to any replica.
    beside_sick: u32,
}

impl Balance {
    pub fn new(replicas: usize) -> Self {
        let load = Load::default();
        let member = |_| Member { open: true, died: false, load, migrating_to: None, awaits: false };
        Self { members: (0..replicas).map(member).collect(), beside_sick: 0 }
    }

    fn with(&self, is: impl Fn(&Member) -> bool) -> impl Iterator<Item = usize> {
        self.members.iter().enumerate().filter(move |(_, member)| is(member)).map(|(number, _)| number)
    }

    /// The replica for a new request, which then counts there: `first`, or now and then a sick one in turn. If all
    /// are closed, the first one: the hub refuses or ends what comes.
    pub fn choose(&mut self, rank: &dyn Fn(usize) -> u64, stays: bool) -> usize {
        let sick: fn(&Member) -> bool = |member| member.open && member.load.sick;
        let count = self.with(sick).count();
        let mut probed = None;
        if count > 0 && !stays {
            self.beside_sick = self.beside_sick.wrapping_add(1);
            let turn = (self.beside_sick / PROBE) as usize % count;
            let probes = self.beside_sick.is_multiple_of(PROBE);
            probed = self.with(sick).nth(turn).filter(|_| probes);
        }
        let chosen = probed.or_else(|| self.first(rank, stays)).unwrap_or(0);
        self.fill(chosen);
        chosen
    }

    /// The replica for a request that `from` hands on, which then counts there: `to` if it can take it, or else the
    /// first. If no other replica takes the request, it comes back.
    pub fn pass_on(
        &mut self,
        from: usize,
        to: Option<usize>,
        rank: &dyn Fn(usize) -> u64,
        stays: bool,
    ) -> usize {
        let able = to.filter(|&to| self.members[to].open && !self.members[to].load.sick);
        let chosen = able.or_else(|| self.first(rank, stays)).unwrap_or(from);
        self.fill(chosen);
        chosen
    }

    /// The open replica with the lowest `rank`. A sick one only if all are sick, or if the request `stays`.
    pub fn first(&self, rank: &dyn Fn(usize) -> u64, stays: bool) -> Option<usize> {
        let sick = |replica: usize| !stays && self.members[replica].load.sick;
        self.with(|member| member.open).min_by_key(|&replica| (sick(replica), rank(replica)))
    }

    /// Counts one more request that is on its way there.
    fn fill(&mut self, replica: usize) {
        let load = &mut self.members[replica].load;
        (load.room, load.idle) = (load.room.saturating_sub(1), false);
    }

    pub fn is_open(&self, replica: usize) -> bool {
        self.members[replica].open
    }

    /// Number of replicas that died.
    pub fn lost(&self) -> usize {
        self.with(|member| member.died).count()
    }

    /// Records a replica's load.
    pub fn report(&mut self, replica: usize, load: Load) {
        let member = &mut self.members[replica];
        if member.open {
            member.load = load;
        }
    }

    /// `replica` has executed its migration, or never will.
    pub fn answered(&mut self, replica: usize) {
        if let Some(to) = self.members[replica].migrating_to.take() {
            self.members[to].awaits = false;
        }
    }

    /// Migrations from replicas with waiting requests to replicas with room, each with the source.
    pub fn migrations(&mut self) -> impl Iterator<Item = (usize, Migration)> {
        (0..self.members.len()).filter_map(|to| self.migration(to))
    }

    fn migration(&mut self, to: usize) -> Option<(usize, Migration)> {
        let Member { load: Load { room, idle, .. }, open, awaits, .. } = self.members[to];
        if room == 0 || awaits || !open {
            return None;
        }
        let able = |member: &Member| member.load.waiting > 0 && member.migrating_to.is_none();
        let others = self.with(able).filter(|&from| from != to);
        let from = others.max_by_key(|&from| self.members[from].load.waiting)?;
        self.members[to].awaits = true;
        let source = &mut self.members[from];
        source.migrating_to = Some(to);
        // Only half of them, since the source will have room itself.
        Some((from, Migration { to: Some(to), most: source.load.waiting.div_ceil(2).min(room), idle }))
    }

    /// `replica` accepts no more requests. Returns whether others do.
    pub fn close(&mut self, replica: usize) -> bool {
        self.answered(replica);
        let member = &mut self.members[replica];
        (member.open, member.load) = (false, Load::default());
        self.members.iter().any(|member| member.open)
    }

    /// The thread of `replica` has ended, by a failure if it `died`.
    pub fn part(&mut self, replica: usize, died: bool) {
        let member = &mut self.members[replica];
        (member.open, member.died) = (false, died);
    }

    /// A replica that has waiting requests and was not asked to hand any on, although `replica` has room.
    #[cfg(all(test, not(loom)))]
    pub fn forgotten_by(&self, replica: usize) -> Option<usize> {
        let Member { open, awaits, load, .. } = self.members[replica];
        let able = open && load.room > 0 && !awaits;
        self.with(|other| able && other.load.waiting > 0 && other.migrating_to.is_none()).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balance(loads: &[Load]) -> Balance {
        let mut balance = Balance::new(loads.len());
        loads.iter().enumerate().for_each(|(replica, load)| balance.report(replica, *load));
        balance
    }

    const IDLE: Load = Load { room: 4, idle: true, waiting: 0, sick: false };
    const BUSY: Load = Load { room: 0, idle: false, waiting: 5, sick: false };
    const SICK: Load = Load { sick: true, ..BUSY };

    #[test]
    fn the_lowest_rank_decides_among_those_that_are_well() {
        let mut balance = balance(&[SICK, IDLE, IDLE]);
        let rank = |replica| [1, 3, 2][replica];
        assert_eq!(balance.choose(&rank, false), 2);
        assert_eq!(balance.choose(&rank, true), 0, "it stays");
        let chosen: Vec<_> = (2..=32).map(|_| balance.choose(&rank, false)).collect();
        let probed: Vec<_> = (2..=32).zip(&chosen).filter(|(_, to)| **to == 0).map(|(n, _)| n).collect();
        assert_eq!(probed, [16, 32], "a sick one gets a probe");
        assert!(balance.close(2));
        assert_eq!(balance.first(&rank, false), Some(1));
        assert!(balance.close(1));
        assert_eq!(balance.first(&rank, false), Some(0), "all are sick");
        assert!(!balance.close(0));
        assert_eq!(balance.first(&rank, false), None);
    }

    #[test]
    fn what_is_handed_on_comes_back_if_nobody_else_takes_it() {
        let mut balance = balance(&[BUSY, SICK, IDLE]);
        let rank = |replica| replica as u64;
        assert_eq!(balance.pass_on(0, Some(2), &rank, false), 2);
        assert_eq!(balance.pass_on(0, Some(1), &rank, false), 0, "a sick one takes nothing");
        balance.close(0);
        assert_eq!(balance.pass_on(0, None, &rank, false), 2);
        balance.close(1);
        balance.close(2);
        assert_eq!(balance.pass_on(0, None, &rank, false), 0);
    }

    #[test]
    fn each_giver_and_each_receiver_is_asked_once() {
        let mut balance = balance(&[BUSY, IDLE, IDLE]);
        let migration = |to| Migration { to: Some(to), most: 3, idle: true };
        assert_eq!(balance.migrations().collect::<Vec<_>>(), [(0, migration(1))]);
        assert_eq!(balance.migrations().count(), 0);
        balance.answered(0);
        balance.report(1, BUSY);
        assert_eq!(balance.migrations().collect::<Vec<_>>(), [(1, migration(2))]);
        balance.close(1);
        assert_eq!(balance.migrations().collect::<Vec<_>>(), [(0, migration(2))], "the other never came");
    }
}
