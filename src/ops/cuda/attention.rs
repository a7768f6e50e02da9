//! Paged attention: norms and rotates q and k, writes K and V, then attends with each row's heads to all that the row
//! sees.

use super::kernels::{AttentionKernels, HEADS};
use super::launch::Arg;
use super::linear::at_column;
use super::ops::CudaOps;
use super::parts::Part;
use crate::base::{Error, Result, reserve};
use crate::kernels::attention::{KvType, PIECE};
use crate::ops::types::cpu_only;
use crate::ops::{Attention, AttentionShape, KvLayout, Paging, RopeStyle, SeqRows};
use std::ops::Range;

/// Maximum number of warps in a block.
const WARPS: usize = 8;
/// Maximum number of queries per warp.
const QUERIES: usize = 4;
/// Queries in a tensor core's operand, with KV in F16.
const HALVES_QUERIES: usize = 16;
/// Warps of a decode block with KV in F16. Each has a part of a piece.
const HALVES_DECODE_WARPS: usize = 4;
/// Warps of a block that writes heads of q, k and v. Each has one head.
const ROPE_WARPS: usize = 4;
/// Maximum bytes for the states of pieces. The contexts of a sequence that would need more are not divided.
const STATES_BYTES: usize = 64 << 20;
/// Tiles of positions that a block stages at a time.
const SPAN_TILES: usize = 4;

/// Consecutive sequences whose rows attend in one launch.
struct Run {
    seqs: Range<usize>,
    rows: Range<usize>,
    /// Whether their contexts are divided into pieces.
    splits: bool,
}

/// The attention of one layer.
pub(super) struct Attend<'a> {
    pub qkv: &'a Part,
    pub paging: &'a Paging<'a>,
    pub layout: &'a KvLayout,
    pub how: &'a Attention<'a>,
    /// Addresses of K and V.
    pub layer: [u64; 2],
    /// Number of pieces of the step's longest context, rounded up.
    pub pieces: usize,
}

impl Attend<'_> {
    fn group(&self) -> usize {
        self.how.shape.heads / self.how.shape.kv_heads
    }

    /// Maximum number of pieces that `rows` consecutive rows of a sequence see together.
    fn pieces(&self, rows: usize) -> usize {
        let seen = self
            .how
            .window
            .map_or(usize::MAX, |window| (window.saturating_add(rows - 1)).div_ceil(PIECE) + 1);
        seen.min(self.pieces)
    }

    /// Whether the context of a sequence is divided. A sequence with few queries would otherwise leave the device
    /// idle.
    fn splits(&self, seq: &SeqRows) -> bool {
        seq.rows as usize * self.group() <= WARPS * QUERIES
    }

    /// Groups the step's sequences into runs, in order.
    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (index, seq) in self.paging.batch.seqs.iter().enumerate() {
            let rows = seq.row as usize..(seq.row + seq.rows) as usize;
            let fits = |rows: usize| states(self.how.shape, rows, self.pieces(1)) <= STATES_BYTES;
            let splits = self.splits(seq) && fits(rows.len());
            match runs.last_mut() {
                Some(run) if run.splits == splits && (!splits || fits(run.rows.len() + rows.len())) => {
                    (run.seqs.end, run.rows.end) = (index + 1, rows.end);
                }
                _ => runs.push(Run { seqs: index..index + 1, rows, splits }),
            }
        }
        runs
    }

    /// The tasks of a run. A task is `[first row, first query, end of queries, block table]`. Rows are counted from
    /// the run's first one.
    fn tasks(&self, run: &Run, most: usize) -> Result<Vec<u32>> {
        let mut tasks = Vec::new();
        for seq in &self.paging.batch.seqs[run.seqs.clone()] {
            let (row, queries) = (seq.row - run.rows.start as u32, seq.rows as usize * self.group());
            reserve(&mut tasks, 4 * queries.div_ceil(most), "a step's tasks")?;
            for from in (0..queries).step_by(most) {
                tasks.extend([row, from as u32, queries.min(from + most) as u32, seq.table]);
            }
        }
        Ok(tasks)
    }

    /// Number of rows of the run's longest sequence.
    fn most_rows(&self, run: &Run) -> usize {
        let seqs = &self.paging.batch.seqs[run.seqs.clone()];
        seqs.iter().map(|seq| seq.rows as usize).max().unwrap_or(1)
    }

    /// Number of queries of the run's largest task.
    fn widest(&self, run: &Run, most: usize) -> usize {
        let seqs = &self.paging.batch.seqs[run.seqs.clone()];
        seqs.iter().map(|seq| (seq.rows as usize * self.group()).min(most)).max().unwrap_or(1)
    }
}

