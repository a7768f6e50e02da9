//! The price of a setting in quality, on a model and a text: perplexity, and the KL divergence of its next-token
//! distributions from those of a reference run on the same tokens.
//!
//!   quality MODEL TEXT [--set SETTING]... [--reference SETTING] [--window N] [--tokens N] [--threads N]
//!           [--write-tokens FILE] [--logits FILE]...
//!
//! A setting is `keep`, or types by name: `weight=int8,embedding=q8_0,head=q4_0,kv=int4`. What it does not name stays
//! as the engine has it by default: the file's weights, K and V in F16. The reference has all weights, activations, K
//! and V in f32 unless `--reference` gives a setting.
//!
//! A window of N tokens (1,024) begins with the model's BOS token, if it has one. `--write-tokens` writes the windows,
//! a line each, for other software. `--logits` names the logits that it computed: `[rows, vocabulary]` in f32,
//! little-endian, of all rows of the windows in order. The file may be a pipe, as runs proceed in step.

use bn_dev::exact;
use bn_engine::base::{Error, Result};
use bn_engine::kernels::Pool;
use bn_engine::kernels::attention::KvType;
use bn_engine::model::{LoadOptions, Loaded, Outputs, Source, WeightType, load};
use bn_engine::ops::{CpuOps, HostMemory, Memory, MemoryLayout, RaggedBatch, StateLayout, StateRows};
use std::fs::File;
use std::io::{BufReader, Read};

const BLOCK: usize = 32;
/// Rows of a pass.
const CHUNK: usize = 64;

#[derive(Clone)]
struct Setting {
    name: String,
    kv: KvType,
    /// `None`: all weights in f32.
    load: Option<LoadOptions>,
}

impl Setting {
    fn parse(name: &str) -> Option<Self> {
        let (mut kv, mut load) = (KvType::default(), LoadOptions::default());
        for part in name.split(',').filter(|part| *part != "keep") {
            let (field, ty) = part.split_once('=')?;
            if field == "kv" {
                kv = KvType::ALL.into_iter().find(|kind| kind.name() == ty)?;
                continue;
            }
            let ty = match ty {
                "keep" => WeightType::Keep,
                "q8_0" => WeightType::Q8_0,
                "q4_0" => WeightType::Q4_0,
                "ternary" => WeightType::Ternary,
                "int8" => WeightType::Int8,
                _ => return None,
            };
            *match field {
                "weight" => &mut load.weights,
                "embedding" => &mut load.embedding,
                "head" => &mut load.head,
                _ => return None,
            } = ty;
        }
        Some(Self { name: name.into(), kv, load: Some(load) })
    }
}

struct Options {
    model: String,
    text: String,
    reference: Setting,
    settings: Vec<Setting>,
    logits: Vec<String>,
    window: usize,
    tokens: usize,
    threads: usize,
    write_tokens: Option<String>,
}

fn parse() -> Option<Options> {
    let mut files = Vec::new();
    let mut options = Options {
        model: String::new(),
        text: String::new(),
        reference: Setting { name: "f32".into(), kv: KvType::F32, load: None },
        settings: Vec::new(),
        logits: Vec::new(),
        window: 1024,
        tokens: 4096,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        write_tokens: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next()?.parse().ok().filter(|n: &usize| *n > 0);
        match arg.as_str() {
            "--window" => options.window = number()?,
            "--tokens" => options.tokens = number()?,
            "--threads" => options.threads = number()?,
            "--set" => options.settings.push(Setting::parse(&args.next()?)?),
            "--reference" => options.reference = Setting::parse(&args.next()?)?,
            "--logits" => options.logits.push(args.next()?),
            "--write-tokens" => options.write_tokens = Some(args.next()?),
            _ if !arg.starts_with('-') => files.push(arg),
            _ => return None,
        }
    }
    [options.model, options.text] = files.try_into().ok()?;
    Some(options)
}

