//! Adapters: low-rank updates of a decoder's products (Hu et al. 2021, "LoRA") for some rows of a step.

use super::types::Projections;
use crate::base::sync::Mutex;
use crate::base::{Error, Result, reserve};
use crate::kernels::gemm::blocks::MOST;
use crate::kernels::gemm::lora::{self, Pair, Update};
use crate::kernels::pool::buffer::grown;
use crate::kernels::{Isa, Pool};
use std::sync::Arc;

/// The products of a decoder that an adapter may update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    Layer(usize, Slot),
    Head,
}

/// The products of a layer. No layer has two products for one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The inputs of a mixer: q, k and v, for example.
    Enter,
    Output,
    /// gate and up.
    GateUp,
    Down,
    /// A second product of the same inputs as `Enter`: gates, or the queries of latent attention.
    Gate,
    /// The latent of the queries.
    Latent,
    /// Inputs and output of a second mixer.
    Beside,
    BesideOutput,
    /// Gate and output of the layer's own input (Gemma 4).
    InputGate,
    InputOutput,
}

impl Slot {
    /// Number of slots.
    pub const COUNT: usize = Self::InputOutput as usize + 1;
}

/// The pairs of one product, one for each matrix that has one.
pub type Pairs<P = Pair> = [Option<P>; MOST];

/// An adapter's pairs, or what operations derive from them.
#[derive(Clone)]
pub struct Lora<P = Pair> {
    /// For each layer, one entry per product, in the order of `Slot`.
    pub layers: Vec<[Pairs<P>; Slot::COUNT]>,
    pub head: Pairs<P>,
}

impl<P> Lora<P> {
    /// An adapter that updates none of `layers` layers.
    pub fn empty(layers: usize) -> Self {
        Self { layers: (0..layers).map(|_| Default::default()).collect(), head: Pairs::default() }
    }

    pub fn pairs_mut(&mut self, site: Site) -> &mut Pairs<P> {
        match site {
            Site::Layer(layer, slot) => &mut self.layers[layer][slot as usize],
            Site::Head => &mut self.head,
        }
    }

    pub fn pairs(&self, site: Site) -> &Pairs<P> {
        match site {
            Site::Layer(layer, slot) => &self.layers[layer][slot as usize],
            Site::Head => &self.head,
        }
    }

    /// The pairs of every product.
    pub fn all(&self) -> impl Iterator<Item = &Pairs<P>> {
        self.layers.iter().flatten().chain([&self.head])
    }

    /// Applies `make` to each pair.
    pub fn try_map<Q>(&self, make: &dyn Fn(&P) -> Result<Q>) -> Result<Lora<Q>> {
        let product = |pairs: &Pairs<P>, to: &mut Pairs<Q>| -> Result<()> {
            for (pair, to) in pairs.iter().zip(to) {
                *to = pair.as_ref().map(make).transpose()?;
            }
            Ok(())
        };
        let mut made = Lora { layers: Vec::new(), head: Pairs::default() };
        reserve(&mut made.layers, self.layers.len(), "an adapter")?;
        for layer in &self.layers {
            let mut to: [Pairs<Q>; Slot::COUNT] = Default::default();
            layer.iter().zip(&mut to).try_for_each(|(pairs, to)| product(pairs, to))?;
            made.layers.push(to);
        }
        product(&self.head, &mut made.head)?;
        Ok(made)
    }
}

/// The rows of a step that run with an adapter.
#[derive(Clone)]
pub struct Adapted {
    pub lora: Arc<Lora>,
    /// Factor on the scale of each pair.
    pub scale: f32,
    /// In ascending order. No row has two adapters.
    pub rows: Vec<u32>,
}

impl Adapted {
    /// The adapters of `rows` alone, with row numbers replaced by indices into `rows`.
    pub fn among(all: &[Self], rows: &[u32]) -> Vec<Self> {
        let place = |row: &u32| rows.binary_search(row).ok().map(|at| at as u32);
        let some = |adapted: &Self| Self {
            lora: adapted.lora.clone(),
            scale: adapted.scale,
            rows: adapted.rows.iter().filter_map(place).collect(),
        };
        all.iter().map(some).filter(|adapted| !adapted.rows.is_empty()).collect()
    }
}

/// Scratch memory of one pass: the inputs, and the numbers between A and B.
#[derive(Default)]
pub struct LoraScratch {
    x: Vec<f32>,
    between: Vec<f32>,
}

/// `y += s B (A x)` for the rows of `adapted`. Their pairs at `site` belong to the matrices of `weights`, in order.
pub struct Adapt<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub scratch: &'a Mutex<LoraScratch>,
    pub weights: &'a Projections,
    pub adapted: &'a [Adapted],
    pub site: Site,
}

impl Adapt<'_> {
    pub fn run(&self, y: &mut [f32], y_dims: [usize; 2], x: &[f32], x_dims: [usize; 2]) -> Result<()> {
        let mut widths = [0; MOST];
        let Some(cols) = self.check(&mut widths) else {
            return Err(Error::internal("an adapter of another model"));
        };
        let widths = &widths[..self.weights.matrices.len()];
        let count = y_dims[0];
        if y_dims[1] != widths.iter().sum::<usize>()
            || x_dims != [count, cols]
            || !self.adapted.iter().flat_map(|a| &a.rows).all(|r| (*r as usize) < count)
        {
            return Err(Error::internal(format!("adapted rows of {x_dims:?} to {y_dims:?}")));
        }
        let LoraScratch { x: inputs, between } = &mut *self.scratch.lock();
        let live = || {
            self.adapted
                .iter()
                .map(|a| (a, a.lora.pairs(self.site)))
                .filter(|(_, p)| p.iter().any(Option::is_some))
        };
        let inputs = grown(inputs, cols * live().map(|(a, _)| a.rows.len()).sum::<usize>());
        let wanted = live().flat_map(|(a, _)| &a.rows);
        for (to, row) in inputs.chunks_exact_mut(cols).zip(wanted) {
            to.copy_from_slice(&x[*row as usize * cols..][..cols]);
        }
        let (mut updates, mut rest) = (Vec::with_capacity(self.adapted.len()), &*inputs);
        for (Adapted { rows, scale, .. }, pairs) in live() {
            let (x, behind) = rest.split_at(rows.len() * cols);
            updates.push(Update { pairs, x, rows, scale: *scale });
            rest = behind;
        }
        let numbers = updates.iter().map(|update| update.ranks() * update.rows.len()).sum();
        lora::add(self.pool, self.isa, &updates, cols, widths, grown(between, numbers), y);
        Ok(())
    }

    /// Returns the number of the product's columns and fills `widths` with the rows of its matrices. `None` if a pair
    /// does not fit its matrix.
    fn check(&self, widths: &mut [usize; MOST]) -> Option<usize> {
        let matrices = &self.weights.matrices;
        let cols = matrices.first()?.cols;
        widths.iter_mut().zip(matrices).for_each(|(to, matrix)| *to = matrix.rows);
        let fits = |pair: &Option<Pair>, width: usize| {
            pair.as_ref()
                .is_none_or(|pair| pair.a.cols == cols && pair.b.cols == width && pair.a.rows == pair.b.rows)
        };
        let pairs = self.adapted.iter().map(|adapted| adapted.lora.pairs(self.site));
        let all = pairs.flat_map(|pairs| pairs.iter().zip(&*widths));
        (matrices.len() <= MOST && all.into_iter().all(|(pair, width)| fits(pair, *width))).then_some(cols)
    }
}
