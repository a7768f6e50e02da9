//! Plans a pass: leaves out operations, fuses others, gives registers their place in memory.

use super::op::Role;
use super::{Input, Op, PLAN, Pass, Product, Reg};
use crate::base::{Error, Result, reserve};
use crate::ops::net::Net;
use crate::ops::weight::Weight;
use std::sync::atomic::{AtomicU64, Ordering};

/// A pass that can run.
pub struct Program {
    id: u64,
    ops: Vec<Op>,
    /// Where each register is, by its number. Two that are in use at the same time do not overlap.
    places: Vec<Place>,
    /// The registers that are free after an operation, by its index.
    free: Vec<(usize, Reg)>,
    /// The registers that the caller gives.
    inputs: Vec<Reg>,
    /// Elements of memory for each row of a batch.
    floats: usize,
}

/// Where a register's rows are in memory for T rows: `width` elements each, from `offset * T` on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub offset: usize,
    pub width: usize,
}

impl Place {
    fn end(self) -> usize {
        self.offset + self.width
    }
}

/// Offsets are multiples of this, so that registers begin at cache lines.
const GRAIN: usize = 16;

impl Program {
    /// `pass` with the registers `inputs`, which the caller gives. Without `results` it does what later passes need
    /// alone. `OutOfMemory`.
    pub fn new(pass: &Pass, inputs: &[Reg], results: bool) -> Result<Self> {
        Self::planned(pass, inputs, results, true)
    }

    /// As `new`, without fusion, for tests of it.
    pub fn in_parts(pass: &Pass, inputs: &[Reg], results: bool) -> Result<Self> {
        Self::planned(pass, inputs, results, false)
    }

    fn planned(pass: &Pass, inputs: &[Reg], results: bool, fuse: bool) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if pass.short {
            return Err(Error::out_of_memory(PLAN, size_of_val(&*pass.ops)));
        }
        let mut ops = needed(&pass.ops, pass.widths.len(), results)?;
        if fuse {
            ops = fused(ops, pass.widths.len())?;
        }
        let lives = lives(&mut ops, inputs, pass.widths.len())?;
        let mut free = Vec::new();
        reserve(&mut free, lives.len(), PLAN)?;
        let used =
            lives.iter().enumerate().filter_map(|(reg, life)| Some((life.as_ref()?.end, Reg(reg as u32))));
        free.extend(used);
        free.sort_unstable_by_key(|(behind, reg)| (*behind, reg.0));
        let places = places(&lives, &pass.widths)?;
        let floats = places.iter().map(|place| place.end()).max().unwrap_or(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { id, ops, places, free, inputs: inputs.to_vec(), floats })
    }

    /// Elements of memory for each row of a batch. Registers that are never in use together share them.
    pub fn floats(&self) -> usize {
        self.floats
    }

    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Unlike that of any other program of the process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The registers that are free after an operation, by its index, in ascending order.
    pub fn free(&self) -> &[(usize, Reg)] {
        &self.free
    }

    /// The place of each register, by its number.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    pub fn inputs(&self) -> &[Reg] {
        &self.inputs
    }

    /// All weights. One that several operations have comes more than once.
    pub fn weights(&self) -> Vec<Weight<'_>> {
        let mut all = Vec::new();
        self.ops.iter().for_each(|op| op.weights(&mut |weight| all.push(weight)));
        all
    }

    /// Checks all operations. An error says in which layer the operation is.
    pub(crate) fn check(&self, check: impl Fn(&Op) -> Result<()>) -> Result<()> {
        let mut layers = 0;
        self.ops.iter().try_for_each(|op| {
            layers += usize::from(matches!(op, Op::Check));
            check(op).map_err(|error| match layers {
                1.. if !op.results() => {
                    Error::new(error.status, format!("layer {}: {}", layers - 1, error.message))
                }
                _ => error,
            })
        })
    }

    pub fn products(&self) -> impl Iterator<Item = &Product> {
        self.ops.iter().filter_map(Op::product)
    }

    /// The layers with states, and the states' indices.
    pub fn recurrent(&self) -> impl Iterator<Item = (usize, &dyn Net)> {
        self.ops.iter().filter_map(|op| match op {
            Op::Recur { place, net, .. } => Some((*place, &**net)),
            _ => None,
        })
    }
}

/// `count` times `value`.
fn filled<T: Clone>(value: T, count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    reserve(&mut list, count, PLAN)?;
    list.resize(count, value);
    Ok(list)
}

