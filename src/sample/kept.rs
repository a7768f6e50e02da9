//! The tokens of a distribution that filters have kept.

use super::left::{Candidate, Left, Lists, Room, Scratch};
use super::search::Search;
use crate::kernels::Isa;
use crate::kernels::rows::logits::{PART, Scale, TOP, Weighed, closeness, spread, tops, weigh};
use crate::kernels::rows::places::{OrderKey, between};

/// The remaining tokens. Their probabilities are proportional to `e^((logit - max) / temperature)`.
pub struct Kept<'a> {
    isa: Isa,
    left: Left<'a>,
    scratch: &'a mut Scratch,
    /// The greatest remaining logit.
    pub max: f32,
    /// The temperature, which `heat` changes.
    pub temperature: f32,
    /// Weights of these logits at this temperature, along with `Scratch::masses`. `None` before they are computed.
    weighed: Option<Weighed>,
}

/// Order of tokens.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Likely,
    /// The order of `Scratch::keys`.
    Keys,
}

/// Number of leading tokens that usually have the wanted share of the mass.
const GUESS: usize = 256;

impl<'a> Kept<'a> {
    /// All tokens of `row`, in which at least one logit is finite. `row_tops` has the greatest of each `TOP` logits.
    pub fn all(isa: Isa, row: &'a [f32], row_tops: &'a [f32], room: &'a mut Room) -> Self {
        let (left, scratch) = Left::all(row, row_tops, room);
        Self { isa, max: left.max(), left, scratch, temperature: 1.0, weighed: None }
    }

    fn scale(&self) -> Scale {
        Scale::new(self.max, self.temperature)
    }

    /// A token's probability relative to that of the most likely one.
    pub fn weight(&self, logit: f32) -> f32 {
        self.scale().weight(logit)
    }

    /// The logit that belongs to a weight, given the weight's natural logarithm.
    pub fn logit(&self, log_weight: f64) -> f32 {
        (f64::from(self.max) + f64::from(self.temperature) * log_weight) as f32
    }

    /// Multiplies the temperature by `by`.
    pub fn heat(&mut self, by: f32) {
        self.temperature *= by;
        self.weighed = None;
    }

    fn weighed(&mut self) -> Weighed {
        let (isa, scale) = (self.isa, self.scale());
        *self.weighed.get_or_insert_with(|| weigh(isa, self.left.logits(), scale, &mut self.scratch.masses))
    }

    /// Sum of all weights, added in a fixed order.
    pub fn mass(&mut self) -> f64 {
        self.weighed().mass
    }

    /// Number of remaining tokens with a probability above 0, and the entropy in nats.
    pub fn entropy(&mut self) -> (f64, f64) {
        let Weighed { count, mass, logs } = self.weighed();
        (count, mass.ln() - logs / mass)
    }

    /// Standard deviation of the remaining logits.
    pub fn deviation(&self) -> f64 {
        let (count, [sum, squares]) = spread(self.isa, self.left.logits(), self.max);
        let mean = sum / count;
        (squares / count - mean * mean).max(0.0).sqrt()
    }

    /// Keeps the `k` most likely tokens; k > 0.
    pub fn keep_first(&mut self, k: usize) {
        if k < self.left.logits().len() {
            let (search, lists) = self.search(Order::Likely, None);
            let last = search.reach(k as f64, k, lists);
            self.keep(Order::Likely, OrderKey::FIRST, last);
        }
    }

    /// Keeps tokens with logits of at least `floor`, and the most likely one in any case.
    pub fn keep_above(&mut self, floor: f32) {
        self.keep(Order::Likely, OrderKey::FIRST, OrderKey::new(floor.min(self.max), u32::MAX));
    }

    /// Keeps the fewest most likely tokens that together have this share of the mass.
    pub fn keep_most_likely(&mut self, share: f32) {
        self.keep_share(Order::Likely, share);
    }

