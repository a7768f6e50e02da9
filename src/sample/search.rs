//! Finds how far down an order a share of a distribution reaches, without sorting it.

use super::left::Lists;
use crate::kernels::Isa;
use crate::kernels::rows::logits::Scale;
use crate::kernels::rows::places::{OrderKey, PILES, Range, between, pile};

/// Keys and the logits that they belong to. The key of an impossible token is -infinity.
pub(super) struct Search<'a> {
    pub isa: Isa,
    pub keys: &'a [f32],
    /// The greatest of each `TOP` keys.
    pub tops: &'a [f32],
    pub logits: &'a [f32],
    /// Computes weights from logits. `None`: each token weighs 1.
    pub scale: Option<Scale>,
}

/// Maximum number of places that are sorted.
const FEW: usize = 2048;
/// Number of keys that are sampled to represent all.
const SAMPLES: usize = 256;
/// Maximum number of passes over all keys. Each narrows a common distribution to about a thousandth.
const PASSES: usize = 4;

impl Search<'_> {
    /// The last of the fewest leading places that together weigh at least `wanted`, or `LAST`. `guess` is the number
    /// of places that may be enough.
    pub(super) fn reach(&self, wanted: f64, guess: usize, lists: &mut Lists) -> OrderKey {
        let (mut high, mut sum) = (f32::INFINITY, 0.0);
        if guess.min(self.keys.len()) <= FEW {
            let bar = if self.keys.len() <= FEW { f32::MIN } else { self.bar(guess, &mut lists.sorted) };
            if self.list(bar, high, FEW, lists) {
                if let Some(place) = self.cut(&mut sum, wanted, &mut lists.sorted) {
                    return place;
                }
                high = bar;
            }
        }
        self.narrow(wanted, high, &mut sum, lists);
        let place = self.cut(&mut sum, wanted, &mut lists.sorted);
        // Sums in another order may be slightly smaller, so the place may be missing.
        place.or(lists.sorted.last().copied()).unwrap_or(OrderKey::LAST)
    }

    /// Writes the first `count` places to `lists.sorted`, in order. Impossible tokens come last.
    pub(super) fn first(&self, count: usize, lists: &mut Lists) {
        lists.sorted.clear();
        if count == 0 {
            return;
        }
        let last = self.reach(count as f64, count, lists);
        self.list(last.key().max(f32::MIN), f32::INFINITY, usize::MAX, lists);
        let list = &mut lists.sorted;
        list.sort_unstable();
        let impossible = (0..).zip(self.keys).filter(|(_, key)| **key < f32::MIN);
        let missing = count.saturating_sub(list.len());
        list.extend(impossible.take(missing).map(|(at, &key)| OrderKey::new(key, at)));
        list.truncate(count);
    }

    /// A key that at least `count` keys reach, if there are as many possible tops.
    fn bar(&self, count: usize, list: &mut Vec<OrderKey>) -> f32 {
        list.clear();
        let possible = (0..).zip(self.tops).filter(|(_, top)| **top > f32::MIN);
        list.extend(possible.map(|(at, &top)| OrderKey::new(top, at)));
        let last = count.clamp(1, list.len().max(1)) - 1;
        if list.is_empty() { f32::MIN } else { list.select_nth_unstable(last).1.key() }
    }

    /// A key that about three quarters of the possible keys reach.
    fn lower_quarter(&self, list: &mut Vec<OrderKey>) -> f32 {
        list.clear();
        let some = self.keys.iter().step_by(self.keys.len().div_ceil(SAMPLES));
        list.extend(some.filter(|key| **key > f32::MIN).map(|key| OrderKey::new(*key, 0)));
        let quarter = list.len() * 3 / 4;
        if list.is_empty() { f32::INFINITY } else { list.select_nth_unstable(quarter).1.key() }
    }

    /// Writes the places with keys from `low` to below `high` to `lists.sorted`. False if there are more than `most`.
    fn list(&self, low: f32, high: f32, most: usize, lists: &mut Lists) -> bool {
        let Lists { sorted, kept } = lists;
        let (first, last) = (OrderKey::new(high.next_down(), 0), OrderKey::new(low, u32::MAX));
        let count = between(self.isa, self.keys, self.tops, first, last, kept);
        sorted.clear();
        if count > most {
            return false;
        }
        sorted.extend(kept[..count].iter().map(|at| OrderKey::new(self.keys[*at as usize], *at)));
        true
    }

    /// Sorts `list`, and finds the place where `sum` plus its weights reaches `wanted`.
    fn cut(&self, sum: &mut f64, wanted: f64, list: &mut [OrderKey]) -> Option<OrderKey> {
        list.sort_unstable();
        list.iter().copied().find(|place| {
            *sum += self.scale.map_or(1.0, |scale| f64::from(scale.weight(self.logits[place.at()])));
            *sum >= wanted
        })
    }

    /// Given the weight `sum` of all places from `high` on, writes places among which `wanted` is reached to
    /// `lists.sorted`.
    /// There are few, unless many keys are equal.
    fn narrow(&self, wanted: f64, mut high: f32, sum: &mut f64, lists: &mut Lists) {
        let greatest = self.tops.iter().copied().fold(f32::MIN, f32::max);
        // Twice the range of the upper three quarters, which is all of a normal distribution.
        let mut width = 2.0 * (greatest - self.lower_quarter(&mut lists.sorted).min(greatest));
        let mut low = f32::MIN;
        high = high.min(greatest.next_up());
        for _ in 0..PASSES {
            let range = Range::new(high, if width > 0.0 { width } else { 1.0 });
            let mut piles = [0.0; PILES];
            pile(self.isa, self.keys, self.logits, self.scale, range, &mut piles);
            let mut number = 1;
            while number < PILES && *sum + piles[number] < wanted {
                *sum += piles[number];
                number += 1;
            }
            if number == PILES {
                return lists.sorted.clear();
            }
            high = if number > 1 { range.least(number - 1) } else { high };
            (low, width) = match number < PILES - 1 {
                true => (range.least(number), high - range.least(number)),
                false => (low, 64.0 * width),
            };
            if self.list(low, high, FEW, lists) {
                return;
            }
        }
        self.list(low, high, usize::MAX, lists);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::isa;
    use crate::kernels::rows::logits::{TOP, tops};
    use crate::sample::philox::uniform;

    /// Keys of rows of all kinds that are hard to divide.
    fn key(kind: u64, seed: u64, at: u64) -> f32 {
        let x = uniform(seed, at, 0) as f32;
        match kind {
            0 => x,
            1 => 7.0,
            2 => (3.0 * x).floor(),
            3 => (80.0 * x - 40.0).exp2(),
            4 if x < 0.9 => f32::NEG_INFINITY,
            5 if x < 0.7 => f32::MIN,
            6 if at > 0 => 1e-3 * x,
            _ => 20.0 * x,
        }
    }

    #[test]
    fn what_is_reached_is_what_a_sort_reaches() {
        for seed in 0..160 {
            let (kind, size) = (seed % 8, [100, 3_000, 9_000][seed as usize / 8 % 3]);
            let keys: Vec<f32> = (0..size).map(|at| key(kind, seed, at)).collect();
            let mut key_tops = vec![0.0; keys.len().div_ceil(TOP)];
            tops(isa(), &keys, &mut key_tops);
            let max = key_tops.iter().copied().fold(f32::MIN, f32::max);
            let mut sorted: Vec<OrderKey> =
                (0..).zip(&keys).map(|(at, &key)| OrderKey::new(key, at)).collect();
            sorted.sort();
            sorted.retain(|place| place.key() >= f32::MIN);
            let mut lists = Lists { sorted: Vec::new(), kept: vec![0; keys.len()] };
            for scale in [None, Some(Scale::new(max, 5.0))] {
                let weight =
                    |place: &OrderKey| scale.map_or(1.0, |scale| f64::from(scale.weight(place.key())));
                let mass: f64 = sorted.iter().map(weight).sum();
                let search = Search { isa: isa(), keys: &keys, tops: &key_tops, logits: &keys, scale };
                for n in 1..6 {
                    let share = uniform(seed, n, 1);
                    let wanted = if scale.is_some() { share * mass } else { (share * mass).ceil() };
                    let got = search.reach(wanted, [1, 200, 5000][n as usize % 3], &mut lists);
                    let to = sorted.binary_search(&got).unwrap();
                    let before: f64 = sorted[..to].iter().map(weight).sum();
                    let what = format!("seed {seed}, {wanted} of {mass}: {to}");
                    assert!(before < wanted * (1.0 + 1e-9), "{what}, {before}");
                    assert!(before + weight(&got) > wanted * (1.0 - 1e-9), "{what}, {before}");
                }
                assert_eq!(search.reach(1.01 * mass, 200, &mut lists), OrderKey::LAST, "seed {seed}");
            }
            let search = Search { isa: isa(), keys: &keys, tops: &key_tops, logits: &keys, scale: None };
            for count in [0, 1, 40, keys.len(), keys.len() + 1] {
                search.first(count, &mut lists);
                let possible = count.min(sorted.len());
                assert_eq!(lists.sorted[..possible], sorted[..possible], "seed {seed}");
                assert_eq!(lists.sorted.len(), count.min(keys.len()), "seed {seed}");
            }
        }
    }
}
