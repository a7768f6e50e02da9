//! Reads mixtures of experts.

use super::Reader;
use crate::base::{Result, reserve};
use crate::model::config::{DecoderConfig, ExpertsConfig};
use crate::model::family::SharedExpert;
use crate::ops::{Expert, Experts, Norm, Projections, Shared};

impl Reader<'_> {
    /// The router and the experts of a layer.
    pub(super) fn experts(&mut self, index: usize, e: &ExpertsConfig, c: &DecoderConfig) -> Result<Experts> {
        let name = |part: &str| format!("blk.{index}.ffn_{part}");
        let router = self.matrix(&name("gate_inp.weight"), e.count, c.hidden)?;
        let mut router: Projections = [router].into();
        let mut experts = Vec::new();
        reserve(&mut experts, e.count, "experts")?;
        let whole = self.files.has(&format!("blk.{index}.ffn_gate_up_exps.weight"));
        for n in 0..e.count {
            let name = |part: &str| format!("blk.{index}.ffn_{part}_exps.{n}");
            experts.push(self.expert(&name, e.width, whole, c)?);
        }
        let (mut router_norm, mut scales) = (None, None);
        if c.family.experts.is_some_and(|experts| experts.beside) {
            router_norm = Some(self.router_norm(&name("gate_inp.scale"), c)?);
            let own = name("down_exps.scale");
            scales = self.files.has(&own).then(|| self.vector(&own, e.count)).transpose()?;
        }
        if c.family.experts.is_some_and(|experts| experts.biases) {
            router.bias = Some(self.vector(&name("gate_inp.bias"), e.count)?);
            self.expert_biases(&name, e.width, c.hidden, &mut experts)?;
        }
        let shared = match e.shared {
            Some(width) => Some(self.shared(index, width, c)?),
            None => None,
        };
        let bias = match e.bias {
            true => Some(self.vector(&format!("blk.{index}.exp_probs_b.bias"), e.count)?),
            false => None,
        };
        Ok(Experts { router_norm, router, choice: e.choice, bias, scales, experts, shared })
    }

    /// The norm of a router beside a dense feed-forward.
    fn router_norm(&mut self, name: &str, c: &DecoderConfig) -> Result<Norm> {
        let by = 1.0 / (c.hidden as f32).sqrt();
        let weight = self.vector(name, c.hidden)?.iter().map(|w| w * by).collect();
        Ok(Norm { weight, bias: None, eps: c.rms_eps })
    }

    /// Gives each expert its part of the biases.
    fn expert_biases(
        &mut self,
        name: &dyn Fn(&str) -> String,
        width: usize,
        hidden: usize,
        experts: &mut [Expert],
    ) -> Result<()> {
        let [gate, up] = ["gate_exps.bias", "up_exps.bias"].map(name);
        let [gate, up] = [self.rows(&gate, experts.len(), width)?, self.rows(&up, experts.len(), width)?];
        let down = self.rows(&name("down_exps.bias"), experts.len(), hidden)?;
        for (n, expert) in experts.iter_mut().enumerate() {
            let of = |all: &[f32], width: usize| all[n * width..(n + 1) * width].to_vec();
            expert.gate_up.bias = Some([of(&gate, width), of(&up, width)].concat().into());
            expert.down.bias = Some(of(&down, hidden).into());
        }
        Ok(())
    }

    /// The expert of a layer that every row passes through.
    fn shared(&mut self, index: usize, width: usize, c: &DecoderConfig) -> Result<Shared> {
        let name = |part: &str| format!("blk.{index}.ffn_{part}_shexp");
        let expert = self.expert(&name, width, false, c)?;
        let weighed = c.family.experts.is_some_and(|experts| experts.shared == SharedExpert::Weighed);
        let gate = match weighed {
            true => Some(self.projections(&[(name("gate_inp"), 1)], c.hidden, false, c)?),
            false => None,
        };
        Ok(Shared { expert, gate })
    }

    /// An expert, whose gate and up may be one matrix, `whole`.
    fn expert(
        &mut self,
        name: &dyn Fn(&str) -> String,
        width: usize,
        whole: bool,
        c: &DecoderConfig,
    ) -> Result<Expert> {
        let gate_up = match whole {
            true => vec![(name("gate_up"), 2 * width)],
            false => vec![(name("gate"), width), (name("up"), width)],
        };
        Ok(Expert {
            gate_up: self.projections(&gate_up, c.hidden, false, c)?,
            down: self.projections(&[(name("down"), c.hidden)], width, false, c)?,
        })
    }
}