/// The shape of a launch's blocks.
struct Blocks {
    warps: usize,
    /// Maximum number of queries per task.
    most: usize,
    /// Bytes of dynamic shared memory.
    shared: usize,
}

/// Bytes of dynamic shared memory of a block of `warps` warps with `queries` queries each, with KV not in F16.
fn shared(layout: &KvLayout, warps: usize, queries: usize) -> usize {
    let (dim, kind) = (layout.head_dim, layout.kind);
    let element = if kind == KvType::Int8 { 1 } else { 4 };
    let tiles = SPAN_TILES * (2 * kind.tile_bytes(dim) + 16 * element);
    tiles + warps * queries * 4 * (dim.next_multiple_of(4) + 64 + 1)
}

/// Bytes of dynamic shared memory for decode with KV in F16. `width` is an entry of `HEADS`.
fn halves_decode_shared(width: usize) -> usize {
    let steps = if width == 64 { 16 } else { 24 };
    steps * (8 * width + 256).max(2048) + 64 * width + 18240
}

/// Bytes of dynamic shared memory for prefill with KV in F16. `width` is an entry of `HEADS`.
fn halves_prefill_shared(width: usize, warps: usize) -> usize {
    let buffers = if width <= 128 { 2 } else { 1 };
    buffers * (256 * width + 1024) + warps * (128 * width + 320)
}

/// Bytes of dynamic shared memory that suffice for each of attention's kernels with at most `warps` warps.
fn needs(layout: &KvLayout, warps: usize) -> usize {
    match (layout.kind, HEADS.iter().find(|width| layout.head_dim <= **width)) {
        (KvType::F16, Some(&width)) => halves_prefill_shared(width, warps).max(halves_decode_shared(width)),
        _ => shared(layout, warps, QUERIES),
    }
}

/// Bytes of the states of `pieces` pieces for each of `rows` rows.
fn states(shape: &AttentionShape, rows: usize, pieces: usize) -> usize {
    let head = (shape.head_dim + 32) * size_of::<f32>();
    rows.saturating_mul(shape.heads).saturating_mul(pieces).saturating_mul(head)
}

/// Maximum bytes of the states of pieces in a step of `rows` rows, for contexts of up to `context` positions.
pub(super) fn state_bytes(shape: &AttentionShape, rows: usize, context: usize) -> usize {
    let pieces = (context.div_ceil(PIECE) + 1).next_power_of_two();
    states(shape, rows.max(WARPS * QUERIES), pieces).min(STATES_BYTES)
}

impl CudaOps {
    /// Returns the attention's output, `[T, heads * head_dim]`.
    pub(super) fn attend(&self, attend: &Attend) -> Result<Part> {
        let s = attend.how.shape;
        let rows = attend.paging.batch.tokens.len();
        attend.qkv.check("q, k and v", [rows, s.qkv()])?;
        let width = HEADS.iter().position(|most| s.head_dim <= *most);
        let width = width.ok_or_else(|| Error::internal("wider heads than kernels take"))?;
        let kernels = &self.kernels().attention[attend.layout.kind as usize];
        self.write_kv(attend, kernels)?;
        let out = self.part(rows, s.heads * s.head_dim)?;
        for run in attend.runs() {
            match run.splits {
                true => self.decode(attend, kernels, width, &run, &out)?,
                false => self.prefill(attend, kernels, width, &run, &out)?,
            }
        }
        Ok(out)
    }

