//! The queue between engine threads and the thread that reads and writes records.

use super::folder::{Claim, Files};
use super::index::{Index, Name};
use super::record::{self, Place};
use super::{Kind, Lower};
use crate::base::clock::now_ns;
use crate::base::sync::{Arc, Condvar, Mutex, MutexGuard};
use crate::base::{Result, reserved};
use std::collections::VecDeque;
use std::io::ErrorKind;

/// Bytes and positions of the units of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    pub block_size: usize,
    pub block_bytes: usize,
    /// 0 for a model without recurrent layers.
    pub state_bytes: usize,
}

impl Sizes {
    /// Bytes of a unit of memory.
    fn unit(&self, kind: Kind) -> usize {
        match kind {
            Kind::Block => self.block_bytes,
            Kind::State => self.state_bytes,
        }
    }

    /// Bytes of the largest record of a kind.
    fn of(&self, kind: Kind) -> usize {
        record::size(self.block_size, self.unit(kind))
    }

    /// Bounds for `bytes` bytes of records: those in flight and the index take `memory` bytes each, or less. Two of the
    /// largest records are always in flight.
    pub fn bounds(&self, bytes: u64, memory: u64) -> Bounds {
        let largest = self.of(Kind::Block).max(if self.state_bytes > 0 { self.of(Kind::State) } else { 0 });
        let records = (bytes / self.of(Kind::Block) as u64).min(memory / Index::ENTRY_BYTES);
        Bounds { bytes, records: records.max(1) as usize, buffers: memory.max(2 * largest as u64) }
    }
}

/// Maximum sizes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of all records.
    pub bytes: u64,
    /// Number of records.
    pub records: usize,
    /// Bytes of memory of records in flight, in each direction.
    pub buffers: u64,
}

impl Bounds {
    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        2 * self.buffers + self.records as u64 * Index::ENTRY_BYTES
    }
}

/// Counts since the store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Records that were read, and their bytes.
    pub reads: u64,
    pub read_bytes: u64,
    pub read_ns: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub write_ns: u64,
    /// Records that left memory and were not written: there was no room in the queue, or the write failed.
    pub dropped: u64,
    /// Records that were damaged, or not those that their names say.
    pub damaged: u64,
    /// Records that gave way to newer ones.
    pub evicted: u64,
    /// Records in the folder, and their bytes.
    pub records: u64,
    pub bytes: u64,
}

/// A record that was ordered. It has no payload if it could not be read.
pub struct Arrival {
    pub ticket: u64,
    pub index: u32,
    record: Vec<u8>,
    /// Where the payload is.
    payload: Option<(usize, usize)>,
}

impl Arrival {
    pub fn payload(&self) -> Option<&[u8]> {
        self.payload.map(|(from, to)| &self.record[from..to])
    }
}

struct Order {
    replica: usize,
    ticket: u64,
    index: u32,
    place: Place,
}

struct State {
    index: Index,
    orders: VecDeque<Order>,
    /// Records to write, without their checksums.
    writes: VecDeque<(Name, Vec<u8>)>,
    /// Bytes of `writes`, and of the record that is written now.
    write_bytes: u64,
    /// For each replica.
    arrivals: Vec<VecDeque<Arrival>>,
    arrival_bytes: u64,
    /// Memory of records that were collected.
    spare: Vec<Vec<u8>>,
    /// Changes with `clear`: what was read or written before is void.
    generation: u64,
    /// The files are yet to be cleared.
    clear: bool,
    users: usize,
    /// Nanoseconds for each byte read.
    pace: f64,
    counts: DiskCounts,
    /// A failure to tell about, and whether one was told.
    failure: Option<String>,
    failed: bool,
}

/// Pace before anything was read: 200 MB/s.
const FIRST_PACE: f64 = 5.0;
/// Weight of a read in the pace.
const WEIGHT: f64 = 0.2;
/// Nanoseconds that a read takes beside its bytes.
const READ_NS: f64 = 100_000.0;

/// Records on disk, the orders of engine threads, and what goes there.
pub struct Store {
    state: Mutex<State>,
    /// Rung for the thread that works.
    bell: Condvar,
    /// Rung for those that wait for room in the queue.
    room: Condvar,
    files: Mutex<Box<dyn Files>>,
    scope: u64,
    sizes: Sizes,
    bounds: Bounds,
    /// Whether a thread runs `run`.
    threaded: bool,
}

