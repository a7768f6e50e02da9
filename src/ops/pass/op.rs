//! The operations of a pass.

use super::Reg;
use crate::kernels::Matrix;
use crate::ops::experts::Experts;
use crate::ops::fold::Fold;
use crate::ops::latent::Latent;
use crate::ops::lora::Site;
use crate::ops::net::Net;
use crate::ops::types::{Activation, AttentionShape, Norm, Projections};
use crate::ops::weight::Weight;
use std::sync::Arc;

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

    /// The same, of passes over pictures (`Projections::whole`).
    pub fn whole(weights: impl Into<Projections>) -> Self {
        Self::fixed(Projections { whole: true, ..weights.into() })
    }
}

/// `to` is the register of the result, `[T, width]`, where T is the number of the batch's rows, or after `Want` that of
/// the wanted ones.
#[derive(Clone)]
pub enum Op {
    /// Between layers: the pass may be stopped here.
    Check,
    /// Rows of a table, times `scale`.
    Embed {
        ids: Ids,
        table: Matrix,
        scale: f32,
        to: Reg,
    },
    /// Puts the batch's given vectors, times `scale`, in the place of their rows (`RaggedBatch::vectors`).
    Replace {
        x: Reg,
        scale: f32,
    },
    /// Weighted sums of a table's rows (`RaggedBatch::blends`).
    Blend {
        table: Matrix,
        to: Reg,
    },
    /// Undoes the rotation of rows of a folded table.
    Unfold {
        x: Reg,
        fold: Arc<Fold>,
    },
    /// Applies `norm` to the input if given, then each matrix's own norm if it has one. Then quantizes the rows as the
    /// weights' type requires (`DType::arithmetic`): for ternary weights to int8 per token (scale 127 / max(absmax,
    /// 1e-5), half to even). Then computes `x · Wᵀ + bias` for each matrix, outputs side by side.
    Linear {
        input: Input,
        norm: Option<Norm>,
        product: Arc<Product>,
        to: Reg,
    },
    Add(Sum),
    /// Gated activation of gate and up side by side, gate first, or activation of up.
    Gated {
        x: Reg,
        activation: Activation,
        to: Reg,
    },
    Norm {
        x: Reg,
        norm: Norm,
        to: Reg,
    },
    /// `norm` of each part of a row, as wide as the norm, in place.
    NormParts {
        x: Reg,
        norm: Norm,
    },
    /// `norm` of the columns that begin at `from`, in place.
    NormColumns {
        x: Reg,
        from: usize,
        norm: Norm,
    },
    Scale {
        x: Reg,
        by: f32,
    },
    /// Elements below `min` become that, and those above `max` that.
    Clamp {
        x: Reg,
        min: f32,
        max: f32,
    },
    /// `(x - minus) * by`, with an element of both for each column.
    Standardize {
        x: Reg,
        minus: Arc<[f32]>,
        by: Arc<[f32]>,
    },
    /// The average of the `parts` equal parts of a row.
    Average {
        x: Reg,
        parts: usize,
        to: Reg,
    },
    /// The activation of `gate` times the columns of `inputs` from `from` on.
    GatedColumns {
        gate: Reg,
        inputs: Reg,
        from: usize,
        activation: Activation,
        to: Reg,
    },
    /// Parts rows of attention whose output has a gate. A row of `x` has query and gate of each head side by side, then
    /// the k heads and the v heads. Makes q, k and v as `Attention` takes them, and the gates.
    SplitGate {
        x: Reg,
        shape: AttentionShape,
        to: Reg,
        gate: Reg,
    },
    /// `x` times the logistic function of `gate`, element by element. A gate with fewer columns has one for each part
    /// of a row: for each head.
    Gate {
        x: Reg,
        gate: Reg,
        to: Reg,
    },
    /// Norms and rotates the q and k heads of `qkv`, writes k and v to the KV cache, and attends over the block tables,
    /// within the window: causally, but for `RaggedBatch::mutual`. Without v heads (`AttentionShape::keys_are_values`),
    /// or k heads either (`Attend::shared`), rows are narrower.
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
    /// The rows of latent attention for `Attention`, from its queries and its compressed rows.
    Absorb {
        q: Reg,
        kv: Reg,
        latent: Arc<Latent>,
        to: Reg,
    },
    /// The values of all heads of latent attention's output.
    Expand {
        x: Reg,
        latent: Arc<Latent>,
        to: Reg,
    },
    /// Runs a layer with the state `place` between its products, whose rows are `inputs`: of Gated DeltaNet one with q,
    /// k, v and the gate of the output, and one with the logits of each head's rate and then of its decay; of a short
    /// convolution one with B, C and x; of Mamba-2 one with the gate, then x, B and C, then the steps.
    Recur {
        inputs: Vec<Reg>,
        place: usize,
        net: Arc<dyn Net>,
        to: Reg,
    },
    /// The output of a mixture of experts for each row, after `norm` if given.
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
    /// Copies rows of `x` to the columns of `to` from `from` on. The copy to the first columns comes first.
    Columns {
        x: Reg,
        from: usize,
        to: Reg,
    },
    /// The hidden states of the tokens before the batch's, given the batch's own: zeros at position 0. Keeps those of
    /// the last certain rows for the next pass.
    Shift {
        x: Reg,
        to: Reg,
    },
    /// Leaves the wanted rows of `x` alone. Later products are of those.
    Want {
        x: Reg,
    },
    /// Appends the rows of `RaggedBatch::hidden_rows`, normed, to `Outputs::hidden`.
    Hidden {
        x: Reg,
        norm: Option<Norm>,
    },
    /// The logits of `RaggedBatch::logits_rows`, which become `cap * tanh(x / cap)` with a cap; draws tokens from them
    /// if the backend can. `norm` follows from other weights. `rows` is a register for a copy of those rows, which
    /// devices do not use.
    Head {
        x: Reg,
        rows: Reg,
        norm: Option<Norm>,
        product: Arc<Product>,
        cap: Option<f32>,
    },
}