fn main() {
    let usage =
        "quality MODEL TEXT [--set SETTING]... [--reference SETTING]; its first lines have the options";
    if std::env::args().len() == 1 {
        // Lets a plain `cargo bench` skip this program.
        return println!("{usage}");
    }
    let Some(options) = parse() else {
        eprintln!("{usage}");
        std::process::exit(2);
    };
    if let Err(error) = run(&options) {
        eprintln!("quality: {error}");
        std::process::exit(1);
    }
}

fn io(what: &str, error: std::io::Error) -> Error {
    Error::invalid(format!("{what}: {error}"))
}

fn run(options: &Options) -> Result<()> {
    let pool = Pool::new(options.threads)?;
    let mut models: Vec<Model> = Vec::new();
    for setting in std::iter::once(&options.reference).chain(&options.settings) {
        if models.iter().all(|(load, _)| *load != setting.load) {
            let loaded = match &setting.load {
                None => exact::load(&options.model, &pool)?,
                Some(to) => {
                    let source = Source::parse(Some(&options.model))?;
                    load(&source, to, &pool, &|_, _| (), &mut |_, _| false)?
                }
            };
            models.push((setting.load.clone(), loaded));
        }
    }
    let vocab = models[0].1.model.facts().vocab_size;
    let windows = windows(options, &models[0].1)?;
    let ops = CpuOps::new(pool);
    let mut reference = Run::new(&models, &options.reference, options.window)?;
    let runs = options.settings.iter().map(|setting| Run::new(&models, setting, options.window));
    let mut runs = runs.collect::<Result<Vec<_>>>()?;
    for path in &options.logits {
        let file = File::open(path).map_err(|e| io(path, e))?;
        runs.push(Run {
            name: path,
            source: Logits::File(BufReader::new(file)),
            out: Outputs::default(),
            score: Score::default(),
        });
    }
    for tokens in &windows {
        for from in (0..tokens.len()).step_by(CHUNK) {
            let rows = from..tokens.len().min(from + CHUNK);
            let next = &tokens[from + 1..tokens.len().min(from + CHUNK + 1)];
            reference.compute(&ops, &tokens[rows.clone()], from, vocab)?;
            reference.score.add(&reference.out.logits, &reference.out.logits, vocab, next);
            for run in &mut runs {
                run.compute(&ops, &tokens[rows.clone()], from, vocab)?;
                run.score.add(&reference.out.logits, &run.out.logits, vocab, next);
            }
        }
    }
    let rows: usize = windows.iter().map(Vec::len).sum();
    println!("{rows} tokens in {} windows; the reference is {}", windows.len(), reference.name);
    println!("{:<32} {:>10} {:>9} {:>9} {:>9}", "setting", "perplexity", "KL", "KL 99%", "same top");
    std::iter::once(reference).chain(runs).for_each(|run| run.score.print(run.name));
    Ok(())
}

/// The tokens of the text, in windows.
fn windows(options: &Options, loaded: &Loaded) -> Result<Vec<Vec<u32>>> {
    let text = std::fs::read_to_string(&options.text).map_err(|e| io(&options.text, e))?;
    let tokenizer =
        loaded.tokenizer.as_ref().ok_or_else(|| Error::unsupported("a model without a tokenizer"))?;
    let tokens = tokenizer.encode(&text, false, false)?;
    let bos = tokenizer.bos();
    let own = options.window - usize::from(bos.is_some());
    let count = options.tokens.div_ceil(options.window).min(tokens.len() / own.max(1));
    if own == 0 || count == 0 {
        return Err(Error::invalid(format!("{} tokens of text, which fill no window", tokens.len())));
    }
    let windows = tokens.chunks_exact(own).take(count);
    let windows: Vec<Vec<u32>> =
        windows.map(|own| bos.into_iter().chain(own.iter().copied()).collect()).collect();
    if let Some(path) = &options.write_tokens {
        let line = |tokens: &Vec<u32>| tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ") + "\n";
        std::fs::write(path, windows.iter().map(line).collect::<String>()).map_err(|e| io(path, e))?;
    }
    Ok(windows)
}

/// A model as it was loaded for `Setting::load`.
type Model = (Option<LoadOptions>, Loaded);

