//! The rotations of one step, shared by all layers: one table per rope of the model.

use crate::kernels::Pool;
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::rope;
use crate::ops::{RaggedBatch, Rope};
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Angles {
    positions: Vec<u32>,
    tables: Vec<Table>,
}

/// The rotations of one rope.
#[derive(Default)]
struct Table {
    /// The rope's frequencies; `None` if the table is of another step.
    inv_freq: Option<Arc<[f32]>>,
    factor: f32,
    values: Vec<f32>,
}

/// Maximum number of ropes with a table: Gemma's local and global one, and some for another model on the same
/// operations.
const MOST_TABLES: usize = 8;

impl Angles {
    /// The result of `rope::table` for the batch's positions.
    pub(super) fn of(&mut self, pool: &Pool, batch: &RaggedBatch, rope: &Rope) -> &[f32] {
        let len = batch.positions.len() * 2 * rope.inv_freq.len();
        if self.positions != batch.positions {
            self.positions.clone_from(&batch.positions);
            self.tables.iter_mut().for_each(|table| table.inv_freq = None);
        }
        let is = |table: &Table| {
            let same = table.inv_freq.as_ref().is_some_and(|known| Arc::ptr_eq(known, &rope.inv_freq));
            same && table.factor == rope.factor
        };
        if let Some(at) = self.tables.iter().position(is) {
            return &self.tables[at].values[..len];
        }
        let free = self.tables.iter().position(|table| table.inv_freq.is_none());
        let at = match free {
            Some(at) => at,
            None if self.tables.len() == MOST_TABLES => 0,
            None => {
                self.tables.push(Table::default());
                self.tables.len() - 1
            }
        };
        let table = &mut self.tables[at];
        (table.inv_freq, table.factor) = (Some(rope.inv_freq.clone()), rope.factor);
        let values = grown(&mut table.values, len);
        rope::table(pool, &batch.positions, &rope.inv_freq, rope.factor, values);
        values
    }
}
