//! A forward pass as a list of operations on registers. Layers push plain operations when they are read; `Program` fuses
//! them, leaves out what nobody needs, and runs them for each batch.

mod plan;
mod run;

pub use plan::Program;
pub use run::{Ropes, Step};

use super::delta::DeltaNet;
use super::experts::Experts;
use super::fold::Fold;
use super::latent::Latent;
use super::lora::Site;
use super::mamba::Mamba;
use super::short_conv::ShortConv;
use super::types::{Activation, AttentionShape, Norm, Projections};
use super::weight::{Recurrent, Weight};
use crate::base::reserve;
use crate::kernels::Matrix;
use std::sync::Arc;

/// The purpose of a list's memory, for errors.
const PLAN: &str = "the list of a pass";

/// Rows of f32, one for each row of the batch, or behind `Op::Want` for each wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg(u32);

/// The weights of a product, and how adapters find it.
pub struct Product {
    pub weights: Projections,
    /// Where adapters may update it.
    pub site: Option<Site>,
    /// GGUF's names of its matrices, without `.weight`, for adapters.
    pub names: Vec<String>,
}

impl Product {
    /// One that no adapter updates.
    pub fn fixed(weights: impl Into<Projections>) -> Self {
        Self { weights: weights.into(), site: None, names: Vec::new() }
    }
}

/// Most run the operation of `OpSet` by the same name. `to` is the register of the result.
#[derive(Clone)]
pub enum Op {
    /// Between layers: the pass may be stopped here.
    Check,
    /// Rows of a table.
    Embed {
        ids: Ids,
        table: Matrix,
        scale: f32,
        to: Reg,
    },
    Unfold {
        x: Reg,
        fold: Arc<Fold>,
    },
    Linear {
        x: Reg,
        norm: Option<Norm>,
        product: Arc<Product>,
        to: Reg,
    },
    Add(Sum),
    /// `Add`, then `Linear`, whose rows `activation` makes gates and up of, if it is given.
    AddLinear {
        add: Sum,
        norm: Option<Norm>,
        product: Arc<Product>,
        activation: Option<Activation>,
        to: Reg,
    },
    Gated {
        x: Reg,
        activation: Activation,
        to: Reg,
    },
    /// `Gated`, then `Linear`.
    GatedLinear {
        x: Reg,
        activation: Activation,
        norm: Option<Norm>,
        product: Arc<Product>,
        to: Reg,
    },
    Norm {
        x: Reg,
        norm: Norm,
        to: Reg,
    },
    NormParts {
        x: Reg,
        norm: Norm,
    },
    NormColumns {
        x: Reg,
        from: usize,
        norm: Norm,
    },
    Scale {
        x: Reg,
        by: f32,
    },
    GatedColumns {
        gate: Reg,
        inputs: Reg,
        from: usize,
        activation: Activation,
        to: Reg,
    },
    SplitGate {
        x: Reg,
        shape: AttentionShape,
        to: Reg,
        gate: Reg,
    },
    Gate {
        x: Reg,
        gate: Reg,
        to: Reg,
    },
    Attention {
        qkv: Reg,
        how: Arc<Attend>,
        to: Reg,
    },
    /// Writes K and V alone.
    Append {
        qkv: Reg,
        how: Arc<Attend>,
    },
    /// Attention within whole texts, in both directions. It changes `qkv`.
    Encode {
        qkv: Reg,
        how: Arc<Attend>,
        to: Reg,
    },
    Absorb {
        q: Reg,
        kv: Reg,
        latent: Arc<Latent>,
        to: Reg,
    },
    Expand {
        x: Reg,
        latent: Arc<Latent>,
        to: Reg,
    },
    /// A layer with the state `place`, between its products: of one or two of them.
    Recur {
        inputs: Vec<Reg>,
        place: usize,
        net: Net,
        to: Reg,
    },
    Experts {
        x: Reg,
        norm: Option<Norm>,
        experts: Arc<Experts>,
        activation: Activation,
        to: Reg,
    },
    /// Both side by side, each normed.
    Beside {
        a: Reg,
        b: Reg,
        norms: [Norm; 2],
        to: Reg,
    },
    Shift {
        x: Reg,
        to: Reg,
    },
    /// Of `x`, the rows that are wanted. Later products are of those.
    Want {
        x: Reg,
    },
}

