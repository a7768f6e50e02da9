//! Properties that every plan must have.

use super::model::Live;
use super::world::World;
use bn_engine::cache::blocks_for;
use bn_engine::schedule::{PATIENCE_NS, Plan, PlanEntry, Rank, SeqId, State, Work};
use std::fmt;

/// Maximum number of waiting requests that a plan examines, and number of plans before one that did not fit
/// is tried again.
const LOOK: usize = 16;
const RETRY: u32 = 16;

/// Requirements on a plan, from the state before it. Every need is computed without the cache, so never too
/// low.
pub struct Expected {
    /// The first sequence in the queue, if there is room for it or preemption must make some.
    head: Option<SeqId>,
    /// Sequences that fit without preemption.
    fit: Vec<SeqId>,
    preemptions: u64,
}

impl Expected {
    pub fn before(world: &World) -> Self {
        let (waiting, running) = (world.requests.line(State::Waiting), world.requests.line(State::Running));
        let free_slot = running.len() < world.setting.config.max_batch_size as usize;
        let (mut head, mut fit) = (None, Vec::new());
        // With a target between tokens, time decides too.
        if running.is_empty() {
            head = waiting.first().copied();
        } else if world.setting.config.target_itl_ns == 0 {
            let leads = |seq: &SeqId| {
                let live = world.requests.get(*seq);
                running.iter().any(|&other| live.may_follow(world.requests.get(other)))
            };
            head = waiting.first().copied().filter(|seq| !leads(seq) && must_admit(world, *seq, &running));
            if free_slot {
                let fits = |seq: &SeqId| available(world) >= need(world, *seq, &running) && !leads(seq);
                fit = waiting.into_iter().take(LOOK).filter(fits).collect();
            }
        }
        Self { head, fit, preemptions: world.scheduler.events().preemptions }
    }

    pub fn check(self, world: &mut World, plan: &Plan) {
        if self.preemptions == world.scheduler.events().preemptions {
            world.check_time(plan);
        }
        let admitted = |seq| plan.admitted.iter().any(|admission| admission.seq == seq);
        if let Some(head) = self.head.filter(|head| !plan.late.contains(head)) {
            world.tally.heads += 1;
            assert!(admitted(head), "{head:?} is first in line and has room");
        }
        if !plan.admitted.is_empty() {
            // Another sequence may have taken the room.
            return;
        }
        for (slot, live) in world.requests.0.iter_mut().enumerate() {
            let (seq, Some(live)) = (SeqId(slot as u32), live) else { continue };
            let fits = self.fit.contains(&seq) && !plan.late.contains(&seq);
            live.fitting = if fits { live.fitting + 1 } else { 0 };
            world.tally.fitting = world.tally.fitting.max(live.fitting);
            assert!(live.fitting <= RETRY, "{seq:?} has had room for {} plans", live.fitting);
        }
    }
}

fn available(world: &World) -> usize {
    world.scheduler.pool().available()
}

fn blocks(world: &World, positions: u32) -> usize {
    blocks_for(positions.into(), world.setting.config.block_size) as usize
}

/// Blocks that a running request will take soon.
fn promised(world: &World, seq: SeqId) -> usize {
    let live = world.requests.get(seq);
    let soon = live.bound().min(live.known + world.setting.config.block_size);
    blocks(world, soon).saturating_sub(world.scheduler.block_table(seq).len())
}

fn need(world: &World, seq: SeqId, running: &[SeqId]) -> usize {
    let live = world.requests.get(seq);
    let growth = blocks(world, live.bound()) - blocks(world, live.known);
    let ahead = match world.scheduler.preemptions(seq) {
        0 => 0,
        n => 1 << n.min(20),
    };
    let promised: usize = running.iter().map(|&other| promised(world, other)).sum();
    blocks(world, live.known) + growth.min(ahead) + promised
}

/// Sequences after `head` that it may preempt, starting with the last, hold enough blocks.
fn must_admit(world: &World, head: SeqId, running: &[SeqId]) -> bool {
    let (live, last) = (world.requests.get(head), world.requests.get(running[running.len() - 1]));
    let free_slot = running.len() < world.setting.config.max_batch_size as usize;
    let (mut room, need) = (available(world), need(world, head, running));
    if room >= need && free_slot {
        // It may be admitted later, as it is not tried in every plan.
        return false;
    }
    let patient = world.now - live.since >= PATIENCE_NS && room < need && free_slot;
    if !patient && !live.outranks(last) {
        return false;
    }
    for (n, &seq) in running.iter().rev().enumerate() {
        let victim = world.requests.get(seq);
        if !(live.outranks(victim) || patient && live.rank < victim.rank) {
            return false;
        }
        let table = world.scheduler.block_table(seq);
        let own = table.iter().filter(|&&block| world.scheduler.pool().references(block) == 1);
        room += own.count() + promised(world, seq);
        if room >= need || n + 1 == running.len() {
            return true;
        }
    }
    false
}

