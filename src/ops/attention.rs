//! Paged attention in two passes over `qkv` `[T, (heads + 2 kv_heads) * head_dim]`. The first pass writes k, normed
//! and rotated, and v to the KV cache. The second norms and rotates q as it needs it, and attends.

use super::paging::{Paging, Span};
use super::spare::Spare;
use super::{Attention, AttentionShape, Norm, RopeStyle};
use crate::base::sync::Mutex;
use crate::base::{Error, Result};
use crate::kernels::attention::kv;
use crate::kernels::attention::{Context, Half, PIECE, QUERIES, Scratch, Seen, TILE};
use crate::kernels::attention::{finish, merge, state_len, stride};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::rope;
use crate::kernels::{Isa, Pool};
use std::cell::RefCell;

thread_local! {
    /// Scratch memory of the tasks on this thread.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Maximum bytes for the states of context pieces. If they would take more, no context is divided.
const PIECES_BYTES: usize = 8 << 20;
/// With this many tasks per thread, the wait for the last one is short, so contexts are not divided.
const TASKS_EACH: usize = 4;

impl AttentionShape {
    /// Width of a row of qkv.
    pub fn qkv(&self) -> usize {
        let kv = if self.keys_are_values { 1 } else { 2 };
        (self.heads + kv * self.kv_heads) * self.head_dim
    }

    /// Number of q heads that share a KV head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Maximum bytes that attention keeps on `threads` threads for contexts of `context` positions.
    pub(super) fn scratch_bytes(&self, threads: usize, context: usize) -> usize {
        let queries = self.group().max(QUERIES);
        let own = Scratch::bytes(queries, self.head_dim);
        let state = queries * state_len(self.head_dim) * size_of::<f32>();
        let shared = TASKS_EACH.saturating_mul(context.div_ceil(PIECE)).saturating_mul(state);
        let shared = if threads > 1 { shared.saturating_mul(threads).min(PIECES_BYTES) } else { 0 };
        own.saturating_mul(threads).saturating_add(shared)
    }
}

/// The norms and the rotation of a layer's heads, checked against the batch's rows.
pub(super) struct Turn<'a> {
    isa: Isa,
    norms: Option<&'a [Norm; 2]>,
    table: &'a [f32],
    width: usize,
    interleaved: bool,
    norms_last: bool,
}

impl<'a> Turn<'a> {
    pub(super) fn new(isa: Isa, how: &Attention<'a>, table: &'a [f32], rows: usize) -> Result<Self> {
        let (s, rope) = (how.shape, how.rope);
        let width = 2 * rope.inv_freq.len();
        if table.len() != rows * width || width > s.head_dim {
            return Err(Error::internal(format!("a rotation is needed for each of {rows} rows")));
        }
        if how.norms.is_some_and(|norms| norms.iter().any(|norm| norm.weight.len() != s.head_dim)) {
            return Err(Error::internal("the norms of q and k are not as wide as a head"));
        }
        if how.value_norm.map(|norm| norm.weight.len()) != s.value_eps.map(|_| s.head_dim) {
            return Err(Error::internal("the norm of v is not as wide as a head"));
        }
        if how.sinks.is_some_and(|sinks| sinks.len() != s.heads) {
            return Err(Error::internal("each head has one sink"));
        }
        let interleaved = rope.style == RopeStyle::Interleaved;
        Ok(Self { isa, norms: how.norms, table, width, interleaved, norms_last: s.norms_last })
    }

    /// Norms and rotates one head of `row`. `which` is 0 for q, 1 for k.
    pub(super) fn apply(&self, row: usize, which: usize, head: &mut [f32]) {
        let rotate = |head: &mut [f32]| {
            rope::rotate(head, &self.table[row * self.width..][..self.width], self.interleaved);
        };
        let Some(norms) = self.norms else { return rotate(head) };
        if self.norms_last {
            rotate(head);
        }
        norms[which].in_place(self.isa, head);
        if !self.norms_last {
            rotate(head);
        }
    }
}

