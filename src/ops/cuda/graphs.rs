//! Decode steps that one call gives to the device. The launches of a step of some shape are kept as a graph. Later
//! steps of that shape differ only in their inputs, and these stay at the same addresses.

use super::launch::{Kept, Queue};
use super::parts::{Part, grown, read};
use crate::base::{Error, Result, reserve};
use crate::device::{Buffer, Graph, Pinned};
use crate::kernels::attention::PIECE;
use crate::ops::{Draws, MemoryLayout, Outputs, RaggedBatch};
use std::sync::Arc;

/// Maximum number of shapes, and so of graphs, that are kept. The least recently used one goes first.
const MOST: usize = 64;

/// Everything that a step's launches and their arguments depend on, besides addresses that do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// `Program::id`.
    pub program: u64,
    /// Addresses of K and V and of states, and their layout.
    pub memory: ([u64; 3], MemoryLayout),
    pub rows: usize,
    /// Number of pieces of a context in attention's grid.
    pub pieces: usize,
    /// Whether tokens are drawn.
    pub draws: bool,
}

impl Shape {
    /// The shape of a step in which each row is the only one of its sequence and gives nothing but logits. `None` for
    /// other steps.
    pub(super) fn of(batch: &RaggedBatch, program: u64, memory: ([u64; 3], MemoryLayout)) -> Option<Self> {
        let rows = batch.tokens.len();
        batch.decodes().then(|| Self {
            program,
            memory,
            rows,
            pieces: pieces(batch),
            draws: !batch.draws.rows.is_empty(),
        })
    }
}

/// Number of rows that a decode step of `rows` rows is padded to. Up to 8 rows stay as they are, because their number
/// selects the kernels of products. Above that it is a multiple that grows with the number, since more rows cost next
/// to nothing there.
pub(super) fn bucket(rows: usize) -> usize {
    match rows {
        0..=8 => rows,
        9..=64 => rows.next_multiple_of(8),
        65..=256 => rows.next_multiple_of(16),
        _ => rows.next_multiple_of(32),
    }
}

/// Number of pieces of a step's longest context, rounded up so that steps keep their shape for a while.
pub(super) fn pieces(batch: &RaggedBatch) -> usize {
    let last = batch.positions.iter().max().map_or(0, |last| *last as usize);
    (last / PIECE + 1).next_power_of_two()
}

/// A shape that was seen, and its graph.
struct Seen {
    shape: Shape,
    /// Generation of the memory that the graph's arguments point to.
    generation: u64,
    used: u64,
    graph: Option<Made>,
    /// No graph could be made of it, for example because memory was short.
    refused: bool,
}

struct Made {
    graph: Graph,
    results: Results,
}

/// Memory of a step's results: logits, and the tokens drawn from them with their reports.
#[derive(Clone)]
pub(super) struct Results {
    logits: Arc<Buffer>,
    drawn: Option<Arc<Buffer>>,
}

impl Results {
    /// `None` if there are no logits, or if only a graph knows their address.
    pub(super) fn of(logits: &Part, drawn: Option<&Part>) -> Option<Self> {
        let drawn = drawn.map(|drawn| drawn.buffer().cloned());
        Some(Self { logits: logits.buffer()?.clone(), drawn: drawn.unwrap_or_default() })
    }

    /// Waits for the results and copies the wanted ones to the host: tokens and reports, and the logits of rows that
    /// no token was drawn from.
    pub(super) fn read(
        &self,
        queue: &Queue,
        staging: &mut Staging,
        [rows, vocab]: [usize; 2],
        draws: &Draws,
        to: &mut Outputs,
    ) -> Result<()> {
        let Some(drawn) = &self.drawn else {
            return read(queue, &self.logits, [0, rows], vocab, grown(&mut to.logits, rows * vocab)?);
        };
        staging.read(queue, drawn, rows, draws.report_words, (&mut to.tokens, &mut to.reports))?;
        // Only grows. The rows of drawn tokens keep an unused place in it.
        if to.logits.len() < rows * vocab {
            grown(&mut to.logits, rows * vocab)?;
        }
        let own = &mut to.logits[..rows * vocab];
        for (row, _) in draws.rows.iter().enumerate().filter(|(_, draw)| draw.is_none()) {
            read(queue, &self.logits, [row, row + 1], vocab, &mut own[row * vocab..][..vocab])?;
        }
        Ok(())
    }
}

