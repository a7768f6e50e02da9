//! Shared by the model tests: golden cases, ragged steps with shuffled block tables, GGUF files in memory.
#![allow(dead_code)]

pub mod gguf;
pub mod gguf_read;
pub mod parity;
pub mod parity_document;
pub mod rng;

use bn_engine::base::Result;
use bn_engine::kernels::Pool;
use bn_engine::kernels::attention::KvType;
use bn_engine::model::{LoadOptions, Loaded, Outputs, Source, load};
use bn_engine::ops::{
    CpuOps, Lora, Memory, MemoryLayout, OpSet, RaggedBatch, SeqRows, StateLayout, StateRows,
};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Like `rng::Rng`, for lengths and indexes.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        rng::draw(&mut self.0)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// The repository, as cargo reports it while it runs a test, so that a test built elsewhere finds its files.
pub fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// Number of unused states, and the maximum number of drafted rows of a step.
pub const SPARE_STATES: usize = 3;
pub const DRAFTED: usize = 16;

/// A model and the operations and pool for its steps.
#[derive(Clone)]
pub struct Running {
    pub loaded: Loaded,
    pub ops: Arc<dyn OpSet>,
}

impl Running {
    pub fn new(loaded: Loaded, threads: usize) -> Result<Self> {
        Ok(Self { loaded, ops: Arc::new(CpuOps::new(Pool::new(threads)?)) })
    }

    /// Blocks, and in a model with recurrent layers states for `sequences` and some more.
    pub fn memory(
        &self,
        kind: KvType,
        blocks: usize,
        block_size: usize,
        sequences: usize,
    ) -> Box<dyn Memory> {
        let (shape, slots) = (self.model.state_shape(), sequences + SPARE_STATES);
        let states = StateLayout { shape, slots, drafted: DRAFTED };
        let kv = self.model.kv_shape().layout(kind, blocks, block_size);
        self.ops.memory(MemoryLayout { states, ..MemoryLayout::of(kv) }).expect("memory")
    }

    pub fn forward(&self, batch: &RaggedBatch, memory: &mut dyn Memory, out: &mut Outputs) -> Result<()> {
        self.model.forward(&*self.ops, batch, memory, &mut || false, out)
    }

    /// Whether its sequences have states.
    pub fn has_states(&self) -> bool {
        !self.model.state_shape().is_empty()
    }
}

impl Deref for Running {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.loaded
    }
}

pub fn load_source(source: &Source, options: &LoadOptions, threads: usize) -> Result<Running> {
    Running::new(load(source, options, &*Pool::new(threads)?, &|_, _| (), &mut |_, _| false)?, threads)
}

pub fn load_file(path: &str, threads: usize) -> Result<Running> {
    let path = root().join(path).to_string_lossy().into_owned();
    load_source(&Source::File(path), &LoadOptions::default(), threads)
}

pub fn load_on(path: &str, ops: Arc<dyn OpSet>) -> Result<Running> {
    Ok(Running { ops, ..load_file(path, 1)? })
}

/// References in addition to those of tests/golden/models, sorted.
pub const GOLDEN: [&str; 5] =
    ["bitnet-tiny-i2_s", "bitnet-tiny-tq2_0", "demo", "llama-tiny-f32", "llama-tiny-mha"];

/// A reference from another program.
pub struct Golden {
    pub case: String,
    pub model: String,
    pub sequences: Vec<Vec<u32>>,
    pub vocab: usize,
    /// A row for each token, the sequences one after the other.
    pub logits: Vec<f32>,
    /// Maximum relative error, and the minimum number of rows with the same best token.
    pub tolerance: f64,
    pub argmax: f64,
    /// The program that computed it.
    pub source: String,
}

