//! Positions of prompts that run in one step.

use super::*;

/// Texts of which each has one such range of positions.
struct Units(Texts, Range<u32>);

impl Tokens for Units {
    fn content(&self, seq: SeqId, position: u32) -> ContentId {
        self.0.content(seq, position)
    }

    fn undivided(&self, _: SeqId, position: u32) -> Option<Range<u32>> {
        (self.1.start < position && position < self.1.end).then(|| self.1.clone())
    }
}

/// The first positions and rows of each step's entries, until `seqs` have sampled once.
fn steps(s: &mut Scheduler, units: &Units, seqs: u32) -> Vec<Vec<(u32, u32, u32)>> {
    let (mut plan, mut all, mut sampled) = (Plan::default(), Vec::new(), 0);
    while sampled < seqs {
        s.plan(&mut plan, units, 0);
        all.push(plan.entries.iter().map(|entry| (entry.seq.0, entry.start, entry.rows)).collect());
        sampled += plan.entries.iter().filter(|entry| entry.sample && !entry.decode).count() as u32;
        s.commit(&plan, 1000, units);
        s.check().unwrap();
        assert!(all.len() < 20, "{all:?}");
    }
    all
}

fn request(prompt_len: u32) -> Request {
    Request { prompt_len, max_new: 8, ..Request::default() }
}

#[test]
fn chunks_end_at_both_ends_of_a_unit() {
    // 32 rows in a step.
    for (unit, want) in [
        (10..40, vec![vec![(0, 0, 10)], vec![(0, 10, 32)], vec![(0, 42, 8)]]),
        (0..32, vec![vec![(0, 0, 32)], vec![(0, 32, 18)]]),
        (30..50, vec![vec![(0, 0, 30)], vec![(0, 30, 20)]]),
        (4..8, vec![vec![(0, 0, 32)], vec![(0, 32, 18)]]),
    ] {
        let mut s = Scheduler::new(config()).unwrap();
        let units = Units(Texts::default(), unit.clone());
        s.submit(SeqId(0), request(50), &units).unwrap();
        assert_eq!(steps(&mut s, &units, 1), want, "{unit:?}");
    }
}

#[test]
fn a_unit_runs_beside_others_whatever_time_it_takes() {
    // A step may take a thousandth of what rows take.
    let mut s = Scheduler::new(SchedulerConfig { max_step_ns: 1, blocks: 20, ..config() }).unwrap();
    let units = Units(Texts::default(), 2..31);
    let mut plan = Plan::default();
    s.submit(SeqId(0), Request { max_new: 40, ..request(1) }, &units).unwrap();
    for _ in 0..8 {
        s.plan(&mut plan, &units, 0);
        s.commit(&plan, 1_000_000 * plan.work.rows, &units);
    }
    for seq in 1..4 {
        s.submit(SeqId(seq), request(40), &units).unwrap();
    }
    let mut ran = Vec::new();
    for _ in 0..100 {
        s.plan(&mut plan, &units, 0);
        assert!(plan.work.rows <= 32);
        for entry in &plan.entries {
            let divides = |at| units.undivided(entry.seq, at).is_some() && entry.seq.0 > 0;
            assert!(!divides(entry.start) && !divides(entry.start + entry.rows), "{entry:?}");
            ran.extend((entry.rows >= 29).then_some(entry.seq.0));
        }
        s.commit(&plan, 1_000_000 * plan.work.rows, &units);
    }
    ran.sort_unstable();
    assert_eq!(ran, [1, 2, 3]);
}

#[test]
fn a_cached_prefix_ends_outside_of_a_unit() {
    let prompt: Vec<u32> = (0..48).collect();
    let cases = [(20..40, 44, 44), (20..40, 30, 20), (0..32, 30, 0), (16..48, 47, 16), (20..30, 47, 47)];
    for (unit, limit, want) in cases {
        let mut s = Scheduler::new(config()).unwrap();
        let units = Units(Texts(vec![prompt.clone(); 2]), unit.clone());
        s.submit(SeqId(0), request(48), &units).unwrap();
        steps(&mut s, &units, 1);
        let reuse = Reuse { limit, ..Reuse::default() };
        s.submit(SeqId(1), Request { reuse, ..request(48) }, &units).unwrap();
        let mut plan = Plan::default();
        s.plan(&mut plan, &units, 0);
        assert_eq!(plan.admitted.first().map(|own| own.cached), Some(want), "{unit:?}, {limit}");
    }
}
