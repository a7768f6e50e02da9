//! The threads: requests in and events out (`hub`), the step loop (`core`), delivery, statistics, memory,
//! shutdown.

pub mod api;
mod core;
mod delivery;
mod handle;
pub mod hub;
mod memory;
mod replicas;
mod request;
pub(crate) mod settings;
mod watch;

#[cfg(test)]
mod simulation;

pub use handle::loading::open_model;
pub use handle::{Engine, MAX_OPTIONS, MAX_PICTURES, MAX_QUESTIONS, in_batch};