/// Destination of tokens and reports on the host. It is page-locked, so that the device itself makes the copy.
#[derive(Default)]
pub(super) struct Staging(Option<Pinned>);

impl Staging {
    /// Reads `count` tokens and `words` words of reports.
    fn read(
        &mut self,
        queue: &Queue,
        from: &Buffer,
        count: usize,
        words: usize,
        (tokens, reports): (&mut Vec<i32>, &mut Vec<u64>),
    ) -> Result<()> {
        let behind = reports_at(count);
        // Most steps have no report.
        let bytes = if words == 0 { count * size_of::<i32>() } else { behind + words * size_of::<u64>() };
        let pinned = match self.0.take() {
            Some(pinned) if pinned.len() >= bytes => pinned,
            _ => Pinned::new(&queue.opened.device, bytes.next_power_of_two().max(4096), "a step's tokens")?,
        };
        let pinned = from.read_to(&queue.stream, 0, pinned, 0..bytes)?.wait()?;
        reserve(tokens, count, "a step's tokens")?;
        reserve(reports, words, "a step's log probabilities")?;
        let (given, _) = pinned.as_chunks();
        tokens.extend(given[..count].iter().map(|bytes| i32::from_le_bytes(*bytes)));
        let (given, _) = pinned[behind.min(bytes)..bytes].as_chunks();
        reports.extend(given.iter().map(|bytes| u64::from_le_bytes(*bytes)));
        self.0 = Some(pinned);
        Ok(())
    }
}

/// How a step is run.
pub(super) enum Way {
    Give,
    /// The second step of its shape: it runs, and its launches are kept.
    Keep,
    Leave,
}

#[derive(Default)]
pub(super) struct Graphs {
    seen: Vec<Seen>,
    clock: u64,
    /// The shape and the memory's generation of the current step. `choose` fills in the program and the generation.
    current: Option<(Shape, u64)>,
}

impl Graphs {
    /// Begins a step.
    pub(super) fn begin(&mut self, batch: &RaggedBatch, memory: ([u64; 3], MemoryLayout)) {
        self.current = Shape::of(batch, 0, memory).map(|shape| (shape, 0));
    }

    /// Decides how the step of a program is run, with memory of this generation.
    pub(super) fn choose(&mut self, program: u64, generation: u64) -> Way {
        let Some((shape, _)) = self.current else { return Way::Give };
        let shape = Shape { program, ..shape };
        self.current = Some((shape, generation));
        self.clock += 1;
        self.seen.retain(|seen| seen.generation == generation);
        let clock = self.clock;
        if let Some(seen) = self.seen.iter_mut().find(|seen| seen.shape == shape) {
            seen.used = clock;
            return match seen.graph {
                Some(_) => Way::Leave,
                None if seen.refused => Way::Give,
                None => Way::Keep,
            };
        }
        if self.seen.len() >= MOST
            && let Some(oldest) = (0..self.seen.len()).min_by_key(|n| self.seen[*n].used)
        {
            self.seen.swap_remove(oldest);
        }
        // Without memory for the entry, the shape counts as new the next time.
        if reserve(&mut self.seen, 1, "a step's shape").is_ok() {
            self.seen.push(Seen { shape, generation, used: clock, graph: None, refused: false });
        }
        Way::Give
    }

    fn current(&mut self) -> Option<&mut Seen> {
        let (shape, generation) = self.current?;
        self.seen.iter_mut().find(|seen| seen.shape == shape && seen.generation == generation)
    }

    /// Makes a graph of the step's launches.
    ///
    /// # Safety
    /// The contract of `Function::launch` holds for each launch as long as memory is of this generation.
    pub(super) unsafe fn keep(&mut self, queue: &Queue, kept: Kept, results: &Results) {
        let Some(seen) = self.current() else { return };
        // SAFETY: guaranteed by the caller; the graph is dropped with another generation.
        match unsafe { kept.graph(queue) } {
            Ok(graph) => seen.graph = Some(Made { graph, results: results.clone() }),
            // The step has run without the graph.
            Err(_) => seen.refused = true,
        }
    }

