//! Prefixes from a lower tier.

use super::*;
use crate::cache::chain;
use crate::cache::disk::{Kind, Lower, Name, Place};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct Records {
    has: HashSet<Name>,
    orders: Vec<(u64, u32, Place)>,
    /// Nanoseconds of a read.
    ns: f64,
}

#[derive(Clone, Default)]
struct Tier(Arc<Mutex<Records>>);

impl Lower for Tier {
    fn has(&self, name: Name) -> bool {
        self.0.lock().unwrap().has.contains(&name)
    }
    fn read_ns(&self, blocks: usize, states: usize) -> f64 {
        self.0.lock().unwrap().ns * (blocks + states) as f64
    }
    fn order(&mut self, ticket: u64, index: u32, place: Place) -> crate::base::Result<()> {
        self.0.lock().unwrap().orders.push((ticket, index, place));
        Ok(())
    }
    fn cancel(&mut self, ticket: u64) {
        self.0.lock().unwrap().orders.retain(|(of, ..)| *of != ticket);
    }
}

impl Tier {
    /// Adds the records of the first `positions` positions of a text without vectors.
    fn add(&self, text: &[u32], positions: usize, state: bool) {
        let mut records = self.0.lock().unwrap();
        let mut key = 0;
        for block in text[..positions].chunks(16) {
            let contents: Vec<_> = block.iter().map(|token| id(*token)).collect();
            key = chain(key, &contents);
            records.has.insert(Name { kind: Kind::Block, key });
        }
        if state {
            records.has.insert(Name { kind: Kind::State, key });
        }
    }

    /// The orders so far: kind and number of positions.
    fn orders(&self) -> Vec<(Kind, usize)> {
        let records = self.0.lock().unwrap();
        records.orders.iter().map(|(_, _, place)| (place.kind, place.contents.len())).collect()
    }
}

impl Bench {
    fn with_tier(config: SchedulerConfig) -> (Self, Tier) {
        let (mut bench, tier) = (Self::new(config), Tier::default());
        bench.s.set_lower(Box::new(tier.clone())).unwrap();
        (bench, tier)
    }

    /// Delivers the next order.
    fn deliver(&mut self, tier: &Tier, good: bool) {
        let (ticket, index, _) = tier.0.lock().unwrap().orders.remove(0);
        let to = self.s.destination(ticket, index);
        self.s.arrived(ticket, index, good && to.is_some(), &self.texts);
        self.s.check().unwrap();
    }

    fn text(&mut self, seq: u32, text: &[u32], max_new: u32) {
        self.texts.0.resize(1 + seq as usize, Vec::new());
        self.texts.0[seq as usize] = text.to_vec();
        self.submit(seq, text.len() as u32, max_new);
    }
}

fn text(len: u32) -> Vec<u32> {
    (1..=len).map(|n| 5000 + n).collect()
}

#[test]
fn a_prefix_below_is_waited_for_and_not_computed() {
    let (mut bench, tier) = Bench::with_tier(config());
    let text = text(70);
    tier.add(&text, 70, false);
    bench.text(0, &text, 4);
    assert_eq!(bench.plan(), [], "it waits");
    assert_eq!(bench.plan.held_back, HeldBack::Lower);
    assert_eq!(tier.orders()[3..], [(Kind::Block, 16), (Kind::Block, 6)]);
    let until = bench.s.ready_at(0).unwrap();
    assert_eq!(until, 69_000_000, "a millisecond a row before anything is known");
    assert_eq!(bench.plan(), []);
    assert_eq!(tier.orders().len(), 5, "ordered once");
    (0..5).for_each(|_| bench.deliver(&tier, true));
    assert_eq!(bench.s.ready_at(0), Some(0));
    assert_eq!(bench.step(), [(0, 69, 1, true, false)], "the last position is always computed");
    assert_eq!(bench.admitted(), [(0, 69)]);
    assert_eq!((bench.s.events().fetches, bench.s.events().fetched_positions), (1, 69));
    bench.cancel(0);
    assert_eq!(bench.s.counts().blocks_used, 0);
}

