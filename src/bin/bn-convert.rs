//! Writes a Hugging Face folder as one GGUF file.
//!
//!   bn-convert FOLDER OUT.gguf [--ternary i2_s|tq2_0] [--weights q8_0|q4_0] [--embedding q8_0|q4_0]
//!
//! Ternary weights become I2_S (exact) unless --ternary says TQ2_0 (its scale is rounded to f16); the others keep
//! their type unless --weights or --embedding says otherwise.

use bn_engine::base::{Error, Result};
use bn_engine::kernels::{DType, Pool};
use bn_engine::model::{Checkpoint, ExportTypes, HfFolder, export};
use std::io::{IsTerminal, Write};
use std::path::Path;

const USAGE: &str =
    "bn-convert FOLDER OUT.gguf [--ternary i2_s|tq2_0] [--weights q8_0|q4_0] [--embedding q8_0|q4_0]";

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
    let pairs = files.text_pairs(files.config(&warn)?.vocab_size, &warn)?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let pool = Pool::new(threads)?;
    let terminal = std::io::stderr().is_terminal();
    let result = export(&files, job.types, pairs, &pool, out, &mut |name| {
        if terminal {
            // Progress is worth no failure.
            let _ = write!(std::io::stderr(), "\r\x1b[K{name}");
        }
    });
    if terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    result?;
    let _ = writeln!(std::io::stderr(), "{} is written", job.out);
    Ok(())
}
