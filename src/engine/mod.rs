//! The threads: inbox, step loop, event delivery, wake handle, stats, shutdown.

mod hub;
mod ids;
mod inbox;

pub mod api;
mod callback;
mod config;
mod core;
mod embedding;
mod event;
mod handle;
mod memory;
mod sequence;
mod signal;
mod stats;

pub use handle::Engine;
