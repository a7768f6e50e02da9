//! An imaginary machine: scheduler, simulated memory, requests, and a clock that only the simulation moves.

use super::checks::Expected;
use super::memory::Memory;
use super::model::{Live, Prompts, Requests, sampled};
use super::router::Router;
use super::tally::Tally;
use crate::common::rng::Rng;
use bn_engine::base::Status;
use bn_engine::cache::blocks_for;
use bn_engine::schedule::{
    PATIENCE_NS, Plan, Rank, Request, Reuse, Scheduler, SchedulerConfig, SeqId, State, StateConfig, Work,
};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Nanoseconds of a step: fixed, per row, per attended position.
#[derive(Clone, Copy, Debug)]
pub struct Cost(pub f64, pub f64, pub f64);

impl Cost {
    pub fn ns(self, work: Work) -> f64 {
        self.0 + self.1 * work.rows as f64 + self.2 * work.keys as f64
    }
}

/// The settings of a world, drawn from its seed.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub config: SchedulerConfig,
    pub cost: Cost,
    /// Maximum number of live requests.
    pub requests: u32,
    pub max_prompt: u32,
    pub max_new: u32,
    /// One turn in this many submits, in a rush and in a lull.
    pub arrivals: [u64; 2],
    /// Most positions of a prompt that run in one step; 0: there are no such positions.
    pub unit: u32,
}

impl Setting {
    pub fn draw(rng: &mut Rng) -> Self {
        let block_size = *rng.pick(&[1, 2, 3, 4, 4, 8, 16]);
        let blocks = 4 + rng.below(61) as u32;
        let max_batch_size = 1 + rng.below(16) as u32;
        let positions = u64::from(block_size * blocks);
        // From many requests that fit to barely one.
        let fit = *rng.pick(&[1, 4, 16]);
        let max_prompt = 1 + rng.below((positions / fit).clamp(1, 150)) as u32;
        let config = SchedulerConfig {
            max_batch_size,
            max_batch_tokens: max_batch_size + rng.below(64) as u32,
            max_logits_rows: max_batch_size + rng.below(8) as u32,
            max_step_ns: 20_000_000 + rng.below(200_000_000),
            target_itl_ns: if rng.one_in(4) { 20_000_000 + rng.below(100_000_000) } else { 0 },
            block_size,
            blocks,
            states: StateConfig::default(),
            max_wait_ns: if rng.one_in(4) { rng.below(5_000_000) } else { 0 },
            ageing_ns: rng.below(20) * 500_000_000,
        };
        let states = StateConfig {
            slots: if rng.one_in(2) { max_batch_size + rng.below(8) as u32 } else { 0 },
            snapshot_interval: block_size * *rng.pick(&[0, 1, 2, 7]),
            drafts: rng.below(20) as u32,
        };
        let config = SchedulerConfig { states, ..config };
        let cost = Cost(
            1e7 + rng.below(40_000_000) as f64,
            rng.below(2_000_000) as f64,
            rng.below(2) as f64 * rng.below(20_000) as f64,
        );
        let max_new = 1 + rng.below(60.min(positions)) as u32;
        let arrivals = [2 + rng.below(6), 8 + rng.below(60)];
        let requests = 24 + rng.below(40) as u32;
        // Beside the rows of all other sequences.
        let room = u64::from(config.max_batch_tokens - (max_batch_size - 1));
        let unit = if states.slots == 0 && rng.one_in(2) { rng.below(1 + room) as u32 } else { 0 };
        Self { config, cost, requests, max_prompt, max_new, arrivals, unit }
    }

    /// Maximum number of committed steps that a request may take for itself and for each one in front of it.
    ///
    /// A running sequence that is first in the queue computes at least one row per step and is never
    /// preempted, so it ends within `rows` steps. A waiting one that is first is admitted once a batch slot
    /// is free, the steps are short enough and `PATIENCE_NS` have passed: the first of the running ones ends
    /// within `rows` steps too, and so does the next, until one is alone.
    pub fn steps_each(&self) -> u64 {
        let rows = u64::from(self.max_prompt + self.max_new);
        let patience = PATIENCE_NS / (0.95 * self.cost.0) as u64 + 1;
        let behind = if self.config.target_itl_ns == 0 { 1 } else { u64::from(self.config.max_batch_size) };
        rows * (1 + behind) + patience
    }
}

