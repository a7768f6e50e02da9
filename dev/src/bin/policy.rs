//! The real scheduler in simulated time: loadgen's arrivals on a machine whose step times follow a formula. Settings
//! and changes of the scheduler are compared without noise, in seconds.
//!
//!   cargo dev policy -- [--rate N] [--seconds N] [--seeds N] [--ttft-ms N] [--gap-ms N] [--cost US,US,US,US[,US]]
//!       [--jitter PERCENT] [batch=N | target=MS]...
//!
//! The costs are of a step, a row, a position of a sequence's context (read once per step), a row's key, and a token
//! that is drawn, its logits included. The default is that of BitNet large's shape on two threads of a Xeon with AVX-512
//! (docs/serving.md).

use bn_dev::SplitMix;
use bn_engine::cache::ContentId;
use bn_engine::schedule::{Plan, Request, Scheduler, SchedulerConfig, SeqId, State, Tokens};

const MS: f64 = 1e6;
const USAGE: &str = "cargo dev policy -- [--rate N] [--seconds N] [--seeds N] [--ttft-ms N] [--gap-ms N] \
    [--cost STEP,ROW,CONTEXT,KEY[,TOKEN] (us)] [--jitter PERCENT] [batch=N | target=MS]...";

struct Options {
    rate: f64,
    seconds: f64,
    seeds: f64,
    ttft_ms: f64,
    gap_ms: f64,
    jitter: f64,
    cost: [f64; 5],
    settings: Vec<(String, u32, u64)>,
}

fn main() {
    let options = parse(std::env::args().skip(1)).unwrap_or_else(|wrong| {
        eprintln!("{wrong}?\n{USAGE}");
        std::process::exit(2)
    });
    println!(
        "{} requests/s; good: first token within {} ms, tokens {} ms apart on average",
        options.rate, options.ttft_ms, options.gap_ms
    );
    println!(
        "setting       good/s  done/s   good %  first p50   p99  gap p50    p90    p99  batch  idle gap  p99 of it"
    );
    for (name, batch, target_ns) in &options.settings {
        let mut all = Outcome::default();
        for seed in 1..=options.seeds as u64 {
            World::new(&options, *batch, *target_ns, seed).run(&mut all);
        }
        all.print(name, &options);
    }
}

fn parse(args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut o = Options {
        rate: 2.8,
        seconds: 300.0,
        seeds: 8.0,
        ttft_ms: 2000.0,
        gap_ms: 50.0,
        jitter: 4.0,
        cost: [9000.0, 1600.0, 14.0, 1.9, 0.0],
        settings: Vec::new(),
    };
    let mut args = args.peekable();
    while let Some(arg) = args.next() {
        if let Some(name) = arg.strip_prefix("--") {
            let value = args.next().unwrap_or_default();
            let parts: Vec<f64> = value.split(',').filter_map(|part| part.parse().ok()).collect();
            match (name, &parts[..]) {
                ("cost", &[a, b, c, d]) => o.cost = [a, b, c, d, 0.0],
                ("cost", &[a, b, c, d, e]) => o.cost = [a, b, c, d, e],
                ("rate", &[n]) => o.rate = n,
                ("seconds", &[n]) => o.seconds = n,
                ("seeds", &[n]) => o.seeds = n,
                ("ttft-ms", &[n]) => o.ttft_ms = n,
                ("gap-ms", &[n]) => o.gap_ms = n,
                ("jitter", &[n]) => o.jitter = n,
                _ => return Err(format!("{arg} {value}")),
            }
            continue;
        }
        let setting = match arg.split_once('=').map(|(name, value)| (name, value.parse::<u32>())) {
            Some(("batch", Ok(n))) if n > 0 => (arg, n, 0),
            Some(("target", Ok(n))) => (arg, 32, u64::from(n) * MS as u64),
            _ => return Err(arg),
        };
        o.settings.push(setting);
    }
    if o.settings.is_empty() {
        o.settings = parse(
            "batch=2 batch=4 batch=8 batch=32 target=50 target=40 target=32".split(' ').map(String::from),
        )?
        .settings;
    }
    Ok(o)
}

