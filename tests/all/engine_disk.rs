//! The prefix cache's tier on disk: prefixes outlive the engine and its memory, and whatever happens to the files, answers
//! are those without it.

use crate::common::rng::Rng;
use crate::engine_goldens::*;
use crate::engine_support::*;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PLAIN: &str = "tests/golden/llama-tiny-f32.gguf";
const HYBRID: &str = "tests/golden/models/qwen35";

/// Tokens, and the bits of their log probabilities.
pub type Outcome = (Vec<u32>, Vec<(u32, u32)>);

pub struct Temporary(PathBuf);

impl Temporary {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("bn-disk-{}-{n}", std::process::id())))
    }

    pub fn text(&self) -> Option<String> {
        Some(self.0.to_str().unwrap().to_owned())
    }

    /// All records, in the order of their names.
    fn records(&self) -> Vec<PathBuf> {
        let list = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> =
            list(&self.0).flat_map(|scope| list(&scope).collect::<Vec<_>>()).collect();
        files.retain(|file| file.file_name().unwrap() != "lock");
        files.sort();
        files
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The number of the environment variable `name`.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn on(model: &str, folder: Option<String>) -> Engine {
    engine(model, |config| {
        config.cache_path = folder;
        config.snapshot_interval = 32;
        config.max_batch_tokens = 32;
        config.context_length = 256;
    })
}

fn answer(engine: &Engine, ids: &[u32]) -> Outcome {
    outcome(&ask(engine, request(ids, 8)))
}

/// Prompts that begin alike.
fn prompts() -> Vec<Vec<u32>> {
    (0..6).map(|n| prompt(90, 100 + n, n)).collect()
}

/// The answers without a tier.
fn expected(model: &str) -> Vec<Outcome> {
    let engine = on(model, None);
    prompts()
        .iter()
        .map(|ids| outcome(&ask(&engine, RequestParams { cache: false, ..request(ids, 8) })))
        .collect()
}

/// Fills the folder, with the answers checked.
fn fill(model: &str, folder: &Temporary) {
    let engine = on(model, folder.text());
    let answers: Vec<_> = prompts().iter().map(|ids| answer(&engine, ids)).collect();
    assert_eq!(answers, expected(model));
    engine.destroy().unwrap();
    assert!(folder.records().len() >= 6, "{:?}", folder.records());
}

#[test]
fn prefixes_outlive_the_engine() {
    for model in [PLAIN, HYBRID] {
        let (folder, want) = (Temporary::new(), expected(model));
        fill(model, &folder);
        for (ids, want) in prompts().iter().zip(want) {
            let engine = on(model, folder.text());
            assert_eq!(answer(&engine, ids), want, "{model}");
            let stats = engine.stats();
            assert!(stats.disk_tokens >= 64, "{model}: {} tokens from disk", stats.disk_tokens);
            assert!(stats.cached_tokens >= 64 && stats.prompt_tokens < 64, "{model}: {stats:?}");
            assert!(stats.disk_read_bytes > 0 && stats.disk_damaged == 0 && stats.disk_fetches == 1);
        }
    }
}

#[test]
fn prefixes_that_memory_gave_up_come_back() {
    for model in [PLAIN, HYBRID] {
        let folder = Temporary::new();
        let one = on(model, None).stats();
        let small = one.kv_bytes / one.kv_blocks_total * 9;
        let engine = engine(model, |config| {
            config.cache_path = folder.text();
            (config.max_batch_tokens, config.context_length, config.snapshot_interval) = (32, 128, 32);
            config.kv_cache_bytes = small;
        });
        let ids: Vec<_> = (0..6).map(|n| prompt(0, 100, n)).collect();
        let first: Vec<_> = ids.iter().map(|ids| answer(&engine, ids)).collect();
        let again: Vec<_> = ids.iter().map(|ids| answer(&engine, ids)).collect();
        let stats = engine.stats();
        assert_eq!(first, again, "{model}");
        assert!(stats.kv_evictions > 20 && stats.disk_written_bytes > 0, "{model}: {stats:?}");
    }
}

#[test]
fn what_takes_long_to_compute_is_read() {
    let folder = Temporary::new();
    let engine = echo(|config| {
        (config.cache_path, config.kv_block_size) = (folder.text(), 16);
        (config.model_path, config.context_length) = (Some("builtin:echo?us_per_token=300".into()), 128);
        config.kv_cache_bytes = 16 * 16 * 9;
    });
    let texts: Vec<String> = (0..6u8).map(|n| format!("{}: {}", n, "abcdefghij".repeat(9))).collect();
    let ask = |prompt: &String| ask(&engine, text(prompt, 8)).text;
    let first: Vec<_> = texts.iter().map(ask).collect();
    let again: Vec<_> = texts.iter().map(ask).collect();
    assert_eq!(first, again);
    let stats = engine.stats();
    assert!(stats.disk_tokens > 300 && stats.kv_evictions > 20, "{stats:?}");
}

#[test]
fn damaged_files_change_no_answer() {
    let mut rng = Rng(11);
    for model in [PLAIN, HYBRID] {
        let (folder, want) = (Temporary::new(), expected(model));
        fill(model, &folder);
        for round in 0..number("BN_TEST_ROUNDS", if cfg!(debug_assertions) { 12 } else { 60 }) {
            for file in folder.records() {
                let mut bytes = fs::read(&file).unwrap();
                let at = rng.below(bytes.len().max(1) as u64) as usize;
                match (round + rng.below(3)) % 3 {
                    0 => bytes.truncate(at),
                    1 if !bytes.is_empty() => bytes[at] ^= 1 << rng.below(8),
                    _ => {}
                }
                fs::write(&file, bytes).unwrap();
            }
            let engine = on(model, folder.text());
            for (ids, want) in prompts().iter().zip(&want) {
                assert_eq!(answer(&engine, ids), *want, "{model}, round {round}");
            }
            engine.destroy().unwrap();
        }
    }
}

#[test]
fn engines_share_a_folder_and_other_models_ignore_it() {
    let (folder, want) = (Temporary::new(), expected(PLAIN));
    let [first, second] = [(); 2].map(|()| on(PLAIN, folder.text()));
    for _ in 0..2 {
        for (ids, want) in prompts().iter().zip(&want) {
            assert_eq!(answer(&first, ids), *want);
            assert_eq!(answer(&second, ids), *want);
        }
    }
    first.destroy().unwrap();
    second.destroy().unwrap();
    let records = folder.records().len();
    let types = engine(PLAIN, |config| {
        (config.cache_path, config.kv_type) = (folder.text(), KvType::F16);
        (config.max_batch_tokens, config.context_length) = (32, 256);
    });
    answer(&types, &prompts()[0]);
    assert_eq!(types.stats().disk_tokens, 0, "another type of K and V");
    types.destroy().unwrap();
    assert!(folder.records().len() > records);
    fill(HYBRID, &folder);
}

#[test]
fn salts_share_nothing_on_disk() {
    let folder = Temporary::new();
    fill(PLAIN, &folder);
    let engine = on(PLAIN, folder.text());
    let salted = RequestParams { cache_salt: 5, ..request(&prompts()[0], 8) };
    assert_eq!(outcome(&ask(&engine, salted)), expected(PLAIN)[0]);
    assert_eq!(engine.stats().disk_tokens, 0);
    let private = RequestParams { cache: false, ..request(&prompts()[0], 8) };
    ask(&engine, private);
    assert_eq!(engine.stats().disk_fetches, 0);
}

#[test]
fn a_cleared_cache_is_cleared_on_disk() {
    let folder = Temporary::new();
    fill(PLAIN, &folder);
    let engine = on(PLAIN, folder.text());
    engine.clear_cache().unwrap();
    answer(&engine, &prompts()[0]);
    assert_eq!(engine.stats().disk_fetches, 0);
    let before = Instant::now();
    while !folder.records().is_empty() && before.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(folder.records(), Vec::<PathBuf>::new());
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = Temporary::new();
    fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("file");
    fs::write(&file, "x").unwrap();
    let refused = |change: &dyn Fn(&mut EngineConfig)| {
        let mut config = EngineConfig { model_path: Some("builtin:echo".into()), ..Default::default() };
        change(&mut config);
        Engine::create(config).map(drop).unwrap_err()
    };
    let error = refused(&|config| config.cache_path = file.to_str().map(str::to_owned));
    assert_eq!(error.status, Status::Io);
    assert!(error.message.starts_with(&format!("cache_path = {}: ", file.display())), "{error}");
    let error = refused(&|config| (config.cache_path, config.cache_bytes) = (folder.text(), 0));
    assert_eq!(error.message, "cache_path is given, and cache_bytes is 0");
}

/// Run by `a_killed_process_leaves_nothing_wrong`: writes to the folder until it is killed.
#[test]
#[ignore = "a process for another test to kill"]
fn writes_until_it_is_killed() {
    let folder = std::env::var("BN_TEST_FOLDER").unwrap();
    let engine = engine(PLAIN, |config| {
        config.cache_path = Some(folder);
        (config.max_batch_tokens, config.context_length) = (64, 128);
        config.kv_cache_bytes = 1 << 20;
        config.threads = 1;
    });
    // The same prompts as the test's, and others that push them out.
    for n in 0.. {
        prompts().iter().for_each(|ids| drop(answer(&engine, ids)));
        for other in 0..8 {
            answer(&engine, &prompt(0, 110, 100 + n * 8 + other));
        }
    }
}

#[test]
fn a_killed_process_leaves_nothing_wrong() {
    let (folder, want) = (Temporary::new(), expected(PLAIN));
    let mut rng = Rng(3);
    for _ in 0..number("BN_TEST_KILLS", 6) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["engine_disk::writes_until_it_is_killed", "--exact", "--include-ignored"])
            .env("BN_TEST_FOLDER", &folder.0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while folder.records().is_empty() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_micros(rng.below(100_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let engine = on(PLAIN, folder.text());
        let answers: Vec<_> = prompts().iter().map(|ids| answer(&engine, ids)).collect();
        assert_eq!(answers, want);
        assert_eq!(engine.stats().disk_damaged, 0, "files are whole or not there");
    }
}
