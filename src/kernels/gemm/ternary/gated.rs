//! Gate and up of a feed-forward with ReLU². Where no token's gate is positive, `relu(gate)^2 * up` is zero whatever up
//! is, so that row of up is not read.

use super::{FEW, run_few};
use crate::kernels::gemm::blocks::{Part, SharedOut};
use crate::kernels::gemm::driver::{Product, with_scratch};
use crate::kernels::gemm::tokens::{Activations, PREPARED, Prepared, TASK_ROWS, Tokens, matmul};
use crate::kernels::{Isa, Pool};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The share of up's rows, in percent, above which they are all read, for one token, two and so on: memory is fastest
/// when it is read in order (dev/notes/performance.md).
const MOST: [usize; FEW] = [52, 45, 45, 45];

/// One in this many products checks again whether gates are shut.
const LOOK: u64 = 16;

/// Statistics of a model's gates: how many rows of up are wanted.
#[derive(Default)]
pub struct Gates {
    products: AtomicU64,
    /// Percentage of the rows of up that were wanted in the last checked product of one token, of two and so
    /// on.
    wanted: [AtomicUsize; FEW],
    seen: AtomicU64,
    shut: AtomicU64,
}

impl Gates {
    /// Number of gates that were looked at, and of those that were shut.
    pub fn counts(&self) -> [u64; 2] {
        [self.seen.load(Relaxed), self.shut.load(Relaxed)]
    }

    /// Whether a product of this many tokens should check its gates.
    fn look(&self, tokens: usize) -> bool {
        let wanted = self.wanted[tokens - 1].load(Relaxed);
        wanted <= MOST[tokens - 1] || self.products.fetch_add(1, Relaxed).is_multiple_of(LOOK)
    }

    fn saw(&self, tokens: usize, rows: usize, wanted: usize, shut: usize) {
        self.wanted[tokens - 1].store(100 * wanted / rows, Relaxed);
        self.seen.fetch_add((tokens * rows) as u64, Relaxed);
        self.shut.fetch_add(shut as u64, Relaxed);
    }
}

/// Computes gate and up of up to `FEW` tokens as `matmul` does, but rows of `up` that all tokens multiply by zero may
/// be left out: there `out` is 0.
pub fn gate_up(
    pool: &Pool,
    isa: Isa,
    x: &Activations,
    [gate, up]: [Part; 2],
    stride: usize,
    gates: &Gates,
    out: &mut [f32],
) {
    let (rows, tokens) = (up.matrix.rows, x.rows.len());
    assert!(gate.matrix.rows == rows, "{} gates for {rows} rows", gate.matrix.rows);
    assert!(tokens <= FEW && out.len() == tokens * stride && gate.column.max(up.column) + rows <= stride);
    if tokens == 0 || !gates.look(tokens) {
        return matmul(pool, isa, x, &[gate, up], stride, out);
    }
    let (all_wanted, all_shut) = (AtomicUsize::new(0), AtomicUsize::new(0));
    PREPARED.with_borrow_mut(|Prepared { sums, .. }| {
        let x = &Tokens::new(isa, x, &[gate, up], sums, &[]);
        let both = Both { isa, x, gate: &[gate], up: &[up], stride, out: &SharedOut::new(out) };
        let tasks = rows.div_ceil(TASK_ROWS);
        let span = tasks.div_ceil(PIECES * pool.threads());
        pool.run(tasks.div_ceil(span), &|n| {
            let [wanted, shut] = both.piece(pool, n * span..tasks.min((n + 1) * span));
            all_wanted.fetch_add(wanted, Relaxed);
            all_shut.fetch_add(shut, Relaxed);
        });
    });
    gates.saw(tokens, rows, all_wanted.into_inner(), all_shut.into_inner());
}

/// Pieces for each thread. There are few, because each begins twice with rows that nothing has prefetched.
const PIECES: usize = 4;

struct Both<'a> {
    isa: Isa,
    x: &'a Tokens<'a>,
    gate: &'a [Part<'a>; 1],
    up: &'a [Part<'a>; 1],
    stride: usize,
    out: &'a SharedOut<'a>,
}

impl Both<'_> {
    /// Computes the gates of some tasks' rows, and then the wanted rows of up. Returns the number of wanted rows,
    /// and of gates that are shut.
    fn piece(&self, pool: &Pool, tasks: Range<usize>) -> [usize; 2] {
        let rows = tasks.start * TASK_ROWS..self.up[0].matrix.rows.min(tasks.end * TASK_ROWS);
        self.multiply(pool, self.gate, None, tasks.clone());
        WANTED.with_borrow_mut(|wanted| {
            let shut = self.list(rows.clone(), wanted);
            if 100 * wanted.len() > MOST[self.x.rows.len() - 1] * rows.len() {
                self.multiply(pool, self.up, None, tasks);
            } else {
                self.columns(self.up, rows).for_each(|out| out.fill(0.0));
                self.multiply(pool, self.up, Some(wanted), 0..wanted.len().div_ceil(TASK_ROWS));
            }
            [wanted.len(), shut]
        })
    }

    /// Computes some tasks of a product; with `only`, for these rows of its matrix.
    fn multiply(&self, pool: &Pool, parts: &[Part; 1], only: Option<&[u32]>, tasks: Range<usize>) {
        let (x, tokens, stride) = (self.x, self.x.rows.len(), self.stride);
        let product = Product { pool, x, tokens, parts, only, stride, height: TASK_ROWS, depth: None };
        tasks.for_each(|n| with_scratch(|scratch| run_few(self.isa, &product.task(n, self.out), scratch)));
    }

    /// The outputs of some rows, for each token.
    fn columns(&self, of: &[Part; 1], rows: Range<usize>) -> impl Iterator<Item = &mut [f32]> {
        let from = of[0].column + rows.start;
        // SAFETY: the rows are those of one piece, which uses them one after another.
        (0..self.x.rows.len()).map(move |t| unsafe {
            self.out.slice(t * self.stride + from..t * self.stride + from + rows.len())
        })
    }

    /// Lists the rows whose gate is positive for some token, and counts all gates that are not. A gate that is not a
    /// number counts as positive.
    fn list(&self, rows: Range<usize>, wanted: &mut Vec<u32>) -> usize {
        const NONE: &[f32] = &[];
        let mut gates = [NONE; FEW];
        gates.iter_mut().zip(self.columns(self.gate, rows.clone())).for_each(|(to, gates)| *to = gates);
        let gates = &gates[..self.x.rows.len()];
        wanted.resize(rows.len(), 0);
        let (mut count, mut all_shut) = (0, 0);
        for (n, row) in rows.enumerate() {
            let shut = gates.iter().filter(|gates| gates[n] <= 0.0).count();
            wanted[count] = row as u32;
            count += usize::from(shut < gates.len());
            all_shut += shut;
        }
        wanted.truncate(count);
        all_shut
    }
}

thread_local! {
    /// The rows of up that a piece reads.
    static WANTED: RefCell<Vec<u32>> = RefCell::default();
}
