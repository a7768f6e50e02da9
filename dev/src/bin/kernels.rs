//! Each kernel's speed as a share of the machine's limit, at the shapes of BitNet 2B-4T and Llama 3.2 1B.
//!
//!   cargo dev kernels -- [--quick] [--json FILE] [--threads N] [--only WORD]... [--isa NAME] [--turns] [TOKENS]...
//!
//! A kernel's limit is the larger of two times: reading its bytes at the measured bandwidth, or its multiply-adds at
//! the measured rate. Both are measured before and after each round of the kernel. Its operands are not in the caches,
//! as a layer's weights are not from token to token. The rows of norm and quantize are in the caches, as in a model, so
//! these two may exceed 100%.
//!
//! `--turns` is for `dev/turns.py`, which times the kernels of two builds in turns.

use bn_dev::limits::{Limits, Memory, Work};
use bn_dev::units::Kind;
use bn_dev::weights::Arena;
use bn_dev::{Options, SplitMix, machine, median, seconds};
use bn_engine::kernels::attention::kv;
use bn_engine::kernels::attention::{Context, Half, KvType, Paged, Scratch, Seen, TILE, TOGETHER, stride};
use bn_engine::kernels::gemm::blocks::{Part, SharedOut};
use bn_engine::kernels::gemm::tokens::{self, Activations};
use bn_engine::kernels::gemm::{dense, quantized};
use bn_engine::kernels::pool::buffer::{Line, floats, grown_lines};
use bn_engine::kernels::rows::norm;
use bn_engine::kernels::rows::quantize::{QuantRow, quantize_row};
use bn_engine::kernels::rows::quantize_blocks::{BlockActivations, columns_of_sum, quantize_blocks};
use bn_engine::kernels::{Arithmetic, DType, Isa, Matrix, Pool, isa};
use serde_json::{Value, json};
use std::cell::RefCell;

/// (rows, cols) of BitNet 2B-4T and of Llama 1B: q and output, gate and up, down, the head; then k and v of Llama.
const SHAPES: [(usize, usize); 8] = [
    (2560, 2560),
    (6912, 2560),
    (2560, 6912),
    (128_256, 2560),
    (2048, 2048),
    (8192, 2048),
    (2048, 8192),
    (512, 2048),
];
const QUICK_SHAPES: [(usize, usize); 2] = [(6912, 2560), (2048, 2048)];
const TOKENS: [usize; 8] = [1, 2, 4, 8, 16, 32, 128, 512];
const QUICK_TOKENS: [usize; 4] = [1, 8, 16, 32];
const TYPES: [DType; 22] = [
    DType::Int8,
    DType::I2S,
    DType::TQ1_0,
    DType::TQ2_0,
    DType::Q1_0,
    DType::Q2_0,
    DType::Q2_0_128,
    DType::PTQ1_0,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_K,
    DType::Q6_K,
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::MXFP4,
    DType::IQ2_XXS,
    DType::IQ2_XS,
    DType::IQ2_S,
    DType::IQ3_XXS,
    DType::IQ3_S,
];
/// (heads, KV heads, head_dim) of the two models.
const HEADS: [(usize, usize, usize); 2] = [(20, 5, 128), (32, 8, 64)];
const CONTEXTS: [usize; 3] = [128, 1024, 4096];
const WIDTHS: [usize; 4] = [2560, 6912, 2048, 8192];
const KV_BLOCK: usize = 32;

struct Bench<'a> {
    options: &'a Options,
    /// Numbers of tokens.
    tokens: &'a [usize],
    pool: &'a Pool,
    isa: Isa,
    limits: Limits<'a>,
    arena_bytes: usize,
    rows: Vec<Value>,
}

/// One line of the report.
struct Case<'a> {
    kernel: &'a str,
    shape: String,
    tokens: usize,
    work: Work,
}

/// Room for `count` floats.
fn lines(count: usize) -> Vec<Line> {
    vec![Line::default(); count.div_ceil(16)]
}

fn refused(argument: &str) -> ! {
    eprintln!("cargo dev kernels: {argument} is neither an option nor a number of tokens");
    std::process::exit(2)
}

