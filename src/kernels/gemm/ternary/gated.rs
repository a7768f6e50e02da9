//! Gate and up of a feed-forward with ReLU². Where no token's gate is positive, `relu(gate)^2 * up` is zero whatever up is:
//! that row of up is not read.

use super::{Activations, FEW, matmul, matmul_rows};
use crate::kernels::gemm::blocks::Part;
use crate::kernels::{Isa, Pool};
use std::cell::RefCell;

/// The part of up's rows, in eighths, above which it is read whole: memory is fastest when it is read in order.
const MOST: usize = 6;

/// Computes gate and up as `matmul` does, but rows of `up` that all tokens multiply by zero may be left out: there `out`
/// is 0. Returns the number of such rows.
pub fn gate_up(
    pool: &Pool,
    isa: Isa,
    x: &Activations,
    [gate, up]: [Part; 2],
    stride: usize,
    out: &mut [f32],
) -> usize {
    let rows = up.matrix.rows;
    assert!(gate.matrix.rows == rows, "{} gates for {rows} rows", gate.matrix.rows);
    matmul(pool, isa, x, &[gate], stride, out);
    WANTED.with_borrow_mut(|wanted| {
        open(out, gate.column, rows, stride, wanted);
        let zeros = rows - wanted.len();
        if x.rows.len() > FEW || 8 * wanted.len() > MOST * rows {
            matmul(pool, isa, x, &[up], stride, out);
        } else {
            out.chunks_exact_mut(stride).for_each(|row| row[up.column..][..rows].fill(0.0));
            matmul_rows(pool, isa, x, up, wanted, stride, out);
        }
        zeros
    })
}

/// Lists the rows whose gate is positive for some token. A gate that is not a number counts as positive.
fn open(out: &[f32], column: usize, rows: usize, stride: usize, wanted: &mut Vec<u32>) {
    wanted.resize(rows, 0);
    let mut count = 0;
    let at = |t: usize| &out[t * stride + column..][..rows];
    let (first, tokens) = (at(0), out.len() / stride);
    for (row, gate) in first.iter().enumerate() {
        let mut shut = *gate <= 0.0;
        for t in 1..tokens {
            shut &= out[t * stride + column + row] <= 0.0;
        }
        wanted[count] = row as u32;
        count += usize::from(!shut);
    }
    wanted.truncate(count);
}

thread_local! {
    /// The rows of up that are read, in the thread that calls for a product.
    static WANTED: RefCell<Vec<u32>> = RefCell::default();
}
