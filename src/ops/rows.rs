//! Operations on rows by themselves: norms, the gated activation, the residual sum.

use super::{Activation, AttentionShape, Norm};
use crate::base::{Error, Result};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::rows::elementwise;
use crate::kernels::rows::exp::exp;
use crate::kernels::{Isa, Pool};

/// The machine that the operations run on.
#[derive(Clone, Copy)]
pub struct On<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
}

impl On<'_> {
    /// `norm` of each row.
    pub(super) fn norm(
        self,
        x: &[f32],
        [rows, width]: [usize; 2],
        norm: &Norm,
        out: &mut [f32],
    ) -> Result<()> {
        check(norm, width)?;
        self.map(x.len(), [rows, width], out, &|row, out| {
            norm.apply(self.isa, &x[row * width..][..width], out);
        })
    }

    /// Rows of two matrices, each normed, side by side.
    pub(super) fn beside(
        self,
        [(a, a_norm), (b, b_norm)]: [(&[f32], &Norm); 2],
        rows: usize,
        [wa, wb]: [usize; 2],
        out: &mut [f32],
    ) -> Result<()> {
        check(a_norm, wa)?;
        check(b_norm, wb)?;
        if [a.len(), b.len()] != [rows * wa, rows * wb] {
            return Err(Error::internal(format!("{} beside {} elements", a.len(), b.len())));
        }
        self.map(a.len() + b.len(), [rows, wa + wb], out, &|row, out| {
            let (left, right) = out.split_at_mut(wa);
            a_norm.apply(self.isa, &a[row * wa..][..wa], left);
            b_norm.apply(self.isa, &b[row * wb..][..wb], right);
        })
    }

    /// Copies rows to the columns of wider ones that begin at `from`.
    pub(super) fn put(
        self,
        x: &[f32],
        [rows, width]: [usize; 2],
        from: usize,
        (out, wide): (&mut [f32], usize),
    ) -> Result<()> {
        if from + width > wide || [x.len(), out.len()] != [rows * width, rows * wide] {
            let why = format!("columns {from} to {} of {wide} in {} elements", from + width, out.len());
            return Err(Error::internal(why));
        }
        let shared = SharedOut::new(out);
        self.pool.run_if_worth(rows * width, rows, &|row| {
            // SAFETY: each task has a row of its own.
            let to = unsafe { shared.slice(row * wide + from..row * wide + from + width) };
            to.copy_from_slice(&x[row * width..][..width]);
        });
        Ok(())
    }

    /// `norm` of the columns that begin at `from`, in place.
    pub(super) fn norm_columns(
        self,
        x: &mut [f32],
        [rows, width]: [usize; 2],
        from: usize,
        norm: &Norm,
    ) -> Result<()> {
        let to = from + norm.weight.len();
        if to > width {
            return Err(Error::internal(format!("a norm of columns {from} to {to} of {width}")));
        }
        let shared = SharedOut::new(x);
        self.pool.run_if_worth(rows * norm.weight.len(), rows, &|row| {
            // SAFETY: each task has a row of its own.
            let x = unsafe { shared.slice(row * width + from..row * width + to) };
            norm.in_place(self.isa, x);
        });
        Ok(())
    }

    /// `norm` of each part of a row, as wide as the norm, in place.
    pub(super) fn norm_parts(self, x: &mut [f32], [rows, width]: [usize; 2], norm: &Norm) -> Result<()> {
        let part = norm.weight.len();
        if part == 0 || !width.is_multiple_of(part) {
            return Err(Error::internal(format!("norms of {part} in rows of {width}")));
        }
        let shared = SharedOut::new(x);
        self.pool.run_if_worth(2 * rows * width, rows, &|row| {
            // SAFETY: each task has a row of its own.
            let x = unsafe { shared.slice(row * width..(row + 1) * width) };
            x.chunks_exact_mut(part).for_each(|part| norm.in_place(self.isa, part));
        });
        Ok(())
    }

    /// The activation of `gate` times the columns of `inputs` from `from` on.
    pub(super) fn gated_columns(
        self,
        (gate, [rows, width]): (&[f32], [usize; 2]),
        (inputs, [input_rows, all]): (&[f32], [usize; 2]),
        from: usize,
        activation: Activation,
        out: &mut [f32],
    ) -> Result<()> {
        if input_rows != rows || from + width > all || !activation.gated() {
            return Err(Error::internal(format!("columns {from} of {all}, of gates of {width}")));
        }
        self.map(4 * gate.len(), [rows, width], out, &|row, out| {
            let input = &inputs[row * all + from..][..width];
            activation.apply_to(self.isa, &gate[row * width..][..width], input, out);
        })
    }

    /// `x *= by`.
    pub(super) fn scale(self, x: &mut [f32], [rows, width]: [usize; 2], by: f32) {
        let (work, shared) = (x.len(), SharedOut::new(x));
        self.pool.run_if_worth(work, rows, &|row| {
            // SAFETY: each task has a row of its own.
            let x = unsafe { shared.slice(row * width..(row + 1) * width) };
            x.iter_mut().for_each(|x| *x *= by);
        });
    }

    /// Elements of `x` within `min` and `max`.
    pub(super) fn clamp(self, x: &mut [f32], [rows, width]: [usize; 2], [min, max]: [f32; 2]) {
        let (work, shared) = (x.len(), SharedOut::new(x));
        self.pool.run_if_worth(work, rows, &|row| {
            // SAFETY: each task has a row of its own.
            let x = unsafe { shared.slice(row * width..(row + 1) * width) };
            x.iter_mut().for_each(|x| *x = x.max(min).min(max));
        });
    }

    /// `(x - minus) * by`.
    pub(super) fn standardize(
        self,
        x: &mut [f32],
        [rows, width]: [usize; 2],
        [minus, by]: [&[f32]; 2],
    ) -> Result<()> {
        if [minus.len(), by.len()] != [width; 2] {
            return Err(Error::internal(format!("{} elements for rows of {width}", minus.len())));
        }
        let (work, shared) = (2 * x.len(), SharedOut::new(x));
        self.pool.run_if_worth(work, rows, &|row| {
            // SAFETY: each task has a row of its own.
            let x = unsafe { shared.slice(row * width..(row + 1) * width) };
            x.iter_mut().zip(minus).zip(by).for_each(|((x, minus), by)| *x = (*x - minus) * by);
        });
        Ok(())
    }

    /// `x` `[rows, parts * width]` to `[rows, width]`: the average of each row's parts, added in their order.
    pub(super) fn average(
        self,
        x: &[f32],
        [rows, width]: [usize; 2],
        parts: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let wide = parts * width;
        if width == 0 || x.len() != rows * wide {
            return Err(Error::internal(format!("{parts} parts of {width} in {} elements", x.len())));
        }
        self.map(x.len(), [rows, width], out, &|row, out| {
            out.fill(0.0);
            for part in x[row * wide..][..wide].chunks_exact(width) {
                elementwise::add(self.isa, out, part);
            }
            out.iter_mut().for_each(|out| *out /= parts as f32);
        })
    }

    /// `x` `[rows, 2 width]`, gate first, or `[rows, width]` without gates, to `[rows, width]`.
    pub(super) fn gated(
        self,
        x: &[f32],
        [rows, width]: [usize; 2],
        activation: Activation,
        out: &mut [f32],
    ) -> Result<()> {
        if x.len() != rows * activation.products() * width {
            return Err(Error::internal(format!(
                "{} elements of gate and up for {rows} rows of {width}",
                x.len()
            )));
        }
        self.map(4 * x.len(), [rows, width], out, &|row, out| {
            let both = activation.products() * width;
            activation.apply(self.isa, &x[row * both..][..both], out);
        })
    }

    /// `x` times the logistic function of `gate`, whose rows have `gates` columns.
    pub(super) fn logistic(
        self,
        (gate, gates): (&[f32], usize),
        x: &[f32],
        [rows, width]: [usize; 2],
        out: &mut [f32],
    ) -> Result<()> {
        if gates == 0 || !width.is_multiple_of(gates) || gate.len() != rows * gates {
            return Err(Error::internal(format!("gates of {gates} for rows of {width}")));
        }
        self.map(8 * x.len(), [rows, width], out, &|row, out| {
            let (x, gate) = (&x[row * width..(row + 1) * width], &gate[row * gates..(row + 1) * gates]);
            if gates == width {
                return elementwise::logistic(self.isa, gate, x, out);
            }
            let parts = out.chunks_exact_mut(width / gates).zip(x.chunks_exact(width / gates));
            for ((out, x), gate) in parts.zip(gate) {
                let by = 1.0 / (1.0 + exp(-gate));
                out.iter_mut().zip(x).for_each(|(out, x)| *out = x * by);
            }
        })
    }

    /// Parts the query and the gate of each head, which are side by side before the k and v heads.
    pub(super) fn split_gate(
        self,
        x: &[f32],
        [rows, width]: [usize; 2],
        shape: &AttentionShape,
        [qkv, gate]: [&mut [f32]; 2],
    ) -> Result<()> {
        let (dim, gates) = (shape.head_dim, shape.heads * shape.head_dim);
        if width != shape.qkv() + gates {
            return Err(Error::internal(format!("queries with gates in {width} columns")));
        }
        let shared = SharedOut::new(gate);
        self.map(2 * x.len(), [rows, shape.qkv()], qkv, &|row, out| {
            let (both, kv) = x[row * width..][..width].split_at(2 * gates);
            let (q, to) = out.split_at_mut(gates);
            to.copy_from_slice(kv);
            // SAFETY: each task has a row of its own.
            let gate = unsafe { shared.slice(row * gates..(row + 1) * gates) };
            for ((both, q), gate) in
                both.chunks_exact(2 * dim).zip(q.chunks_exact_mut(dim)).zip(gate.chunks_exact_mut(dim))
            {
                q.copy_from_slice(&both[..dim]);
                gate.copy_from_slice(&both[dim..]);
            }
        })
    }

    /// `x += y`, with `norm(y)` if there is a norm.
    pub(super) fn add(
        self,
        x: &mut [f32],
        y: &[f32],
        [rows, width]: [usize; 2],
        norm: Option<&Norm>,
    ) -> Result<()> {
        norm.map_or(Ok(()), |norm| check(norm, width))?;
        if [x.len(), y.len()] != [rows * width; 2] {
            return Err(Error::internal(format!("a sum of {} and {} elements", x.len(), y.len())));
        }
        let (work, shared) = (2 * x.len(), SharedOut::new(x));
        self.pool.run_if_worth(work, rows, &|row| {
            let at = row * width..(row + 1) * width;
            // SAFETY: each task has a row of its own.
            let x = unsafe { shared.slice(at.clone()) };
            match norm {
                Some(norm) => norm.add_to(self.isa, x, &y[at]),
                None => elementwise::add(self.isa, x, &y[at]),
            }
        });
        Ok(())
    }

    /// `[rows, width]`, each row made by `make`.
    fn map(
        self,
        work: usize,
        [rows, width]: [usize; 2],
        out: &mut [f32],
        make: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> Result<()> {
        if out.len() != rows * width {
            return Err(Error::internal(format!("{} elements for {rows} rows of {width}", out.len())));
        }
        let shared = SharedOut::new(out);
        self.pool.run_if_worth(work, rows, &|row| {
            // SAFETY: each task has a row of its own.
            make(row, unsafe { shared.slice(row * width..(row + 1) * width) });
        });
        Ok(())
    }
}

fn check(norm: &Norm, width: usize) -> Result<()> {
    match norm.weight.len() == width {
        true => Ok(()),
        false => Err(Error::internal(format!("a norm of {} for rows of {width}", norm.weight.len()))),
    }
}
