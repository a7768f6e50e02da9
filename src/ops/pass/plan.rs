//! Plans a pass: leaves out operations, fuses others, assigns registers.

use super::{Op, PLAN, Pass, Product, Reg, Role};
use crate::base::{Error, Result, reserve};
use crate::ops::weight::{Recurrent, Weight};

/// A pass that can run: its registers are few, and each is freed behind its last use.
pub struct Program {
    pub(super) ops: Vec<Op>,
    /// The registers that are free behind an operation, by its index, in ascending order.
    pub(super) free: Vec<(usize, Reg)>,
    pub(super) registers: usize,
    pub(super) input: Option<Reg>,
    pub(super) output: Option<Reg>,
}

impl Program {
    /// `pass` with the register `input`, which the caller gives, up to `output`. Without an output it does what later
    /// passes need alone. `OutOfMemory`.
    pub fn new(pass: &Pass, input: Option<Reg>, output: Option<Reg>) -> Result<Self> {
        if pass.short {
            return Err(Error::out_of_memory(PLAN, size_of::<Op>() * pass.ops.len()));
        }
        let ops = fused(needed(&pass.ops, pass.registers, output)?, pass.registers)?;
        let mut program = Self { ops, free: Vec::new(), registers: 0, input, output };
        program.assign(pass.registers)?;
        Ok(program)
    }

    /// Gives values whose lives do not meet the same register.
    fn assign(&mut self, count: u32) -> Result<()> {
        let mut last = filled(0, count)?;
        reserve(&mut self.free, count as usize, PLAN)?;
        for (at, op) in self.ops.iter_mut().enumerate() {
            op.registers(&mut |_, reg| last[reg.0 as usize] = at);
        }
        if let Some(output) = self.output {
            last[output.0 as usize] = self.ops.len();
        }
        let (mut own, mut unused) = (filled(None, count)?, Vec::new());
        let mut take = |unused: &mut Vec<Reg>| {
            unused.pop().unwrap_or_else(|| {
                self.registers += 1;
                Reg(self.registers as u32 - 1)
            })
        };
        if let Some(input) = &mut self.input {
            let reg = take(&mut unused);
            own[input.0 as usize] = Some(reg);
            *input = reg;
        }
        for (at, op) in self.ops.iter_mut().enumerate() {
            let mut freed = Vec::new();
            op.registers(&mut |_, reg| {
                let value = reg.0 as usize;
                *reg = *own[value].get_or_insert_with(|| take(&mut unused));
                if last[value] == at && !freed.contains(reg) {
                    freed.push(*reg);
                }
            });
            self.free.extend(freed.iter().map(|reg| (at, *reg)));
            unused.extend(freed);
        }
        self.output = self.output.and_then(|output| own[output.0 as usize]);
        Ok(())
    }

    /// All operations, so that one that is lacking is known before anything is copied, then all weights. A weight that
    /// several operations have comes more than once.
    pub fn weights(&self) -> Vec<Weight<'_>> {
        let mut all: Vec<_> = self.ops.iter().map(Weight::Op).collect();
        self.ops.iter().for_each(|op| op.weights(&mut |weight| all.push(weight)));
        all
    }

    pub fn products(&self) -> impl Iterator<Item = &Product> {
        self.ops.iter().filter_map(Op::product)
    }

    /// The layers with states, and the states' indices.
    pub fn recurrent(&self) -> impl Iterator<Item = (usize, Recurrent<'_>)> {
        self.ops.iter().filter_map(|op| match op {
            Op::Recur { place, net, .. } => Some((*place, net.of())),
            _ => None,
        })
    }
}

/// The operations on which `output` or later passes depend.
fn needed(ops: &[Op], registers: u32, output: Option<Reg>) -> Result<Vec<Op>> {
    let mut live = filled(false, registers)?;
    if let Some(output) = output {
        live[output.0 as usize] = true;
    }
    let (mut kept, mut any) = (Vec::new(), output.is_some());
    reserve(&mut kept, ops.len(), PLAN)?;
    for op in ops.iter().rev() {
        let mut op = op.clone();
        let mut wanted = op.remembers() || matches!(op, Op::Check) && any;
        op.registers(&mut |role, reg| wanted |= role != Role::Reads && live[reg.0 as usize]);
        if !wanted {
            continue;
        }
        any = true;
        if let Op::Attention { qkv, how, to } = &op
            && !live[to.0 as usize]
        {
            op = Op::Append { qkv: *qkv, how: how.clone() };
        }
        op.registers(&mut |role, reg| live[reg.0 as usize] = role != Role::Makes);
        kept.push(op);
    }
    kept.reverse();
    Ok(kept)
}

/// `count` times `value`.
fn filled<T: Clone>(value: T, count: u32) -> Result<Vec<T>> {
    let mut list = Vec::new();
    reserve(&mut list, count as usize, PLAN)?;
    list.resize(count as usize, value);
    Ok(list)
}

