//! Token ids `[T]` to rows of the embedding, times a scale: `[T, hidden]`.

use super::support::{output, zeroed};
use crate::kernels::{Isa, Matrix, rows};
use candle_core::{CpuStorage, CustomOp1, Layout, Shape};

pub struct Embed<'a> {
    pub table: &'a Matrix,
    pub scale: f32,
    pub isa: Isa,
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
        let mut out = zeroed(ids.len() * hidden)?;
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(hidden)) {
            if id as usize >= self.table.rows {
                candle_core::bail!(
                    "token id {id} is out of range: the embedding has {} rows",
                    self.table.rows
                );
            }
            rows::dequantize_row(self.isa, self.table, id as usize, out);
            if self.scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= self.scale);
            }
        }
        Ok(output(out, ids.len(), hidden))
    }
}
