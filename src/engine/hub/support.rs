//! Helpers of both kinds of hub tests: an event, a command, a wait descriptor that counts, and shorthand calls.

use super::slots::lease_bytes;
use super::*;
use crate::base::sync::Arc;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize};
use std::collections::VecDeque;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Note {
    pub text: String,
    pub last: bool,
}

impl Merge for Note {
    fn merge(&mut self, next: &mut Self) {
        self.text.push_str(&next.text);
        self.last = next.last;
    }
    fn outcome(&self) -> usize {
        self.last as usize
    }
    fn granted(&self) -> u64 {
        self.text.len() as u64
    }
    fn empty(&mut self) -> bool {
        self.text.clear();
        true
    }
}

/// A wait descriptor: the number of its edges, and whether it is readable.
#[derive(Default)]
pub struct Flag(AtomicUsize, AtomicBool);

impl Readable for Flag {
    fn set(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        self.1.store(true, Ordering::SeqCst);
    }
    fn clear(&self) {
        assert!(self.1.swap(false, Ordering::SeqCst), "cleared twice");
    }
}

#[derive(Debug, PartialEq)]
pub struct Parcel(pub RequestId);

/// A parcel goes to the thread with the fewest requests.
impl Cargo for Parcel {
    fn assign(&mut self, id: RequestId, _: u64) {
        self.0 = id;
    }
    fn tokens(&self, _: usize, _: Option<usize>) -> u64 {
        1
    }
}

pub type TestHub = Arc<Hub<Note, Parcel, Flag>>;

/// A hub with room for 1000 bytes and a lease, and for 100 queued tokens. More than 10 bytes of unpolled text make
/// a request slow.
pub fn hub(requests: usize) -> TestHub {
    hub_of(requests, 1)
}

pub fn hub_of(requests: usize, threads: usize) -> TestHub {
    let bytes = 1000 + lease_bytes::<Note>();
    let bounds = Bounds { requests, queued_tokens: 100, bytes, unread_bytes: 10, aside: 600 };
    Arc::new(Hub::new(7, bounds, threads, Some(Flag::default())))
}

pub fn edges(hub: &TestHub) -> usize {
    hub.signal().unwrap().0.load(Ordering::SeqCst)
}

pub fn readable(hub: &TestHub) -> bool {
    hub.signal().unwrap().1.load(Ordering::SeqCst)
}

/// Submits a request for each of `wanted`: whether it is polled by its id, and the bytes that it reserves.
pub fn submit(hub: &TestHub, wanted: &[(bool, u64)]) -> Result<Vec<RequestId>> {
    let info = |&(by_id, reserved)| {
        let info = RequestInfo {
            by_id,
            reserved,
            kept: reserved,
            alone: reserved,
            user_data: 5,
            ..RequestInfo::default()
        };
        (info, Parcel(RequestId(0)))
    };
    let mut ids = Vec::new();
    hub.submit(&mut wanted.iter().map(info).collect(), &mut ids).map(|()| ids)
}

pub fn open(hub: &TestHub, by_id: bool) -> RequestId {
    submit(hub, &[(by_id, 10)]).unwrap()[0]
}

/// Exchanges as thread 0. Returns whether there is more to do, and the commands that came.
pub fn exchange(
    hub: &TestHub,
    events: &[(RequestId, &str, bool)],
    rest: Rest,
) -> (bool, Vec<Command<Parcel>>) {
    let note =
        |&(id, text, last): &(RequestId, &str, bool)| (id.slot(), Box::new(Note { text: text.into(), last }));
    let out = Outbox { events: events.iter().map(note).collect(), ..Outbox::default() };
    exchange_of(hub, 0, out, rest)
}

pub fn exchange_of(
    hub: &TestHub,
    thread: usize,
    mut out: Outbox<Note, Parcel>,
    rest: Rest,
) -> (bool, Vec<Command<Parcel>>) {
    let mut commands = VecDeque::new();
    let goes_on = hub.exchange(thread, &mut out, &mut commands, rest);
    (goes_on, commands.into())
}

/// Hands over one event after a step; returns the commands that came.
pub fn publish(hub: &TestHub, id: RequestId, text: &str, last: bool) -> Vec<Command<Parcel>> {
    exchange(hub, &[(id, text, last)], Rest::None).1
}
