use super::*;
use crate::base::Status;

mod below;
mod depths;
mod drafts;
mod sharing;
mod undivided;
mod whole;

fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_batch_size: 4,
        max_batch_tokens: 32,
        max_logits_rows: 1024,
        max_step_ns: 1_000_000,
        target_itl_ns: 0,
        block_size: 16,
        blocks: 10,
        states: StateConfig::default(),
        max_wait_ns: 0,
        ageing_ns: 0,
    }
}

/// The tokens of sequences: a prompt's own tokens, then numbers that differ by sequence.
#[derive(Default)]
struct Texts(Vec<Vec<u32>>);

impl Tokens for Texts {
    fn content(&self, seq: SeqId, position: u32) -> ContentId {
        id(self.token(seq, position))
    }
}

/// Every seventh is a vector.
fn id(token: u32) -> ContentId {
    if token.is_multiple_of(7) { ContentId::of_vector(token.into(), 0) } else { token.into() }
}

impl Texts {
    fn token(&self, seq: SeqId, position: u32) -> u32 {
        let prompt = self.0.get(seq.0 as usize).and_then(|prompt| prompt.get(position as usize));
        prompt.copied().unwrap_or(1000 * (1 + seq.0) + position)
    }
}

/// A scheduler whose every step takes 1000 ns.
struct Bench {
    s: Scheduler,
    texts: Texts,
    plan: Plan,
    now: u64,
}

type Entry = (u32, u32, u32, bool, bool);

impl Bench {
    fn new(config: SchedulerConfig) -> Self {
        let s = Scheduler::new(config).unwrap();
        Self { s, texts: Texts::default(), plan: Plan::default(), now: 0 }
    }

    fn submit_as(&mut self, seq: u32, request: Request) {
        self.s.submit(SeqId(seq), Request { arrived_ns: self.now, ..request }, &self.texts).unwrap();
    }

    /// Submits a prompt whose beginning no other prompt shares.
    fn submit(&mut self, seq: u32, prompt_len: u32, max_new: u32) {
        self.submit_as(seq, Request { prompt_len, max_new, ..Request::default() });
    }

    fn urgent(&mut self, seq: u32, prompt_len: u32, max_new: u32) {
        self.submit_as(seq, Request { prompt_len, max_new, priority: 200, ..Request::default() });
    }

    /// Entries: sequence, first position, rows, whether it samples, whether it decodes.
    fn plan(&mut self) -> Vec<Entry> {
        self.s.plan(&mut self.plan, &self.texts, self.now);
        self.s.check().unwrap();
        self.plan.entries.iter().map(|e| (e.seq.0, e.start, e.rows, e.sample, e.decode)).collect()
    }

    fn commit(&mut self) {
        self.s.commit(&self.plan, 1000, &self.texts);
        self.s.check().unwrap();
    }

    fn step(&mut self) -> Vec<Entry> {
        let entries = self.plan();
        self.commit();
        entries
    }

    /// Runs `n` steps that take a millisecond per row.
    fn steps_by_rows(&mut self, n: usize) {
        for _ in 0..n {
            self.plan();
            self.s.commit(&self.plan, 1_000_000 * self.plan.work.rows, &self.texts);
        }
    }

    fn cancel(&mut self, seq: u32) -> State {
        self.s.cancel(SeqId(seq), &self.texts)
    }

    fn pause(&mut self, seq: u32) {
        self.s.pause(SeqId(seq), &self.texts);
    }

    /// Admitted sequences with their cached positions.
    fn admitted(&self) -> Vec<(u32, u32)> {
        self.plan.admitted.iter().map(|a| (a.seq.0, a.cached)).collect()
    }

    fn blocks(&self, seq: u32) -> usize {
        self.s.block_table(SeqId(seq)).len()
    }

    fn state(&self, seq: u32) -> State {
        self.s.state(SeqId(seq))
    }
}

