//! An engine's own reports: statistics, efficiency, rates, spans, and events of the KV cache.

pub mod buckets;
pub mod efficiency;
pub mod kv_events;
pub mod metrics;
pub mod report;
pub mod spans;
pub mod stats;
pub mod table;