/// Fuses a product with the sum or the activation before it.
fn fused(ops: Vec<Op>, registers: u32) -> Result<Vec<Op>> {
    let mut uses = filled(0, registers)?;
    ops.iter().cloned().for_each(|mut op| {
        op.registers(&mut |role, reg| uses[reg.0 as usize] += usize::from(role != Role::Makes));
    });
    let mut out: Vec<Op> = Vec::new();
    reserve(&mut out, ops.len(), PLAN)?;
    for op in ops {
        // A look at whether to stop may come first.
        let check = matches!(out.last(), Some(Op::Check)) && out.len() > 1;
        let before = out.len().checked_sub(1 + usize::from(check));
        let pair = (before.map(|at| &out[at]), &op);
        let joined = match pair {
            (Some(Op::Add(add)), Op::Linear { x, norm, product, to }) if add.x == *x => {
                let (add, norm, product) = (add.clone(), norm.clone(), product.clone());
                Op::AddLinear { add, norm, product, activation: None, to: *to }
            }
            (Some(Op::Gated { x, activation, to: made }), Op::Linear { x: of, norm, product, to })
                if made == of && uses[of.0 as usize] == 1 =>
            {
                let (x, activation, norm) = (*x, *activation, norm.clone());
                Op::GatedLinear { x, activation, norm, product: product.clone(), to: *to }
            }
            _ => {
                hint(&mut out, &op);
                out.push(op);
                continue;
            }
        };
        out.truncate(out.len() - 1 - usize::from(check));
        if check {
            out.push(Op::Check);
        }
        out.push(joined);
    }
    Ok(out)
}

/// Tells a product whose rows are gates and up what is made of them.
fn hint(out: &mut [Op], next: &Op) {
    if let (Some(Op::AddLinear { to, activation, .. }), Op::Gated { x, activation: own, .. }) =
        (out.last_mut(), next)
        && to == x
    {
        *activation = Some(*own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{DType, Matrix};
    use crate::ops::pass::{Attend, Ids, Sum};
    use crate::ops::types::{Activation, AttentionShape, Norm};
    use crate::ops::weight::distinct;
    use std::sync::Arc;

    fn product() -> Product {
        let matrix = Matrix::new(crate::base::Bytes::new(vec![0; 16]), DType::F32, 2, 2).unwrap();
        Product::fixed([matrix])
    }

    fn attend(shared: bool) -> Arc<Attend> {
        Arc::new(Attend { shared, ..Attend::plain(AttentionShape::new(1, 1, 2), 0) })
    }

    /// A layer of attention and a feed-forward.
    fn layer(pass: &mut Pass, x: Reg, shared: bool) {
        pass.push(Op::Check);
        let qkv = pass.linear(x, None, product());
        let out = pass.make(|to| Op::Attention { qkv, how: attend(shared), to });
        let out = pass.linear(out, None, product());
        pass.add(x, out, None);
        let norm = Norm { weight: vec![1.0; 2].into(), bias: None, eps: 1e-5 };
        let up = pass.linear(x, Some(norm), product());
        let gated = pass.make(|to| Op::Gated { x: up, activation: Activation::SwiGlu, to });
        let down = pass.linear(gated, None, product());
        pass.add(x, down, None);
    }

    fn names(program: &Program) -> Vec<&'static str> {
        let name = |op: &Op| match op {
            Op::Check => "check",
            Op::Embed { .. } => "embed",
            Op::Linear { .. } => "linear",
            Op::Add(_) => "add",
            Op::AddLinear { activation: None, .. } => "add linear",
            Op::AddLinear { .. } => "add gate up",
            Op::GatedLinear { .. } => "gated linear",
            Op::Attention { .. } => "attention",
            Op::Append { .. } => "append",
            _ => "other",
        };
        program.ops.iter().map(name).collect()
    }

    fn two_layers() -> (Pass, Reg) {
        let mut pass = Pass::default();
        let table = product().weights.matrices[0].clone();
        let x = pass.make(|to| Op::Embed { ids: Ids::Tokens, table, scale: 1.0, to });
        layer(&mut pass, x, false);
        layer(&mut pass, x, true);
        (pass, x)
    }

    #[test]
    fn products_join_what_comes_before_them() {
        let (pass, x) = two_layers();
        let program = Program::new(&pass, None, Some(x)).unwrap();
        let layer = ["attention", "linear", "add gate up", "gated linear"];
        let wanted = [&["embed", "check", "linear"][..], &layer, &["check", "add linear"], &layer, &["add"]];
        assert_eq!(names(&program), wanted.concat());
        assert_eq!(program.registers, 3);
        assert_eq!(distinct(&program.weights()).0.len(), 1 + 8);
    }

    #[test]
    fn without_an_output_only_what_is_remembered_is_done() {
        let (pass, _) = two_layers();
        assert_eq!(names(&Program::new(&pass, None, None).unwrap()), ["embed", "check", "linear", "append"]);
    }

    #[test]
    fn registers_are_free_behind_their_last_use() {
        let (pass, x) = two_layers();
        let mut program = Program::new(&pass, None, Some(x)).unwrap();
        let mut live = vec![false; program.registers];
        for (at, op) in program.ops.iter_mut().enumerate() {
            op.registers(&mut |role, reg| {
                let live = &mut live[reg.0 as usize];
                assert_eq!(*live, role != Role::Makes, "a register of operation {at}");
                *live = true;
            });
            let free = program.free.iter().filter(|(behind, _)| *behind == at);
            free.for_each(|(_, reg)| live[reg.0 as usize] = false);
        }
        let left: Vec<_> = (0..program.registers).filter(|reg| live[*reg]).collect();
        assert_eq!(left, [program.output.unwrap().0 as usize]);
    }

    #[test]
    fn a_pass_is_appended_with_registers_of_its_own() {
        let mut block = Pass::default();
        let given = block.register();
        let output = block.linear(given, None, product());
        let (mut pass, x) = two_layers();
        let end = pass.append(&block, [given, x], output);
        let program = Program::new(&pass, None, Some(end)).unwrap();
        assert_eq!(names(&program).last(), Some(&"add linear"));
        let Some(Op::AddLinear { add: Sum { x: of, .. }, .. }) = program.ops.last() else { unreachable!() };
        assert_ne!(Some(*of), program.output);
    }
}
