//! Layers with states on a device: `cuda/kernels/recurrent.cu`.

use super::launch::{Arg, NULL, at};
use super::linear::{at_column, row_threads};
use super::memory::{DeviceMemory, LayerStates};
use super::ops::CudaOps;
use super::parts::Part;
use super::spans::{CHUNK, Spans};
use crate::base::{Error, Result};
use crate::device::Function;
use crate::kernels::recurrent::tile::TILE;
use crate::ops::delta::{DeltaNet, L2_EPS};
use crate::ops::mamba::{Mamba, MambaNorm};
use crate::ops::net::{Net, other_inputs};
use crate::ops::pass::Program;
use crate::ops::recurrence::Recurrence;
use crate::ops::short_conv::ShortConv;
use crate::ops::types::HeadOrder;
use crate::ops::{Accepted, Memory};
use std::any::Any;
use std::sync::Arc;

/// Warps of a block that convolves.
const WARPS: usize = 4;
/// Channels that a warp convolves.
const PIECE: usize = 128;
/// Keys of the heads whose columns are kept in registers.
const KEYS: usize = 128;

/// The kinds of layers that devices have.
#[derive(Clone, Copy)]
enum Kind<'a> {
    Delta(&'a DeltaNet),
    Mamba(&'a Mamba),
    Conv(&'a ShortConv),
}

impl<'a> Kind<'a> {
    fn of(net: &'a dyn Net) -> Option<Self> {
        let any: &dyn Any = net;
        let delta = any.downcast_ref().map(Self::Delta);
        delta.or_else(|| any.downcast_ref().map(Self::Mamba)).or_else(|| any.downcast_ref().map(Self::Conv))
    }

    /// Tokens that its convolution sees.
    fn taps(self) -> usize {
        match self {
            Self::Delta(net) => net.shape.kernel,
            Self::Mamba(net) => net.shape.kernel,
            Self::Conv(net) => net.shape.kernel,
        }
    }

    /// The widest row that a kernel keeps.
    fn row(self) -> usize {
        match self {
            Self::Mamba(net) => net.shape.inner() / net.shape.groups,
            Self::Delta(_) | Self::Conv(_) => 0,
        }
    }
}

/// The part of a layer that devices lack, if it has one.
pub(super) fn lacking(net: &dyn Net) -> Option<&'static str> {
    match Kind::of(net) {
        None => Some("such recurrent layers"),
        Some(kind) if kind.taps() > CHUNK + 1 => Some("convolutions of so many tokens"),
        Some(_) => None,
    }
}

/// Rows for a layer: inputs of a pass, or what was kept of drafted ones.
struct Rows {
    /// Address of the convolution's inputs, elements from row to row, and number of rows.
    x: u64,
    stride: usize,
    count: usize,
    spans: Spans,
    states: LayerStates,
    /// They were kept of a pass before, and only change the states.
    again: bool,
}

impl Rows {
    /// Kernel arguments: spans, tasks, saves, states, elements from slot to slot, and where drafted rows are kept.
    fn args(&self) -> [Arg; 6] {
        let ([spans, tasks, saves], states) = (self.spans.addresses().map(Arg::from), &self.states);
        let kept = if self.again { NULL } else { states.kept.into() };
        [spans, tasks, saves, states.slots.into(), Arg::long(states.stride), kept]
    }

    /// Blocks of `WARPS` warps, of which each task has `units`.
    fn grid(&self, units: usize) -> [usize; 3] {
        [self.spans.tasks, units.div_ceil(WARPS), 1]
    }
}

/// What a recurrence has as input: convolved rows, and two gates of each head.
struct Prepared {
    mixed: Part,
    gates: Part,
}

/// The heads of a layer in the terms of `cuda/kernels/recurrent.cu`.
struct Grouped<'a> {
    kernels: &'a [Function; 2],
    skip: Option<&'a Arc<[f32]>>,
    groups: usize,
    each: usize,
}

impl CudaOps {
    /// Refuses a layer that needs more of a block than the device has. `Unsupported`.
    pub(super) fn check_net(&self, net: &dyn Net) -> Result<()> {
        self.check_row(Kind::of(net).map_or(0, Kind::row))
    }

