//! Measures how well batching works, and its limits.

pub use crate::schedule::{HeldBack, StepCost};
use crate::schedule::{Plan, StepTime, Work};

/// Sums over all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Efficiency {
    pub step_ns: u64,
    /// Part of `step_ns` that prompts took.
    pub prefill_ns: u64,
    /// Minimum and maximum number of rows of a step; 0 before the first.
    pub rows: (u64, u64),
    /// Steps with decode rows, those that took longer than `max_step_ms`, and the work of the decode rows.
    pub decode_steps: u64,
    pub long_steps: u64,
    pub decode: Work,
    /// Drafted tokens that were verified, and those that were accepted.
    pub drafted: u64,
    pub accepted: u64,
    /// The cost that was learned last.
    pub cost: StepCost,
    /// Number of steps by the reason that held them back, in the order of `HeldBack`.
    pub held_back: [u64; HeldBack::ALL.len()],
}

impl Efficiency {
    /// The sum over replicas. The cost is the mean over the replicas that ran steps.
    pub fn sum(parts: impl Iterator<Item = Self>) -> Self {
        let (mut all, mut learned) = (Self::default(), 0.0);
        for part in parts {
            all.rows = match (all.rows, part.rows) {
                (rows, (_, 0)) | ((_, 0), rows) => rows,
                (a, b) => (a.0.min(b.0), a.1.max(b.1)),
            };
            all.step_ns += part.step_ns;
            all.prefill_ns += part.prefill_ns;
            all.decode_steps += part.decode_steps;
            all.long_steps += part.long_steps;
            all.decode.add(part.decode);
            all.drafted += part.drafted;
            all.accepted += part.accepted;
            all.held_back.iter_mut().zip(part.held_back).for_each(|(all, part)| *all += part);
            if part.rows.1 == 0 {
                continue;
            }
            learned += 1.0;
            let (to, from) = (&mut all.cost, part.cost);
            for (to, from) in [
                (&mut to.fixed, from.fixed),
                (&mut to.per_row, from.per_row),
                (&mut to.per_position, from.per_position),
                (&mut to.per_key, from.per_key),
            ] {
                *to += (from - *to) / learned;
            }
        }
        all
    }

    pub fn step(&mut self, plan: &Plan, step_ns: u64, max_step_ns: u64, learned: &StepTime) {
        let (fewest, most) = self.rows;
        self.rows =
            (if most == 0 { plan.work.rows } else { fewest.min(plan.work.rows) }, most.max(plan.work.rows));
        self.step_ns += step_ns;
        self.decode_steps += u64::from(plan.decode_rows > 0);
        self.long_steps += u64::from(plan.decode_rows > 0 && step_ns > max_step_ns);
        let mut decode = Work::default();
        for entry in plan.entries.iter().filter(|entry| entry.decode) {
            decode.add(Work::span(entry.start, entry.rows));
            self.decode.add(Work::span(entry.start, entry.known()));
            self.drafted += u64::from(entry.drafts);
            self.accepted += u64::from(entry.accepted);
        }
        self.prefill_ns += prefill_ns(plan.work, decode, step_ns, learned);
        self.held_back[plan.held_back as usize] += 1;
        self.cost = learned.cost();
    }

    /// Time of the decode rows one at a time, divided by their time in the batches that ran, both predicted from
    /// the learned cost. None if nothing was decoded, or if all steps had about the same size: then the cost of a
    /// step cannot be told from the cost of its rows.
    pub fn speed_up(&self) -> Option<f64> {
        let together = self.cost.predict(self.decode_steps, self.decode);
        let known = self.decode.rows == self.decode_steps || self.rows.1 >= 2 * self.rows.0;
        (known && together > 0.0).then(|| self.cost.predict(self.decode.rows, self.decode) / together)
    }
}

