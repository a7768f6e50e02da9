//! A seeded simulation of the engine's loop: the real hub, core, sequences, scheduler and prefix cache, and a host that
//! does what hosts do, in one thread with a clock that only the simulation moves. Between two turns of the loop, and in
//! the midst of a pass, the host submits, polls, holds what it polled, cancels, releases or does nothing at all; passes
//! fail, panic, give NaN or take long; memory is refused.
//!
//! After every turn the counts of hub and core are found anew. What a request gave is the beginning of what it gives
//! alone, and all of it where it ended by itself. Whenever the loop would rest, each request that is not done has to wait
//! for a time, for a poller, or for memory that the host holds. The scheduler's own decisions are checked one level
//! below, in `tests/all/schedule_simulation`.
//!
//! A world that fails names its seed: `BN_SIM_SEED=7 BN_SIM_STEPS=5000 cargo test --lib engine::simulation::replay` runs
//! it again, and with `BN_SIM_WORLDS=100` those after it.

#[macro_use]
#[path = "../../../tests/all/schedule_simulation/pieces.rs"]
mod pieces;
mod calls;
mod host;
mod machine;
mod request;
#[path = "../../../tests/all/schedule_simulation/rng.rs"]
mod rng;
mod setting;
mod tally;
mod world;

use tally::Tally;
use world::World;

/// Four pieces of these make a million turns.
const WORLDS: u64 = 100;
const TURNS: u64 = 2500;

pieces!(WORLDS, TURNS, Tally::assert_all);