impl Store {
    /// The records of `files` that belong to `scope`. `replicas` threads will leave it with `Store::leave`.
    pub fn open(
        mut files: Box<dyn Files>,
        scope: u64,
        sizes: Sizes,
        bounds: Bounds,
        replicas: usize,
    ) -> Result<Self> {
        let (claim, listed) = (files.claim(), files.list());
        let mut state = State {
            index: Index::default(),
            orders: VecDeque::new(),
            writes: VecDeque::new(),
            write_bytes: 0,
            arrivals: (0..replicas).map(|_| VecDeque::new()).collect(),
            arrival_bytes: 0,
            spare: Vec::new(),
            generation: 0,
            clear: false,
            users: replicas,
            pace: FIRST_PACE,
            counts: DiskCounts::default(),
            failure: None,
            failed: false,
        };
        match listed {
            Ok(listed) => listed.into_iter().try_for_each(|(name, bytes)| state.index.add(name, bytes))?,
            Err(error) => state.fail(format!("the prompt cache could not be listed: {error}")),
        }
        if claim == Claim::Denied {
            let why =
                "another process writes to the prompt cache, or its folder is read-only: it is only read";
            state.fail(why.into());
        }
        let [bell, room] = [Condvar::new(), Condvar::new()];
        Ok(Self {
            state: Mutex::new(state),
            bell,
            room,
            files: Mutex::new(files),
            scope,
            sizes,
            bounds,
            threaded: true,
        })
    }

    /// A store whose owner calls `work`, for simulations.
    #[cfg(test)]
    pub fn without_thread(self) -> Self {
        Self { threaded: false, ..self }
    }

    pub fn counts(&self) -> DiskCounts {
        let state = self.state.lock();
        DiskCounts { records: state.index.len() as u64, bytes: state.index.bytes(), ..state.counts }
    }

