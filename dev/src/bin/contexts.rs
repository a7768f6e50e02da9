//! Forward passes of a GGUF file at long contexts: chunks of a prompt, and steps of several sequences that decode.
//!
//!   contexts FILE.gguf [--context N]... [--sequences N]... [--kv NAME] [--threads N] [--rounds N] [--isa NAME] [--only PHASE]
//!
//! The cache is filled with one row of bytes, not by a model: a pass takes as long. A chunk's time is measured at five
//! places of the context, and a prompt's is their mean, as it grows in a straight line. A line of JSON for each case:
//! tokens a second.

use bn_engine::base::Result;
use bn_engine::kernels::attention::{Half, KvType, TILE, kv};
use bn_engine::kernels::{Isa, Pool, isa};
use bn_engine::model::{LoadOptions, Loaded, Outputs, Source, load};
use bn_engine::ops::{
    CpuOps, Memory, MemoryLayout, OpSet, RaggedBatch, SeqRows, StateLayout, StateRows, Unit,
};
use std::time::Instant;

const BLOCK: usize = 32;
const CHUNK: usize = 512;
/// Places of a context where chunks are measured.
const PLACES: usize = 5;

struct Options {
    file: String,
    contexts: Vec<usize>,
    sequences: Vec<usize>,
    kind: KvType,
    threads: usize,
    rounds: usize,
    isa: Option<Isa>,
    only: Option<String>,
}

fn parse() -> Option<Options> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (mut file, kind) = (None, KvType::default());
    let (contexts, sequences) = (Vec::new(), Vec::new());
    let mut options =
        Options { file: String::new(), contexts, sequences, kind, threads, rounds: 3, isa: None, only: None };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next()?.parse().ok().filter(|n: &usize| *n > 0);
        match arg.as_str() {
            "--context" => options.contexts.push(number()?.next_multiple_of(CHUNK)),
            "--sequences" => options.sequences.push(number()?),
            "--threads" => options.threads = number()?,
            "--rounds" => options.rounds = number()?,
            "--only" => options.only = Some(args.next()?),
            "--isa" => options.isa = Some(Isa::named(&args.next()?)?),
            "--kv" => {
                let name = args.next()?;
                options.kind = KvType::ALL.into_iter().find(|kind| kind.name() == name)?;
            }
            _ if !arg.starts_with('-') => file = Some(arg),
            _ => return None,
        }
    }
    options.file = file?;
    Some(options)
}

fn main() {
    if std::env::args().len() == 1 {
        // Lets a plain `cargo bench` skip this program.
        return println!("contexts FILE.gguf; its first lines have the options");
    }
    let Some(mut options) = parse() else {
        eprintln!(
            "contexts FILE.gguf [--context N]... [--sequences N]... [--kv NAME] [--threads N] [--rounds N]"
        );
        std::process::exit(2);
    };
    if options.contexts.is_empty() {
        options.contexts = vec![512, 8192];
    }
    if options.sequences.is_empty() {
        options.sequences = vec![1, 8];
    }
    if let Err(error) = run(&options) {
        eprintln!("contexts: {error}");
        std::process::exit(1);
    }
}

fn run(options: &Options) -> Result<()> {
    let pool = Pool::new(options.threads)?;
    let source = Source::parse(Some(&options.file))?;
    let loaded = load(&source, &LoadOptions::default(), &pool, &|_, _| (), &mut |_, _| false)?;
    let ops = match options.isa {
        Some(isa) => CpuOps::with_isa(pool, isa)?,
        None => CpuOps::new(pool),
    };
    let most = options.contexts.iter().max().copied().unwrap_or(CHUNK);
    let sequences = options.sequences.iter().max().copied().unwrap_or(1);
    let mut bench = Bench::new(&loaded, ops, options, most.div_ceil(BLOCK), sequences)?;
    for &context in &options.contexts {
        if options.only.as_deref().is_none_or(|only| only == "prefill") {
            let mut chunks = [0.0; PLACES];
            for (place, time) in chunks.iter_mut().enumerate() {
                let from = (context - CHUNK) * place / (PLACES - 1);
                *time = bench.least(1, CHUNK, from)?;
            }
            let whole = (chunks[0] + chunks[PLACES - 1]) / 2.0 + chunks[1..PLACES - 1].iter().sum::<f64>();
            let rate = CHUNK as f64 * (PLACES - 1) as f64 / whole;
            let last = chunks[PLACES - 1] * 1e3;
            let kv = options.kind.name();
            println!(
                "{{\"phase\": \"prefill\", \"kv\": \"{kv}\", \"context\": {context}, \"sequences\": 1, \"tokens_per_s\": {rate:.2}, \"first_ms\": {:.2}, \"last_ms\": {last:.2}}}",
                chunks[0] * 1e3
            );
        }
        for &sequences in &options.sequences {
            if options.only.as_deref().is_none_or(|only| only == "decode") {
                let time = bench.least(sequences, 1, context - 1)?;
                let kv = options.kind.name();
                println!(
                    "{{\"phase\": \"decode\", \"kv\": \"{kv}\", \"context\": {context}, \"sequences\": {sequences}, \"tokens_per_s\": {:.2}, \"step_ms\": {:.3}}}",
                    sequences as f64 / time,
                    time * 1e3
                );
            }
        }
    }
    Ok(())
}

