//! The server's reports of itself: metrics for Prometheus, traces for a collector.
mod collector;
mod endpoint;
mod export;
pub mod metrics;
mod trace;

pub use trace::{Trace, Tracer};
