//! Every interleaving of submits, polls, the engine thread's exchange and the wake protocol, by loom:
//! `RUSTFLAGS="--cfg loom" cargo test --lib --release loom`.

use super::*;
use crate::base::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

#[derive(Clone)]
struct Note(u32, bool);
impl Merge for Note {
    fn merge(&mut self, next: &mut Self) {
        self.0 += next.0;
        self.1 = next.1;
    }
    fn outcome(&self) -> usize {
        self.1 as usize
    }
    fn empty(&mut self) -> bool {
        false
    }
}

/// Edges, and whether it is readable.
#[derive(Default)]
struct Flag(AtomicUsize, AtomicBool);
impl Readable for Flag {
    fn set(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        self.1.store(true, Ordering::SeqCst);
    }
    fn clear(&self) {
        assert!(self.1.swap(false, Ordering::SeqCst));
    }
}

impl Named for u32 {
    fn name(&mut self, _: RequestId) {}
}

type TestHub = Arc<Hub<Note, u32, Flag>>;

fn hub() -> TestHub {
    Arc::new(Hub::new(1, 4, 100_000, Some(Flag::default())))
}

fn open(hub: &TestHub, by_id: bool) -> RequestId {
    let mut ids = Vec::new();
    let place = Place { by_id, user_data: 0, reserved: 1 };
    hub.submit(vec![(place, 7)], &mut ids).unwrap();
    ids[0]
}

fn exchange(hub: &TestHub, events: Vec<(u32, Note)>, rest: Rest) -> (bool, Vec<Command<u32>>) {
    let mut out = Outbox::default();
    out.events = events.into_iter().map(|(slot, note)| (slot, Box::new(note))).collect();
    let mut commands = VecDeque::new();
    let goes_on = hub.exchange(&mut out, &mut commands, rest);
    (goes_on, commands.into())
}

fn put(hub: &TestHub, id: RequestId, n: u32, last: bool) {
    exchange(hub, vec![(id.slot(), Note(n, last))], Rest::None);
}

fn readable(hub: &TestHub) -> bool {
    hub.signal().unwrap().1.load(Ordering::SeqCst)
}

/// Polls until the terminal event and returns the sum of what came.
fn drain(hub: &TestHub, which: Which) -> u32 {
    let (mut sum, mut last) = (0, false);
    while !last {
        hub.poll(which, 1, None, &mut |_, e| (sum, last) = (sum + e.0, e.1)).unwrap();
    }
    sum
}

#[test]
fn loom_no_event_and_no_wakeup_is_lost() {
    for by_id in [false, true] {
        loom::model(move || {
            let hub = hub();
            let id = open(&hub, by_id);
            let publisher = {
                let hub = hub.clone();
                thread::spawn(move || {
                    put(&hub, id, 1, false);
                    put(&hub, id, 2, true);
                })
            };
            let which = if by_id { Which::One(id) } else { Which::Any };
            assert_eq!(drain(&hub, which), 3);
            publisher.join().unwrap();
            assert!(!readable(&hub));
        });
    }
}

#[test]
fn loom_two_pollers_share_two_events() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let hub = hub();
        let (a, b) = (open(&hub, false), open(&hub, false));
        let pollers: Vec<_> = (0..2)
            .map(|_| {
                let hub = hub.clone();
                thread::spawn(move || {
                    let mut got = 0;
                    hub.poll(Which::Any, 1, None, &mut |_, e| got = e.0).unwrap();
                    got
                })
            })
            .collect();
        exchange(&hub, vec![(a.slot(), Note(1, true)), (b.slot(), Note(2, true))], Rest::None);
        assert_eq!(pollers.into_iter().map(|p| p.join().unwrap()).sum::<u32>(), 3);
    });
}

#[test]
fn loom_release_races_with_the_terminal_event() {
    loom::model(|| {
        let hub = hub();
        let id = open(&hub, false);
        let publisher = {
            let hub = hub.clone();
            thread::spawn(move || put(&hub, id, 1, true))
        };
        hub.release(id).unwrap();
        publisher.join().unwrap();
        assert_eq!(hub.usage().unreleased, 0, "the slot is free whoever came first");
        assert!(hub.stage(id).is_err());
        assert!(!readable(&hub));
    });
}

