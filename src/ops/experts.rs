//! A mixture of experts (Shazeer et al. 2017): a router chooses a few feed-forwards for each row, and their outputs are
//! added by its weights.

use super::Projections;
use crate::base::{Error, Result, reserve};
use crate::kernels::Isa;
use crate::kernels::rows::elementwise;
use crate::kernels::rows::exp::exp;
use crate::kernels::rows::softmax::softmax;

pub struct Experts {
    /// `[experts, hidden]`.
    pub router: Projections,
    pub choice: Choice,
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
    /// `[1, hidden]`: the logistic function of its product is the expert's weight.
    pub gate: Projections,
}

impl Experts {
    /// The router and the products of all experts.
    pub fn products(&self) -> impl Iterator<Item = &Projections> {
        let shared = self.shared.as_ref();
        let experts = self.experts.iter().chain(shared.map(|shared| &shared.expert));
        let experts = experts.flat_map(|expert| [&expert.gate_up, &expert.down]);
        [&self.router].into_iter().chain(shared.map(|shared| &shared.gate)).chain(experts)
    }
}

/// How a row's experts follow from its router logits: the `used` largest after a softmax.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub used: usize,
    /// Divide the weights of the chosen experts by their sum.
    pub renormalize: bool,
}

/// The experts of all rows, grouped: for expert `e` the entries `starts[e]..starts[e + 1]` of `rows` and `weights`, in
/// ascending order of rows.
#[derive(Default)]
pub struct Routes {
    starts: Vec<usize>,
    rows: Vec<u32>,
    weights: Vec<f32>,
    chosen: Vec<(u32, f32)>,
    probabilities: Vec<f32>,
}

impl Routes {
    /// Chooses the experts of each row of `logits` `[rows, experts]`. Of equal probabilities the lower index is chosen. A row
    /// that has a logit that is not a number chooses the experts that come first, and its result is no number either.
    pub fn choose(&mut self, isa: Isa, logits: &[f32], experts: usize, choice: Choice) -> Result<()> {
        let (rows, used) = (logits.len() / experts.max(1), choice.used);
        if used == 0 || used > experts {
            return Err(Error::internal(format!("{used} of {experts} experts")));
        }
        let Self { starts, rows: sorted, weights, chosen, probabilities } = self;
        let what = "a step's experts";
        emptied(chosen, rows * used, what)?;
        emptied(probabilities, experts, what)?;
        emptied(starts, experts + 1, what)?;
        starts.resize(experts + 1, 0);
        for row in logits.chunks_exact(experts) {
            probabilities.clear();
            probabilities.extend_from_slice(row);
            softmax(isa, probabilities);
            let first = chosen.len();
            for _ in 0..used {
                let best = best(probabilities);
                chosen.push((best as u32, probabilities[best]));
                starts[best + 1] += 1;
                probabilities[best] = f32::NEG_INFINITY;
            }
            if choice.renormalize {
                let sum: f32 = chosen[first..].iter().map(|(_, weight)| weight).sum();
                chosen[first..].iter_mut().for_each(|(_, weight)| *weight /= sum);
            }
        }
        (0..experts).for_each(|e| starts[e + 1] += starts[e]);
        emptied(sorted, chosen.len(), what)?;
        sorted.resize(chosen.len(), 0);
        emptied(weights, chosen.len(), what)?;
        weights.resize(chosen.len(), 0.0);
        for (n, (expert, weight)) in chosen.iter().enumerate() {
            let place = &mut starts[*expert as usize];
            (sorted[*place], weights[*place]) = ((n / used) as u32, *weight);
            *place += 1;
        }
        starts.rotate_right(1);
        starts[0] = 0;
        Ok(())
    }

    /// The rows of expert `e`, with their weights.
    pub fn of(&self, e: usize) -> (&[u32], &[f32]) {
        let range = self.starts[e]..self.starts[e + 1];
        (&self.rows[range.clone()], &self.weights[range])
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

/// Adds `weights[n] * from[n]` to row `rows[n]` of `to`; all rows have `width` elements.
pub fn add_weighted(isa: Isa, to: &mut [f32], width: usize, (rows, weights): (&[u32], &[f32]), from: &[f32]) {
    for ((row, weight), from) in rows.iter().zip(weights).zip(from.chunks_exact(width)) {
        elementwise::add_scaled(isa, &mut to[*row as usize * width..][..width], from, *weight);
    }
}

/// Adds to each row of `to` that of `from`, times the logistic function of its logit.
pub fn add_gated(isa: Isa, to: &mut [f32], width: usize, logits: &[f32], from: &[f32]) {
    for ((to, from), logit) in to.chunks_exact_mut(width).zip(from.chunks_exact(width)).zip(logits) {
        elementwise::add_scaled(isa, to, from, 1.0 / (1.0 + exp(-logit)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(logits: &[f32], experts: usize, used: usize, renormalize: bool) -> Vec<Vec<(u32, f32)>> {
        let mut routes = Routes::default();
        routes.choose(Isa::Scalar, logits, experts, Choice { used, renormalize }).unwrap();
        let of =
            |e| std::iter::zip(routes.of(e).0, routes.of(e).1).map(|(row, weight)| (*row, *weight)).collect();
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
        assert!(routes.choose(Isa::Scalar, &[0.0; 4], 2, Choice { used: 3, renormalize: true }).is_err());
    }
}