enum Logits<'a> {
    Model(&'a Loaded, Box<HostMemory>),
    File(BufReader<File>),
}

struct Run<'a> {
    name: &'a str,
    source: Logits<'a>,
    out: Outputs,
    score: Score,
}

impl<'a> Run<'a> {
    fn new(models: &'a [Model], setting: &'a Setting, window: usize) -> Result<Self> {
        let (_, loaded) = models.iter().find(|(load, _)| *load == setting.load).expect("loaded by `run`");
        let model = &loaded.model;
        let kv = model.kv_shape().layout(setting.kv, window.div_ceil(BLOCK), BLOCK);
        let states = StateLayout { shape: model.state_shape(), slots: 1, drafted: 1 };
        let memory = HostMemory::new(MemoryLayout { states, ..MemoryLayout::of(kv) })?;
        let (out, score) = (Outputs::default(), Score::default());
        Ok(Self { name: &setting.name, source: Logits::Model(loaded, Box::new(memory)), out, score })
    }

    /// The logits of rows of a window, the first of which is at position `from`.
    fn compute(&mut self, ops: &CpuOps, tokens: &[u32], from: usize, vocab: usize) -> Result<()> {
        match &mut self.source {
            Logits::Model(loaded, memory) => {
                let mut batch = RaggedBatch::default();
                let table: Vec<u32> = (0..memory.layout().kv.blocks as u32).collect();
                batch.push_seq(&table, from as u32, tokens.len() as u32)?;
                batch.tokens.extend(tokens);
                batch.logits_rows.extend(0..tokens.len() as u32);
                if !loaded.model.state_shape().is_empty() {
                    batch.states.push(StateRows::default());
                }
                loaded.model.forward(ops, &batch, &mut **memory, &mut || false, &mut self.out)
            }
            Logits::File(file) => {
                let mut bytes = vec![0; size_of::<f32>() * tokens.len() * vocab];
                file.read_exact(&mut bytes).map_err(|e| io(self.name, e))?;
                let (floats, _) = bytes.as_chunks();
                self.out.logits = floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                Ok(())
            }
        }
    }
}

#[derive(Default)]
struct Score {
    /// The sum of the negative log probabilities of `predicted` tokens.
    loss: f64,
    predicted: usize,
    /// The KL divergence of each row.
    divergence: Vec<f64>,
    /// Rows with the reference's most likely token.
    same: usize,
}

impl Score {
    /// Adds rows of logits. `next` has the tokens that follow; the last row of a window has none.
    fn add(&mut self, reference: &[f32], logits: &[f32], vocab: usize, next: &[u32]) {
        for (row, (p, q)) in reference.chunks_exact(vocab).zip(logits.chunks_exact(vocab)).enumerate() {
            let ((top, mass_p), (own, mass_q)) = (mass(p), mass(q));
            let sum: f64 = p
                .iter()
                .zip(q)
                .map(|(p, q)| {
                    let p = f64::from(*p);
                    (p - mass_p).exp() * (p - f64::from(*q))
                })
                .sum();
            self.divergence.push(sum - mass_p + mass_q);
            self.same += usize::from(top == own);
            if let Some(next) = next.get(row) {
                self.loss += mass_q - f64::from(q[*next as usize]);
                self.predicted += 1;
            }
        }
    }

    fn print(mut self, name: &str) {
        self.divergence.sort_by(f64::total_cmp);
        let rows = self.divergence.len();
        let mean = self.divergence.iter().sum::<f64>() / rows as f64;
        let (high, same) = (self.divergence[rows * 99 / 100], self.same as f64 / rows as f64);
        let perplexity = (self.loss / self.predicted as f64).exp();
        println!("{name:<32} {perplexity:>10.4} {mean:>9.5} {high:>9.5} {:>8.2}%", 100.0 * same);
    }
}

/// The most likely token, and the logarithm of the sum of the logits' exponentials.
fn mass(logits: &[f32]) -> (usize, f64) {
    let top = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or_default();
    let max = f64::from(logits[top]);
    (top, max + logits.iter().map(|x| (f64::from(*x) - max).exp()).sum::<f64>().ln())
}
