//! The server's reports of itself: counters, metrics for Prometheus, traces for a collector.
mod collector;
mod counters;
mod data;
mod endpoint;
mod export;
pub mod metrics;
mod spans;
mod trace;

pub use counters::Counters;
pub use trace::{Trace, Tracer};