#[test]
fn a_request_from_submit_to_its_end_takes_blocks_as_it_needs_them() {
    let mut b = Bench::new(config());
    b.now = 5;
    assert_eq!(b.s.ready_at(5), None);
    // 40 + 9 - 1 = 48 positions are exactly three blocks: the last token needs none.
    b.submit(7, 40, 9);
    assert_eq!((b.s.ready_at(5), b.state(7)), (Some(5), State::Waiting));
    assert_eq!((b.plan(), b.admitted()), (vec![(7, 0, 32, false, false)], vec![(7, 0)]));
    assert_eq!(b.s.block_table(SeqId(7)), [0, 1]);
    // A pass that failed is planned again.
    assert_eq!((b.step(), b.admitted()), (vec![(7, 0, 32, false, false)], vec![]));
    assert_eq!((b.step(), b.blocks(7)), (vec![(7, 32, 8, true, false)], 3));
    for position in 40..48 {
        assert_eq!(b.step(), [(7, position, 1, true, true)]);
    }
    // Nine tokens were sampled. Without a cancel, nothing more is planned.
    assert_eq!((b.plan(), b.blocks(7), b.s.computed(SeqId(7))), (vec![], 3, Some(48)));
    assert_eq!([b.cancel(7), b.cancel(7)], [State::Running, State::Absent]);
    let counts = Counts { blocks_total: 10, blocks_cached: 3, ..Counts::default() };
    assert_eq!((b.s.counts(), b.s.block_table(SeqId(7))), (counts, &[][..]));
}

#[test]
fn a_small_request_passes_a_big_one_until_that_loses_patience() {
    let mut b = Bench::new(config());
    b.submit(0, 40, 50); // 3 blocks, and one for its next tokens
    b.submit(9, 8, 50); // 1 and one more
    b.submit(1, 90, 1); // 6: must wait
    b.submit(2, 8, 30); // fits
    b.plan();
    assert_eq!((b.admitted(), b.s.events().passed), (vec![(0, 0), (9, 0), (2, 0)], 1));
    b.commit();
    b.submit(3, 8, 30);
    b.step();
    assert_eq!((b.admitted(), b.s.events().passed), (vec![(3, 0)], 2));
    b.cancel(9);
    b.now = PATIENCE_NS - 1;
    b.step();
    assert_eq!((b.admitted(), b.plan.held_back), (vec![], HeldBack::Blocks));
    b.now = PATIENCE_NS;
    b.step();
    // Sequences after it made room, starting with the last. The one before it did not.
    assert_eq!((b.admitted(), b.state(0)), (vec![(1, 0)], State::Running));
    assert_eq!([b.state(2), b.state(3)], [State::Waiting; 2]);
    assert_eq!((b.s.events().preempted_for_others, b.s.preemptions(SeqId(3))), (2, 1));
}

#[test]
fn a_big_request_alone_is_tried_at_once_when_its_turn_comes() {
    let mut b = Bench::new(config());
    b.submit(0, 80, 50);
    b.submit(1, 150, 1);
    b.step();
    assert_eq!(b.admitted(), [(0, 0)]);
    b.cancel(0);
    assert_eq!((b.step(), b.admitted()), (vec![(1, 0, 32, false, false)], vec![(1, 0)]));
}

#[test]
fn a_higher_priority_preempts_for_slots_and_for_blocks() {
    let mut b = Bench::new(SchedulerConfig { max_batch_size: 2, ageing_ns: 1_000_000, ..config() });
    b.submit(0, 8, 50);
    b.submit(1, 8, 50);
    b.step();
    b.submit(2, 8, 50);
    b.step();
    assert_eq!((b.admitted(), b.plan.held_back), (vec![], HeldBack::Slots));
    b.urgent(3, 8, 50);
    b.step();
    assert_eq!(
        (b.admitted(), b.state(1), b.s.events().preempted_for_others),
        (vec![(3, 0)], State::Waiting, 1)
    );
    // The preempted one is first: equals keep the order of arrival.
    b.cancel(3);
    assert_eq!((b.step().len(), b.admitted()), (2, vec![(1, 9)]));
    assert!(b.plan.admitted[0].resumed);
    // This sequence takes all blocks.
    b.urgent(4, 150, 1);
    b.step();
    assert_eq!((b.admitted(), [b.state(0), b.state(1)]), (vec![(4, 0)], [State::Waiting; 2]));
    // It arrives so much later that its priority does not help.
    b.now += 1_000_000;
    b.cancel(4);
    b.step();
    b.urgent(5, 8, 50);
    b.step();
    assert_eq!((b.admitted(), b.state(5)), (vec![], State::Waiting));
}

