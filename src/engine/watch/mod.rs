//! An engine's own reports: statistics, efficiency, rates, spans, and events of the KV cache.

pub(super) mod buckets;
pub(super) mod efficiency;
pub(super) mod kv_events;
pub(super) mod metrics;
pub(super) mod report;
pub(super) mod spans;
pub(super) mod stats;
pub(super) mod table;