    fn write_kv(&self, attend: &Attend, kernels: &AttentionKernels) -> Result<()> {
        let Attend { paging, how, layout, .. } = attend;
        let (s, rope) = (how.shape, how.rope);
        if 2 * rope.inv_freq.len() > s.head_dim {
            return Err(Error::internal("a rotation wider than a head"));
        }
        if how.norms.is_some_and(|norms| norms.iter().any(|norm| norm.weight.len() != s.head_dim)) {
            return Err(Error::internal("the norms of q and k are not as wide as a head"));
        }
        let at = self.inputs.lock().at;
        let turns = self.inputs.lock().turns(&self.queue, &self.pool, &paging.batch.positions, rope)?;
        if self.queue.leaves() {
            return Ok(());
        }
        let [(q_norm, q_eps), (k_norm, k_eps)] = match how.norms {
            Some([q, k]) => [self.norm_args(Some(q))?, self.norm_args(Some(k))?],
            None => [self.norm_args(None)?, self.norm_args(None)?],
        };
        let [keys, values] = attend.layer;
        let args = [
            attend.qkv.arg()?,
            keys.into(),
            values.into(),
            turns.into(),
            at.tables.into(),
            at.tables_at.into(),
            at.positions.into(),
            q_norm,
            k_norm,
            q_eps,
            k_eps,
            s.scale.into(),
            Arg::int(s.heads),
            Arg::int(s.kv_heads),
            Arg::int(s.head_dim),
            Arg::int(layout.block_size),
            Arg::int(rope.inv_freq.len()),
            Arg::Int(i32::from(rope.style == RopeStyle::Interleaved)),
        ];
        let threads = 32 * ROPE_WARPS;
        let grid = [at.rows, (s.heads + 2 * s.kv_heads).div_ceil(ROPE_WARPS), 1];
        // SAFETY: qkv is `[rows, qkv]`; K and V of the layer have the layout that `paging` was checked against.
        unsafe { self.launch(&kernels.write, grid, threads, 32 * threads, &args) }
    }

    /// Number of a run's tasks, and the arguments that decode and prefill share: addresses of q, K, V, tasks, tables
    /// and positions, then shapes.
    fn attend_args(&self, attend: &Attend, run: &Run, most: usize) -> Result<(usize, Vec<Arg>)> {
        let s = attend.how.shape;
        let mut inputs = self.inputs.lock();
        let key = [attend.group(), most, run.seqs.start, run.seqs.end];
        let (listed, count) = inputs.tasks(&self.queue, key, || attend.tasks(run, most))?;
        let first = run.rows.start;
        let [keys, values] = attend.layer;
        let args = vec![
            at_column(attend.qkv.address()?, first * s.qkv()),
            keys.into(),
            values.into(),
            listed.into(),
            inputs.at.tables.into(),
            at_column(inputs.at.positions, first),
            Arg::int(s.heads),
            Arg::int(s.kv_heads),
            Arg::int(s.head_dim),
            Arg::int(attend.layout.block_size),
            Arg::int(attend.how.window.unwrap_or(0)),
        ];
        Ok((count, args))
    }

    /// Warps of a block: `wanted`, halved until shared memory suffices with the most queries per warp. `Unsupported`
    /// if one warp is too many.
    fn warps(&self, layout: &KvLayout, wanted: usize) -> Result<usize> {
        let most = self.facts().shared_bytes;
        let mut halves = (0..).map(|n| wanted >> n).take_while(|warps| *warps > 0);
        halves.find(|warps| needs(layout, *warps) <= most).ok_or_else(|| {
            let (dim, kind) = (layout.head_dim, layout.kind.name());
            Error::unsupported(format!(
                "KV in {kind} with heads of {dim} elements: a block of the device has {most} bytes of shared memory"
            ))
        })
    }

    /// Blocks for queries whose contexts are divided. `width` is an index into `HEADS`.
    fn decode_blocks(&self, attend: &Attend, width: usize, run: &Run) -> Result<Blocks> {
        if attend.layout.kind == KvType::F16 {
            let shared = halves_decode_shared(HEADS[width]);
            return Ok(Blocks { warps: HALVES_DECODE_WARPS, most: HALVES_QUERIES, shared });
        }
        let warps = self.warps(attend.layout, WARPS / 2)?;
        let most = warps * QUERIES;
        let widest = attend.widest(run, most);
        // The kernel makes the same choice.
        let queries = [1, 2].into_iter().find(|n| widest <= n * warps).unwrap_or(QUERIES);
        Ok(Blocks { warps, most, shared: shared(attend.layout, warps, queries) })
    }

