//! Runs a pass.

use super::plan::Program;
use super::{Attend, Ids, Op, Product, Reg, Sum};
use crate::base::{Error, Result};
use crate::kernels::Matrix;
use crate::ops::batch::{Head, RaggedBatch};
use crate::ops::kv::KvCache;
use crate::ops::lora::Adapted;
use crate::ops::owned::Owned;
use crate::ops::paging::Paging;
use crate::ops::set::OpSet;
use crate::ops::types::{Activation, Attention, Norm, Rope};

/// A step: a batch, and where its sequences' past is.
pub struct Step<'a> {
    pub ops: &'a dyn OpSet,
    pub batch: &'a RaggedBatch,
    /// `None`: no layer reads the cache.
    pub paging: Option<Paging<'a>>,
    /// As `paging`, for layers that attend by the model's other shape.
    pub global: Option<Paging<'a>>,
    pub kv: &'a KvCache,
    pub ropes: &'a [Ropes],
    /// The rows that `Op::Want` leaves. `None`: all.
    pub wanted: Option<&'a [u32]>,
}

/// The rotation of some layers.
pub struct Ropes {
    pub rope: Rope,
    /// That of caches whose sequences may be longer than this number of tokens, if it is another one.
    pub long: Option<(usize, Rope)>,
}

impl Ropes {
    fn of(&self, kv: &KvCache) -> &Rope {
        match &self.long {
            Some((above, long)) if kv.longest > *above => long,
            _ => &self.rope,
        }
    }
}

impl Program {
    /// Runs the operations, the first of which may read `given`. `check` is asked between layers, and its error ends the
    /// pass. Returns the output, if the program has one.
    pub fn run(
        &self,
        step: &Step,
        given: Option<Owned>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<Owned>> {
        let mut run = Run { step, values: (0..self.registers).map(|_| None).collect(), chosen: None };
        if let Some(input) = self.input {
            run.values[input.0 as usize] = given;
        }
        let mut free = self.free.iter().peekable();
        for (at, op) in self.ops.iter().enumerate() {
            match op {
                Op::Check => check()?,
                op => run.op(op)?,
            }
            while let Some((_, reg)) = free.next_if(|(behind, _)| *behind == at) {
                run.values[reg.0 as usize] = None;
            }
        }
        Ok(self.output.and_then(|output| run.values[output.0 as usize].take()))
    }
}

/// The state of a pass.
struct Run<'a> {
    step: &'a Step<'a>,
    values: Vec<Option<Owned>>,
    /// The adapters of the wanted rows, once those are chosen.
    chosen: Option<Vec<Adapted>>,
}

fn missing() -> Error {
    Error::internal("an operation's input is not there")
}

