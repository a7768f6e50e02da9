//! A forward pass as a list of operations on registers. Layers push plain operations when they are read; `Program`
//! fuses them, leaves out what nobody needs, gives registers their place in memory, and is run for each batch by an
//! `OpSet`.

mod op;
mod plan;
mod step;

pub use op::{Attend, Ids, Input, Op, Product, Role, Sum};
pub use plan::{Place, Program};
pub use step::{Ropes, Step};

use super::types::Norm;
use crate::base::reserve;
use std::sync::Arc;

/// The purpose of a list's memory, for errors.
const PLAN: &str = "the list of a pass";

/// Rows of f32, one for each row of the batch, or after `Op::Want` for each wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg(u32);

impl Reg {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The operations of a pass, in their order.
#[derive(Default)]
pub struct Pass {
    ops: Vec<Op>,
    /// Elements of a row of each register.
    widths: Vec<usize>,
    /// There was no memory for an operation: `Program::new` says so.
    short: bool,
}

impl Pass {
    /// A register that nothing has made yet, with rows of `width` elements.
    pub fn register(&mut self, width: usize) -> Reg {
        if reserve(&mut self.widths, 1, PLAN).is_err() {
            self.short = true;
            return Reg(0);
        }
        self.widths.push(width);
        Reg(self.widths.len() as u32 - 1)
    }

    pub fn push(&mut self, op: Op) {
        match reserve(&mut self.ops, 1, PLAN) {
            Ok(()) => self.ops.push(op),
            Err(_) => self.short = true,
        }
    }

    /// Pushes the operation that `op` makes for its result's register.
    pub fn make(&mut self, op: impl FnOnce(Reg) -> Op) -> Reg {
        let to = self.register(0);
        let op = op(to);
        let width = op.width(&|reg| self.widths.get(reg.index()).copied().unwrap_or_default());
        if let Some(own) = self.widths.get_mut(to.index()) {
            *own = width;
        }
        self.push(op);
        to
    }

    pub fn linear(&mut self, x: Reg, norm: Option<Norm>, product: Product) -> Reg {
        self.make(|to| Op::Linear { input: Input::Rows(x), norm, product: Arc::new(product), to })
    }

    /// `x += y`, with `norm(y)` if there is a norm.
    pub fn add(&mut self, x: Reg, y: Reg, norm: Option<Norm>) {
        self.push(Op::Add(Sum { x, y, norm }));
    }

    /// Appends the operations of `other`, whose register `input` is `own` here.
    pub fn append(&mut self, other: &Self, [input, own]: [Reg; 2]) {
        let first = self.widths.len() as u32;
        for op in &other.ops {
            let mut op = op.clone();
            op.registers(&mut |_, reg| *reg = if *reg == input { own } else { Reg(first + reg.0) });
            self.push(op);
        }
        self.short |= other.short;
        match reserve(&mut self.widths, other.widths.len(), PLAN) {
            Ok(()) => self.widths.extend_from_slice(&other.widths),
            Err(_) => self.short = true,
        }
    }
}
