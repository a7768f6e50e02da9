//! Maps token ids to rows of the embedding, times a scale.

use crate::base::{Error, Result};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::{Isa, Matrix, Pool};

pub(super) struct Embed<'a> {
    pub table: &'a Matrix,
    pub scale: f32,
    pub isa: Isa,
    pub pool: &'a Pool,
}

impl Embed<'_> {
    /// `out` `[ids, hidden]`.
    pub(super) fn run(&self, ids: &[u32], out: &mut [f32]) -> Result<()> {
        let hidden = self.table.cols;
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.table.rows) {
            let rows = self.table.rows;
            return Err(Error::internal(format!("token id {id}: the embedding has {rows} rows")));
        }
        if out.len() != ids.len() * hidden {
            return Err(Error::internal(format!(
                "{} elements for {} rows of {hidden}",
                out.len(),
                ids.len()
            )));
        }
        let (work, shared) = (4 * out.len(), SharedOut::new(out));
        self.pool.run_if_worth(work, ids.len(), &|n| {
            // SAFETY: each task has a row of its own.
            let out = unsafe { shared.slice(n * hidden..(n + 1) * hidden) };
            dequantize_row(self.isa, self.table, ids[n] as usize, out);
            if self.scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= self.scale);
            }
        });
        Ok(())
    }
}
