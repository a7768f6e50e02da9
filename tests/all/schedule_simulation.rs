//! A seeded simulation of the scheduler and the block pool: no threads, a fake clock, a fake engine that
//! costs what a formula says. After every step it asserts invariants 1, 2, 4 and 5 of ARCHITECTURE.md, that
//! admission is first come, first served, and that what runs is what a plain model of each request expects.

use bn_engine::base::Status;
use bn_engine::schedule::{Phase, Plan, Scheduler, SchedulerConfig, SeqId, Work};
use std::collections::VecDeque;

const STEPS: u64 = 100_000;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a request is expected to do, kept apart from the scheduler.
#[derive(Clone, Debug)]
struct Request {
    prompt: u32,
    max_new: u32,
    /// New tokens after which it ends of itself.
    ends_after: u32,
    computed: u32,
    generated: u32,
    running: bool,
}

/// Nanoseconds of a step: fixed, per row, per attended position.
#[derive(Clone, Copy)]
struct Cost(f64, f64, f64);

struct Simulation {
    config: SchedulerConfig,
    scheduler: Scheduler,
    plan: Plan,
    rng: Rng,
    cost: Cost,
    now: u64,
    requests: Vec<Option<Request>>,
    free: Vec<SeqId>,
    /// In order of submission.
    queue: VecDeque<SeqId>,
    accepted: u64,
    ended: u64,
    /// Steps that carried decode rows and a prompt, were longer than allowed, and needn't have been.
    late: Vec<u64>,
    /// Steps whose prompts were cut for time: how many, and the sum of their times over the bound.
    cut: (u64, f64),
    steps: u64,
    max_prompt: u64,
}

impl Simulation {
    fn new(config: SchedulerConfig, cost: Cost, seed: u64, slots: u32, max_prompt: u64) -> Self {
        Self {
            config,
            scheduler: Scheduler::new(config).unwrap(),
            plan: Plan::default(),
            rng: Rng(seed),
            cost,
            now: 0,
            requests: vec![None; slots as usize],
            free: (0..slots).map(SeqId).collect(),
            queue: VecDeque::new(),
            accepted: 0,
            ended: 0,
            late: Vec::new(),
            cut: (0, 0.0),
            steps: 0,
            max_prompt,
        }
    }

    fn request(&mut self, seq: SeqId) -> &mut Request {
        self.requests[seq.0 as usize].as_mut().unwrap()
    }

    fn submit(&mut self) {
        if self.free.is_empty() {
            return;
        }
        let pick = self.rng.below(self.free.len() as u64) as usize;
        let prompt = 1 + self.rng.below(self.max_prompt) as u32;
        let max_new = 1 + self.rng.below(60) as u32;
        let ends_after = if self.rng.one_in(2) { max_new } else { 1 + self.rng.below(max_new.into()) as u32 };
        let needed = (u64::from(prompt) + u64::from(max_new) - 1).div_ceil(self.config.block_size.into());
        let result = self.scheduler.submit(self.free[pick], prompt, max_new, self.now);
        if needed > self.config.blocks.into() {
            assert_eq!(result.unwrap_err().status, Status::TooLong);
            return;
        }
        result.unwrap();
        let seq = self.free.swap_remove(pick);
        // A slot that is taken is refused, and nothing happens to who is in it.
        assert!(self.scheduler.submit(seq, 1, 1, self.now).is_err());
        let request = Request { prompt, max_new, ends_after, computed: 0, generated: 0, running: false };
        self.requests[seq.0 as usize] = Some(request);
        self.queue.push_back(seq);
        self.accepted += 1;
    }

    /// Invariant 2: `take` fails where a request ends a second time.
    fn end(&mut self, seq: SeqId) -> Request {
        let request = self.requests[seq.0 as usize].take().expect("a request ended twice");
        self.free.push(seq);
        self.ended += 1;
        request
    }

    fn cancel_any(&mut self) {
        let seq = SeqId(self.rng.below(self.requests.len() as u64) as u32);
        let used = self.scheduler.counts().blocks_used;
        let blocks = self.scheduler.block_table(seq).len();
        let phase = self.scheduler.cancel(seq);
        assert_eq!(self.scheduler.counts().blocks_used, used - blocks);
        match phase {
            None => assert!(self.requests[seq.0 as usize].is_none()),
            Some(phase) => {
                let request = self.end(seq);
                assert_eq!(request.running, phase != Phase::Waiting);
                self.queue.retain(|&waiting| waiting != seq);
            }
        }
        assert_eq!(self.scheduler.cancel(seq), None);
    }