/// The numbers of a table's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    Tokens,
    /// Types of tokens (`RaggedBatch::types`).
    Types,
    /// Positions, plus this number.
    Positions(u32),
}

/// `x += y`, with `norm(y)` if there is a norm.
#[derive(Clone)]
pub struct Sum {
    pub x: Reg,
    pub y: Reg,
    pub norm: Option<Norm>,
}

/// How a layer attends, and where its keys and values are (`ops::Attention`).
pub struct Attend {
    pub shape: AttentionShape,
    /// The paging is that of layers with the model's other shape.
    pub global: bool,
    /// Index among the model's rotations.
    pub rope: usize,
    pub window: Option<usize>,
    pub from: usize,
    pub sinks: Option<Arc<[f32]>>,
    pub norms: Option<[Norm; 2]>,
    pub value_norm: Option<Norm>,
    pub shared: bool,
    /// Index of the KV cache.
    pub place: usize,
}

impl Attend {
    /// Over all positions, without norms, in the first cache.
    pub fn plain(shape: AttentionShape, rope: usize) -> Self {
        Self {
            shape,
            global: false,
            rope,
            window: None,
            from: 0,
            sinks: None,
            norms: None,
            value_norm: None,
            shared: false,
            place: 0,
        }
    }
}

/// The weights of a layer whose past is a state, besides its products.
#[derive(Clone)]
pub enum Net {
    DeltaNet(Arc<DeltaNet>),
    ShortConv(Arc<ShortConv>),
    Mamba(Arc<Mamba>),
}

impl Net {
    pub fn of(&self) -> Recurrent<'_> {
        match self {
            Self::DeltaNet(net) => Recurrent::DeltaNet(net),
            Self::ShortConv(net) => Recurrent::ShortConv(net),
            Self::Mamba(net) => Recurrent::Mamba(net),
        }
    }
}

/// How an operation uses a register.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Reads,
    Changes,
    Makes,
}

impl Op {
    /// Calls the function with each register: those that are made come last.
    fn registers(&mut self, each: &mut dyn FnMut(Role, &mut Reg)) {
        use Role::*;
        match self {
            Self::Check => {}
            Self::Embed { to, .. } => each(Makes, to),
            Self::Unfold { x, .. }
            | Self::NormParts { x, .. }
            | Self::NormColumns { x, .. }
            | Self::Scale { x, .. }
            | Self::Want { x } => each(Changes, x),
            Self::Add(Sum { x, y, .. }) => {
                each(Changes, x);
                each(Reads, y);
            }
            Self::AddLinear { add, to, .. } => {
                each(Changes, &mut add.x);
                each(Reads, &mut add.y);
                each(Makes, to);
            }
            Self::Linear { x, to, .. }
            | Self::Gated { x, to, .. }
            | Self::GatedLinear { x, to, .. }
            | Self::Norm { x, to, .. }
            | Self::Expand { x, to, .. }
            | Self::Experts { x, to, .. }
            | Self::Shift { x, to }
            | Self::Attention { qkv: x, to, .. } => {
                each(Reads, x);
                each(Makes, to);
            }
            Self::Encode { qkv, to, .. } => {
                each(Changes, qkv);
                each(Makes, to);
            }
            Self::Append { qkv, .. } => each(Reads, qkv),
            Self::GatedColumns { gate: a, inputs: b, to, .. }
            | Self::Gate { x: a, gate: b, to }
            | Self::Absorb { q: a, kv: b, to, .. }
            | Self::Beside { a, b, to, .. } => {
                each(Reads, a);
                each(Reads, b);
                each(Makes, to);
            }
            Self::SplitGate { x, to, gate, .. } => {
                each(Reads, x);
                each(Makes, to);
                each(Makes, gate);
            }
            Self::Recur { inputs, to, .. } => {
                inputs.iter_mut().for_each(|input| each(Reads, input));
                each(Makes, to);
            }
        }
    }

    /// Whether it writes what later passes need: K and V, or a state.
    fn remembers(&self) -> bool {
        match self {
            Self::Attention { how, .. } | Self::Append { how, .. } => !how.shared,
            Self::Recur { .. } | Self::Shift { .. } => true,
            _ => false,
        }
    }