impl Run<'_> {
    fn get(&self, reg: Reg) -> Result<&Owned> {
        self.values[reg.0 as usize].as_ref().ok_or_else(missing)
    }

    fn set(&mut self, reg: Reg, value: Owned) {
        self.values[reg.0 as usize] = Some(value);
    }

    /// Calls `f` with the value of `x`, which it changes, and the others.
    fn change<T>(&mut self, x: Reg, f: impl FnOnce(&Self, &mut Owned) -> Result<T>) -> Result<T> {
        let mut value = self.values[x.0 as usize].take().ok_or_else(missing)?;
        let done = f(self, &mut value);
        self.set(x, value);
        done
    }

    fn op(&mut self, op: &Op) -> Result<()> {
        let Step { ops, batch, kv, .. } = *self.step;
        let (to, made) = match op {
            Op::Check => return Ok(()),
            Op::Unfold { x, fold } => return self.change(*x, |_, x| ops.unfold(x, fold)),
            Op::Add(Sum { x, y, norm }) => {
                return self.change(*x, |run, x| ops.add(x, run.get(*y)?, norm.as_ref()));
            }
            Op::NormParts { x, norm } => return self.change(*x, |_, x| ops.norm_parts(x, norm)),
            Op::NormColumns { x, from, norm } => {
                return self.change(*x, |_, x| ops.norm_columns(x, *from, norm));
            }
            Op::Scale { x, by } => return self.change(*x, |_, x| ops.scale(x, *by)),
            Op::Want { x } => return self.want(*x),
            Op::Append { qkv, how } => {
                let paging = self.paging(how)?;
                return ops.append(self.get(*qkv)?, paging, kv, how.place, &self.how(how));
            }
            Op::SplitGate { x, shape, to, gate } => {
                let [qkv, logits] = ops.split_gate(self.get(*x)?, shape)?;
                self.set(*gate, logits);
                (to, qkv)
            }
            Op::Embed { ids, table, scale, to } => (to, self.embed(*ids, table, *scale)?),
            Op::Encode { qkv, how, to } => {
                (to, self.change(*qkv, |run, qkv| ops.encode(qkv, batch, &run.how(how)))?)
            }
            Op::Linear { x, norm, product, to } => (to, self.linear(self.get(*x)?, norm.as_ref(), product)?),
            Op::AddLinear { add, norm, product, activation, to } => {
                (to, self.add_linear(add, norm.as_ref(), product, *activation)?)
            }
            Op::Gated { x, activation, to } => (to, ops.gated(self.get(*x)?, *activation)?),
            Op::GatedLinear { x, activation, norm, product, to } => {
                (to, self.gated_linear(*x, *activation, norm.as_ref(), product)?)
            }
            Op::Norm { x, norm, to } => (to, ops.norm(self.get(*x)?, norm)?),
            Op::GatedColumns { gate, inputs, from, activation, to } => {
                (to, ops.gated_columns(self.get(*gate)?, self.get(*inputs)?, *from, *activation)?)
            }
            Op::Gate { x, gate, to } => (to, ops.gate(self.get(*x)?, self.get(*gate)?)?),
            Op::Attention { qkv, how, to } => {
                let paging = self.paging(how)?;
                (to, ops.attention(self.get(*qkv)?, paging, kv, how.place, &self.how(how))?)
            }
            Op::Absorb { q, kv, latent, to } => (to, ops.absorb(self.get(*q)?, self.get(*kv)?, latent)?),
            Op::Expand { x, latent, to } => (to, ops.expand(self.get(*x)?, latent)?),
            Op::Recur { inputs, place, net, to } => {
                let rows = [self.get(inputs[0])?, self.get(inputs[inputs.len() - 1])?];
                (to, ops.recur(&rows[..inputs.len()], batch, kv, *place, net.of())?)
            }
            Op::Experts { x, norm, experts, activation, to } => {
                (to, ops.experts(self.get(*x)?, norm.as_ref(), experts, *activation)?)
            }
            Op::Beside { a, b, norms: [a_norm, b_norm], to } => {
                (to, ops.beside([(self.get(*a)?, a_norm), (self.get(*b)?, b_norm)])?)
            }
            Op::Shift { x, to } => (to, ops.shift(self.get(*x)?, batch, kv)?),
        };
        self.set(*to, made);
        Ok(())
    }

    fn paging(&self, how: &Attend) -> Result<&Paging<'_>> {
        let global = self.step.global.as_ref().filter(|_| how.global);
        global.or(self.step.paging.as_ref()).ok_or_else(|| Error::internal("attention without pages"))
    }

    fn embed(&self, ids: Ids, table: &Matrix, scale: f32) -> Result<Owned> {
        let Step { ops, batch, .. } = self.step;
        let of =
            |tokens: Vec<u32>| ops.embed(&RaggedBatch { tokens, ..RaggedBatch::default() }, table, scale);
        match ids {
            Ids::Tokens => ops.embed(batch, table, scale),
            Ids::Types if batch.types.is_empty() => of(vec![0; batch.tokens.len()]),
            Ids::Types => of(batch.types.clone()),
            Ids::Positions(offset) => of(batch.positions.iter().map(|at| at + offset).collect()),
        }
    }

    fn how<'b>(&'b self, how: &'b Attend) -> Attention<'b> {
        Attention {
            shape: &how.shape,
            rope: self.step.ropes[how.rope].of(self.step.kv),
            window: how.window,
            from: how.from,
            sinks: how.sinks.as_deref(),
            norms: how.norms.as_ref(),
            value_norm: how.value_norm.as_ref(),
            shared: how.shared,
        }
    }

    fn want(&mut self, x: Reg) -> Result<()> {
        let step = self.step;
        let Some(rows) = step.wanted else { return Ok(()) };
        if self.chosen.is_none() {
            self.chosen = Some(Adapted::among(&step.batch.adapted, rows));
        }
        let chosen = step.ops.rows(self.get(x)?, rows)?;
        self.set(x, chosen);
        Ok(())
    }

    /// The adapters of the rows, if one of them updates the product.
    fn adapters(&self, product: &Product) -> Option<&[Adapted]> {
        product.updated_by(self.chosen.as_deref().unwrap_or(&self.step.batch.adapted))
    }

    fn linear(&self, x: &Owned, norm: Option<&Norm>, product: &Product) -> Result<Owned> {
        match self.adapters(product) {
            None => self.step.ops.linear(x, norm, &product.weights),
            Some(adapted) => adapted_linear(self.step.ops, x, norm, product, adapted),
        }
    }

    fn add_linear(
        &mut self,
        Sum { x, y, norm: own }: &Sum,
        norm: Option<&Norm>,
        product: &Product,
        activation: Option<Activation>,
    ) -> Result<Owned> {
        let (ops, weights) = (self.step.ops, &product.weights);
        self.change(*x, |run, x| {
            let (y, own) = (run.get(*y)?, own.as_ref());
            if run.adapters(product).is_some() {
                ops.add(x, y, own)?;
                return run.linear(x, norm, product);
            }
            match activation {
                Some(activation) => ops.add_gate_up(x, y, own, norm, weights, activation),
                None => ops.add_linear(x, y, own, norm, weights),
            }
        })
    }

    fn gated_linear(
        &self,
        x: Reg,
        activation: Activation,
        norm: Option<&Norm>,
        product: &Product,
    ) -> Result<Owned> {
        let (ops, x) = (self.step.ops, self.get(x)?);
        match self.adapters(product) {
            None => ops.gated_linear(x, activation, norm, &product.weights),
            Some(_) => self.linear(&ops.gated(x, activation)?, norm, product),
        }
    }
}

