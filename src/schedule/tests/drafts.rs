//! Depths of drafts.

use super::*;

/// Offers of `most` tokens for each decoding sequence. Each is accepted with probability `chance` if the one before
/// is.
fn offers(b: &Bench, chance: f32, most: u32) -> Vec<Offer> {
    let decodes = b.plan.entries.iter().enumerate().filter(|(_, entry)| entry.decode);
    let stands = std::array::from_fn(|n| chance.powi(n as i32 + 1));
    decodes.map(|(at, _)| Offer { at, stands, most, ..Offer::default() }).collect()
}

/// Runs steps that take `ns` for their rows, with such drafts, of which as many are accepted as expected. Returns the
/// median of the latest depths, because other depths are tried now and then.
fn depths(b: &mut Bench, steps: usize, chance: f32, ns: fn(u64) -> u64) -> Vec<u32> {
    let (mut depths, mut expected): (Vec<Vec<u32>>, f32) = (Vec::new(), 0.0);
    for _ in 0..steps {
        b.plan();
        let mut offers = offers(b, chance, 15);
        b.s.draft(&mut b.plan, &mut offers);
        b.s.check().unwrap();
        depths.push(offers.iter().map(|offer| offer.depth).collect());
        for offer in &offers {
            expected += offer.stands[..offer.depth as usize].iter().sum::<f32>();
            let accepted = (expected as u32).min(offer.depth);
            b.plan.entries[offer.at].accepted = accepted;
            expected -= accepted as f32;
        }
        b.s.commit(&b.plan, ns(b.plan.work.rows), &b.texts);
    }
    let latest = &mut depths[steps - 9..];
    latest.sort();
    latest[4].clone()
}

fn bench(sequences: u32, prompt: u32) -> Bench {
    let mut b = Bench::new(SchedulerConfig { blocks: 2000, max_step_ns: 1_000_000_000, ..config() });
    (0..sequences).for_each(|seq| b.submit(seq, prompt, 8000));
    b
}

/// Time of `steps` steps, relative to as many without drafts, if no draft is accepted although some were expected
/// to be.
fn wasted(sequences: u32, steps: usize, auto: bool) -> f64 {
    let mut b = bench(sequences, 8);
    let (mut took, mut plain) = (0, 0);
    for _ in 0..steps {
        b.plan();
        plain += 1_000_000 + 100_000 * b.plan.work.rows;
        let mut offers = offers(&b, 0.9, 15);
        offers.iter_mut().for_each(|offer| offer.auto = auto);
        b.s.draft(&mut b.plan, &mut offers);
        let ns = 1_000_000 + 100_000 * b.plan.work.rows;
        b.s.commit(&b.plan, ns, &b.texts);
        took += ns;
    }
    took as f64 / plain as f64
}

#[test]
fn drafts_that_nobody_asked_for_lose_less_than_two_percent() {
    for sequences in [1, 4] {
        let wasted = wasted(sequences, 1000, true);
        assert!(wasted > 1.0 && wasted < 1.02, "{sequences} sequences: {wasted}");
    }
    assert!(wasted(1, 100, false) > 1.2, "drafts that were asked for run");
}

#[test]
fn drafts_go_as_deep_as_they_pay() {
    // Up to 16 rows cost as much as one, so all drafts run except the last ones, which gain next to nothing.
    let flat = |rows: u64| 1_000_000 + 1_000_000 * (rows / 17);
    let alone = depths(&mut bench(1, 30), 100, 0.9, flat);
    assert!(alone[0] > 10, "{alone:?}");
    // Four sequences share the 16 rows.
    let together = depths(&mut bench(4, 8), 100, 0.9, flat);
    assert_eq!(together, [3; 4]);
    // A row costs a quarter of a step: (1 - 0.7^(d + 1)) / (1 - 0.7) / (5 + d) has a flat maximum at 3.
    let steep = |rows: u64| 1_000_000 + 250_000 * rows;
    let depth = depths(&mut bench(1, 30), 300, 0.7, steep);
    assert!((2..=4).contains(&depth[0]), "{depth:?}");
    // Kernels take four rows at once, then eight, while prompts teach the formula that each row costs the same.
    let tiles = |rows: u64| match rows {
        1..=2 => 39_000 + 4_000 * (rows - 1),
        3..=4 => 51_000,
        5..=8 => 80_000,
        _ => 30_000 + 13_000 * rows,
    };
    assert_eq!(depths(&mut bench(1, 60), 300, 0.7, tiles), [3]);
    // A row costs as much as a step, or drafts are not accepted.
    assert_eq!(depths(&mut bench(1, 30), 100, 0.7, |rows| 1_000_000 * rows), [0]);
    assert_eq!(depths(&mut bench(1, 30), 100, 0.05, steep), [0]);
}

#[test]
fn drafts_that_stand_are_tokens_and_the_others_leave_nothing() {
    let mut b = Bench::new(SchedulerConfig { block_size: 4, blocks: 20, ..config() });
    b.submit(0, 6, 12);
    b.step();
    b.plan();
    let mut offers = self::offers(&b, 0.9, 5);
    b.s.draft(&mut b.plan, &mut offers);
    let entry = &mut b.plan.entries[0];
    assert_eq!((entry.start, entry.rows, entry.logits, entry.drafts), (6, 6, 6, 5));
    entry.accepted = 2;
    b.commit();
    assert_eq!(b.s.computed(SeqId(0)), Some(9));
    assert_eq!(b.step(), [(0, 9, 1, true, true)]);
    // Near its end, a sequence has room for fewer drafts.
    (0..5).for_each(|_| _ = b.step());
    b.plan();
    let mut offers = self::offers(&b, 0.9, 15);
    b.s.draft(&mut b.plan, &mut offers);
    let entry = b.plan.entries[0];
    assert_eq!((entry.start, entry.start + entry.rows), (15, 17));
}

#[test]
fn drafts_take_no_block_that_others_need() {
    let mut b = Bench::new(SchedulerConfig { block_size: 4, blocks: 7, ..config() });
    b.submit(0, 4, 16);
    b.submit(1, 4, 12);
    b.step();
    b.step();
    // Each has two blocks of 4. Two of the other three are for their next tokens.
    b.plan();
    let mut offers = offers(&b, 0.9, 15);
    b.s.draft(&mut b.plan, &mut offers);
    let rows: Vec<u32> = b.plan.entries.iter().map(|entry| entry.start + entry.rows).collect();
    assert!(rows.iter().all(|&end| end <= 12) && rows.iter().any(|&end| end <= 8), "{rows:?}");
    assert_eq!((b.s.counts().blocks_used, b.s.events().preemptions), (5, 0));
}
