//! Predicts the time of a step from earlier steps.
//!
//! `ns = fixed + per_row * rows + per_position * positions + per_key * keys`, all coefficients at least 0.
//! `positions` is the sum over the step's sequences of their positions in the cache, each of which is read once,
//! however many rows attend to it. `keys` is the sum over the rows of the positions that each attends to. The fit is
//! least squares over relative errors with exponential forgetting. The moments are kept separately by size of step (a
//! bin per power of two of rows), so that an hour of pure decode does not erase what is known about prompts.

use super::decode_time::DecodeTime;

/// Weight of the newest step in its bin.
const NEW: f64 = 1.0 / 16.0;
/// Number of bins, for steps of up to 65,536 rows.
const BINS: usize = 17;
/// Number of terms of the formula.
const N: usize = 4;
/// Sweeps of coordinate descent per observation, starting from the last solution.
const SWEEPS: usize = 16;
/// The time of a step counts as at most this many times its prediction. So a machine that slept does not distort the
/// fit, while a real change gets through in a few steps.
const OUTLIER: f64 = 4.0;

/// The work of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub rows: u64,
    /// Sum over all sequences of the positions that the last row attends to.
    pub positions: u64,
    /// Sum over all rows of the positions that each attends to, its own included.
    pub keys: u64,
}

impl Work {
    /// The work of rows at positions `start..start + rows` of one sequence.
    pub fn span(start: u32, rows: u32) -> Self {
        let (start, rows) = (u64::from(start), u64::from(rows));
        let positions = if rows == 0 { 0 } else { start + rows };
        Self { rows, positions, keys: rows * start + rows * (rows + 1) / 2 }
    }

    pub fn add(&mut self, other: Work) {
        self.rows += other.rows;
        self.positions += other.positions;
        self.keys += other.keys;
    }

    pub fn sub(&mut self, other: Work) {
        self.rows -= other.rows;
        self.positions -= other.positions;
        self.keys -= other.keys;
    }
}

/// Decayed moments of one bin's observations, for x = (1, rows, positions, keys) / ns with target 1: the means of x
/// and of its products.
#[derive(Clone, Copy, Default)]
struct Moments {
    weight: f64,
    x: [f64; N],
    xtx: [[f64; N]; N],
}

/// Bin by number of rows: up to 1, 2, 4, 8 and so on, like the tiles of matrices.
fn bin(work: Work) -> usize {
    (work.rows.next_power_of_two().ilog2() as usize).min(BINS - 1)
}

/// Nanoseconds of a step itself and of each unit of its work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    pub fixed: f64,
    pub per_row: f64,
    pub per_position: f64,
    pub per_key: f64,
}

impl StepCost {
    /// Nanoseconds of `steps` steps with `work` in all.
    pub fn predict(&self, steps: u64, work: Work) -> f64 {
        self.of(steps as f64, work.rows as f64, work.positions as f64, work.keys as f64)
    }

    pub fn of(&self, steps: f64, rows: f64, positions: f64, keys: f64) -> f64 {
        self.fixed * steps + self.per_row * rows + self.per_position * positions + self.per_key * keys
    }
}

pub struct StepTime {
    bins: [Moments; BINS],
    decodes: DecodeTime,
    /// In the order of the fields of `StepCost`.
    coefficients: [f64; N],
    observations: u64,
}

impl Default for StepTime {
    fn default() -> Self {
        Self {
            bins: [Moments::default(); BINS],
            decodes: DecodeTime::default(),
            coefficients: [0.0; N],
            observations: 0,
        }
    }
}

impl StepTime {
    /// Predicted nanoseconds; 0 before the first observation.
    pub fn predict(&self, work: Work) -> f64 {
        self.cost().predict(1, work)
    }

    pub fn cost(&self) -> StepCost {
        let [fixed, per_row, per_position, per_key] = self.coefficients;
        StepCost { fixed, per_row, per_position, per_key }
    }

    /// Nanoseconds that `work` adds to a step that runs anyway.
    pub fn extra(&self, work: Work) -> f64 {
        self.cost().predict(0, work)
    }

    /// Nanoseconds of a step whose rows all give logits, from recent steps of about as many rows. `None` if there
    /// were hardly any such steps.
    pub fn measured(&self, work: Work) -> Option<f64> {
        self.decodes.of(work, &self.cost())
    }

    /// Whether enough decode steps of about this many rows ran.
    pub fn knows(&self, rows: u64) -> bool {
        self.decodes.knows(rows)
    }

    /// Number of steps learned from.
    pub fn observations(&self) -> u64 {
        self.observations
    }

    /// Maximum number of rows, from position `start` on, that take at most `ns` more.
    pub fn rows_within(&self, start: u32, ns: f64) -> u32 {
        let StepCost { per_row, per_position, per_key, .. } = self.cost();
        let ns = ns - per_position * f64::from(start);
        if ns <= 0.0 {
            return 0;
        }
        // n rows cost per_key / 2 * n^2 + linear * n. This is the positive root, in a form that also works without a
        // `per_key`.
        let linear = per_row + per_position + per_key * (f64::from(start) + 0.5);
        let rows = 2.0 * ns / (linear + (linear * linear + 2.0 * per_key * ns).sqrt());
        // Saturates: without any cost the quotient is infinite.
        rows as u32
    }

    /// Like `observe`. `decodes`: all rows of the step gave logits.
    pub fn observe_step(&mut self, work: Work, decodes: bool, ns: u64) {
        if let Some(ns) = self.observe(work, ns).filter(|_| decodes) {
            self.decodes.observe(work, ns);
        }
    }

    /// Learns that `work` took `ns`, and returns the time that it counts as. Ignores a step without rows or time.
    pub fn observe(&mut self, work: Work, ns: u64) -> Option<f64> {
        if work.rows == 0 || ns == 0 {
            return None;
        }
        let mut ns = ns as f64;
        let predicted = self.predict(work);
        if self.observations >= 8 && predicted > 0.0 {
            ns = ns.min(OUTLIER * predicted);
        }
        self.observations += 1;
        let x = [1.0, work.rows as f64, work.positions as f64, work.keys as f64].map(|x| x / ns);
        let bin = &mut self.bins[bin(work)];
        // The first steps of a bin have equal weights.
        let new = NEW.max(1.0 / (1.0 + bin.weight));
        bin.weight = (bin.weight + 1.0).min(1e6);
        for i in 0..N {
            bin.x[i] += new * (x[i] - bin.x[i]);
            for j in 0..N {
                bin.xtx[i][j] += new * (x[i] * x[j] - bin.xtx[i][j]);
            }
        }
        self.fit();
        Some(ns)
    }

    /// Non-negative least squares over all bins by cyclic coordinate descent.
    fn fit(&mut self) {
        let (mut a, mut b) = ([[0.0; N]; N], [0.0; N]);
        for bin in self.bins.iter().filter(|bin| bin.weight > 0.0) {
            for i in 0..N {
                b[i] += bin.x[i];
                a[i].iter_mut().zip(bin.xtx[i]).for_each(|(sum, x)| *sum += x);
            }
        }
        for _ in 0..SWEEPS {
            // Rows come first: if the data cannot tell, the cost is attributed to rows.
            for i in [1, 2, 3, 0] {
                let c = &mut self.coefficients;
                let others: f64 = (0..N).filter(|&j| j != i).map(|j| a[i][j] * c[j]).sum();
                c[i] = ((b[i] - others) / a[i][i]).max(0.0);
            }
        }
    }
}
