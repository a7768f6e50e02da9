//! A mixture of experts (Shazeer et al. 2017): a router chooses a few feed-forwards for each row, and their outputs are
//! added by its weights.

use super::{Norm, Projections};
use crate::base::{Error, Result, reserve};
use crate::kernels::Isa;
use crate::kernels::rows::elementwise;
use crate::kernels::rows::exp::exp;
use crate::kernels::rows::softmax::softmax;
use std::ops::Range;
use std::sync::Arc;

pub struct Experts {
    /// The router's own norm of the rows, which it has in place of the experts'.
    pub router_norm: Option<Norm>,
    /// `[experts, hidden]`.
    pub router: Projections,
    pub choice: Choice,
    /// Added to each expert's probability for the choice alone. `None`: nothing.
    pub bias: Option<Arc<[f32]>>,
    /// Factors on the weights of chosen experts. `None`: 1.
    pub scales: Option<Arc<[f32]>>,
    pub experts: Vec<Expert>,
    pub shared: Option<Shared>,
}

/// One expert's feed-forward.
pub struct Expert {
    /// gate, up: `[width, hidden]`.
    pub gate_up: Projections,
    /// `[hidden, width]`.
    pub down: Projections,
}

/// An expert that every row passes through, beside those that the router chooses.
pub struct Shared {
    pub expert: Expert,
    /// `[1, hidden]`: the logistic function of its product is the expert's weight. `None`: that is 1.
    pub gate: Option<Projections>,
}

impl Experts {
    /// The router and the products of all experts.
    pub fn products(&self) -> impl Iterator<Item = &Projections> {
        let shared = self.shared.as_ref();
        let experts = self.experts.iter().chain(shared.map(|shared| &shared.expert));
        let experts = experts.flat_map(|expert| [&expert.gate_up, &expert.down]);
        [&self.router].into_iter().chain(shared.and_then(|shared| shared.gate.as_ref())).chain(experts)
    }
}

/// How a row's experts follow from its router logits: those with the `used` largest probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub used: usize,
    pub gate: Gate,
    /// Divide the weights of the chosen experts by their sum and this number. `None`: they are the probabilities.
    pub renormalize: Option<f32>,
    /// Factor on the weights.
    pub scale: f32,
    /// The experts are in groups, and a row's experts are of its best ones. `None`: any.
    pub groups: Option<Groups>,
}

/// Groups of experts, as many in each, whose best ones have a row's experts (DeepSeek-V2, arXiv 2405.04434, section
/// 2.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    pub count: usize,
    /// Number of groups that have a row's experts.
    pub used: usize,
    /// A group's score is the sum of this many of its experts' largest.
    pub best: usize,
}

impl Groups {
    /// `None` if a row's experts may be of any of them.
    pub fn of(count: usize, used: usize, gate: Gate) -> Option<Self> {
        let best = if gate == Gate::Softmax { 1 } else { MOST_BEST };
        Some(Self { count, used, best }).filter(|_| used != count)
    }

    /// Takes the experts of all groups but the best out of `scores`. Of equal groups the lower is chosen. `sums` is
    /// overwritten, and has room for the groups.
    fn limit(&self, scores: &mut [f32], sums: &mut Vec<f32>) {
        let size = scores.len() / self.count;
        sums.clear();
        for group in scores.chunks_exact_mut(size) {
            let mut sum = 0.0;
            let mut taken = [(0, 0.0); MOST_BEST];
            for place in &mut taken[..self.best] {
                let at = best(group);
                *place = (at, group[at]);
                sum += group[at];
                group[at] = f32::NEG_INFINITY;
            }
            taken[..self.best].iter().for_each(|(at, score)| group[*at] = *score);
            sums.push(sum);
        }
        for _ in 0..self.used {
            let at = best(sums);
            sums[at] = f32::NEG_INFINITY;
        }
        // The groups that were taken have this score.
        for (group, sum) in scores.chunks_exact_mut(size).zip(sums) {
            if *sum != f32::NEG_INFINITY {
                group.fill(f32::NEG_INFINITY);
            }
        }
    }
}

