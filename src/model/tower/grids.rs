//! The patches of pictures as a tower's rows: their order, positions and sums of learned ones.

use super::config::TowerConfig;
use super::family::{Order, Positions, Rotation};
use crate::base::{Error, Result, reserve};
use crate::ops::{Blends, RaggedBatch, SeqRows, Tap};
use crate::picture::Grid;

/// The purpose of a run's memory, for errors.
pub(super) const ROWS: &str = "the patches of pictures";

/// The patches of pictures, in the order that a tower has them: those that become a soft token after each other.
pub(super) struct Patches {
    pub batch: RaggedBatch,
    /// `[rows, patch_len]`.
    pub rows: Vec<f32>,
}

impl Patches {
    /// `InvalidArgument` if a picture's patches are not those of its grids, or a grid has no whole soft tokens.
    pub(super) fn new(c: &TowerConfig, pictures: &[(&[f32], &[Grid])]) -> Result<Self> {
        let mut patches = Self { batch: RaggedBatch::default(), rows: Vec::new() };
        for (at, (given, grids)) in pictures.iter().enumerate() {
            patches
                .picture(c, given, grids)
                .map_err(|e| Error::new(e.status, format!("picture {at}: {}", e.message)))?;
        }
        let rows = patches.batch.tokens.len();
        // For the rows of each step.
        reserve(&mut patches.batch.hidden_rows, rows, ROWS)?;
        Ok(patches)
    }

    fn picture(&mut self, c: &TowerConfig, given: &[f32], grids: &[Grid]) -> Result<()> {
        let count = |grid: &Grid| (grid.rows as usize).checked_mul(grid.cols as usize);
        let all = grids.iter().try_fold(0usize, |all, grid| all.checked_add(count(grid)?));
        let wanted = all.and_then(|all| all.checked_mul(c.patch_len()));
        if wanted != Some(given.len()) || grids.is_empty() {
            let len = c.patch_len();
            return Err(Error::invalid(format!(
                "{} elements for patches of {len} in {grids:?}",
                given.len()
            )));
        }
        if let Some(value) = given.iter().find(|value| !value.is_finite()) {
            return Err(Error::invalid(format!("a patch has an element that is {value}")));
        }
        let mut rest = given;
        for grid in grids {
            let (own, others) = rest.split_at(grid.rows as usize * grid.cols as usize * c.patch_len());
            self.grid(c, own, *grid)?;
            rest = others;
        }
        Ok(())
    }

    fn grid(&mut self, c: &TowerConfig, given: &[f32], grid: Grid) -> Result<()> {
        let [rows, cols] = [grid.rows, grid.cols].map(|side| side as usize);
        if given.is_empty() || !rows.is_multiple_of(c.merge) || !cols.is_multiple_of(c.merge) {
            let why = format!("a grid of {rows} by {cols} patches, and a soft token has {0} by {0}", c.merge);
            return Err(Error::invalid(why));
        }
        self.reserve(c, given.len(), rows * cols)?;
        let (len, batch) = (c.patch_len(), &mut self.batch);
        let first = batch.tokens.len() as u32;
        batch.seqs.push(SeqRows { row: first, rows: (rows * cols) as u32, table: 0, table_len: 0 });
        let [by, plus] = c.family.input;
        let sums = Sums::new(c, [rows, cols])?;
        for (at, [row, col]) in in_tokens([rows, cols], c.merge).enumerate() {
            batch.tokens.push(0);
            batch.positions.push(at as u32);
            if c.family.rotation.is_some() {
                let [row, col] = [row as u32, col as u32];
                let turns =
                    if c.family.rotation == Some(Rotation::Apart) { [0, col, row] } else { [0, row, col] };
                batch.rotations.push(turns);
            }
            sums.push(batch, [row, col])?;
            let from = match c.family.order {
                Order::Rows => row * cols + col,
                Order::Tokens => at,
            };
            self.rows.extend(given[from * len..][..len].iter().map(|x| by * x + plus));
        }
        Ok(())
    }

    fn reserve(&mut self, c: &TowerConfig, elements: usize, rows: usize) -> Result<()> {
        let batch = &mut self.batch;
        if u32::try_from(batch.tokens.len() + rows).is_err() {
            return Err(Error::invalid("more patches than can be counted"));
        }
        reserve(&mut self.rows, elements, ROWS)?;
        batch.reserve(rows, 1, 0)?;
        if c.family.rotation.is_some() {
            reserve(&mut batch.rotations, rows, ROWS)?;
        }
        if c.family.positions != Positions::None {
            reserve(&mut batch.blends.ends, rows, ROWS)?;
        }
        Ok(())
    }
}

/// The rows and columns of patches: those of a soft token after each other.
fn in_tokens([rows, cols]: [usize; 2], merge: usize) -> impl Iterator<Item = [usize; 2]> {
    let tokens =
        (0..rows).step_by(merge).flat_map(move |row| (0..cols).step_by(merge).map(move |col| [row, col]));
    tokens.flat_map(move |[row, col]| (0..merge * merge).map(move |at| [row + at / merge, col + at % merge]))
}

/// The rows of a table of positions that the rows and the columns of a grid take, on a side of the table each.
struct Sums {
    sides: [Blends; 2],
    positions: Positions,
    /// Rows on a side; with `Positions::Sides` of the first table.
    side: usize,
}

