//! The host of a world: its requests, the events it received, and the leases it still holds.

use super::request::Asked;
use super::setting::Setting;
use super::tally::Tally;
use crate::base::Status;
use crate::base::clock::{fake, now_ns};
use crate::base::error::refusals;
use crate::engine::api::*;
use crate::engine::core::Shared;
use crate::engine::handle::Engine;
use crate::engine::hub::slots::lease_bytes;
use crate::engine::hub::{Phase, SetAside};
use crate::kernels::isa;
use crate::rng::{Rng, mix};
use crate::sample::Sampler;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Behavior of the host for a while. Each action happens in one of this many turns; 0: never.
#[derive(Clone, Copy, Debug)]
pub struct Mood {
    pub submit: u64,
    poll: u64,
    poll_one: u64,
    give_back: u64,
    release: u64,
    pub cancel: u64,
    call: u64,
}

const fn mood(submit: u64, poll: u64, poll_one: u64, give_back: u64, release: u64) -> Mood {
    Mood { submit, poll, poll_one, give_back, release, cancel: 60, call: 40 }
}

/// Attentive, busy, lazy, gone, keeping polled events, keeping finished requests.
const MOODS: [Mood; 6] = [
    mood(3, 1, 1, 1, 1),
    mood(1, 2, 2, 2, 2),
    mood(6, 12, 12, 20, 12),
    mood(8, 0, 0, 0, 0),
    mood(3, 2, 2, 0, 2),
    mood(3, 2, 2, 2, 0),
];

pub struct Host {
    pub engine: Engine,
    pub shared: Arc<Shared>,
    pub rng: Rng,
    pub setting: Setting,
    pub tally: Tally,
    pub asked: BTreeMap<RequestId, Asked>,
    pub accepted: u64,
    /// Per replica: requests whose end was requested since its last turn began.
    told: Vec<Vec<RequestId>>,
    /// The replica whose turn it is, and the requests whose end was requested before: it must end them before the
    /// next pass.
    pub replica: usize,
    pub ending: Vec<RequestId>,
    /// Rotations of the turn's drafts, by block and position.
    pub rotations: HashMap<(u32, u32), [u32; 3]>,
    /// This turn began in a pause of the engine.
    pub held_still: bool,
    pub prompts: Vec<Vec<u32>>,
    pub sampler: Sampler,
    pub mood: Mood,
    /// Events taken by the delivery thread and not yet delivered.
    pub held: Vec<(RequestId, Box<Event>)>,
    /// Bytes that belong to no request.
    pub aside: Option<SetAside>,
    pub calls: Vec<(usize, super::calls::Call)>,
    pub saved: Vec<Vec<u8>>,
    /// No pass fails from now on, except on a sick replica.
    pub faults_off: bool,
    /// The replica whose passes all fail.
    pub sick: Option<usize>,
    /// Number of sequences of a pass that was stopped.
    pub stopped: Option<usize>,
    /// All requests were told to end during this pass.
    pub all: bool,
    /// New requests have the lowest priority, so that they rank behind all earlier ones.
    pub last: bool,
    /// Number of passes with one sequence that are likely to fail, because these sequences failed together.
    pub angry: usize,
    pub again: bool,
    /// Number of requests that a fault has certainly ended, and number that a fault may have ended.
    pub hits: u64,
    pub grazes: u64,
    /// Message of an assertion that failed within a pass, which catches panics.
    pub broken: Option<String>,
    /// Number of refused reservations before this world.
    pub refused: u64,
    pub digest: u64,
}

impl Host {
    pub fn new(engine: Engine, shared: Arc<Shared>, rng: Rng, setting: Setting) -> Self {
        let sampler = Sampler::new(engine.facts().vocab_size, 4096, isa()).unwrap();
        Self {
            engine,
            shared,
            rng,
            setting,
            sampler,
            tally: Tally::default(),
            asked: BTreeMap::new(),
            accepted: 0,
            told: vec![Vec::new(); setting.replicas],
            replica: 0,
            ending: Vec::new(),
            rotations: HashMap::new(),
            held_still: false,
            prompts: Vec::new(),
            mood: MOODS[0],
            held: Vec::new(),
            aside: None,
            calls: Vec::new(),
            saved: Vec::new(),
            faults_off: false,
            sick: None,
            stopped: None,
            all: false,
            last: false,
            angry: 0,
            again: false,
            hits: 0,
            grazes: 0,
            broken: None,
            refused: refusals::count(),
            digest: 0,
        }
    }

