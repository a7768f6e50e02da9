use super::*;
use std::cell::Cell;
use std::sync::Arc;
use std::thread;

#[derive(Clone, Debug, PartialEq)]
struct Note {
    text: String,
    last: bool,
}

impl Merge for Note {
    fn merge(&mut self, next: Self) {
        self.text.push_str(&next.text);
        self.last = next.last;
    }
    fn is_terminal(&self) -> bool {
        self.last
    }
}

#[derive(Default)]
struct Flag(std::sync::atomic::AtomicBool);
impl Readable for Arc<Flag> {
    fn set(&self) {
        assert!(!self.0.swap(true, std::sync::atomic::Ordering::SeqCst), "set twice");
    }
    fn clear(&self) {
        assert!(self.0.swap(false, std::sync::atomic::Ordering::SeqCst), "cleared twice");
    }
}

fn note(text: &str, last: bool) -> Note {
    Note { text: text.into(), last }
}

fn hub(capacity: usize) -> (Hub<Note, Arc<Flag>>, Arc<Flag>) {
    let flag = Arc::<Flag>::default();
    (Hub::new(7, capacity, 1000, Some(flag.clone())), flag)
}

fn open(hub: &Hub<Note, Arc<Flag>>, by_id: bool) -> RequestId {
    let mut ids = Vec::new();
    hub.open(&[(by_id, 10)], &mut ids).unwrap();
    ids[0]
}

fn publish(hub: &Hub<Note, Arc<Flag>>, id: RequestId, text: &str, last: bool) {
    hub.publish(&mut vec![(id.slot(), note(text, last))]);
}

fn poll(hub: &Hub<Note, Arc<Flag>>, which: Which) -> Result<Vec<String>> {
    let mut out = Vec::new();
    hub.poll(which, 8, Some(Duration::ZERO), &mut |_, e| out.push(e.text.clone()))?;
    Ok(out)
}

fn readable(flag: &Flag) -> bool {
    flag.0.load(std::sync::atomic::Ordering::SeqCst)
}

#[test]
fn undelivered_events_of_a_request_become_one_in_order() {
    let (hub, flag) = hub(4);
    let (a, b) = (open(&hub, false), open(&hub, false));
    publish(&hub, a, "one ", false);
    publish(&hub, b, "b", true);
    publish(&hub, a, "two", true);
    assert!(readable(&flag));
    assert_eq!(poll(&hub, Which::Any).unwrap(), ["one two", "b"]);
    assert!(!readable(&flag));
    assert!(poll(&hub, Which::Any).unwrap().is_empty());
    assert!(poll(&hub, Which::One(a)).unwrap().is_empty(), "finished and delivered: at once, with nothing");
}

#[test]
fn ids_are_refused_once_released_reused_or_foreign() {
    let (hub, _) = hub(1);
    let first = open(&hub, false);
    assert_eq!(hub.open(&[(false, 10)], &mut Vec::new()), Err(Refused::Full));
    publish(&hub, first, "x", true);
    assert!(!hub.release(first).unwrap());
    let second = open(&hub, false);
    assert_eq!(first.slot(), second.slot());
    for id in
        [first, RequestId(0), RequestId(u64::MAX), RequestId::new(8, second.generation(), second.slot())]
    {
        assert_eq!(hub.check(id).unwrap_err().status, Status::NotFound);
        assert_eq!(poll(&hub, Which::One(id)).unwrap_err().status, Status::NotFound);
        assert_eq!(hub.release(id).unwrap_err().status, Status::NotFound);
    }
    hub.check(second).unwrap();
}

#[test]
fn a_live_release_drops_events_and_frees_the_slot_at_the_terminal_one() {
    let (hub, flag) = hub(1);
    let id = open(&hub, false);
    publish(&hub, id, "unread", false);
    assert!(hub.release(id).unwrap(), "the engine has to be told");
    assert!(!readable(&flag));
    assert_eq!(hub.unfinished().len(), 1);
    assert_eq!(hub.open(&[(false, 0)], &mut Vec::new()), Err(Refused::Full));
    publish(&hub, id, "late", true);
    assert_eq!(hub.usage(), (0, 0, 10));
    assert!(poll(&hub, Which::Any).unwrap().is_empty());
    open(&hub, false);
}

#[test]
fn poll_by_id_is_out_of_anys_reach() {
    let (hub, flag) = hub(2);
    let mine = open(&hub, true);
    publish(&hub, mine, "m", false);
    assert!(!readable(&flag));
    assert!(poll(&hub, Which::Any).unwrap().is_empty());
    assert_eq!(poll(&hub, Which::One(mine)).unwrap(), ["m"]);
}