    pub(super) fn hold_net(&self, net: &dyn Net) -> Result<()> {
        net.vectors().into_iter().try_for_each(|vector| self.vector(vector).map(drop))
    }

    /// The output of a layer between its products (`Op::Recur`).
    pub(super) fn recur(&self, inputs: &[&Part], net: &dyn Net, states: LayerStates) -> Result<Part> {
        let rows = inputs.first().ok_or_else(other_inputs)?.dims[0];
        if self.queue.leaves() {
            return self.part(rows, net.width());
        }
        let spans = self.inputs.lock().spans.ok_or_else(|| Error::internal("a step without states"))?;
        let given = |x: u64, stride| Rows { x, stride, count: rows, spans, states, again: false };
        match (Kind::of(net).ok_or_else(other_kind)?, inputs) {
            (Kind::Delta(net), [mixed, gates]) => {
                let (channels, values) = (net.shape.channels(), net.shape.values());
                mixed.check("q, k, v and the gate", [rows, channels + values])?;
                gates.check("rates and decays", [rows, 2 * net.shape.value_heads])?;
                let rows = given(mixed.address()?, channels + values);
                let made = self.delta_prepared(net, &rows, gates.arg()?, gates.dims[1])?;
                let y = self.delta_heads(net, &rows, &made)?;
                self.delta_norm(net, &y, at_column(rows.x, channels), rows.stride)
            }
            (Kind::Mamba(net), [x]) => {
                x.check("the inputs of Mamba-2", [rows, net.shape.inputs()])?;
                let rows = given(x.address()? + floats(net.shape.inner()), net.shape.inputs());
                let made = self.mamba_prepared(net, &rows)?;
                let y = self.mamba_heads(net, &rows, &made)?;
                self.mamba_gate(net, &y, x.arg()?, rows.stride)
            }
            (Kind::Conv(net), [x]) => {
                let channels = net.shape.channels;
                x.check("B, C and x", [rows, 3 * channels])?;
                let out = self.part(rows, channels)?;
                let rows = given(x.address()?, 3 * channels);
                let [c, x] = [1, 2].map(|part| at_column(rows.x, part * channels));
                self.short_conv(net, &rows, [x, c, out.arg()?])?;
                Ok(out)
            }
            _ => Err(other_inputs()),
        }
    }

    /// Advances the states by drafted rows of the last pass.
    pub(super) fn advance_states(
        &self,
        program: &Program,
        memory: &DeviceMemory,
        accepted: &[Accepted],
    ) -> Result<()> {
        let layout = memory.layout().states;
        let end = |accepted: &Accepted| accepted.first as usize + accepted.rows as usize;
        let count = accepted.iter().map(end).max().unwrap_or(0);
        if count > layout.drafted || accepted.iter().any(|accepted| accepted.slot as usize >= layout.slots) {
            return Err(Error::internal(format!("accepted drafts {accepted:?} of {layout:?}")));
        }
        self.queue.give();
        let spans = self.inputs.lock().put_accepted(&self.queue, accepted)?;
        program.recurrent().try_for_each(|(layer, net)| {
            let states = memory.states(layer)?;
            let (x, stride) = (states.kept, net.sizes().1);
            let rows = Rows { x, stride, count, spans, states, again: true };
            match Kind::of(net).ok_or_else(other_kind)? {
                Kind::Delta(net) => {
                    let gates = at_column(x, net.shape.channels());
                    let made = self.delta_prepared(net, &rows, gates, stride)?;
                    self.delta_heads(net, &rows, &made).map(drop)
                }
                Kind::Mamba(net) => {
                    let made = self.mamba_prepared(net, &rows)?;
                    self.mamba_heads(net, &rows, &made).map(drop)
                }
                Kind::Conv(net) => self.short_conv(net, &rows, [NULL; 3]),
            }
        })
    }

    fn held(&self, vector: &Arc<[f32]>) -> Result<Arg> {
        at(&self.vector(vector)?.values)
    }

