//! Products of a pass, with the sum or gate that makes the input, its norm, and adapters.

use super::run::Run;
use super::{CpuOps, Scratch};
use crate::base::sync::Mutex;
use crate::base::{Error, Result};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::ternary;
use crate::kernels::pool::buffer::grown;
use crate::ops::linear::{self, Linear};
use crate::ops::lora::{Adapt, Adapted, LoraScratch};
use crate::ops::pass::{Input, Product, Reg, Sum};
use crate::ops::prepare::Source;
use crate::ops::types::{Activation, Norm, Projections};

impl CpuOps {
    fn product<'a>(
        &'a self,
        scratch: &'a Mutex<linear::Scratch>,
        norm: Option<&'a Norm>,
        weights: &'a Projections,
    ) -> Linear<'a> {
        Linear { pool: &self.pool, isa: self.isa, scratch, norm, weights, gates: None }
    }
}

impl Run<'_> {
    pub(super) fn linear(
        &mut self,
        input: &Input,
        norm: Option<&Norm>,
        product: &Product,
        to: Reg,
    ) -> Result<()> {
        let ops = self.ops;
        if product.updated_by(&self.adapted).is_some() {
            return self.in_parts(input, norm, product, to);
        }
        let weights = &product.weights;
        let linear = ops.product(&self.scratch.product, norm, weights);
        match input {
            Input::Rows(x) => {
                let [x, to] = self.registers.like(*x, to)?;
                linear.run(Source::Rows(x.data), x.dims(), to.data)
            }
            Input::Sum { sum: Sum { x, y, norm }, activation } => {
                let [x, y, to] = self.registers.made(self.registers.rows(*x), [*x, *y], to)?;
                let narrow = norm.as_ref().is_some_and(|norm| norm.weight.len() != x.width);
                if x.dims() != y.dims() || narrow {
                    return Err(Error::internal(format!("a sum of {:?} and {:?}", x.dims(), y.dims())));
                }
                let relu2 = *activation == Some(Activation::Relu2);
                let bare = weights.bias.is_none() && weights.norms.is_empty();
                let gates = (relu2 && bare && x.rows <= ternary::FEW).then_some(&ops.gates);
                let dims = x.dims();
                let source = Source::Sum { x: SharedOut::new(x.data), y: y.data, norm: norm.as_ref() };
                Linear { gates, ..linear }.run(source, dims, to.data)
            }
            Input::Gated { x, activation } => {
                let [x, to] = self.registers.like(*x, to)?;
                if !x.width.is_multiple_of(activation.products()) {
                    return Err(Error::internal(format!("gate and up side by side, in {} columns", x.width)));
                }
                let source = Source::Gated { gate_up: x.data, activation: *activation };
                linear.run(source, [x.rows, x.width / activation.products()], to.data)
            }
        }
    }

    /// A product that adapters update: they need its input, normed.
    fn in_parts(&mut self, input: &Input, norm: Option<&Norm>, product: &Product, to: Reg) -> Result<()> {
        let on = self.ops.on();
        let Scratch { product: scratch, lora, normed, .. } = &mut *self.scratch;
        let x = match input {
            Input::Rows(x) | Input::Gated { x, .. } => *x,
            Input::Sum { sum: Sum { x, y, norm }, .. } => {
                let [sum, y] = self.registers.of([*x, *y])?;
                on.add(sum.data, y.data, [sum.rows, sum.width], norm.as_ref())?;
                *x
            }
        };
        let [x, to] = self.registers.like(x, to)?;
        let (mut dims, mut rows) = (x.dims(), &*x.data);
        if let Input::Gated { activation, .. } = input {
            dims[1] /= activation.products();
            let out = grown(normed, dims[0] * dims[1]);
            on.gated(rows, dims, *activation, out)?;
            norm.map_or(Ok(()), |norm| on.norm_columns(out, dims, 0, norm))?;
            rows = out;
        } else if let Some(norm) = norm {
            let out = grown(normed, rows.len());
            on.norm(rows, dims, norm, out)?;
            rows = out;
        }
        adapted(self.ops, scratch, lora, (rows, dims), product, &self.adapted, to.data)
    }

    /// The product of the rows of a register, which are normed, and the adapters' updates.
    pub(super) fn head_product(
        &mut self,
        x: Reg,
        norm: Option<&Norm>,
        product: &Product,
        out: &mut [f32],
    ) -> Result<()> {
        let ops = self.ops;
        let [x] = self.registers.of([x])?;
        let (dims, mut rows) = (x.dims(), &*x.data);
        let Scratch { product: scratch, lora, normed, .. } = &mut *self.scratch;
        if product.updated_by(&self.adapted).is_none() {
            return ops.product(scratch, norm, &product.weights).run(Source::Rows(rows), dims, out);
        }
        if let Some(norm) = norm {
            let to = grown(normed, rows.len());
            ops.on().norm(rows, dims, norm, to)?;
            rows = to;
        }
        adapted(ops, scratch, lora, (rows, dims), product, &self.adapted, out)
    }
}

/// The product of `rows`, and the updates of adapters.
fn adapted(
    ops: &CpuOps,
    scratch: &Mutex<linear::Scratch>,
    lora: &Mutex<LoraScratch>,
    (rows, dims): (&[f32], [usize; 2]),
    product: &Product,
    adapted: &[Adapted],
    out: &mut [f32],
) -> Result<()> {
    let (pool, isa, weights) = (&*ops.pool, ops.isa, &product.weights);
    ops.product(scratch, None, weights).run(Source::Rows(rows), dims, out)?;
    let Some(site) = product.site else { return Ok(()) };
    let op = Adapt { pool, isa, scratch: lora, weights, adapted, site };
    op.run(out, [dims[0], weights.width()], rows, dims)
}
