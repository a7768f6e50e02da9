//! The interpreter: an arm for each operation, fused ones in their parts.

use super::fold::{signed, walsh_hadamard};
use super::towers::{blended, encode, standardized};
use super::*;
use bn_engine::ops::pass::{Ids, Input, Op, Product, Program, Reg, Step, Sum};
use bn_engine::ops::{AttentionShape, Memory, Net, OpSet, Outputs};
use std::any::Any;
use std::collections::HashMap;

impl OpSet for PlainOps {
    fn run(
        &self,
        program: &Program,
        step: &Step,
        memory: Option<&mut dyn Memory>,
        given: &[&[f32]],
        out: &mut Outputs,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        *out = Outputs::default();
        let (rows, mut values) = (step.batch.tokens.len(), HashMap::new());
        for (reg, given) in program.inputs().iter().zip(given) {
            let x = Tensor::from_slice(given, (rows, given.len() / rows), &Device::Cpu);
            values.insert(reg.index(), ours(x)?);
        }
        let memory = memory.map(|memory| memory.of()).transpose()?;
        let mut run = Run { step, memory, values, adapted: step.batch.adapted.clone(), out };
        program.ops().iter().try_for_each(|op| match op {
            Op::Check => check(),
            op => run.op(op),
        })
    }

    fn attention_bytes(&self, _: &AttentionShape, _: usize, _: usize) -> usize {
        0
    }

    fn encode_bytes(&self, _: &AttentionShape, _: usize) -> usize {
        0
    }
}

struct Run<'a> {
    step: &'a Step<'a>,
    memory: Option<&'a mut HostMemory>,
    values: HashMap<usize, Tensor>,
    adapted: Vec<Adapted>,
    out: &'a mut Outputs,
}

