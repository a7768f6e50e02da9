//! Measured times of recent decode steps, by number of rows. Depending on how kernels handle them, a few rows cost
//! less or more than a formula for all steps predicts.

use super::Work;
use super::step_time::StepCost;

/// Up to this many rows, each number of rows is a size of its own. Above it, there is a size for each power of two.
const EXACT: usize = 16;
/// Number of sizes, which cover up to 65,536 rows.
const SIZES: usize = EXACT + 12;
/// Minimum weight of the newest step of a size.
const NEW: f64 = 1.0 / 16.0;
/// The weight of a step grows by 1/`STALE` with each step since the last one of its size, up to one half.
const STALE: f64 = 256.0;
/// Number of steps after which a size is known.
const KNOWN: u32 = 4;

/// Steps of one size: the means of their times and of their work.
#[derive(Clone, Copy, Default)]
struct Size {
    steps: u32,
    /// Number of the latest step of this size, counted over all decode steps.
    seen: u64,
    ns: f64,
    positions: f64,
    keys: f64,
    rows: f64,
}

pub(super) struct DecodeTime {
    sizes: [Size; SIZES],
    steps: u64,
}

impl Default for DecodeTime {
    fn default() -> Self {
        Self { sizes: [Size::default(); SIZES], steps: 0 }
    }
}

fn size(rows: u64) -> usize {
    match rows as usize {
        rows @ 0..=EXACT => rows.max(1) - 1,
        rows => (EXACT + (rows - 1).ilog2() as usize - EXACT.ilog2() as usize).min(SIZES - 1),
    }
}

impl DecodeTime {
    pub(super) fn observe(&mut self, work: Work, ns: f64) {
        self.steps += 1;
        let size = &mut self.sizes[size(work.rows)];
        let unseen = (self.steps - size.seen) as f64 / STALE;
        size.steps = size.steps.saturating_add(1);
        let new = NEW.max(unseen.min(0.5)).max(1.0 / f64::from(size.steps));
        let means = [&mut size.ns, &mut size.positions, &mut size.keys, &mut size.rows];
        let latest = [ns, work.positions as f64, work.keys as f64, work.rows as f64];
        means.into_iter().zip(latest).for_each(|(mean, latest)| *mean += new * (latest - *mean));
        size.seen = self.steps;
    }

    pub(super) fn knows(&self, rows: u64) -> bool {
        self.sizes[size(rows)].steps >= KNOWN
    }

    /// Nanoseconds of a step of `work`. `cost` scales measured times by the difference in work. Between two known
    /// sizes, the time is interpolated linearly. `None` if nothing is known about this many rows.
    pub(super) fn of(&self, work: Work, cost: &StepCost) -> Option<f64> {
        let at = size(work.rows);
        let known = |at: &usize| self.sizes[*at].steps >= KNOWN;
        if at >= EXACT || known(&at) {
            return known(&at).then(|| self.took(at, work, work.rows as f64, cost)).flatten();
        }
        let above = (at..EXACT).find(known)?;
        let Some(below) = (0..at).rev().find(known) else {
            return self.took(above, work, work.rows as f64, cost);
        };
        let took = |at: usize| self.took(at, work, (at + 1) as f64, cost);
        let (few, many) = (took(below)?, took(above)?);
        Some(few + (many - few) * (at - below) as f64 / (above - below) as f64)
    }

    /// Nanoseconds of steps of size `at`, scaled to `rows` rows and to the positions and keys of `work`.
    fn took(&self, at: usize, work: Work, rows: f64, cost: &StepCost) -> Option<f64> {
        let Size { ns, positions, keys, rows: theirs, .. } = self.sizes[at];
        let before = cost.of(1.0, theirs, positions, keys);
        (before > 0.0).then(|| ns * cost.of(1.0, rows, work.positions as f64, work.keys as f64) / before)
    }
}