    /// The first failure, once.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().failure.take()
    }

    /// Whether a record is there or on its way there.
    pub fn knows(&self, name: Name) -> bool {
        let state = self.state.lock();
        state.index.has(name) || state.writes.iter().any(|(other, _)| *other == name)
    }

    /// Queues a record to be written; `payload` appends the bytes of the unit. Does nothing if the record is known. If
    /// the queue is full, waits for room if `wait`, else drops the record.
    pub fn put(
        &self,
        place: &Place,
        wait: bool,
        payload: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let name = place.name();
        if self.knows(name) {
            return Ok(());
        }
        let bytes = self.sizes.of(place.kind) as u64;
        let full = |state: &State| state.write_bytes > 0 && state.write_bytes + bytes > self.bounds.buffers;
        let mut state = self.state.lock();
        while wait && full(&state) && state.users > 0 {
            state = match self.threaded {
                true => self.room.wait(state),
                false => {
                    drop(state);
                    self.work(&|_| ());
                    self.state.lock()
                }
            };
        }
        if full(&state) || bytes > self.bounds.bytes {
            state.counts.dropped += 1;
            return Ok(());
        }
        drop(state);
        let record = record::encode(self.scope, place, self.sizes.unit(place.kind), payload)?;
        let mut state = self.state.lock();
        reserved(state.writes.try_reserve(1), QUEUE, size_of::<(Name, Vec<u8>)>())?;
        state.write_bytes += record.len() as u64;
        state.writes.push_back((name, record));
        self.bell.notify_one();
        Ok(())
    }

    /// Moves the next arrival for a replica out.
    pub fn arrival(&self, replica: usize) -> Option<Arrival> {
        let mut state = self.state.lock();
        let arrival = state.arrivals[replica].pop_front()?;
        state.arrival_bytes -= arrival.record.len() as u64;
        self.bell.notify_one();
        Some(arrival)
    }

    /// Takes the memory of an arrival back, for the next one.
    pub fn reuse(&self, arrival: Arrival) {
        let Arrival { mut record, .. } = arrival;
        let mut state = self.state.lock();
        if !state.orders.is_empty() && state.spare.len() < SPARE && state.spare.try_reserve(1).is_ok() {
            record.clear();
            state.spare.push(record);
        }
    }

    /// Forgets all records.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.index.clear();
        state.writes.clear();
        state.write_bytes = 0;
        state.generation += 1;
        state.clear = true;
        self.bell.notify_one();
    }

    /// A replica will order and put nothing more. After the last one, `run` returns once all is written.
    pub fn leave(&self) {
        self.set_users(|users| users.saturating_sub(1));
    }

    /// No replica will order or put anything more.
    pub fn close(&self) {
        self.set_users(|_| 0);
    }

    fn set_users(&self, change: impl FnOnce(usize) -> usize) {
        let mut state = self.state.lock();
        state.users = change(state.users);
        if state.users == 0 {
            state.orders.clear();
        }
        self.bell.notify_all();
        self.room.notify_all();
    }

    /// Works until all replicas have left and everything is written. `wake` is called with the number of a replica for
    /// which something arrived.
    pub fn run(&self, wake: &dyn Fn(usize)) {
        loop {
            if self.work(wake) {
                continue;
            }
            let state = self.state.lock();
            if state.next(self.bounds.buffers).is_some() {
                continue;
            }
            if state.users == 0 {
                break;
            }
            drop(self.bell.wait(state));
        }
        self.state.lock().spare = Vec::new();
        self.files.lock().release();
    }

    /// Does the next piece of work: a read before a write. False if there is none.
    pub fn work(&self, wake: &dyn Fn(usize)) -> bool {
        let mut state = self.state.lock();
        match state.next(self.bounds.buffers) {
            None => return false,
            Some(Next::Clear) => {
                state.clear = false;
                drop(state);
                self.remove_all();
            }
            Some(Next::Read) => {
                let (generation, order) = (state.generation, state.orders.pop_front());
                drop(state);
                if let Some(order) = order {
                    self.read(generation, order, wake);
                }
            }
            Some(Next::Write) => {
                let (generation, write) = (state.generation, state.writes.pop_front());
                drop(state);
                if let Some((name, record)) = write {
                    self.write(generation, name, record);
                }
            }
        }
        true
    }

    fn read(&self, generation: u64, order: Order, wake: &dyn Fn(usize)) {
        let Order { replica, ticket, index, place } = order;
        let (name, began) = (place.name(), now_ns());
        let mut record = self.state.lock().spare.pop().unwrap_or_default();
        let read = self.files.lock().read(name, self.sizes.of(place.kind), &mut record);
        let payload = record::decode(&record, self.scope, &place).map(|bytes| {
            let from = bytes.as_ptr() as usize - record.as_ptr() as usize;
            (from, from + bytes.len())
        });
        let mut payload = payload.filter(|(from, to)| to - from == self.sizes.unit(place.kind));
        let ns = now_ns() - began;
        let mut state = self.state.lock();
        if generation != state.generation {
            payload = None;
        } else {
            state.note_read(name, &read, payload.is_some(), record.len() as u64, ns);
        }
        let damaged = read.is_ok() && payload.is_none() && generation == state.generation;
        if payload.is_none() {
            record = Vec::new();
        }
        let room = state.arrivals[replica].try_reserve(1);
        if room.is_ok() {
            state.arrival_bytes += record.len() as u64;
            state.arrivals[replica].push_back(Arrival { ticket, index, record, payload });
        }
        drop(state);
        if damaged {
            // It stays only if another process owns the folder.
            let mut files = self.files.lock();
            let _ = if files.claim() == Claim::Denied { Ok(()) } else { files.remove(name) };
        }
        wake(replica);
    }

    fn write(&self, generation: u64, name: Name, mut record: Vec<u8>) {
        let (queued, began) = (record.len() as u64, now_ns());
        record::seal(&mut record);
        let bytes = record.len() as u64;
        let mut files = self.files.lock();
        let claim = files.claim();
        if claim == Claim::New {
            self.list_again(&mut **files);
        }
        let written = match claim {
            Claim::Denied => Ok(false),
            _ => {
                self.make_room(&mut **files, bytes);
                files.write(name, &record).map(|()| true)
            }
        };
        let mut state = self.state.lock();
        if generation != state.generation {
            drop(state);
            let _ = files.remove(name);
            return;
        }
        state.write_bytes -= queued;
        match written {
            Ok(true) if state.index.add(name, bytes).is_ok() => {
                state.counts.writes += 1;
                state.counts.written_bytes += bytes;
                state.counts.write_ns += now_ns() - began;
            }
            Ok(_) => state.counts.dropped += 1,
            Err(error) => {
                state.counts.dropped += 1;
                state.fail(format!("the prompt cache could not be written to: {error}"));
            }
        }
        self.room.notify_all();
    }

    /// Removes the records that were not used for the longest time until one of `bytes` bytes is within the limits.
    fn make_room(&self, files: &mut dyn Files, bytes: u64) {
        loop {
            let mut state = self.state.lock();
            if state.index.bytes() + bytes <= self.bounds.bytes && state.index.len() < self.bounds.records {
                return;
            }
            let Some(oldest) = state.index.oldest() else { return };
            state.index.remove(oldest);
            state.counts.evicted += 1;
            drop(state);
            // One that cannot be removed is found again at the next start.
            let _ = files.remove(oldest);
        }
    }

    /// Adds what another process wrote.
    fn list_again(&self, files: &mut dyn Files) {
        let Ok(listed) = files.list() else { return };
        let mut state = self.state.lock();
        for (name, bytes) in listed {
            if !state.index.has(name) && state.index.add(name, bytes).is_err() {
                return;
            }
        }
    }

    fn remove_all(&self) {
        let mut files = self.files.lock();
        if files.claim() == Claim::Denied {
            return;
        }
        let listed = files.list().unwrap_or_default();
        for (name, _) in listed {
            if !self.state.lock().index.has(name) {
                let _ = files.remove(name);
            }
        }
    }
}

