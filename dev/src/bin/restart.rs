//! Time to the first token of a long prompt: computed, from memory, and from disk after a restart.
//!
//!   cargo dev restart -- MODEL.gguf FOLDER [TOKENS [THREADS [CONVERSATIONS]]]
//!
//! With CONVERSATIONS, so many of TOKENS tokens each take two turns by turns, with 1 GiB for K and V, with and without a
//! prompt cache.
//!
//! FOLDER gets the prompt cache. The page cache is dropped where that is allowed (`/proc/sys/vm/drop_caches`), so that the
//! disk is read; the model is read again before the clock starts. The disk's rate is that of reading the files in order.

use bn_engine::base::{Error, Result};
use bn_engine::engine::Engine;
use bn_engine::engine::api::{EngineConfig, FinishReason, LOG_WARN, Prompt, RequestParams, Which};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u32| args.get(at).map_or(Some(default), |text| text.parse().ok());
    let (Some(tokens), Some(threads), true) = (number(2, 16_000), number(3, 0), args.len() >= 2) else {
        eprintln!("restart MODEL.gguf FOLDER [TOKENS [THREADS [CONVERSATIONS]]]");
        std::process::exit(2)
    };
    let Some(conversations) = number(4, 0) else { return eprintln!("CONVERSATIONS is a number") };
    let done = match conversations {
        0 => measure(&args[0], &args[1], tokens, threads),
        n => take_turns(&args[0], &args[1], tokens, threads, n),
    };
    if let Err(error) = done {
        eprintln!("restart: {error}");
        std::process::exit(1);
    }
}

fn engine(model: &str, folder: &str, tokens: u32, threads: u32) -> Result<Engine> {
    engine_with(model, Some(folder), tokens, threads, 0)
}

fn engine_with(model: &str, folder: Option<&str>, tokens: u32, threads: u32, kv: u64) -> Result<Engine> {
    Engine::create(EngineConfig {
        model_path: Some(model.into()),
        threads,
        max_batch_size: 4,
        context_length: tokens + 64,
        cache_path: folder.map(String::from),
        kv_cache_bytes: kv,
        log_level: LOG_WARN,
        log: Some(Arc::new(|_: u32, text: &str| eprintln!("{text}"))),
        ..EngineConfig::default()
    })
}

/// Seconds to the first token, and the token.
fn first(engine: &Engine, ids: &[u32]) -> Result<(f64, Vec<u32>)> {
    let began = Instant::now();
    let mut request =
        RequestParams { prompt: Prompt::Tokens(ids.into()), max_new_tokens: 1, ..Default::default() };
    (request.sampling.temperature, request.ignore_eos) = (0.0, true);
    let id = engine.submit(vec![request])?[0];
    let (mut out, mut done) = (Vec::new(), None);
    while done.is_none() {
        engine.poll(Which::One(id), 1, None, &mut |_, event| {
            out.extend_from_slice(&event.tokens);
            done = (event.finish != FinishReason::None).then(|| event.message.clone());
        })?;
    }
    let seconds = began.elapsed().as_secs_f64();
    engine.release(id)?;
    match done.filter(|message| !message.is_empty()) {
        Some(message) => Err(Error::internal(message)),
        None => Ok((seconds, out)),
    }
}

/// A text whose tokens differ by `seed`.
fn prompt(engine: &Engine, tokens: u32, seed: u32) -> Vec<u32> {
    let vocab = engine.facts().vocab_size as u32;
    (0..tokens).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 97)) % (vocab - 300)).collect()
}

fn measure(model: &str, folder: &str, tokens: u32, threads: u32) -> Result<()> {
    let wrong = |error: std::io::Error| Error::internal(format!("{folder}: {error}"));
    let cold = engine(model, folder, tokens, threads)?;
    let ids = prompt(&cold, tokens, 1);
    first(&cold, &prompt(&cold, 64, 2))?;
    let (computed, want) = first(&cold, &ids)?;
    let (memory, again) = first(&cold, &ids)?;
    let began = Instant::now();
    cold.destroy()?;
    let written = began.elapsed().as_secs_f64();
    let files = files(Path::new(folder)).map_err(wrong)?;
    let bytes: u64 = files.iter().filter_map(|file| fs::metadata(file).ok()).map(|facts| facts.len()).sum();
    let dropped = drop_caches();
    let began = Instant::now();
    files.iter().try_for_each(|file| fs::read(file).map(drop)).map_err(wrong)?;
    let rate = bytes as f64 / began.elapsed().as_secs_f64();
    drop_caches();
    let warm = engine(model, folder, tokens, threads)?;
    first(&warm, &prompt(&warm, 64, 3))?;
    let (disk, restarted) = first(&warm, &ids)?;
    let stats = warm.stats();
    let same = [&again, &restarted].iter().all(|other| **other == want);
    println!("{tokens} tokens; {} files of {} MB; page cache {dropped}", files.len(), bytes / 1_000_000);
    println!("first token: computed {computed:.2} s, from memory {memory:.3} s, after a restart {disk:.3} s");
    println!("{:.1} times as fast as computing; answers equal: {same}", computed / disk);
    println!(
        "{} tokens read, {:.0} MB/s to the first token, {:.0} MB/s within reads; the files alone {:.0} MB/s; written in {written:.2} s",
        stats.disk_tokens,
        stats.disk_read_bytes as f64 / disk / 1e6,
        stats.disk_read_bytes as f64 / stats.disk_read_ns as f64 * 1e3,
        rate / 1e6,
    );
    Ok(())
}

/// The second turns of conversations that memory has no room for.
fn take_turns(model: &str, folder: &str, tokens: u32, threads: u32, conversations: u32) -> Result<()> {
    for folder in [None, Some(folder)] {
        let engine = engine_with(model, folder, tokens + 64, threads, 1 << 30)?;
        let turn =
            |conversation: u32, tokens: u32| first(&engine, &prompt(&engine, tokens, 10 + conversation));
        let began = Instant::now();
        for conversation in 0..conversations {
            turn(conversation, tokens)?;
        }
        let (before, first_turns) = (engine.stats(), began.elapsed().as_secs_f64());
        let mut seconds = Vec::new();
        for conversation in 0..conversations {
            seconds.push(turn(conversation, tokens + 64)?.0);
        }
        let stats = engine.stats();
        seconds.sort_by(f64::total_cmp);
        println!(
            "{}: first turns {first_turns:.1} s; second turns {:.1} s, first tokens {:.3} to {:.3} s, median {:.3}; {} tokens \
             computed, {} cached, {} of them from disk",
            folder.map_or("in memory alone", |_| "with a prompt cache"),
            seconds.iter().sum::<f64>(),
            seconds[0],
            seconds[seconds.len() - 1],
            seconds[seconds.len() / 2],
            stats.prompt_tokens - before.prompt_tokens,
            stats.cached_tokens - before.cached_tokens,
            stats.disk_tokens - before.disk_tokens,
        );
        engine.destroy()?;
    }
    Ok(())
}

fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => all.extend(files(&path)?),
            false => all.push(path),
        }
    }
    Ok(all)
}

/// Whether the system's page cache was dropped.
fn drop_caches() -> &'static str {
    // SAFETY: `sync` has no conditions.
    unsafe { libc::sync() };
    match fs::write("/proc/sys/vm/drop_caches", "3") {
        Ok(()) => "dropped",
        Err(_) => "kept",
    }
}
