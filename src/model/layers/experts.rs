//! Mixtures of experts, by themselves or beside a dense feed-forward.

use super::gated;
use super::read::LayerReader;
use super::source::Source;
use super::tensors::{Add, Kind};
use crate::base::{Result, reserve};
use crate::model::config::{DecoderConfig, ExpertsConfig};
use crate::model::family::{Joined, Named, SharedExpert};
use crate::ops::pass::{Op, Pass, Reg};
use crate::ops::{Expert, Experts, Norm, Projections, Shared};
use std::sync::Arc;

/// GGUF's names of an expert's parts. It has the experts of a layer in one tensor, so the name of one in it is ours:
/// `formats::gguf` reads it.
pub(crate) const PARTS: [&str; 3] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];
/// All experts' matrices in one tensor, as Qwen 3.5's are published. Those of gate and up follow each other.
pub(crate) const STACKED: [&[&str]; 2] =
    [&["ffn_gate_exps.weight", "ffn_up_exps.weight"], &["ffn_down_exps.weight"]];
/// The same where gate and up are in turns (`ExpertDefaults::interleaved`), as floats or as blocks beside their scales,
/// and the biases of each.
pub(crate) const INTERLEAVED: &[Joined] = &[
    ("gate_up_proj", STACKED[0]),
    ("gate_up_proj_blocks", STACKED[0]),
    ("gate_up_proj_bias", &["ffn_gate_exps.bias", "ffn_up_exps.bias"]),
    ("down_proj", STACKED[1]),
    ("down_proj_blocks", STACKED[1]),
    ("down_proj_bias", &["ffn_down_exps.bias"]),
];
/// GGUF's names of the router, and of the experts' biases.
pub(crate) const ROUTER: &str = "ffn_gate_inp";
pub(crate) const BIAS: &str = "exp_probs_b.bias";
/// Names of Hugging Face and of GGUF, of an expert that every row passes through and of its weight.
pub(crate) const SHARED: &[Named] = &[
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
];

/// A mixture of experts.
pub(crate) fn sparse(
    from: &mut LayerReader,
    pass: &mut Pass,
    e: &ExpertsConfig,
    x: Reg,
    norm: Option<Norm>,
) -> Result<Reg> {
    if from.options.skip_zeros {
        return Err(from.no_relu2());
    }
    let (experts, activation) = (Arc::new(experts(from, e)?), from.c.activation);
    Ok(pass.make(|to| Op::Experts { x, norm, experts, activation, to }))
}

/// A dense feed-forward beside a mixture of experts. Both see the same residual through norms of their own, and the
/// norms of their outputs are added.
pub(crate) fn both(
    from: &mut LayerReader,
    pass: &mut Pass,
    e: &ExpertsConfig,
    x: Reg,
    norm: Option<Norm>,
) -> Result<Reg> {
    let hidden = from.c.hidden;
    let dense = gated::feed_forward(from, pass, x, norm)?;
    let own = from.norm_of("pre_ffw_norm_2", hidden)?;
    let sparse = sparse(from, pass, e, x, Some(own))?;
    let norm = from.norm_of("post_ffw_norm_1", hidden)?;
    let sum = pass.make(|to| Op::Norm { x: dense, norm, to });
    pass.add(sum, sparse, Some(from.norm_of("post_ffw_norm_2", hidden)?));
    Ok(sum)
}

/// The router and the experts of a layer.
fn experts(from: &mut LayerReader, e: &ExpertsConfig) -> Result<Experts> {
    let (c, hidden) = (from.c, from.c.hidden);
    let mut router: Projections = [from.matrix("ffn_gate_inp.weight", e.count, hidden)?].into();
    let mut experts = Vec::new();
    reserve(&mut experts, e.count, "experts")?;
    let whole = from.has("ffn_gate_up_exps.weight");
    for n in 0..e.count {
        experts.push(expert(from, &|part| format!("ffn_{part}_exps.{n}"), e.width, whole)?);
    }
    let (mut router_norm, mut scales) = (None, None);
    if c.family.experts.is_some_and(|experts| experts.beside) {
        router_norm = Some(norm_of_router(from)?);
        let own = "ffn_down_exps.scale";
        scales = from.has(own).then(|| from.vector(own, e.count)).transpose()?;
    }
    if c.family.experts.is_some_and(|experts| experts.biases) {
        router.bias = Some(from.vector("ffn_gate_inp.bias", e.count)?);
        read_biases(from, e.width, &mut experts)?;
    }
    let shared = e.shared.map(|width| shared(from, width)).transpose()?;
    let bias = e.bias.then(|| from.vector(BIAS, e.count)).transpose()?;
    Ok(Experts { router_norm, router, choice: e.choice, bias, scales, experts, shared })
}