impl Sums {
    fn new(c: &TowerConfig, grid: [usize; 2]) -> Result<Self> {
        let positions = c.family.positions;
        let side = if positions == Positions::Sides { c.positions } else { c.side() };
        let mut sides = [Blends::default(), Blends::default()];
        for (blends, count) in sides.iter_mut().zip(grid) {
            if positions == Positions::Sides && count > side {
                let why = format!("{count} patches in a row, and the tower has {side} positions");
                return Err(Error::invalid(why));
            }
            if positions != Positions::None {
                reserve(&mut blends.ends, count, ROWS)?;
                (0..count).try_for_each(|at| along(positions, [at, count], side, blends))?;
            }
        }
        Ok(Self { sides, positions, side })
    }

    /// Adds those of a patch.
    fn push(&self, batch: &mut RaggedBatch, [row, col]: [usize; 2]) -> Result<()> {
        if self.positions == Positions::None {
            return Ok(());
        }
        let (blends, side) = (&mut batch.blends, self.side as u32);
        let [rows, cols] = [self.sides[0].of(row), self.sides[1].of(col)];
        reserve(&mut blends.taps, 1 + rows.len() * cols.len(), ROWS)?;
        if self.positions == Positions::Sides {
            blends.taps.push(cols[0]);
            blends.taps.push(Tap { row: side + rows[0].row, ..rows[0] });
        } else {
            for row in rows {
                let both = |col: &Tap| Tap { row: row.row * side + col.row, weight: row.weight * col.weight };
                blends.taps.extend(cols.iter().map(both));
            }
        }
        blends.ends.push(blends.taps.len() as u32);
        Ok(())
    }
}

/// Adds the rows, of the `side` on a side of a table, that place `at` of `count` takes.
fn along(positions: Positions, [at, count]: [usize; 2], side: usize, to: &mut Blends) -> Result<()> {
    let mut push = |row: usize, weight: f32| {
        reserve(&mut to.taps, 1, ROWS)?;
        to.taps.push(Tap { row: row.min(side - 1) as u32, weight });
        Ok::<_, Error>(())
    };
    match positions {
        Positions::None | Positions::Sides => push(at, 1.0)?,
        Positions::Nearest => push(at * side / count, 1.0)?,
        Positions::Corners => {
            let place = at as f32 * (side - 1) as f32 / (count - 1).max(1) as f32;
            let part = place - place.floor();
            push(place as usize, 1.0 - part)?;
            push(place as usize + 1, part)?;
        }
        Positions::Resized => {
            let scale = side as f64 / count as f64;
            let (reach, middle) = (scale.max(1.0), scale * (at as f64 + 0.5));
            let first = (middle - reach + 0.5).max(0.0) as usize;
            let end = ((middle + reach + 0.5) as usize).min(side);
            let weight = |row: usize| (1.0 - ((row as f64 + 0.5 - middle) / reach).abs()).max(0.0);
            let sum: f64 = (first..end).map(weight).sum();
            (first..end).try_for_each(|row| push(row, (weight(row) / sum) as f32))?;
        }
    }
    to.ends.push(to.taps.len() as u32);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_of_a_soft_token_follow_each_other() {
        let order: Vec<_> = in_tokens([2, 4], 2).collect();
        assert_eq!(order, [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]);
        assert_eq!(in_tokens([1, 3], 1).collect::<Vec<_>>(), [[0, 0], [0, 1], [0, 2]]);
    }

    fn taps(positions: Positions, count: usize, side: usize) -> Blends {
        let mut all = Blends::default();
        (0..count).for_each(|at| along(positions, [at, count], side, &mut all).unwrap());
        all
    }

    /// By hand.
    #[test]
    fn a_table_is_resampled_along_a_side() {
        let rows = |positions, count, side| -> Vec<Vec<(u32, f32)>> {
            let all = taps(positions, count, side);
            (0..count).map(|at| all.of(at).iter().map(|tap| (tap.row, tap.weight)).collect()).collect()
        };
        assert_eq!(
            rows(Positions::Corners, 3, 5),
            [[(0, 1.0), (1, 0.0)], [(2, 1.0), (3, 0.0)], [(4, 1.0), (4, 0.0)]]
        );
        assert_eq!(rows(Positions::Corners, 5, 3)[1], [(0, 0.5), (1, 0.5)]);
        assert_eq!(rows(Positions::Corners, 1, 3), [[(0, 1.0), (1, 0.0)]]);
        assert_eq!(rows(Positions::Nearest, 4, 6), [[(0, 1.0)], [(1, 1.0)], [(3, 1.0)], [(4, 1.0)]]);
        // As many rows: each by itself.
        assert_eq!(rows(Positions::Resized, 2, 2), [vec![(0, 1.0), (1, 0.0)], vec![(1, 1.0)]]);
        // Half as many: the middle rows weigh three times as much as those beyond.
        assert_eq!(rows(Positions::Resized, 2, 4)[0], [(0, 3.0 / 7.0), (1, 3.0 / 7.0), (2, 1.0 / 7.0)]);
    }

    /// All weights of a place sum to one.
    #[test]
    fn weights_sum_to_one() {
        for positions in [Positions::Corners, Positions::Nearest, Positions::Resized] {
            for (count, side) in [(1, 1), (1, 7), (7, 1), (5, 16), (16, 5), (31, 32), (64, 48)] {
                let all = taps(positions, count, side);
                for at in 0..count {
                    let taps = all.of(at);
                    let sum: f32 = taps.iter().map(|tap| tap.weight).sum();
                    assert!((sum - 1.0).abs() < 1e-5, "{positions:?} {at} of {count} in {side}: {sum}");
                    assert!(taps.iter().all(|tap| (tap.row as usize) < side));
                }
            }
        }
    }
}