    /// Convolved and normalized q, k and v, decays and rates.
    fn delta_prepared(
        &self,
        net: &DeltaNet,
        rows: &Rows,
        gates: Arg,
        gates_stride: usize,
    ) -> Result<Prepared> {
        let shape = &net.shape;
        let (mixed, steps) =
            (self.part(rows.count, shape.channels())?, self.part(rows.count, 2 * shape.value_heads)?);
        let [spans, tasks, saves, states, slot, kept] = rows.args();
        let sizes = [shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim, shape.kernel];
        let [key_heads, value_heads, key_dim, value_dim, kernel] = sizes.map(Arg::int);
        let [conv, a, dt_bias] = [self.held(&net.conv)?, self.held(&net.a)?, self.held(&net.dt_bias)?];
        let factor = Arg::from(1.0 / (shape.key_dim as f32).sqrt());
        let args = [
            rows.x.into(),
            Arg::long(rows.stride),
            gates,
            Arg::long(gates_stride),
            conv,
            a,
            dt_bias,
            spans,
            tasks,
            saves,
            states,
            slot,
            kept,
            mixed.arg()?,
            steps.arg()?,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            kernel,
            factor,
            L2_EPS.into(),
        ];
        let grid = rows.grid(2 * shape.key_heads + shape.value_heads + 1);
        // SAFETY: spans have rows of x and gates, which have the widths of the shape, or of what is kept of drafted rows;
        // slots are within the states (`StateLayout::check`, `advance_states`); mixed and steps have all rows.
        unsafe { self.launch(&self.kernels().recurrent.delta_prepare, grid, WARPS * 32, 0, &args)? };
        Ok(Prepared { mixed, gates: steps })
    }

    /// Convolved x, B and C, decays and steps.
    fn mamba_prepared(&self, net: &Mamba, rows: &Rows) -> Result<Prepared> {
        let shape = &net.shape;
        let (mixed, steps) =
            (self.part(rows.count, shape.channels())?, self.part(rows.count, 2 * shape.heads)?);
        let [spans, tasks, saves, states, slot, kept] = rows.args();
        let args = [
            rows.x.into(),
            Arg::long(rows.stride),
            self.held(&net.conv)?,
            self.held(&net.conv_bias)?,
            self.held(&net.a)?,
            self.held(&net.dt_bias)?,
            spans,
            tasks,
            saves,
            states,
            slot,
            kept,
            mixed.arg()?,
            steps.arg()?,
            Arg::int(shape.channels()),
            Arg::int(shape.heads),
            Arg::int(shape.kernel),
            net.factors.step.into(),
            net.steps[0].into(),
            net.steps[1].into(),
        ];
        let grid = rows.grid(shape.channels().div_ceil(PIECE) + 1);
        // SAFETY: as in `delta_prepared`.
        unsafe { self.launch(&self.kernels().recurrent.mamba_prepare, grid, WARPS * 32, 0, &args)? };
        Ok(Prepared { mixed, gates: steps })
    }

    fn delta_heads(&self, net: &DeltaNet, rows: &Rows, made: &Prepared) -> Result<Part> {
        let each = match net.shape.order {
            HeadOrder::Grouped => net.shape.value_heads / net.shape.key_heads,
            HeadOrder::Tiled => 0,
        };
        let kernels = &self.kernels().recurrent.delta_recur;
        self.heads(net, rows, made, Grouped { kernels, skip: None, groups: net.shape.key_heads, each })
    }

    fn mamba_heads(&self, net: &Mamba, rows: &Rows, made: &Prepared) -> Result<Part> {
        let (kernels, groups) = (&self.kernels().recurrent.mamba_recur, net.shape.groups);
        let each = net.shape.heads / groups;
        self.heads(net, rows, made, Grouped { kernels, skip: Some(&net.d), groups, each })
    }