impl World {
    /// Checks the plan against the model, and updates the model.
    pub fn check_plan(&mut self, plan: &Plan) {
        assert!(!plan.is_empty() || !plan.late.is_empty(), "work left and nothing planned");
        assert_eq!(plan.refused, None);
        self.follow(plan);
        let (mut work, mut seen) = (Work::default(), vec![false; self.requests.0.len()]);
        for (at, entry) in plan.entries.iter().enumerate() {
            assert!(!std::mem::replace(&mut seen[entry.seq.0 as usize], true), "planned twice");
            assert_eq!(entry.decode, at < plan.decode_rows as usize, "decode rows come first");
            self.check_entry(entry);
            let live = self.requests.get(entry.seq);
            self.tally.units[0] += u64::from(live.units.iter().any(|unit| unit.start == entry.start));
            work.add(Work::span(entry.start, entry.rows));
        }
        assert_eq!(work, plan.work);
        let config = &self.setting.config;
        assert!(work.rows <= config.max_batch_tokens.into());
        let running = self.requests.line(State::Running);
        assert!(running.len() <= config.max_batch_size as usize);
        for &seq in &running {
            let waits = self.requests.get(seq).decodes() && !seen[seq.0 as usize];
            assert!(!waits, "the decode row of {seq:?} waits");
        }
        let first = running.first().is_none_or(|seq| seen[seq.0 as usize]);
        assert!(first || work.rows == u64::from(config.max_batch_tokens));
        self.check_late(plan);
        self.check_counts();
    }

    /// Sequences with a deadline for their first token that have not begun.
    fn check_late(&self, plan: &Plan) {
        for &seq in &plan.late {
            let live = self.requests.get(seq);
            assert!(
                live.state == State::Waiting && live.request.first_by_ns > 0 && !live.ran,
                "{seq:?} is not late"
            );
        }
        let waiting = self.requests.line(State::Waiting);
        if let Some(&seq) = waiting.first() {
            let live = self.requests.get(seq);
            let late = live.request.first_by_ns > 0 && live.request.first_by_ns < self.now && !live.ran;
            assert!(!late || live.since == self.now || plan.late.contains(&seq), "{seq:?} is late");
        }
    }

    fn check_entry(&self, entry: &PlanEntry) {
        let live = self.requests.get(entry.seq);
        let table = self.scheduler.block_table(entry.seq);
        let end = entry.start + entry.rows;
        assert!(live.is_running() && entry.rows > 0, "{entry:?}");
        assert_eq!((entry.start, entry.decode), (live.computed, live.decodes()), "{entry:?}");
        assert_eq!(entry.sample, end == live.known, "{entry:?}");
        assert!(end <= live.known && end <= live.bound(), "{entry:?} goes too far");
        self.memory.check(table, live.root, &live.whole[..live.computed as usize]);
        self.memory.check_state(&self.scheduler, entry.seq, live);
        assert_eq!((entry.logits, entry.drafts), (entry.sample.into(), 0), "{entry:?}");
        let divides = |at| live.units.iter().any(|unit| unit.start < at && at < unit.end);
        assert!(!divides(entry.start) && !divides(end), "{entry:?} divides one of {:?}", live.units);
        self.check_blocks(entry);
    }

    /// Checks that each row has its own place.
    pub fn check_blocks(&self, entry: &PlanEntry) {
        let table = self.scheduler.block_table(entry.seq);
        let end = entry.start + entry.rows;
        assert!(table.len() >= blocks(self, end), "{entry:?} has no blocks");
        let first = (entry.start / self.setting.config.block_size) as usize;
        for &block in &table[first..blocks(self, end)] {
            assert_eq!(self.scheduler.pool().references(block), 1, "{entry:?} writes to a shared block");
        }
    }