    /// The plan against the plain model of each request.
    fn check_plan(&mut self, plan: &Plan) {
        for &seq in &plan.admitted {
            assert_eq!(self.queue.pop_front(), Some(seq), "admitted out of turn");
            self.request(seq).running = true;
        }
        let due = |r: &Request| r.running && r.computed >= r.prompt;
        let decoding = self.requests.iter().flatten().filter(|&r| due(r)).count();
        // Invariant 4: all decode rows, and in front.
        assert_eq!(plan.decode_rows as usize, decoding, "a decode row waits");
        assert!(plan.entries[..decoding].iter().all(|e| e.decode));
        let (mut work, mut seen) = (Work::default(), vec![false; self.requests.len()]);
        for entry in &plan.entries {
            assert!(!std::mem::replace(&mut seen[entry.seq.0 as usize], true), "planned twice");
            let request = self.requests[entry.seq.0 as usize].as_ref().unwrap();
            assert!(request.running && entry.rows > 0);
            assert_eq!(entry.start, request.computed);
            let end = entry.start + entry.rows;
            assert_eq!(entry.decode, entry.start >= request.prompt);
            assert_eq!(entry.sample, end >= request.prompt);
            assert!(if entry.decode { entry.rows == 1 } else { end <= request.prompt });
            assert!(end < request.prompt + request.max_new, "the last token needs no position");
            work.add(Work::span(entry.start, entry.rows));
        }
        assert_eq!(work, plan.work);
        assert!(work.rows <= self.config.max_batch_tokens.into());
        let running = self.requests.iter().flatten().filter(|r| r.running).count();
        assert!(running <= self.config.max_batch_size as usize);
    }

    /// Invariants 1 and 5, and that no block has two owners.
    fn check_blocks(&self) {
        let counts = self.scheduler.counts();
        assert!(counts.blocks_used <= counts.blocks_total);
        assert_eq!(counts.blocks_total, self.config.blocks as usize);
        assert_eq!(counts.waiting, self.queue.len());
        self.scheduler.check().unwrap();
        let mut owned = vec![false; counts.blocks_total];
        for (i, request) in self.requests.iter().enumerate() {
            let table = self.scheduler.block_table(SeqId(i as u32));
            let needed = match request {
                Some(r) if r.running => (r.prompt + r.max_new - 1).div_ceil(self.config.block_size),
                _ => 0,
            };
            assert_eq!(table.len(), needed as usize);
            for &block in table {
                assert!(!std::mem::replace(&mut owned[block as usize], true), "block {block} has two owners");
            }
        }
        assert_eq!(owned.iter().filter(|&&o| o).count(), counts.blocks_used);
    }

    fn actual_ns(&self, work: Work) -> f64 {
        self.cost.0 + self.cost.1 * work.rows as f64 + self.cost.2 * work.keys as f64
    }

    /// Invariant 4's second half: beside decode rows a prompt may take the step over its bound only where
    /// it moves by the single row that keeps it from starving.
    fn check_time(&mut self, plan: &Plan, ns: f64) {
        let chunks = &plan.entries[plan.decode_rows as usize..];
        let least = chunks.len() == 1 && chunks[0].rows == 1;
        if plan.decode_rows == 0 || chunks.is_empty() || least {
            return;
        }
        let share = ns / self.config.max_step_ns as f64;
        if share > 1.0 {
            self.late.push(self.steps);
        }
        if chunks.iter().any(|c| !c.sample) && plan.work.rows < self.config.max_batch_tokens.into() {
            self.cut = (self.cut.0 + 1, self.cut.1 + share);
        }
    }

