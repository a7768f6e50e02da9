//! The slots of requests: pending events and the events that pollers hold. No locks and no threads: `hub` guards
//! it.

use super::ids::{LAST_GENERATION, RequestId};
use crate::base::sync::{Arc, Condvar};
use crate::base::{Error, Result, Status, reserved};
use crate::engine::memory::grants::{Claim, is_safe};
use crate::engine::replicas::balance::Assignment;
use std::collections::VecDeque;

/// The slots' view of an event.
pub trait Merge: Default {
    /// Appends the later event `next`, and leaves reusable memory in `next`.
    fn merge(&mut self, next: &mut Self);
    /// How the event ends its request, an index below `OUTCOMES`; 0 if the request goes on.
    fn outcome(&self) -> usize;
    /// Bytes of its request's grants that are returned with it.
    fn granted(&self) -> u64;
    /// Bytes of buffers that an empty event may keep.
    const KEPT: usize = 0;
    /// Empties the event so that its memory can be reused. Returns false if that is more than `KEPT`.
    fn empty(&mut self) -> bool;
}

pub const OUTCOMES: usize = 8;

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Waits for admission, behind this many requests that came before it.
    Queued(usize),
    Running,
    Finished,
}

/// Maximum number of empty events kept for the engine thread.
const SPARE: usize = 64;

#[derive(Default)]
struct RequestSlot<E> {
    generation: u32,
    open: bool,
    /// Released while live: its events are dropped and its terminal event frees the slot.
    discard: bool,
    running: bool,
    finished: bool,
    /// Its end was requested already.
    cancelled: bool,
    in_any: bool,
    /// The engine thread was told that the pending event is too large to go on.
    slow: bool,
    /// A thread waits for `bell`.
    polled: bool,
    /// Numbers requests in their order of arrival.
    ticket: u64,
    info: RequestInfo,
    assignment: Assignment,
    /// Bytes granted beyond `RequestInfo::reserved`.
    granted: u64,
    pending: Option<Box<E>>,
    /// Events that pollers hold, with their leases, oldest first. The address of an event's contents does not
    /// change.
    leases: VecDeque<(u64, Box<E>)>,
    bell: Arc<Condvar>,
}

/// Bytes of a lease beyond the first one of a request. The request's reservation covers the first, so that
/// requests that fill the budget can still be polled. Counted twice, since a list of leases may be twice as long
/// as it needs to be.
pub fn lease_bytes<E: Merge>() -> u64 {
    (2 * size_of::<(u64, Box<E>)>() + size_of::<E>() + E::KEPT) as u64
}

#[derive(Default)]
pub struct RequestSlots<E> {
    salt: u16,
    slots: Vec<RequestSlot<E>>,
    free: Vec<u32>,
    /// Last lease issued. Leases are numbered, so that none is ever issued twice.
    last_lease: u64,
    /// Slots that got a pending event for any poller; entries may be stale.
    any: VecDeque<u32>,
    usage: Usage,
    /// Largest need of any unfinished request. This much stays free, so that all of them can finish, at least one
    /// after the other. None: must be computed again.
    largest_need: Option<u64>,
    /// A live request whose pending event is larger than this is slow; 0: none is.
    max_unread: u64,
    /// Scratch list of the requests with grants; kept for its memory.
    claims: Vec<Claim>,
    /// Requests whose pending event became too large, and requests whose large event was taken.
    pub slow: Vec<RequestId>,
    pub drained: Vec<RequestId>,
    pub spare: Vec<Box<E>>,
}

/// The data of a request that its slot keeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestInfo {
    pub by_id: bool,
    pub user_data: u64,
    /// Bytes that it holds until it ends, whatever it outputs.
    pub reserved: u64,
    /// Part of `reserved` that it holds until it is released.
    pub kept: u64,
    /// Maximum number of bytes that it holds if it runs alone.
    pub alone: u64,
    pub priority: u8,
    pub submitted_ns: u64,
    pub prompt_tokens: u64,
}

impl RequestInfo {
    /// Bytes that it may need beyond its reservation.
    pub fn need(&self) -> u64 {
        self.alone.saturating_sub(self.reserved)
    }
}

/// Counts of requests, and bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Requests accepted so far; also the next request's ticket.
    pub accepted: u64,
    /// Requests finished so far, by outcome.
    pub outcomes: [u64; OUTCOMES],
    pub unreleased: usize,
    pub unfinished: usize,
    /// Number of unfinished requests that were admitted.
    pub running: usize,
    /// Prompt tokens of unfinished requests that do not run.
    pub queued_tokens: u64,
    /// Requests with an event for any poller.
    pub any_ready: usize,
    /// Reserved bytes, and their maximum so far.
    pub reserved: u64,
    pub reserved_peak: u64,
}

