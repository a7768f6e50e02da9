//! The inputs of a step's kernels besides results and weights: token ids, positions, block tables, rotations.

use super::graphs::pieces;
use super::launch::Queue;
use super::spans::{self, Spans};
use super::weights::floats;
use crate::base::{Error, Result, reserve};
use crate::device::{Buffer, Copying, Pinned};
use crate::kernels::Pool;
use crate::kernels::rows::rope;
use crate::ops::{Accepted, RaggedBatch, Rope};
use std::sync::Arc;

/// Device memory that is written at most once in a step, and the host memory that it is copied from.
#[derive(Default)]
struct Slot {
    memory: Option<Buffer>,
    staging: Staging,
}

#[derive(Default)]
enum Staging {
    #[default]
    None,
    Idle(Pinned),
    Busy(Copying),
}

const WHAT: &str = "a step's inputs";
/// The block table of a row of padding: its K and V are not kept (`cuda/kernels/rope.cuh`).
const NO_TABLE: u32 = u32::MAX;

impl Slot {
    /// Enqueues a copy of `data` and returns its address on the device. `generation` counts how often memory moved.
    fn put(&mut self, queue: &Queue, data: &[u8], generation: &mut u64) -> Result<u64> {
        let device = &queue.opened.device;
        if self.memory.as_ref().is_none_or(|memory| memory.len() < data.len()) {
            let bytes = data.len().next_power_of_two().max(4096);
            *generation += 1;
            queue.stream.synchronize()?;
            (self.memory, self.staging) = (None, Staging::None);
            self.memory = Some(Buffer::new(device, bytes, WHAT)?);
        }
        let Some(memory) = &self.memory else { return Err(Error::internal("inputs without memory")) };
        let mut pinned = match std::mem::take(&mut self.staging) {
            Staging::None => Pinned::new(device, memory.len(), WHAT)?,
            Staging::Idle(pinned) => pinned,
            // The previous step has usually waited for it.
            Staging::Busy(copying) => copying.wait()?,
        };
        if data.is_empty() {
            self.staging = Staging::Idle(pinned);
        } else {
            pinned[..data.len()].copy_from_slice(data);
            self.staging = Staging::Busy(memory.write_from(&queue.stream, 0, pinned, 0..data.len())?);
        }
        memory.address(0)
    }
}