struct Random(SplitMix);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.draw()
    }

    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 1.0) * 2f64.powi(-53)
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    fn length(&mut self, median: f64) -> u32 {
        (median * (0.6 * self.normal()).exp()).round().clamp(1.0, 8.0 * median) as u32
    }

    fn chance(&mut self, percent: f64) -> bool {
        self.uniform() * 100.0 <= percent
    }
}

/// Drawn requests and their results. Times in ns.
#[derive(Clone, Copy, Default)]
struct Drawn {
    due: f64,
    prompt: u32,
    output: u32,
    prefix: u64,
    priority: u8,
    cancel_at: f64,
    tokens: u32,
    first: f64,
    last: f64,
    ended: bool,
}

struct Requests(Vec<Drawn>);

impl Requests {
    /// Draws like loadgen's defaults, without deadlines.
    fn draw(o: &Options, seed: u64) -> Self {
        let (mut random, mut due, mut all) = (Random(SplitMix(seed)), 0.0, Vec::new());
        loop {
            due -= random.uniform().ln() / o.rate * 1e9;
            if due >= o.seconds * 1e9 {
                return Self(all);
            }
            let mut q =
                Drawn { due, output: random.length(32.0), prompt: random.length(64.0), ..Drawn::default() };
            if random.chance(30.0) {
                (q.prefix, q.prompt) = (1 + random.next() % 4, q.prompt + 64);
            }
            q.priority = if random.chance(20.0) { random.next() as u8 } else { 128 };
            if random.chance(2.0) {
                q.cancel_at = due + random.uniform() * 4e9;
            }
            all.push(q);
        }
    }
}

impl Tokens for Requests {
    fn content(&self, seq: SeqId, position: u32) -> ContentId {
        let q = &self.0[seq.0 as usize];
        let of = if position < 64 && q.prefix > 0 { q.prefix } else { 1000 + u64::from(seq.0) };
        ContentId::from(SplitMix(of * 0x1_0000_0001 + u64::from(position)).draw() as u32)
    }
}

/// Sums over all seeds; times in ms.
#[derive(Default)]
struct Outcome {
    offered: f64,
    good: f64,
    done: f64,
    first: Vec<f64>,
    gaps: Vec<f64>,
    steps: f64,
    sequences: f64,
}

struct World<'a> {
    options: &'a Options,
    requests: Requests,
    scheduler: Scheduler,
    random: Random,
    now: f64,
    next: usize,
    open: Vec<SeqId>,
}

impl<'a> World<'a> {
    fn new(options: &'a Options, max_batch_size: u32, target_itl_ns: u64, seed: u64) -> Self {
        let scheduler = Scheduler::new(SchedulerConfig {
            max_batch_size,
            max_batch_tokens: 512,
            max_logits_rows: max_batch_size.max(64),
            max_step_ns: 200_000_000,
            target_itl_ns,
            block_size: 32,
            blocks: 4096,
            states: Default::default(),
            max_wait_ns: 0,
            ageing_ns: 30_000_000_000,
        })
        .expect("a scheduler");
        let requests = Requests::draw(options, seed);
        Self {
            options,
            requests,
            scheduler,
            random: Random(SplitMix(seed ^ 77)),
            now: 0.0,
            next: 0,
            open: Vec::new(),
        }
    }

    fn run(mut self, all: &mut Outcome) {
        let mut plan = Plan::default();
        while self.arrive() {
            self.scheduler.plan(&mut plan, &self.requests, self.now as u64);
            for seq in std::mem::take(&mut plan.late) {
                self.end(seq);
            }
            if plan.is_empty() {
                continue;
            }
            let ns = self.cost(&plan);
            self.now += ns;
            self.scheduler.commit(&plan, ns as u64, &self.requests);
            all.steps += 1.0;
            all.sequences += plan.entries.len() as f64;
            self.give_tokens(&plan, all);
        }
        self.sum_up(all);
    }