/// Writes k, normed and rotated, and v of all rows to a layer of the KV cache. `table` is the result of
/// `kernels::rows::rope::table` for the batch's positions.
pub struct KvWrite<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub paging: &'a Paging<'a>,
    pub how: &'a Attention<'a>,
    pub table: &'a [f32],
}

impl KvWrite<'_> {
    /// `kv` has the bytes of the layer.
    pub fn run(&self, kv: &mut [u8], qkv: &[f32], dims: [usize; 2]) -> Result<()> {
        let (paging, s) = (self.paging, self.paging.shape);
        if dims != [paging.rows(), s.qkv()] || kv.len() != 2 * paging.half() {
            return Err(Error::internal("qkv or the KV cache has another shape than the batch"));
        }
        let values_from = s.heads + if s.keys_are_values { 0 } else { s.kv_heads };
        let turn = Turn::new(self.isa, self.how, self.table, paging.rows())?;
        let (slots, batch, dim) = (paging.paged(&[]), paging.batch, s.head_dim);
        let tile_bytes = slots.kind.tile_bytes(dim);
        let shared = SharedOut::new(kv);
        // One task for the rows of each tile.
        self.pool.run_if_worth(2 * paging.rows() * s.kv_heads * dim, paging.tiles.len(), &|task| {
            let span = &paging.tiles[task];
            let (table, first) = (paging.table(span.seq), batch.positions[span.rows.start] as usize);
            for (half, head) in
                [Half::K, Half::V].into_iter().flat_map(|h| (0..s.kv_heads).map(move |n| (h, n)))
            {
                let to = half as usize * paging.half() + slots.offset(table, head, first / TILE);
                // SAFETY: no other task writes to this tile, as `Paging` has checked.
                let tile = unsafe { shared.slice(to..to + tile_bytes) };
                for row in span.rows.clone() {
                    let at = batch.positions[row] as usize % TILE;
                    let before = if half == Half::K { s.heads } else { values_from };
                    let from = &qkv[row * s.qkv() + (before + head) * dim..][..dim];
                    let norm = self.how.value_norm;
                    if half == Half::V && norm.is_none() {
                        kv::store(slots.kind, half, tile, at, from);
                        continue;
                    }
                    SCRATCH.with_borrow_mut(|scratch| {
                        let own = &mut scratch.queries(1, dim)[..dim];
                        own.copy_from_slice(from);
                        match norm.filter(|_| half == Half::V) {
                            Some(norm) => norm.in_place(self.isa, own),
                            None => turn.apply(row, 1, own),
                        }
                        kv::store(slots.kind, half, tile, at, own);
                    });
                }
            }
        });
        Ok(())
    }
}

/// Attention of the q heads of `qkv`, normed and rotated, over the layer's K and V: `[T, heads * head_dim]`.
pub struct Attend<'a> {
    pub pool: &'a Pool,
    pub spare: &'a Spare,
    pub isa: Isa,
    pub paging: &'a Paging<'a>,
    pub how: &'a Attention<'a>,
    pub table: &'a [f32],
    /// The states of context pieces: tasks write them, then they are merged.
    pub pieces: &'a Mutex<Vec<f32>>,
}

