//! Writes a Hugging Face folder as one GGUF file.
//!
//! `bn-convert --help` explains the arguments.

use bn_engine::base::{Error, Result};
use bn_engine::kernels::{DType, Pool};
use bn_engine::model::{Checkpoint, ExportTypes, HfFolder, export};
use std::ffi::OsString;
use std::io::{IsTerminal, Write, stderr};
use std::path::Path;

const USAGE: &str =
    "bn-convert FOLDER OUT.gguf [--ternary i2_s|tq2_0] [--weights q8_0|q4_0] [--embedding q8_0|q4_0]";
const HELP: &str = "
Writes a Hugging Face folder (config.json, safetensors, tokenizer.json) as one GGUF file.

  --ternary i2_s|tq2_0     the type of ternary weights: I2_S is exact (default), TQ2_0 rounds its scale to f16
  --weights q8_0|q4_0      quantize attention and feed-forward weights (default: keep their type)
  --embedding q8_0|q4_0    quantize the embedding and the output head (default: keep their type)
  -h, --help, --version
";

fn main() {
    let args: Vec<String> = match std::env::args_os().skip(1).map(OsString::into_string).collect() {
        Ok(args) => args,
        Err(arg) => {
            eprintln!("bn-convert: {arg:?} is not text in Unicode");
            std::process::exit(1);
        }
    };
    let has = |flags: &[&str]| args.iter().any(|arg| flags.contains(&arg.as_str()));
    if has(&["--help", "-h"]) {
        print!("usage: {USAGE}\n{HELP}");
        return;
    }
    if has(&["--version"]) {
        println!("bn-convert {}", env!("CARGO_PKG_VERSION"));
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
    let mut types = ExportTypes { ternary: None, weights: None, embedding: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut one_of = |known: &[(&str, DType)]| {
            let name = args.next().map_or("", String::as_str);
            let found = known.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype);
            found.ok_or_else(|| wrong(format!("{arg} cannot be '{name}'")))
        };
        let dense = [("q8_0", DType::Q8_0), ("q4_0", DType::Q4_0)];
        match arg.as_str() {
            "--ternary" => types.ternary = Some(one_of(&[("i2_s", DType::I2S), ("tq2_0", DType::TQ2_0)])?),
            "--weights" => types.weights = Some(one_of(&dense)?),
            "--embedding" => types.embedding = Some(one_of(&dense)?),
            flag if flag.starts_with('-') => return Err(wrong(format!("there is no {flag}"))),
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
    let out = Path::new(job.out);
    if std::fs::metadata(out).is_ok_and(|there| !there.is_file()) {
        return Err(Error::invalid(format!("'{}' is there and is no regular file", job.out)));
    }
    let files = HfFolder::open(job.folder)?;
    let config = files.config(&warn)?;
    if config.raw_embeddings {
        warn(
            "its embeddings are not divided by their length; GGUF has no key for that, so requests have to ask for it",
        );
    }
    let pairs = files.text_pairs(config.vocab_size, &warn)?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let pool = Pool::new(threads)?;
    let terminal = stderr().is_terminal();
    // Output to stderr must not cause a failure.
    let result = export(&files, job.types, pairs, &pool, out, &mut |fraction, name| {
        if terminal {
            // Overwrites the previous line without an escape sequence, which not every Windows console knows.
            let _ = write!(stderr(), "\r{:3.0}% {name:<70.70}", 100.0 * fraction);
        }
    });
    if terminal {
        let _ = write!(stderr(), "\r{:75}\r", "");
    }
    result?;
    let bytes = std::fs::metadata(out).map_or(0, |file| file.len());
    let _ = writeln!(stderr(), "{} is written: {:.2} MiB", job.out, bytes as f64 / (1 << 20) as f64);
    Ok(())
}
