//! Compilations that are stopped, refused or made to wait.

use super::hostile_random;
use super::hostile_tests::many_lookups;
use super::tests::{grammars, plain, vocabulary};
use super::{ConstraintKind, Grammars, uncounted};
use crate::base::clock::now_ns;
use crate::base::{Result, Status};
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Timeout for operations that end within ten seconds, on a machine with other load.
const HANGS: Duration = Duration::from_secs(30);

/// A schema that makes thousands of tables.
fn slow(stem: &str) -> String {
    let patterns = (0..200).map(|n| (format!("^(a|b)*{stem}{n}$"), json!(true)));
    json!({"patternProperties": Value::Object(patterns.collect::<Map<_, _>>())}).to_string()
}

fn guide(grammars: &Grammars, kind: ConstraintKind, text: &str, until_ns: u64) -> Result<()> {
    grammars.guide(vocabulary(), &plain(kind, text), until_ns, &uncounted).map(drop)
}

/// Waits until no compilation runs or waits, and no thread is left.
fn rests(grammars: &Grammars) {
    let begun = Instant::now();
    while grammars.compiling() != (0, 0, 0) {
        assert!(begun.elapsed() < HANGS, "{:?}", grammars.compiling());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_request_whose_time_is_up_frees_its_thread() {
    let grammars = grammars();
    let error = guide(&grammars, ConstraintKind::JsonSchema, &slow("x"), now_ns() + 5_000_000).unwrap_err();
    assert_eq!(error.status, Status::TimedOut, "{error}");
    rests(&grammars);
    assert_eq!(grammars.totals().compiled.load(Ordering::Relaxed), 0);
}

/// Reading needs a slot, and ends when the caller's time is up.
#[test]
fn reading_ends_when_the_time_is_up() {
    let (grammars, text, begun) = (grammars(), many_lookups(), Instant::now());
    let error = guide(&grammars, ConstraintKind::JsonSchema, &text, now_ns() + 300_000_000).unwrap_err();
    assert_eq!(error.status, Status::TimedOut, "{error}");
    assert!(begun.elapsed() < HANGS);
    rests(&grammars);
}

#[test]
fn the_end_of_an_engine_stops_what_is_read() {
    let (grammars, text, begun) = (grammars(), many_lookups(), Instant::now());
    thread::scope(|scope| {
        let caller = scope.spawn(|| guide(&grammars, ConstraintKind::JsonSchema, &text, u64::MAX));
        while grammars.compiling().0 == 0 {
            assert!(begun.elapsed() < HANGS && !caller.is_finished(), "reading has no place");
            thread::yield_now();
        }
        grammars.stop();
        assert_eq!(caller.join().unwrap().unwrap_err().status, Status::Shutdown);
    });
}

#[test]
fn the_end_of_an_engine_stops_what_compiles() {
    let grammars = grammars();
    thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|n| {
                let text = slow(&"x".repeat(n + 1));
                let grammars = &grammars;
                scope.spawn(move || guide(grammars, ConstraintKind::JsonSchema, &text, u64::MAX))
            })
            .collect();
        while grammars.compiling().0 == 0 {
            thread::yield_now();
        }
        grammars.stop();
        let ended: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
        assert!(ended.iter().flatten().count() < 8, "some were stopped");
        for error in ended.into_iter().filter_map(Result::err) {
            assert_eq!(error.status, Status::Shutdown, "{error}");
        }
    });
    assert_eq!(grammars.compiling(), (0, 0, 0));
    let after = guide(&grammars, ConstraintKind::Regex, "a", u64::MAX).unwrap_err();
    assert_eq!(after.status, Status::Shutdown);
}