impl Run<'_> {
    fn get(&self, reg: &Reg) -> &Tensor {
        &self.values[&reg.index()]
    }

    fn set(&mut self, reg: &Reg, value: candle_core::Result<Tensor>) -> Result<()> {
        self.values.insert(reg.index(), ours(value.and_then(|x| x.contiguous()))?);
        Ok(())
    }

    fn op(&mut self, op: &Op) -> Result<()> {
        let (to, made) = match op {
            Op::Check => return Ok(()),
            Op::Embed { ids, table, scale, to } => (to, self.embed(*ids, table, *scale)),
            Op::Blend { table, to } => (to, blended(table, self.step.batch)),
            Op::Replace { x, scale } => (x, self.replaced(self.get(x), *scale)),
            Op::Unfold { x, fold } => {
                (x, walsh_hadamard(self.get(x), fold.block).and_then(|x| signed(&x, fold)))
            }
            Op::Linear { input, norm, product, to } => {
                let x = self.input(input)?;
                (to, self.product(&x, norm.as_ref(), product))
            }
            Op::Add(sum) => return self.add(sum),
            Op::Gated { x, activation, to } => (to, gated(self.get(x), *activation)),
            Op::Norm { x, norm, to } => (to, normed(self.get(x), norm)),
            Op::NormParts { x, norm } => {
                let parts =
                    |x: &Tensor| normed(&x.reshape(((), norm.weight.len()))?, norm)?.reshape(x.shape());
                (x, parts(self.get(x)))
            }
            Op::NormColumns { x, from, norm } => (x, columns(self.get(x), *from, norm)),
            Op::Scale { x, by } => (x, self.get(x) * f64::from(*by)),
            Op::Clamp { x, min, max } => (x, self.get(x).maximum(*min).and_then(|x| x.minimum(*max))),
            Op::Standardize { x, minus, by } => (x, standardized(self.get(x), [minus, by])),
            Op::Average { x, parts, to } => {
                let parts = |x: &Tensor| x.reshape((x.dim(0)?, *parts, x.dim(1)? / parts))?.mean(1);
                (to, parts(self.get(x)))
            }
            Op::GatedColumns { gate, inputs, from, activation, to } => {
                let (gate, inputs) = (self.get(gate), self.get(inputs));
                let both = |width| Tensor::cat(&[gate, &inputs.narrow(1, *from, width)?], 1);
                (to, gate.dim(1).and_then(|width| gated(&both(width)?, *activation)))
            }
            Op::SplitGate { x, shape, to, gate } => {
                let [qkv, logits] = recurrent::split_gate(self.get(x), shape);
                self.set(gate, Ok(logits))?;
                (to, Ok(qkv))
            }
            Op::Gate { x, gate, to } => (to, Ok(recurrent::gate(self.get(x), self.get(gate)))),
            Op::Attention { qkv, how, to } => {
                let (step, place) = (self.step, how.place);
                (to, attention(self.get(qkv), step.batch, self.memory(), place, &step.attention(how)?))
            }
            Op::Append { qkv, how } => {
                let (step, place) = (self.step, how.place);
                attention(self.get(qkv), step.batch, self.memory(), place, &step.attention(how)?).unwrap();
                return Ok(());
            }
            Op::Recur { inputs, place, net, to } => (to, Ok(self.recur(inputs, *place, &**net)?)),
            Op::Absorb { q, kv, latent, to } => (to, latent::absorb(self.get(q), self.get(kv), latent)),
            Op::Expand { x, latent, to } => (to, latent::expand(self.get(x), latent)),
            Op::Experts { x, norm, experts, activation, to } => {
                (to, mixture(self.get(x), norm.as_ref(), experts, *activation))
            }
            Op::Beside { a, b, norms: [a_norm, b_norm], to } => {
                let both = || Tensor::cat(&[normed(self.get(a), a_norm)?, normed(self.get(b), b_norm)?], 1);
                (to, both())
            }
            Op::Want { x } => {
                let Some(rows) = self.step.wanted.clone() else { return Ok(()) };
                self.adapted = self.step.adapted_wanted().into_owned();
                (x, pick(self.get(x), &rows))
            }
            Op::Hidden { x, norm } => return self.hidden(x, norm.as_ref()),
            Op::Head { x, norm, product, cap, .. } => return self.head(x, norm.as_ref(), product, *cap),
            Op::Encode { qkv, how, to } => {
                let step = self.step;
                (to, encode(self.get(qkv), step.batch, &step.attention(how)?))
            }
            // One after the other, as the passes that tests have.
            Op::Columns { x, from: 0, to } => (to, Ok(self.get(x).clone())),
            Op::Columns { x, to, .. } => (to, Tensor::cat(&[self.get(to), self.get(x)], 1)),
            Op::Shift { .. } => {
                return Err(Error::unsupported("no test needs it here"));
            }
        };
        self.set(to, made)
    }

    fn embed(&self, ids: Ids, table: &Matrix, scale: f32) -> candle_core::Result<Tensor> {
        pick(&dequantize(table)?, &self.step.ids(ids))? * f64::from(scale)
    }

    fn replaced(&self, x: &Tensor, scale: f32) -> candle_core::Result<Tensor> {
        let RaggedBatch { vectors, vector_rows, .. } = self.step.batch;
        let mut rows = x.to_vec2::<f32>()?;
        let width = x.dim(1)?;
        for (row, vector) in vector_rows.iter().zip(vectors.chunks_exact(width)) {
            rows[*row as usize] = vector.iter().map(|x| x * scale).collect();
        }
        Tensor::new(rows, &Device::Cpu)
    }

    fn add(&mut self, Sum { x, y, norm }: &Sum) -> Result<()> {
        let y = self.get(y);
        let y = norm.as_ref().map_or_else(|| Ok(y.clone()), |norm| normed(y, norm));
        let sum = y.and_then(|y| self.get(x) + y);
        self.set(x, sum)
    }

    fn input(&mut self, input: &Input) -> Result<Tensor> {
        match input {
            Input::Rows(x) => Ok(self.get(x).clone()),
            Input::Sum { sum, .. } => {
                self.add(sum)?;
                Ok(self.get(&sum.x).clone())
            }
            Input::Gated { x, activation } => ours(gated(self.get(x), *activation)),
        }
    }

    fn product(&self, x: &Tensor, norm: Option<&Norm>, product: &Product) -> candle_core::Result<Tensor> {
        let x = norm.map_or_else(|| Ok(x.clone()), |norm| normed(x, norm))?;
        let mut y = linear(&x, None, &product.weights)?;
        for adapted in product.updated_by(&self.adapted).unwrap_or_default() {
            y = adapt(&y, &x, &product.weights, adapted, product.site.unwrap())?;
        }
        Ok(y)
    }

    fn memory(&self) -> &HostMemory {
        self.memory.as_deref().expect("a pass with memory")
    }

    fn recur(&mut self, inputs: &[Reg], place: usize, net: &dyn Net) -> Result<Tensor> {
        let (batch, x) = (self.step.batch, &self.values[&inputs[0].index()]);
        let memory = self.memory.as_deref_mut().expect("a pass with memory");
        let net: &dyn Any = net;
        if let Some(net) = net.downcast_ref() {
            recurrent::delta_net(x, &self.values[&inputs[1].index()], batch, memory, place, net)
        } else if let Some(net) = net.downcast_ref() {
            recurrent::short_conv(x, batch, memory, place, net)
        } else {
            let net = net.downcast_ref().expect("a kind that this interpreter knows");
            recurrent::mamba(x, batch, memory, place, net)
        }
    }

    /// The rows of `x` for these rows of the batch.
    fn rows(&self, x: &Reg, rows: &[u32]) -> Result<Tensor> {
        let places: Vec<u32> = rows.iter().map(|row| self.step.place(*row) as u32).collect();
        ours(pick(self.get(x), &places))
    }

    fn hidden(&mut self, x: &Reg, norm: Option<&Norm>) -> Result<()> {
        let rows = self.rows(x, &self.step.batch.hidden_rows)?;
        let rows = norm.map_or_else(|| Ok(rows.clone()), |norm| normed(&rows, norm));
        self.out.hidden.extend(ours(rows.and_then(|rows| rows.flatten_all()?.to_vec1::<f32>()))?);
        Ok(())
    }

    fn head(&mut self, x: &Reg, norm: Option<&Norm>, product: &Product, cap: Option<f32>) -> Result<()> {
        if self.step.batch.logits_rows.is_empty() {
            return Ok(());
        }
        let x = self.rows(x, &self.step.batch.logits_rows)?;
        self.adapted = self.step.adapted_logits().into_owned();
        let logits = self.product(&x, norm, product);
        let mut logits = ours(logits.and_then(|logits| logits.flatten_all()?.to_vec1::<f32>()))?;
        cap.iter().for_each(|cap| logits.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh()));
        self.out.logits = logits;
        Ok(())
    }
}

fn pick(x: &Tensor, rows: &[u32]) -> candle_core::Result<Tensor> {
    x.index_select(&Tensor::from_slice(rows, rows.len(), &Device::Cpu)?, 0)
}

/// `norm` of the columns of `x` that begin at `from`.
fn columns(x: &Tensor, from: usize, norm: &Norm) -> candle_core::Result<Tensor> {
    let (width, end) = (x.dim(1)?, from + norm.weight.len());
    let (before, after) = (x.narrow(1, 0, from)?, x.narrow(1, end, width - end)?);
    let own = normed(&x.narrow(1, from, norm.weight.len())?.contiguous()?, norm)?;
    Tensor::cat(&[before, own, after], 1)
}
