//! Every interleaving of the inbox, the event queues and the wake protocol, by loom:
//! `RUSTFLAGS="--cfg loom" cargo test --lib --release loom`.

use super::*;
use crate::engine::inbox::Inbox;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

#[derive(Clone)]
struct Note(u32, bool);
impl Merge for Note {
    fn merge(&mut self, next: Self) {
        self.0 += next.0;
        self.1 = next.1;
    }
    fn is_terminal(&self) -> bool {
        self.1
    }
}

struct Flag(AtomicBool);
impl Readable for Flag {
    fn set(&self) {
        assert!(!self.0.swap(true, Ordering::SeqCst));
    }
    fn clear(&self) {
        assert!(self.0.swap(false, Ordering::SeqCst));
    }
}

type TestHub = Arc<Hub<Note, Flag>>;

fn hub() -> TestHub {
    Arc::new(Hub::new(1, 4, 100, Some(Flag(AtomicBool::new(false)))))
}

fn open(hub: &TestHub, by_id: bool) -> RequestId {
    let mut ids = Vec::new();
    hub.open(&[(by_id, 1)], &mut ids).unwrap();
    ids[0]
}

fn put(hub: &TestHub, id: RequestId, n: u32, last: bool) {
    hub.publish(&mut vec![(id.slot(), Note(n, last))]);
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
            assert!(!hub.signal().unwrap().0.load(Ordering::SeqCst));
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
        hub.publish(&mut vec![(a.slot(), Note(1, true)), (b.slot(), Note(2, true))]);
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
        assert_eq!(hub.usage().0, 0, "the slot is free whoever came first");
        assert!(hub.check(id).is_err());
        assert!(!hub.signal().unwrap().0.load(Ordering::SeqCst));
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
                    all += out.drain(..).map(|(_, e): (u32, Note)| e.0).sum::<u32>();
                    hub.retire(id);
                }
                all
            })
        };
        put(&hub, id, 5, true);
        hub.advance(Phase::Drained);
        assert_eq!(taker.join().unwrap(), 5);
    });
}

#[test]
fn loom_the_inbox_loses_no_command_and_no_wakeup() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::default());
        let producers: Vec<_> = (0..2)
            .map(|i| {
                let inbox = inbox.clone();
                thread::spawn(move || inbox.push(i + 1))
            })
            .collect();
        let mut sum = 0;
        while sum < 3 {
            match inbox.pop() {
                Some(n) => sum += n,
                None => inbox.wait(None),
            }
        }
        for producer in producers {
            producer.join().unwrap();
        }
    });
}
