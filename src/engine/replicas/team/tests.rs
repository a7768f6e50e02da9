use crate::base::Status;
use crate::engine::hub::ids::{RequestId, Which};
use crate::engine::hub::support::*;
use crate::engine::hub::*;
use crate::engine::replicas::balance::Load;
use crate::engine::replicas::team::Share;

type Out = Outbox<Note, Parcel>;

/// A report of a replica that hands on these requests.
fn out(sick: bool, ids: &[RequestId]) -> Out {
    let handed_on = ids.iter().map(|&id| (id, Parcel(id))).collect();
    Out { share: Share { load: Load { sick, ..Load::default() }, handed_on }, ..Out::default() }
}

fn home(hub: &TestHub, rank: impl Fn(usize, u64) -> u64) -> Option<usize> {
    hub.team(|team| team.balance.first(&rank, true))
}

fn turn(hub: &TestHub, replica: usize, out: Out) -> Vec<Command<Parcel>> {
    exchange_of(hub, replica, out, Rest::None).1
}

fn start(id: RequestId) -> Command<Parcel> {
    Command::Start(Parcel(id))
}

#[test]
fn requests_go_where_the_fewest_are() {
    let hub = hub_of(8, 3);
    let ids: Vec<_> = (0..4).map(|_| open(&hub, false)).collect();
    assert_eq!(turn(&hub, 0, Out::default()), [start(ids[0]), start(ids[3])]);
    assert_eq!(turn(&hub, 1, Out::default()), [start(ids[1])]);
    assert_eq!(home(&hub, |replica, owed| owed * 4 + (3 - replica as u64)), Some(2));
    let end = vec![(ids[1].slot(), Box::new(Note { text: String::new(), last: true }))];
    turn(&hub, 1, Out { events: end, ..Out::default() });
    assert_eq!(home(&hub, |_, owed| owed), Some(1));
}

#[test]
fn what_is_moved_ends_where_it_was_to_end() {
    let hub = hub_of(8, 2);
    let ids: Vec<_> = (0..4).map(|_| open(&hub, false)).collect();
    turn(&hub, 0, Out::default());
    turn(&hub, 1, Out::default());
    hub.cancel(Which::One(ids[0])).unwrap();
    assert_eq!(turn(&hub, 0, out(true, &ids[..1])), [Command::End(ids[0])]);
    hub.cancel(Which::Any).unwrap();
    let all = || Command::EndAll { shutdown: false };
    assert_eq!(turn(&hub, 0, out(true, &ids[2..3])), [all()]);
    let told = [start(ids[0]), Command::End(ids[0]), all(), start(ids[2]), Command::End(ids[2])];
    assert_eq!(turn(&hub, 1, Out::default()), told);
}

#[test]
fn what_is_moved_while_the_engine_ends_is_told_so() {
    let hub = hub_of(8, 2);
    let ids: Vec<_> = (0..2).map(|_| open(&hub, false)).collect();
    turn(&hub, 0, Out::default());
    turn(&hub, 1, Out::default());
    hub.advance(Phase::Closing, true);
    let all = || Command::EndAll { shutdown: true };
    assert_eq!(turn(&hub, 0, out(true, &ids[..1])), [all()]);
    assert_eq!(turn(&hub, 1, Out::default()), [all(), start(ids[0]), all()]);
}

#[test]
fn a_dead_replicas_requests_go_to_those_that_live() {
    let hub = hub_of(8, 3);
    let ids: Vec<_> = (0..3).map(|_| open(&hub, false)).collect();
    assert!(hub.retire(0), "there are others");
    assert_eq!(hub.call(0, Parcel(RequestId(0))).unwrap_err().status, Status::EngineDead);
    assert_eq!(turn(&hub, 0, out(false, &ids[..1])), [start(ids[0])]);
    assert_eq!(turn(&hub, 1, Out::default()), [start(ids[1]), start(ids[0])]);
    hub.part(0, true);
    let next = open(&hub, false);
    assert_eq!(turn(&hub, 2, Out::default()), [start(ids[2]), start(next)]);
    assert!(hub.lost(0).is_empty() && hub.lost(1).len() == 2);
    assert!(hub.retire(2) && hub.phase() == Phase::Open);
    hub.part(2, true);
    assert!(!hub.retire(1) && hub.phase() == Phase::Closing);
    hub.part(1, true);
    assert_eq!(hub.phase(), Phase::Dead);
}

#[test]
fn sick_replicas_get_probes_in_turn() {
    let hub = hub_of(64, 3);
    let sick = || out(true, &[]);
    [0, 1].iter().for_each(|replica| _ = turn(&hub, *replica, sick()));
    (0..32).for_each(|_| _ = open(&hub, false));
    assert_eq!([0, 1].map(|replica| turn(&hub, replica, sick()).len()), [1, 1]);
    assert_eq!(turn(&hub, 2, Out::default()).len(), 30);
}

/// One request in sixteen probes a sick replica.
#[test]
fn a_sick_replica_gets_a_probe_now_and_then() {
    let hub = hub_of(64, 2);
    let sick = |sick| out(sick, &[]);
    turn(&hub, 0, sick(true));
    let open_some = |n: usize| (0..n).for_each(|_| _ = open(&hub, false));
    open_some(15);
    assert_eq!((turn(&hub, 0, sick(true)).len(), turn(&hub, 1, Out::default()).len()), (0, 15));
    open_some(17);
    assert_eq!((turn(&hub, 0, sick(true)).len(), turn(&hub, 1, Out::default()).len()), (2, 15));
    assert_eq!(home(&hub, |replica, _| replica as u64), Some(0), "a session stays");
    // If all are sick, they are chosen as usual.
    turn(&hub, 1, sick(true));
    open_some(4);
    assert_eq!((turn(&hub, 0, sick(false)).len(), turn(&hub, 1, sick(true)).len()), (4, 0));
    open_some(3);
    assert_eq!(turn(&hub, 0, sick(false)).len(), 3, "one is well again");
}

/// Requests that a sick replica hands on do not come back while another is well.
#[test]
fn what_a_sick_replica_hands_on_goes_to_a_well_one() {
    let hub = hub_of(8, 2);
    let ids: Vec<_> = (0..3).map(|_| open(&hub, false)).collect();
    turn(&hub, 0, Out::default());
    turn(&hub, 1, Out::default());
    assert!(turn(&hub, 0, out(true, &[ids[0], ids[2]])).is_empty());
    assert_eq!(turn(&hub, 1, Out::default()), [start(ids[0]), start(ids[2])]);
}
