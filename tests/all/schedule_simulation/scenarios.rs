//! Waiting times of requests, on a simulated machine with a known cost.

use super::world::Cost;
use crate::common::rng::mix;
use bn_engine::cache::ContentId;
use bn_engine::schedule::{Plan, Request, Scheduler, SchedulerConfig, SeqId, State, Tokens};

/// Requests that have nothing in common.
struct Apart;

impl Tokens for Apart {
    fn content(&self, seq: SeqId, position: u32) -> ContentId {
        ContentId::from(mix(seq.0.into(), position.into()) as u32)
    }
}

struct Machine {
    scheduler: Scheduler,
    cost: Cost,
    plan: Plan,
    now: u64,
    /// By sequence: number of tokens left to sample, and time of the first token.
    left: Vec<u32>,
    first: Vec<Option<u64>>,
}

const MS: u64 = 1_000_000;

fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_batch_size: 32,
        max_batch_tokens: 512,
        max_logits_rows: 64,
        max_step_ns: 200 * MS,
        target_itl_ns: 0,
        block_size: 32,
        blocks: 2000,
        states: Default::default(),
        max_wait_ns: 0,
        ageing_ns: 0,
    }
}

impl Machine {
    /// A scheduler that has learned the cost of its steps.
    fn new(config: SchedulerConfig, cost: Cost) -> Self {
        let scheduler = Scheduler::new(config).unwrap();
        let mut machine =
            Self { scheduler, cost, plan: Plan::default(), now: 0, left: Vec::new(), first: Vec::new() };
        for prompt in [1, 40, 300, 1000, 3000] {
            machine.submit(prompt, 40);
        }
        while machine.scheduler.ready_at(machine.now).is_some() {
            machine.step();
        }
        machine
    }

    fn submit(&mut self, prompt_len: u32, max_new: u32) -> SeqId {
        let seq = SeqId(self.left.len() as u32);
        let request = Request { prompt_len, max_new, arrived_ns: self.now, ..Request::default() };
        self.scheduler.submit(seq, request, &Apart).unwrap();
        self.left.push(max_new);
        self.first.push(None);
        seq
    }

    /// Nanoseconds of the step.
    fn step(&mut self) -> u64 {
        self.scheduler.plan(&mut self.plan, &Apart, self.now);
        assert!(!self.plan.is_empty());
        let ns = self.cost.ns(self.plan.work) as u64;
        self.now += ns;
        self.scheduler.commit(&self.plan, ns, &Apart);
        for entry in self.plan.entries.iter().filter(|entry| entry.sample) {
            let seq = entry.seq.0 as usize;
            self.first[seq].get_or_insert(self.now);
            self.left[seq] -= 1;
            if self.left[seq] == 0 {
                self.scheduler.cancel(entry.seq, &Apart);
            }
        }
        ns
    }

    /// Nanoseconds from now to the first token of `seq`, and each step's.
    fn run_to_first(&mut self, seq: SeqId) -> (u64, Vec<u64>) {
        let (from, mut steps) = (self.now, Vec::new());
        while self.first[seq.0 as usize].is_none() {
            steps.push(self.step());
        }
        (self.now - from, steps)
    }
}

#[test]
fn a_short_prompt_behind_a_long_one_takes_twice_its_time_and_a_step() {
    let cost = Cost(1e7, 1e6, 100.0);
    for prompt in [1, 64, 300, 1000] {
        let mut machine = Machine::new(config(), cost);
        let seq = machine.submit(prompt, 1);
        let alone = machine.run_to_first(seq).0;
        let long = machine.submit(20_000, 1);
        machine.step();
        let seq = machine.submit(prompt, 1);
        let (beside, steps) = machine.run_to_first(seq);
        assert!(machine.first[long.0 as usize].is_none());
        println!("{prompt} tokens: {alone} ns alone, {beside} ns in the steps {steps:?}");
        let longest = steps.iter().max().copied().unwrap_or(0);
        assert!(beside <= 2 * alone + longest, "{prompt} tokens: {alone} ns alone, {beside} ns beside");
    }
}

#[test]
fn a_long_prompt_behind_ever_new_short_ones_moves_a_quarter_of_each_step() {
    let mut machine = Machine::new(config(), Cost(1e7, 1e6, 100.0));
    let long = machine.submit(10_000, 1);
    let mut steps = 0;
    while machine.first[long.0 as usize].is_none() {
        (0..2).for_each(|_| _ = machine.submit(256, 1));
        machine.step();
        steps += 1;
    }
    assert!((10_000 / 128 - 2..=10_000 / 128 + 2).contains(&steps), "{steps} steps");
}

#[test]
fn a_prompt_beside_decoding_that_takes_too_long_is_soon_done() {
    let mut machine = Machine::new(config(), Cost(1e8, 1e7, 10.0));
    let others: Vec<SeqId> = (0..28).map(|_| machine.submit(8, 100)).collect();
    others.iter().for_each(|&seq| _ = machine.run_to_first(seq));
    let decode = machine.step();
    assert!(decode > config().max_step_ns);
    let seq = machine.submit(64, 1);
    let (_, steps) = machine.run_to_first(seq);
    println!("{decode} ns without a prompt, {steps:?} with one");
    assert!(steps.len() <= 4, "{} steps", steps.len());
    let most = decode as f64 * 1.76;
    assert!(steps.iter().all(|&ns| ns as f64 <= most), "{steps:?}, {decode} without");
}

/// The rows of the long prompt alone nearly fill the target, and there is always another short prompt.
#[test]
fn a_long_context_gets_its_turn_under_a_target_between_tokens() {
    let target_itl_ns = 14 * MS;
    let mut machine = Machine::new(SchedulerConfig { target_itl_ns, ..config() }, Cost(1e7, 1e5, 1e3));
    let mut short: Vec<SeqId> = (0..4).map(|i| machine.submit(8, 50 + 7 * i)).collect();
    machine.step();
    let long = machine.submit(4000, 5);
    let from = machine.now;
    while machine.scheduler.state(long) == State::Waiting {
        machine.step();
        for seq in &mut short {
            if machine.left[seq.0 as usize] == 0 {
                *seq = machine.submit(8, 50);
            }
        }
        assert!(machine.now - from < 10_000 * MS, "passed for ever");
    }
}