    /// Keeps the fewest tokens, with logits closest to `pivot`, that together have this share of the mass.
    pub fn keep_closest(&mut self, share: f32, pivot: f32) {
        let logits = self.left.logits();
        let keys = &mut self.scratch.keys[..logits.len()];
        closeness(self.isa, logits, pivot, keys);
        tops(self.isa, keys, &mut self.scratch.key_tops);
        self.keep_share(Order::Keys, share);
    }

    fn keep_share(&mut self, order: Order, share: f32) {
        let (wanted, scale) = (f64::from(share) * self.mass(), self.scale());
        let (search, lists) = self.search(order, Some(scale));
        let last = search.reach(wanted, GUESS, lists);
        self.keep(order, OrderKey::FIRST, last);
    }

    /// Drops all tokens that each have at least this share of the mass, except the least likely of them.
    pub fn drop_above(&mut self, share: f32) {
        let log_mass = self.mass().ln();
        let floor = self.logit(log_mass + f64::from(share).ln());
        let (mut least, mut last) = (f32::INFINITY, None);
        let tops = self.left.tops().iter();
        for ((from, logits), top) in (0..).step_by(TOP).zip(self.left.logits().chunks(TOP)).zip(tops) {
            if *top < floor {
                continue;
            }
            for (at, &logit) in (from..).zip(logits) {
                if logit >= floor && logit <= least {
                    (least, last) = (logit, Some(at));
                }
            }
        }
        if let Some(at) = last {
            self.keep(Order::Likely, OrderKey::new(least, at), OrderKey::LAST);
        }
    }

    /// A search for places in `order`. It adds weights if there is a `scale`, and counts tokens otherwise.
    fn search(&mut self, order: Order, scale: Option<Scale>) -> (Search<'_>, &mut Lists) {
        let (logits, Scratch { keys, key_tops, lists, .. }) = (self.left.logits(), &mut *self.scratch);
        let (keys, tops) = match order {
            Order::Likely => (logits, self.left.tops()),
            Order::Keys => (&keys[..logits.len()], &key_tops[..logits.len().div_ceil(TOP)]),
        };
        (Search { isa: self.isa, keys, tops, logits, scale }, lists)
    }

    /// Keeps the tokens from place `first` to place `last` of an order, including both.
    fn keep(&mut self, order: Order, first: OrderKey, last: OrderKey) {
        let (search, lists) = self.search(order, None);
        let count = between(search.isa, search.keys, search.tops, first, last, &mut lists.kept);
        self.left.keep(self.isa, &self.scratch.lists.kept[..count]);
        (self.max, self.weighed) = (self.left.max(), None);
    }

    /// Draws the first token at which the running sum of weights exceeds `u` of their mass, `u` in [0, 1). Rounding
    /// may leave the sum just short at the end; then draws the last token with any weight.
    pub fn draw(&mut self, u: f64) -> Candidate {
        let mut left = u * self.mass();
        let (logits, scale) = (self.left.logits(), self.scale());
        let mut from = 0;
        for mass in &self.scratch.masses[..logits.len().div_ceil(PART) - 1] {
            if left < *mass {
                break;
            }
            left -= mass;
            from += PART;
        }
        let mut last = 0;
        for (at, &logit) in logits.iter().enumerate().skip(from) {
            let weight = f64::from(scale.weight(logit));
            last = if weight > 0.0 { at } else { last };
            left -= weight;
            if weight > 0.0 && left < 0.0 {
                break;
            }
        }
        self.left.candidate(last)
    }

    /// The logit of `token`, if it is among the remaining ones.
    pub fn find(&self, token: u32) -> Option<f32> {
        self.left.find(token)
    }

    /// The `k` most likely remaining tokens, or all of them if there are fewer.
    pub fn most_likely(&mut self, k: usize) -> impl Iterator<Item = Candidate> {
        let (search, lists) = self.search(Order::Likely, None);
        search.first(k, lists);
        self.scratch.lists.sorted.iter().map(|place| self.left.candidate(place.at()))
    }
}