    /// Submits and cancels due requests. Returns false once all have ended.
    fn arrive(&mut self) -> bool {
        if self.open.is_empty() {
            let Some(q) = self.requests.0.get(self.next) else { return false };
            self.now = self.now.max(q.due);
        }
        while let Some(q) = self.requests.0.get(self.next)
            && q.due <= self.now
        {
            let seq = SeqId(self.next as u32);
            let request = Request {
                prompt_len: q.prompt,
                max_new: q.output,
                priority: q.priority,
                arrived_ns: q.due as u64,
                first_by_ns: (q.due + self.options.ttft_ms * MS) as u64,
                ..Request::default()
            };
            self.scheduler.submit(seq, request, &self.requests).expect("room");
            self.open.push(seq);
            self.next += 1;
        }
        for seq in self.open.clone() {
            let q = self.requests.0[seq.0 as usize];
            let waits = q.tokens == 0 && self.scheduler.state(seq) == State::Waiting;
            let late = waits && self.now > q.due + self.options.ttft_ms * MS;
            if late || q.cancel_at > 0.0 && q.cancel_at < self.now {
                self.end(seq);
            }
        }
        true
    }

    fn end(&mut self, seq: SeqId) {
        self.scheduler.cancel(seq, &self.requests);
        self.requests.0[seq.0 as usize].ended = true;
        self.open.retain(|&open| open != seq);
    }

    fn cost(&mut self, plan: &Plan) -> f64 {
        let [step, row, context, key, token] = self.options.cost;
        let tokens = plan.entries.iter().filter(|entry| entry.sample).count();
        let contexts: f64 = plan.entries.iter().map(|entry| f64::from(entry.start + entry.rows)).sum();
        let us = step
            + row * plan.work.rows as f64
            + context * contexts
            + key * plan.work.keys as f64
            + token * tokens as f64;
        us * 1e3 * (self.options.jitter / 100.0 * self.random.normal()).exp()
    }

    fn give_tokens(&mut self, plan: &Plan, all: &mut Outcome) {
        for entry in plan.entries.iter().filter(|entry| entry.sample) {
            let q = &mut self.requests.0[entry.seq.0 as usize];
            match q.tokens {
                0 => {
                    q.first = self.now;
                    all.first.push((q.first - q.due) / MS);
                }
                _ => all.gaps.push((self.now - q.last) / MS),
            }
            (q.last, q.tokens) = (self.now, q.tokens + 1);
            if q.tokens == q.output {
                self.end(entry.seq);
            }
        }
    }

    fn sum_up(&self, all: &mut Outcome) {
        let o = self.options;
        for q in &self.requests.0 {
            let gap = (q.last - q.first) / MS / f64::from(q.tokens.max(2) - 1);
            let done = q.tokens == q.output;
            all.offered += 1.0;
            all.done += f64::from(done);
            all.good += f64::from(done && (q.first - q.due) / MS <= o.ttft_ms && gap <= o.gap_ms);
        }
    }
}

impl Outcome {
    fn print(&mut self, name: &str, o: &Options) {
        let seconds = o.seeds * o.seconds;
        let at = |values: &mut Vec<f64>, p: f64| {
            values.sort_by(f64::total_cmp);
            values.get((values.len() as f64 * p) as usize).copied().unwrap_or(0.0)
        };
        let (first, gaps) = (&mut self.first, &mut self.gaps);
        let batch = self.sequences / self.steps;
        let [step, row, context, key, token] = o.cost;
        // Contexts of 100 positions.
        let idle = (step + batch * (row + token + 100.0 * (context + key))) / 1e3;
        println!(
            "{name:<12} {:>7.2} {:>7.2} {:>8.1} {:>10.0} {:>5.0} {:>8.1} {:>6.1} {:>6.1} {batch:>6.1} {idle:>9.1} {:>10.2}",
            self.good / seconds,
            self.done / seconds,
            100.0 * self.good / self.offered,
            at(first, 0.5),
            at(first, 0.99),
            at(gaps, 0.5),
            at(gaps, 0.9),
            at(gaps, 0.99),
            at(gaps, 0.99) / idle
        );
    }
}