fn main() {
    let (options, numbers) = Options::with_files("kernels");
    let numbers: Vec<usize> = numbers.iter().map(|n| n.parse().unwrap_or_else(|_| refused(n))).collect();
    let tokens = match options.quick {
        _ if !numbers.is_empty() => &numbers[..],
        true => &QUICK_TOKENS,
        false => &TOKENS,
    };
    let (memory, pool) = (Memory::of_machine(), Pool::new(options.threads).expect("a pool"));
    let limits = Limits::new(&pool, &memory, options.isa);
    let mut bench = Bench {
        options: &options,
        tokens,
        pool: &pool,
        isa: options.isa,
        limits,
        arena_bytes: memory.bytes(),
        rows: Vec::new(),
    };
    if !options.turns {
        head(&options);
    }
    TYPES.into_iter().for_each(|dtype| bench.products(dtype));
    HEADS.into_iter().for_each(|heads| bench.attention(heads));
    WIDTHS.into_iter().for_each(|width| bench.row_kernels(width));
    let Bench { rows, .. } = bench;
    options.write(&json!({"machine": machine(), "kernels": options.isa.name(), "threads": options.threads,
        "rows": rows}));
}

fn head(options: &Options) {
    println!(
        "{}; {}; {} threads; medians of {}",
        machine(),
        options.isa.name(),
        options.threads,
        options.rounds()
    );
    println!(
        "\n{:<18} {:>14} {:>5} {:>11} {:>8} {:>8} {:>7}  limit",
        "kernel", "shape", "M", "us", "GB/s", "GMAC/s", "%"
    );
}

