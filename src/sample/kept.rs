//! What the filters have left of a distribution.

use crate::kernels::Isa;
use crate::kernels::rows::logits::{Value, exp_neg, greatest, sum_exp, sums};
use std::cmp::Ordering;
use std::ops::Range;

#[derive(Clone, Copy)]
pub struct Candidate {
    pub logit: f32,
    pub token: u32,
}

/// By `key`, the lower id among equals. There is no NaN here.
fn by(key: impl Fn(f32) -> f32) -> impl Fn(&Candidate, &Candidate) -> Ordering {
    move |a, b| key(a.logit).partial_cmp(&key(b.logit)).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// Most likely first.
fn descending(logit: f32) -> f32 {
    -logit
}

/// Tokens that are left: their probabilities are `e^((logit - max) / temperature)` of the sum of these.
pub struct Kept<'a> {
    isa: Isa,
    logits: &'a [f32],
    /// The greatest logit that is left.
    pub max: f32,
    pub temperature: f32,
    /// Lesser logits are not left.
    floor: f32,
    /// Nor is what comes before this, most likely first.
    first: Candidate,
    /// If `listed`, what is left, most likely first; scratch otherwise.
    list: &'a mut Vec<Candidate>,
    listed: bool,
}

/// First size of the list for a share of the mass; it grows by `GROWTH` until it holds enough.
const START: usize = 256;
const GROWTH: usize = 8;
/// Tokens whose mass a draw passes at once.
const PART: usize = 1024;
/// Tokens that a selection passes at once where none is among the most likely.
const SKIP: usize = 64;

impl<'a> Kept<'a> {
    /// All of `logits`, the greatest of which is `max`. `list` has room for all.
    pub fn all(isa: Isa, logits: &'a [f32], max: f32, list: &'a mut Vec<Candidate>) -> Self {
        let first = Candidate { logit: f32::INFINITY, token: 0 };
        Self { isa, logits, max, temperature: 1.0, floor: f32::NEG_INFINITY, first, list, listed: false }
    }

    /// A token's probability, as a share of the most likely one's.
    pub fn weight(&self, logit: f32) -> f32 {
        exp_neg((logit - self.max) / self.temperature)
    }

    /// Most likely first if listed; otherwise by id, from `id` on.
    fn from(&self, id: usize) -> impl Iterator<Item = Candidate> {
        let list: &[Candidate] = if self.listed { self.list } else { &[] };
        let ids = if self.listed { 0..0 } else { id..self.logits.len() };
        list.iter().copied().chain(self.among(ids))
    }

    /// Those of `ids` that are left, where they are not listed.
    fn among(&self, ids: Range<usize>) -> impl Iterator<Item = Candidate> {
        let (floor, first) = (self.floor, self.first);
        let all = (ids.start as u32..).zip(&self.logits[ids]);
        all.map(|(token, &logit)| Candidate { logit, token }).filter(move |c| {
            let behind = c.logit < first.logit || c.logit == first.logit && c.token >= first.token;
            c.logit >= floor && behind
        })
    }

    fn is_whole(&self) -> bool {
        !self.listed && self.first.logit == f32::INFINITY
    }

    /// The sum of all weights, in one fixed order.
    pub fn mass(&self) -> f64 {
        match self.is_whole() {
            true => sum_exp(self.isa, self.logits, self.max, self.temperature, self.floor),
            false => self.from(0).map(|c| f64::from(self.weight(c.logit))).sum(),
        }
    }

    /// How many that are possible are left, and their entropy in nats.
    pub fn entropy(&self) -> (f64, f64) {
        let (count, [sum, _]) = self.sums(Value::Entropy);
        let mass = self.mass();
        (count, mass.ln() + sum / mass)
    }

    /// The standard deviation of the logits.
    pub fn deviation(&self) -> f64 {
        let (count, [sum, squares]) = self.sums(Value::Distance);
        let mean = sum / count;
        (squares / count - mean * mean).max(0.0).sqrt()
    }

    fn sums(&self, value: Value) -> (f64, [f64; 2]) {
        let of = |logits: &[f32], floor| sums(self.isa, value, logits, self.max, self.temperature, floor);
        if self.is_whole() {
            return of(self.logits, self.floor);
        }
        let add = |(n, [a, b]): (f64, [f64; 2]), (m, [c, d]): (f64, [f64; 2])| (n + m, [a + c, b + d]);
        self.from(0).map(|c| of(&[c.logit], f32::NEG_INFINITY)).fold((0.0, [0.0; 2]), add)
    }

    /// Keeps the `k` most likely, k > 0.
    pub fn keep_first(&mut self, k: usize) {
        if self.listed {
            self.list.truncate(k);
        } else if k < self.logits.len() {
            self.select(k, descending, true);
            self.finish_list();
        }
    }

    /// Keeps what is at least `floor`, and the most likely in any case.
    pub fn keep_above(&mut self, floor: f32) {
        self.floor = self.floor.max(floor.min(self.max));
        if self.listed {
            let end = self.list.partition_point(|c| c.logit >= self.floor);
            self.list.truncate(end);
        }
    }

    /// Keeps the fewest of the most likely that have this share of the mass.
    pub fn keep_most_likely(&mut self, share: f32) {
        self.keep_share(share, descending, true);
    }

