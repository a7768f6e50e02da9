//! Chooses the replica of each request, at submit. It is a part of the hub's state, without queues and threads.
//!
//! A request goes to the open replica with the lowest rank, and stays there unless that one fails.

/// Maximum number of replicas of an engine.
pub(crate) const MAX_REPLICAS: usize = 64;

/// While replicas are sick, one of this many new requests goes to a sick one, in turn, so that it can show that it
/// has recovered.
const PROBE: u32 = 16;

/// How many tokens more a replica may owe before a request waits for a seat elsewhere instead. It gives up a cached
/// prefix of that length, too.
const LINE: u64 = 1024;

/// A replica's report after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Tokens that it has computed of what it owed for its unfinished requests.
    pub done: u64,
    /// Number of unfinished requests that it has without one waiting. With as many, the next one waits.
    pub seats: usize,
    /// Its last passes all failed: other replicas are preferred.
    pub sick: bool,
}

/// The load before the first report: nothing waits.
impl Default for Load {
    fn default() -> Self {
        Self { done: 0, seats: usize::MAX, sick: false }
    }
}

/// The assignment of a request: the thread that has it, by the number of its replica, and the tokens that the
/// thread owes for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    pub thread: usize,
    pub tokens: u64,
}

/// The rank of a replica, by its number and the tokens in front of a new request.
pub(crate) type Rank<'a> = &'a dyn Fn(usize, u64) -> u64;

struct Member {
    /// The replica accepts requests.
    open: bool,
    /// The replica's thread ended by a failure.
    died: bool,
    /// Its unfinished requests, and their tokens, computed or not.
    requests: usize,
    owed: u64,
    load: Load,
}

pub struct Balance {
    members: Vec<Member>,
    /// Number of requests submitted beside sick replicas that could go to any replica.
    beside_sick: u32,
}

impl Balance {
    pub fn new(replicas: usize) -> Self {
        let member = |_| Member { open: true, died: false, requests: 0, owed: 0, load: Load::default() };
        Self { members: (0..replicas).map(member).collect(), beside_sick: 0 }
    }

    fn with(&self, is: impl Fn(&Member) -> bool) -> impl Iterator<Item = usize> {
        self.members.iter().enumerate().filter(move |(_, member)| is(member)).map(|(number, _)| number)
    }

    /// The replica for a new request: `first`, or now and then a sick one in turn. If all are closed, the first one:
    /// the hub refuses or ends what comes.
    pub fn choose(&mut self, rank: Rank, stays: bool) -> usize {
        let sick: fn(&Member) -> bool = |member| member.open && member.load.sick;
        let count = self.with(sick).count();
        let mut probed = None;
        if count > 0 && !stays {
            self.beside_sick = self.beside_sick.wrapping_add(1);
            let turn = (self.beside_sick / PROBE) as usize % count;
            let probes = self.beside_sick.is_multiple_of(PROBE);
            probed = self.with(sick).nth(turn).filter(|_| probes);
        }
        probed.or_else(|| self.first(rank, stays)).unwrap_or(0)
    }

    /// The open replica with the lowest `rank`. A sick one only if all are sick, or if the request `stays`.
    pub fn first(&self, rank: Rank, stays: bool) -> Option<usize> {
        let sick = |replica: usize| !stays && self.members[replica].load.sick;
        let ranked = |replica| rank(replica, self.ahead(replica));
        self.with(|member| member.open).min_by_key(|&replica| (sick(replica), ranked(replica)))
    }

    /// Tokens that `replica` still has to compute, and more if a new request would wait for a seat.
    fn ahead(&self, replica: usize) -> u64 {
        let Member { requests, owed, load, .. } = &self.members[replica];
        owed.saturating_sub(load.done) + if *requests < load.seats { 0 } else { LINE }
    }

    /// A request was assigned.
    pub fn begin(&mut self, assignment: Assignment) {
        let member = &mut self.members[assignment.thread];
        (member.requests, member.owed) = (member.requests + 1, member.owed + assignment.tokens);
    }

    /// A request has ended, or was handed on.
    pub fn end(&mut self, assignment: Assignment) {
        let member = &mut self.members[assignment.thread];
        (member.requests, member.owed) = (member.requests - 1, member.owed - assignment.tokens);
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
        self.members[replica].load = load;
    }

    /// `replica` accepts no more requests. Returns whether others do.
    pub fn close(&mut self, replica: usize) -> bool {
        self.members[replica].open = false;
        self.members.iter().any(|member| member.open)
    }

    /// The thread of `replica` has ended, by a failure if it `died`.
    pub fn part(&mut self, replica: usize, died: bool) {
        let member = &mut self.members[replica];
        (member.open, member.died) = (false, died);
    }

    /// Tokens of the unfinished requests of each replica.
    #[cfg(all(test, not(loom)))]
    pub fn all_owed(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.owed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balance(sick: &[bool]) -> Balance {
        let mut balance = Balance::new(sick.len());
        sick.iter().enumerate().for_each(|(n, &sick)| balance.report(n, Load { sick, ..Load::default() }));
        balance
    }

    #[test]
    fn the_lowest_rank_decides_among_those_that_are_well() {
        let mut balance = balance(&[true, false, false]);
        let rank = |replica, _| [1, 3, 2][replica];
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
    fn computed_tokens_are_owed_no_more() {
        let mut balance = balance(&[false, false]);
        let [long, short] = [(0, 100), (1, 60)].map(|(thread, tokens)| Assignment { thread, tokens });
        [long, short].into_iter().for_each(|assignment| balance.begin(assignment));
        let first = |balance: &Balance| balance.first(&|_, owed| owed, false);
        assert_eq!(first(&balance), Some(1));
        balance.report(0, Load { done: 50, ..Load::default() });
        assert_eq!(first(&balance), Some(0));
        balance.end(short);
        assert_eq!(first(&balance), Some(1));
    }

    #[test]
    fn a_free_seat_is_worth_some_tokens() {
        for (owed, chosen) in [(LINE, Some(1)), (LINE + 2, Some(0))] {
            let mut balance = balance(&[false, false]);
            balance.begin(Assignment { thread: 0, tokens: 1 });
            balance.begin(Assignment { thread: 1, tokens: owed });
            [1, 2]
                .into_iter()
                .enumerate()
                .for_each(|(n, seats)| balance.report(n, Load { seats, ..Load::default() }));
            assert_eq!(balance.first(&|_, ahead| ahead, false), chosen, "{owed} tokens instead of a line");
        }
    }
}