/// The operations on which results or later passes depend.
fn needed(ops: &[Op], registers: usize, results: bool) -> Result<Vec<Op>> {
    let mut live = filled(false, registers)?;
    let (mut kept, mut any) = (Vec::new(), false);
    reserve(&mut kept, ops.len(), PLAN)?;
    for op in ops.iter().rev() {
        let mut op = op.clone();
        let mut wanted = op.remembers() || op.results() && results || matches!(op, Op::Check) && any;
        op.registers(&mut |role, reg| wanted |= role != Role::Reads && live[reg.index()]);
        if !wanted {
            continue;
        }
        any = true;
        if let Op::Attention { qkv, how, to } = &op
            && !live[to.index()]
        {
            op = Op::Append { qkv: *qkv, how: how.clone() };
        }
        op.registers(&mut |role, reg| live[reg.index()] = role != Role::Makes);
        kept.push(op);
    }
    kept.reverse();
    Ok(kept)
}

/// Fuses a product with the sum or the activation before it.
fn fused(ops: Vec<Op>, registers: usize) -> Result<Vec<Op>> {
    let mut uses = filled(0, registers)?;
    ops.iter().cloned().for_each(|mut op| {
        op.registers(&mut |role, reg| uses[reg.index()] += usize::from(role != Role::Makes));
    });
    let mut out: Vec<Op> = Vec::new();
    reserve(&mut out, ops.len(), PLAN)?;
    for mut op in ops {
        // A look at whether to stop may come first.
        let check = matches!(out.last(), Some(Op::Check)) && out.len() > 1;
        let before = out.len().checked_sub(1 + usize::from(check));
        let before = before.map(|at| &out[at]);
        let joined = if let Op::Linear { input: input @ Input::Rows(_), .. } = &mut op {
            join(input, before, &uses)
        } else {
            hint(&mut out, &op);
            false
        };
        if joined {
            out.truncate(out.len() - 1 - usize::from(check));
            if check {
                out.push(Op::Check);
            }
        }
        out.push(op);
    }
    Ok(out)
}

/// Lets a product's input be made on the way, if the operation before makes it.
fn join(input: &mut Input, before: Option<&Op>, uses: &[usize]) -> bool {
    let Input::Rows(x) = *input else { return false };
    match before {
        Some(Op::Add(sum)) if sum.x == x => *input = Input::Sum { sum: sum.clone(), activation: None },
        Some(Op::Gated { x: from, activation, to }) if *to == x && uses[x.index()] == 1 => {
            *input = Input::Gated { x: *from, activation: *activation };
        }
        _ => return false,
    }
    true
}

/// Tells a product of gate and up which activation follows.
fn hint(out: &mut [Op], next: &Op) {
    if let (
        Some(Op::Linear { input: Input::Sum { activation, .. }, to, .. }),
        Op::Gated { x, activation: own, .. },
    ) = (out.last_mut(), next)
        && to == x
    {
        *activation = Some(*own);
    }
}

/// The operations during which a register is in use: from the one that makes it to the last that has it.
#[derive(Clone, Debug)]
struct Life {
    start: usize,
    end: usize,
}

/// The life of each register; `None` if it has none.
fn lives(ops: &mut [Op], inputs: &[Reg], registers: usize) -> Result<Vec<Option<Life>>> {
    let mut lives = filled(None, registers)?;
    inputs.iter().for_each(|input| lives[input.index()] = Some(Life { start: 0, end: 0 }));
    for (at, op) in ops.iter_mut().enumerate() {
        op.registers(&mut |_, reg| {
            lives[reg.index()].get_or_insert(Life { start: at, end: at }).end = at;
        });
    }
    Ok(lives)
}

