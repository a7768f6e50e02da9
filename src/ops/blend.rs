//! Weighted sums of a table's rows: learned positions, resampled for the grid of a picture.

use crate::base::{Error, Result};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::pool::buffer::grown;
use crate::kernels::{Isa, Matrix, Pool};
use std::cell::RefCell;

thread_local! {
    /// A row of the table.
    static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// For each row of a batch, the rows of a table that `Op::Blend` adds up.
#[derive(Clone, Debug, Default)]
pub struct Blends {
    pub taps: Vec<Tap>,
    /// Where the taps of each row end.
    pub ends: Vec<u32>,
}

/// A row of a table, and its weight in a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tap {
    pub row: u32,
    pub weight: f32,
}

impl Blends {
    pub(super) fn clear(&mut self) {
        self.taps.clear();
        self.ends.clear();
    }

    /// The taps of a row.
    pub fn of(&self, row: usize) -> &[Tap] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.taps[start as usize..self.ends[row] as usize]
    }

    /// `Internal` if it is not of `rows` rows, or has a tap beyond the `table` rows of a table.
    fn check(&self, rows: usize, table: usize) -> Result<()> {
        let ascending =
            self.ends.is_sorted() && self.ends.last().map_or(0, |end| *end as usize) == self.taps.len();
        if !ascending || self.ends.len() != rows {
            return Err(Error::internal(format!(
                "{} taps of {} rows, for {rows}",
                self.taps.len(),
                self.ends.len()
            )));
        }
        match self.taps.iter().find(|tap| tap.row as usize >= table) {
            Some(tap) => Err(Error::internal(format!("row {} of a table of {table}", tap.row))),
            None => Ok(()),
        }
    }
}

pub(super) struct Blend<'a> {
    pub table: &'a Matrix,
    pub blends: &'a Blends,
    pub isa: Isa,
    pub pool: &'a Pool,
}

impl Blend<'_> {
    /// `out` `[rows, table's columns]`. A sum runs in the order of the taps.
    pub(super) fn run(&self, rows: usize, out: &mut [f32]) -> Result<()> {
        let (cols, Self { table, blends, isa, .. }) = (self.table.cols, self);
        blends.check(rows, table.rows)?;
        if out.len() != rows * cols {
            return Err(Error::internal(format!("{} elements for {rows} rows of {cols}", out.len())));
        }
        let (work, shared) = (4 * blends.taps.len() * cols, SharedOut::new(out));
        self.pool.run_if_worth(work, rows, &|n| {
            // SAFETY: each task has a row of its own.
            let out = unsafe { shared.slice(n * cols..(n + 1) * cols) };
            out.fill(0.0);
            ROW.with_borrow_mut(|row| {
                let row = grown(row, cols);
                for tap in blends.of(n) {
                    dequantize_row(*isa, table, tap.row as usize, row);
                    out.iter_mut().zip(&*row).for_each(|(out, x)| *out += tap.weight * x);
                }
            });
        });
        Ok(())
    }
}
