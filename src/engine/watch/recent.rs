//! Tokens per second over about the last ten seconds. One slot for each second; no other memory and no timer.

const WINDOW: u64 = 10;
/// A power of two above `WINDOW`.
const SLOTS: u64 = 16;
const SECOND: u64 = 1_000_000_000;

/// Prompt and generated tokens of one second of the clock.
#[derive(Clone, Copy, Default)]
struct Slot {
    second: u64,
    tokens: [u64; 2],
}

#[derive(Default)]
pub struct Recent([Slot; SLOTS as usize]);

impl Recent {
    pub fn add(&mut self, now_ns: u64, prompt: u64, generated: u64) {
        let second = now_ns / SECOND;
        let slot = &mut self.0[(second % SLOTS) as usize];
        // From a thread that has been idle since: its slot serves a later second now.
        if second < slot.second {
            return;
        }
        if slot.second != second {
            *slot = Slot { second, ..Slot::default() };
        }
        slot.tokens[0] += prompt;
        slot.tokens[1] += generated;
    }

    /// Prompt and generated tokens per second, over the last ten whole seconds and the current one. The period is
    /// shorter soon after `made_ns`, but at least one second.
    pub fn per_second(&self, made_ns: u64, now_ns: u64) -> [f64; 2] {
        let last = now_ns / SECOND;
        let first = last.saturating_sub(WINDOW);
        let seconds = now_ns.saturating_sub(made_ns.max(first * SECOND)) as f64 / SECOND as f64;
        let recent = self.0.iter().filter(|slot| (first..=last).contains(&slot.second));
        let sum = recent.fold([0; 2], |sum, slot| [sum[0] + slot.tokens[0], sum[1] + slot.tokens[1]]);
        sum.map(|tokens| tokens as f64 / seconds.max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_past_erases_nothing() {
        let mut recent = Recent::default();
        let at = |second: u64| second * SECOND;
        recent.add(at(20 + SLOTS), 0, 1000);
        [0, 20].map(at).into_iter().for_each(|past| recent.add(past, 0, 0));
        assert_eq!(recent.per_second(at(19 + SLOTS), at(20 + SLOTS))[1], 1000.0);
    }

    /// 100 prompt and 200 generated tokens a second, in four parts.
    fn busy(from_ns: u64, seconds: u64) -> Recent {
        let mut recent = Recent::default();
        (0..4 * seconds).for_each(|i| recent.add(from_ns + i * SECOND / 4, 25, 50));
        recent
    }

    #[test]
    fn a_steady_load_has_its_rate() {
        let made = 7_000 * SECOND;
        for seconds in [1, 3, 10, 11, 40] {
            assert_eq!(
                busy(made, seconds).per_second(made, made + seconds * SECOND),
                [100.0, 200.0],
                "{seconds}"
            );
        }
    }

    #[test]
    fn the_first_second_counts_as_one() {
        let made = 7_000 * SECOND;
        assert_eq!(busy(made, 1).per_second(made, made + SECOND / 2), [100.0, 200.0]);
    }

    #[test]
    fn what_is_long_ago_does_not_count() {
        let (made, recent) = (5 * SECOND, busy(5 * SECOND, 20));
        assert_eq!(recent.per_second(made, 30 * SECOND), [50.0, 100.0]);
        assert_eq!(recent.per_second(made, 35 * SECOND), [0.0, 0.0]);
        // The slot of this second was used sixteen seconds ago.
        assert_eq!(recent.per_second(made, 37 * SECOND), [0.0, 0.0]);
    }
}
