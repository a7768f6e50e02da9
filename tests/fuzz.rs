//! Files that nobody made in good faith: the fuzz corpora replayed, and 50,000 mutants of each format.
//!
//! An input may be refused, in a sentence of one line; it must not panic, take 2 s, or allocate more than twice its
//! bytes and a constant.

mod common;
#[path = "../fuzz/grammar.rs"]
mod grammar;
#[path = "../fuzz/inputs.rs"]
mod inputs;

use bn_engine::base::Status;
use common::Rng;
use inputs::{TARGETS, Target, WHAT};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MUTANTS: usize = 50_000;
/// Of each grammar, unless BN_FUZZ_SEEDS says how many.
const GENERATED: usize = 1500;
/// Bytes.
const LONGEST_MESSAGE: usize = 1500;
const LONGEST: Duration = Duration::from_secs(2);

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// Runs targets.
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// What all threads hold that run no targets: those that targets start.
static OTHERS: AtomicIsize = AtomicIsize::new(0);
static OTHERS_PEAK: AtomicIsize = AtomicIsize::new(0);

/// Counts what each thread that runs targets holds, and the others together.
struct Counting;

fn count(bytes: isize) {
    if OWN.get() {
        LIVE.set(LIVE.get() + bytes);
        PEAK.set(PEAK.get().max(LIVE.get()));
    } else {
        OTHERS_PEAK.fetch_max(OTHERS.fetch_add(bytes, Relaxed) + bytes, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with its arguments; besides, only thread locals without
// destructors are touched. The default realloc and alloc_zeroed come through these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes that a target may hold beside twice its input: what a small input's tables and threads' buffers take.
fn constant(target: &str) -> usize {
    match target {
        // The package's tables for the characters of a tokenizer.
        "tokenizer_json" | "pattern" => 16 << 20,
        // What a rendering may take (`text::chat`), at most twice at once as strings grow, and the parser's tree.
        "template" | "tokenizer_side_files" => 24 << 20,
        _ => 4 << 20,
    }
}

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = common::root().join("fuzz/corpus").join(target);
    let list = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = list.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no corpus for {target}");
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name, std::fs::read(&path).expect("a corpus file"))
    };
    files.into_iter().map(read).collect()
}

/// Runs a target, holds it to its bounds and says whether it took the input.
fn run((name, target): Target, input: &[u8], which: &dyn Fn() -> String) -> bool {
    OWN.set(true);
    let (live, others, start) = (LIVE.get(), OTHERS.load(Relaxed), Instant::now());
    PEAK.set(live);
    OTHERS_PEAK.store(others, Relaxed);
    let result = catch_unwind(AssertUnwindSafe(|| target(input)));
    // Of other tests' threads too where they run at once: the bound holds for all together.
    let others = (OTHERS_PEAK.load(Relaxed) - others).max(0) as usize;
    let (took, peak) = (start.elapsed(), (PEAK.get() - live) as usize + others);
    let Ok(result) = result else { panic!("{name}: {} panicked", which()) };
    assert!(took < LONGEST, "{name}: {} took {took:?}", which());
    let bound = 2 * input.len() + constant(name);
    assert!(peak <= bound, "{name}: {} of {} bytes made the library hold {peak}", which(), input.len());
    if let Err(error) = &result {
        assert!(error.status != Status::Internal, "{name}: {}: {error}", which());
        let length = WHAT.len() + 5..LONGEST_MESSAGE;
        assert!(length.contains(&error.message.len()), "{name}: {}: {error}", which());
        assert!(!error.message.contains(char::is_control), "{name}: {}: {error:?}", which());
        let names = [WHAT, "chat template", "chat_template"].iter().any(|what| error.message.contains(what));
        assert!(names, "{name}: {} names no file: {error}", which());
        keep(name, error);
    }
    result.is_ok()
}

/// With BN_FUZZ_MESSAGES, the name of a folder, the targets' messages are written there to be read.
fn keep(name: &str, error: &bn_engine::base::Error) {
    let Some(folder) = std::env::var_os("BN_FUZZ_MESSAGES") else { return };
    let path = PathBuf::from(folder).join(name);
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    writeln!(file.expect("BN_FUZZ_MESSAGES"), "{error}").expect("BN_FUZZ_MESSAGES");
}