/// The most experts that make a group's score.
const MOST_BEST: usize = 2;

/// The function that makes probabilities of router logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Softmax,
    /// Each logit by itself.
    Logistic,
}

impl Gate {
    fn apply(self, isa: Isa, logits: &mut [f32]) {
        match self {
            Self::Softmax => softmax(isa, logits),
            Self::Logistic => logits.iter_mut().for_each(|p| *p = 1.0 / (1.0 + exp(-*p))),
        }
    }
}

impl Choice {
    pub fn softmax(used: usize, renormalize: bool) -> Self {
        let renormalize = renormalize.then_some(0.0);
        Self { used, gate: Gate::Softmax, renormalize, scale: 1.0, groups: None }
    }
}

/// The experts of all rows, grouped: for expert `e` the entries `starts[e]..starts[e + 1]` of `rows` and `weights`, in
/// ascending order of rows.
#[derive(Default)]
pub(super) struct Routes {
    used: usize,
    starts: Vec<usize>,
    /// The experts that have rows.
    busy: Vec<usize>,
    rows: Vec<u32>,
    weights: Vec<f32>,
    /// The entries of each row, `used` of them, in ascending order of experts.
    entries: Vec<u32>,
    chosen: Vec<(u32, f32)>,
    probabilities: Vec<f32>,
    /// Probabilities with the bias. Those of chosen experts are taken out.
    scores: Vec<f32>,
    /// The score of each group.
    sums: Vec<f32>,
}

/// Name of the lists in errors.
const WHAT: &str = "a step's experts";

impl Routes {
    /// Chooses the experts of each row of `logits` `[rows, experts]`. Of equal scores the lower index is chosen. A row
    /// that has a logit that is not a number chooses the experts that come first, and its result is no number either.
    pub(super) fn choose(
        &mut self,
        isa: Isa,
        logits: &[f32],
        experts: usize,
        choice: Choice,
        bias: Option<&[f32]>,
        scales: Option<&[f32]>,
    ) -> Result<()> {
        let (rows, used) = (logits.len() / experts.max(1), choice.used);
        if used == 0 || used > experts {
            return Err(Error::internal(format!("{used} of {experts} experts")));
        }
        self.used = used;
        let Self { starts, chosen, probabilities, scores, sums, .. } = self;
        emptied(chosen, rows * used, WHAT)?;
        emptied(probabilities, experts, WHAT)?;
        emptied(scores, experts, WHAT)?;
        emptied(sums, choice.groups.map_or(0, |groups| groups.count), WHAT)?;
        emptied(starts, experts + 1, WHAT)?;
        starts.resize(experts + 1, 0);
        for row in logits.chunks_exact(experts) {
            probabilities.clear();
            probabilities.extend_from_slice(row);
            choice.gate.apply(isa, probabilities);
            scores.clear();
            scores.extend_from_slice(probabilities);
            bias.into_iter().for_each(|bias| elementwise::add(isa, scores, bias));
            choice.groups.iter().for_each(|groups| groups.limit(scores, sums));
            let first = chosen.len();
            for _ in 0..used {
                let best = best(scores);
                chosen.push((best as u32, probabilities[best]));
                starts[best + 1] += 1;
                scores[best] = f32::NEG_INFINITY;
            }
            let own = &mut chosen[first..];
            let sum = |more| own.iter().map(|(_, weight)| weight).sum::<f32>() + more;
            let sum = choice.renormalize.map_or(1.0, sum);
            let scale = |expert: u32| choice.scale * scales.map_or(1.0, |scales| scales[expert as usize]);
            own.iter_mut().for_each(|(expert, weight)| *weight = *weight / sum * scale(*expert));
        }
        self.group(experts)
    }

