//! What a step will take, learned from those that ran.
//!
//! `ns = fixed + per_row * rows + per_position * positions + per_key * keys`, all at least 0. `positions` sums over the
//! sequences of the step what each has in the cache, which is read once, however many rows attend to it; `keys` sums over
//! the rows the positions that each attends to. Least squares over relative errors with exponential forgetting. The
//! moments are kept apart by the size of the step (a bin per power of two of rows), so that an hour of pure
//! decode doesn't wash out what prompts cost.

/// Weight of the newest step in its bin.
const NEW: f64 = 1.0 / 16.0;
/// Of steps of up to 65,536 rows.
const BINS: usize = 17;
/// Terms of the formula.
const N: usize = 4;
/// Sweeps of coordinate descent per observation; it starts from the last answer.
const SWEEPS: usize = 16;
/// A step counts as at most this many times its prediction: a machine that slept is no trend, and a real
/// one gets through in a few steps.
const OUTLIER: f64 = 4.0;

/// Decode steps of a size from which on their factor counts.
const MEASURED: u32 = 4;

/// Work in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub rows: u64,
    /// Over all sequences, those that the last row attends to.
    pub positions: u64,
    /// Over all rows, the positions that each attends to, its own included.
    pub keys: u64,
}

impl Work {
    /// Rows at positions `start..start + rows` of one sequence.
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

/// Decayed moments of one bin's observations: `xtx` of (1, rows, positions, keys) / ns, and `x` alone, whose target
/// is 1.
#[derive(Clone, Copy, Default)]
struct Moments {
    weight: f64,
    x: [f64; N],
    xtx: [[f64; N]; N],
}

/// Steps all of whose rows gave logits: what they took lately, and for how much work (rows, positions, keys).
#[derive(Clone, Copy, Default)]
struct Decodes {
    steps: u32,
    ns: f32,
    work: [f32; N - 1],
}

/// By the rows: up to 1, 2, 4, 8 and so on, as matrix tiles take them.
fn bin(work: Work) -> usize {
    (work.rows.next_power_of_two().ilog2() as usize).min(BINS - 1)
}

/// What a step, and each unit of its work, costs, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    pub fixed: f64,
    pub per_row: f64,
    pub per_position: f64,
    pub per_key: f64,
}

impl StepCost {
    /// Nanoseconds of the work in all of so many steps.
    pub fn predict(&self, steps: u64, work: Work) -> f64 {
        self.fixed * steps as f64
            + self.per_row * work.rows as f64
            + self.per_position * work.positions as f64
            + self.per_key * work.keys as f64
    }
}

pub struct StepTime {
    bins: [Moments; BINS],
    /// By the rows too.
    decodes: [Decodes; BINS],
    /// In the order of `StepCost`.
    coefficients: [f64; N],
    observations: u64,
}

impl Default for StepTime {
    fn default() -> Self {
        Self {
            bins: [Moments::default(); BINS],
            decodes: [Decodes::default(); BINS],
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

    /// Nanoseconds of a decode step as those of about so many rows took lately: rows of few cost less, or more, than the
    /// formula says, by what kernels do with them. None where there were hardly any such steps.
    pub fn measured(&self, work: Work) -> Option<f64> {
        let decodes = &self.decodes[bin(work)];
        let [fixed, each @ ..] = self.coefficients;
        let parts = each.iter().zip(decodes.work).map(|(ns, n)| ns * f64::from(n));
        // The formula says what this work takes more than theirs.
        let theirs = fixed + parts.sum::<f64>();
        let known = decodes.steps >= MEASURED && theirs > 0.0;
        known.then(|| self.predict(work) * f64::from(decodes.ns) / theirs)
    }

    /// Steps learned from.
    pub fn observations(&self) -> u64 {
        self.observations
    }

    /// The most rows from position `start` on that take at most `ns` more.
    pub fn rows_within(&self, start: u32, ns: f64) -> u32 {
        let StepCost { per_row, per_position, per_key, .. } = self.cost();
        let ns = ns - per_position * f64::from(start);
        if ns <= 0.0 {
            return 0;
        }
        // n rows cost per_key / 2 * n^2 + linear * n: the positive root, in the form that bears per_key = 0.
        let linear = per_row + per_position + per_key * (f64::from(start) + 0.5);
        let rows = 2.0 * ns / (linear + (linear * linear + 2.0 * per_key * ns).sqrt());
        // Saturates: without any cost the quotient is infinite.
        rows as u32
    }

    /// As `observe`; `decodes`: all rows of the step gave logits.
    pub fn observe_step(&mut self, work: Work, decodes: bool, ns: u64) {
        let Some(ns) = self.observe(work, ns).filter(|_| decodes) else { return };
        let decodes = &mut self.decodes[bin(work)];
        decodes.steps = decodes.steps.saturating_add(1);
        let new = (NEW as f32).max(1.0 / decodes.steps as f32);
        decodes.ns += new * (ns as f32 - decodes.ns);
        for (mean, n) in decodes.work.iter_mut().zip([work.rows, work.positions, work.keys]) {
            *mean += new * (n as f32 - *mean);
        }
    }

    /// Learns that `work` took `ns`; what it counts as. A step of no rows or no time says nothing.
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
        // The first steps of a bin count alike.
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
            // Rows first: where the data can't tell, cost is put down to rows.
            for i in [1, 2, 3, 0] {
                let c = &mut self.coefficients;
                let others: f64 = (0..N).filter(|&j| j != i).map(|j| a[i][j] * c[j]).sum();
                c[i] = ((b[i] - others) / a[i][i]).max(0.0);
            }
        }
    }
}
