use super::*;
use std::time::{Duration, Instant};

fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_batch_size: 4,
        max_batch_tokens: 32,
        max_step_ns: 1_000_000,
        block_size: 16,
        blocks: 10,
        max_wait_ns: 0,
    }
}

fn entries(plan: &Plan) -> Vec<(u32, u32, u32, bool, bool)> {
    plan.entries.iter().map(|e| (e.seq.0, e.start, e.rows, e.sample, e.decode)).collect()
}

#[test]
fn a_request_from_submit_to_finish() {
    let mut s = Scheduler::new(config()).unwrap();
    let mut plan = Plan::default();
    assert_eq!(s.ready_at(5), None);
    // 40 + 9 - 1 = 48 positions: exactly three blocks, the last token needs none.
    s.submit(SeqId(7), 40, 9, 5).unwrap();
    assert_eq!(s.ready_at(5), Some(5));
    s.plan(&mut plan);
    assert_eq!((entries(&plan), &plan.admitted[..]), (vec![(7, 0, 32, false, false)], &[SeqId(7)][..]));
    assert_eq!(s.block_table(SeqId(7)), [0, 1, 2]);
    // A pass that failed is planned again.
    s.plan(&mut plan);
    assert_eq!((entries(&plan), plan.admitted.len()), (vec![(7, 0, 32, false, false)], 0));
    s.commit(&plan, 1000);
    s.plan(&mut plan);
    assert_eq!(entries(&plan), [(7, 32, 8, true, false)]);
    assert_eq!(s.phase(SeqId(7)), Some(Phase::Prefill));
    s.commit(&plan, 1000);
    for position in 40..48 {
        s.plan(&mut plan);
        assert_eq!(entries(&plan), [(7, position, 1, true, true)]);
        s.commit(&plan, 1000);
    }
    // Nine tokens are sampled; without a finish nothing is written past the reserved blocks.
    s.plan(&mut plan);
    assert!(plan.is_empty());
    s.finish(SeqId(7));
    assert_eq!((s.counts(), s.phase(SeqId(7))), (Counts { blocks_total: 10, ..Counts::default() }, None));
    assert!(s.block_table(SeqId(7)).is_empty());
}

#[test]
fn the_head_of_the_queue_is_not_overtaken() {
    let mut s = Scheduler::new(config()).unwrap();
    let mut plan = Plan::default();
    s.submit(SeqId(0), 8, 100, 0).unwrap(); // 7 blocks
    s.submit(SeqId(1), 8, 60, 0).unwrap(); // 5: must wait
    s.submit(SeqId(2), 8, 1, 0).unwrap(); // 1: would fit
    s.plan(&mut plan);
    assert_eq!(plan.admitted, [SeqId(0)]);
    s.commit(&plan, 1000);
    s.plan(&mut plan);
    assert_eq!((plan.admitted.len(), s.counts().waiting), (0, 2));
    s.commit(&plan, 1000);
    assert_eq!(s.cancel(SeqId(1)), Some(Phase::Waiting));
    s.plan(&mut plan);
    assert_eq!(plan.admitted, [SeqId(2)]);
    assert_eq!(entries(&plan), [(0, 9, 1, true, true), (2, 0, 8, true, false)]);
    assert_eq!(s.cancel(SeqId(0)), Some(Phase::Decode));
    let mut active = Vec::new();
    s.for_each_active(|seq, phase| active.push((seq.0, phase)));
    assert_eq!((active, s.counts().blocks_used), (vec![(2, Phase::Prefill)], 1));
    s.check().unwrap();
}

#[test]
fn what_can_never_run_is_refused() {
    let mut s = Scheduler::new(config()).unwrap();
    assert!(s.can_ever_run(100, 61) && !s.can_ever_run(100, 62));
    assert!(!s.can_ever_run(0, 1) && !s.can_ever_run(1, 0) && !s.can_ever_run(u32::MAX, u32::MAX));
    let error = s.submit(SeqId(0), 100, 62, 0).unwrap_err();
    assert_eq!(error.status, Status::TooLong);
    assert!(error.message.contains("11 KV blocks, there are 10"), "{error}");
    assert!(Scheduler::new(SchedulerConfig { max_batch_tokens: 3, ..config() }).is_err());
    assert!(Scheduler::new(SchedulerConfig { block_size: 0, ..config() }).is_err());
}

#[test]
fn an_idle_engine_waits_for_company() {
    let mut s = Scheduler::new(SchedulerConfig { max_wait_ns: 100, ..config() }).unwrap();
    let mut plan = Plan::default();
    s.submit(SeqId(0), 8, 2, 1000).unwrap();
    s.submit(SeqId(1), 8, 2, 1050).unwrap();
    assert_eq!([1000, 1060, 1100, 1200].map(|now| s.ready_at(now)), [1100, 1100, 1100, 1200].map(Some));
    s.submit(SeqId(2), 8, 2, 1060).unwrap();
    s.submit(SeqId(3), 8, 2, 1060).unwrap();
    assert_eq!(s.ready_at(1061), Some(1061), "a full batch need not wait");
    s.plan(&mut plan);
    s.commit(&plan, 10);
    // Who comes while the engine works is not held, even when all others are gone.
    s.submit(SeqId(4), 8, 2, 1080).unwrap();
    (0..4).for_each(|i| s.finish(SeqId(i)));
    assert_eq!(s.ready_at(1081), Some(1081));
    s.cancel(SeqId(4));
    s.submit(SeqId(4), 8, 2, 2000).unwrap();
    assert_eq!(s.ready_at(2000), Some(2100));
}

