//! The gated activation, the residual sum, and the choice of rows.

use super::support::{f32s, f32s_mut, output, zeroed};
use super::{Activation, Norm};
use crate::kernels::blocks::SharedOut;
use crate::kernels::{Isa, Pool, elementwise, norm};
use candle_core::{CpuStorage, CustomOp1, InplaceOp2, Layout, Shape};

/// `[T, 2 ffn]`, gate first, to `[T, ffn]`.
pub struct Gated<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub activation: Activation,
}

impl CustomOp1 for Gated<'_> {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let &[rows, both] = layout.dims() else { candle_core::bail!("gate and up lie side by side") };
        let (x, width) = (f32s(x, layout)?, both / 2);
        let mut out = zeroed(rows * width)?;
        let shared = SharedOut::new(&mut out);
        self.pool.run_if_worth(4 * x.len(), rows, &|row| {
            let (gate, up) = x[row * both..][..both].split_at(width);
            // SAFETY: each task has a row of its own.
            let out = unsafe { shared.slice(row * width..(row + 1) * width) };
            match self.activation {
                Activation::SwiGlu => elementwise::swiglu(self.isa, gate, up, out),
                Activation::Relu2 => elementwise::relu2(gate, up, out),
                Activation::GeGlu => elementwise::geglu(self.isa, gate, up, out),
            }
        });
        Ok(output(out, rows, width))
    }
}

/// `x += y`, or `x += norm(y)`.
pub struct Add<'a> {
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
        let (x, y) = (f32s_mut(x, xl)?, f32s(y, yl)?);
        let Some(norm) = self.norm else {
            elementwise::add(x, y);
            return Ok(());
        };
        let width = norm.weight.len();
        if width == 0 || xl.dims().last() != Some(&width) {
            candle_core::bail!("a norm of {width} for a sum of {:?}", xl.dims());
        }
        for (x, y) in x.chunks_exact_mut(width).zip(y.chunks_exact(width)) {
            norm::add_rms_norm(self.isa, x, y, &norm.weight, norm.eps);
        }
        Ok(())
    }
}

/// Rows of `[T, width]`, in the order asked for.
pub struct Rows<'a>(pub &'a [u32]);

impl CustomOp1 for Rows<'_> {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let &[rows, width] = layout.dims() else { candle_core::bail!("rows of a matrix") };
        let x = f32s(x, layout)?;
        let mut out = zeroed(self.0.len() * width)?;
        for (&row, out) in self.0.iter().zip(out.chunks_exact_mut(width)) {
            if row as usize >= rows {
                candle_core::bail!("row {row} of {rows}");
            }
            out.copy_from_slice(&x[row as usize * width..][..width]);
        }
        Ok(output(out, self.0.len(), width))
    }
}
