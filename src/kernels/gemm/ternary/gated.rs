//! Gate and up of a feed-forward with ReLU². Where no token's gate is positive, `relu(gate)^2 * up` is zero whatever up is:
//! that row of up is not read.

use super::{Activations, FEW, PREPARED, Prepared, Scratch, TASK_ROWS, Task, Tokens, few_rows, tokens_of};
use crate::kernels::gemm::blocks::{Part, SharedOut};
use crate::kernels::gemm::driver::{Product, with_scratch};
use crate::kernels::{Isa, Pool};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The share of up's rows, in percent, above which they are all read, for one token, two and so on: memory is fastest
/// when it is read in order (docs/performance.md).
const MOST: [usize; FEW] = [52, 52, 58, 65];

/// Computes gate and up of up to `FEW` tokens as `matmul` does, but rows of `up` that all tokens multiply by zero may be
/// left out: there `out` is 0. Returns the number of gates that are shut.
pub fn gate_up(
    pool: &Pool,
    isa: Isa,
    x: &Activations,
    [gate, up]: [Part; 2],
    stride: usize,
    out: &mut [f32],
) -> usize {
    let (rows, tokens) = (up.matrix.rows, x.rows.len());
    assert!(gate.matrix.rows == rows, "{} gates for {rows} rows", gate.matrix.rows);
    assert!(
        tokens <= FEW
            && out.len() == tokens * stride
            && rows.max(gate.column.max(up.column) + rows) <= stride
    );
    let shut = AtomicUsize::new(0);
    PREPARED.with_borrow_mut(|Prepared { sums, .. }| {
        let x = &tokens_of(isa, x, &[gate, up], sums, &[]);
        let both = Both { isa, x, gate: &[gate], up: &[up], stride, out: &SharedOut::new(out) };
        let bytes = gate.matrix.data.len() + up.matrix.data.len();
        pool.run_pieces(rows.div_ceil(TASK_ROWS), bytes, tokens, &|tasks| {
            shut.fetch_add(both.piece(pool, tasks), Ordering::Relaxed);
        });
    });
    shut.into_inner()
}

struct Both<'a> {
    isa: Isa,
    x: &'a Tokens<'a>,
    gate: &'a [Part<'a>; 1],
    up: &'a [Part<'a>; 1],
    stride: usize,
    out: &'a SharedOut<'a>,
}

impl<'a> Both<'a> {
    /// Computes the gates of some tasks' rows, and then what they let through.
    fn piece(&self, pool: &Pool, tasks: Range<usize>) -> usize {
        let rows = tasks.start * TASK_ROWS..self.up[0].matrix.rows.min(tasks.end * TASK_ROWS);
        let run = |product: &Product<Tokens>, tasks: Range<usize>| {
            let one = |n| with_scratch(|scratch: &mut Scratch| self.run(&product.task(n, self.out), scratch));
            tasks.for_each(one);
        };
        run(&self.product(pool, self.gate, None), tasks.clone());
        WANTED.with_borrow_mut(|wanted| {
            let shut = self.list(rows.clone(), wanted);
            if 100 * wanted.len() > MOST[self.x.rows.len() - 1] * rows.len() {
                run(&self.product(pool, self.up, None), tasks);
            } else {
                self.columns(self.up, rows).for_each(|out| out.fill(0.0));
                run(&self.product(pool, self.up, Some(wanted)), 0..wanted.len().div_ceil(TASK_ROWS));
            }
            shut
        })
    }

    fn product(
        &self,
        pool: &'a Pool,
        parts: &'a [Part<'a>; 1],
        only: Option<&'a [u32]>,
    ) -> Product<'a, Tokens<'a>> {
        let (x, tokens, stride) = (self.x, self.x.rows.len(), self.stride);
        Product { pool, x, tokens, parts, only, stride, height: TASK_ROWS, depth: None }
    }

    fn run(&self, task: &Task, scratch: &mut Scratch) {
        few_rows(self.isa, task, scratch);
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
