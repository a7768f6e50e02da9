use super::line::{Line, Place};
use crate::base::clock::now_ns;
use crate::base::{Result, Status};
use crate::text::watch::Watch;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

const SMALL: u64 = 1;
const LARGE: u64 = 1_000_000_000;

/// Enters the line on a thread of its own, and reports when it has its slot, which it keeps.
fn come(line: &Arc<Line>, name: usize, expected_ns: u64, told: &Sender<(usize, Result<Place>)>) {
    let waiting = line.counts().1;
    let (own, told) = (line.clone(), told.clone());
    thread::spawn(move || told.send((name, own.enter(expected_ns, u64::MAX))));
    // Wait until it is queued before the next one enters; a free slot admits it at once.
    while line.counts().1 == waiting && line.counts().0 < 3 {
        thread::yield_now();
    }
    while line.counts().0 == 3 && line.counts().1 == waiting {
        thread::yield_now();
    }
}

fn next(told: &Receiver<(usize, Result<Place>)>) -> (usize, Place) {
    let (name, place) = told.recv_timeout(Duration::from_secs(60)).unwrap();
    (name, place.unwrap())
}

#[test]
fn small_ones_pass_large_ones_and_keep_a_place() {
    let line = Arc::new(Line::new());
    let (told, heard) = channel();
    let large: Vec<Place> = (0..2).map(|_| line.enter(LARGE, u64::MAX).unwrap()).collect();
    // A third long compilation waits, although a slot is free.
    let late = line.enter(LARGE, now_ns()).err().unwrap();
    assert_eq!(late.status, Status::TimedOut);
    let small = line.enter(SMALL, u64::MAX).unwrap();
    come(&line, 0, LARGE, &told);
    come(&line, 1, 2 * LARGE, &told);
    come(&line, 2, SMALL, &told);
    assert_eq!(line.counts(), (3, 3, 0));
    drop(large);
    // The short one first, then the long ones by expected duration.
    let first = next(&heard);
    let second = next(&heard);
    let mut both = [first.0, second.0];
    both.sort_unstable();
    assert_eq!(both, [0, 2]);
    assert_eq!(line.counts(), (3, 1, 0));
    drop(small);
    let third = next(&heard);
    assert_eq!(third.0, 1);
    drop((first, second, third));
    assert_eq!(line.counts(), (0, 0, 0));
}

/// A compilation that turns out long gives up its slot for short ones.
#[test]
fn a_place_grows_or_waits_for_a_large_one() {
    let line = Arc::new(Line::new());
    let small = line.enter(SMALL, u64::MAX).unwrap().grown(SMALL, u64::MAX).unwrap();
    let mut large: Vec<Place> = (0..2).map(|_| line.enter(LARGE, u64::MAX).unwrap()).collect();
    assert!(!small.is_large() && large[0].is_large());
    let late = small.grown(LARGE, now_ns()).err().unwrap();
    assert_eq!((late.status, line.counts()), (Status::TimedOut, (2, 0, 0)));
    let same = large.pop().unwrap().grown(LARGE, now_ns()).unwrap();
    drop(large);
    let grown = line.enter(SMALL, u64::MAX).unwrap().grown(LARGE, u64::MAX).unwrap();
    assert!(grown.is_large() && same.is_large());
    assert_eq!(line.counts(), (2, 0, 0));
}

#[test]
fn a_full_line_refuses_and_a_closed_one_sends_away() {
    let line = Arc::new(Line::new());
    let (told, heard) = channel();
    let places: Vec<Place> = (0..3).map(|_| line.enter(SMALL, u64::MAX).unwrap()).collect();
    let watch = Arc::new(Watch::new(u64::MAX, u64::MAX, u64::MAX));
    places[0].begin(&watch);
    (0..64).for_each(|n| come(&line, n, SMALL, &told));
    assert_eq!(line.enter(SMALL, u64::MAX).err().unwrap().status, Status::QueueFull);
    line.close();
    for _ in 0..64 {
        let (_, place) = heard.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(place.err().unwrap().status, Status::Shutdown);
    }
    assert!(watch.is_over(), "what runs is stopped");
    let later = Arc::new(Watch::new(u64::MAX, u64::MAX, u64::MAX));
    places[1].begin(&later);
    assert!(later.is_over());
    assert_eq!(line.enter(SMALL, u64::MAX).err().unwrap().status, Status::Shutdown);
    drop(places);
    line.wait();
    assert_eq!(line.counts(), (0, 0, 0));
}

/// A compilation that runs a second past its time limit keeps its slot; callers are refused instead of
/// waiting for it.
#[test]
fn places_that_are_lost_refuse_at_once() {
    let line = Arc::new(Line::new());
    let places: Vec<Place> = (0..3).map(|_| line.enter(SMALL, u64::MAX).unwrap()).collect();
    let long_over = Arc::new(Watch::new(1, u64::MAX, u64::MAX));
    places.iter().for_each(|place| place.begin(&long_over));
    assert_eq!(line.enter(SMALL, u64::MAX).err().unwrap().status, Status::QueueFull);
}

#[test]
fn memory_is_divided() {
    let line = Arc::new(Line::new());
    let places: Vec<Place> = (0..3).map(|_| line.enter(SMALL, u64::MAX).unwrap()).collect();
    assert_eq!(places[0].claim(1000, 600), 600);
    assert_eq!(places[1].claim(1000, 600), 400);
    assert_eq!(places[2].claim(1000, 600), 0);
    drop(places);
    assert_eq!(line.enter(SMALL, u64::MAX).unwrap().claim(1000, 600), 600);
}