    /// Groups the entries of `chosen` by expert. `starts[e + 1]`: the number of those of expert `e`.
    fn group(&mut self, experts: usize) -> Result<()> {
        let Self { used, starts, busy, rows: sorted, weights, entries, chosen, .. } = self;
        emptied(busy, experts, WHAT)?;
        busy.extend((0..experts).filter(|e| starts[e + 1] > 0));
        (0..experts).for_each(|e| starts[e + 1] += starts[e]);
        emptied(sorted, chosen.len(), WHAT)?;
        sorted.resize(chosen.len(), 0);
        emptied(weights, chosen.len(), WHAT)?;
        weights.resize(chosen.len(), 0.0);
        for (n, (expert, weight)) in chosen.iter().enumerate() {
            let place = &mut starts[*expert as usize];
            (sorted[*place], weights[*place]) = ((n / *used) as u32, *weight);
            *place += 1;
        }
        starts.rotate_right(1);
        starts[0] = 0;
        emptied(entries, sorted.len(), WHAT)?;
        entries.resize(sorted.len(), 0);
        // The entries of a row are met in ascending order of experts: the row's last place counts those so far.
        for (entry, row) in sorted.iter().enumerate() {
            let of_row = &mut entries[*row as usize * *used..][..*used];
            let count = of_row[*used - 1] as usize;
            of_row[*used - 1] += 1;
            of_row[count] = entry as u32;
        }
        Ok(())
    }

    /// The experts that have rows, in ascending order.
    pub(super) fn busy(&self) -> &[usize] {
        &self.busy
    }

    /// The entries of expert `e`, and their rows.
    pub(super) fn of(&self, e: usize) -> (Range<usize>, &[u32]) {
        let range = self.starts[e]..self.starts[e + 1];
        (range.clone(), &self.rows[range])
    }

    /// The entries of a row and their weights, in ascending order of experts.
    pub(super) fn of_row(&self, row: usize) -> impl Iterator<Item = (usize, f32)> {
        let entries = &self.entries[row * self.used..][..self.used];
        entries.iter().map(|entry| (*entry as usize, self.weights[*entry as usize]))
    }
}

/// Empties `list`, which has room for `len` elements then. `OutOfMemory`.
fn emptied<T>(list: &mut Vec<T>, len: usize, what: &str) -> Result<()> {
    list.clear();
    reserve(list, len, what)
}

/// The index of the largest element, the lowest of several.
fn best(of: &[f32]) -> usize {
    let mut best = 0;
    for (i, p) in of.iter().enumerate() {
        if *p > of[best] || of[best] == f32::NEG_INFINITY && *p != f32::NEG_INFINITY {
            best = i;
        }
    }
    best
}