    /// Launches the step's graph and returns where its results will be, or `None` if it has no graph. `Internal` if
    /// memory is no longer of the chosen generation.
    pub(super) fn launch(&mut self, queue: &Queue, generation: u64) -> Result<Option<Results>> {
        if self.current.is_some_and(|(_, chosen)| chosen != generation) {
            return Err(Error::internal("memory moved in the midst of a step that is a graph"));
        }
        let Some(seen) = self.current() else { return Ok(None) };
        let Some(made) = &mut seen.graph else { return Ok(None) };
        let results = made.results.clone();
        // SAFETY: guaranteed by the caller of `keep`; memory is of the graph's generation.
        let launched = unsafe { made.graph.launch(&queue.stream) };
        if launched.is_err() {
            // The driver may lack memory for the graph only now. The next steps run without it.
            (seen.graph, seen.refused) = (None, true);
        }
        launched.map(|()| Some(results))
    }
}

/// Byte offset of the reports, which follow the tokens of `rows` rows.
pub(super) fn reports_at(rows: usize) -> usize {
    (rows * size_of::<i32>()).next_multiple_of(size_of::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::attention::KvType;
    use crate::ops::{KvLayout, SeqRows};

    const KV: KvLayout = KvLayout {
        kind: KvType::F16,
        layers: 1,
        kv_heads: 1,
        head_dim: 64,
        others: None,
        joint: false,
        blocks: 4,
        block_size: 16,
    };

    fn decode(rows: u32, position: u32) -> RaggedBatch {
        RaggedBatch {
            tokens: vec![1; rows as usize],
            positions: vec![position; rows as usize],
            seqs: (0..rows).map(|row| SeqRows { row, rows: 1, table: 0, table_len: 1 }).collect(),
            logits_rows: (0..rows).collect(),
            ..RaggedBatch::default()
        }
    }

    fn shape(batch: &RaggedBatch) -> Option<Shape> {
        Shape::of(batch, 1, ([2; 3], MemoryLayout::of(KV)))
    }

    #[test]
    fn decode_steps_have_shapes() {
        assert_eq!(shape(&decode(3, 700)).map(|shape| (shape.rows, shape.pieces)), Some((3, 4)));
        assert_eq!(shape(&decode(3, 512)), shape(&decode(3, 1023)));
        assert_ne!(shape(&decode(3, 512)), shape(&decode(3, 511)));
        let draws = Draws { rows: vec![None; 3], ..Draws::default() };
        assert_ne!(shape(&decode(3, 0)), shape(&RaggedBatch { draws, ..decode(3, 0) }));
        let hidden = RaggedBatch { hidden_rows: vec![0], ..decode(1, 0) };
        let fewer = RaggedBatch { logits_rows: vec![0], ..decode(2, 0) };
        let mut prompt = decode(2, 0);
        prompt.seqs.truncate(1);
        assert!([hidden, fewer, prompt].iter().all(|batch| shape(batch).is_none()));
    }

    #[test]
    fn decode_steps_have_few_sizes() {
        assert_eq!(
            [1, 7, 8, 9, 16, 17, 64, 65, 250, 257].map(bucket),
            [1, 7, 8, 16, 16, 24, 64, 80, 256, 288]
        );
        let mut batch = decode(9, 30);
        batch.positions[4] = 20;
        batch.tokens[4] = 7;
        batch.pad(16);
        assert_eq!((batch.tokens.len(), batch.padding), (9, 0), "tokens are not drawn there");
        batch.draws.rows = vec![None; 9];
        batch.pad(16);
        let added = SeqRows { row: 15, ..batch.seqs[4] };
        assert_eq!((batch.tokens[15], batch.positions[15], batch.seqs[15]), (7, 20, added));
        assert_eq!((batch.decodes(), batch.padding), (true, 7));
        assert!(batch.draws.rows[9..].iter().all(Option::is_some));
        batch.pad(12);
        assert_eq!(batch.tokens.len(), 16);
    }

    #[test]
    fn shapes_that_were_used_longest_ago_go() {
        let mut graphs = Graphs::default();
        let mut way = |rows: u32, generation| {
            graphs.begin(&decode(rows, 0), ([2; 3], MemoryLayout::of(KV)));
            graphs.choose(1, generation)
        };
        assert!(matches!(way(1, 0), Way::Give));
        assert!(matches!(way(1, 0), Way::Keep));
        assert!(matches!(way(1, 1), Way::Give), "other memory");
        for rows in 2..=MOST as u32 {
            assert!(matches!(way(rows, 1), Way::Give));
        }
        assert!(matches!(way(1, 1), Way::Keep), "used again");
        assert!(matches!(way(1000, 1), Way::Give));
        assert!(matches!(way(1, 1), Way::Keep));
        assert!(matches!(way(2, 1), Way::Give), "it made room");
    }
}
