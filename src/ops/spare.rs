//! Memory of results that nobody needs any more, for the next ones: a step's results have the same few sizes in every
//! layer, and fresh pages cost more than what is written to them.

use super::support::zeroed;
use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};
use parking_lot::Mutex;

/// The residual, q k v, attention's output, gate and up; wanted rows and their logits.
const KEPT: usize = 6;

#[derive(Default)]
pub struct Spare(Mutex<Free>);

#[derive(Default)]
struct Free {
    rows: usize,
    outputs: usize,
    parts: Vec<Vec<f32>>,
}

impl Spare {
    /// A step of `rows` rows, `outputs` of them wanted, begins. Where that is more than ever, what is too small now goes.
    pub fn begin(&self, rows: usize, outputs: usize) {
        let mut free = self.0.lock();
        if rows > free.rows || outputs > free.outputs {
            free.parts.clear();
            (free.rows, free.outputs) = (free.rows.max(rows), free.outputs.max(outputs));
        }
    }

    /// `n` floats of any value, to be overwritten: the smallest part that holds them, or a new one.
    pub fn take(&self, n: usize) -> candle_core::Result<Vec<f32>> {
        let mut free = self.0.lock();
        let fits = (0..free.parts.len()).filter(|i| free.parts[*i].capacity() >= n);
        let Some(best) = fits.min_by_key(|i| free.parts[*i].capacity()) else {
            drop(free);
            return zeroed(n);
        };
        let mut part = free.parts.swap_remove(best);
        drop(free);
        part.resize(n, 0.0);
        if cfg!(debug_assertions) {
            // What a result is read for without having been written shows in every test.
            part.fill(f32::NAN);
        }
        Ok(part)
    }

    /// Takes the memory out of `x`, which nobody may use any more, its clones included.
    pub fn give(&self, x: Tensor) -> candle_core::Result<()> {
        x.inplace_op1(self)
    }
}

impl InplaceOp1 for Spare {
    fn name(&self) -> &'static str {
        "recycle"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        if let CpuStorage::F32(data) = storage {
            let part = std::mem::take(data);
            let mut free = self.0.lock();
            if free.parts.len() < KEPT {
                free.parts.push(part);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn memory_comes_back() {
        let spare = Spare::default();
        spare.begin(2, 1);
        let [small, large] = [10, 100].map(|n| spare.take(n).unwrap());
        let places = [&small, &large].map(|part| part.as_ptr());
        for part in [large, small] {
            let len = part.len();
            spare.give(Tensor::from_vec(part, len, &Device::Cpu).unwrap()).unwrap();
        }
        let taken = [9, 11, 101].map(|n| spare.take(n).unwrap());
        assert_eq!([&taken[0], &taken[1]].map(|part| part.as_ptr()), places);
        assert_eq!(taken.each_ref().map(Vec::len), [9, 11, 101]);
        let [part, ..] = taken;
        spare.give(Tensor::from_vec(part, 9, &Device::Cpu).unwrap()).unwrap();
        spare.begin(2, 1);
        assert_eq!(spare.0.lock().parts.len(), 1);
        spare.begin(3, 1);
        assert!(spare.0.lock().parts.is_empty(), "kept for a smaller step");
        for _ in 0..2 * KEPT {
            spare.give(Tensor::from_vec(vec![0.0f32; 4], 4, &Device::Cpu).unwrap()).unwrap();
        }
        assert_eq!(spare.0.lock().parts.len(), KEPT);
    }
}