    /// Invariant 4's second half: in a step with decode rows, prompts take the rest of the target time, or
    /// three quarters of the decode rows' time if that is more. The one row that the first in the queue
    /// always gets, with those that must run beside it, may exceed it.
    fn check_time(&mut self, plan: &Plan) {
        let (decodes, prompts) = plan.entries.split_at(plan.decode_rows as usize);
        if decodes.is_empty() || prompts.is_empty() {
            return;
        }
        let mut work = Work::default();
        decodes.iter().for_each(|entry| work.add(Work::span(entry.start, entry.rows)));
        let (time, config) = (self.scheduler.step_time(), &self.setting.config);
        let target = match config.target_itl_ns {
            0 => config.max_step_ns,
            ns => ns.min(config.max_step_ns),
        };
        let bound = (0.875 * target as f64).max(1.75 * time.predict(work));
        let least = |entry: &PlanEntry| {
            let unit = self.requests.get(entry.seq).units.iter().find(|unit| unit.contains(&entry.start));
            time.extra(Work::span(entry.start, unit.map_or(1, |unit| unit.end - entry.start)))
        };
        let row = prompts.iter().map(least).fold(0.0, f64::max);
        let predicted = time.predict(plan.work);
        assert!(predicted <= 1.0001 * (bound + row), "{predicted} ns for a step of at most {bound}");
        self.tally.beside += 1;
    }

    /// Applies the plan's changes to the running set.
    fn follow(&mut self, plan: &Plan) {
        for admission in &plan.admitted {
            let live = self.requests.get_mut(admission.seq);
            let most = (live.known - 1).min(live.request.reuse.limit);
            assert!(live.state != State::Paused && admission.cached <= most, "{admission:?} of {live:?}");
            assert!(live.request.reuse.shared || admission.cached == 0, "{admission:?} found something");
            // A sequence that this plan also preempted is reset to 0 below.
            (live.state, live.computed) = (State::Running, admission.cached);
            assert_eq!(admission.resumed, live.ran, "{admission:?}");
            (live.fitting, live.ran) = (0, true);
            let found = live.units.first().is_some_and(|unit| unit.end <= admission.cached);
            self.tally.units[1] += u64::from(found);
        }
        for slot in 0..self.requests.0.len() {
            let (seq, now) = (SeqId(slot as u32), self.now);
            let state = self.scheduler.state(seq);
            let Some(live) = self.requests.0[slot].as_mut() else {
                assert_eq!(state, State::Absent);
                continue;
            };
            match (live.state, state) {
                (State::Running, State::Waiting) => {
                    (live.state, live.computed, live.since) = (State::Waiting, 0, now);
                }
                (expected, found) => assert_eq!(expected, found, "{seq:?}"),
            }
            assert_eq!(self.scheduler.computed(seq), Some(live.computed), "{seq:?}");
        }
    }

    fn check_counts(&self) {
        let (counts, pool) = (self.scheduler.counts(), self.scheduler.pool());
        let lines =
            [State::Waiting, State::Paused, State::Running].map(|state| self.requests.line(state).len());
        assert_eq!([counts.waiting, counts.paused, counts.running], lines);
        assert_eq!(counts.blocks_total, self.setting.config.blocks as usize);
        assert_eq!(counts.blocks_used + pool.available(), counts.blocks_total);
        self.scheduler.check().unwrap();
    }
}

/// For messages: all state that led to a failure and does not follow from the seed.
impl fmt::Display for World {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        writeln!(
            to,
            "seed {} failed in step {} at {} ns, in {:?}",
            self.seed, self.steps, self.now, self.setting
        )?;
        writeln!(to, "{:?}, {:?}", self.scheduler.counts(), self.scheduler.events())?;
        let mut lives: Vec<(SeqId, &Live, Rank)> =
            self.requests.iter().map(|(seq, live)| (seq, live, live.rank)).collect();
        lives.sort_unstable_by_key(|&(.., rank)| rank);
        for (seq, live, rank) in lives {
            writeln!(
                to,
                "{seq:?} {:?}, {:?} in the scheduler: {:?}, {rank:?}, {} tokens known, {} computed, preempted {} times, \
                 waits since {}, blocks {:?}",
                live.state,
                self.scheduler.state(seq),
                live.request,
                live.known,
                live.computed,
                self.scheduler.preemptions(seq),
                live.since,
                self.scheduler.block_table(seq),
            )?;
        }
        writeln!(to, "the last plan: {:?}", self.plan)
    }
}
