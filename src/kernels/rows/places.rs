//! Passes over the keys that order a row of logits, which find places in the order. All instruction sets give
//! the same bits.

#![allow(clippy::needless_range_loop)] // lanes, which compilers turn into vectors

use super::logits::{LANES, PART, Scale, TOP, filled};
use crate::kernels::simd::dispatch::by_isa;

/// Number of sums that `pile` makes: one for the keys above the range, the others for its parts.
pub const PILES: usize = 1024;

by_isa!(
    /// Adds the weight of each logit to the pile of its key, the key at the same index. Without a `scale`, each key
    /// that is not -infinity counts 1.
    pub fn pile(keys: &[f32], logits: &[f32], scale: Option<Scale>, range: Range, piles: &mut [f64; PILES]) = pile_in
);

by_isa!(
    /// Writes the indices of the keys between two places, both included, to `out` in ascending order. Returns their
    /// number. `out` has room for all keys; `tops` are the tops of `keys`.
    pub fn between(keys: &[f32], tops: &[f32], first: OrderKey, last: OrderKey, out: &mut [u32]) -> usize = between_in
);

/// A place in an order: greater keys come first; equal keys stay in the order of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderKey(u64);

impl OrderKey {
    pub const FIRST: Self = Self::new(f32::INFINITY, 0);
    pub const LAST: Self = Self::new(f32::NEG_INFINITY, u32::MAX);

    /// `key` is not NaN.
    #[inline(always)]
    pub const fn new(key: f32, at: u32) -> Self {
        Self((!ascending(key) as u64) << 32 | at as u64)
    }

    #[inline(always)]
    pub fn key(self) -> f32 {
        from_ascending(!((self.0 >> 32) as u32))
    }

    #[inline(always)]
    pub fn at(self) -> usize {
        self.0 as u32 as usize
    }
}

/// Maps floats to integers in the same order; both zeros map to the same integer.
#[inline(always)]
const fn ascending(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    bits ^ ((bits as i32 >> 31) as u32 | 1 << 31)
}

#[inline(always)]
fn from_ascending(number: u32) -> f32 {
    f32::from_bits(number ^ ((!number as i32 >> 31) as u32 | 1 << 31))
}

/// Divides the keys below `high` into `PILES - 1` parts of equal width, except that the first is half as wide and the
/// last has no lower bound.
#[derive(Clone, Copy)]
pub struct Range {
    high: f32,
    parts: f32,
}

impl Range {
    /// `width` is above 0. The last part holds all lower keys.
    pub fn new(high: f32, width: f32) -> Self {
        Self { high, parts: ((PILES - 2) as f32 / width).min(f32::MAX) }
    }

    /// The pile of a key: 0 from `high` up, then ascending as keys descend.
    #[inline(always)]
    fn pile(self, key: f32) -> u32 {
        /// Adding it rounds to an integer, which is then in the low bits.
        const ROUND: f32 = 8_388_608.0;
        let part = (self.high - key) * self.parts;
        let part = if part < (PILES - 2) as f32 { part } else { (PILES - 2) as f32 };
        let number = (part + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(1);
        if key < self.high { number } else { 0 }
    }

    /// The least key in the piles up to this one, which must not be the last.
    pub fn least(self, pile: usize) -> f32 {
        // Piles ascend as keys descend.
        let (mut low, mut high) = (ascending(f32::NEG_INFINITY), ascending(f32::INFINITY));
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match self.pile(from_ascending(middle)) as usize <= pile {
                true => high = middle,
                false => low = middle,
            }
        }
        from_ascending(high)
    }
}

#[inline(always)]
fn pile_in(keys: &[f32], logits: &[f32], scale: Option<Scale>, range: Range, piles: &mut [f64; PILES]) {
    for (keys, logits) in keys.chunks(PART).zip(logits.chunks(PART)) {
        let (mut numbers, mut weights) = ([0; PART], [0.0; PART]);
        for (number, key) in numbers.iter_mut().zip(keys) {
            *number = range.pile(*key);
        }
        match scale {
            Some(scale) => {
                for (weight, logit) in weights.iter_mut().zip(logits) {
                    *weight = scale.weight(*logit);
                }
            }
            None => {
                for (weight, key) in weights.iter_mut().zip(keys) {
                    *weight = if *key >= f32::MIN { 1.0 } else { 0.0 };
                }
            }
        }
        for (number, weight) in numbers.iter().zip(weights).take(keys.len()) {
            piles[*number as usize % PILES] += f64::from(weight);
        }
    }
}

#[inline(always)]
fn between_in(keys: &[f32], tops: &[f32], first: OrderKey, last: OrderKey, out: &mut [u32]) -> usize {
    let mut count = 0;
    for ((from, keys), top) in (0..).step_by(TOP).zip(keys.chunks(TOP)).zip(tops) {
        if *top < last.key() {
            continue;
        }
        let (mut flags, mut sums) = ([[0; LANES]; TOP / LANES], [0; LANES]);
        let (whole, rest) = keys.as_chunks::<LANES>();
        for (n, keys) in whole.iter().enumerate() {
            flags[n] = flag(keys, from + (n * LANES) as u32, first, last);
            for i in 0..LANES {
                sums[i] += flags[n][i];
            }
        }
        if !rest.is_empty() {
            flags[whole.len()] = flag(&filled(rest), from + (whole.len() * LANES) as u32, first, last);
        }
        let all: u32 = sums.iter().sum();
        // Most parts of a row have no key in a narrow range.
        if all == 0 && rest.is_empty() {
            continue;
        }
        let out = &mut out[count..count + keys.len()];
        if all == TOP as u32 {
            for i in 0..TOP {
                out[i] = from + i as u32;
            }
            count += TOP;
            continue;
        }
        // The flag is added, not tested: compilers would turn a condition into branches.
        let mut found = 0;
        for (at, flag) in (from..).zip(&flags.as_flattened()[..keys.len()]) {
            out[found] = at;
            found += *flag as usize;
        }
        count += found;
    }
    count
}