pub struct World {
    pub seed: u64,
    pub setting: Setting,
    pub rng: Rng,
    pub scheduler: Scheduler,
    pub memory: Memory,
    pub router: Router,
    pub requests: Requests,
    pub tally: Tally,
    prompts: Prompts,
    pub plan: Plan,
    pub now: u64,
    pub steps: u64,
    accepted: u64,
    ended: u64,
    /// The last pass changed states and was not committed.
    stale: bool,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let setting = Setting::draw(&mut rng);
        let SchedulerConfig { blocks, block_size, .. } = setting.config;
        let mut scheduler = Scheduler::new(setting.config).unwrap();
        scheduler.cache_mut().log_events(1 + rng.below(40) as usize).unwrap();
        Self {
            seed,
            scheduler,
            router: Router::default(),
            memory: Memory::new(blocks, block_size, setting.config.states.slots),
            requests: Requests((0..setting.requests).map(|_| None).collect()),
            tally: Tally::default(),
            prompts: Prompts::new(&mut rng, setting.max_prompt),
            plan: Plan::default(),
            now: rng.below(1_000_000_000),
            steps: 0,
            accepted: 0,
            ended: 0,
            stale: false,
            rng,
            setting,
        }
    }

    /// Runs random turns, then everything left to its end. Returns a tally and a digest of all events.
    pub fn run(mut self, steps: u64) -> (Tally, u64) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            while self.steps < steps {
                self.turn();
            }
            self.drain();
        }));
        if let Err(panic) = outcome {
            eprintln!("replay with BN_SIM_SEED={} BN_SIM_STEPS={steps}\n{self}", self.seed);
            resume_unwind(panic);
        }
        (self.tally.worlds, self.tally.steps) = (1, self.steps);
        self.tally.take(&self.scheduler);
        (self.tally, crate::common::rng::mix(self.now, self.rng.next()))
    }

    fn turn(&mut self) {
        // Rushes and lulls.
        let arrivals = self.setting.arrivals[((self.steps / 256) % 2) as usize];
        if self.rng.one_in(arrivals) {
            self.submit();
        }
        if self.rng.one_in(12) {
            self.disturb();
        }
        self.step();
        if self.steps.is_multiple_of(64) {
            self.check_lives();
        }
        self.steps += 1;
    }

    fn drain(&mut self) {
        for slot in 0..self.requests.0.len() {
            self.scheduler.resume(SeqId(slot as u32), self.now);
            if self.scheduler.state(SeqId(slot as u32)) == State::Waiting {
                self.waits(SeqId(slot as u32));
            }
        }
        while self.scheduler.ready_at(self.now).is_some() {
            self.step();
            self.check_lives();
        }
        self.drop_sessions();
        assert_eq!(self.scheduler.counts().blocks_used, 0);
        assert_eq!(self.accepted, self.ended);
        assert!(self.requests.iter().next().is_none());
    }

    fn draw_request(&mut self, prompt: &[u32]) -> Request {
        let rng = &mut self.rng;
        let reuse = Reuse {
            limit: if rng.one_in(6) { rng.below(2) as u32 * rng.below(100) as u32 } else { u32::MAX },
            shared: !rng.one_in(12),
            salt: u64::from(rng.one_in(6)),
        };
        let priority = if rng.one_in(2) { 128 } else { rng.next() as u8 };
        let max_new = 1 + rng.below(self.setting.max_new.into()) as u32;
        let first_by_ns = if rng.one_in(8) { self.now + rng.below(3_000_000_000) } else { 0 };
        let prompt_len = prompt.len() as u32;
        Request {
            prompt_len,
            max_new,
            priority,
            arrived_ns: self.now,
            first_by_ns,
            reuse,
            logits_from: None,
            whole: false,
        }
    }

    fn submit(&mut self) {
        let free: Vec<u32> =
            (0u32..).zip(&self.requests.0).filter(|(_, live)| live.is_none()).map(|(i, _)| i).collect();
        if free.is_empty() {
            return;
        }
        let seq = SeqId(*self.rng.pick(&free));
        let prompt = self.prompts.draw(&mut self.rng);
        let request = self.draw_request(&prompt);
        let config = &self.setting.config;
        let Request { max_new, priority, .. } = request;
        let ends_after = if self.rng.one_in(2) { max_new } else { 1 + self.rng.below(max_new.into()) as u32 };
        let seed = if self.rng.one_in(2) { 0 } else { self.rng.next() };
        let rank = Rank::new(self.now, priority, config.ageing_ns, self.accepted);
        let live = Live::new(request, rank, (&prompt, self.setting.unit), ends_after, seed, self.rng.next());
        let needed = blocks_for(live.bound().into(), config.block_size);
        let too_long = needed > config.blocks.into();
        self.requests.0[seq.0 as usize] = Some(live);
        let result = self.scheduler.submit(seq, request, &self.requests);
        if too_long {
            assert_eq!(result.unwrap_err().status, Status::TooLong);
            self.requests.0[seq.0 as usize] = None;
            self.tally.too_long += 1;
            return;
        }
        result.unwrap();
        // A submit to a taken slot is refused, and its sequence is unchanged.
        assert_eq!(self.scheduler.submit(seq, request, &self.requests).unwrap_err().status, Status::Internal);
        self.accepted += 1;
        self.waits(seq);
    }

    /// `seq` is queued from now on, so other sequences may wait longer for it, and it for them.
    fn waits(&mut self, seq: SeqId) {
        let (each, rank, now) = (self.setting.steps_each(), self.requests.get(seq).rank, self.now);
        let mut in_front = 0;
        for live in self.requests.iter_mut() {
            match live.rank.cmp(&rank) {
                std::cmp::Ordering::Less => in_front += 1,
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => live.allowed += each,
            }
        }
        let live = self.requests.get_mut(seq);
        live.allowed += each * (1 + in_front);
        (live.state, live.since, live.fitting) = (State::Waiting, now, 0);
    }

    /// Cancels, pauses or resumes a random slot, whether or not it has a request.
    fn disturb(&mut self) {
        let live: Vec<SeqId> = self.requests.iter().map(|(seq, _)| seq).collect();
        let seq = match live.is_empty() || self.rng.one_in(8) {
            true => SeqId(self.rng.below(self.requests.0.len() as u64) as u32),
            false => *self.rng.pick(&live),
        };
        let state = self.requests.0[seq.0 as usize].as_ref().map_or(State::Absent, |live| live.state);
        match self.rng.below(10) {
            0 => {
                let given = self.scheduler.cancel(seq, &self.requests);
                assert_eq!(given, state);
                self.tally.cancelled[state as usize] += 1;
                if state != State::Absent {
                    self.end(seq);
                }
                assert_eq!(self.scheduler.cancel(seq, &self.requests), State::Absent);
            }
            1 => {
                self.scheduler.pause(seq, &self.requests);
                self.tally.paused[state as usize] += 1;
                if state != State::Absent {
                    let live = self.requests.get_mut(seq);
                    (live.state, live.computed) = (State::Paused, 0);
                    assert!(self.scheduler.block_table(seq).is_empty());
                }
            }
            2 | 3 => self.drop_or_touch(),
            _ => {
                self.scheduler.resume(seq, self.now);
                if state == State::Paused {
                    self.tally.resumes += 1;
                    self.waits(seq);
                }
            }
        }
    }

    /// `take` fails if a request ends a second time.
    fn end(&mut self, seq: SeqId) {
        let live = self.requests.0[seq.0 as usize].take().expect("a request ended twice");
        self.prompts.ended(&live.whole[..live.known as usize], &mut self.rng);
        self.ended += 1;
    }

    /// One turn of the engine's loop.
    fn step(&mut self) {
        let Some(at) = self.scheduler.ready_at(self.now) else {
            assert!(self.requests.iter().all(|(_, live)| live.state == State::Paused), "idle with work left");
            self.now += 1_000_000;
            return;
        };
        assert!(at <= self.now + self.setting.config.max_wait_ns);
        self.now = self.now.max(at);
        let expected = Some(Expected::before(self)).filter(|_| !std::mem::take(&mut self.stale));
        self.scheduler.plan(&mut self.plan, &self.requests, self.now);
        let mut plan = self.plan.clone();
        self.memory.copy(&plan.copies);
        self.memory.copy_states(&plan.state_copies);
        self.tally.copied += plan.copies.len() as u64;
        self.tally.resumed_states += plan.state_copies.len() as u64;
        self.check_plan(&plan);
        expected.into_iter().for_each(|expected| expected.check(self, &plan));
        self.draft(&mut plan);
        // Noise of a tenth, and now and then the machine sleeps.
        let ns = self.setting.cost.ns(plan.work) * (0.95 + self.rng.below(100) as f64 * 1e-3);
        let ns = if self.rng.one_in(2000) { ns * 50.0 } else { ns } as u64;
        self.now += ns;
        plan.entries.iter().for_each(|entry| self.scheduler.ran(entry.seq));
        match self.rng.below(64) {
            // The pass failed: nothing is committed.
            0 => {
                for entry in &plan.entries {
                    self.memory.spoil(self.scheduler.block_table(entry.seq), entry.start, entry.rows);
                    self.memory.spoil_states(&self.scheduler, entry.seq);
                }
                self.restart();
                self.tally.failed_passes += 1;
            }
            _ => self.finish_step(&mut plan, ns),
        }
        for &seq in &plan.late {
            assert_eq!(self.scheduler.cancel(seq, &self.requests), State::Waiting);
            self.tally.late += 1;
            self.end(seq);
        }
        self.scheduler.check().unwrap();
        self.check_sessions();
        self.check_router();
    }

    /// Sequences with states compute everything again after a failed pass, and others wait for them.
    fn restart(&mut self) {
        self.stale = self.setting.config.states.slots > 0;
        if self.stale {
            let (each, live) = (self.setting.steps_each(), self.requests.iter().count() as u64);
            self.requests.iter_mut().for_each(|request| request.allowed += each * live);
        }
    }

    fn finish_step(&mut self, plan: &mut Plan, ns: u64) {
        let mut ended = Vec::new();
        let (requests, scheduler) = (&mut self.requests, &self.scheduler);
        let spoilt = if self.rng.one_in(64) { self.rng.below(4) as usize } else { usize::MAX };
        for (at, entry) in plan.entries.iter_mut().enumerate() {
            let (live, table) = (requests.get_mut(entry.seq), scheduler.block_table(entry.seq));
            if at == spoilt {
                // It failed alone: its rows are useless, and it is cancelled.
                self.memory.spoil(table, entry.start, entry.rows);
                self.memory.spoil_states(scheduler, entry.seq);
                self.tally.dropped += 1;
                ended.push(entry.seq);
                continue;
            }
            // Correct drafts are accepted, up to an end.
            let right = self.rng.below(u64::from(entry.drafts) + 1) as u32;
            entry.accepted = right.min(live.ends_after - live.generated() - u32::from(entry.sample));
            self.memory.run_states(scheduler, entry, live);
            let mut hash = self.memory.run(table, live, entry.start, entry.known());
            live.computed += entry.kept();
            for n in 0..=entry.accepted {
                if n > 0 {
                    hash = self.memory.run(table, live, entry.start + entry.known() + n - 1, 1);
                }
                if entry.sample {
                    let token = sampled(live.seed, hash);
                    assert_eq!(
                        token, live.whole[live.known as usize],
                        "{entry:?} samples otherwise than alone"
                    );
                    live.known += 1;
                }
            }
            self.memory.spoil(table, entry.start + entry.kept(), entry.drafts - entry.accepted);
            self.tally.accepted += u64::from(entry.accepted);
            if entry.sample && live.generated() == live.ends_after {
                ended.push(entry.seq);
            }
        }
        if let Some(spoilt) = plan.entries.get(spoilt).map(|entry| entry.seq) {
            plan.retain(|entry| entry.seq != spoilt);
        }
        self.scheduler.commit(plan, ns, &self.requests);
        for live in self.requests.iter_mut().filter(|live| live.state != State::Paused) {
            live.life += 1;
        }
        for seq in ended {
            self.check_life(self.requests.get(seq));
            if self.requests.get(seq).generated() > 0 {
                self.keep_some(seq);
            }
            self.tally.preempted_once(self.scheduler.preemptions(seq));
            assert_eq!(self.scheduler.cancel(seq, &self.requests), State::Running);
            self.end(seq);
        }
    }

    fn check_lives(&mut self) {
        for (_, live) in self.requests.iter() {
            self.check_life(live);
        }
        let share = |live: &Live| live.life as f64 / live.allowed as f64;
        self.tally.life = self.requests.iter().map(|(_, live)| share(live)).fold(self.tally.life, f64::max);
    }

    fn check_life(&self, live: &Live) {
        assert!(live.life <= live.allowed, "{live:?} takes too long");
    }
}
