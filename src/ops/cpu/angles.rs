//! The rotations of one step, shared by all layers: one table per rope of the model.

use crate::base::{Error, Result, reserve};
use crate::kernels::Pool;
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::rope;
use crate::ops::{RaggedBatch, Rope};
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Angles {
    positions: Vec<u32>,
    rotations: Vec<[u32; 3]>,
    tables: Vec<Table>,
}

/// The rotations of one rope.
#[derive(Default)]
struct Table {
    /// `None` if the table is of another step.
    rope: Option<Rope>,
    values: Vec<f32>,
}

impl Table {
    fn is_of(&self, rope: &Rope) -> bool {
        let same = |own: &Rope| Arc::ptr_eq(&own.inv_freq, &rope.inv_freq) && own.factor == rope.factor;
        self.rope.as_ref().is_some_and(|own| same(own) && own.axes == rope.axes)
    }
}

/// Maximum number of ropes with a table: Gemma's local and global one, and some for another model on the same
/// operations.
const MOST_TABLES: usize = 8;

fn copy<T: Copy>(from: &[T], to: &mut Vec<T>) -> Result<()> {
    to.clear();
    reserve(to, from.len(), "a step's rotations")?;
    to.extend_from_slice(from);
    Ok(())
}

impl Angles {
    /// The result of `rope::table` for the batch's rows.
    pub(super) fn of(&mut self, pool: &Pool, batch: &RaggedBatch, rope: &Rope) -> Result<&[f32]> {
        let RaggedBatch { positions, rotations, .. } = batch;
        let (rows, pairs) = (positions.len(), rope.inv_freq.len());
        let fits = rope.axes.as_ref().is_none_or(|axes| axes.pairs() == pairs);
        if !fits || !rotations.is_empty() && rotations.len() != rows {
            return Err(Error::internal(format!(
                "{} rotations of {pairs} pairs for {rows} rows",
                rotations.len()
            )));
        }
        if self.positions != *positions || self.rotations != *rotations {
            copy(positions, &mut self.positions)?;
            copy(rotations, &mut self.rotations)?;
            self.tables.iter_mut().for_each(|table| table.rope = None);
        }
        let len = rows * 2 * pairs;
        if let Some(at) = self.tables.iter().position(|table| table.is_of(rope)) {
            return Ok(&self.tables[at].values[..len]);
        }
        let free = self.tables.iter().position(|table| table.rope.is_none());
        let at = match free {
            Some(at) => at,
            None if self.tables.len() == MOST_TABLES => 0,
            None => {
                self.tables.push(Table::default());
                self.tables.len() - 1
            }
        };
        let table = &mut self.tables[at];
        table.rope = Some(rope.clone());
        let values = grown(&mut table.values, len);
        let axis = |pair| rope.axes.as_ref().map_or(0, |axes| axes.of(pair));
        let position = |row: usize, pair| rotations.get(row).map_or(positions[row], |row| row[axis(pair)]);
        rope::table(pool, rows, position, &rope.inv_freq, rope.factor, values);
        Ok(values)
    }
}