    /// Keeps the fewest with logits closest to `pivot` that have this share of the mass.
    pub fn keep_closest(&mut self, share: f32, pivot: f32) {
        self.keep_share(share, |logit| (logit - pivot).abs(), false);
    }

    fn keep_share(&mut self, share: f32, key: impl Fn(f32) -> f32 + Copy, ordered: bool) {
        let wanted = f64::from(share) * self.mass();
        if self.listed {
            self.list.sort_unstable_by(by(key));
            self.cut(wanted);
        } else {
            let mut size = START;
            loop {
                self.select(size, key, ordered);
                if self.cut(wanted) || size >= self.logits.len() {
                    break;
                }
                size *= GROWTH;
            }
        }
        self.finish_list();
    }

    /// Drops, of those that have at least this share of the mass, all but the least likely.
    pub fn drop_above(&mut self, share: f32) {
        let bar = f64::from(share) * self.mass();
        let mut least: Option<Candidate> = None;
        let mut take = |c: Candidate| {
            if f64::from(self.weight(c.logit)) >= bar
                && least.is_none_or(|least| by(descending)(&least, &c).is_lt())
            {
                least = Some(c);
            }
        };
        if self.listed {
            self.list.iter().for_each(|c| take(*c));
        } else {
            for from in (0..self.logits.len()).step_by(SKIP) {
                let ids = from..self.logits.len().min(from + SKIP);
                if f64::from(self.weight(greatest(self.isa, &self.logits[ids.clone()]).0)) >= bar {
                    self.among(ids).for_each(&mut take);
                }
            }
        }
        let Some(least) = least else { return };
        self.max = least.logit;
        match self.listed {
            true => self.list.retain(|c| by(descending)(&least, c).is_le()),
            false => self.first = least,
        }
    }

    /// The `k` of the least `key` to `list`, in its order; `ordered`: the greatest logits have the least.
    fn select(&mut self, k: usize, key: impl Fn(f32) -> f32 + Copy, ordered: bool) {
        let mut list = std::mem::take(self.list);
        list.clear();
        // Collect, and drop the lesser half whenever twice as many as wanted have gathered. Ids ascend, so a
        // token that only equals the k-th has lost to it.
        let limit = k.saturating_mul(2).min(self.logits.len());
        // NaN: nothing is above it.
        let mut bar = f32::NAN;
        for from in (0..self.logits.len()).step_by(SKIP) {
            let ids = from..self.logits.len().min(from + SKIP);
            if ordered && key(greatest(self.isa, &self.logits[ids.clone()]).0) >= bar {
                continue;
            }
            self.among(ids).for_each(|c| {
                if key(c.logit) >= bar {
                    return;
                }
                if list.len() == limit {
                    list.select_nth_unstable_by(k - 1, by(key));
                    list.truncate(k);
                    bar = key(list[k - 1].logit);
                    if key(c.logit) >= bar {
                        return;
                    }
                }
                list.push(c);
            });
        }
        if list.len() > k {
            list.select_nth_unstable_by(k - 1, by(key));
            list.truncate(k);
        }
        list.sort_unstable_by(by(key));
        *self.list = list;
    }

    /// Cuts `list` where its weights reach `wanted`; false if they don't.
    fn cut(&mut self, wanted: f64) -> bool {
        let mut sum = 0.0;
        let reached = self.list.iter().position(|c| {
            sum += f64::from(self.weight(c.logit));
            sum >= wanted
        });
        self.list.truncate(reached.map_or(self.list.len(), |at| at + 1));
        reached.is_some()
    }

    fn finish_list(&mut self) {
        self.list.sort_unstable_by(by(descending));
        self.listed = true;
        self.max = self.list.first().map_or(self.max, |c| c.logit);
    }

    /// The first token at which the running sum of weights passes `u` of their mass, `u` in [0, 1). Rounding may leave it
    /// just short at the end; then the last one with any weight.
    pub fn draw(&self, u: f64) -> Candidate {
        let (mut left, mut id) = (u * self.mass(), 0);
        if self.is_whole() {
            for part in self.logits.chunks(PART) {
                let mass = sum_exp(self.isa, part, self.max, self.temperature, self.floor);
                if left < mass || id + PART >= self.logits.len() {
                    break;
                }
                left -= mass;
                id += PART;
            }
        }
        let mut last = Candidate { logit: self.max, token: 0 };
        for c in self.from(id) {
            let weight = f64::from(self.weight(c.logit));
            last = if weight > 0.0 { c } else { last };
            left -= weight;
            if weight > 0.0 && left < 0.0 {
                break;
            }
        }
        last
    }

    /// The logit of a token that is left.
    pub fn find(&self, token: u32) -> Option<f32> {
        let id = (token as usize).min(self.logits.len());
        let found = match self.listed {
            true => self.list.iter().find(|c| c.token == token).copied(),
            false => self.among(id..self.logits.len().min(id + 1)).next(),
        };
        found.map(|c| c.logit)
    }

    /// The `k` most likely of what is left, or all.
    pub fn most_likely(&mut self, k: usize) -> &[Candidate] {
        if !self.listed && k > 0 {
            self.select(k, descending, true);
        }
        &self.list[..k.min(self.list.len())]
    }
}
