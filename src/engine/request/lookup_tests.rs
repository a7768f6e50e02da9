//! Compares runs with and without look-ups in simulated time: the scheduler, chances and texts are real, and a
//! formula gives the time of a step. So the ratios are exact.

use super::lookup::{Chances, Lookup, Text};
use crate::cache::ContentId;
use crate::schedule::{MAX_DRAFT, Offer, Plan, Request, Scheduler, SchedulerConfig, SeqId, Tokens, Work};

const PROMPT: usize = 16;
const OUTPUT: usize = 192;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Outputs of eight requests.
fn outputs(kind: &str) -> Vec<Vec<u32>> {
    let mut random = Random(7);
    let pairs = |n: u32, count: u32| (0..count).flat_map(move |at| [300 + n, 310 + n, 500 + at]);
    let looped = |count: u32| (0..count).map(|at| 400 + at % 8);
    let output = |n: u32| -> Vec<u32> {
        let mut any = |count: usize| (0..count).map(|_| 2000 + random.below(30_000) as u32).collect();
        match (kind, n) {
            ("random", _) => any(OUTPUT),
            ("loop", _) | ("one of eight loops", 0) => looped(OUTPUT as u32).collect(),
            ("half of them loop", _) if n.is_multiple_of(2) => looped(OUTPUT as u32).collect(),
            ("half of them loop" | "one of eight loops", _) => any(OUTPUT),
            // Every look-up finds a draft, which is wrong: from the start, or after it was right for long.
            ("trap", _) => pairs(n, OUTPUT as u32 / 3).collect(),
            ("turn", _) => looped(OUTPUT as u32 / 2).chain(pairs(n, OUTPUT as u32 / 6)).collect(),
            // Each draft is right with a probability of one half.
            ("coin", _) => (0..OUTPUT).map(|_| 7 + random.below(2) as u32).collect(),
            ("breaks", _) => {
                let mut output: Vec<u32> = (900..932).collect();
                while output.len() < OUTPUT {
                    let at = random.below(16) as usize;
                    output.extend_from_within(at..at + 5 + random.below(4) as usize);
                    output.push(2000 + random.below(30_000) as u32);
                }
                output.truncate(OUTPUT);
                output
            }
            _ => unreachable!("{kind}"),
        }
    };
    (0..8).map(output).collect()
}

/// Nanoseconds of a step. Rows cost little, some, as much as the step itself, or in tiles of the kernels.
fn cost(kind: &str, work: Work) -> u64 {
    let rows = match (kind, work.rows) {
        ("flat", rows) => 5_000_000 + 250_000 * rows,
        ("middle", rows) => 5_000_000 + 1_500_000 * rows,
        ("rows", rows) => 1_000_000 + 6_000_000 * rows,
        (_, rows @ 0..=2) => 3_900_000 + 400_000 * rows,
        (_, 3..=4) => 5_100_000,
        (_, 5..=8) => 8_000_000,
        (_, rows) => 3_000_000 + 1_300_000 * rows,
    };
    rows + 200 * work.positions
}

struct Sequences(Vec<Vec<u32>>);

impl Tokens for Sequences {
    fn content(&self, seq: SeqId, position: u32) -> ContentId {
        let at = position as usize;
        let token = if at < PROMPT { seq.0 * 1000 + position } else { self.0[seq.0 as usize][at - PROMPT] };
        token.into()
    }
}

/// Simulated nanoseconds of 64 requests, `batch` of them at a time.
fn run(outputs: &[Vec<u32>], costs: &str, batch: u32, looks: bool) -> u64 {
    let mut s = Scheduler::new(SchedulerConfig {
        max_batch_size: batch,
        max_batch_tokens: 1024,
        max_logits_rows: 1024,
        max_step_ns: 1_000_000_000,
        target_itl_ns: 0,
        block_size: 16,
        blocks: 4096,
        states: Default::default(),
        max_wait_ns: 0,
        ageing_ns: 0,
    })
    .unwrap();
    let texts = Sequences((0..64).map(|n| outputs[n % outputs.len()].clone()).collect());
    let prompts: Vec<Vec<u32>> = (0..64)
        .map(|n| (0..PROMPT as u32).map(|at| texts.content(SeqId(n), at).token().unwrap()).collect())
        .collect();
    let mut lookups: Vec<_> = (0..64).map(|_| Lookup::new(PROMPT, OUTPUT)).collect();
    let (mut done, mut chances, mut plan, mut now) = ([0; 64], Chances::default(), Plan::default(), 0);
    for n in 0..64 {
        let (prompt_len, max_new) = (PROMPT as u32, OUTPUT as u32);
        s.submit(SeqId(n), Request { prompt_len, max_new, ..Request::default() }, &texts).unwrap();
    }
    while done.iter().any(|done| *done < OUTPUT) {
        s.plan(&mut plan, &texts, now);
        for admitted in &plan.admitted {
            lookups[admitted.seq.0 as usize].chances = chances;
        }
        let mut offers = Vec::new();
        for (at, entry) in plan.entries.iter().enumerate().filter(|(_, entry)| looks && entry.decode) {
            let n = entry.seq.0 as usize;
            lookups[n].read(Text { prompt: &prompts[n], output: &outputs[n % 8][..done[n]] });
            let mut offer = Offer {
                at,
                most: MAX_DRAFT.min(OUTPUT - done[n] - 1) as u32,
                auto: true,
                ..Offer::default()
            };
            lookups[n].stands(&mut offer.stands);
            offers.extend((offer.most > 0 && offer.stands[0] > 0.0).then_some(offer));
        }
        if !offers.is_empty() {
            s.draft(&mut plan, &mut offers);
        }
        for entry in plan.entries.iter_mut().filter(|entry| entry.sample) {
            let n = entry.seq.0 as usize;
            let (output, mut drafts) = (&outputs[n % 8], [0; MAX_DRAFT]);
            let drafts = &mut drafts[..entry.drafts as usize];
            lookups[n].draft(Text { prompt: &prompts[n], output: &output[..done[n]] }, drafts);
            let accepted = drafts.iter().zip(&output[done[n]..]).take_while(|(draft, token)| draft == token);
            entry.accepted = accepted.count() as u32;
            done[n] += 1 + entry.accepted as usize;
        }
        let ns = cost(costs, plan.work);
        now += ns;
        s.commit(&plan, ns, &texts);
        let over: Vec<_> = plan.entries.iter().map(|entry| entry.seq).collect();
        for seq in over.into_iter().filter(|seq| done[seq.0 as usize] == OUTPUT) {
            chances.learn(&lookups[seq.0 as usize].chances);
            s.cancel(seq, &texts);
        }
    }
    now
}

#[test]
fn lookups_gain_where_texts_repeat_and_never_cost_two_percent() {
    let kinds =
        ["random", "loop", "trap", "turn", "coin", "breaks", "half of them loop", "one of eight loops"];
    for kind in kinds {
        let outputs = outputs(kind);
        for costs in ["flat", "middle", "rows", "tiles"] {
            for batch in [1, 4, 8, 32] {
                let ratio =
                    run(&outputs, costs, batch, false) as f64 / run(&outputs, costs, batch, true) as f64;
                let case = format!("{kind}, {costs}, {batch} at a time: {ratio:.3}");
                println!("{case}");
                assert!(ratio > 0.98, "{case}");
                let gains = match (kind, costs, batch) {
                    ("loop", "flat" | "middle" | "tiles", 1) => 1.5,
                    ("loop" | "breaks", "flat", 1..=8) => 1.05,
                    _ => 0.0,
                };
                assert!(ratio > gains, "{case}");
            }
        }
    }
}