#[test]
fn without_room_nothing_is_compiled() {
    let narrow = Grammars::new(1, u64::MAX, || Some(8 << 20));
    let error = guide(&narrow, ConstraintKind::Regex, "a+", u64::MAX).unwrap_err();
    assert!(error.status == Status::OutOfMemory && error.message.contains("are free"), "{error}");
    // A small grammar needs little; a large one is limited to the free memory.
    let modest = Grammars::new(1, u64::MAX, || Some(40 << 20));
    guide(&modest, ConstraintKind::Regex, "a+", u64::MAX).unwrap();
    let greedy = "(a?b?)".repeat(1500);
    let error = guide(&modest, ConstraintKind::Regex, &greedy, u64::MAX).unwrap_err();
    assert!(error.message.contains("too"), "{error}");
    guide(&modest, ConstraintKind::JsonSchema, &format!("{}1", " ".repeat(200_000)), u64::MAX)
        .map_err(|error| assert_eq!(error.status, Status::OutOfMemory))
        .unwrap_err();
    [narrow, modest].iter().for_each(Grammars::stop);
}

/// The bytes of a grammar count until its last user is gone.
#[test]
fn held_bytes_come_and_go() {
    let tight = Grammars::new(1, 8 << 20, || None);
    let held = |grammars: &Grammars| grammars.totals().held.bytes();
    let text = |n: usize| format!("x{n}[a-z]{{1,{}}}", n + 1);
    let mut last = None;
    for n in 0..20 {
        let text = text(n);
        let constraint = plain(ConstraintKind::Regex, &text);
        last = Some(tight.guide(vocabulary(), &constraint, u64::MAX, &uncounted).unwrap());
        assert!(held(&tight) > 0 && held(&tight) <= 2 << 20, "{}: an eighth, and one in use", held(&tight));
    }
    drop(last);
    let mut kept = None;
    let alone = Grammars::new(1, 8, || None);
    for _ in 0..2 {
        let constraint = plain(ConstraintKind::Regex, "a");
        kept = Some(alone.guide(vocabulary(), &constraint, u64::MAX, &uncounted).unwrap());
    }
    // The grammar is too large to be kept, so each request compiles its own.
    assert_eq!(alone.totals().compiled.load(Ordering::Relaxed), 2);
    assert!(held(&alone) > 0);
    drop(kept);
    alone.stop();
    assert_eq!(held(&alone), 0);
}

/// Each grammar is compiled or refused, and leaves nothing behind. Those that compile also compute masks.
fn hostile(seeds: std::ops::Range<u64>) {
    let grammars = grammars();
    let (mut slowest, mut slowest_mask) = ((Duration::ZERO, 0), (Duration::ZERO, 0));
    let (mut compiled, mut refused) = (0, 0);
    for seed in seeds {
        let (kind, text) = hostile_random::grammar(seed);
        let begun = Instant::now();
        let made = grammars.guide(vocabulary(), &plain(kind, &text), u64::MAX, &uncounted);
        slowest = slowest.max((begun.elapsed(), seed));
        let Ok(mut guide) = made else {
            let error = made.err().unwrap();
            assert_eq!(error.status, Status::InvalidArgument, "seed {seed}: {error}");
            refused += 1;
            continue;
        };
        compiled += 1;
        for n in 0..50 {
            let begun = Instant::now();
            // An error ends only that request.
            let Ok(mask) = guide.mask() else { break };
            let allowed: Vec<u32> =
                (0..256).filter(|token| mask.bits()[*token as usize / 32] >> (token % 32) & 1 == 1).collect();
            let Some(&token) = allowed.get(n * 7 % allowed.len().max(1)) else { break };
            slowest_mask = slowest_mask.max((begun.elapsed(), seed));
            if guide.push(token).is_err() {
                break;
            }
        }
    }
    rests(&grammars);
    let held = grammars.totals().held.bytes();
    grammars.stop();
    println!(
        "{compiled} compiled, {refused} refused; slowest {slowest:?}, mask {slowest_mask:?}; {held} bytes held"
    );
    assert!(compiled > 0 && refused > 0 && held <= 136 << 20);
    assert!(slowest.0 < HANGS && slowest_mask.0 < HANGS);
}

#[test]
fn hostile_grammars_are_compiled_or_refused() {
    hostile(0..40);
}

/// `cargo test --release --lib constrain::compile_tests -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn a_thousand_hostile_grammars() {
    hostile(0..1000);
}