/// Gives registers places, the widest first: each the lowest one that no other has in the meantime.
fn places(lives: &[Option<Life>], widths: &[usize]) -> Result<Vec<Place>> {
    let mut places = filled(Place::default(), widths.len())?;
    let (mut order, mut taken) = (Vec::new(), Vec::<(Place, Life)>::new());
    reserve(&mut order, widths.len(), PLAN)?;
    reserve(&mut taken, widths.len(), PLAN)?;
    let used = lives.iter().enumerate().filter_map(|(reg, life)| Some((reg, life.clone()?)));
    order.extend(used);
    order.sort_by_key(|(reg, _)| std::cmp::Reverse(widths[*reg]));
    for (reg, life) in order {
        let width = widths[reg];
        let mut offset = 0;
        for (other, own) in &taken {
            if own.end < life.start || life.end < own.start {
                continue;
            }
            if offset + width <= other.offset {
                break;
            }
            offset = offset.max(other.end().next_multiple_of(GRAIN));
        }
        places[reg] = Place { offset, width };
        debug_assert!(taken.iter().all(|(other, own)| {
            let apart = own.end < life.start || life.end < own.start;
            apart || offset + width <= other.offset || other.end() <= offset
        }));
        let at = taken.partition_point(|(other, _)| other.offset <= offset);
        taken.insert(at, (places[reg], life));
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{DType, Matrix};
    use crate::ops::pass::{Attend, Ids};
    use crate::ops::types::{Activation, AttentionShape, Norm};
    use crate::ops::weight::Distinct;
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
            Op::Linear { input: Input::Rows(_), .. } => "linear",
            Op::Linear { input: Input::Sum { activation: None, .. }, .. } => "add linear",
            Op::Linear { input: Input::Sum { .. }, .. } => "add gate up",
            Op::Linear { input: Input::Gated { .. }, .. } => "gated linear",
            Op::Add(_) => "add",
            Op::Attention { .. } => "attention",
            Op::Append { .. } => "append",
            Op::Hidden { .. } => "hidden",
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
        pass.push(Op::Hidden { x, norm: None });
        (pass, x)
    }

    #[test]
    fn products_join_what_comes_before_them() {
        let (pass, _) = two_layers();
        let program = Program::new(&pass, &[], true).unwrap();
        let layer = ["attention", "linear", "add gate up", "gated linear"];
        let wanted =
            [&["embed", "check", "linear"][..], &layer, &["check", "add linear"], &layer, &["add", "hidden"]];
        assert_eq!(names(&program), wanted.concat());
        let mut all = Distinct::default();
        program.weights().into_iter().for_each(|weight| all.add(weight));
        assert_eq!(all.matrices.len(), 1 + 8);
        let parts = Program::in_parts(&pass, &[], true).unwrap();
        assert_eq!(names(&parts).iter().filter(|name| **name == "linear").count(), 8);
    }

    #[test]
    fn errors_say_in_which_layer_an_operation_is() {
        let (pass, _) = two_layers();
        let program = Program::new(&pass, &[], true).unwrap();
        let refused = |part: fn(&Op) -> bool| {
            let check = |op: &Op| if part(op) { Err(Error::unsupported("no")) } else { Ok(()) };
            program.check(check).map_err(|error| error.message)
        };
        assert_eq!(refused(|op| matches!(op, Op::Attention { .. })).unwrap_err(), "layer 0: no");
        let shared = |op: &Op| matches!(op, Op::Attention { how, .. } if how.shared);
        assert_eq!(refused(shared).unwrap_err(), "layer 1: no");
        assert_eq!(refused(|op| matches!(op, Op::Embed { .. })).unwrap_err(), "no");
        assert_eq!(refused(Op::results).unwrap_err(), "no");
        assert_eq!(refused(|op| matches!(op, Op::Recur { .. })), Ok(()));
    }

    #[test]
    fn without_results_only_what_is_remembered_is_done() {
        let (pass, _) = two_layers();
        let program = Program::new(&pass, &[], false).unwrap();
        assert_eq!(names(&program), ["embed", "check", "linear", "append"]);
    }

    /// Each register that an operation has is in use, and no other has its place.
    #[test]
    fn registers_in_use_do_not_overlap() {
        let (pass, _) = two_layers();
        for mut program in
            [Program::new(&pass, &[], true).unwrap(), Program::in_parts(&pass, &[], true).unwrap()]
        {
            let mut live = Vec::<Reg>::new();
            let places = program.places.clone();
            for (at, op) in program.ops.iter_mut().enumerate() {
                op.registers(&mut |role, reg| {
                    assert_eq!(live.contains(reg), role != Role::Makes, "a register of operation {at}");
                    if role == Role::Makes {
                        let own = places[reg.index()];
                        for other in live.iter().map(|reg| places[reg.index()]) {
                            assert!(own.end() <= other.offset || other.end() <= own.offset, "operation {at}");
                        }
                        live.push(*reg);
                    }
                });
                live.retain(|reg| !program.free.contains(&(at, *reg)));
            }
            assert!(live.is_empty());
            // The residual, and the widest two that are there at the same time.
            assert!(program.floats <= 3 * GRAIN, "{}", program.floats);
        }
    }

    #[test]
    fn a_pass_is_appended_with_registers_of_its_own() {
        let mut block = Pass::default();
        let given = block.register(2);
        let output = block.linear(given, None, product());
        block.push(Op::Hidden { x: output, norm: None });
        let (mut pass, x) = two_layers();
        pass.append(&block, [given, x]);
        let program = Program::new(&pass, &[], true).unwrap();
        assert!(names(&program).ends_with(&["hidden", "linear", "hidden"]));
        let [.., Op::Linear { input: Input::Rows(from), to, .. }, Op::Hidden { x: end, .. }] =
            &program.ops[..]
        else {
            unreachable!()
        };
        assert_eq!((*from, to), (x, end));
        assert_ne!(*end, output);
    }
}