    fn product(&self) -> Option<&Product> {
        match self {
            Self::Linear { product, .. }
            | Self::AddLinear { product, .. }
            | Self::GatedLinear { product, .. } => Some(product),
            _ => None,
        }
    }

    /// Calls the function with each weight.
    fn weights<'a>(&'a self, each: &mut dyn FnMut(Weight<'a>)) {
        if let Some(Product { weights, .. }) = self.product() {
            each(Weight::Product(weights));
            weights.norms.iter().for_each(|norm| each(Weight::Norm(norm)));
        }
        let mut norms =
            |all: &mut dyn Iterator<Item = &'a Norm>| all.for_each(|norm| each(Weight::Norm(norm)));
        match self {
            Self::Linear { norm, .. } | Self::Add(Sum { norm, .. }) | Self::GatedLinear { norm, .. } => {
                norms(&mut norm.iter());
            }
            Self::AddLinear { add, norm, .. } => norms(&mut add.norm.iter().chain(norm)),
            Self::Norm { norm, .. } | Self::NormParts { norm, .. } | Self::NormColumns { norm, .. } => {
                each(Weight::Norm(norm));
            }
            Self::Beside { norms: both, .. } => norms(&mut both.iter()),
            Self::Embed { table, .. } => each(Weight::Table(table)),
            Self::Attention { how, .. } | Self::Append { how, .. } | Self::Encode { how, .. } => {
                norms(&mut how.norms.iter().flatten().take(if how.shared { 1 } else { 2 }));
                how.sinks.iter().for_each(|sinks| each(Weight::Sinks(sinks)));
            }
            Self::Absorb { latent, .. } => {
                latent.products().for_each(|product| each(Weight::Product(product)));
                each(Weight::Norm(&latent.norm));
            }
            Self::Recur { net, .. } => each(Weight::Recurrent(net.of())),
            Self::Experts { norm, experts, .. } => {
                norms(&mut norm.iter().chain(&experts.router_norm));
                each(Weight::Experts(experts));
            }
            Self::Check
            | Self::Unfold { .. }
            | Self::Gated { .. }
            | Self::Scale { .. }
            | Self::GatedColumns { .. }
            | Self::SplitGate { .. }
            | Self::Gate { .. }
            | Self::Expand { .. }
            | Self::Shift { .. }
            | Self::Want { .. } => {}
        }
    }
}

/// The operations of a pass, in their order.
#[derive(Default)]
pub struct Pass {
    ops: Vec<Op>,
    registers: u32,
    /// There was no memory for an operation: `Program::new` says so.
    short: bool,
}

impl Pass {
    /// A register that nothing has made yet.
    pub fn register(&mut self) -> Reg {
        self.registers += 1;
        Reg(self.registers - 1)
    }

    pub fn push(&mut self, op: Op) {
        match reserve(&mut self.ops, 1, PLAN) {
            Ok(()) => self.ops.push(op),
            Err(_) => self.short = true,
        }
    }

    /// Pushes the operation that `op` makes for its result's register.
    pub fn make(&mut self, op: impl FnOnce(Reg) -> Op) -> Reg {
        let to = self.register();
        self.push(op(to));
        to
    }

    pub fn linear(&mut self, x: Reg, norm: Option<Norm>, product: Product) -> Reg {
        self.make(|to| Op::Linear { x, norm, product: Arc::new(product), to })
    }

    /// `x += y`, with `norm(y)` if there is a norm.
    pub fn add(&mut self, x: Reg, y: Reg, norm: Option<Norm>) {
        self.push(Op::Add(Sum { x, y, norm }));
    }

    /// Appends the operations of `other`, whose register `input` is `own` here. Returns what its `output` is.
    pub fn append(&mut self, other: &Self, [input, own]: [Reg; 2], output: Reg) -> Reg {
        let first = self.registers;
        let moved = |reg: Reg| if reg == input { own } else { Reg(first + reg.0) };
        for op in &other.ops {
            let mut op = op.clone();
            op.registers(&mut |_, reg| *reg = moved(*reg));
            self.push(op);
        }
        self.short |= other.short;
        self.registers += other.registers;
        moved(output)
    }
}