impl Attend<'_> {
    /// `kv` has the bytes of the layer.
    pub fn run(&self, kv: &[u8], qkv: &[f32], dims: [usize; 2]) -> Result<Vec<f32>> {
        let (paging, s) = (self.paging, self.paging.shape);
        let rows = paging.rows();
        if dims != [rows, self.how.width()] || kv.len() != 2 * paging.half() {
            return Err(Error::internal("qkv or the KV cache has another shape than the batch"));
        }
        let width = s.heads * s.head_dim;
        let mut out = self.spare.take(rows * width)?;
        let turn = Turn::new(self.isa, self.how, self.table, rows)?;
        let (keys, values) = kv.split_at(paging.half());
        let work = Work { op: self, turn, qkv, keys, values, out: SharedOut::new(&mut out) };
        let seen = |position: &u32| *position as usize + 1 - self.how.first(*position as usize);
        let keys_seen: usize = paging.batch.positions.iter().map(seen).sum();
        let tasks = paging.spans.len() * s.kv_heads;
        match work.units(tasks) {
            Some(units) => work.share(units),
            None => self.pool.run_if_worth(keys_seen * width, tasks, &|task| {
                // The last rows of a prompt see the most, so they go first.
                let (span, kv_head) = (paging.spans.len() - 1 - task / s.kv_heads, task % s.kv_heads);
                work.whole(&paging.spans[span], kv_head);
            }),
        }
        Ok(out)
    }
}

/// State shared by the tasks of one `Attend`.
struct Work<'a> {
    op: &'a Attend<'a>,
    turn: Turn<'a>,
    qkv: &'a [f32],
    keys: &'a [u8],
    values: &'a [u8],
    out: SharedOut<'a>,
}