/// 1 for each key whose place is between `first` and `last`.
#[inline(always)]
fn flag(keys: &[f32; LANES], from: u32, first: OrderKey, last: OrderKey) -> [u32; LANES] {
    let (high, low, mut flags) = (first.key(), last.key(), [0; LANES]);
    for i in 0..LANES {
        let at = from + i as u32;
        let behind = (keys[i] < high) | (keys[i] == high) & (at >= first.at() as u32);
        flags[i] = u32::from(behind & ((keys[i] > low) | (keys[i] == low) & (at <= last.at() as u32)));
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::rows::logits::tops;
    use crate::kernels::{Isa, available};

    /// Few distinct values, with impossible ones among them.
    fn some(n: usize) -> Vec<f32> {
        (0..n).map(|i| [f32::NEG_INFINITY, -0.0, 0.0, 1.5, -3.0, 2.0, f32::MIN][i * i % 7]).collect()
    }

    #[test]
    fn places_sort_by_key_then_by_position() {
        let keys =
            [f32::INFINITY, f32::MAX, 1.0, f32::MIN_POSITIVE, 0.0, -1e-40, -1.0, f32::MIN, f32::NEG_INFINITY];
        let places: Vec<OrderKey> =
            keys.iter().flat_map(|key| [OrderKey::new(*key, 3), OrderKey::new(*key, 4)]).collect();
        assert!(places.is_sorted());
        assert!(places.iter().zip(&places[1..]).all(|(a, b)| a < b));
        assert!(places.iter().all(|place| OrderKey::FIRST <= *place && *place <= OrderKey::LAST));
        for (place, n) in places.iter().zip(0..) {
            assert_eq!((place.key(), place.at()), (keys[n / 2], 3 + n % 2));
        }
        assert_eq!(OrderKey::new(-0.0, 7), OrderKey::new(0.0, 7));
    }

    #[test]
    fn between_is_a_filter() {
        for n in [1, 15, 16, 17, 127, 128, 129, 500] {
            let keys = some(n);
            let mut key_tops = vec![0.0; n.div_ceil(TOP)];
            tops(Isa::Scalar, &keys, &mut key_tops);
            let middle = n as u32 / 2;
            let ends = [
                OrderKey::FIRST,
                OrderKey::new(2.0, middle),
                OrderKey::new(0.0, middle),
                OrderKey::new(-3.0, 0),
                OrderKey::LAST,
            ];
            for (first, last) in ends.iter().flat_map(|first| ends.iter().map(move |last| (*first, *last))) {
                let is_between = |at: &u32| (first..=last).contains(&OrderKey::new(keys[*at as usize], *at));
                let want: Vec<u32> = (0..n as u32).filter(is_between).collect();
                for isa in available() {
                    let mut out = vec![0; n];
                    let count = between(*isa, &keys, &key_tops, first, last, &mut out);
                    assert_eq!(out[..count], want, "{isa:?} {n} {first:?} {last:?}");
                }
            }
        }
    }

    #[test]
    fn piles_are_parts_of_the_order_and_hold_all() {
        let keys: Vec<f32> =
            (0..1000).map(|i| ((i * 619) % 1000) as f32 * 0.01 - 5.0).chain(some(50)).collect();
        let scale = Scale::new(5.0, 2.0);
        for (high, width) in
            [(5.1, 10.0), (1.0, 0.5), (-2.0, 1e-30), (0.0, f32::MAX), (f32::MAX, 1.0), (2.0, f32::INFINITY)]
        {
            let range = Range::new(high, width);
            let mut numbers = [0.0; PILES];
            pile(Isa::Scalar, &keys, &keys, None, range, &mut numbers);
            let mut above = 0.0;
            for (n, number) in numbers.iter().enumerate().take(PILES - 1) {
                above += number;
                let reach = keys.iter().filter(|key| **key >= range.least(n)).count();
                assert_eq!(above, reach as f64, "{high} {width} {n}");
            }
            let possible = keys.iter().filter(|key| **key >= f32::MIN).count();
            assert_eq!(numbers.iter().sum::<f64>(), possible as f64);
            let mut masses = [0.0; PILES];
            pile(Isa::Scalar, &keys, &keys, Some(scale), range, &mut masses);
            let mass: f64 = keys.iter().map(|key| f64::from(scale.weight(*key))).sum();
            assert!((masses.iter().sum::<f64>() / mass - 1.0).abs() < 1e-12);
            for isa in available() {
                let mut same = [0.0; PILES];
                pile(*isa, &keys, &keys, Some(scale), range, &mut same);
                assert_eq!(same.map(f64::to_bits), masses.map(f64::to_bits), "{isa:?}");
            }
        }
    }
}
