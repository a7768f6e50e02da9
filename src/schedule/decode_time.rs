//! What decode steps took lately, by their rows: few rows cost less, or more, than a formula for all steps says, by what
//! kernels do with them.

use super::Work;
use super::step_time::StepCost;

/// Up to so many rows each number of them is its own size; above, each power of two.
const EXACT: usize = 16;
/// Sizes of up to 65,536 rows.
const SIZES: usize = EXACT + 12;
/// Weight of the newest step of its size.
const NEW: f64 = 1.0 / 16.0;
/// After so many steps without one of its size, the newest counts for all. It never counts for more than half.
const STALE: f64 = 256.0;
/// Steps of a size from which on it is known.
const KNOWN: u32 = 4;

/// Steps of one size: the mean of what they took, and of their work.
#[derive(Clone, Copy, Default)]
struct Size {
    steps: u32,
    /// Of all decode steps, the latest one.
    seen: u64,
    ns: f64,
    positions: f64,
    keys: f64,
    rows: f64,
}

pub struct DecodeTime {
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
    pub fn observe(&mut self, work: Work, ns: f64) {
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

    pub fn knows(&self, rows: u64) -> bool {
        self.sizes[size(rows)].steps >= KNOWN
    }

    /// Nanoseconds of a step of `work`; `cost` says what it takes more than those that ran. Between two known sizes it is on
    /// their line. None where nothing is known of so many rows.
    pub fn of(&self, work: Work, cost: &StepCost) -> Option<f64> {
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

    /// What steps of a size take, with `rows` and with the positions and keys of `work`.
    fn took(&self, at: usize, work: Work, rows: f64, cost: &StepCost) -> Option<f64> {
        let Size { ns, positions, keys, rows: theirs, .. } = self.sizes[at];
        let before = cost.of(1.0, theirs, positions, keys);
        (before > 0.0).then(|| ns * cost.of(1.0, rows, work.positions as f64, work.keys as f64) / before)
    }
}