#[test]
fn decoding_preempts_who_is_last_in_line_and_that_goes_on_where_it_was() {
    let mut b = Bench::new(SchedulerConfig { block_size: 4, blocks: 6, ..config() });
    (0..2).for_each(|seq| b.submit(seq, 5, 12));
    b.step();
    assert_eq!((b.admitted(), b.s.counts().blocks_used), (vec![(0, 0), (1, 0)], 4));
    // Two blocks each. The ninth position of the first sequence takes another block, then that of the second does.
    while b.s.preemptions(SeqId(1)) == 0 {
        b.step();
    }
    let (kept, lost) = (b.s.computed(SeqId(0)).unwrap(), b.s.computed(SeqId(1)).unwrap());
    assert_eq!((kept, lost, b.state(1), b.blocks(1)), (13, 0, State::Waiting, 0));
    assert_eq!(b.s.events().preempted_for_others, 0);
    while b.s.computed(SeqId(0)) < Some(16) {
        b.step();
    }
    b.cancel(0);
    // The sequence had computed 12 positions, and the cache has some of them. The next token is its eighth.
    let entries = b.step();
    let (seq, cached) = b.admitted()[0];
    assert!(seq == 1 && b.plan.admitted[0].resumed && cached <= 12);
    assert_eq!(entries[0], (1, cached, 13 - cached, true, cached == 12));
    assert_eq!(b.s.events().recomputed_rows, u64::from(12 - cached));
    assert_eq!(b.step()[0], (1, 13, 1, true, true));
}

#[test]
fn who_is_paused_holds_nothing_and_goes_on_where_it_was() {
    let mut b = Bench::new(config());
    b.submit(0, 20, 30);
    b.submit(1, 20, 30);
    (0..5).for_each(|_| _ = b.step());
    let computed = b.s.computed(SeqId(0)).unwrap();
    b.pause(0);
    b.pause(0);
    assert_eq!((b.state(0), b.blocks(0), b.s.counts().paused, b.s.events().pauses), (State::Paused, 0, 1, 1));
    assert_eq!(b.step().len(), 1);
    b.cancel(1);
    assert_eq!(b.s.ready_at(b.now), None, "nothing to do while all are paused");
    b.s.resume(SeqId(0), b.now);
    b.s.resume(SeqId(0), b.now);
    assert_eq!((b.state(0), b.s.counts().paused), (State::Waiting, 0));
    // The cache has the whole prompt.
    assert_eq!(b.step(), [(0, computed, 1, true, true)]);
    assert_eq!((b.s.events().resumed, b.s.events().recomputed_rows), (1, 0));
    // Pausing a waiting sequence, and cancelling a paused one.
    b.pause(0);
    b.submit(1, 20, 30);
    b.pause(1);
    assert_eq!((b.s.ready_at(b.now), b.cancel(0), b.cancel(1)), (None, State::Paused, State::Paused));
}

#[test]
fn what_can_never_run_is_refused() {
    let mut s = Scheduler::new(config()).unwrap();
    let mut submit = |prompt_len, max_new| {
        let request = Request { prompt_len, max_new, ..Request::default() };
        let result = s.submit(SeqId(0), request, &Texts::default());
        s.cancel(SeqId(0), &Texts::default());
        result.map_err(|error| (error.status, error.message))
    };
    assert_eq!(submit(100, 61), Ok(()));
    let (status, message) = submit(100, 62).unwrap_err();
    assert_eq!(status, Status::TooLong);
    assert!(message.contains("100 tokens and 62 new ones needs 11 KV blocks, there are 10"), "{message}");
    for (prompt_len, max_new) in [(0, 1), (1, 0), (u32::MAX, u32::MAX)] {
        assert_eq!(submit(prompt_len, max_new).unwrap_err().0, Status::InvalidArgument);
    }
    assert!(Scheduler::new(SchedulerConfig { max_batch_tokens: 3, ..config() }).is_err());
    assert!(Scheduler::new(SchedulerConfig { block_size: 0, ..config() }).is_err());
}

#[test]
fn an_idle_engine_waits_for_company() {
    let mut b = Bench::new(SchedulerConfig { max_wait_ns: 100, ..config() });
    for (seq, now) in [(0, 1000), (1, 1050)] {
        b.now = now;
        b.submit(seq, 8, 2);
    }
    assert_eq!([1000, 1060, 1100, 1200].map(|now| b.s.ready_at(now)), [1100, 1100, 1100, 1200].map(Some));
    b.submit(2, 8, 2);
    b.submit(3, 8, 2);
    assert_eq!(b.s.ready_at(1061), Some(1061), "a full batch need not wait");
    b.step();
    // Arrivals while the engine works are not held, even if all other sequences are gone.
    b.submit(4, 8, 2);
    (0..4).for_each(|seq| _ = b.cancel(seq));
    assert_eq!(b.s.ready_at(1081), Some(1081));
    b.cancel(4);
    b.now = 2000;
    b.submit(4, 8, 2);
    assert_eq!(b.s.ready_at(2000), Some(2100));
}