pub fn json(path: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The cases of tests/golden/models/index.json that have `field`, in the formats that `wanted` accepts.
fn index(field: &str, wanted: impl Fn(&str) -> bool) -> Vec<serde_json::Value> {
    let index = json(&root().join("tests/golden/models/index.json"));
    let mut cases = index.as_array().expect("cases").clone();
    cases.retain(|case| case[field].is_string() && wanted(&text(case, "format")));
    cases
}

/// The case of that name in the index.
pub fn index_case(name: &str) -> Option<serde_json::Value> {
    let index = json(&root().join("tests/golden/models/index.json"));
    index.as_array().expect("cases").iter().find(|case| case["name"] == name).cloned()
}

fn text(case: &serde_json::Value, field: &str) -> String {
    case[field].as_str().expect(field).into()
}

/// A list of token ids.
pub fn numbers(json: &serde_json::Value) -> Vec<u32> {
    json.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn sequences(json: &serde_json::Value) -> Vec<Vec<u32>> {
    json["sequences"].as_array().expect("sequences").iter().map(numbers).collect()
}

pub fn floats(path: &Path) -> Vec<f32> {
    let raw = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    raw.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Pooled, normalized hidden states from another program.
pub struct Embeddings {
    pub case: String,
    pub model: String,
    pub sequences: Vec<Vec<u32>>,
    /// A row of the hidden size for each sequence.
    pub rows: Vec<f32>,
    pub tolerance: f64,
}

impl Embeddings {
    /// See `Golden::models`.
    pub fn models(wanted: impl Fn(&str) -> bool) -> Vec<Self> {
        let read = |case: &serde_json::Value| Self {
            case: text(case, "name"),
            model: text(case, "path"),
            sequences: sequences(case),
            rows: floats(&root().join(text(case, "embedding"))),
            tolerance: case["tolerance"].as_f64().expect("tolerance"),
        };
        index("embedding", wanted).iter().map(read).collect()
    }
}

impl Golden {
    pub fn read(case: &str) -> Self {
        let dir = root().join("tests/golden");
        let json = json(&dir.join(format!("{case}.json")));
        let logits = dir.join(json["logits"].as_str().expect("logits"));
        Self::of(case, json["model"].as_str().expect("model"), &logits, &json)
    }

    /// The cases of tests/golden/models/index.json in the formats that `wanted` accepts.
    pub fn models(wanted: impl Fn(&str) -> bool) -> Vec<Self> {
        let read = |case: &serde_json::Value| Self {
            tolerance: case["tolerance"].as_f64().expect("tolerance"),
            argmax: case["argmax"].as_f64().expect("argmax"),
            ..Self::of(&text(case, "name"), &text(case, "path"), &root().join(text(case, "logits")), case)
        };
        index("logits", wanted).iter().map(read).collect()
    }

    pub fn of(case: &str, model: &str, logits: &Path, json: &serde_json::Value) -> Self {
        let golden = Self {
            case: case.into(),
            model: model.into(),
            sequences: sequences(json),
            vocab: json["vocab"].as_u64().expect("vocab") as usize,
            logits: floats(logits),
            tolerance: 1e-3,
            argmax: 1.0,
            source: text(json, "source"),
        };
        let tokens: usize = golden.sequences.iter().map(Vec::len).sum();
        assert_eq!(golden.logits.len(), tokens * golden.vocab, "{case}: a row for each token");
        golden
    }
}

/// Sequences of one model in one memory, with blocks assigned at random.
pub struct Session<'a> {
    model: &'a Running,
    memory: Box<dyn Memory>,
    sequences: &'a [Vec<u32>],
    tables: Vec<Vec<u32>>,
    /// Adapter of each sequence, with its scale.
    pub adapters: Vec<Option<(Arc<Lora>, f32)>>,
    /// Number of processed tokens of each sequence, and the logits and hidden states of all of them.
    pub done: Vec<usize>,
    pub logits: Vec<Vec<f32>>,
    pub hidden: Vec<Vec<f32>>,
}

impl<'a> Session<'a> {
    /// K and V in f32, as in the references.
    pub fn new(model: &'a Running, sequences: &'a [Vec<u32>], block_size: usize, seed: u64) -> Self {
        Self::with_kv(model, sequences, KvType::F32, block_size, seed)
    }

    pub fn with_kv(
        model: &'a Running,
        sequences: &'a [Vec<u32>],
        kind: KvType,
        block_size: usize,
        seed: u64,
    ) -> Self {
        let need: Vec<usize> = sequences.iter().map(|s| s.len().div_ceil(block_size)).collect();
        // Some blocks stay unused between those in use.
        let blocks = need.iter().sum::<usize>() + 5;
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        Rng(seed).shuffle(&mut free);
        let tables = need.iter().map(|&n| free.split_off(free.len() - n)).collect();
        let memory = model.memory(kind, blocks, block_size, sequences.len());
        let (done, none) = (vec![0; sequences.len()], vec![Vec::new(); sequences.len()]);
        let adapters = vec![None; sequences.len()];
        Self { model, memory, sequences, tables, adapters, done, logits: none.clone(), hidden: none }
    }

    /// One step: the next `rows` tokens of each named sequence (fewer at its end), with all logits and hidden
    /// states wanted.
    pub fn step(&mut self, spans: &[(usize, usize)]) {
        let mut batch = RaggedBatch::default();
        let mut parts: Vec<(usize, Range<usize>)> = Vec::new();
        for &(seq, rows) in spans {
            let from = self.done[seq];
            let to = (from + rows).min(self.sequences[seq].len());
            if from == to {
                continue;
            }
            batch.seqs.push(SeqRows {
                row: batch.tokens.len() as u32,
                rows: (to - from) as u32,
                table: batch.block_tables.len() as u32,
                table_len: self.tables[seq].len() as u32,
            });
            if self.model.has_states() {
                batch.states.push(StateRows { slot: (seq + SPARE_STATES) as u32, ..StateRows::default() });
            }
            if let Some((lora, scale)) = &self.adapters[seq] {
                batch.adapt(lora, *scale, batch.tokens.len() as u32, (to - from) as u32);
            }
            batch.tokens.extend(&self.sequences[seq][from..to]);
            batch.positions.extend(from as u32..to as u32);
            batch.block_tables.extend(&self.tables[seq]);
            parts.push((seq, from..to));
        }
        batch.hidden_rows = (0..batch.tokens.len() as u32).collect();
        if !self.model.model.facts().encodes {
            batch.logits_rows = batch.hidden_rows.clone();
        }
        let (vocab, width) = (self.model.model.facts().vocab_size, self.model.model.facts().hidden_size);
        let mut out = Outputs::default();
        self.model.forward(&batch, &mut *self.memory, &mut out).expect("forward");
        let (mut rows, mut states) = (out.logits.chunks_exact(vocab), out.hidden.chunks_exact(width));
        for (seq, span) in parts {
            self.done[seq] = span.end;
            rows.by_ref().take(span.len()).for_each(|row| self.logits[seq].extend(row));
            states.by_ref().take(span.len()).for_each(|row| self.hidden[seq].extend(row));
        }
        assert!(rows.next().is_none() && states.next().is_none(), "a row for each that was asked for");
    }

    pub fn finished(&self) -> bool {
        self.done.iter().zip(self.sequences).all(|(&done, s)| done == s.len())
    }

    /// In turns, one sequence takes `chunk` rows while each of the others decodes one.
    pub fn interleave(&mut self, chunk: usize) {
        for turn in 0.. {
            if self.finished() {
                return;
            }
            let n = self.sequences.len();
            let mut spans: Vec<_> = (0..n).map(|s| (s, if s == turn % n { chunk } else { 1 })).collect();
            // The order of sequences in a batch must not matter.
            spans.rotate_left(turn % n);
            self.step(&spans);
        }
    }
}

/// Logits of each sequence, run alone in one chunk.
pub fn alone(model: &Running, sequences: &[Vec<u32>], block_size: usize) -> Vec<Vec<f32>> {
    let run = |s: &Vec<u32>| {
        let one = [s.clone()];
        let mut session = Session::new(model, &one, block_size, 1);
        session.step(&[(0, s.len())]);
        session.logits.remove(0)
    };
    sequences.iter().map(run).collect()
}

pub fn bits(logits: &[Vec<f32>]) -> Vec<Vec<u32>> {
    logits.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

/// `‖a - b‖ / ‖b‖`.
pub fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let difference: f64 = a.iter().zip(b).map(|(&a, &b)| square(a as f64 - b as f64)).sum();
    (difference / b.iter().map(|&b| square(b as f64)).sum::<f64>()).sqrt()
}

pub fn argmax(row: &[f32]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("a row")
}
