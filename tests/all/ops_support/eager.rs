//! Single operations, each as a pass of its own: its inputs are given, and its outputs are hidden states.

use bn_engine::base::Result;
use bn_engine::kernels::Matrix;
use bn_engine::ops::pass::{Attend, Ids, Input, Op, Pass, Product, Program, Reg, Ropes, Step, Sum};
use bn_engine::ops::{
    Activation, Attention, Experts, Fold, Latent, Memory, Norm, OpSet, Outputs, Paging, Projections,
    RaggedBatch,
};
use candle_core::{Device, Tensor};
use std::sync::Arc;

/// Runs what `build` pushes after the rows of `x`; returns the rows of the registers that it gives, with their widths.
fn run<O: OpSet + ?Sized>(
    ops: &O,
    step: &Step,
    memory: Option<&mut dyn Memory>,
    x: &[&Tensor],
    fuse: bool,
    build: impl FnOnce(&mut Pass, &[Reg]) -> Vec<(Reg, usize)>,
) -> Result<Vec<Tensor>> {
    let rows = step.batch.tokens.len();
    let mut pass = Pass::default();
    let inputs: Vec<Reg> = x.iter().map(|x| pass.register(x.dims()[1])).collect();
    let outputs = build(&mut pass, &inputs);
    outputs.iter().for_each(|(x, _)| pass.push(Op::Hidden { x: *x, norm: None }));
    let program = Program::new(&pass, &inputs, true)?;
    let program = if fuse { program } else { parts(&program) };
    let given: Vec<Vec<f32>> = x.iter().map(|x| x.flatten_all().unwrap().to_vec1().unwrap()).collect();
    let given: Vec<&[f32]> = given.iter().map(Vec::as_slice).collect();
    let mut out = Outputs::default();
    ops.run(&program, step, memory, &given, &mut out, &mut || Ok(()))?;
    let mut rest = &out.hidden[..];
    let made = outputs.iter().map(|(_, width)| {
        let (own, behind) = rest.split_at(rows * width);
        rest = behind;
        Tensor::from_slice(own, (rows, *width), &Device::Cpu).unwrap()
    });
    let made = made.collect();
    assert!(rest.is_empty());
    Ok(made)
}

/// The same program with its products' norms, sums and gates as operations of their own.
pub fn parts(program: &Program) -> Program {
    let mut pass = Pass::default();
    for place in program.places() {
        pass.register(place.width);
    }
    for op in program.ops() {
        let Op::Linear { input, norm, product, to } = op else {
            pass.push(op.clone());
            continue;
        };
        let mut x = match input {
            Input::Rows(x) => *x,
            Input::Sum { sum, .. } => {
                pass.push(Op::Add(sum.clone()));
                sum.x
            }
            Input::Gated { x, activation } => {
                pass.make(|to| Op::Gated { x: *x, activation: *activation, to })
            }
        };
        if let Some(norm) = norm {
            x = pass.make(|to| Op::Norm { x, norm: norm.clone(), to });
        }
        pass.push(Op::Linear { input: Input::Rows(x), norm: None, product: product.clone(), to: *to });
    }
    Program::in_parts(&pass, program.inputs(), true).unwrap()
}

/// A batch of as many rows as `x`.
fn batch_of(x: &Tensor) -> RaggedBatch {
    all_rows(&RaggedBatch { tokens: vec![0; x.dims()[0]], ..RaggedBatch::default() })
}

/// The same batch, in which the hidden states of all rows are wanted.
fn all_rows(batch: &RaggedBatch) -> RaggedBatch {
    let hidden_rows = (0..batch.tokens.len() as u32).collect();
    RaggedBatch { hidden_rows, logits_rows: Vec::new(), ..batch.clone() }
}

pub trait Eager: OpSet {
    /// One operation from `x` to rows of `width` elements.
    fn one(&self, x: &[&Tensor], width: usize, op: impl FnOnce(&[Reg], Reg) -> Op) -> Result<Tensor> {
        let batch = batch_of(x[0]);
        let made = run(self, &Step::of_rows(&batch), None, x, true, |pass, inputs| {
            vec![(pass.make(|to| op(inputs, to)), width)]
        });
        made.map(|mut made| made.remove(0))
    }

    /// One operation that changes `x`.
    fn changed(&self, x: &[&Tensor], op: impl FnOnce(&[Reg]) -> Op) -> Result<Tensor> {
        let batch = batch_of(x[0]);
        let made = run(self, &Step::of_rows(&batch), None, x, true, |pass, inputs| {
            pass.push(op(inputs));
            vec![(inputs[0], x[0].dims()[1])]
        });
        made.map(|mut made| made.remove(0))
    }

    fn embed(&self, batch: &RaggedBatch, table: &Matrix, scale: f32) -> Result<Tensor> {
        let made = run(self, &Step::of_rows(&all_rows(batch)), None, &[], true, |pass, _| {
            let table = table.clone();
            vec![(
                pass.make(|to| Op::Embed { ids: Ids::Tokens, table: table.clone(), scale, to }),
                table.cols,
            )]
        });
        made.map(|mut made| made.remove(0))
    }

    fn linear(&self, x: &Tensor, norm: Option<&Norm>, weights: &Projections) -> Result<Tensor> {
        self.linear_as(x, norm, weights, true)
    }