    /// Blocks for queries that see their whole contexts. With KV in F16, blocks get fewer warps as long as all blocks
    /// run at once, so that the whole device has work.
    fn prefill_blocks(&self, attend: &Attend, width: usize, run: &Run) -> Result<Blocks> {
        let mut warps = self.warps(attend.layout, WARPS)?;
        if attend.layout.kind != KvType::F16 {
            return Ok(Blocks {
                warps,
                most: warps * QUERIES,
                shared: shared(attend.layout, warps, QUERIES),
            });
        }
        let seqs = &attend.paging.batch.seqs[run.seqs.clone()];
        let tasks = |most: usize| -> usize {
            seqs.iter().map(|seq| (seq.rows as usize * attend.group()).div_ceil(most)).sum()
        };
        let processors = self.facts().multiprocessors as usize;
        while warps > 1 && tasks(warps / 2 * HALVES_QUERIES) * attend.how.shape.kv_heads <= processors {
            warps /= 2;
        }
        let shared = halves_prefill_shared(HEADS[width], warps);
        Ok(Blocks { warps, most: warps * HALVES_QUERIES, shared })
    }

    /// Refuses KV that none of the kernels takes on this device. `Unsupported`.
    pub(super) fn check_heads(&self, layout: &KvLayout) -> Result<()> {
        if layout.others.is_some() {
            return Err(cpu_only("layers whose heads differ"));
        }
        let (dim, widest) = (layout.head_dim, HEADS[HEADS.len() - 1]);
        if dim > widest || !dim.is_multiple_of(2) {
            let message = format!("heads of {dim} elements: a device takes even numbers up to {widest}");
            return Err(Error::unsupported(message));
        }
        self.warps(layout, 1).map(drop)
    }

    /// Attends to contexts in pieces of 256 positions, then merges the pieces.
    fn decode(
        &self,
        attend: &Attend,
        kernels: &AttentionKernels,
        width: usize,
        run: &Run,
        out: &Part,
    ) -> Result<()> {
        let s = attend.how.shape;
        let (slots, rows) = (attend.pieces(1), run.rows.len());
        let Blocks { warps, most, shared } = self.decode_blocks(attend, width, run)?;
        let (tasks, mut args) = self.attend_args(attend, run, most)?;
        let states = self.bytes(states(s, rows, slots))?;
        args.insert(0, states.arg()?);
        args.push(Arg::int(slots));
        let grid = [tasks, s.kv_heads, attend.pieces(attend.most_rows(run))];
        // SAFETY: states is `[rows, heads, slots, head_dim + 32]`; the rest is as `paging` was checked.
        unsafe { self.launch(&kernels.decode[width], grid, 32 * warps, shared, &args)? };
        let first = run.rows.start;
        let args = [
            at_column(out.address()?, first * s.heads * s.head_dim),
            states.arg()?,
            at_column(self.inputs.lock().at.positions, first),
            Arg::int(rows * s.heads),
            Arg::int(s.heads),
            Arg::int(s.head_dim),
            Arg::int(attend.how.window.unwrap_or(0)),
            Arg::int(slots),
            Arg::int(usize::from(attend.layout.kind.scaled())),
        ];
        let grid = [(rows * s.heads).div_ceil(WARPS), 1, 1];
        // SAFETY: as above, and out is `[rows, heads, head_dim]`.
        unsafe { self.launch(&self.kernels().merge, grid, 32 * WARPS, 0, &args) }
    }

    /// Attends to whole contexts: each task covers the whole context of its queries.
    fn prefill(
        &self,
        attend: &Attend,
        kernels: &AttentionKernels,
        width: usize,
        run: &Run,
        out: &Part,
    ) -> Result<()> {
        let s = attend.how.shape;
        let Blocks { warps, most, shared } = self.prefill_blocks(attend, width, run)?;
        let (tasks, mut args) = self.attend_args(attend, run, most)?;
        args.insert(0, at_column(out.address()?, run.rows.start * s.heads * s.head_dim));
        // SAFETY: as in `decode`.
        unsafe { self.launch(&kernels.prefill[width], [tasks, s.kv_heads, 1], 32 * warps, shared, &args) }
    }
}
