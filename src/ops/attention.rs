//! Paged attention in two passes over `qkv` `[T, (heads + 2 kv_heads) * head_dim]`. The first pass writes k, normed
//! and rotated, and v to the KV cache. The second norms and rotates q as it needs it, and attends.

use super::paging::{Paging, Span};
use super::{Attention, AttentionShape, Norm, RopeStyle};
use crate::base::sync::Mutex;
use crate::base::{Error, Result};
use crate::kernels::attention::kv;
use crate::kernels::attention::{Context, Half, KvType, PIECE, QUERIES, Scratch, Seen, TILE, TOGETHER, turn};
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
        let kv = if self.keys_are_values || self.joint { 1 } else { 2 };
        (self.heads + kv * self.kv_heads) * self.head_dim
    }

    /// Number of q heads that share a KV head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Number of q heads that a task takes: those of a KV head, or of many an equal part.
    pub(super) fn each(&self) -> usize {
        let group = self.group();
        let divides = |each: &usize| group.is_multiple_of(*each);
        if group <= QUERIES { group } else { (QUERIES / 2..=QUERIES).rev().find(divides).unwrap_or(group) }
    }

    /// Number of such tasks for the rows of a span.
    pub(super) fn tasks(&self) -> usize {
        self.heads / self.each()
    }

    /// Maximum bytes that attention keeps on `threads` threads for contexts of `context` positions.
    pub(super) fn scratch_bytes(&self, threads: usize, context: usize) -> usize {
        let queries = self.each().max(TOGETHER);
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
/// `kernels::rows::rope::table` for the batch's rows.
pub(super) struct KvWrite<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub paging: &'a Paging<'a>,
    pub how: &'a Attention<'a>,
    pub table: &'a [f32],
}

impl KvWrite<'_> {
    /// `kv` has the bytes of the layer.
    pub(super) fn run(&self, kv: &mut [u8], qkv: &[f32], dims: [usize; 2]) -> Result<()> {
        let (paging, s) = (self.paging, self.paging.shape);
        if dims != [paging.rows(), s.qkv()] || kv.len() != paging.halves() * paging.half() {
            return Err(Error::internal("qkv or the KV cache has another shape than the batch"));
        }
        let values_from = s.heads + if s.keys_are_values { 0 } else { s.kv_heads };
        let rotation = Turn::new(self.isa, self.how, self.table, paging.rows())?;
        let (slots, batch, dim) = (paging.paged(&[]), paging.batch, s.head_dim);
        let tile_bytes = slots.kind.tile_bytes(dim);
        let shared = SharedOut::new(kv);
        // One task for the rows of each tile.
        self.pool.run_if_worth(2 * paging.rows() * s.kv_heads * dim, paging.tiles.len(), &|task| {
            let span = &paging.tiles[task];
            let (table, first) = (paging.table(span.seq), batch.positions[span.rows.start] as usize);
            let halves = [Half::K, Half::V].into_iter().skip(2 - paging.halves());
            for (half, head) in halves.flat_map(|h| (0..s.kv_heads).map(move |n| (h, n))) {
                let values = half == Half::V && !s.joint;
                let to = usize::from(values) * paging.half() + slots.offset(table, head, first / TILE);
                // SAFETY: no other task writes to this tile, as `Paging` has checked.
                let tile = unsafe { shared.slice(to..to + tile_bytes) };
                for row in span.rows.clone() {
                    let at = batch.positions[row] as usize % TILE;
                    let before = if values { values_from } else { s.heads };
                    let from = &qkv[row * s.qkv() + (before + head) * dim..][..dim];
                    let norm = self.how.value_norm;
                    if values && norm.is_none() && !slots.kind.scaled() {
                        kv::store(self.isa, slots.kind, half, tile, at, from);
                        continue;
                    }
                    SCRATCH.with_borrow_mut(|scratch| {
                        let own = &mut scratch.queries(1, dim)[..dim];
                        own.copy_from_slice(from);
                        match norm {
                            Some(norm) if values => norm.in_place(self.isa, own),
                            _ if values => (),
                            _ => rotation.apply(row, 1, own),
                        }
                        turn(self.isa, slots.kind, half, own);
                        kv::store(self.isa, slots.kind, half, tile, at, own);
                    });
                }
            }
        });
        Ok(())
    }
}