impl<E: Merge> RequestSlots<E> {
    pub fn new(salt: u16, max_unread: u64) -> Self {
        Self { salt, max_unread, largest_need: Some(0), ..Self::default() }
    }

    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Reserves room for `n` more requests, so that `open` allocates nothing.
    pub fn make_room(&mut self, n: usize) -> Result<()> {
        let more = n.saturating_sub(self.free.len());
        let total = self.slots.len() + more;
        let spare = total.saturating_sub(self.free.len());
        let made = self.slots.try_reserve(more).and(self.free.try_reserve(spare));
        // Each slot is in `any` at most once.
        let made = made.and(self.any.try_reserve(total.saturating_sub(self.any.len())));
        let made = made.and(self.slow.try_reserve(total.saturating_sub(self.slow.len())));
        let made = made.and(self.claims.try_reserve(total.saturating_sub(self.claims.len())));
        let made = made.and(self.drained.try_reserve(total.saturating_sub(self.drained.len())));
        reserved(made, "request slots", total * size_of::<RequestSlot<E>>())
    }

    pub fn open(&mut self, info: RequestInfo, assignment: Assignment) -> RequestId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(RequestSlot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        (slot.open, slot.info, slot.assignment, slot.ticket) = (true, info, assignment, self.usage.accepted);
        let id = RequestId::new(self.salt, slot.generation, index);
        self.usage.accepted += 1;
        self.usage.unreleased += 1;
        self.usage.unfinished += 1;
        self.usage.queued_tokens += info.prompt_tokens;
        self.largest_need = self.largest_need.map(|most| most.max(info.need()));
        self.reserve(info.reserved);
        id
    }

    /// Id of the request that has the slot.
    pub fn id(&self, index: usize) -> RequestId {
        RequestId::new(self.salt, self.slots[index].generation, index as u32)
    }

    pub fn assignment(&self, index: usize) -> Assignment {
        self.slots[index].assignment
    }