#[test]
fn who_cannot_be_in_time_any_more_is_named_until_it_is_cancelled() {
    let mut b = Bench::new(SchedulerConfig { max_batch_size: 1, ..config() });
    b.submit(0, 8, 50);
    b.step();
    b.submit_as(1, Request { prompt_len: 8, max_new: 1, first_by_ns: 10_000, ..Request::default() });
    b.step();
    assert_eq!(b.plan.late, []);
    b.now = 10_001;
    (0..2).for_each(|_| {
        b.step();
        assert_eq!(b.plan.late, [SeqId(1)]);
    });
    assert_eq!(b.cancel(1), State::Waiting);
    // A sequence that has begun is never late.
    b.submit_as(2, Request { prompt_len: 8, max_new: 9, first_by_ns: 1_000_000, ..Request::default() });
    b.cancel(0);
    b.step();
    b.now = 2_000_000;
    b.pause(2);
    b.s.resume(SeqId(2), b.now);
    assert_eq!((b.step().len(), &b.plan.late[..]), (1, &[][..]));
}

#[test]
fn prompts_have_their_part_even_when_decoding_alone_takes_too_long() {
    let mut b = Bench::new(SchedulerConfig { blocks: 40, ..config() });
    b.submit(0, 1, 200);
    let step = |b: &mut Bench| {
        let entries = b.plan();
        let ns = 2_000_000 + 500_000 * b.plan.work.rows;
        b.s.commit(&b.plan, ns, &b.texts);
        entries
    };
    (0..3).for_each(|_| _ = step(&mut b));
    // Learns the cost of a row.
    b.submit(1, 40, 1);
    while b.state(1) == State::Waiting || b.s.computed(SeqId(1)) < Some(40) {
        step(&mut b);
    }
    b.cancel(1);
    b.submit(2, 20, 5);
    b.submit(3, 20, 5);
    // 0.75 of 2.5 ms is three rows. The first in the queue gets at least one of them, the shortest the
    // others.
    let mut first = 0;
    while b.s.computed(SeqId(2)) < Some(20) {
        let entries = step(&mut b);
        assert!(entries[0].4 && entries[1..].iter().map(|e| e.2).sum::<u32>() >= 3, "{entries:?}");
        assert_eq!((entries[1].0, entries[1].1), (2, first), "the first in line moves in every step");
        first += entries[1].2;
    }
}

#[test]
fn a_long_prompt_leaves_rows_to_a_short_one() {
    let mut b = Bench::new(SchedulerConfig { blocks: 40, ..config() });
    b.submit(0, 300, 1);
    assert_eq!(b.step(), [(0, 0, 32, false, false)]);
    b.submit(1, 20, 1);
    let mut entries = b.step();
    entries.sort_unstable();
    assert_eq!(entries, [(0, 32, 12, false, false), (1, 0, 20, true, false)]);
}

#[test]
fn a_batch_keeps_the_target_between_tokens() {
    let mut b =
        Bench::new(SchedulerConfig { target_itl_ns: 3_500_000, max_step_ns: 100_000_000, ..config() });
    b.submit(0, 8, 100);
    b.steps_by_rows(20);
    (1..4).for_each(|seq| b.submit(seq, 8, 100));
    b.steps_by_rows(20);
    // A millisecond per row.
    assert_eq!((b.s.counts().running, b.s.counts().waiting, b.plan.held_back), (3, 1, HeldBack::Time));
    b.cancel(1);
    b.steps_by_rows(1);
    assert_eq!(b.state(3), State::Running);
}

#[test]
fn the_target_between_tokens_counts_what_prompts_take() {
    let mut b = Bench::new(SchedulerConfig {
        target_itl_ns: 4_000_000,
        max_step_ns: 100_000_000,
        blocks: 1000,
        ..config()
    });
    b.submit(0, 8, 400);
    b.steps_by_rows(20);
    b.submit(1, 300, 100);
    b.steps_by_rows(100);
    // A millisecond per row: three rows are within the target, but not with a prompt's rows beside them.
    b.submit(2, 8, 100);
    b.steps_by_rows(1);
    assert_eq!((b.s.counts().running, b.plan.held_back), (2, HeldBack::Time));
    while b.s.computed(SeqId(1)) < Some(300) {
        b.steps_by_rows(1);
    }
    b.steps_by_rows(100);
    assert_eq!(b.s.counts().running, 3);
}