    /// Begins a replica's turn. Returns the number of calls that it must answer, and the requests that it was told
    /// to end.
    pub fn begin_turn(&mut self, replica: usize) -> (usize, Vec<RequestId>) {
        self.replica = replica;
        self.ending = std::mem::take(&mut self.told[replica]);
        self.rotations.clear();
        self.held_still = self.shared.hub.is_held();
        let calls = self.calls.iter().filter(|(of, _)| *of == replica).count();
        (calls, self.ending.clone())
    }

    /// From now on nothing fails, nothing is set aside, and the engine is not paused.
    pub fn calm_down(&mut self) {
        (self.faults_off, self.sick) = (true, None);
        self.engine.resume().unwrap();
        self.let_go();
    }

    /// Records that the end of `id` was requested.
    fn note_end(&mut self, id: RequestId) {
        self.told.iter_mut().for_each(|told| told.push(id));
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.rng.one_in(one_in)
    }

    pub fn move_clock(&mut self, ns: u64) {
        fake::set(Some(now_ns() + ns));
    }

    /// The host acts at random, according to its mood.
    pub fn act(&mut self) {
        if self.rng.one_in(80) {
            self.mood = *self.rng.pick(&MOODS);
        }
        let mood = self.mood;
        self.move_clock(1_000);
        if self.chance(mood.submit) {
            self.submit();
        }
        if self.chance(mood.poll) {
            let capacity = 1 + self.rng.below(8) as usize;
            self.poll(capacity);
        }
        if self.chance(mood.poll_one) {
            self.poll_one();
        }
        if self.chance(mood.give_back) {
            self.give_back();
        }
        if self.chance(mood.release) {
            self.release();
        }
        if self.chance(mood.cancel) {
            self.cancel();
        }
        if self.chance(mood.call) {
            self.call();
        }
        self.set_aside();
        self.hold();
        self.check();
    }

    pub fn check(&self) {
        let readable = self.shared.hub.signal().map(|signal| signal.is_set());
        self.shared.hub.check(readable);
    }