/// The rows that a product multiplies.
#[derive(Clone)]
pub enum Input {
    Rows(Reg),
    /// The sum is made on the way. With `activation` the product is gate and up: rows of up that it multiplies by zero,
    /// whatever they are, may be 0.
    Sum {
        sum: Sum,
        activation: Option<Activation>,
    },
    /// `Op::Gated` of `x`, on the way.
    Gated {
        x: Reg,
        activation: Activation,
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
    pub mutual: bool,
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
            mutual: true,
            from: 0,
            sinks: None,
            norms: None,
            value_norm: None,
            shared: false,
            place: 0,
        }
    }
}

/// How an operation uses a register.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Reads,
    Changes,
    Makes,
}

impl Op {
    /// Elements of a row of the result `to`, given those of registers.
    pub(super) fn width(&self, of: &dyn Fn(Reg) -> usize) -> usize {
        let heads = |shape: &AttentionShape| shape.heads * shape.head_dim;
        match self {
            Self::Embed { table, .. } | Self::Blend { table, .. } => table.cols,
            Self::Linear { product, .. } => product.weights.width(),
            Self::Gated { x, activation, .. } => of(*x) / activation.products(),
            Self::Norm { norm, .. } => norm.weight.len(),
            Self::Average { x, parts, .. } => of(*x) / parts,
            Self::SplitGate { shape, .. } => shape.qkv(),
            Self::Attention { how, .. } | Self::Encode { how, .. } => heads(&how.shape),
            Self::Absorb { latent, .. } => (latent.shape.heads + 1) * latent.shape.head_dim(),
            Self::Expand { latent, .. } => latent.shape.values(),
            Self::Recur { net, .. } => net.width(),
            Self::Beside { a, b, .. } => of(*a) + of(*b),
            Self::GatedColumns { gate: x, .. }
            | Self::Gate { x, .. }
            | Self::Experts { x, .. }
            | Self::Shift { x, .. }
            | Self::Head { x, .. } => of(*x),
            Self::Check
            | Self::Replace { .. }
            | Self::Unfold { .. }
            | Self::Add(_)
            | Self::NormParts { .. }
            | Self::NormColumns { .. }
            | Self::Scale { .. }
            | Self::Clamp { .. }
            | Self::Standardize { .. }
            | Self::Append { .. }
            | Self::Columns { .. }
            | Self::Want { .. }
            | Self::Hidden { .. } => 0,
        }
    }