#[test]
fn other_work_has_the_time_of_prompts() {
    let beside = |max_step_ns| {
        let mut b = Bench::new(SchedulerConfig { max_step_ns, blocks: 1000, ..config() });
        assert_eq!(b.s.time_beside(&b.plan), None);
        (0..2).for_each(|seq| b.submit(seq, 8, 400));
        b.steps_by_rows(100);
        b.submit(2, 1, 1);
        b.plan();
        b.s.time_beside(&b.plan).unwrap() / 1e6
    };
    let near = |left: f64, right: f64| assert!((left - right).abs() < 0.05, "{left} for {right}");
    // A millisecond per row, and two rows decode: 7/8 of the target, or 3/4 of their time, less the prompt's row.
    near(beside(8_000_000), 7.0 - 3.0);
    near(beside(1_000_000), 1.5 - 1.0);
}

#[test]
fn step_time_finds_the_formula() {
    let mut model = StepTime::default();
    assert_eq!(model.predict(Work::span(0, 100)), 0.0);
    let cost = |w: Work| 5e6 + 2e4 * w.rows as f64 + 90.0 * w.positions as f64 + 7.0 * w.keys as f64;
    for i in 0..400u32 {
        let mut work = Work::span(i * 37 % 4000, 1 + i * 53 % 300);
        (0..i % 8).for_each(|n| work.add(Work::span((i + n) * 11 % 900, 1)));
        model.observe(work, cost(work) as u64);
    }
    // Then an hour of pure decode, which must not erase the learned cost of prompts.
    for i in 0..100_000u32 {
        let work = Work::span(i % 100, 1);
        model.observe(work, cost(work) as u64);
    }
    // And a step during which the machine slept.
    model.observe(Work::span(500, 1), 60_000_000_000);
    let mut decodes = Work::default();
    (0..8).for_each(|_| decodes.add(Work::span(3000, 1)));
    for work in [Work::span(0, 512), Work::span(8000, 64), decodes] {
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

/// Lookups of sequences in a hundred steps with `running` decoding ones and `waiting` others.
fn lookups(config: SchedulerConfig, running: u32, waiting: u32) -> u64 {
    let mut b = Bench::new(config);
    (0..running + waiting).for_each(|seq| b.submit(seq, 2, 127));
    b.step();
    let before = slots::lookups::count();
    for _ in 0..100 {
        b.s.plan(&mut b.plan, &b.texts, b.now);
        b.s.commit(&b.plan, 1000, &b.texts);
        assert_eq!(b.plan.decode_rows, running);
        assert_eq!(b.s.counts().waiting, waiting as usize);
    }
    assert!(waiting == 0 || matches!(b.plan.held_back, HeldBack::Slots | HeldBack::Blocks));
    slots::lookups::count() - before
}

/// `cargo dev scheduler` measures the time, with many cached blocks, too.
#[test]
fn a_steps_work_is_linear_in_what_runs_and_does_not_grow_with_the_queue() {
    let many = SchedulerConfig { max_batch_tokens: 512, max_step_ns: 1_000_000_000, ..config() };
    // Either the batch is full, or the memory.
    let slots = |n: u32| SchedulerConfig { max_batch_size: n, blocks: n * 9, ..many };
    let blocks = |n: u32| SchedulerConfig { max_batch_size: n + 44, block_size: 128, blocks: n, ..many };
    for config in [&slots as &dyn Fn(u32) -> SchedulerConfig, &blocks] {
        let [few, all] = [64, 256].map(|running| lookups(config(running), running, 256));
        assert!(few > 100 * 64 && all <= 4 * few, "{few} lookups with 64 sequences, {all} with 256");
        assert_eq!(lookups(config(256), 256, 1024), all, "the queue is not searched");
    }
}

#[test]
fn a_step_of_prompts_alone_takes_some_seconds_at_most() {
    let mut b = Bench::new(SchedulerConfig { max_batch_tokens: 512, blocks: 600, ..config() });
    let rows = |b: &mut Bench, ns_per_row: u64| {
        b.plan();
        let rows = b.plan.work.rows;
        b.s.commit(&b.plan, rows * ns_per_row, &b.texts);
        rows
    };
    b.submit(0, 4000, 1);
    b.submit(1, 4000, 1);
    assert_eq!(rows(&mut b, 20_000_000), 512, "the first, whose time nobody knows");
    let second = rows(&mut b, 20_000_000);
    assert!((150..=250).contains(&second), "{second} rows of 20 ms");
    for _ in 0..30 {
        rows(&mut b, 100_000_000);
    }
    assert_eq!(rows(&mut b, 100_000_000), 64, "at 100 ms a row, as few as are worth it");
}
