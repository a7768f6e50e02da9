//! Adapters on a device: `y += s B (A x)` for some rows of a step.

use super::kernels::DENSE;
use super::launch::{Arg, Queue, at};
use super::linear::{Outputs, at_column};
use super::ops::CudaOps;
use super::parts::Part;
use super::weights::{OnDevice, copied, refused};
use crate::base::{Error, Result};
use crate::device::Buffer;
use crate::kernels::Pool;
use crate::kernels::gemm::lora::Pair;
use crate::ops::{Adapted, Lora, Projections, Site};
use std::sync::{Arc, Weak};

/// Rows that share the loads of B.
const ROWS: usize = 4;
const THREADS: usize = 128;

/// A pair of A and B on the device.
pub(super) struct OnePair {
    a: OnDevice,
    b: Buffer,
    /// Index into `DENSE`.
    element: usize,
    scale: f32,
}

/// The adapters on the device. Each stays as long as it has a holder.
#[derive(Default)]
pub(super) struct Loras(Vec<(Weak<Lora>, Arc<Lora<OnePair>>)>);

impl Loras {
    /// Frees the adapters that have no holder any more.
    pub(super) fn forget(&mut self) {
        self.0.retain(|(lora, _)| lora.strong_count() > 0);
    }

    /// Returns the adapter on the device, and copies it there if needed.
    pub(super) fn hold(
        &mut self,
        queue: &Queue,
        pool: &Pool,
        lora: &Arc<Lora>,
    ) -> Result<Arc<Lora<OnePair>>> {
        self.forget();
        if let Some((_, held)) = self.0.iter().find(|(known, _)| known.as_ptr() == Arc::as_ptr(lora)) {
            return Ok(held.clone());
        }
        let made = Arc::new(lora.try_map(&|pair| one(queue, pool, pair))?);
        self.0.push((Arc::downgrade(lora), made.clone()));
        Ok(made)
    }
}

fn one(queue: &Queue, pool: &Pool, pair: &Pair) -> Result<OnePair> {
    let a = OnDevice::new(&queue.opened, &queue.stream, pool, &pair.a)?;
    let element = a.product.checked_sub(DENSE.start).filter(|_| pair.a.dtype == pair.b.dtype);
    let Some(element) = element else { return Err(refused(pair.b.dtype, "adapters of such types")) };
    let b = copied(&queue.opened, &queue.stream, &pair.b.data, "an adapter")?;
    Ok(OnePair { a, b, element, scale: pair.scale })
}

impl CudaOps {
    /// Adds to `y` the adapter's update for the rows of `adapted`, computed from `x`.
    pub(super) fn update(
        &self,
        y: &Part,
        x: &Part,
        weights: &Projections,
        adapted: &Adapted,
        site: Site,
    ) -> Result<()> {
        let held = self.loras.lock().hold(&self.queue, &self.pool, &adapted.lora)?;
        let (rows, cols) = (adapted.rows.len(), x.dims[1]);
        if adapted.rows.iter().any(|row| *row as usize >= x.dims[0]) || x.dims[0] != y.dims[0] {
            return Err(Error::internal("adapted rows of another step"));
        }
        let mut gathered: Option<Part> = None;
        let (mut column, mut pairs) = (0, held.pairs(site).iter());
        for matrix in &weights.matrices {
            let first = column;
            column += matrix.rows;
            let Some(pair) = pairs.next().and_then(Option::as_ref) else { continue };
            if pair.a.columns != cols || pair.a.rows * matrix.rows * pair.bytes() != pair.b.len() {
                return Err(Error::internal("an adapter of another model"));
            }
            let x = match &gathered {
                Some(x) => x,
                None => gathered.insert(self.gather(x, &adapted.rows)?),
            };
            let between = self.part(rows, pair.a.rows)?;
            let to = Outputs { part: &between, column: 0, bias: None };
            self.float_product(x, &[&pair.a], to)?;
            self.up(y, first, matrix.rows, &between, pair, adapted)?;
        }
        Ok(())
    }

    fn up(
        &self,
        y: &Part,
        column: usize,
        width: usize,
        between: &Part,
        pair: &OnePair,
        adapted: &Adapted,
    ) -> Result<()> {
        let rows = self.inputs.lock().rows(&self.queue, &adapted.rows)?;
        let ([count, ranks], [_, stride]) = (between.dims, y.dims);
        let args = [
            at_column(y.address()?, column),
            between.arg()?,
            at(&pair.b)?,
            rows.into(),
            (adapted.scale * pair.scale).into(),
            Arg::int(count),
            Arg::int(ranks),
            Arg::int(width),
            Arg::int(ranks),
            Arg::long(stride),
        ];
        let grid = [width.div_ceil(THREADS), count.div_ceil(ROWS), 1];
        // SAFETY: rows of y are `[_, stride]`, and the matrix has `width` columns of them from `column` on; between
        // is `[count, ranks]`; B is `[ranks, width]`, as its length says.
        unsafe { self.launch(&self.kernels().lora_up[pair.element], grid, THREADS, 0, &args) }
    }
}

impl OnePair {
    /// Bytes per element of B.
    fn bytes(&self) -> usize {
        if self.element == 0 { 4 } else { 2 }
    }
}
