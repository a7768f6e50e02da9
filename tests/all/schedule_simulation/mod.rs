//! A seeded simulation of the scheduler and the prefix cache: no threads, a fake clock, a fake memory. Every seed makes a
//! world of its own (block size, blocks, batch, costs, requests) and runs it with cancels, pauses, failed passes and
//! naps. After every step it checks the plan against a plain model of each request, and that each row reads its own
//! sequence's past and nothing else.
//!
//! A world that fails names its seed: `BN_SIM_SEED=7 BN_SIM_STEPS=5000 cargo test --test all schedule_simulation::replay`
//! runs it again, and with `BN_SIM_WORLDS=100` those after it.

mod checks;
mod memory;
mod model;
mod rng;
mod router;
mod scenarios;
mod sessions;
mod tally;
mod world;

use tally::Tally;
use world::World;

/// Four pieces of these make a million steps.
const WORLDS: u64 = 50;
const STEPS: u64 = 5000;

fn run(first: u64, worlds: u64, steps: u64) -> Tally {
    let mut tally = Tally::default();
    for seed in first..first + worlds {
        tally.add(&World::new(seed).run(steps).0);
    }
    tally
}

fn piece(first: u64) {
    let tally = run(first, WORLDS, STEPS);
    tally.print();
    tally.assert_all(WORLDS);
}

#[test]
fn worlds_1() {
    piece(1_000);
}

#[test]
fn worlds_2() {
    piece(2_000);
}

#[test]
fn worlds_3() {
    piece(3_000);
}

#[test]
fn worlds_4() {
    piece(4_000);
}

/// The same seed runs the same: what replaying a failure depends on.
#[test]
fn replay() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (seed, steps) = (number("BN_SIM_SEED", 1), number("BN_SIM_STEPS", 1000));
    run(seed, number("BN_SIM_WORLDS", 1), steps).print();
    assert_eq!(World::new(seed).run(steps).1, World::new(seed).run(steps).1);
}
