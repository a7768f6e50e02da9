//! A seeded simulation of the engine's loop: the real hub, core, sequences, scheduler and prefix cache, and a
//! host, all in one thread, with a clock that only the simulation moves. Between two turns of the loop, and in the
//! middle of a pass, the host submits, polls, keeps polled events, cancels, releases or does nothing at all.
//! Passes fail, panic, return NaN or take long; memory is refused.
//!
//! After every turn, the counts of hub and core are recomputed and compared. The output of a request must be a
//! prefix of its output alone, and all of it if the request ended by itself. Whenever the loop would rest, each
//! unfinished request must be waiting for a time, for a poller, or for memory that the host holds. The scheduler's
//! own decisions are checked one level below, in `tests/all/schedule_simulation`.
//!
//! A failing world names its seed: `BN_SIM_SEED=7 BN_SIM_STEPS=5000 cargo test --lib engine::simulation::replay`
//! runs it again, and with `BN_SIM_WORLDS=100` also the worlds after it.

#[macro_use]
#[path = "../../../tests/all/schedule_simulation/pieces.rs"]
mod pieces;
mod asides;
mod calls;
mod disk;
mod faults;
mod host;
mod machine;
mod pictures;
mod recurrent;
mod request;
mod setting;
mod tally;
mod world;

use tally::Tally;
use world::World;

/// Four pieces of this size make a million turns.
const WORLDS: u64 = 100;
const TURNS: u64 = 2500;

pieces!(WORLDS, TURNS, Tally::assert_all);