/// Maximum number of records whose memory is kept while others are ordered. One that is read takes its place, so it is
/// within the memory of those in flight.
const SPARE: usize = 2;

const QUEUE: &str = "the prompt cache's queue";

enum Next {
    Clear,
    Read,
    Write,
}

impl State {
    /// Reads wait while too much has arrived and was not collected.
    fn next(&self, buffers: u64) -> Option<Next> {
        match () {
            () if self.clear => Some(Next::Clear),
            () if !self.orders.is_empty() && self.arrival_bytes <= buffers => Some(Next::Read),
            () if !self.writes.is_empty() => Some(Next::Write),
            () => None,
        }
    }

    fn note_read(&mut self, name: Name, read: &std::io::Result<()>, good: bool, bytes: u64, ns: u64) {
        match read {
            Ok(()) if good => {
                self.index.touch(name);
                self.counts.reads += 1;
                self.counts.read_bytes += bytes;
                self.counts.read_ns += ns;
                let pace = (ns as f64 - READ_NS).max(0.0) / bytes as f64;
                self.pace += WEIGHT * (pace - self.pace);
            }
            Ok(()) => {
                self.index.remove(name);
                self.counts.damaged += 1;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => self.index.remove(name),
            Err(error) => self.fail(format!("the prompt cache could not be read: {error}")),
        }
    }

    fn fail(&mut self, why: String) {
        if !std::mem::replace(&mut self.failed, true) {
            self.failure = Some(why);
        }
    }
}

/// A replica's access to the store.
pub struct Port {
    pub store: Arc<Store>,
    pub replica: usize,
}

impl Port {
    fn state(&self) -> MutexGuard<'_, State> {
        self.store.state.lock()
    }
}

impl Lower for Port {
    fn has(&self, name: Name) -> bool {
        self.state().index.has(name)
    }

    fn read_ns(&self, blocks: usize, states: usize) -> f64 {
        let Self { store, .. } = self;
        let state = self.state();
        let queued = state.orders.len();
        let bytes = (blocks + queued) * store.sizes.of(Kind::Block) + states * store.sizes.of(Kind::State);
        bytes as f64 * state.pace + (blocks + states + queued) as f64 * READ_NS
    }

    fn order(&mut self, ticket: u64, index: u32, place: Place) -> Result<()> {
        let mut state = self.state();
        reserved(state.orders.try_reserve(1), QUEUE, size_of::<Order>())?;
        state.orders.push_back(Order { replica: self.replica, ticket, index, place });
        self.store.bell.notify_one();
        Ok(())
    }

    fn cancel(&mut self, ticket: u64) {
        self.state().orders.retain(|order| order.replica != self.replica || order.ticket != ticket);
    }
}

#[cfg(test)]
mod tests;
