//! `bn_stats` is the engine's `Stats`. The build script gives it to the header from `engine/watch/table.rs`.
#![allow(non_camel_case_types)]

use super::growth::grown;
pub use crate::engine::api::{
    LATENCY_BUCKETS as BN_LATENCY_BUCKETS, LENGTH_BUCKETS as BN_LENGTH_BUCKETS, Latency as bn_latency,
    Lengths as bn_lengths, Stats as bn_stats,
};

grown!(fields bn_stats, bn_stats::FIELDS);
