//! The products of latent attention around `attention`, and the groups of experts.

use super::{linear, normed};
use bn_engine::ops::{Groups, Latent};
use candle_core::{Result, Tensor};

pub fn absorb(q: &Tensor, kv: &Tensor, latent: &Latent) -> Result<Tensor> {
    let s = latent.shape;
    let mut parts = Vec::new();
    for (head, weights) in latent.keys.iter().enumerate() {
        let own = q.narrow(1, head * (s.nope + s.rope), s.nope + s.rope)?;
        parts.push(own.narrow(1, s.nope, s.rope)?);
        parts.push(linear(&own.narrow(1, 0, s.nope)?.contiguous()?, None, weights)?);
    }
    parts.push(kv.narrow(1, s.rank, s.rope)?);
    parts.push(normed(&kv.narrow(1, 0, s.rank)?.contiguous()?, &latent.norm)?);
    Tensor::cat(&parts, 1)
}

pub fn expand(x: &Tensor, latent: &Latent) -> Result<Tensor> {
    let s = latent.shape;
    let value = |(head, weights)| {
        let from = head * (s.rope + s.rank) + s.rope;
        linear(&x.narrow(1, from, s.rank)?.contiguous()?, None, weights)
    };
    Tensor::cat(&latent.values.iter().enumerate().map(value).collect::<Result<Vec<_>>>()?, 1)
}

/// Keeps the experts of the best groups.
pub fn limit(order: &mut Vec<usize>, score: &[f32], groups: Groups) {
    let size = score.len() / groups.count;
    let sum = |group: usize| {
        let mut own = score[group * size..(group + 1) * size].to_vec();
        own.sort_by(|a, b| b.total_cmp(a));
        own[..groups.best].iter().sum::<f32>()
    };
    let mut best: Vec<usize> = (0..groups.count).collect();
    best.sort_by(|a, b| sum(*b).total_cmp(&sum(*a)));
    order.retain(|expert| best[..groups.used].contains(&(expert / size)));
}