/// The norm of a router beside a dense feed-forward.
fn norm_of_router(from: &mut LayerReader) -> Result<Norm> {
    let hidden = from.c.hidden;
    let by = 1.0 / (hidden as f32).sqrt();
    let weight = from.vector("ffn_gate_inp.scale", hidden)?.iter().map(|w| w * by).collect();
    Ok(Norm { weight, bias: None, eps: from.c.rms_eps })
}

/// Gives each expert its part of the biases.
fn read_biases(from: &mut LayerReader, width: usize, experts: &mut [Expert]) -> Result<()> {
    let (count, hidden) = (experts.len(), from.c.hidden);
    let gate = from.rows("ffn_gate_exps.bias", count, width)?;
    let up = from.rows("ffn_up_exps.bias", count, width)?;
    let down = from.rows("ffn_down_exps.bias", count, hidden)?;
    for (n, expert) in experts.iter_mut().enumerate() {
        let of = |all: &[f32], width: usize| all[n * width..(n + 1) * width].to_vec();
        expert.gate_up.bias = Some([of(&gate, width), of(&up, width)].concat().into());
        expert.down.bias = Some(of(&down, hidden).into());
    }
    Ok(())
}

/// The expert of a layer that every row passes through.
fn shared(from: &mut LayerReader, width: usize) -> Result<Shared> {
    let (c, name) = (from.c, |part: &str| format!("ffn_{part}_shexp"));
    let expert = expert(from, &name, width, false)?;
    let weighed = c.family.experts.is_some_and(|experts| experts.shared == SharedExpert::Weighed);
    let gate = [("ffn_gate_inp_shexp", 1)];
    Ok(Shared { expert, gate: weighed.then(|| from.projections(&gate, c.hidden, false)).transpose()? })
}

/// An expert, whose gate and up may be one matrix, `whole`.
fn expert(
    from: &mut LayerReader,
    name: &dyn Fn(&str) -> String,
    width: usize,
    whole: bool,
) -> Result<Expert> {
    let hidden = from.c.hidden;
    let [gate, up, both, down] = ["gate", "up", "gate_up", "down"].map(name);
    let gate_up: &[_] = match whole {
        true => &[(&*both, 2 * width)],
        false => &[(&*gate, width), (&*up, width)],
    };
    Ok(Expert {
        gate_up: from.projections(gate_up, hidden, false)?,
        down: from.projections(&[(&*down, hidden)], width, false)?,
    })
}

/// Adds the tensors of a layer.
pub(super) fn tensors(c: &DecoderConfig, experts: &ExpertsConfig, add: &mut Add) {
    let (hidden, ExpertsConfig { count, width, shared, .. }) = (c.hidden, *experts);
    add("ffn_gate_inp.weight".into(), Kind::Router { rows: count, cols: hidden });
    add("ffn_gate_exps.weight".into(), Kind::Experts { count, rows: width, cols: hidden });
    add("ffn_up_exps.weight".into(), Kind::Experts { count, rows: width, cols: hidden });
    add("ffn_down_exps.weight".into(), Kind::Experts { count, rows: hidden, cols: width });
    let Some(width) = shared else { return };
    let product = |rows, cols| Kind::Projection { rows, cols, heads: None };
    add("ffn_gate_inp_shexp.weight".into(), Kind::Gate { cols: hidden });
    add("ffn_gate_shexp.weight".into(), product(width, hidden));
    add("ffn_up_shexp.weight".into(), product(width, hidden));
    add("ffn_down_shexp.weight".into(), product(hidden, width));
}
