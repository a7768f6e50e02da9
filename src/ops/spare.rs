//! Reuses memory of dropped results for later ones. A step's results have the same few sizes in every layer, and
//! touching fresh pages costs more than writing to them.

use super::tensors::zeroed;
use crate::base::{Error, Result};
use parking_lot::Mutex;

/// The residual, qkv, attention's output, gate and up; the wanted rows and their logits.
const KEPT: usize = 6;

/// Only ever locked with `try_lock`. Operations of one pass never contend for it; any other caller does without.
#[derive(Default)]
pub struct Spare(Mutex<Free>);

#[derive(Default)]
struct Free {
    rows: usize,
    outputs: usize,
    parts: Vec<Vec<f32>>,
}

impl Free {
    /// Takes the smallest part that holds `n` floats.
    fn take(&mut self, n: usize) -> Option<Vec<f32>> {
        let fits = (0..self.parts.len()).filter(|i| self.parts[*i].capacity() >= n);
        let best = fits.min_by_key(|i| self.parts[*i].capacity())?;
        Some(self.parts.swap_remove(best))
    }
}

impl Spare {
    /// Begins a step of `rows` rows, `outputs` of which are wanted. If either exceeds all earlier steps, frees the
    /// kept parts, which are too small now.
    pub fn begin(&self, rows: usize, outputs: usize) {
        let Some(mut free) = self.0.try_lock() else { return };
        if rows > free.rows || outputs > free.outputs {
            free.parts.clear();
            (free.rows, free.outputs) = (free.rows.max(rows), free.outputs.max(outputs));
        }
    }

    /// Returns `n` floats with unspecified contents, to be overwritten: a kept part that is large enough, or a new
    /// one.
    pub fn take(&self, n: usize) -> Result<Vec<f32>> {
        let Some(mut part) = self.0.try_lock().and_then(|mut free| free.take(n)) else {
            return zeroed(n).ok_or_else(|| Error::out_of_memory("a step's results", n.saturating_mul(4)));
        };
        part.resize(n, 0.0);
        if cfg!(debug_assertions) {
            // A result that is read before it was written shows in every test.
            part.fill(f32::NAN);
        }
        Ok(part)
    }

    /// Keeps the memory of a result that is no longer used.
    pub fn give(&self, part: Vec<f32>) {
        if let Some(mut free) = self.0.try_lock()
            && free.parts.len() < KEPT
        {
            free.parts.push(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::panics;
    use crate::ops::Owned;
    use std::sync::Arc;

    fn owned(part: Vec<f32>, spare: &Arc<Spare>) -> Owned {
        let len = part.len();
        Owned::new(part, [1, len], spare).unwrap()
    }

    #[test]
    fn memory_comes_back() {
        let spare = Arc::<Spare>::default();
        spare.begin(2, 1);
        let [small, large] = [10, 100].map(|n| spare.take(n).unwrap());
        let places = [&small, &large].map(|part| part.as_ptr());
        for part in [large, small] {
            drop(owned(part, &spare));
        }
        let taken = [9, 11, 101].map(|n| spare.take(n).unwrap());
        assert_eq!([&taken[0], &taken[1]].map(|part| part.as_ptr()), places);
        assert_eq!(taken.each_ref().map(Vec::len), [9, 11, 101]);
        let [part, ..] = taken;
        drop(owned(part, &spare));
        spare.begin(2, 1);
        assert_eq!(spare.0.lock().parts.len(), 1);
        spare.begin(3, 1);
        assert!(spare.0.lock().parts.is_empty(), "kept for a smaller step");
        (0..2 * KEPT).for_each(|_| drop(owned(vec![0.0; 4], &spare)));
        assert_eq!(spare.0.lock().parts.len(), KEPT);
    }

    /// The tensor that a kernel was writing to is dropped while the panic unwinds. A second panic then would end the
    /// process.
    #[test]
    fn a_panic_in_an_operation_stays_one() {
        let spare = Arc::<Spare>::default();
        let text = panics::catch(|| {
            let mut x = owned(vec![0.0; 4], &spare);
            let _ = x.update(|_, _| -> Result<()> { panic!("in a kernel") });
        });
        assert!(text.unwrap_err().contains("in a kernel"));
    }

    /// A forked child may find the lock held forever.
    #[test]
    fn a_lock_that_is_held_holds_nobody_up() {
        let spare = Arc::<Spare>::default();
        let held = spare.0.lock();
        spare.begin(2, 1);
        assert_eq!(spare.take(3).unwrap(), [0.0; 3]);
        drop(owned(vec![0.0; 4], &spare));
        drop(held);
        assert!(spare.0.lock().parts.is_empty());
    }
}