    /// `linear`, with its norm by itself unless it is fused.
    fn linear_as(
        &self,
        x: &Tensor,
        norm: Option<&Norm>,
        weights: &Projections,
        fuse: bool,
    ) -> Result<Tensor> {
        let made = run(self, &Step::of_rows(&batch_of(x)), None, &[x], fuse, |pass, inputs| {
            vec![(pass.linear(inputs[0], norm.cloned(), Product::fixed(weights.clone())), weights.width())]
        });
        made.map(|mut made| made.remove(0))
    }

    /// `x + y`, and the product of it.
    fn add_linear(
        &self,
        [x, y]: [&Tensor; 2],
        norms: [Option<&Norm>; 2],
        weights: &Projections,
        fuse: bool,
    ) -> Result<[Tensor; 2]> {
        let (batch, width) = (batch_of(x), x.dims()[1]);
        let made = run(self, &Step::of_rows(&batch), None, &[x, y], fuse, |pass, inputs| {
            pass.add(inputs[0], inputs[1], norms[0].cloned());
            let product = pass.linear(inputs[0], norms[1].cloned(), Product::fixed(weights.clone()));
            vec![(inputs[0], width), (product, weights.width())]
        });
        made.map(|made| made.try_into().unwrap())
    }

    /// The product of the gated rows of `x`.
    fn gated_linear(
        &self,
        x: &Tensor,
        activation: Activation,
        norm: Option<&Norm>,
        weights: &Projections,
        fuse: bool,
    ) -> Result<Tensor> {
        let made = run(self, &Step::of_rows(&batch_of(x)), None, &[x], fuse, |pass, inputs| {
            let gated = pass.make(|to| Op::Gated { x: inputs[0], activation, to });
            vec![(pass.linear(gated, norm.cloned(), Product::fixed(weights.clone())), weights.width())]
        });
        made.map(|mut made| made.remove(0))
    }

    fn gated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        let width = x.dims()[1] / if activation.gated() { 2 } else { 1 };
        self.one(&[x], width, |x, to| Op::Gated { x: x[0], activation, to })
    }

    fn add(&self, x: &Tensor, y: &Tensor, norm: Option<&Norm>) -> Result<Tensor> {
        let sum = |x: &[Reg]| Sum { x: x[0], y: x[1], norm: norm.cloned() };
        self.changed(&[x, y], |x| Op::Add(sum(x)))
    }

    fn norm_columns(&self, x: &Tensor, from: usize, norm: &Norm) -> Result<Tensor> {
        self.changed(&[x], |x| Op::NormColumns { x: x[0], from, norm: norm.clone() })
    }

    fn norm_parts(&self, x: &Tensor, norm: &Norm) -> Result<Tensor> {
        self.changed(&[x], |x| Op::NormParts { x: x[0], norm: norm.clone() })
    }

    fn scale(&self, x: &Tensor, by: f32) -> Result<Tensor> {
        self.changed(&[x], |x| Op::Scale { x: x[0], by })
    }

    fn unfold(&self, x: &Tensor, fold: &Fold) -> Result<Tensor> {
        self.changed(&[x], |x| Op::Unfold { x: x[0], fold: Arc::new(fold.clone()) })
    }

    fn gated_columns(
        &self,
        gate: &Tensor,
        inputs: &Tensor,
        from: usize,
        activation: Activation,
    ) -> Result<Tensor> {
        self.one(&[gate, inputs], gate.dims()[1], |x, to| Op::GatedColumns {
            gate: x[0],
            inputs: x[1],
            from,
            activation,
            to,
        })
    }

    fn experts(
        &self,
        x: &Tensor,
        norm: Option<&Norm>,
        experts: &Arc<Experts>,
        activation: Activation,
    ) -> Result<Tensor> {
        let (norm, experts) = (norm.cloned(), experts.clone());
        self.one(&[x], x.dims()[1], |x, to| Op::Experts { x: x[0], norm, experts, activation, to })
    }

    fn absorb(&self, q: &Tensor, kv: &Tensor, latent: &Arc<Latent>) -> Result<Tensor> {
        let width = (latent.shape.heads + 1) * latent.shape.head_dim();
        let latent = latent.clone();
        self.one(&[q, kv], width, |x, to| Op::Absorb { q: x[0], kv: x[1], latent, to })
    }

    fn expand(&self, x: &Tensor, latent: &Arc<Latent>) -> Result<Tensor> {
        let (width, latent) = (latent.shape.values(), latent.clone());
        self.one(&[x], width, |x, to| Op::Expand { x: x[0], latent, to })
    }

    fn attention(
        &self,
        qkv: &Tensor,
        paging: &Paging,
        memory: &mut dyn Memory,
        layer: usize,
        how: &Attention,
    ) -> Result<Tensor> {
        let attend = Arc::new(Attend {
            window: how.window,
            mutual: how.mutual,
            from: how.from,
            sinks: how.sinks.map(Into::into),
            norms: how.norms.cloned(),
            value_norm: how.value_norm.cloned(),
            shared: how.shared,
            place: layer,
            ..Attend::plain(how.shape.clone(), 0)
        });
        let ropes = [Ropes { rope: how.rope.clone(), long: None }];
        let batch = all_rows(paging.batch);
        let step = Step { paging: Some(paging.clone()), ropes: &ropes, ..Step::of_rows(&batch) };
        let width = how.shape.heads * how.shape.head_dim;
        let made = run(self, &step, Some(memory), &[qkv], true, |pass, x| {
            vec![(pass.make(|to| Op::Attention { qkv: x[0], how: attend, to }), width)]
        });
        made.map(|mut made| made.remove(0))
    }
}

impl<O: OpSet + ?Sized> Eager for O {}