    fn any(&mut self, wanted: impl Fn(&Asked) -> bool) -> Option<RequestId> {
        let ids: Vec<RequestId> =
            self.asked.iter().filter(|(_, asked)| wanted(asked)).map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| *self.rng.pick(&ids))
    }

    /// Polls for any request, or delivers in callback mode.
    pub fn poll(&mut self, capacity: usize) -> bool {
        if self.setting.callback {
            return self.deliver(capacity);
        }
        let ready = self.shared.hub.usage().any_ready;
        let mut got = Vec::new();
        let before = refusals::count();
        if !self.faults_off && self.rng.one_in(100) {
            refusals::refuse_after(Some(self.rng.below(3)));
        }
        let result = self.engine.poll(Which::Any, capacity, Some(Duration::ZERO), &mut |lease, event| {
            got.push((lease, event.clone()));
        });
        refusals::refuse_after(None);
        let refused = refusals::count() > before;
        self.tally.count("polls");
        match result {
            Ok(n) => {
                let most = capacity.min(ready);
                assert!(n == got.len() && n <= most, "{n} events for {capacity}, {ready} are ready");
                assert!(n == most || refused || self.is_short(), "{n} events of {ready}");
            }
            Err(error) if error.status == Status::MemoryLimit => self.leases_are_full(ready > 0),
            Err(error) if error.status == Status::OutOfMemory => {
                assert!(refused);
                self.tally.count("polls without memory");
            }
            Err(error) => assert!(self.is_over() && ready == 0, "{error} with {ready} events"),
        }
        got.iter().for_each(|(lease, event)| self.take(Some(*lease), event));
        !got.is_empty()
    }

    fn poll_one(&mut self) {
        let by_id = self.rng.one_in(2);
        let Some(id) = self.any(|asked| asked.params.poll_by_id == by_id && !asked.params.poll_by_id | by_id)
        else {
            return;
        };
        if !self.setting.callback {
            self.poll_this(id);
        }
    }

    pub fn poll_this(&mut self, id: RequestId) -> bool {
        let mut got = Vec::new();
        let result = self.engine.poll(Which::One(id), 1, Some(Duration::ZERO), &mut |lease, event| {
            got.push((lease, event.clone()));
        });
        self.tally.count("polls of one");
        let finished = self.asked[&id].finish != FinishReason::None;
        match result {
            Ok(n) => assert!(n == got.len() && n <= 1 && !finished),
            Err(error) if error.status == Status::MemoryLimit => self.leases_are_full(!finished),
            Err(error) if error.status == Status::Finished => {
                assert!(finished, "{:?}", self.asked[&id]);
                self.tally.count("polls of one that finished");
            }
            Err(error) => {
                // The poll may happen during a turn in which memory is refused.
                let refused = error.status == Status::OutOfMemory;
                assert!(refused || self.is_over(), "{error}");
            }
        }
        got.iter().for_each(|(lease, event)| self.take(Some(*lease), event));
        !got.is_empty()
    }

    fn is_over(&self) -> bool {
        self.shared.hub.phase() >= Phase::Drained
    }

    /// Returns whether there is no room for another lease.
    fn is_short(&self) -> bool {
        let bytes = self.shared.hub.usage().reserved.saturating_add(lease_bytes::<Event>());
        bytes > self.setting.budget
    }

    fn leases_are_full(&mut self, ready: bool) {
        assert!(ready && self.is_short());
        self.tally.count("polls without room for a lease");
    }

    /// Delivers some events like the delivery thread, which may be slow. A callback may release its request, and other
    /// threads may release requests whose events were taken.
    fn deliver(&mut self, capacity: usize) -> bool {
        let shared = self.shared.clone();
        if self.held.is_empty() {
            let ready = shared.hub.usage().any_ready;
            if ready == 0 {
                return false;
            }
            assert!(shared.hub.take(&mut self.held));
            assert_eq!(self.held.len(), ready, "events taken");
        }
        let some = capacity.min(self.held.len());
        for (id, event) in self.held.drain(..some).collect::<Vec<_>>() {
            let known = self.asked.contains_key(&id);
            let handed_out = shared.hub.hand_out(id, &event, &mut |event| self.hear(event));
            assert_eq!(handed_out, known, "whoever was not released hears of it, and nobody else");
            self.tally.count(if handed_out { "deliveries" } else { "deliveries to nobody" });
            if handed_out && event.finish != FinishReason::None {
                assert!(shared.hub.stage(id).is_err(), "its last callback releases a request");
            }
        }
        true
    }

    /// The host's callback.
    fn hear(&mut self, event: &Event) {
        self.take(None, event);
        if self.rng.one_in(30) {
            self.forget(event.request);
            self.tally.count("releases in a callback");
        } else if event.finish != FinishReason::None {
            self.asked.remove(&event.request);
        }
    }

    /// After the end: delivers the delivery thread's remaining events, and checks that no more are expected.
    pub fn deliver_the_rest(&mut self) {
        while self.deliver(1 + self.held.len()) {
            self.release();
        }
        assert!(!self.shared.hub.take(&mut self.held), "events behind the last");
        assert!(self.asked.is_empty(), "{:?} have no last callback", self.asked);
    }

    fn take(&mut self, lease: Option<u64>, event: &Event) {
        let now = now_ns();
        let id = event.request;
        self.count_hold(event);
        let asked = self.asked.get_mut(&id).expect("an event of a request that was released");
        asked.leases.extend(lease);
        asked.take(event, now, refusals::count() > self.refused);
        self.tally.count("events");
        if event.tokens.len() > 1 && event.finish == FinishReason::None {
            self.tally.count("events that several steps made");
        }
        self.digest =
            mix(self.digest, (id.0 << 16) ^ event.tokens.len() as u64 ^ (event.finish as u64) << 12);
        self.digest = mix(self.digest, now);
        let why = match event.finish {
            FinishReason::None => return,
            FinishReason::Stop => "ended: Stop",
            FinishReason::StopString => "ended: StopString",
            FinishReason::Length => "ended: Length",
            FinishReason::Cancelled if event.message.contains("max_unread_bytes") => "ended: unread",
            FinishReason::Cancelled => "ended: Cancelled",
            FinishReason::TimedOut if event.message.contains("given up") => "ended: late",
            FinishReason::TimedOut if event.message.contains("admitted") => "ended: in the queue",
            FinishReason::TimedOut => "ended: TimedOut",
            FinishReason::Failed => "ended: Failed",
            FinishReason::Embedding => "ended: Embedding",
        };
        self.tally.count(why);
        let whole = [&super::pictures::own(&asked.params)[..], &asked.tokens].concat();
        self.remember(whole);
    }

    /// Gives back some polled events; now and then gives one back twice.
    fn give_back(&mut self) {
        let (mut leases, mut twice) = (Vec::new(), 0);
        for (id, asked) in &mut self.asked {
            if self.rng.one_in(3) {
                continue;
            }
            while !asked.leases.is_empty() && !self.rng.one_in(4) {
                let at = self.rng.below(asked.leases.len() as u64) as usize;
                let lease = asked.leases.remove(at);
                asked.given.push(lease);
                leases.push((*id, lease));
            }
            if !asked.given.is_empty() && self.rng.one_in(20) {
                leases.push((*id, *self.rng.pick(&asked.given)));
                twice += 1;
            }
        }
        self.tally.more("given back", leases.len() as u64);
        self.tally.more("given back twice", twice);
        self.engine.give_back(&mut leases.into_iter());
    }

    pub fn give_all_back(&mut self) {
        let leases = self.asked.iter_mut();
        let leases = leases.flat_map(|(id, asked)| asked.leases.drain(..).map(|lease| (*id, lease)));
        let leases: Vec<_> = leases.collect();
        self.engine.give_back(&mut leases.into_iter());
    }

    /// Releases a finished request; rarely a live one.
    fn release(&mut self) {
        let live = self.rng.one_in(20);
        if let Some(id) = self.any(|asked| live || asked.finish != FinishReason::None) {
            self.forget(id);
        }
    }

    pub fn forget(&mut self, id: RequestId) {
        let asked = self.asked.remove(&id).expect("it is known");
        self.engine.release(id).unwrap();
        assert_eq!(self.engine.release(id).unwrap_err().status, Status::NotFound);
        self.tally.count("releases");
        if asked.finish == FinishReason::None {
            self.note_end(id);
            self.tally.count("releases of live ones");
        }
        if !asked.leases.is_empty() {
            self.tally.count("releases beside a lease");
        }
        if !self.setting.callback && self.rng.one_in(4) {
            let poll = self.engine.poll(Which::One(id), 1, Some(Duration::ZERO), &mut |_, _| ());
            assert_eq!(poll.unwrap_err().status, Status::NotFound);
            self.tally.count("polls of nobody");
        }
    }

    fn cancel(&mut self) {
        if self.rng.one_in(8) {
            return self.cancel_all();
        }
        if let Some(id) = self.any(|_| true) {
            self.engine.cancel(Which::One(id)).unwrap();
            self.asked.get_mut(&id).expect("it is known").told = true;
            self.note_end(id);
            self.tally.count("cancels");
        }
    }

    pub fn cancel_all(&mut self) {
        self.engine.cancel(Which::Any).unwrap();
        self.note_end_of_all();
        self.tally.count("cancels of all");
    }

    /// Records that all requests were told to end.
    pub fn note_end_of_all(&mut self) {
        self.asked.values_mut().for_each(|asked| asked.told = true);
        self.told.iter_mut().for_each(|told| told.extend(self.asked.keys()));
        self.all = true;
    }

    /// Polls and frees everything. Returns false if there was nothing.
    pub fn serve(&mut self) -> bool {
        let mut some = false;
        self.give_all_back();
        while self.poll(8) {
            some = true;
            self.give_all_back();
        }
        let by_id: Vec<_> = self.asked.iter().filter(|(_, asked)| asked.params.poll_by_id).collect();
        let live = by_id.into_iter().filter(|(_, asked)| asked.finish == FinishReason::None);
        for id in live.map(|(id, _)| *id).collect::<Vec<_>>() {
            some |= self.poll_this(id);
        }
        self.give_all_back();
        while let Some(id) = self.any(|asked| asked.finish != FinishReason::None) {
            some = true;
            self.forget(id);
        }
        self.check();
        some
    }
}
