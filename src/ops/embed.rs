//! Maps token ids `[T]` to rows of the embedding, times a scale: `[T, hidden]`.

use super::spare::Spare;
use super::support::output;
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::{Isa, Matrix, Pool};
use candle_core::{CpuStorage, CustomOp1, Layout, Shape};

pub struct Embed<'a> {
    pub table: &'a Matrix,
    pub scale: f32,
    pub isa: Isa,
    pub pool: &'a Pool,
    pub spare: &'a Spare,
}

impl CustomOp1 for Embed<'_> {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn cpu_fwd(&self, ids: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let CpuStorage::U32(ids) = ids else { candle_core::bail!("token ids are u32") };
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("token ids are contiguous")
        };
        let (ids, hidden) = (&ids[start..end], self.table.cols);
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.table.rows) {
            candle_core::bail!("token id {id} is out of range: the embedding has {} rows", self.table.rows);
        }
        let mut out = self.spare.take(ids.len() * hidden)?;
        let (work, shared) = (4 * out.len(), SharedOut::new(&mut out));
        self.pool.run_if_worth(work, ids.len(), &|n| {
            // SAFETY: each task has a row of its own.
            let out = unsafe { shared.slice(n * hidden..(n + 1) * hidden) };
            dequantize_row(self.isa, self.table, ids[n] as usize, out);
            if self.scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= self.scale);
            }
        });
        Ok(output(out, ids.len(), hidden))
    }
}