impl Work<'_> {
    fn context(&self, span: &Span, kv_head: usize) -> Context<'_> {
        let paging = self.op.paging;
        let (k, v) = (paging.paged(self.keys), paging.paged(self.values));
        let group = paging.shape.group();
        let sinks = self.op.how.sinks.map_or(&[][..], |sinks| &sinks[kv_head * group..][..group]);
        Context { k, v, table: paging.table(span.seq), kv_head, cap: paging.shape.cap, sinks }
    }

    fn seen(&self, row: usize) -> Seen {
        let position = self.op.paging.batch.positions[row] as usize;
        Seen { first: self.op.how.first(position), position }
    }

    /// Fills the scratch memory with the q heads of a span's rows, normed, rotated and scaled.
    fn fill(&self, span: &Span, kv_head: usize, scratch: &mut Scratch) {
        let s = self.op.paging.shape;
        let (group, dim) = (s.group(), s.head_dim);
        let queries = scratch.queries(span.rows.len() * group, dim);
        for (n, q) in queries.chunks_exact_mut(stride(dim)).enumerate() {
            let (row, head) = (span.rows.start + n / group, kv_head * group + n % group);
            let q = &mut q[..dim];
            q.copy_from_slice(&self.qkv[row * self.op.how.width() + head * dim..][..dim]);
            self.turn.apply(row, 0, q);
            let scale = s.scale_at(self.op.paging.batch.positions[row] as usize);
            q.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// The output of one head of one of the span's rows.
    ///
    /// # Safety
    ///
    /// No other code accesses this part of the output meanwhile.
    #[allow(clippy::mut_from_ref)]
    unsafe fn place(&self, span: &Span, kv_head: usize, row: usize, head: usize) -> &mut [f32] {
        let s = self.op.paging.shape;
        let at = ((span.rows.start + row) * s.heads + kv_head * s.group() + head) * s.head_dim;
        // SAFETY: guaranteed by the caller.
        unsafe { self.out.slice(at..at + s.head_dim) }
    }

    /// Task that attends to the whole context of a span.
    fn whole(&self, span: &Span, kv_head: usize) {
        let seen = self.rows_seen(span);
        let seen = &seen[..span.rows.len()];
        SCRATCH.with_borrow_mut(|scratch| {
            self.fill(span, kv_head, scratch);
            // SAFETY: spans share no row, so each task has these heads of its rows to itself.
            let place = |row, head| unsafe { self.place(span, kv_head, row, head) };
            scratch.attend(
                self.op.isa,
                seen,
                self.op.paging.shape.group(),
                &self.context(span, kv_head),
                place,
            );
        });
    }

    fn rows_seen(&self, span: &Span) -> [Seen; QUERIES] {
        let mut seen = [Seen::default(); QUERIES];
        seen.iter_mut().zip(span.rows.clone()).for_each(|(seen, row)| *seen = self.seen(row));
        seen
    }

    /// Number of tasks per KV head if each has one piece of one span's context. `None` if tasks with whole contexts
    /// keep all threads busy, or if dividing the contexts gains nothing or takes too much memory.
    fn units(&self, tasks: usize) -> Option<usize> {
        let (paging, threads) = (self.op.paging, self.op.pool.threads());
        if threads == 1 || tasks >= TASKS_EACH * threads {
            return None;
        }
        let units = paging.spans.iter().map(|span| self.pieces(span).len()).sum();
        let floats = self.slot().saturating_mul(units).saturating_mul(paging.shape.kv_heads);
        (units > paging.spans.len() && floats <= PIECES_BYTES / size_of::<f32>()).then_some(units)
    }

    /// Range of the pieces that any row of the span sees.
    fn pieces(&self, span: &Span) -> std::ops::Range<usize> {
        self.seen(span.rows.start).pieces().start..self.seen(span.rows.end - 1).pieces().end
    }

    /// Number of floats that one task's states take.
    fn slot(&self) -> usize {
        let s = self.op.paging.shape;
        let rows = self.op.paging.spans.iter().map(|span| span.rows.len()).max().unwrap_or(0);
        rows * s.group() * state_len(s.head_dim)
    }

    /// Runs a task for each of the `units` pieces of each KV head, then merges the pieces in order.
    fn share(&self, units: usize) {
        let (paging, slot) = (self.op.paging, self.slot());
        let kv_heads = paging.shape.kv_heads;
        let mut states = self.op.pieces.lock();
        let states = SharedOut::new(grown(&mut states, slot * units * kv_heads));
        self.op.pool.run(units * kv_heads, &|task| {
            let (mut unit, kv_head) = (task / kv_heads, task % kv_heads);
            for span in &paging.spans {
                let pieces = self.pieces(span);
                if unit < pieces.len() {
                    // SAFETY: each task has a slot of its own.
                    let slot = unsafe { states.slice(task * slot..(task + 1) * slot) };
                    return self.one_piece(span, kv_head, pieces.start + unit, slot);
                }
                unit -= pieces.len();
            }
        });
        let mut first = 0;
        for span in &paging.spans {
            (0..kv_heads).for_each(|kv_head| self.merge(span, kv_head, first, slot, &states));
            first += self.pieces(span).len();
        }
    }

    fn one_piece(&self, span: &Span, kv_head: usize, index: usize, states: &mut [f32]) {
        let seen = self.rows_seen(span);
        let seen = &seen[..span.rows.len()];
        let context = self.context(span, kv_head);
        SCRATCH.with_borrow_mut(|scratch| {
            self.fill(span, kv_head, scratch);
            let group = self.op.paging.shape.group();
            scratch.attend_piece(self.op.isa, seen, group, &context, index, states);
        });
    }

    /// Merges the pieces of a span. Its first piece is unit `first`.
    fn merge(&self, span: &Span, kv_head: usize, first: usize, slot: usize, states: &SharedOut) {
        let s = self.op.paging.shape;
        let (len, begin) = (state_len(s.head_dim), self.pieces(span).start);
        for n in 0..span.rows.len() * s.group() {
            let seen = self.seen(span.rows.start + n / s.group());
            let part = |index: usize| {
                let at = ((first + index - begin) * s.kv_heads + kv_head) * slot + n * len;
                // SAFETY: no task runs any more, and pieces do not overlap.
                unsafe { states.slice(at..at + len) }
            };
            let total = part(seen.pieces().start);
            for index in seen.pieces().skip(1) {
                merge(&seen, index, total, part(index), s.head_dim);
            }
            // SAFETY: no other code accesses the output now.
            let out = unsafe { self.place(span, kv_head, n / s.group(), n % s.group()) };
            finish(total, out, self.op.how.sinks.map(|sinks| sinks[kv_head * s.group() + n % s.group()]));
        }
    }
}