    /// One turn of the engine's loop.
    fn step(&mut self) {
        let Some(at) = self.scheduler.ready_at(self.now) else {
            assert!(self.requests.iter().all(Option::is_none), "idle with work left");
            return;
        };
        assert!(at <= self.now + self.config.max_wait_ns);
        self.now = self.now.max(at);
        let mut plan = std::mem::take(&mut self.plan);
        self.scheduler.plan(&mut plan);
        assert!(!plan.is_empty(), "work left and nothing planned");
        self.check_plan(&plan);
        // Noise of a tenth; now and then the machine sleeps, or the pass fails and nothing is committed.
        let exact = self.actual_ns(plan.work);
        let noisy = exact * (0.95 + self.rng.below(100) as f64 * 1e-3);
        self.check_time(&plan, exact);
        let ns = if self.rng.one_in(2000) { noisy * 50.0 } else { noisy } as u64;
        self.now += ns;
        self.steps += 1;
        if !self.rng.one_in(500) {
            self.scheduler.commit(&plan, ns);
            for entry in &plan.entries {
                let request = self.request(entry.seq);
                request.computed += entry.rows;
                request.generated += u32::from(entry.sample);
                if request.generated == request.ends_after {
                    self.scheduler.finish(entry.seq);
                    self.end(entry.seq);
                }
            }
        }
        self.plan = plan;
    }

    /// Random turns, then all that is left runs to its end: nobody starves.
    fn run(mut self) -> (u64, u64, u64) {
        for _ in 0..STEPS {
            // Rushes and lulls.
            let rush = (self.now / 3_000_000_000).is_multiple_of(2);
            match self.rng.below(if rush { 4 } else { 24 }) {
                0 => self.submit(),
                1 if self.rng.one_in(4) => self.cancel_any(),
                _ => {}
            }
            if self.scheduler.counts().running == 0 {
                self.now += self.rng.below(1_000_000);
            }
            self.step();
            self.check_blocks();
        }
        let mut left = 10_000_000u64;
        while self.scheduler.ready_at(self.now).is_some() {
            self.step();
            left = left.checked_sub(1).expect("some request never ends");
        }
        self.check_blocks();
        assert_eq!(self.scheduler.counts().blocks_used, 0);
        assert_eq!(self.accepted, self.ended);
        assert!(self.accepted > 1000, "only {} requests came", self.accepted);
        // Learned soon and for good, and not by cutting to nothing.
        assert!(self.late.iter().all(|&step| step < 100), "steps {:?} took too long", self.late);
        let (cut, shares) = self.cut;
        assert!(
            cut < 100 || shares > 0.75 * cut as f64,
            "{cut} cut steps used {} of the bound",
            shares / cut as f64
        );
        (self.accepted, self.steps, self.now)
    }
}

fn config(batch: u32, tokens: u32, block_size: u32, blocks: u32) -> SchedulerConfig {
    SchedulerConfig {
        max_batch_size: batch,
        max_batch_tokens: tokens,
        max_step_ns: 200_000_000,
        block_size,
        blocks,
        max_wait_ns: 0,
    }
}

#[test]
fn small_batches_tight_memory() {
    for seed in 1..=2 {
        // 2 ms a row beside 30 ms for the weights: prompts must be cut to about 70 rows.
        Simulation::new(config(8, 256, 16, 40), Cost(3e7, 2e6, 0.0), seed, 64, 400).run();
    }
}

#[test]
fn large_batches_where_attention_costs() {
    Simulation::new(config(32, 512, 32, 300), Cost(1e7, 3e5, 1e3), 3, 96, 1500).run();
}

#[test]
fn decoding_alone_takes_longer_than_the_bound() {
    Simulation::new(config(16, 64, 16, 60), Cost(2.5e8, 1e5, 0.0), 4, 32, 40).run();
}

#[test]
fn sequential_mode() {
    Simulation::new(config(1, 1, 16, 4), Cost(1e6, 1e5, 0.0), 5, 8, 12).run();
}

#[test]
fn waiting_for_company() {
    let config = SchedulerConfig { max_wait_ns: 5_000_000, ..config(4, 32, 16, 30) };
    Simulation::new(config, Cost(1e5, 1e4, 10.0), 6, 16, 100).run();
}

#[test]
fn the_same_seed_runs_the_same() {
    let run = || Simulation::new(config(6, 48, 16, 30), Cost(1e6, 1e6, 1e3), 7, 40, 200).run();
    assert_eq!(run(), run());
}
