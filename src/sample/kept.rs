//! What the filters have left of a distribution.

use super::left::{Candidate, Left, Lists, Room, Scratch};
use super::search::Search;
use crate::kernels::Isa;
use crate::kernels::rows::logits::{PART, Scale, TOP, Weighed, closeness, spread, tops, weigh};
use crate::kernels::rows::places::{Place, between};

/// Tokens that are left: their probabilities are `e^((logit - max) / temperature)` of the sum of these.
pub struct Kept<'a> {
    isa: Isa,
    left: Left<'a>,
    scratch: &'a mut Scratch,
    /// The greatest logit that is left.
    pub max: f32,
    /// `heat` changes it.
    pub temperature: f32,
    /// Of these logits at this temperature, with `Scratch::masses`.
    weighed: Option<Weighed>,
}

/// What tokens are ordered by.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Likely,
    /// As `Scratch::keys` say.
    Keys,
}

/// So many of the first mostly have a share of the mass.
const GUESS: usize = 256;

impl<'a> Kept<'a> {
    /// All of `row`, in which one is finite; `row_tops` are the greatest of each `TOP`.
    pub fn all(isa: Isa, row: &'a [f32], row_tops: &'a [f32], room: &'a mut Room) -> Self {
        let (left, scratch) = Left::all(row, row_tops, room);
        Self { isa, max: left.max(), left, scratch, temperature: 1.0, weighed: None }
    }

    fn scale(&self) -> Scale {
        Scale::new(self.max, self.temperature)
    }

    /// A token's probability, as a share of the most likely one's.
    pub fn weight(&self, logit: f32) -> f32 {
        self.scale().weight(logit)
    }

    /// The logit of a weight, by its natural logarithm.
    pub fn logit(&self, log_weight: f64) -> f32 {
        (f64::from(self.max) + f64::from(self.temperature) * log_weight) as f32
    }

    /// Multiplies the temperature.
    pub fn heat(&mut self, by: f32) {
        self.temperature *= by;
        self.weighed = None;
    }

    fn weighed(&mut self) -> Weighed {
        let (isa, scale) = (self.isa, self.scale());
        *self.weighed.get_or_insert_with(|| weigh(isa, self.left.logits(), scale, &mut self.scratch.masses))
    }

    /// The sum of all weights, in one fixed order.
    pub fn mass(&mut self) -> f64 {
        self.weighed().mass
    }

    /// How many that are possible are left, and their entropy in nats.
    pub fn entropy(&mut self) -> (f64, f64) {
        let Weighed { count, mass, logs } = self.weighed();
        (count, mass.ln() - logs / mass)
    }

    /// The standard deviation of the logits.
    pub fn deviation(&self) -> f64 {
        let (count, [sum, squares]) = spread(self.isa, self.left.logits(), self.max);
        let mean = sum / count;
        (squares / count - mean * mean).max(0.0).sqrt()
    }

    /// Keeps the `k` most likely, k > 0.
    pub fn keep_first(&mut self, k: usize) {
        if k < self.left.logits().len() {
            let (search, lists) = self.search(Order::Likely, None);
            let last = search.reach(k as f64, k, &mut lists.sorted);
            self.keep(Order::Likely, Place::FIRST, last);
        }
    }

    /// Keeps what is at least `floor`, and the most likely in any case.
    pub fn keep_above(&mut self, floor: f32) {
        self.keep(Order::Likely, Place::FIRST, Place::new(floor.min(self.max), u32::MAX));
    }

    /// Keeps the fewest of the most likely that have this share of the mass.
    pub fn keep_most_likely(&mut self, share: f32) {
        self.keep_share(Order::Likely, share);
    }

    /// Keeps the fewest with logits closest to `pivot` that have this share of the mass.
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
        let last = search.reach(wanted, GUESS, &mut lists.sorted);
        self.keep(order, Place::FIRST, last);
    }

    /// Drops, of those that have at least this share of the mass, all but the least likely.
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
            self.keep(Order::Likely, Place::new(least, at), Place::LAST);
        }
    }

    /// What finds places in `order`; with a `scale`, by weight.
    fn search(&mut self, order: Order, scale: Option<Scale>) -> (Search<'_>, &mut Lists) {
        let (logits, Scratch { keys, key_tops, lists, .. }) = (self.left.logits(), &mut *self.scratch);
        let (keys, tops) = match order {
            Order::Likely => (logits, self.left.tops()),
            Order::Keys => (&keys[..logits.len()], &key_tops[..logits.len().div_ceil(TOP)]),
        };
        (Search { isa: self.isa, keys, tops, logits, scale }, lists)
    }

    /// Keeps what lies between these places of an order, with them.
    fn keep(&mut self, order: Order, first: Place, last: Place) {
        let (search, lists) = self.search(order, None);
        let count = between(search.isa, search.keys, search.tops, first, last, &mut lists.kept);
        self.left.keep(self.isa, &self.scratch.lists.kept[..count]);
        (self.max, self.weighed) = (self.left.max(), None);
    }

    /// The first token at which the running sum of weights passes `u` of their mass, `u` in [0, 1). Rounding may leave it
    /// just short at the end; then the last one with any weight.
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

    /// The logit of a token that is left.
    pub fn find(&self, token: u32) -> Option<f32> {
        self.left.find(token)
    }

    /// The `k` most likely of what is left, or all.
    pub fn most_likely(&mut self, k: usize) -> impl Iterator<Item = Candidate> {
        let (search, lists) = self.search(Order::Likely, None);
        search.first(k, &mut lists.sorted);
        self.scratch.lists.sorted.iter().map(|place| self.left.candidate(place.at()))
    }
}