    /// Calls the function with each register: those that are made come last.
    pub fn registers(&mut self, each: &mut dyn FnMut(Role, &mut Reg)) {
        use Role::*;
        match self {
            Self::Check => {}
            Self::Embed { to, .. } | Self::Blend { to, .. } => each(Makes, to),
            Self::Replace { x, .. }
            | Self::Unfold { x, .. }
            | Self::NormParts { x, .. }
            | Self::NormColumns { x, .. }
            | Self::Scale { x, .. }
            | Self::Clamp { x, .. }
            | Self::Standardize { x, .. }
            | Self::Want { x } => each(Changes, x),
            Self::Hidden { x, .. } => each(Reads, x),
            Self::Add(Sum { x, y, .. }) => {
                each(Changes, x);
                each(Reads, y);
            }
            Self::Linear { input, to, .. } => {
                match input {
                    Input::Rows(x) | Input::Gated { x, .. } => each(Reads, x),
                    Input::Sum { sum: Sum { x, y, .. }, .. } => {
                        each(Changes, x);
                        each(Reads, y);
                    }
                }
                each(Makes, to);
            }
            Self::Gated { x, to, .. }
            | Self::Norm { x, to, .. }
            | Self::Average { x, to, .. }
            | Self::Expand { x, to, .. }
            | Self::Experts { x, to, .. }
            | Self::Shift { x, to }
            | Self::Head { x, rows: to, .. }
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
            Self::Columns { x, from, to } => {
                each(Reads, x);
                each(if *from == 0 { Makes } else { Changes }, to);
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
    pub(super) fn remembers(&self) -> bool {
        match self {
            Self::Attention { how, .. } | Self::Append { how, .. } => !how.shared,
            Self::Recur { .. } | Self::Shift { .. } => true,
            _ => false,
        }
    }

    /// Whether it writes to `Outputs`.
    pub fn results(&self) -> bool {
        matches!(self, Self::Hidden { .. } | Self::Head { .. })
    }

    pub fn product(&self) -> Option<&Product> {
        match self {
            Self::Linear { product, .. } | Self::Head { product, .. } => Some(product),
            _ => None,
        }
    }

    /// Calls the function with each weight.
    pub(crate) fn weights<'a>(&'a self, each: &mut dyn FnMut(Weight<'a>)) {
        if let Some(Product { weights, .. }) = self.product() {
            each(Weight::Product(weights));
            weights.norms.iter().for_each(|norm| each(Weight::Norm(norm)));
        }
        let mut norms =
            |all: &mut dyn Iterator<Item = &'a Norm>| all.for_each(|norm| each(Weight::Norm(norm)));
        match self {
            Self::Linear { input: Input::Sum { sum, .. }, norm, .. } => {
                norms(&mut sum.norm.iter().chain(norm));
            }
            Self::Linear { norm, .. } | Self::Add(Sum { norm, .. }) | Self::Hidden { norm, .. } => {
                norms(&mut norm.iter());
            }
            Self::Head { norm, .. } => norm.iter().for_each(|norm| each(Weight::Derived(norm))),
            Self::Norm { norm, .. } | Self::NormParts { norm, .. } | Self::NormColumns { norm, .. } => {
                each(Weight::Norm(norm));
            }
            Self::Beside { norms: both, .. } => norms(&mut both.iter()),
            Self::Embed { table, .. } | Self::Blend { table, .. } => each(Weight::Table(table)),
            Self::Attention { how, .. } | Self::Append { how, .. } | Self::Encode { how, .. } => {
                norms(&mut how.norms.iter().flatten().take(if how.shared { 1 } else { 2 }));
                how.sinks.iter().for_each(|sinks| each(Weight::Sinks(sinks)));
            }
            Self::Absorb { latent, .. } => {
                latent.products().for_each(|product| each(Weight::Product(product)));
                each(Weight::Norm(&latent.norm));
            }
            Self::Recur { net, .. } => each(Weight::Net(&**net)),
            Self::Standardize { minus, by, .. } => {
                [minus, by].into_iter().for_each(|vector| each(Weight::Vector(vector)));
            }
            Self::Experts { norm, experts, .. } => {
                norms(&mut norm.iter().chain(&experts.router_norm));
                each(Weight::Experts(experts));
            }
            Self::Check
            | Self::Replace { .. }
            | Self::Unfold { .. }
            | Self::Gated { .. }
            | Self::Scale { .. }
            | Self::Clamp { .. }
            | Self::Average { .. }
            | Self::GatedColumns { .. }
            | Self::SplitGate { .. }
            | Self::Gate { .. }
            | Self::Expand { .. }
            | Self::Columns { .. }
            | Self::Shift { .. }
            | Self::Want { .. } => {}
        }
    }
}