fn adapted_linear(
    ops: &dyn OpSet,
    x: &Owned,
    norm: Option<&Norm>,
    product: &Product,
    adapted: &[Adapted],
) -> Result<Owned> {
    let normed = norm.map(|norm| ops.norm(x, norm)).transpose()?;
    let x = normed.as_ref().unwrap_or(x);
    let mut y = ops.linear(x, None, &product.weights)?;
    if let Some(site) = product.site {
        ops.adapt(&mut y, x, &product.weights, adapted, site)?;
    }
    Ok(y)
}

impl Product {
    /// The adapters, if one of them updates the product.
    fn updated_by<'a>(&self, all: &'a [Adapted]) -> Option<&'a [Adapted]> {
        let site = self.site?;
        let any = all.iter().any(|adapted| adapted.lora.pairs(site).iter().any(Option::is_some));
        any.then_some(all)
    }

    /// The logits of a step: of the rows `x`, which `adapted` numbers.
    pub fn head(&self, ops: &dyn OpSet, to: Head, x: &Owned, norm: &Norm, adapted: &[Adapted]) -> Result<()> {
        match self.updated_by(adapted) {
            None => ops.head(to, x, Some(norm), &self.weights),
            Some(adapted) => {
                to.tokens.clear();
                adapted_linear(ops, x, Some(norm), self, adapted)?.copy_to(to.logits)
            }
        }
    }
}