impl Bench<'_> {
    /// Times `run`, whose argument counts calls, in turns with its limits.
    fn measure(&mut self, case: Case, mut run: impl FnMut(usize)) {
        let mut calls = 0;
        let mut call = || {
            run(calls);
            calls += 1;
        };
        call(); // buffers grow
        let once = seconds(&mut call);
        let least = if self.options.quick { 1e-3 } else { 3e-3 };
        let times = (least / once).ceil().clamp(1.0, 1e5) as usize;
        if self.options.turns {
            return in_turns(&case, || seconds(|| (0..times).for_each(|_| call())) / times as f64);
        }
        let (mut taken, mut shares, mut by_read) = (Vec::new(), Vec::new(), 0);
        let mut before = self.limits.least(&case.work);
        for _ in 0..self.options.rounds() {
            let one = seconds(|| (0..times).for_each(|_| call())) / times as f64;
            let after = self.limits.least(&case.work);
            taken.push(one);
            shares.push((before.seconds + after.seconds) / 2.0 / one);
            by_read += usize::from(after.by == "read");
            before = after;
        }
        let rounds = taken.len();
        let (one, share) = (median(taken), median(shares));
        let by = if by_read * 2 > rounds { "read" } else { case.work.kind.name() };
        let (gb, gmac) = (case.work.bytes / one / 1e9, case.work.multiply_adds / one / 1e9);
        println!(
            "{:<18} {:>14} {:>5} {:>11.1} {gb:>8.2} {gmac:>8.2} {:>7.1}  {by}",
            case.kernel,
            case.shape,
            case.tokens,
            one * 1e6,
            share * 100.0
        );
        self.rows.push(json!({"kernel": case.kernel, "shape": case.shape, "m": case.tokens, "us": one * 1e6,
            "gb_per_s": gb, "gmac_per_s": gmac, "of_limit": share, "limit": by}));
    }

    fn products(&mut self, dtype: DType) {
        let name = format!(
            "{} {dtype:?}",
            match dtype.arithmetic() {
                Arithmetic::Ternary => "ternary",
                Arithmetic::Int8 => "rows",
                Arithmetic::Float => "dense",
                Arithmetic::Blocks32 | Arithmetic::Blocks256 => "quantized",
            }
        );
        if !self.options.wants(&name) {
            return;
        }
        let shapes: &[_] = if self.options.quick { &QUICK_SHAPES } else { &SHAPES };
        let largest = shapes.iter().filter_map(|(rows, cols)| dtype.byte_len(*rows, *cols)).max();
        let arena = Arena::new(dtype, largest.unwrap_or(0).max(self.arena_bytes));
        for &(rows, cols) in shapes {
            let Some(matrices) = arena.matrices(rows, cols) else { continue };
            for &tokens in self.tokens {
                let work = Work {
                    bytes: matrices[0].data.len() as f64,
                    multiply_adds: (rows * cols * tokens) as f64,
                    kind: if matches!(dtype, DType::F16 | DType::BF16) { Kind::F32 } else { Kind::Int8 },
                };
                let case = Case { kernel: &name, shape: format!("{rows}x{cols}"), tokens, work };
                self.product(case, &matrices);
            }
        }
    }

    /// Operands begin at a cache line. Otherwise a varying number of accesses would cross one, which costs
    /// some products a tenth of their time.
    fn product(&mut self, case: Case, matrices: &[Matrix]) {
        let (pool, isa, tokens) = (self.pool, self.isa, case.tokens);
        let (rows, cols) = (matrices[0].rows, matrices[0].cols);
        let mut random = SplitMix(3);
        let (mut x, mut out) = (lines(tokens * cols), lines(tokens * rows));
        let x = &mut floats(&mut x).as_flattened_mut()[..tokens * cols];
        let out = &mut floats(&mut out).as_flattened_mut()[..tokens * rows];
        x.fill_with(|| random.unit());
        let x = &*x;
        let part = |n: usize| [Part { matrix: &matrices[n % matrices.len()], column: 0 }];
        if let Some(block) = quantized::block_of(matrices[0].dtype) {
            let (mut int8, mut scales) = (Vec::new(), vec![0.0; x.len() / block]);
            let values = grown_lines(&mut int8, x.len());
            let mut sums = vec![0; x.len() / columns_of_sum(block)];
            // A row is whole blocks, so all rows are quantized as one.
            quantize_blocks(isa, block, x, values, &mut scales, &mut sums);
            let x = BlockActivations { values, scales: &scales, sums: &sums, cols, block };
            return self.measure(case, |n| quantized::matmul(pool, isa, &x, &part(n), rows, out));
        }
        let kind = matrices[0].dtype.arithmetic();
        if kind == Arithmetic::Float {
            return self.measure(case, |n| dense::matmul(pool, isa, x, cols, &part(n), rows, out));
        }
        let width = tokens::padded(cols);
        let (mut int8, mut scales) = (Vec::new(), vec![QuantRow::default(); tokens]);
        let values = grown_lines(&mut int8, tokens * width);
        for ((x, values), scale) in x.chunks(cols).zip(values.chunks_mut(width)).zip(&mut scales) {
            *scale = quantize_row(isa, x, &mut values[..cols]);
        }
        let x = Activations { values, rows: &scales, cols: width };
        self.measure(case, |n| tokens::matmul(pool, isa, &x, &part(n), rows, out));
    }

    /// A decode step of M sequences, each with a context of its own; and a chunk of one prompt, M rows that share it.
    fn attention(&mut self, (heads, kv_heads, head_dim): (usize, usize, usize)) {
        for kind in KvType::ALL {
            let [decode, prompt] = ["decode", "prompt"].map(|phase| format!("attention {phase} {kind:?}"));
            if !self.options.wants(&decode) && !self.options.wants(&prompt) {
                continue;
            }
            let kv = Kv::new(kind, heads, kv_heads, head_dim, self.arena_bytes / 2);
            let contexts = if self.options.quick { &CONTEXTS[1..2] } else { &CONTEXTS };
            for &context in contexts {
                for sequences in [1, 8, 32] {
                    if self.options.wants(&decode) && sequences * context.div_ceil(KV_BLOCK) <= kv.order.len()
                    {
                        self.attend(&decode, &kv, context, sequences, 1);
                    }
                }
                if self.options.wants(&prompt) {
                    self.attend(&prompt, &kv, context, 1, 32);
                }
            }
        }
    }

    fn attend(&mut self, kernel: &str, kv: &Kv, context: usize, sequences: usize, rows: usize) {
        let Kv { kind, heads, kv_heads, head_dim, .. } = *kv;
        let (pool, isa, width, group) = (self.pool, self.isa, heads * head_dim, heads / kv_heads);
        let mut random = SplitMix(5);
        let q: Vec<f32> = (0..sequences * rows * width).map(|_| random.unit()).collect();
        let mut out = vec![0.0; q.len()];
        let blocks = context.div_ceil(KV_BLOCK);
        // Key and value, each read once by its head's group.
        let work = Work {
            bytes: (sequences * context / TILE * kv_heads * 2 * kind.tile_bytes(head_dim)) as f64,
            multiply_adds: (sequences * rows * context * width * 2) as f64,
            kind: Kind::F32,
        };
        let shape = format!("{heads}/{kv_heads}x{head_dim} {context}");
        self.measure(Case { kernel, shape, tokens: sequences * rows, work }, |n| {
            let shared = SharedOut::new(&mut out);
            let here = (TOGETHER / group).clamp(1, rows);
            let spans = rows.div_ceil(here);
            pool.run(sequences * spans * kv_heads, &|task| {
                let (span, kv_head) = (task / kv_heads, task % kv_heads);
                let first = (n * sequences + span / spans) * blocks % (kv.order.len() + 1 - blocks);
                let at = |row: usize, head: usize| {
                    (span * here + row) * width + (kv_head * group + head) * head_dim
                };
                SCRATCH.with_borrow_mut(|scratch| {
                    // A prompt is one sequence.
                    let here = here.min(rows - span % spans * here);
                    let queries = scratch.queries(here * group, head_dim).chunks_exact_mut(stride(head_dim));
                    for (n, to) in queries.enumerate() {
                        let from = &q[at(n / group, n % group)..][..head_dim];
                        to.iter_mut().zip(from).for_each(|(to, x)| *to = x / (head_dim as f32).sqrt());
                    }
                    let mut seen = [Seen::default(); TOGETHER];
                    seen.iter_mut().enumerate().for_each(|(row, seen)| seen.last = context - here + row);
                    let context = kv.context(&kv.order[first..first + blocks], kv_head);
                    scratch.attend(isa, &seen[..here], group, &context, |row, head| {
                        let at = at(row, head);
                        // SAFETY: a task has its rows' heads to itself.
                        unsafe { shared.slice(at..at + head_dim) }
                    });
                });
            });
        });
    }

    fn row_kernels(&mut self, width: usize) {
        let (pool, isa) = (self.pool, self.isa);
        for tokens in if self.options.quick { vec![1, 32] } else { vec![1, 8, 32, 128] } {
            let mut random = SplitMix(6);
            let x: Vec<f32> = (0..tokens * width).map(|_| random.unit()).collect();
            let weight = vec![1.0; width];
            let case = |kernel, bytes| Case {
                kernel,
                shape: width.to_string(),
                tokens,
                // Two passes over the row, an operation for each element in both.
                work: Work {
                    bytes: (tokens * width * bytes) as f64,
                    multiply_adds: (2 * x.len()) as f64,
                    kind: Kind::F32,
                },
            };
            if self.options.wants("norm") {
                let mut out = vec![0.0; x.len()];
                self.measure(case("norm", 4), |_| {
                    let shared = SharedOut::new(&mut out);
                    pool.run_if_worth(x.len(), tokens, &|row| {
                        let at = row * width..(row + 1) * width;
                        // SAFETY: each task has a row of its own.
                        let out = unsafe { shared.slice(at.clone()) };
                        norm::rms_norm(isa, &x[at], &weight, 1e-5, out);
                    });
                });
            }
            if self.options.wants("quantize") {
                let mut out = vec![0; x.len()];
                self.measure(case("quantize", 4), |_| {
                    let shared = SharedOut::new(&mut out);
                    pool.run_if_worth(x.len(), tokens, &|row| {
                        let at = row * width..(row + 1) * width;
                        // SAFETY: each task has a row of its own.
                        let out = unsafe { shared.slice(at.clone()) };
                        quantize_row(isa, &x[at], out);
                    });
                });
            }
        }
    }
}

