//! A mixture of experts on the CPU. An expert with few rows is the work of one thread, so that a step with few rows for
//! each of many experts takes one parallel region; an expert with many rows is the work of all.

use super::experts::{Expert, Experts, Routes, Shared, add_gated};
use super::linear::{Linear, Scratch};
use super::prepare::Source;
use super::rows::On;
use super::{Activation, Norm, Projections};
use crate::base::sync::Mutex;
use crate::base::{Error, Result, grow};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::rows::elementwise;
use std::cell::RefCell;

/// Rows up to which an expert is the work of one thread.
pub(super) const FEW: usize = 32;

/// Memory of one mixture; grows to the largest, then is reused.
#[derive(Default)]
pub(super) struct MixtureScratch {
    routes: Routes,
    logits: Vec<f32>,
    /// `[rows * used, hidden]`: the output of each expert for each of its rows, by experts.
    outputs: Vec<f32>,
    whole: Work,
    /// The rows as the experts see them, and as the router sees them.
    normed: [Vec<f32>; 2],
}

/// One feed-forward's memory.
#[derive(Default)]
struct Work {
    rows: Vec<f32>,
    gate_up: Vec<f32>,
    down: Vec<f32>,
}

const WHAT: &str = "a step's experts";

thread_local! {
    /// The memory of an expert with few rows, in the thread that it is the work of.
    static OWN: RefCell<(Work, Mutex<Scratch>)> = RefCell::default();
}

pub(super) struct Mixture<'a> {
    pub on: On<'a>,
    /// Memory of the products that all threads work on.
    pub scratch: &'a Mutex<Scratch>,
    pub experts: &'a Experts,
    pub activation: Activation,
}

impl Mixture<'_> {
    /// The experts' outputs for the rows of `x`, added by their weights: `out`, as wide as `x`. Experts are added in
    /// ascending order, and the shared one last, so a row's sum does not depend on the other rows. The router sees the
    /// rows after its own norm, if it has one.
    pub(super) fn run(
        &self,
        scratch: &mut MixtureScratch,
        x: &[f32],
        dims: [usize; 2],
        norm: Option<&Norm>,
        out: &mut [f32],
    ) -> Result<()> {
        let (On { pool, isa }, [rows, width]) = (self.on, dims);
        let Experts { router, choice, bias, scales, experts, shared, router_norm } = self.experts;
        let MixtureScratch { routes, logits, outputs, whole, normed: [normed, own] } = scratch;
        let own = self.normed(x, dims, router_norm.as_ref(), own)?;
        let given = self.normed(x, dims, norm, normed)?;
        let x = given.unwrap_or(x);
        let seen = own.unwrap_or(x);
        self.product(router, self.scratch, Source::Rows(seen), dims, logits)?;
        routes.choose(isa, logits, experts.len(), *choice, bias.as_deref(), scales.as_deref())?;
        let wanted = rows * choice.used * width;
        let outputs = grow(outputs, wanted, WHAT)?;
        self.experts(routes, x, dims, whole, &SharedOut::new(outputs))?;
        let sums = SharedOut::new(out);
        pool.run_if_worth(2 * wanted, rows, &|row| {
            // SAFETY: each task has a row of its own.
            let to = unsafe { sums.slice(row * width..(row + 1) * width) };
            to.fill(0.0);
            for (entry, weight) in routes.of_row(row) {
                elementwise::add_scaled(isa, to, &outputs[entry * width..][..width], weight);
            }
        });
        if let Some(Shared { expert, gate }) = shared {
            self.feed_forward(expert, self.scratch, Source::Rows(x), dims, whole)?;
            match gate {
                Some(gate) => {
                    self.product(gate, self.scratch, Source::Rows(x), dims, logits)?;
                    add_gated(isa, out, width, logits, &whole.down);
                }
                None => elementwise::add(isa, out, &whole.down),
            }
        }
        Ok(())
    }

    /// The rows after `norm`, in `to`.
    fn normed<'t>(
        &self,
        x: &[f32],
        dims: [usize; 2],
        norm: Option<&Norm>,
        to: &'t mut Vec<f32>,
    ) -> Result<Option<&'t [f32]>> {
        let Some(norm) = norm else { return Ok(None) };
        let to = grow(to, x.len(), WHAT)?;
        self.on.norm(x, dims, norm, to)?;
        Ok(Some(to))
    }

    /// Writes the outputs of all experts that have rows.
    fn experts(
        &self,
        routes: &Routes,
        x: &[f32],
        dims: [usize; 2],
        whole: &mut Work,
        outputs: &SharedOut,
    ) -> Result<()> {
        let pool = self.on.pool;
        let one = |e: usize, work: &mut Work, scratch: &Mutex<Scratch>| -> Result<()> {
            let (range, rows) = routes.of(e);
            let [count, width] = [rows.len(), dims[1]];
            let gathered = grow(&mut work.rows, count * width, WHAT)?;
            for (to, row) in gathered.chunks_exact_mut(width).zip(rows) {
                to.copy_from_slice(&x[*row as usize * width..][..width]);
            }
            let rows = std::mem::take(&mut work.rows);
            let source = Source::Rows(&rows[..count * width]);
            let made = self.feed_forward(&self.experts.experts[e], scratch, source, [count, width], work);
            work.rows = rows;
            made?;
            // SAFETY: entries belong to one expert each, and each expert to one task.
            let to = unsafe { outputs.slice(range.start * width..range.end * width) };
            to.copy_from_slice(&work.down);
            Ok(())
        };
        let few = |e: &usize| routes.of(*e).1.len() <= FEW;
        let busy = routes.busy();
        // With fewer experts some threads would wait for the last of them.
        let alone = busy.iter().filter(|e| few(e)).count() >= 2 * pool.threads();
        let failed = Mutex::new(None);
        if alone {
            pool.run(busy.len(), &|n| {
                if !few(&busy[n]) || failed.lock().is_some() {
                    return;
                }
                OWN.with_borrow_mut(|(work, scratch)| {
                    if let Err(error) = one(busy[n], work, scratch) {
                        failed.lock().get_or_insert(error);
                    }
                });
            });
        }
        if let Some(error) = failed.lock().take() {
            return Err(error);
        }
        let mut rest = busy.iter().filter(|e| !(alone && few(e)));
        rest.try_for_each(|e| one(*e, whole, self.scratch))
    }

    /// An expert's output, in `work.down`.
    fn feed_forward(
        &self,
        expert: &Expert,
        scratch: &Mutex<Scratch>,
        source: Source,
        dims: [usize; 2],
        Work { gate_up, down, .. }: &mut Work,
    ) -> Result<()> {
        self.product(&expert.gate_up, scratch, source, dims, gate_up)?;
        let source = Source::Gated { gate_up, activation: self.activation };
        let between = gate_up.len() / 2 / dims[0].max(1);
        self.product(&expert.down, scratch, source, [dims[0], between], down)
    }

    /// Overwrites `out` with a product.
    fn product(
        &self,
        weights: &Projections,
        scratch: &Mutex<Scratch>,
        source: Source,
        dims: [usize; 2],
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let On { pool, isa } = self.on;
        let product = Linear { pool, isa, scratch, norm: None, weights, gates: None };
        let wanted =
            dims[0].checked_mul(weights.width()).ok_or_else(|| Error::internal("a product's size"))?;
        grow(out, wanted, WHAT)?;
        out.truncate(wanted);
        product.run(source, dims, out)
    }
}
