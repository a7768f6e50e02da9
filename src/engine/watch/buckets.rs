//! The buckets of distributions.

use super::table::{LATENCY_BUCKETS, LENGTH_BUCKETS, Latency, Lengths};

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

/// Samples of a [`Latency`]. Each row of counters divides a bucket evenly; four rows divide the last bucket, up to 80
/// minutes. So percentiles are at most 1.6% too high from 10 us on.
pub(super) struct Samples {
    rows: [Box<[u64; PARTS]>; LATENCY_BUCKETS + 3],
    sum_ns: u64,
}

const PARTS: usize = 128;

/// The bound below a row, and the length of its `PARTS` together.
fn span(row: usize) -> (u64, u64) {
    let last = LATENCY_BOUNDS_NS.len() - 1;
    let bound = |row: usize| LATENCY_BOUNDS_NS[row.min(last)] << row.saturating_sub(last);
    let low = row.checked_sub(1).map_or(0, bound);
    (low, bound(row) - low)
}

impl Default for Samples {
    fn default() -> Self {
        Self { rows: std::array::from_fn(|_| Box::new([0; PARTS])), sum_ns: 0 }
    }
}

impl Samples {
    pub(super) fn record(&mut self, ns: u64) {
        let bucket = LATENCY_BOUNDS_NS.partition_point(|&bound| bound < ns);
        // Only the last bucket has further rows.
        let row = (bucket + 1..self.rows.len()).take_while(|&row| span(row).0 < ns).last().unwrap_or(bucket);
        let (low, len) = span(row);
        let part = ns.saturating_sub(low + 1).min(len - 1) * PARTS as u64 / len;
        self.rows[row][part as usize] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    pub(super) fn latency(&self) -> Latency {
        let mut buckets = [0; LATENCY_BUCKETS];
        for (row, counts) in self.rows.iter().enumerate() {
            buckets[row.min(LATENCY_BUCKETS - 1)] += counts.iter().sum::<u64>();
        }
        let count: u64 = buckets.iter().sum();
        let [p50_ns, p90_ns, p99_ns] = [50, 90, 99].map(|percent| {
            let mut left = (count * percent).div_ceil(100).max(1);
            let reached = |n: &u64| {
                left = left.saturating_sub(*n);
                left == 0
            };
            self.rows.iter().flat_map(|row| row.iter()).position(reached).map_or(0, |at| {
                let (low, len) = span(at / PARTS);
                low + ((at % PARTS + 1) as u64 * len).div_ceil(PARTS as u64)
            })
        });
        Latency { p50_ns, p90_ns, p99_ns, count, sum_ns: self.sum_ns, buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_in_the_bucket_of_the_first_bound_that_holds_it() {
        assert!(LATENCY_BOUNDS_NS.is_sorted_by(|a, b| a < b));
        let mut samples = Samples::default();
        let mut expected = [0; LATENCY_BUCKETS];
        for (i, bound) in LATENCY_BOUNDS_NS.into_iter().enumerate() {
            for ns in [bound - 1, bound, bound + 1] {
                samples.record(ns);
                expected[i + usize::from(ns > bound)] += 1;
            }
        }
        samples.record(0);
        samples.record(u64::MAX);
        (expected[0], expected[LATENCY_BUCKETS - 1]) = (expected[0] + 1, expected[LATENCY_BUCKETS - 1] + 1);
        let latency = samples.latency();
        assert_eq!(latency.buckets, expected);
        assert_eq!(latency.buckets.iter().sum::<u64>(), latency.count);
    }

    #[test]
    fn percentiles_are_close_above_the_samples() {
        let latency = |samples: &[u64]| {
            let mut all = Samples::default();
            samples.iter().for_each(|&ns| all.record(ns));
            all.latency()
        };
        assert_eq!(latency(&[]), Latency::default());
        // The shortest sample of each counter, and the bound of the counter, which is its longest.
        let mut ns = 10_000;
        while ns < 4_800_000_000_000 {
            let (p50_ns, most) = (latency(&[ns]).p50_ns, ns + ns / 64 + 1);
            assert!((ns..=most).contains(&p50_ns), "{p50_ns} for {ns}");
            assert_eq!(latency(&[p50_ns]).p50_ns, p50_ns);
            ns = p50_ns + 1;
        }
        let ranks = latency(&[[1_000_000; 90].as_slice(), &[5_000_000; 9], &[u64::MAX]].concat());
        assert_eq!((ranks.p50_ns, ranks.p90_ns, ranks.p99_ns), (1_000_000, 1_000_000, 5_000_000));
        assert_eq!(latency(&[1, u64::MAX]).p99_ns, 4_800_000_000_000);
    }
}