    /// Runs prepared rows through the states: `[rows, width]`, nothing for rows that only change the states.
    fn heads(
        &self,
        net: &impl Recurrence,
        rows: &Rows,
        made: &Prepared,
        Grouped { kernels, skip, groups, each }: Grouped,
    ) -> Result<Part> {
        let (heads, [q, k, v]) = (net.heads(), net.inputs(0));
        let [keys, values] = heads.dims;
        let out = self.part(if rows.again { 0 } else { rows.count }, heads.width())?;
        let [spans, _, saves, _, slot, _] = rows.args();
        let states = rows.states.slots + floats(heads.convolution());
        let skip = skip.map_or(Ok(NULL), |skip| self.held(skip))?;
        let (mixed, gates) = (made.mixed.arg()?, made.gates.arg()?);
        let mut args = vec![mixed, gates, skip, spans, saves, states.into(), slot, out.arg()?];
        args.extend([heads.count, keys, values, heads.channels, q, k, v, groups, each].map(Arg::int));
        let in_registers = keys == KEYS && [heads.channels, q, k].iter().all(|at| at.is_multiple_of(4));
        let (kernel, shared) =
            if in_registers { (&kernels[0], 0) } else { (&kernels[1], keys * TILE * size_of::<f32>()) };
        let grid = [rows.spans.count, heads.count * values.div_ceil(TILE), 1];
        // SAFETY: mixed, gates and out have the rows of all spans; slots are within the states, whose layer has all heads.
        unsafe { self.launch(kernel, grid, 32, shared, &args)? };
        Ok(out)
    }

    /// The norm of each head of `y`, times SiLU of the gate at this address.
    fn delta_norm(&self, net: &DeltaNet, y: &Part, gate: Arg, stride: usize) -> Result<Part> {
        let out = self.part(y.dims[0], y.dims[1])?;
        let all = y.dims[0] * net.shape.value_heads;
        let (weight, eps) = self.norm_args(Some(&net.norm))?;
        let [heads, dim] = [net.shape.value_heads, net.shape.value_dim].map(Arg::int);
        let args = [y.arg()?, gate, Arg::long(stride), weight, eps, out.arg()?, Arg::long(all), heads, dim];
        let (kernel, grid) = (&self.kernels().recurrent.delta_norm, [all.div_ceil(WARPS), 1, 1]);
        // SAFETY: y and out are `[rows, heads * dim]`, the gate has as many columns, the weight is `[dim]`.
        unsafe { self.launch(kernel, grid, WARPS * 32, 0, &args)? };
        Ok(out)
    }

    /// `y` times SiLU of the gate at this address, each group normed before or after that.
    fn mamba_gate(&self, net: &Mamba, y: &Part, gate: Arg, stride: usize) -> Result<Part> {
        let out = self.part(y.dims[0], y.dims[1])?;
        let (groups, norm) = (
            net.shape.groups,
            Arg::Int(match net.norm {
                MambaNorm::Never => 0,
                MambaNorm::BeforeGate(_) => 1,
                MambaNorm::AfterGate(_) => 2,
            }),
        );
        let width = y.dims[1] / groups;
        let (weight, eps) = self.norm_args(net.norm.norm())?;
        let [by_gate, by_out] = [net.factors.gate, net.factors.output].map(Arg::from);
        let (stride, columns) = (Arg::long(stride), Arg::int(width));
        let args = [y.arg()?, gate, stride, weight, eps, norm, by_gate, by_out, out.arg()?, columns];
        let (kernel, grid) = (&self.kernels().recurrent.mamba_gate, [y.dims[0], groups, 1]);
        // SAFETY: y and out are `[rows, groups * width]`, the gate has as many columns, as has the weight if there is one.
        unsafe { self.launch(kernel, grid, row_threads(width), width * size_of::<f32>(), &args)? };
        Ok(out)
    }

    /// `others`: x, C and the output, or nothing if rows have the inputs as they are.
    fn short_conv(&self, net: &ShortConv, rows: &Rows, [times, by, out]: [Arg; 3]) -> Result<()> {
        let [spans, tasks, saves, states, slot, kept] = rows.args();
        let weights = self.held(&net.weights)?;
        let [channels, kernel] = [net.shape.channels, net.shape.kernel].map(Arg::int);
        let (x, stride) = (rows.x.into(), Arg::long(rows.stride));
        let args =
            [x, times, by, stride, weights, spans, tasks, saves, states, slot, kept, out, channels, kernel];
        let grid = rows.grid(net.shape.channels.div_ceil(PIECE));
        // SAFETY: as in `delta_prepared`.
        unsafe { self.launch(&self.kernels().recurrent.short_conv, grid, WARPS * 32, 0, &args) }
    }
}

/// Bytes of this many elements.
fn floats(count: usize) -> u64 {
    (count * size_of::<f32>()) as u64
}

fn other_kind() -> Error {
    Error::internal("a kind of recurrent layer that devices lack")
}