#[test]
fn loom_destroy_waits_for_a_poller_and_frees_it() {
    loom::model(|| {
        let hub = hub();
        let id = open(&hub, true);
        let poller = {
            let hub = hub.clone();
            thread::spawn(move || hub.poll(Which::One(id), 1, None, &mut |_, _| ()).is_err())
        };
        hub.destroy();
        assert!(poller.join().unwrap());
    });
}

#[test]
fn loom_a_taker_sees_the_last_event_before_the_end() {
    loom::model(|| {
        let hub = hub();
        let id = open(&hub, false);
        let taker = {
            let hub = hub.clone();
            thread::spawn(move || {
                let (mut all, mut out) = (0, Vec::new());
                while hub.take(&mut out) {
                    all += out.drain(..).map(|e: Box<Note>| e.0).sum::<u32>();
                    hub.release(id).unwrap();
                }
                all
            })
        };
        put(&hub, id, 5, true);
        hub.advance(Phase::Drained, false);
        assert_eq!(taker.join().unwrap(), 5);
    });
}

#[test]
fn loom_no_command_and_no_wakeup_of_the_engine_is_lost() {
    loom::model(|| {
        let hub = hub();
        let submitters: Vec<_> = (0..2)
            .map(|_| {
                let hub = hub.clone();
                thread::spawn(move || open(&hub, false))
            })
            .collect();
        let mut seen = 0;
        while seen < 2 {
            let (goes_on, commands) = exchange(&hub, Vec::new(), Rest::UntilCommand);
            assert!(goes_on && !commands.is_empty(), "woken for nothing");
            seen += commands.len();
        }
        submitters.into_iter().for_each(|s| drop(s.join().unwrap()));
    });
}

#[test]
fn loom_a_drain_ends_the_engine_once_every_request_has_finished() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let hub = hub();
        let host = {
            let hub = hub.clone();
            thread::spawn(move || {
                let accepted = hub.submit(vec![(Place::default(), 7)], &mut Vec::with_capacity(1)).is_ok();
                hub.advance(Phase::Closing, false);
                accepted
            })
        };
        let mut finished = 0;
        loop {
            let (goes_on, commands) = exchange(&hub, Vec::new(), Rest::UntilCommand);
            if !goes_on {
                break;
            }
            for command in commands {
                assert_eq!(command, Command::Start(7));
                exchange(&hub, vec![(0, Note(1, true))], Rest::None);
                finished += 1;
            }
        }
        assert_eq!(finished, host.join().unwrap() as usize);
        assert!(matches!(hub.submit(vec![(Place::default(), 7)], &mut Vec::new()), Err(Refused::Closed(_))));
    });
}

#[test]
fn loom_a_cancel_is_seen_within_the_pass_or_after_it() {
    loom::model(|| {
        let hub = hub();
        let id = open(&hub, false);
        assert_eq!(exchange(&hub, Vec::new(), Rest::UntilCommand).1, [Command::Start(7)]);
        let host = {
            let hub = hub.clone();
            thread::spawn(move || hub.cancel(Which::One(id)).unwrap())
        };
        let mut within = false;
        hub.ends(&mut |which| within |= which == Some(id));
        host.join().unwrap();
        let mut later = false;
        hub.ends(&mut |which| later |= which == Some(id));
        assert!(within != later, "seen once");
        assert_eq!(exchange(&hub, Vec::new(), Rest::UntilCommand).1, [Command::End(id)]);
    });
}

/// An edge-triggered loop polls with room to spare when it is woken, and then waits for the next edge.
#[test]
fn loom_the_end_wakes_an_edge_triggered_loop_that_stopped_at_a_short_count() {
    loom::model(|| {
        let hub = hub();
        let id = open(&hub, false);
        let engine = {
            let hub = hub.clone();
            thread::spawn(move || {
                put(&hub, id, 1, true);
                hub.advance(Phase::Drained, false);
            })
        };
        let mut edges = 0;
        loop {
            let now = hub.signal().unwrap().0.load(Ordering::SeqCst);
            if now == edges {
                thread::yield_now();
                continue;
            }
            edges = now;
            match hub.poll(Which::Any, 8, Some(Duration::ZERO), &mut |_, _| ()) {
                Ok(_) => {}
                Err(error) => break assert_eq!(error.status, Status::Shutdown),
            }
        }
        engine.join().unwrap();
    });
}