#[test]
fn a_part_of_a_block_comes_too() {
    let (mut bench, tier) = Bench::with_tier(config());
    let text = text(60);
    tier.add(&text, 40, false);
    bench.text(0, &text, 4);
    assert_eq!(bench.plan(), []);
    assert_eq!(tier.orders(), [(Kind::Block, 16), (Kind::Block, 16), (Kind::Block, 8)]);
    (0..3).for_each(|_| bench.deliver(&tier, true));
    assert_eq!(bench.step(), [(0, 40, 20, true, false)]);
    assert_eq!(bench.plan.copies.len(), 1);
}

#[test]
fn what_memory_has_is_not_read() {
    let (mut bench, tier) = Bench::with_tier(config());
    let text = text(80);
    bench.text(0, &text[..33], 1);
    bench.step();
    bench.step();
    bench.cancel(0);
    tier.add(&text, 80, false);
    bench.steps_by_rows(3);
    bench.text(1, &text, 4);
    bench.plan();
    assert_eq!(tier.orders(), [(Kind::Block, 16); 3], "the last token's block too");
    (0..3).for_each(|_| bench.deliver(&tier, true));
    assert_eq!(bench.step(), [(1, 79, 1, true, false)]);
}

#[test]
fn slow_reads_are_not_waited_for() {
    let (mut bench, tier) = Bench::with_tier(config());
    let text = text(70);
    tier.add(&text, 70, false);
    tier.0.lock().unwrap().ns = 20e6;
    bench.text(0, &text, 4);
    assert_eq!(bench.plan().len(), 1, "reading would take longer");
    assert_eq!(tier.orders(), []);
    bench.commit();
    bench.cancel(0);

    let (mut bench, tier) = Bench::with_tier(config());
    tier.add(&text, 70, false);
    bench.text(0, &text, 4);
    assert_eq!(bench.plan(), []);
    bench.deliver(&tier, true);
    bench.now = 69_000_000;
    assert_eq!(bench.plan(), [(0, 16, 32, false, false)], "it goes on with what has come");
    assert_eq!(tier.orders(), [], "the rest is withdrawn");
    assert_eq!(bench.s.events().given_up_fetches, 1);
}

#[test]
fn a_missing_record_ends_the_wait() {
    let (mut bench, tier) = Bench::with_tier(config());
    let text = text(70);
    tier.add(&text, 70, false);
    bench.text(0, &text, 4);
    assert_eq!(bench.plan(), []);
    bench.deliver(&tier, true);
    let (ticket, late, _) = tier.0.lock().unwrap().orders[1].clone();
    bench.deliver(&tier, false);
    assert_eq!(tier.orders(), []);
    // One that was read before the others were withdrawn.
    assert_eq!(bench.s.destination(ticket, late), None);
    bench.s.arrived(ticket, late, false, &bench.texts);
    assert_eq!(bench.step(), [(0, 16, 32, false, false)]);
    assert_eq!(bench.s.events().fetched_positions, 16);
}

#[test]
fn sequences_that_leave_withdraw_their_orders() {
    let (mut bench, tier) = Bench::with_tier(config());
    let text = text(70);
    tier.add(&text, 70, false);
    bench.text(0, &text, 4);
    assert_eq!(bench.plan(), []);
    let (ticket, index, _) = tier.0.lock().unwrap().orders[0].clone();
    bench.cancel(0);
    assert_eq!((tier.orders().len(), bench.s.counts().blocks_used), (0, 0));
    assert_eq!(bench.s.destination(ticket, index), None);
    bench.s.arrived(ticket, index, false, &bench.texts);
    bench.s.check().unwrap();
}