struct Bench<'a> {
    loaded: &'a Loaded,
    ops: CpuOps,
    memory: Box<dyn Memory>,
    blocks: usize,
    rounds: usize,
    batch: RaggedBatch,
    out: Outputs,
}

impl<'a> Bench<'a> {
    /// A cache for `sequences` of `blocks` blocks.
    fn new(
        loaded: &'a Loaded,
        ops: CpuOps,
        options: &Options,
        blocks: usize,
        sequences: usize,
    ) -> Result<Self> {
        let model = &loaded.model;
        let layout = model.kv_shape().layout(options.kind, blocks * sequences, BLOCK);
        let states = StateLayout { shape: model.state_shape(), slots: sequences, drafted: 1 };
        let mut memory = ops.memory(MemoryLayout { states, ..MemoryLayout::of(layout) })?;
        let mut bytes = Vec::new();
        for group in layout.groups() {
            let halves = if layout.joint { &[Half::V][..] } else { &[Half::K, Half::V] };
            for half in halves.iter().cycle().take(halves.len() * group.layers) {
                let row: Vec<f32> = (0..group.head_dim).map(|d| (d * 37 % 101) as f32 * 0.01 - 0.5).collect();
                let mut tile = vec![0; layout.kind.tile_bytes(group.head_dim)];
                (0..TILE).for_each(|at| kv::store(isa(), layout.kind, *half, &mut tile, at, &row));
                bytes.extend(tile.repeat(group.kv_heads * BLOCK / TILE));
            }
        }
        let mut each = 0..(blocks * sequences) as u32;
        each.try_for_each(|block| memory.write(Unit::Block, block, &bytes))?;
        let (batch, out) = (RaggedBatch::default(), Outputs::default());
        Ok(Self { loaded, ops, memory, blocks, rounds: options.rounds, batch, out })
    }

    /// Seconds of a pass of `rows` rows of each sequence from position `from` on; the least of all rounds, after one
    /// more.
    fn least(&mut self, sequences: usize, rows: usize, from: usize) -> Result<f64> {
        let model = &self.loaded.model;
        let batch = &mut self.batch;
        batch.clear();
        for seq in 0..sequences {
            let (row, table) = (batch.tokens.len() as u32, batch.block_tables.len() as u32);
            batch.tokens.extend((0..rows).map(|n| ((seq * 31 + n * 17) % 1000) as u32));
            batch.positions.extend((from..from + rows).map(|position| position as u32));
            // The blocks of sequences alternate, as those of an engine may.
            batch.block_tables.extend((0..self.blocks).map(|n| (n * sequences + seq) as u32));
            batch.seqs.push(SeqRows { row, rows: rows as u32, table, table_len: self.blocks as u32 });
            if !model.state_shape().is_empty() {
                batch.states.push(StateRows { slot: seq as u32, ..StateRows::default() });
            }
            batch.logits_rows.push(row + rows as u32 - 1);
        }
        let mut least = f64::INFINITY;
        for round in 0..=self.rounds {
            let start = Instant::now();
            model.forward(&self.ops, batch, &mut *self.memory, &mut || false, &mut self.out)?;
            if round > 0 {
                least = least.min(start.elapsed().as_secs_f64());
            }
        }
        Ok(least)
    }
}