/// Names the case; then, for each line that is not "next", the microseconds of one more round.
fn in_turns(case: &Case, mut round: impl FnMut() -> f64) {
    println!("{}\t{}\t{}", case.kernel, case.shape, case.tokens);
    for line in std::io::stdin().lines() {
        match line.expect("a line of standard input").as_str() {
            "next" => return,
            _ => println!("{}", round() * 1e6),
        }
    }
    std::process::exit(0);
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// K and V of one layer, and an order of their blocks that tables are cut from.
struct Kv {
    kind: KvType,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    data: [Vec<u8>; 2],
    order: Vec<u32>,
}

impl Kv {
    /// Random rows, K and V of `bytes` each.
    fn new(kind: KvType, heads: usize, kv_heads: usize, head_dim: usize, bytes: usize) -> Self {
        let block = kv_heads * KV_BLOCK / TILE * kind.tile_bytes(head_dim);
        let blocks = bytes / block;
        let mut random = SplitMix(4);
        let data = [Half::K, Half::V].map(|half| {
            let mut tile = vec![0; kind.tile_bytes(head_dim)];
            for at in 0..TILE {
                let row: Vec<f32> = (0..head_dim).map(|_| random.unit()).collect();
                kv::store(isa(), kind, half, &mut tile, at, &row);
            }
            tile.repeat(blocks * block / tile.len())
        });
        let mut order: Vec<u32> = (0..blocks as u32).collect();
        (1..order.len()).rev().for_each(|i| order.swap(i, (random.draw() % (i as u64 + 1)) as usize));
        Self { kind, heads, kv_heads, head_dim, data, order }
    }

    fn context<'a>(&'a self, table: &'a [u32], kv_head: usize) -> Context<'a> {
        let Self { kind, kv_heads, head_dim, .. } = *self;
        let paged = |half: Half| Paged {
            data: &self.data[half as usize],
            kind,
            kv_heads,
            block_size: KV_BLOCK,
            head_dim,
        };
        let (k, v) = (paged(Half::K), paged(Half::V));
        Context { k, v, joint: false, table, kv_head, cap: None, sinks: &[] }
    }
}
