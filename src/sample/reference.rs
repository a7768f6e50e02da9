//! The filters in plain code, in f64 and with sorts, for tests.

use super::kept::Kept;
use super::left::Room;
use super::philox::uniform;
use super::{Filter, SamplingParams};
use crate::kernels::isa;
use crate::kernels::rows::logits::{TOP, tops};

/// A token's id, its logit divided by the temperature so far, and its probability.
type Entry = (usize, f64, f64);

fn softmax(entries: &mut [Entry]) {
    let max = entries.iter().map(|e| e.1).fold(f64::NEG_INFINITY, f64::max);
    let mass: f64 = entries.iter().map(|e| (e.1 - max).exp()).sum();
    entries.iter_mut().for_each(|e| e.2 = (e.1 - max).exp() / mass);
}

fn by(entries: &mut [Entry], key: impl Fn(&Entry) -> f64) {
    entries.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap().then(a.0.cmp(&b.0)));
}

fn entropy(entries: &[Entry]) -> f64 {
    entries.iter().filter(|e| e.2 > 0.0).map(|e| -e.2 * e.2.ln()).sum()
}

fn cut(entries: &mut Vec<Entry>, share: f64) {
    let mut sum = 0.0;
    let reached = entries.iter().position(|e| {
        sum += e.2;
        sum >= share
    });
    entries.truncate(reached.map_or(entries.len(), |at| at + 1));
}

fn run(filter: Filter, p: &SamplingParams, left: &mut Vec<Entry>, u: f64) {
    by(left, |e| -e.1);
    softmax(left);
    let f = f64::from;
    match filter {
        Filter::Temperature => {
            let mut t = f(p.temperature);
            if p.temperature_range > 0.0 {
                let most = (left.len() as f64).ln();
                let share = if left.len() > 1 { entropy(left) / most } else { 0.0 };
                let (low, high) = ((t - f(p.temperature_range)).max(0.0), t + f(p.temperature_range));
                t = low + (high - low) * share.powf(f(p.temperature_exponent));
            }
            left.iter_mut().for_each(|e| e.1 /= t.max(f(f32::MIN_POSITIVE)));
        }
        Filter::TopNSigma => {
            let n = left.len() as f64;
            let mean = left.iter().map(|e| e.1).sum::<f64>() / n;
            let sigma = (left.iter().map(|e| (e.1 - mean).powi(2)).sum::<f64>() / n).sqrt();
            let floor = left[0].1 - f(p.top_n_sigma) * sigma;
            left.retain(|e| p.top_n_sigma == 0.0 || e.1 >= floor);
        }
        Filter::TopK => left.truncate(if p.top_k == 0 { usize::MAX } else { p.top_k as usize }),
        Filter::Typical if p.typical_p < 1.0 => {
            let entropy = entropy(left);
            by(left, |e| (-e.2.ln() - entropy).abs());
            cut(left, f(p.typical_p));
        }
        Filter::TopP if p.top_p < 1.0 => cut(left, f(p.top_p)),
        Filter::Typical | Filter::TopP => {}
        Filter::MinP => {
            let floor = f(p.min_p) * left[0].2;
            left.retain(|e| e.2 >= floor);
        }
        Filter::Xtc => {
            let above = left.iter().filter(|e| e.2 >= f(p.xtc_threshold)).count();
            if p.xtc_probability > 0.0 && u < f(p.xtc_probability) && above > 1 {
                left.drain(..above - 1);
            }
        }
    }
}

/// The probability of each token. `u` is the random number of XTC.
pub fn reference(p: &SamplingParams, logits: &[f32], u: f64) -> Vec<f64> {
    let mut left: Vec<Entry> = logits.iter().enumerate().map(|(id, &x)| (id, f64::from(x), 0.0)).collect();
    p.order.iter().for_each(|filter| run(*filter, p, &mut left, u));
    softmax(&mut left);
    let mut out = vec![0.0; logits.len()];
    left.iter().for_each(|e| out[e.0] = e.2);
    out
}

/// Random parameters of a request, from `seed`, with filters in any order.
fn drawn(seed: u64) -> SamplingParams {
    let number = |n| uniform(seed, 0, n);
    let mut p = SamplingParams { temperature: 0.2 + 2.0 * number(0) as f32, ..Default::default() };
    let mut on = |n: u32, set: fn(&mut SamplingParams, f32)| {
        if number(2 * n) < 0.4 {
            set(&mut p, number(2 * n + 1) as f32);
        }
    };
    on(1, |p, x| p.top_k = 1 + (50.0 * x) as u32);
    on(2, |p, x| p.top_p = 0.01 + 0.99 * x);
    on(3, |p, x| p.min_p = 0.5 * x * x);
    on(4, |p, x| p.typical_p = 0.05 + 0.95 * x);
    on(5, |p, x| p.top_n_sigma = 0.1 + 3.0 * x);
    on(6, |p, x| (p.xtc_probability, p.xtc_threshold) = (0.8, 0.01 + 0.4 * x));
    on(7, |p, x| (p.temperature_range, p.temperature_exponent) = (2.0 * x, 0.3 + 2.0 * x));
    p.order.sort_by_key(|filter| uniform(seed, 1, *filter as u32).to_bits());
    p
}

/// Runs the chain of `p` in both, and checks that the same tokens remain with the same probabilities.
fn compare(p: &SamplingParams, logits: &[f32], u: f64, what: u64) {
    let mut row_tops = vec![0.0; logits.len().div_ceil(TOP)];
    tops(isa(), logits, &mut row_tops);
    let mut room = Room::new(logits.len()).unwrap();
    let mut kept = Kept::all(isa(), logits, &row_tops, &mut room);
    p.order.iter().for_each(|filter| filter.run(p, &mut kept, u));
    let (mass, mut got) = (kept.mass(), vec![0.0; logits.len()]);
    let mut seen = 0;
    for (token, x) in (0..).zip(&mut got) {
        if let Some(logit) = kept.find(token) {
            *x = f64::from(kept.weight(logit)) / mass;
            seen += 1;
        }
    }
    assert_eq!(seen, kept.most_likely(logits.len()).count(), "seed {what}");
    let want = reference(p, logits, u);
    for (id, (want, got)) in want.iter().zip(&got).enumerate() {
        assert!((want - got).abs() <= 1e-5, "seed {what}, token {id}: {got}, not {want}; {p:?}");
        assert_eq!(*want > 1e-12, *got > 1e-12, "seed {what}, token {id}: {got}, not {want}; {p:?}");
    }
}

fn some(seed: u64, size: u64, spread: f64) -> Vec<f32> {
    (0..size).map(|i| (uniform(seed, 3 + i, 0) * spread) as f32).collect()
}

#[test]
fn every_filter_in_any_order_leaves_what_the_reference_leaves() {
    for seed in 0..4_000 {
        let p = drawn(seed);
        p.validate().unwrap();
        let size = 1 + (600.0 * uniform(seed, 2, 0)) as u64;
        let logits = some(seed, size, 0.5 + 8.0 * uniform(seed, 2, 1));
        compare(&p, &logits, uniform(seed, 2, 2), seed);
    }
}

#[test]
fn so_do_they_in_rows_that_are_never_sorted() {
    for seed in 0..60 {
        let p = drawn(seed);
        compare(
            &p,
            &some(seed, 30_000, [0.01, 3.0, 12.0, 30.0][seed as usize % 4]),
            uniform(seed, 2, 2),
            seed,
        );
    }
}