/// One to four changes of the kinds that found bugs elsewhere: bits, counts, cuts, copies, and pieces of other files.
fn mutate(rng: &mut Rng, seed: &[u8], other: &[u8], text: bool) -> Vec<u8> {
    const NUMBERS: [u64; 12] = [
        0,
        1,
        2,
        0x7f,
        0xff,
        0xffff,
        0x7fff_ffff,
        0xffff_ffff,
        1 << 40,
        u64::MAX,
        u64::MAX - 7,
        i64::MAX as u64,
    ];
    const WORDS: [&str; 16] = [
        "null",
        "-1",
        "1e999",
        "0",
        "\"\"",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "\"",
        "\\u0000",
        "true",
        "99999999999",
        "\"..\"",
    ];
    let mut out = seed.to_vec();
    for _ in 0..1 + rng.below(4) {
        if out.is_empty() {
            return out;
        }
        let at = rng.below(out.len());
        match rng.below(if text { 8 } else { 6 }) {
            0 => out[at] ^= 1 << rng.below(8),
            1 => out[at] = rng.next() as u8,
            2 => out.truncate(at),
            3 => {
                let number = NUMBERS[rng.below(NUMBERS.len())].to_le_bytes();
                let width = [1, 2, 4, 8][rng.below(4)].min(out.len() - at);
                out[at..at + width].copy_from_slice(&number[..width]);
            }
            4 => {
                let end = (at + 1 + rng.below(64)).min(out.len());
                let piece = out[at..end].to_vec();
                let to = rng.below(out.len());
                out.splice(to..to, piece);
            }
            5 => {
                let from = rng.below(other.len().max(1)).min(other.len());
                let end = (from + 1 + rng.below(64)).min(other.len());
                let width = (end - from).min(out.len() - at);
                out.splice(at..at + width, other[from..end].iter().copied());
            }
            6 => {
                let word = WORDS[rng.below(WORDS.len())];
                out.splice(at..at, word.bytes());
            }
            // A JSON value becomes another.
            _ => {
                let end = out[at..].iter().position(|b| b",]}".contains(b)).map_or(out.len(), |n| at + n);
                let start = out[..at].iter().rposition(|b| b":[,".contains(b)).map_or(0, |n| n + 1);
                let word = WORDS[rng.below(WORDS.len())];
                out.splice(start..end.max(start), word.bytes());
            }
        }
    }
    out
}

/// The corpus, then its mutants; at least one file of it must be good, or the mutants try nothing.
fn check(name: &str) {
    let target = *TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    let files = corpus(name);
    let taken: Vec<_> = files.iter().filter(|(file, bytes)| run(target, bytes, &|| file.clone())).collect();
    assert!(!taken.is_empty(), "{name}: no file of the corpus is taken");
    let mut rng = Rng(0x5eed ^ name.len() as u64);
    for n in 0..MUTANTS {
        // Most of good files, as a change in a bad one seldom gets any further.
        let (file, bytes) = match rng.below(4) {
            0 => &files[rng.below(files.len())],
            _ => taken[rng.below(taken.len())],
        };
        let other = &files[rng.below(files.len())].1;
        let text = bytes.first() == Some(&b'{');
        let mutant = mutate(&mut rng, bytes, other, text);
        run(target, &mutant, &|| {
            let path = std::env::temp_dir().join(format!("bn-fuzz-{name}-{n}"));
            let kept = std::fs::write(&path, &mutant).map(|()| path.display().to_string());
            format!("mutant {n} of {file} (kept as {kept:?})")
        });
    }
}

/// Inputs by a grammar; some of them must be good, or they try nothing.
fn check_generated(
    name: &'static str,
    target: fn(&[u8]) -> bn_engine::base::Result<()>,
    make: fn(grammar::Choose) -> String,
) {
    let seeds = std::env::var("BN_FUZZ_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(GENERATED);
    let mut taken = 0;
    for seed in 0..seeds {
        let mut rng = Rng(0x9e37_79b9 ^ (seed as u64) << 20);
        let input = make(&mut |n| rng.below(n));
        taken += usize::from(run((name, target), input.as_bytes(), &|| format!("seed {seed}: {input}")));
    }
    println!("{name}: {taken} of {seeds} taken");
    assert!(taken > seeds / 50, "{name}: {taken} of {seeds} were taken");
}

#[test]
fn generated_templates() {
    check_generated("template", inputs::template, grammar::template);
}

#[test]
fn generated_patterns() {
    check_generated("pattern", inputs::pattern, grammar::pattern);
}

macro_rules! targets {
    ($($test:ident => $name:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            check($name);
        })*

        #[test]
        fn every_target_has_its_test_and_its_binary() {
            let tested = [$($name),*];
            let known: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(tested.to_vec(), known);
            let manifest = std::fs::read_to_string(common::root().join("fuzz/Cargo.toml")).expect("fuzz/Cargo.toml");
            for name in known {
                assert!(manifest.contains(&format!("name = \"{name}\"")), "fuzz/Cargo.toml lacks {name}");
                let path = common::root().join(format!("fuzz/fuzz_targets/{name}.rs"));
                assert!(path.is_file(), "{}", path.display());
            }
        }
    };
}

targets! {
    gguf => "gguf",
    tokenizer_gguf => "tokenizer_gguf",
    tokenizer_json => "tokenizer_json",
    safetensors => "safetensors",
    index => "index",
    config => "config",
    tokenizer_side_files => "tokenizer_side_files",
    kernel_config => "kernel_config",
    template => "template",
}
