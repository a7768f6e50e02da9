//! The buckets of distributions.

use super::table::{LATENCY_BUCKETS, LENGTH_BUCKETS, Lengths};

/// Upper bounds of the buckets of a [`Latency`], inclusive, in nanoseconds: 1, 2.5 and 5 of each decade from 10 us
/// on, 100 s and 300 s. One more bucket counts larger samples.
pub const LATENCY_BOUNDS_NS: [u64; 23] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    25_000_000_000,
    50_000_000_000,
    100_000_000_000,
    300_000_000_000,
];
const _: () = assert!(LATENCY_BUCKETS == LATENCY_BOUNDS_NS.len() + 1);

/// Upper bounds of the buckets of [`Lengths`], inclusive, in tokens: 1, 2 and 5 of each decade up to a million.
/// One more bucket counts larger samples.
pub const LENGTH_BOUNDS: [u64; 19] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000,
];
const _: () = assert!(LENGTH_BUCKETS == LENGTH_BOUNDS.len() + 1);

impl Lengths {
    pub fn record(&mut self, tokens: u64) {
        self.count += 1;
        self.sum += tokens;
        self.buckets[LENGTH_BOUNDS.partition_point(|&bound| bound < tokens)] += 1;
    }
}
