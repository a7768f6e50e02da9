//! States of heads in tiles of columns, and a span's way through one of them.

use super::spans::Span;
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::recurrent::tile::{TILE, TileRow};
use std::cell::RefCell;
use std::ops::Range;

thread_local! {
    /// A tile that drafted rows pass through.
    static DRAFTED: RefCell<Vec<TileRow>> = const { RefCell::new(Vec::new()) };
}

/// Tokens whose outputs a task keeps in one piece.
const PIECE: usize = 64;

/// The columns of a tile in the rows of outputs.
pub(super) struct Columns<'a, 'b> {
    pub out: &'a SharedOut<'b>,
    /// Elements of a row.
    pub stride: usize,
    pub first: usize,
    /// At most `TILE`.
    pub width: usize,
}

/// Runs the rows of a span through a tile of its state, with copies for the slots of saves. `place` is the tile in a
/// slot. `run` runs rows of the span through a tile, and fills as many rows of outputs.
///
/// # Safety
/// No other thread uses the tile in the span's slots, nor the columns in the span's rows.
pub(super) unsafe fn through<'s>(
    span: &Span,
    columns: &Columns,
    place: impl Fn(u32) -> &'s mut [TileRow],
    run: impl Fn(&mut [TileRow], usize, &mut [TileRow]),
) {
    let rows = |state: &mut [TileRow], rows: Range<usize>| {
        let mut piece = [[0.0; TILE]; PIECE];
        for from in rows.clone().step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(rows.end - from)];
            run(state, from, piece);
            for (row, piece) in piece.iter().enumerate() {
                let at = (span.rows.start + from + row) * columns.stride + columns.first;
                // SAFETY: the caller's promise.
                let to = unsafe { columns.out.slice(at..at + columns.width) };
                to.copy_from_slice(&piece[..columns.width]);
            }
        }
    };
    let state = place(span.slot);
    if span.fresh {
        state.as_flattened_mut().fill(0.0);
    }
    let mut done = 0;
    for &(until, slot) in span.saves {
        rows(state, done..until as usize);
        place(slot).copy_from_slice(state);
        done = until as usize;
    }
    let certain = span.rows.len() - span.drafted;
    rows(state, done..certain);
    if span.drafted > 0 {
        DRAFTED.with_borrow_mut(|copy| {
            copy.clear();
            copy.extend_from_slice(state);
            rows(copy, certain..span.rows.len());
        });
    }
}
