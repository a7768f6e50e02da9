//! The threads: requests in and events out (`hub`), the step loop (`core`), delivery, statistics, memory, shutdown.

mod calls;
mod choice;
mod grants;
pub mod hub;
mod ids;
mod kv_events;
mod loading;
mod lookup;
mod slots;

mod adapters;
mod answer;
pub mod api;
mod backend;
mod callback;
mod config;
mod core;
mod delivery;
mod drafter;
mod efficiency;
mod embedding;
mod event;
mod free_memory;
mod handle;
mod memory;
mod prompt;
mod recent;
mod scores;
mod sequence;
mod session_file;
mod signal;
mod spans;
mod speculation;
mod stats;
mod tool_calls;

#[cfg(test)]
mod simulation;

pub use handle::{Engine, in_batch};