/// Attention of the q heads of `qkv`, normed and rotated, over the layer's K and V: `[T, heads * head_dim]`.
pub(super) struct Attend<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub paging: &'a Paging<'a>,
    pub how: &'a Attention<'a>,
    pub table: &'a [f32],
    /// The states of context pieces: tasks write them, then they are merged.
    pub pieces: &'a Mutex<Vec<f32>>,
}

impl Attend<'_> {
    /// `kv` has the bytes of the layer.
    pub(super) fn run(&self, kv: &[u8], qkv: &[f32], dims: [usize; 2], out: &mut [f32]) -> Result<()> {
        let (paging, s) = (self.paging, self.paging.shape);
        let (rows, width) = (paging.rows(), s.heads * s.head_dim);
        let fits = dims == [rows, self.how.width()] && out.len() == rows * width;
        if !fits || kv.len() != paging.halves() * paging.half() {
            return Err(Error::internal("qkv or the KV cache has another shape than the batch"));
        }
        let turn = Turn::new(self.isa, self.how, self.table, rows)?;
        let (keys, values) = if s.joint { (kv, kv) } else { kv.split_at(paging.half()) };
        let work = Work { op: self, turn, qkv, keys, values, out: SharedOut::new(out) };
        let seen = |row| work.seen(row);
        let keys_seen: usize = (0..rows).map(seen).map(|seen| seen.last + 1 - seen.first).sum();
        let tasks = paging.spans.len() * s.tasks();
        match work.units(tasks) {
            Some(units) => work.share(units),
            None => self.pool.run_if_worth(keys_seen * width, tasks, &|task| {
                // The last rows of a prompt see the most, so they go first.
                let (span, part) = (paging.spans.len() - 1 - task / s.tasks(), task % s.tasks());
                work.whole(&paging.spans[span], part);
            }),
        }
        Ok(())
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
    /// `part` counts the tasks of a span.
    fn context(&self, span: &Span, part: usize) -> Context<'_> {
        let paging = self.op.paging;
        let (k, v) = (paging.paged(self.keys), paging.paged(self.values));
        let (each, kv_head) = (paging.shape.each(), part * paging.shape.each() / paging.shape.group());
        let sinks = self.op.how.sinks.map_or(&[][..], |sinks| &sinks[part * each..][..each]);
        let AttentionShape { cap, joint, .. } = *paging.shape;
        Context { k, v, joint, table: paging.table(span.seq), kv_head, cap, sinks }
    }

    fn kind(&self) -> KvType {
        self.op.paging.paged(&[]).kind
    }

    fn seen(&self, row: usize) -> Seen {
        let batch = self.op.paging.batch;
        self.op.how.seen(batch.positions[row] as usize, batch.mutual_with(row))
    }

    /// Fills the scratch memory with the q heads of a span's rows, normed, rotated and scaled.
    fn fill(&self, span: &Span, part: usize, scratch: &mut Scratch) {
        let s = self.op.paging.shape;
        let (group, dim) = (s.each(), s.head_dim);
        let keys = if s.joint { Half::V } else { Half::K };
        let queries = scratch.queries(span.rows.len() * group, dim);
        for (n, q) in queries.chunks_exact_mut(stride(dim)).enumerate() {
            let (row, head) = (span.rows.start + n / group, part * group + n % group);
            let q = &mut q[..dim];
            q.copy_from_slice(&self.qkv[row * self.op.how.width() + head * dim..][..dim]);
            self.turn.apply(row, 0, q);
            let scale = s.scale_at(self.op.paging.batch.positions[row] as usize);
            q.iter_mut().for_each(|x| *x *= scale);
            turn(self.op.isa, self.kind(), keys, q);
        }
    }

    /// The output of one head of one of the span's rows.
    ///
    /// # Safety
    ///
    /// No other code accesses this part of the output meanwhile.
    #[allow(clippy::mut_from_ref)]
    unsafe fn place(&self, span: &Span, part: usize, row: usize, head: usize) -> &mut [f32] {
        let s = self.op.paging.shape;
        let at = ((span.rows.start + row) * s.heads + part * s.each() + head) * s.head_dim;
        // SAFETY: guaranteed by the caller.
        unsafe { self.out.slice(at..at + s.head_dim) }
    }

    /// Task that attends to the whole context of a span.
    fn whole(&self, span: &Span, part: usize) {
        let seen = self.rows_seen(span);
        let seen = &seen[..span.rows.len()];
        SCRATCH.with_borrow_mut(|scratch| {
            self.fill(span, part, scratch);
            // SAFETY: spans share no row, so each task has these heads of its rows to itself.
            let place = |row, head| unsafe { self.place(span, part, row, head) };
            scratch.attend(self.op.isa, seen, self.op.paging.shape.each(), &self.context(span, part), place);
        });
    }

    fn rows_seen(&self, span: &Span) -> [Seen; TOGETHER] {
        let mut seen = [Seen::default(); TOGETHER];
        seen.iter_mut().zip(span.rows.clone()).for_each(|(seen, row)| *seen = self.seen(row));
        seen
    }

    /// Number of tasks per part of the heads if each has one piece of one span's context. `None` if tasks with whole
    /// contexts keep all threads busy, or if dividing the contexts gains nothing or takes too much memory.
    fn units(&self, tasks: usize) -> Option<usize> {
        let (paging, threads) = (self.op.paging, self.op.pool.threads());
        if threads == 1 || tasks >= TASKS_EACH * threads {
            return None;
        }
        let units = paging.spans.iter().map(|span| self.pieces(span).len()).sum();
        let floats = self.slot().saturating_mul(units).saturating_mul(paging.shape.tasks());
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
        rows * s.each() * state_len(s.head_dim)
    }

    /// Runs a task for each of the `units` pieces of each part of the heads, then merges the pieces in order.
    fn share(&self, units: usize) {
        let (paging, slot) = (self.op.paging, self.slot());
        let parts = paging.shape.tasks();
        let mut states = self.op.pieces.lock();
        let states = SharedOut::new(grown(&mut states, slot * units * parts));
        self.op.pool.run(units * parts, &|task| {
            let (mut unit, part) = (task / parts, task % parts);
            for span in &paging.spans {
                let pieces = self.pieces(span);
                if unit < pieces.len() {
                    // SAFETY: each task has a slot of its own.
                    let slot = unsafe { states.slice(task * slot..(task + 1) * slot) };
                    return self.one_piece(span, part, pieces.start + unit, slot);
                }
                unit -= pieces.len();
            }
        });
        let mut first = 0;
        for span in &paging.spans {
            (0..parts).for_each(|part| self.merge(span, part, first, slot, &states));
            first += self.pieces(span).len();
        }
    }

    fn one_piece(&self, span: &Span, part: usize, index: usize, states: &mut [f32]) {
        let seen = self.rows_seen(span);
        let seen = &seen[..span.rows.len()];
        let context = self.context(span, part);
        SCRATCH.with_borrow_mut(|scratch| {
            self.fill(span, part, scratch);
            let group = self.op.paging.shape.each();
            scratch.attend_piece(self.op.isa, seen, group, &context, index, states);
        });
    }

    /// Merges the pieces of a span. Its first piece is unit `first`.
    fn merge(&self, span: &Span, part: usize, first: usize, slot: usize, states: &SharedOut) {
        let s = self.op.paging.shape;
        let (len, begin) = (state_len(s.head_dim), self.pieces(span).start);
        for n in 0..span.rows.len() * s.each() {
            let seen = self.seen(span.rows.start + n / s.each());
            let piece = |index: usize| {
                let at = ((first + index - begin) * s.tasks() + part) * slot + n * len;
                // SAFETY: no task runs any more, and pieces do not overlap.
                unsafe { states.slice(at..at + len) }
            };
            let total = piece(seen.pieces().start);
            for index in seen.pieces().skip(1) {
                merge(&seen, index, total, piece(index), s.head_dim);
            }
            // SAFETY: no other code accesses the output now.
            let out = unsafe { self.place(span, part, n / s.each(), n % s.each()) };
            finish(total, out, self.op.how.sinks.map(|sinks| sinks[part * s.each() + n % s.each()]));
            turn(self.op.isa, self.kind(), Half::V, out);
        }
    }
}
