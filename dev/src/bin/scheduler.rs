//! The cost of a scheduler step (plan and commit) with 256 running and 1,024 queued sequences.
//!
//!   cargo dev scheduler -- [--quick] [--json FILE]
//!
//! "steady": all running sequences decode. "churn": in each step one sequence ends, one is admitted, and one is submitted.

use bn_dev::{Options, machine, median, seconds};
use bn_engine::schedule::{Plan, Scheduler, SchedulerConfig, SeqId};
use serde_json::json;

const RUNNING: u32 = 256;
const QUEUED: u32 = 1024;
const STEPS: usize = 1000;
const PROMPT: u32 = 16;
/// More than the steps that are measured.
const NEW: u32 = 2048;
const BLOCK: u32 = 32;
/// What a step is said to have taken.
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

/// Microseconds of a step.
fn time(churn: bool) -> f64 {
    let per_request = (PROMPT + NEW).div_ceil(BLOCK);
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_batch_size: RUNNING,
        max_batch_tokens: 2 * RUNNING,
        max_step_ns: 200_000_000,
        block_size: BLOCK,
        blocks: RUNNING * per_request,
        max_wait_ns: 0,
    })
    .expect("a scheduler");
    let mut plan = Plan::default();
    for id in 0..RUNNING + QUEUED {
        scheduler.submit(SeqId(id), PROMPT, NEW, 0).expect("room");
    }
    // Until all that can run decode.
    while plan.decode_rows < RUNNING {
        scheduler.plan(&mut plan);
        scheduler.commit(&plan, STEP_NS);
    }
    let counts = scheduler.counts();
    assert_eq!((counts.running, counts.waiting), (RUNNING as usize, QUEUED as usize));
    let taken = seconds(|| {
        for step in 0..STEPS as u32 {
            scheduler.plan(&mut plan);
            scheduler.commit(&plan, STEP_NS);
            if churn {
                // The ids go round: the oldest ends and comes back at the queue's end.
                let id = SeqId(step % (RUNNING + QUEUED));
                scheduler.finish(id);
                scheduler.submit(id, PROMPT, NEW, 0).expect("room");
            }
        }
    });
    let counts = scheduler.counts();
    assert_eq!(counts.waiting + counts.running, (RUNNING + QUEUED) as usize, "nothing was lost");
    taken * 1e6 / STEPS as f64
}