/// Share of a step's time that its prompts took. Split by the learned cost of the prompts' work and of the decode
/// rows, or by rows while the cost is not known.
fn prefill_ns(all: Work, decode: Work, step_ns: u64, learned: &StepTime) -> u64 {
    let mut prompts = all;
    prompts.sub(decode);
    let (ours, theirs) = match (learned.extra(prompts), learned.extra(decode)) {
        (a, b) if a + b > 0.0 => (a, b),
        _ => (prompts.rows as f64, decode.rows as f64),
    };
    match decode.rows {
        0 => step_ns,
        _ => (step_ns as f64 * ours / (ours + theirs)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{PlanEntry, SeqId};

    #[test]
    fn a_step_is_split_by_what_its_rows_cost() {
        let decode = Work { rows: 4, positions: 4_000, keys: 4_000 };
        let all = Work { rows: 16, positions: 4_100, keys: 4_100 };
        let mut learned = StepTime::default();
        assert_eq!(prefill_ns(all, decode, 1600, &learned), 1200);
        assert_eq!(prefill_ns(decode, decode, 1600, &learned), 0);
        assert_eq!(prefill_ns(all, Work::default(), 1600, &learned), 1600);
        // 1 ms a step, 10 us a row, 1 us a key: 220 us for prompts and 4040 us for the rest.
        for i in 0..600 {
            let keys = [10, 500, 3_000][i % 3];
            let work = Work { rows: [1, 2, 8, 32][i % 4], positions: keys, keys };
            learned.observe(work, 1_000_000 + 10_000 * work.rows + 1_000 * work.keys);
        }
        let share = prefill_ns(all, decode, 1_000_000, &learned) as f64 / 1e6;
        assert!((share / (220.0 / 4260.0) - 1.0).abs() < 0.1, "{share}");
    }

    fn decode(sequences: u32, start: u32) -> Plan {
        let mut plan = Plan { decode_rows: sequences, ..Plan::default() };
        plan.entries.extend((0..sequences).map(|i| PlanEntry::decode(SeqId(i), start)));
        plan.entries.iter().for_each(|entry| plan.work.add(Work::span(entry.start, entry.rows)));
        plan
    }

    #[test]
    fn the_speed_up_follows_from_the_learned_cost() {
        // 8 ms a step, 1 ms a row, 1 us a key.
        let ns = |work: Work| 8_000_000 + 1_000_000 * work.rows + 1_000 * work.keys;
        let (mut learned, mut seen) = (StepTime::default(), Efficiency::default());
        assert_eq!(seen.speed_up(), None);
        for i in 0..600 {
            let plan = decode([8, 4, 2, 1][i % 4], 16 * (i % 7) as u32);
            learned.observe(plan.work, ns(plan.work));
            seen.step(&plan, ns(plan.work), 16_000_000, &learned);
        }
        // The sizes average 3.75 rows of 49 keys. Steps of eight rows take longer than 16 ms.
        assert_eq!((seen.decode_steps, seen.long_steps), (600, 150));
        assert_eq!((seen.decode.rows, seen.rows), (2250, (1, 8)));
        let keys = seen.decode.keys as f64;
        let [alone, together] = [2250.0, 600.0].map(|steps| 8e6 * steps + 1e6 * 2250.0 + 1e3 * keys);
        let speed_up = seen.speed_up().unwrap();
        assert!((speed_up / (alone / together) - 1.0).abs() < 0.05, "{speed_up} of {}", alone / together);
    }

    #[test]
    fn steps_of_one_size_tell_no_speed_up() {
        let (mut learned, mut seen) = (StepTime::default(), Efficiency::default());
        for _ in 0..50 {
            let plan = decode(8, 10);
            learned.observe(plan.work, 1_000_000);
            seen.step(&plan, 1_000_000, 1_000_000, &learned);
        }
        assert_eq!((seen.speed_up(), seen.long_steps), (None, 0));
        let mut alone = Efficiency::default();
        learned.observe(decode(1, 10).work, 500_000);
        alone.step(&decode(1, 10), 500_000, 1_000_000, &learned);
        assert_eq!(alone.speed_up(), Some(1.0));
    }
}