#[test]
fn a_request_polled_by_its_id_leaves_no_trace_in_the_any_queue() {
    let (hub, flag) = hub(2);
    let id = open(&hub, false);
    publish(&hub, id, "1", false);
    assert_eq!(poll(&hub, Which::One(id)).unwrap(), ["1"]);
    assert!(!readable(&flag));
    publish(&hub, id, "2", false);
    assert!(readable(&flag));
    assert_eq!(poll(&hub, Which::Any).unwrap(), ["2"]);
    assert!(poll(&hub, Which::Any).unwrap().is_empty());
}

#[test]
fn the_byte_budget_is_all_or_nothing() {
    let (hub, _) = hub(8);
    let mut ids = Vec::new();
    assert_eq!(hub.open(&[(false, 600), (false, 600)], &mut ids), Err(Refused::Memory(1000)));
    assert!(ids.is_empty());
    hub.open(&[(false, 600)], &mut ids).unwrap();
    assert_eq!(hub.open(&[(false, 600)], &mut ids), Err(Refused::Memory(400)));
    publish(&hub, ids[0], "", true);
    hub.release(ids[0]).unwrap();
    hub.open(&[(false, 600)], &mut ids).unwrap();
}

#[test]
fn a_second_poller_of_one_id_is_told_so() {
    let (hub, _) = hub(2);
    let id = open(&hub, true);
    let hub = Arc::new(hub);
    let waiting = {
        let hub = hub.clone();
        thread::spawn(move || {
            let mut text = String::new();
            hub.poll(Which::One(id), 1, None, &mut |_, e| text = e.text.clone()).unwrap();
            text
        })
    };
    while hub.state.lock().pollers == 0 {
        thread::yield_now();
    }
    assert_eq!(poll(&hub, Which::One(id)).unwrap_err().status, Status::Busy);
    publish(&hub, id, "done", true);
    assert_eq!(waiting.join().unwrap(), "done");
}

#[test]
fn destroy_waits_for_blocked_pollers() {
    let (hub, flag) = hub(2);
    let id = open(&hub, true);
    let hub = Arc::new(hub);
    let pollers: Vec<_> = [Which::Any, Which::One(id)]
        .into_iter()
        .map(|which| {
            let hub = hub.clone();
            thread::spawn(move || hub.poll(which, 1, None, &mut |_, _| ()).unwrap_err().status)
        })
        .collect();
    while hub.state.lock().pollers < 2 {
        thread::yield_now();
    }
    hub.destroy();
    assert!(readable(&flag));
    for poller in pollers {
        assert_eq!(poller.join().unwrap(), Status::Shutdown);
    }
    assert_eq!(hub.open(&[(false, 0)], &mut Vec::new()), Err(Refused::Closed(Phase::Destroyed)));
}

#[test]
fn a_drained_hub_gives_what_is_left_and_then_says_so() {
    let (hub, flag) = hub(2);
    let id = open(&hub, false);
    publish(&hub, id, "last", true);
    hub.advance(Phase::Drained);
    assert_eq!(poll(&hub, Which::Any).unwrap(), ["last"]);
    assert!(readable(&flag), "an event loop has to learn of the end");
    assert_eq!(poll(&hub, Which::Any).unwrap_err().status, Status::Shutdown);
}

/// What was handed out must not move while other events come and go.
#[test]
fn pointers_into_a_delivered_event_stay_valid_until_its_next_poll() {
    let (hub, _) = hub(300);
    let id = open(&hub, false);
    publish(&hub, id, "stay", false);
    let seen = Cell::new((std::ptr::null(), 0));
    hub.poll(Which::Any, 1, None, &mut |_, e| seen.set((e.text.as_ptr(), e.text.len()))).unwrap();
    publish(&hub, id, "later", false);
    for _ in 0..200 {
        let other = open(&hub, false);
        publish(&hub, other, "other", true);
        hub.poll(Which::One(other), 1, None, &mut |_, _| ()).unwrap();
        hub.release(other).unwrap();
    }
    let (at, len) = seen.get();
    // SAFETY: the hub promises that this request's delivered event is untouched: it was not polled again.
    let bytes: &[u8] = unsafe { std::slice::from_raw_parts(at, len) };
    assert_eq!(bytes, b"stay");
}

#[test]
fn a_slot_that_has_used_up_its_generations_is_retired() {
    let (hub, _) = hub(2);
    let id = open(&hub, false);
    hub.state.lock().slots[id.slot() as usize].generation = LAST_GENERATION;
    let last = RequestId::new(7, LAST_GENERATION, id.slot());
    publish(&hub, last, "", true);
    hub.release(last).unwrap();
    assert_ne!(open(&hub, false).slot(), id.slot());
}
