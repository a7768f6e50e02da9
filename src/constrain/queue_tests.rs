use super::queue::{CompileQueue, CompileSlot};
use crate::base::clock::now_ns;
use crate::base::{Result, Status};
use crate::text::watch::Watch;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

const SMALL: u64 = 1;
const LARGE: u64 = 1_000_000_000;

/// Enters the queue on a thread of its own, and reports when it has its slot, which it keeps.
fn come(
    queue: &Arc<CompileQueue>,
    name: usize,
    expected_ns: u64,
    told: &Sender<(usize, Result<CompileSlot>)>,
) {
    let waiting = queue.counts().1;
    let (own, told) = (queue.clone(), told.clone());
    thread::spawn(move || told.send((name, own.enter(expected_ns, u64::MAX))));
    // Wait until it is queued before the next one enters; a free slot admits it at once.
    while queue.counts().1 == waiting && queue.counts().0 < 3 {
        thread::yield_now();
    }
    while queue.counts().0 == 3 && queue.counts().1 == waiting {
        thread::yield_now();
    }
}

fn next(told: &Receiver<(usize, Result<CompileSlot>)>) -> (usize, CompileSlot) {
    let (name, slot) = told.recv_timeout(Duration::from_secs(60)).unwrap();
    (name, slot.unwrap())
}

#[test]
fn small_ones_pass_large_ones_and_keep_a_place() {
    let queue = Arc::new(CompileQueue::new());
    let (told, heard) = channel();
    let large: Vec<CompileSlot> = (0..2).map(|_| queue.enter(LARGE, u64::MAX).unwrap()).collect();
    // A third long compilation waits, although a slot is free.
    let late = queue.enter(LARGE, now_ns()).err().unwrap();
    assert_eq!(late.status, Status::TimedOut);
    let small = queue.enter(SMALL, u64::MAX).unwrap();
    come(&queue, 0, LARGE, &told);
    come(&queue, 1, 2 * LARGE, &told);
    come(&queue, 2, SMALL, &told);
    assert_eq!(queue.counts(), (3, 3, 0));
    drop(large);
    // The short one first, then the long ones by expected duration.
    let first = next(&heard);
    let second = next(&heard);
    let mut both = [first.0, second.0];
    both.sort_unstable();
    assert_eq!(both, [0, 2]);
    assert_eq!(queue.counts(), (3, 1, 0));
    drop(small);
    let third = next(&heard);
    assert_eq!(third.0, 1);
    drop((first, second, third));
    assert_eq!(queue.counts(), (0, 0, 0));
}

/// A compilation that turns out long gives up its slot for short ones.
#[test]
fn a_place_grows_or_waits_for_a_large_one() {
    let queue = Arc::new(CompileQueue::new());
    let small = queue.enter(SMALL, u64::MAX).unwrap().grown(SMALL, u64::MAX).unwrap();
    let mut large: Vec<CompileSlot> = (0..2).map(|_| queue.enter(LARGE, u64::MAX).unwrap()).collect();
    assert!(!small.is_large() && large[0].is_large());
    let late = small.grown(LARGE, now_ns()).err().unwrap();
    assert_eq!((late.status, queue.counts()), (Status::TimedOut, (2, 0, 0)));
    let same = large.pop().unwrap().grown(LARGE, now_ns()).unwrap();
    drop(large);
    let grown = queue.enter(SMALL, u64::MAX).unwrap().grown(LARGE, u64::MAX).unwrap();
    assert!(grown.is_large() && same.is_large());
    assert_eq!(queue.counts(), (2, 0, 0));
}

#[test]
fn a_full_line_refuses_and_a_closed_one_sends_away() {
    let queue = Arc::new(CompileQueue::new());
    let (told, heard) = channel();
    let slots: Vec<CompileSlot> = (0..3).map(|_| queue.enter(SMALL, u64::MAX).unwrap()).collect();
    let watch = Arc::new(Watch::new(u64::MAX, u64::MAX, u64::MAX));
    slots[0].begin(&watch);
    (0..64).for_each(|n| come(&queue, n, SMALL, &told));
    assert_eq!(queue.enter(SMALL, u64::MAX).err().unwrap().status, Status::QueueFull);
    queue.close();
    for _ in 0..64 {
        let (_, slot) = heard.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(slot.err().unwrap().status, Status::Shutdown);
    }
    assert!(watch.is_over(), "what runs is stopped");
    let later = Arc::new(Watch::new(u64::MAX, u64::MAX, u64::MAX));
    slots[1].begin(&later);
    assert!(later.is_over());
    assert_eq!(queue.enter(SMALL, u64::MAX).err().unwrap().status, Status::Shutdown);
    drop(slots);
    queue.wait();
    assert_eq!(queue.counts(), (0, 0, 0));
}

/// A compilation that runs a second past its time limit keeps its slot; callers are refused instead of
/// waiting for it.
#[test]
fn places_that_are_lost_refuse_at_once() {
    let queue = Arc::new(CompileQueue::new());
    let slots: Vec<CompileSlot> = (0..3).map(|_| queue.enter(SMALL, u64::MAX).unwrap()).collect();
    let long_over = Arc::new(Watch::new(1, u64::MAX, u64::MAX));
    slots.iter().for_each(|slot| slot.begin(&long_over));
    assert_eq!(queue.enter(SMALL, u64::MAX).err().unwrap().status, Status::QueueFull);
}

#[test]
fn memory_is_divided() {
    let queue = Arc::new(CompileQueue::new());
    let slots: Vec<CompileSlot> = (0..3).map(|_| queue.enter(SMALL, u64::MAX).unwrap()).collect();
    assert_eq!(slots[0].claim(1000, 600), 600);
    assert_eq!(slots[1].claim(1000, 600), 400);
    assert_eq!(slots[2].claim(1000, 600), 0);
    drop(slots);
    assert_eq!(queue.enter(SMALL, u64::MAX).unwrap().claim(1000, 600), 600);
}
