//! The gated activation, the residual sum, and the selection of rows.

use super::spare::Spare;
use super::support::{f32s, f32s_mut, output};
use super::{Activation, Norm};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::rows::{elementwise, norm};
use crate::kernels::{Isa, Pool};
use candle_core::{CpuStorage, CustomOp1, InplaceOp2, Layout, Shape};

/// `[T, 2 ffn]`, gate first, to `[T, ffn]`.
pub struct Gated<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub activation: Activation,
    pub spare: &'a Spare,
}

impl CustomOp1 for Gated<'_> {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let &[rows, both] = layout.dims() else { candle_core::bail!("gate and up lie side by side") };
        let (x, width) = (f32s(x, layout)?, both / 2);
        let mut out = self.spare.take(rows * width)?;
        let shared = SharedOut::new(&mut out);
        self.pool.run_if_worth(4 * x.len(), rows, &|row| {
            let (gate, up) = x[row * both..][..both].split_at(width);
            // SAFETY: each task has a row of its own.
            let out = unsafe { shared.slice(row * width..(row + 1) * width) };
            self.activation.apply(self.isa, gate, up, out);
        });
        Ok(output(out, rows, width))
    }
}

/// `x += y`, or `x += norm(y)`.
pub struct Add<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub norm: Option<&'a Norm>,
}

impl InplaceOp2 for Add<'_> {
    fn name(&self) -> &'static str {
        "add"
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        xl: &Layout,
        y: &CpuStorage,
        yl: &Layout,
    ) -> candle_core::Result<()> {
        if xl.dims() != yl.dims() {
            candle_core::bail!("a sum of {:?} and {:?}", xl.dims(), yl.dims());
        }
        let Some(&width) = xl.dims().last().filter(|width| **width > 0) else {
            candle_core::bail!("a sum of {:?}", xl.dims());
        };
        if self.norm.is_some_and(|norm| norm.weight.len() != width) {
            candle_core::bail!("the norm of a sum is not as wide as its rows");
        }
        let (x, y) = (f32s_mut(x, xl)?, f32s(y, yl)?);
        let (work, rows) = (2 * x.len(), x.len() / width);
        let shared = SharedOut::new(x);
        self.pool.run_if_worth(work, rows, &|row| {
            let at = row * width..(row + 1) * width;
            // SAFETY: each task has a row of its own.
            let x = unsafe { shared.slice(at.clone()) };
            match self.norm {
                Some(norm) => norm::add_rms_norm(self.isa, x, &y[at], &norm.weight, norm.eps),
                None => elementwise::add(self.isa, x, &y[at]),
            }
        });
        Ok(())
    }
}

/// Rows of `[T, width]`, in the requested order.
pub struct Rows<'a> {
    pub rows: &'a [u32],
    pub spare: &'a Spare,
}

impl CustomOp1 for Rows<'_> {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let &[rows, width] = layout.dims() else { candle_core::bail!("rows of a matrix") };
        let x = f32s(x, layout)?;
        let mut out = self.spare.take(self.rows.len() * width)?;
        for (&row, out) in self.rows.iter().zip(out.chunks_exact_mut(width)) {
            if row as usize >= rows {
                candle_core::bail!("row {row} of {rows}");
            }
            out.copy_from_slice(&x[row as usize * width..][..width]);
        }
        Ok(output(out, self.rows.len(), width))
    }
}
