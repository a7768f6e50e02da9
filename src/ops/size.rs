//! The memory of a pass, besides weights and the KV cache.

use super::mixture::FEW;
use super::paging::Paging;
use super::pass::{Op, Program, Ropes};
use super::set::OpSet;
use super::types::{Projections, Rope};
use crate::kernels::gemm::dense::whole;

/// A step's rows, and the contexts that they may have.
#[derive(Clone, Copy)]
pub struct Extent {
    pub rows: usize,
    /// Rows with logits.
    pub logits: usize,
    pub context: usize,
}

/// Bytes that operations keep, each for all passes.
#[derive(Default)]
struct Scratch {
    registers: usize,
    /// Rotations, and places in the KV cache.
    places: usize,
    /// Inputs of a product.
    inputs: usize,
    /// The input and the product of a matrix with a norm of its own.
    own: usize,
    /// Products of whole pictures.
    whole: usize,
    experts: usize,
    recurrent: usize,
    attention: usize,
    threads: usize,
    head: usize,
}

/// Upper bound of the bytes that steps keep on `ops`, each with any of `passes`, and a MiB for the threads:
/// - For each row the registers, and the rotations.
/// - For each row, the widest activation, normalized in f32 and quantized to int8 (twice in different orders, or once
///   and as 16 bits), with its scale and sum or with those of its blocks. Blocks take at most 4 bytes per 32 columns, 4
///   more for the other order, and 2 per 16 columns.
/// - What products with norms of their own, experts, layers with states, attention and heads keep, each reused by all
///   layers.
/// - For each row, its place in the KV cache, for each of `shapes` shapes of attention.
pub fn step_bytes<'a>(
    passes: impl Iterator<Item = (&'a Program, Extent)>,
    ops: &dyn OpSet,
    ropes: &[Ropes],
    shapes: usize,
) -> usize {
    let angles = |rope: &Rope| 1 + 3 * usize::from(rope.axes.is_some()) + 2 * rope.inv_freq.len();
    let angles: usize = ropes.iter().map(|ropes| angles(&ropes.rope)).sum();
    let mut scratch = Scratch::default();
    for (program, extent) in passes {
        let floats = if ops.pools() { program.pooled() } else { program.floats() };
        extent.most(&mut scratch.registers, 4 * floats);
        extent.most(&mut scratch.places, 4 * angles + shapes * Paging::ROW_BYTES);
        program.ops().iter().for_each(|op| scratch.add(op, ops, extent));
    }
    let Scratch { registers, places, inputs, own, whole, experts, recurrent, attention, threads, head } =
        scratch;
    let all = [registers, places, inputs, own, whole, experts, recurrent, attention, threads, head, 1 << 20];
    all.into_iter().fold(0, usize::saturating_add)
}

impl Extent {
    /// Raises `bytes` to those of all rows.
    fn most(self, bytes: &mut usize, of_row: usize) {
        *bytes = (*bytes).max(self.rows.saturating_mul(of_row));
    }
}

impl Program {
    /// Elements of memory for each row if each register has a piece that is reused whole, by the next one that fits.
    fn pooled(&self) -> usize {
        let (mut sum, mut free) = (0, Vec::<usize>::new());
        let mut pieces = vec![0; self.places().len()];
        let mut freed = self.free().iter().peekable();
        for (at, op) in self.ops().iter().enumerate() {
            op.clone().registers(&mut |_, reg| {
                let (piece, width) = (&mut pieces[reg.index()], self.places()[reg.index()].width);
                if *piece == 0 {
                    let fits = (0..free.len()).filter(|n| free[*n] >= width).min_by_key(|n| free[*n]);
                    *piece = fits.map_or(width, |n| free.swap_remove(n));
                    sum += if fits.is_none() { width } else { 0 };
                }
            });
            while let Some((_, reg)) = freed.next_if(|(behind, _)| *behind == at) {
                free.push(std::mem::take(&mut pieces[reg.index()]));
            }
        }
        sum
    }
}

impl Scratch {
    fn add(&mut self, op: &Op, ops: &dyn OpSet, extent: Extent) {
        if let Some(product) = op.product() {
            self.product(&product.weights, ops, extent);
        }
        match op {
            Op::Head { product, .. } => {
                self.head = ops.head_bytes(extent.logits, product.weights.width());
            }
            Op::Experts { experts, .. } => {
                experts.products().for_each(|weights| self.product(weights, ops, extent));
                let hidden = experts.router.matrices.first().map_or(0, |router| router.cols);
                let shared = experts.shared.iter().map(|shared| &shared.expert);
                let widths = experts.experts.iter().chain(shared).map(|expert| expert.gate_up.width());
                let (width, used) = (widths.max().unwrap_or(0).div_ceil(2), experts.choice.used);
                // Logits and the choice; the outputs; buffers of one feed-forward, and of those of the threads. If
                // memory is pooled, the rows of all chosen experts at once, also quantized.
                let row = match ops.pools() {
                    true => (2 * hidden + 2 * width + 2 * hidden.max(width)) * used + hidden + 2 * width,
                    false => hidden * used + 6 * hidden + 4 * width,
                };
                let row = row + experts.experts.len() + 7 * used;
                extent.most(&mut self.experts, 4 * row);
                self.threads = self.threads.max(ops.threads() * FEW * 6 * 4 * (hidden + width));
            }
            Op::Recur { net, .. } => extent.most(&mut self.recurrent, 4 * net.scratch()),
            Op::Attention { how, .. } | Op::Append { how, .. } => {
                let kept = ops.attention_bytes(&how.shape, extent.rows, extent.context);
                self.attention = self.attention.max(kept);
            }
            Op::Encode { how, .. } => {
                let kept = ops.encode_bytes(&how.shape, extent.rows.min(extent.context));
                self.attention = self.attention.max(kept);
            }
            Op::Absorb { latent, .. } => {
                latent.products().for_each(|weights| self.product(weights, ops, extent));
                let kept = ops.threads().saturating_mul(latent.shape.scratch_bytes(extent.rows));
                self.threads = self.threads.max(kept);
            }
            _ => {}
        }
    }

    fn product(&mut self, weights: &Projections, ops: &dyn OpSet, extent: Extent) {
        let cols = weights.matrices.first().map_or(0, |matrix| matrix.cols);
        extent.most(&mut self.inputs, 4 * cols + 3 * cols.next_multiple_of(256) + cols * 3 / 8 + 64);
        if weights.whole && weights.matrices.iter().any(|matrix| whole::takes(matrix.dtype)) {
            self.whole = self.whole.max(ops.whole_bytes(extent.rows, cols));
        }
        if !weights.norms.is_empty() {
            let rows = weights.matrices.iter().map(|matrix| matrix.rows).max().unwrap_or(0);
            extent.most(&mut self.own, 4 * (cols + rows));
        }
    }
}
