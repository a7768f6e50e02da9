//! Gates on attention's output, and factors on rows.

use super::launch::Arg;
use super::linear::{ROW_THREADS, shared_rows};
use super::ops::CudaOps;
use super::parts::Part;
use crate::base::{Error, Result};
use crate::ops::AttentionShape;

impl CudaOps {
    /// Parts the query and the gate of each head, which are side by side before the k and v heads: q, k and v, and the
    /// gates.
    pub(super) fn split_gate(&self, x: &Part, shape: &AttentionShape) -> Result<[Part; 2]> {
        let (rows, gates) = (x.dims[0], shape.heads * shape.head_dim);
        x.check("queries with gates", [rows, shape.qkv() + gates])?;
        let made = [self.part(rows, shape.qkv())?, self.part(rows, gates)?];
        let [qkv, gate] = &made;
        let mut args = vec![x.arg()?, qkv.arg()?, gate.arg()?];
        args.extend([shape.heads, shape.head_dim, shape.qkv() - gates].map(Arg::int));
        let grid = shared_rows(rows, x.dims[1], ROW_THREADS, 1);
        // SAFETY: x has the columns of both results.
        unsafe { self.launch(&self.kernels().split_gate, grid, ROW_THREADS, 0, &args)? };
        Ok(made)
    }

    /// `x` times the logistic function of `gate`, which has a column for each part of a row.
    pub(super) fn gate(&self, x: &Part, gate: &Part) -> Result<Part> {
        let ([rows, cols], [gate_rows, gates]) = (x.dims, gate.dims);
        if gates == 0 || !cols.is_multiple_of(gates) || gate_rows != rows {
            return Err(Error::internal(format!("gates of {gates} for rows of {cols}")));
        }
        let out = self.part(rows, cols)?;
        let args = [x.arg()?, gate.arg()?, out.arg()?, Arg::int(cols), Arg::int(gates)];
        let grid = shared_rows(rows, cols, ROW_THREADS, 1);
        // SAFETY: x and out are `[rows, cols]`, gate is `[rows, gates]`, and `gates` divides `cols`.
        unsafe { self.launch(&self.kernels().gate, grid, ROW_THREADS, 0, &args)? };
        Ok(out)
    }

    /// `x *= by`.
    pub(super) fn scale(&self, x: &Part, by: f32) -> Result<()> {
        let count = x.dims[0] * x.dims[1];
        let args = [x.arg()?, by.into(), Arg::long(count)];
        // SAFETY: x has this many elements.
        unsafe {
            self.launch(&self.kernels().scale, [count.div_ceil(ROW_THREADS), 1, 1], ROW_THREADS, 0, &args)
        }
    }
}