    /// Makes a waiting request the assignment of another thread. Returns the old assignment, and whether its end was
    /// requested before, so that the new thread must end it.
    pub fn reassign(&mut self, index: u32, assignment: Assignment) -> (Assignment, bool) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.open && !slot.finished && !slot.running, "only what waits is handed on");
        (std::mem::replace(&mut slot.assignment, assignment), slot.cancelled)
    }

    fn reserve(&mut self, bytes: u64) {
        self.usage.reserved += bytes;
        self.usage.reserved_peak = self.usage.reserved_peak.max(self.usage.reserved);
    }

    pub fn largest_need(&mut self) -> u64 {
        let live = self.slots.iter().filter(|slot| slot.open && !slot.finished);
        *self.largest_need.get_or_insert_with(|| live.map(|slot| slot.info.need()).max().unwrap_or(0))
    }

    /// Reserves bytes for the next output of an unfinished request. Returns false, without a change, if they
    /// exceed `budget` or would leave too little for all others to finish.
    pub fn grant(&mut self, index: usize, bytes: u64, budget: u64) -> bool {
        let Some(left) = budget.saturating_sub(self.usage.reserved).checked_sub(bytes) else { return false };
        self.slots[index].granted += bytes;
        let granted = budget == u64::MAX || self.is_safe(left);
        match granted {
            true => self.reserve(bytes),
            false => self.slots[index].granted -= bytes,
        }
        granted
    }

    /// Reserves bytes that belong to no request. Returns false, without a change, unless every request can still
    /// finish.
    pub fn set_aside(&mut self, bytes: u64, budget: u64) -> bool {
        let Some(left) = budget.saturating_sub(self.usage.reserved).checked_sub(bytes) else { return false };
        let fits = budget == u64::MAX || (left >= self.largest_need() && self.is_safe(left));
        if fits {
            self.reserve(bytes);
        }
        fits
    }

    pub fn put_back(&mut self, bytes: u64) {
        self.usage.reserved -= bytes;
    }

    fn is_safe(&mut self, left: u64) -> bool {
        if left >= self.largest_need().saturating_mul(self.usage.running as u64 + 1) {
            return true;
        }
        let begun = self.slots.iter().filter(|slot| slot.open && !slot.finished && slot.granted > 0);
        self.claims.clear();
        self.claims.extend(begun.map(|slot| {
            let held = slot.info.reserved + slot.granted;
            Claim { need: slot.info.alone.saturating_sub(held), held }
        }));
        is_safe(left, &mut self.claims)
    }

    /// Returns granted bytes.
    pub fn ungrant(&mut self, index: usize, bytes: u64) {
        let granted = &mut self.slots[index].granted;
        let bytes = bytes.min(*granted);
        *granted -= bytes;
        self.usage.reserved -= bytes;
    }

    /// Waiting time of the oldest queued request in each quarter of the priorities; 0 without one.
    pub fn queue_ages(&self, now: u64) -> [u64; 4] {
        let mut ages = [0; 4];
        for slot in self.slots.iter().filter(|slot| slot.open && !slot.running && !slot.finished) {
            let age = &mut ages[usize::from(slot.info.priority / 64)];
            *age = (*age).max(now.saturating_sub(slot.info.submitted_ns));
        }
        ages
    }

    pub fn find(&self, id: RequestId) -> Result<usize> {
        let index = id.slot() as usize;
        match self.slots.get(index) {
            Some(slot)
                if id.salt() == self.salt
                    && slot.open
                    && !slot.discard
                    && slot.generation == id.generation() =>
            {
                Ok(index)
            }
            _ => Err(Error::new(
                Status::NotFound,
                "no such request: it was freed, or this engine never issued it",
            )),
        }
    }

    /// Takes time linear in the number of slots.
    pub fn stage(&self, index: usize) -> Stage {
        let slot = &self.slots[index];
        let earlier = |s: &&RequestSlot<E>| s.open && !s.running && !s.finished && s.ticket < slot.ticket;
        match (slot.finished, slot.running) {
            (true, _) => Stage::Finished,
            (_, true) => Stage::Running,
            _ => Stage::Queued(self.slots.iter().filter(earlier).count()),
        }
    }

    /// Returns true if the engine must be notified: the request is live, and this is its first cancel.
    pub fn cancel(&mut self, index: usize) -> bool {
        let slot = &mut self.slots[index];
        !std::mem::replace(&mut slot.cancelled, true) && !slot.finished
    }

    /// Marks all live requests as cancelled.
    pub fn cancel_all(&mut self) {
        let live = self.slots.iter_mut().filter(|slot| slot.open && !slot.finished);
        live.for_each(|slot| slot.cancelled = true);
    }

    pub fn admit(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.running = true;
        self.usage.running += 1;
        self.usage.queued_tokens -= slot.info.prompt_tokens;
    }

    /// Takes an event in. A terminal event must be the slot's last; returns the assignment that is then over.
    pub fn accept(&mut self, index: u32, mut event: Box<E>) -> Option<Assignment> {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.open && !slot.finished, "invariant 2: an event after the terminal one");
        let outcome = event.outcome();
        if outcome > 0 {
            slot.finished = true;
            self.usage.unfinished -= 1;
            match slot.running {
                true => self.usage.running -= 1,
                false => self.usage.queued_tokens -= slot.info.prompt_tokens,
            }
            self.usage.outcomes[outcome] += 1;
            self.largest_need = self.largest_need.filter(|&most| most > slot.info.need());
        }
        let over = slot.finished.then_some(slot.assignment);
        if slot.discard {
            if slot.finished {
                self.close(index as usize);
            }
            self.keep(event);
            return over;
        }
        if slot.polled {
            slot.bell.notify_all();
        }
        match &mut slot.pending {
            Some(pending) => {
                pending.merge(&mut event);
                let large = self.max_unread > 0 && pending.granted() > self.max_unread;
                if large && !slot.finished && !std::mem::replace(&mut slot.slow, true) {
                    self.slow.push(RequestId::new(self.salt, slot.generation, index));
                }
                self.keep(event);
            }
            None => {
                slot.pending = Some(event);
                if !slot.info.by_id {
                    self.usage.any_ready += 1;
                    if !std::mem::replace(&mut slot.in_any, true) {
                        self.any.push_back(index);
                    }
                }
            }
        }
        if outcome > 0 {
            self.shrink(index as usize);
        }
        over
    }

    /// Reduces a finished request's reservation to that of its events.
    fn shrink(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let events = slot.leases.iter().map(|(_, event)| event).chain(&slot.pending);
        let in_events: u64 = events.map(|event| event.granted()).sum();
        let free = slot.info.reserved - slot.info.kept + slot.granted;
        (slot.info.reserved, slot.granted) = (slot.info.kept, in_events.min(free));
        self.usage.reserved -= free - slot.granted;
    }

    fn keep(&mut self, mut event: Box<E>) {
        if self.spare.len() < SPARE && event.empty() {
            self.spare.push(event);
        }
    }

    /// The next slot with an event for any poller. It stays in the queue until its event is taken.
    pub fn next_any(&mut self) -> Option<usize> {
        while let Some(&index) = self.any.front() {
            let slot = &mut self.slots[index as usize];
            if slot.pending.is_some() && !slot.info.by_id {
                return Some(index as usize);
            }
            slot.in_any = false;
            self.any.pop_front();
        }
        None
    }

    /// Takes the pending event out of the slot.
    pub fn take(&mut self, index: usize) -> Option<Box<E>> {
        let slot = &mut self.slots[index];
        let event = slot.pending.take()?;
        if std::mem::take(&mut slot.slow) && !slot.finished && !slot.discard {
            self.drained.push(RequestId::new(self.salt, slot.generation, index as u32));
        }
        if !slot.info.by_id {
            self.usage.any_ready -= 1;
            if self.any.front() == Some(&(index as u32)) {
                slot.in_any = false;
                self.any.pop_front();
            }
        }
        Some(event)
    }

    /// Moves the pending event to a poller. Returns its lease and the event, which stays in place until
    /// `give_back`, the release of the request or destroy; None without a pending event. `MemoryLimit` if leases
    /// would exceed `budget`.
    pub fn lease(&mut self, index: usize, budget: u64) -> Result<Option<(u64, &E)>> {
        let slot = &mut self.slots[index];
        if slot.pending.is_none() {
            return Ok(None);
        }
        let (first, bytes) = (slot.leases.is_empty(), lease_bytes::<E>());
        if !first && self.usage.reserved.saturating_add(bytes) > budget {
            return Err(Error::new(
                Status::MemoryLimit,
                "memory_limit_bytes leaves no room for another polled event: give events back by bn_events_free",
            ));
        }
        reserved(slot.leases.try_reserve(1), "a polled event", bytes as usize)?;
        if !first {
            self.reserve(bytes);
        }
        self.last_lease += 1;
        let event = self.take(index).map(|event| (self.last_lease, event));
        let leases = &mut self.slots[index].leases;
        leases.extend(event);
        Ok(leases.back().map(|(lease, event)| (*lease, &**event)))
    }

    /// Frees a polled event of request `id`. Ignores leases that this request does not hold.
    pub fn give_back(&mut self, id: RequestId, lease: u64) {
        let Ok(index) = self.find(id) else { return };
        let leases = &mut self.slots[index].leases;
        let at = leases.binary_search_by_key(&lease, |(lease, _)| *lease);
        if let Some((_, event)) = at.ok().and_then(|at| leases.remove(at)) {
            if !leases.is_empty() {
                self.usage.reserved -= lease_bytes::<E>();
            }
            self.ungrant(index, event.granted());
            self.keep(event);
        }
    }

    /// Releases the request for its host. Returns true if it is still live, so that the engine must be
    /// notified.
    pub fn release(&mut self, index: usize) -> bool {
        let slot = &mut self.slots[index];
        slot.discard = true;
        if slot.polled {
            slot.bell.notify_all();
        }
        if let Some(event) = self.take(index) {
            self.keep(event);
        }
        // The events are freed, not kept for reuse: a host that still reads one is caught by its sanitizer and
        // sees no other request's text.
        let leases = std::mem::take(&mut self.slots[index].leases);
        self.usage.reserved -= leases.len().saturating_sub(1) as u64 * lease_bytes::<E>();
        let live = !self.slots[index].finished;
        if !live {
            self.close(index);
        }
        live
    }

    /// Frees a released and finished slot for the next request.
    fn close(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        self.usage.unreleased -= 1;
        self.usage.reserved -= slot.info.reserved + std::mem::take(&mut slot.granted);
        slot.slow = false;
        (slot.open, slot.discard, slot.running, slot.finished) = (false, false, false, false);
        (slot.polled, slot.cancelled) = (false, false);
        if slot.generation < LAST_GENERATION {
            slot.generation += 1;
            self.free.push(index as u32);
        }
    }

    pub fn is_finished(&self, index: usize) -> bool {
        self.slots[index].finished
    }

    /// Begins a poller's wait for the slot's bell. No other poller may wait for it (`is_polled`).
    pub fn begin_poll(&mut self, index: usize) -> Arc<Condvar> {
        let slot = &mut self.slots[index];
        slot.polled = true;
        slot.bell.clone()
    }

    pub fn is_polled(&self, index: usize) -> bool {
        self.slots[index].polled
    }

    pub fn end_poll(&mut self, index: usize) {
        self.slots[index].polled = false;
    }

    /// Wakes every thread that waits for one request.
    pub fn ring_all(&self) {
        self.slots.iter().filter(|slot| slot.polled).for_each(|slot| slot.bell.notify_all());
    }

    /// Requests of a thread without a terminal event, each with its `user_data`.
    pub fn lost(&self, thread: usize) -> Vec<(RequestId, u64)> {
        let own = |slot: &RequestSlot<E>| slot.open && !slot.finished && slot.assignment.thread == thread;
        let open = self.slots.iter().enumerate().filter(|(_, slot)| own(slot));
        open.map(|(i, slot)| (RequestId::new(self.salt, slot.generation, i as u32), slot.info.user_data))
            .collect()
    }

    #[cfg(all(test, not(loom)))]
    pub fn set_generation(&mut self, index: usize, generation: u32) {
        self.slots[index].generation = generation;
    }
}

#[cfg(all(test, not(loom)))]
pub mod checks;
