//! RMSNorm alone; `Linear` includes the norm before a product.

use super::Norm;
use super::spare::Spare;
use super::support::{f32s, output, rows};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::rows::norm;
use crate::kernels::{Isa, Pool};
use candle_core::{CpuStorage, CustomOp1, Layout, Shape};

/// Norms each row of `[T, width]`.
pub struct RmsNorm<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub norm: &'a Norm,
    pub spare: &'a Spare,
}

impl CustomOp1 for RmsNorm<'_> {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let width = self.norm.weight.len();
        let rows = rows(layout, width)?;
        let x = f32s(x, layout)?;
        let mut out = self.spare.take(rows * width)?;
        let shared = SharedOut::new(&mut out);
        self.pool.run_if_worth(x.len(), rows, &|row| {
            let at = row * width..(row + 1) * width;
            // SAFETY: each task has a row of its own.
            let out = unsafe { shared.slice(at.clone()) };
            norm::rms_norm(self.isa, &x[at], &self.norm.weight, self.norm.eps, out);
        });
        Ok(output(out, rows, width))
    }
}
