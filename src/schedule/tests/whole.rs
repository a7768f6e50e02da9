//! Prompts that run in one step, without KV.

use super::*;

fn whole(prompt_len: u32) -> Request {
    Request { prompt_len, max_new: 1, whole: true, ..Request::default() }
}

#[test]
fn a_whole_prompt_gets_all_its_rows_or_none() {
    let mut b = Bench::new(config());
    for (seq, len) in [(0, 20), (1, 13), (2, 12), (3, 32)] {
        b.submit_as(seq, whole(len));
    }
    let mut steps = Vec::new();
    while (0..4).any(|seq| b.state(seq) != State::Absent) {
        let entries = b.step();
        assert!(entries.iter().map(|entry| entry.2).sum::<u32>() <= 32, "{entries:?}");
        assert!(steps.len() < 8, "{steps:?}");
        steps.push(entries.iter().map(|&(seq, start, rows, ..)| (seq, start, rows)).collect::<Vec<_>>());
        assert_eq!(b.s.counts().blocks_used, 0);
        (0..4).filter(|seq| entries.iter().any(|entry| entry.0 == *seq)).for_each(|seq| {
            b.cancel(seq);
        });
    }
    let mut all: Vec<_> = steps.concat();
    all.sort_unstable();
    assert_eq!(all, [(0, 0, 20), (1, 0, 13), (2, 0, 12), (3, 0, 32)]);
}

#[test]
fn a_whole_prompt_needs_no_blocks_but_a_step_that_holds_it() {
    // Ten blocks of sixteen positions: with KV 200 positions would not fit.
    let mut b = Bench::new(SchedulerConfig { max_batch_tokens: 256, ..config() });
    b.submit_as(0, whole(200));
    let error = b.s.submit(SeqId(1), whole(257), &b.texts).unwrap_err();
    assert_eq!(error.status, Status::TooLong);
    assert!(error.message.contains("257") && error.message.contains("256"), "{error}");
}