fn words(values: &[u32]) -> &[u8] {
    // SAFETY: words have no padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// A step's batch on the device.
#[derive(Clone, Copy, Default)]
pub(super) struct OnDevice {
    pub rows: usize,
    pub tokens: u64,
    pub positions: u64,
    /// `[rows]`: index in `tables` at which the block table of the row's sequence begins, or `NO_TABLE`.
    pub tables_at: u64,
    pub tables: u64,
    /// Number of pieces of the longest context, rounded up.
    pub pieces: usize,
    /// Address of the draws' inputs; 0 without draws.
    pub draws: u64,
}

/// The inputs of one step.
#[derive(Default)]
pub(super) struct Inputs {
    batch: Slot,
    pub at: OnDevice,
    draws: Slot,
    /// The sequences, for layers with states; `None` in a model without.
    pub spans: Option<Spans>,
    states: Slot,
    /// Spans of accepted drafts, copied between steps.
    accepted: Slot,
    /// The rotations of each rope, in the order of their first use in the step, with the rope's frequencies and
    /// factor.
    turns: Vec<(Slot, Option<Turns>)>,
    /// Other lists. The first `listed` belong to this step.
    lists: Vec<List>,
    listed: usize,
    /// Counts how often any of this memory moved.
    pub generation: u64,
    words: Vec<u32>,
    floats: Vec<f32>,
}

/// A list that is made once per step.
#[derive(Default)]
struct List {
    slot: Slot,
    of: Option<ListOf>,
    address: u64,
}

/// The contents of a list.
#[derive(PartialEq, Eq)]
enum ListOf {
    /// Attention's tasks: the key that determines them, and their number.
    Tasks([usize; 4], usize),
    Rows(Vec<u32>),
}

struct Turns {
    inv_freq: Arc<[f32]>,
    factor: f32,
    address: u64,
}

impl Inputs {
    /// Begins a step and copies its batch.
    pub(super) fn begin(&mut self, queue: &Queue, batch: &RaggedBatch) -> Result<()> {
        self.turns.iter_mut().for_each(|(_, turns)| *turns = None);
        self.listed = 0;
        let rows = batch.tokens.len();
        if batch.positions.len() != rows && !batch.positions.is_empty() {
            return Err(Error::internal("a step with other positions than rows"));
        }
        let all = &mut self.words;
        all.clear();
        reserve(all, 3 * rows + batch.block_tables.len(), "a step's inputs")?;
        all.extend_from_slice(&batch.tokens);
        all.extend_from_slice(&batch.positions);
        all.resize(2 * rows, 0);
        let own = batch.seqs.len() - batch.padding.min(batch.seqs.len());
        for (n, seq) in batch.seqs.iter().enumerate() {
            let table = if n < own { seq.table } else { NO_TABLE };
            all.extend(std::iter::repeat_n(table, seq.rows as usize));
        }
        all.resize(3 * rows, 0);
        all.extend_from_slice(&batch.block_tables);
        let tokens = self.batch.put(queue, words(all), &mut self.generation)?;
        let behind = |n: usize| tokens + (n * rows * size_of::<u32>()) as u64;
        let [positions, tables_at, tables] = [1, 2, 3].map(behind);
        self.at = OnDevice { rows, tokens, positions, tables_at, tables, pieces: pieces(batch), draws: 0 };
        self.spans = None;
        if !batch.states.is_empty() {
            let spans = spans::of_batch(batch, &mut self.words)?;
            let address = self.states.put(queue, words(&self.words), &mut self.generation)?;
            self.spans = Some(Spans { address, ..spans });
        }
        Ok(())
    }

    /// Copies accepted drafts.
    pub(super) fn put_accepted(&mut self, queue: &Queue, accepted: &[Accepted]) -> Result<Spans> {
        let spans = spans::of_accepted(accepted, &mut self.words)?;
        // No graph reads them, so their memory may move.
        let address = self.accepted.put(queue, words(&self.words), &mut 0)?;
        Ok(Spans { address, ..spans })
    }

    /// Copies the inputs of the step's draws. Must come before any launch, because their address is an argument of a
    /// graph.
    pub(super) fn put_draws(&mut self, queue: &Queue, fields: &[u8]) -> Result<()> {
        self.at.draws = self.draws.put(queue, fields, &mut self.generation)?;
        Ok(())
    }

    /// Address of the rotations of the step's rows by `rope`, `[rows, 2 * pairs]`, computed on the CPU.
    pub(super) fn turns(
        &mut self,
        queue: &Queue,
        pool: &Pool,
        positions: &[u32],
        rope: &Rope,
    ) -> Result<u64> {
        let is = |turns: &Turns| Arc::ptr_eq(&turns.inv_freq, &rope.inv_freq) && turns.factor == rope.factor;
        if let Some(known) = self.turns.iter().flat_map(|(_, turns)| turns).find(|turns| is(turns)) {
            return Ok(known.address);
        }
        let len = positions.len() * 2 * rope.inv_freq.len();
        let more = len.saturating_sub(self.floats.len());
        reserve(&mut self.floats, more, "a step's rotations")?;
        self.floats.resize(len, 0.0);
        let position = |row: usize, _| positions[row];
        rope::table(pool, positions.len(), position, &rope.inv_freq, rope.factor, &mut self.floats);
        let free = self.turns.iter().position(|(_, turns)| turns.is_none());
        let at = free.unwrap_or_else(|| {
            self.turns.push((Slot::default(), None));
            self.turns.len() - 1
        });
        let (slot, turns) = &mut self.turns[at];
        let address = slot.put(queue, floats(&self.floats), &mut self.generation)?;
        *turns = Some(Turns { inv_freq: rope.inv_freq.clone(), factor: rope.factor, address });
        Ok(address)
    }

    /// Address and number of attention's tasks, four words each. Makes them if this step has none with the same key.
    pub(super) fn tasks(
        &mut self,
        queue: &Queue,
        key: [usize; 4],
        make: impl FnOnce() -> Result<Vec<u32>>,
    ) -> Result<(u64, usize)> {
        for list in &self.lists[..self.listed] {
            match list.of {
                Some(ListOf::Tasks(known, count)) if known == key => return Ok((list.address, count)),
                _ => {}
            }
        }
        let tasks = make()?;
        let count = tasks.len() / 4;
        Ok((self.put(queue, ListOf::Tasks(key, count), &tasks)?, count))
    }

    /// Address of a list of row indices.
    pub(super) fn rows(&mut self, queue: &Queue, rows: &[u32]) -> Result<u64> {
        let same = |list: &&List| matches!(&list.of, Some(ListOf::Rows(known)) if known == rows);
        if let Some(list) = self.lists[..self.listed].iter().find(same) {
            return Ok(list.address);
        }
        self.put(queue, ListOf::Rows(rows.to_vec()), rows)
    }

    fn put(&mut self, queue: &Queue, of: ListOf, values: &[u32]) -> Result<u64> {
        if self.listed == self.lists.len() {
            self.lists.push(List::default());
        }
        let list = &mut self.lists[self.listed];
        list.of = None;
        list.address = list.slot.put(queue, words(values), &mut self.generation)?;
        list.of = Some(of);
        self.listed += 1;
        Ok(list.address)
    }
}