/// Adds to each row of `to` that of `from`, times the logistic function of its logit.
pub(super) fn add_gated(isa: Isa, to: &mut [f32], width: usize, logits: &[f32], from: &[f32]) {
    for ((to, from), logit) in to.chunks_exact_mut(width).zip(from.chunks_exact(width)).zip(logits) {
        elementwise::add_scaled(isa, to, from, 1.0 / (1.0 + exp(-logit)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(logits: &[f32], experts: usize, used: usize, renormalize: bool) -> Vec<Vec<(u32, f32)>> {
        let mut routes = Routes::default();
        routes.choose(Isa::Scalar, logits, experts, Choice::softmax(used, renormalize), None, None).unwrap();
        for row in 0..logits.len() / experts {
            let entries: Vec<_> = routes.of_row(row).collect();
            assert!(entries.len() == used && entries.is_sorted_by(|a, b| a.0 < b.0), "{entries:?}");
            assert!(entries.iter().all(|(entry, _)| routes.rows[*entry] == row as u32));
        }
        let of = |e| routes.of(e).0.map(|entry| (routes.rows[entry], routes.weights[entry])).collect();
        (0..experts).map(of).collect()
    }

    #[test]
    fn rows_are_grouped_by_their_largest_experts() {
        let logits = [0.0, 2.0, 1.0, 3.0, 5.0, 4.0, 4.0, -1.0];
        let got = routes(&logits, 4, 2, true);
        let rows = |e: usize| got[e].iter().map(|(row, _)| *row).collect::<Vec<_>>();
        // Row 0: experts 3 and 1. Row 1: expert 0, and of the equal 1 and 2 the lower one.
        assert_eq!([rows(0), rows(1), rows(2), rows(3)], [vec![1], vec![0, 1], vec![], vec![0]]);
        let sum = |row: u32| got.iter().flatten().filter(|(r, _)| *r == row).map(|(_, w)| w).sum::<f32>();
        assert!((sum(0) - 1.0).abs() < 1e-6 && (sum(1) - 1.0).abs() < 1e-6);
        let whole = routes(&logits, 4, 2, false);
        let e: Vec<f32> = [0.0f32, 2.0, 1.0, 3.0].iter().map(|x| x.exp()).collect();
        assert!((whole[3][0].1 - e[3] / e.iter().sum::<f32>()).abs() < 1e-6);
    }

    #[test]
    fn a_row_without_numbers_still_has_its_experts() {
        let got = routes(&[f32::NAN, f32::NAN, f32::NAN], 3, 2, true);
        assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 0]);
        let mut routes = Routes::default();
        assert!(routes.choose(Isa::Scalar, &[0.0; 4], 2, Choice::softmax(3, true), None, None).is_err());
    }

    #[test]
    fn rows_have_experts_of_their_best_groups() {
        let mut routes = Routes::default();
        let mut chosen = |logits: &[f32], used, groups| {
            let choice = Choice { groups, ..Choice::softmax(used, false) };
            routes.choose(Isa::Scalar, logits, logits.len(), choice, None, None).unwrap();
            routes.busy().to_vec()
        };
        // Groups of three: the first has the best expert, the last the best two.
        let logits = [5.0, 0.0, 0.0, 1.0, 1.0, 1.0, 4.9, 4.8, 0.0];
        let of = |used, gate| Groups::of(3, used, gate);
        assert_eq!(chosen(&logits, 2, of(1, Gate::Softmax)), [0, 1]);
        assert_eq!(chosen(&logits, 2, of(1, Gate::Logistic)), [6, 7]);
        assert_eq!(chosen(&logits, 4, of(2, Gate::Softmax)), [0, 1, 6, 7]);
        assert_eq!((of(3, Gate::Softmax), chosen(&logits, 3, None)), (None, vec![0, 6, 7]));
        // The lower one of equal groups; the first ones without numbers.
        assert_eq!(chosen(&[1.0; 9], 2, of(1, Gate::Logistic)), [0, 1]);
        assert_eq!(chosen(&[f32::NAN; 9], 3, of(1, Gate::Logistic)).len(), 3);
        let mut logits = [0.0; 9];
        logits[4] = f32::NAN;
        assert_eq!(chosen(&logits, 3, of(2, Gate::Softmax)).len(), 3);
    }

    #[test]
    fn a_bias_changes_the_choice_and_not_the_weights() {
        let (logits, bias) = ([0.0, 1.0, 2.0], [9.0, 0.0, 0.5]);
        let logistic = logits.map(|x: f32| 1.0 / (1.0 + (-x).exp()));
        let choice =
            Choice { gate: Gate::Logistic, renormalize: Some(1e-6), scale: 2.5, ..Choice::softmax(2, true) };
        let mut routes = Routes::default();
        routes.choose(Isa::Scalar, &logits, 3, choice, Some(&bias), None).unwrap();
        assert_eq!(routes.busy(), [0, 2]);
        let sum = logistic[0] + logistic[2] + 1e-6;
        let got: Vec<f32> = routes.of_row(0).map(|(_, weight)| weight).collect();
        for (got, want) in got.iter().zip([logistic[0], logistic[2]]) {
            assert!((got - 2.5 * want / sum).abs() < 1e-6, "{got}");
        }
        routes.choose(Isa::Scalar, &logits, 3, Choice { renormalize: None, ..choice }, None, None).unwrap();
        assert_eq!(routes.busy(), [1, 2]);
        let plain: Vec<f32> = routes.of_row(0).map(|(_, weight)| weight).collect();
        routes
            .choose(
                Isa::Scalar,
                &logits,
                3,
                Choice { renormalize: None, ..choice },
                None,
                Some(&[9.0, 0.5, 2.0]),
            )
            .unwrap();
        let scaled: Vec<f32> = routes.of_row(0).map(|(_, weight)| weight).collect();
        assert_eq!(scaled, [0.5 * plain[0], 2.0 * plain[1]]);
    }
}