#[test]
fn a_prompt_moves_even_when_decoding_alone_takes_too_long() {
    let mut s = Scheduler::new(config()).unwrap();
    let mut plan = Plan::default();
    s.submit(SeqId(0), 1, 50, 0).unwrap();
    for _ in 0..3 {
        s.plan(&mut plan);
        s.commit(&plan, 2_000_000);
    }
    s.submit(SeqId(1), 20, 5, 0).unwrap();
    s.submit(SeqId(2), 20, 5, 0).unwrap();
    for position in 0..20 {
        s.plan(&mut plan);
        let last = position == 19;
        assert_eq!(entries(&plan)[1..], [(1, position, 1, last, false)]);
        s.commit(&plan, 2_000_000);
    }
    s.plan(&mut plan);
    assert_eq!(entries(&plan)[2..], [(2, 0, 1, false, false)]);
}

#[test]
fn step_time_finds_the_formula() {
    let mut model = StepTime::default();
    assert_eq!(model.predict(Work::span(0, 100)), 0.0);
    let cost = |w: Work| 5e6 + 2e4 * w.rows as f64 + 7.0 * w.keys as f64;
    for i in 0..400u32 {
        let mut work = Work::span(i * 37 % 4000, 1 + i * 53 % 300);
        work.add(Work::span(i * 11 % 900, 1));
        model.observe(work, cost(work) as u64);
    }
    // Then an hour of pure decode, which doesn't wash out what prompts cost.
    for i in 0..100_000u32 {
        let work = Work::span(i % 100, 1);
        model.observe(work, cost(work) as u64);
    }
    // And a nap of the machine's.
    model.observe(Work::span(500, 1), 60_000_000_000);
    for work in [Work::span(0, 512), Work::span(8000, 64)] {
        let error = model.predict(work) / cost(work) - 1.0;
        assert!(error.abs() < 0.1, "{work:?}: off by {error}");
    }
    let rows = model.rows_within(1000, 2e6);
    let fixed = model.predict(Work::default());
    assert!(model.predict(Work::span(1000, rows)) - fixed <= 2e6 + 1.0);
    assert!(model.predict(Work::span(1000, rows + 1)) - fixed > 2e6);
    assert_eq!(model.rows_within(0, -1.0), 0);
    assert_eq!(StepTime::default().rows_within(0, 1.0), u32::MAX, "nothing known, nothing cut");
}

/// Planning and committing 256 decoding sequences with 1,024 waiting: some 2 us; ten times 20 us is a
/// scheduler that is no longer linear, whatever else the machine does.
#[test]
fn a_step_is_cheap() {
    let config = SchedulerConfig {
        max_batch_size: 256,
        max_batch_tokens: 512,
        blocks: 256 * 8,
        max_step_ns: 1_000_000_000,
        ..config()
    };
    let mut s = Scheduler::new(config).unwrap();
    let mut plan = Plan::default();
    (0..1280).for_each(|i| s.submit(SeqId(i), 2, 127, 0).unwrap());
    s.plan(&mut plan);
    s.commit(&plan, 1000);
    let mut best = Duration::MAX;
    for _ in 0..100 {
        let start = Instant::now();
        s.plan(&mut plan);
        s.commit(&plan, 1000);
        best = best.min(start.elapsed());
        assert_eq!((plan.decode_rows, s.counts().waiting), (256, 1024));
    }
    assert!(best < Duration::from_micros(200), "{best:?}");
}

#[test]
fn a_step_of_prompts_alone_takes_some_seconds_at_most() {
    let config = SchedulerConfig { max_batch_tokens: 512, blocks: 600, ..config() };
    let mut s = Scheduler::new(config).unwrap();
    let mut plan = Plan::default();
    let mut rows = |s: &mut Scheduler, ns_per_row: u64| {
        s.plan(&mut plan);
        let rows = plan.work.rows;
        s.commit(&plan, rows * ns_per_row);
        rows
    };
    s.submit(SeqId(0), 4000, 1, 0).unwrap();
    s.submit(SeqId(1), 4000, 1, 0).unwrap();
    assert_eq!(rows(&mut s, 20_000_000), 512, "the first, whose time nobody knows");
    let second = rows(&mut s, 20_000_000);
    assert!((150..=250).contains(&second), "{second} rows of 20 ms");
    for _ in 0..30 {
        rows(&mut s, 100_000_000);
    }
    assert_eq!(rows(&mut s, 100_000_000), 64, "at 100 ms a row, as few as are worth it");
}
