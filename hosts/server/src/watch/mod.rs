//! The server's reports of itself: counters, metrics for Prometheus, traces for a collector.
mod collector;
mod counters;
mod endpoint;
mod export;
pub mod metrics;
mod trace;

pub use counters::Counters;
pub use trace::{Trace, Tracer};
