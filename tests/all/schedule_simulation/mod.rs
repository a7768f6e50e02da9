//! A seeded simulation of the scheduler and the prefix cache: no threads, a fake clock, a fake memory. Every seed makes a
//! world of its own (block size, blocks, batch, costs, requests) and runs it with cancels, pauses, failed passes and
//! naps. After every step it checks the plan against a plain model of each request, and that each row reads its own
//! sequence's past and nothing else.
//!
//! A world that fails names its seed: `BN_SIM_SEED=7 BN_SIM_STEPS=5000 cargo test --test all schedule_simulation::replay`
//! runs it again, and with `BN_SIM_WORLDS=100` those after it.

#[macro_use]
mod pieces;
mod checks;
mod drafts;
mod memory;
mod model;
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

pieces!(WORLDS, STEPS, |tally: &Tally| tally.assert_all(WORLDS));
