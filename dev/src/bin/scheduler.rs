//! The cost of a scheduler step (plan and commit) with 256 running and 1,024 queued sequences, and 10,000 cached blocks.
//!
//!   cargo dev scheduler -- [--quick] [--json FILE]
//!
//! "steady": all running sequences decode. "churn": in each step one sequence ends, one is admitted, and one is submitted.

use bn_dev::{Options, machine, median, seconds};
use bn_engine::cache::ContentId;
use bn_engine::schedule::{Plan, Request, Scheduler, SchedulerConfig, SeqId, Tokens};
use serde_json::json;

const RUNNING: u32 = 256;
const QUEUED: u32 = 1024;
const STEPS: usize = 1000;
const PROMPT: u32 = 16;
/// More than the steps that are measured.
const NEW: u32 = 2048;
const BLOCK: u32 = 32;
/// Blocks with prefixes of sequences that ended.
const CACHED: u32 = 10_000;
/// Blocks of each of these sequences.
const CACHED_EACH: u32 = 100;
/// The reported duration of a step.
const STEP_NS: u64 = 10_000_000;

fn main() {
    let options = Options::parse("scheduler");
    println!("{}; {RUNNING} running, {QUEUED} queued; medians of {}\n", machine(), options.rounds());
    let (mut steady, mut churn) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds() {
        steady.push(time(false));
        churn.push(time(true));
    }
    let (steady, churn) = (median(steady), median(churn));
    println!("steady {steady:>8.2} us a step\nchurn  {churn:>8.2} us a step");
    options.write(&json!({"machine": machine(), "running": RUNNING, "queued": QUEUED, "steady_us": steady,
        "churn_us": churn}));
}

/// No two sequences begin alike.
struct Distinct;

impl Tokens for Distinct {
    fn content(&self, seq: SeqId, position: u32) -> ContentId {
        (seq.0 * 31 + position).into()
    }
}

fn request(prompt_len: u32, max_new: u32) -> Request {
    Request { prompt_len, max_new, ..Request::default() }
}

/// Leaves `CACHED` blocks in the cache.
fn fill_cache(scheduler: &mut Scheduler, plan: &mut Plan) {
    for id in 0..CACHED / CACHED_EACH {
        let seq = SeqId(1_000_000 + id);
        scheduler.submit(seq, request(CACHED_EACH * BLOCK, 1), &Distinct).expect("room");
        while scheduler.computed(seq) < Some(CACHED_EACH * BLOCK) {
            scheduler.plan(plan, &Distinct, 0);
            scheduler.commit(plan, STEP_NS, &Distinct);
        }
        scheduler.cancel(seq, &Distinct);
    }
    assert_eq!(scheduler.counts().blocks_cached, CACHED as usize);
}

/// Microseconds of a step.
fn time(churn: bool) -> f64 {
    let per_request = (PROMPT + NEW).div_ceil(BLOCK);
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_batch_size: RUNNING,
        max_batch_tokens: 2 * RUNNING,
        max_logits_rows: RUNNING,
        max_step_ns: 200_000_000,
        block_size: BLOCK,
        blocks: RUNNING * per_request + CACHED,
        states: Default::default(),
        max_wait_ns: 0,
        target_itl_ns: 0,
        ageing_ns: 30_000_000_000,
    })
    .expect("a scheduler");
    let mut plan = Plan::default();
    fill_cache(&mut scheduler, &mut plan);
    for id in 0..RUNNING + QUEUED {
        scheduler.submit(SeqId(id), request(PROMPT, NEW), &Distinct).expect("room");
    }
    // Until all sequences that can run are decoding.
    while plan.decode_rows < RUNNING {
        scheduler.plan(&mut plan, &Distinct, 0);
        scheduler.commit(&plan, STEP_NS, &Distinct);
    }
    let counts = scheduler.counts();
    assert_eq!((counts.running, counts.waiting), (RUNNING as usize, QUEUED as usize));
    let taken = seconds(|| {
        for step in 0..STEPS as u32 {
            scheduler.plan(&mut plan, &Distinct, 0);
            scheduler.commit(&plan, STEP_NS, &Distinct);
            if churn {
                // Ids are reused: the oldest sequence ends and returns at the queue's end.
                let id = SeqId(step % (RUNNING + QUEUED));
                scheduler.cancel(id, &Distinct);
                scheduler.submit(id, request(PROMPT, NEW), &Distinct).expect("room");
            }
        }
    });
    let counts = scheduler.counts();
    assert_eq!(counts.waiting + counts.running, (RUNNING + QUEUED) as usize, "nothing was lost");
    taken * 1e6 / STEPS as f64
}
