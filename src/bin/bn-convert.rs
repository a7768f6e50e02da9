//! Writes a Hugging Face folder as one GGUF file.
//!
//!   bn-convert FOLDER OUT.gguf [--ternary i2_s|tq2_0] [--weights q8_0|q4_0] [--embedding q8_0|q4_0]
//!
//! Ternary weights become I2_S (exact) unless --ternary says TQ2_0 (its scale is rounded to f16); the others keep
//! their type unless --weights or --embedding says otherwise.

use bn_engine::base::{Error, Result};
use bn_engine::formats::hf::Folder;
use bn_engine::kernels::{DType, Pool};
use bn_engine::model::{Checkpoint, ExportTypes, HfFolder, export};
use bn_engine::text::{JsonFiles, tokenizer_pairs};
use std::io::Write;
use std::path::Path;

const USAGE: &str =
    "bn-convert FOLDER OUT.gguf [--ternary i2_s|tq2_0] [--weights q8_0|q4_0] [--embedding q8_0|q4_0]";
/// A tokenizer.json of a quarter million tokens has 35 MiB.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
const MAX_CONFIG_BYTES: u64 = 16 << 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!("usage: {USAGE}");
        return;
    }
    if let Err(error) = parse(&args).and_then(|job| convert(&job)) {
        eprintln!("bn-convert: {}", error.message);
        std::process::exit(1);
    }
}

struct Job<'a> {
    folder: &'a str,
    out: &'a str,
    types: ExportTypes,
}

fn parse(args: &[String]) -> Result<Job<'_>> {
    let wrong = |why: String| Error::invalid(format!("{why}; usage: {USAGE}"));
    let mut paths = Vec::new();
    let mut types = ExportTypes { ternary: DType::I2S, weights: None, embedding: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut one_of = |known: &[(&str, DType)]| {
            let name = args.next().map_or("", String::as_str);
            let found = known.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype);
            found.ok_or_else(|| wrong(format!("{arg} cannot be '{name}'")))
        };
        let dense = [("q8_0", DType::Q8_0), ("q4_0", DType::Q4_0)];
        match arg.as_str() {
            "--ternary" => types.ternary = one_of(&[("i2_s", DType::I2S), ("tq2_0", DType::TQ2_0)])?,
            "--weights" => types.weights = Some(one_of(&dense)?),
            "--embedding" => types.embedding = Some(one_of(&dense)?),
            flag if flag.starts_with("--") => return Err(wrong(format!("there is no {flag}"))),
            path => paths.push(path),
        }
    }
    match paths[..] {
        [folder, out] => Ok(Job { folder, out, types }),
        _ => Err(wrong(format!("{} paths where two are needed", paths.len()))),
    }
}

fn convert(job: &Job) -> Result<()> {
    let warn = |message: &str| eprintln!("bn-convert: {message}");
    let files = HfFolder::open(job.folder)?;
    let folder = Folder::open(job.folder)?;
    let vocab_size = files.config(&warn)?.vocab_size;
    let mut pairs = Vec::new();
    match folder.read("tokenizer.json", MAX_TOKENIZER_BYTES)? {
        None => warn("there is no tokenizer.json in the folder; the model will take and give token ids only"),
        Some(tokenizer) => {
            let config = folder.read("tokenizer_config.json", MAX_CONFIG_BYTES)?;
            let generation = folder.read("generation_config.json", MAX_CONFIG_BYTES)?;
            let json = JsonFiles {
                tokenizer: &tokenizer,
                config: config.as_deref(),
                generation: generation.as_deref(),
            };
            pairs = tokenizer_pairs(&json, vocab_size, &folder.path_of("tokenizer.json"), &warn)?;
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let pool = Pool::new(threads)?;
    export(&files, job.types, pairs, &pool, Path::new(job.out), &mut |name| {
        // Progress is worth no failure.
        let _ = write!(std::io::stderr(), "\r\x1b[K{name}");
    })?;
    let _ = writeln!(std::io::stderr(), "\r\x1b[K{} is written", job.out);
    Ok(())
}
