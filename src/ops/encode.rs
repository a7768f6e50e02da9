//! Attention of whole texts in both directions over `qkv` `[T, (heads + 2 kv_heads) * head_dim]`. The first pass norms
//! and rotates q and k, and norms v, in place, if the model does; the second attends. Nothing is kept after the step.

use super::attention::Turn;
use super::{Attention, RaggedBatch, SeqRows};
use crate::base::{Error, Result, reserve};
use crate::kernels::attention::whole::{Scratch, Text, span_rows};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::{Isa, Pool};
use std::cell::RefCell;
use std::ops::Range;

thread_local! {
    /// Scratch memory of the tasks on this thread.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A part of the work: a head's rows from `start` on, of one text.
struct Task {
    rows: SeqRows,
    head: usize,
    start: usize,
}

/// Attends within each of the batch's sequences. `table` is the result of `kernels::rows::rope::table`.
pub(super) struct Encode<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub batch: &'a RaggedBatch,
    pub how: &'a Attention<'a>,
    pub table: &'a [f32],
    /// See `Step::part`.
    pub part: Option<Range<usize>>,
}

impl Encode<'_> {
    /// `out` `[T, heads * head_dim]`.
    pub(super) fn run(&self, qkv: &mut [f32], [rows, width]: [usize; 2], out: &mut [f32]) -> Result<()> {
        let s = self.how.shape;
        let fits = out.len() == rows * s.heads * s.head_dim;
        if rows != self.batch.tokens.len() || width != s.qkv() || !fits {
            return Err(Error::internal("qkv has another shape than the batch"));
        }
        let whole = |seq: &SeqRows| seq.rows > 0 && self.batch.positions[seq.row as usize] == 0;
        if !self.batch.seqs.iter().all(whole) {
            return Err(Error::invalid("an encoder runs whole texts, in one step each"));
        }
        let normed = self.how.norms.is_some() || self.how.value_norm.is_some();
        if !self.how.rope.inv_freq.is_empty() || normed {
            self.turn(qkv, width)?;
        }
        self.attend(qkv, width, out)
    }

    fn turn(&self, qkv: &mut [f32], width: usize) -> Result<()> {
        let (s, rows) = (self.how.shape, self.batch.tokens.len());
        let turn = Turn::new(self.isa, self.how, self.table, rows)?;
        let (work, shared) = (2 * qkv.len(), SharedOut::new(qkv));
        self.pool.run_if_worth(work, rows, &|row| {
            // SAFETY: each task has a row of its own.
            let own = unsafe { shared.slice(row * width..(row + 1) * width) };
            let heads = own.chunks_exact_mut(s.head_dim).take(s.heads + s.kv_heads);
            heads.enumerate().for_each(|(n, head)| turn.apply(row, usize::from(n >= s.heads), head));
            if let Some(norm) = self.how.value_norm {
                let values = own.chunks_exact_mut(s.head_dim).skip(s.heads + s.kv_heads);
                values.for_each(|head| norm.in_place(self.isa, head));
            }
        });
        Ok(())
    }

    fn attend(&self, qkv: &[f32], width: usize, out: &mut [f32]) -> Result<()> {
        let (s, tasks) = (self.how.shape, self.tasks()?);
        let out_width = s.heads * s.head_dim;
        let shared = SharedOut::new(out);
        let pairs = |task: &Task| {
            let rows = task.rows.rows as usize;
            (rows - task.start).min(span_rows(self.isa)) * rows
        };
        let pairs: usize = tasks.iter().map(pairs).sum();
        self.pool.run_if_worth(pairs.saturating_mul(2 * s.head_dim), tasks.len(), &|n| {
            let Task { rows: SeqRows { row: first, rows, .. }, head, start } = tasks[n];
            let (first, rows) = (first as usize, rows as usize);
            let (q, kv) = (head * s.head_dim, head / (s.heads / s.kv_heads));
            let columns = [q, (s.heads + kv) * s.head_dim, (s.heads + s.kv_heads + kv) * s.head_dim];
            let qkv = &qkv[first * width..(first + rows) * width];
            let (head_dim, window) = (s.head_dim, self.how.window);
            let text = Text { qkv, width, head_dim, columns, scale: s.scale, window };
            let span = start..rows.min(start + span_rows(self.isa));
            SCRATCH.with_borrow_mut(|scratch| {
                scratch.attend(self.isa, &text, span, |row| {
                    let at = (first + row) * out_width + q;
                    // SAFETY: each task has its own rows of a head, and uses one slice at a time.
                    unsafe { shared.slice(at..at + head_dim) }
                });
            });
        });
        Ok(())
    }

    /// Short texts have a task for each head, long ones several.
    fn tasks(&self) -> Result<Vec<Task>> {
        let (heads, mut tasks) = (self.how.shape.heads, Vec::new());
        for rows in &self.batch.seqs {
            let within = |start: &usize| {
                self.part.as_ref().is_none_or(|part| part.contains(&(rows.row as usize + start)))
            };
            let starts = (0..rows.rows as usize).step_by(span_rows(self.isa)).filter(within);
            reserve(&mut tasks, heads * starts.clone().count(), "a step's tasks")?;
            tasks.extend(
                (0..heads)
                    .flat_map(|head| starts.clone().map(move |start| Task { rows: *rows, head, start })),
            );
        }
        Ok(tasks)
    }
}