#[test]
fn a_second_sequence_waits_for_the_first_ones_prefix() {
    let (mut bench, tier) = Bench::with_tier(config());
    let text = text(50);
    tier.add(&text, 48, false);
    bench.text(0, &text, 4);
    bench.text(1, &text, 4);
    assert_eq!(bench.plan(), []);
    assert_eq!(tier.orders().len(), 3, "ordered by one of them");
    (0..3).for_each(|_| bench.deliver(&tier, true));
    bench.step();
    assert_eq!(bench.admitted(), [(0, 48), (1, 48)]);
}

#[test]
fn blocks_of_a_fetch_give_way_to_running_sequences() {
    let (mut bench, tier) = Bench::with_tier(SchedulerConfig { blocks: 7, ..config() });
    let text = text(50);
    tier.add(&text, 48, false);
    bench.submit(1, 16, 70);
    bench.steps_by_rows(3);
    bench.text(0, &text, 4);
    bench.step();
    assert_eq!(tier.orders().len(), 3);
    for _ in 0..66 {
        bench.step();
    }
    assert_eq!(tier.orders(), [], "the fetch was dropped");
    assert_eq!(bench.s.preemptions(SeqId(1)), 0);
}

#[test]
fn a_state_comes_with_the_blocks_before_it() {
    let states = StateConfig { slots: 8, snapshot_interval: 0, drafts: 0 };
    let (mut bench, tier) = Bench::with_tier(SchedulerConfig { states, ..config() });
    let text = text(60);
    tier.add(&text, 60, false);
    bench.text(0, &text, 4);
    assert_eq!(bench.plan().len(), 1, "blocks are of no use without a state");
    bench.commit();
    bench.cancel(0);
    bench.s.cache_mut().clear();
    tier.add(&text, 40, true);
    bench.text(1, &text, 4);
    assert_eq!(bench.plan(), []);
    assert_eq!(tier.orders(), [(Kind::Block, 16), (Kind::Block, 16), (Kind::Block, 16), (Kind::State, 8)]);
    (0..4).for_each(|_| bench.deliver(&tier, true));
    assert_eq!(bench.step(), [(1, 40, 20, true, false)]);
    bench.cancel(1);
    bench.s.check().unwrap();
}

#[test]
fn a_state_within_a_longer_record_is_found() {
    let states = StateConfig { slots: 8, snapshot_interval: 0, drafts: 0 };
    let (mut bench, tier) = Bench::with_tier(SchedulerConfig { states, ..config() });
    let text = text(60);
    // As at the end of a prompt: the state is that before its last token.
    tier.add(&text, 39, true);
    tier.add(&text, 40, false);
    bench.text(0, &text[..40], 4);
    assert_eq!(bench.plan(), []);
    assert_eq!(tier.orders(), [(Kind::Block, 16), (Kind::Block, 16), (Kind::Block, 8), (Kind::State, 7)]);
    (0..4).for_each(|_| bench.deliver(&tier, true));
    assert_eq!(bench.step(), [(0, 39, 1, true, false)]);
}

#[test]
fn what_is_evicted_can_be_kept_and_found_again() {
    let (mut bench, _) = Bench::with_tier(SchedulerConfig { blocks: 4, max_batch_tokens: 64, ..config() });
    let text = text(40);
    bench.text(0, &text, 1);
    bench.step();
    bench.step();
    bench.cancel(0);
    bench.submit(1, 60, 1);
    bench.plan();
    let cache = bench.s.cache_mut();
    let mut left = Vec::new();
    while let Some(leaving) = cache.next_leaving() {
        left.push(cache.place_of(&leaving).unwrap());
    }
    left.sort_by_key(|place| place.contents[1].token());
    let ids = |range: std::ops::Range<usize>| text[range].iter().map(|token| id(*token)).collect::<Vec<_>>();
    assert_eq!(
        left.iter().map(|place| place.contents.clone()).collect::<Vec<_>>(),
        [ids(0..16), ids(16..32), ids(32..40)]
    );
    assert_eq!((left[0].parent_key, left[1].parent_key), (0, left[0].key));
}
