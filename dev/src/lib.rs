//! Shared by the developer programs in `bin/`: options, medians, the machine's limits, random weights.
//!
//! The speed of a machine drifts; that of a virtual one by half and more within minutes. So compared runs
//! alternate, and a ratio is the median of the rounds' ratios.

pub mod decode;
pub mod exact;
pub mod limits;
pub mod units;
pub mod weights;

use bn_engine::kernels::{Isa, available, isa};
use std::time::Instant;

/// Options of every target: `[--quick] [--json FILE] [--threads N] [--only WORD]... [--isa NAME]`
pub struct Options {
    /// Fewer shapes and rounds.
    pub quick: bool,
    /// "kernels" asks for rounds on standard input.
    pub turns: bool,
    pub json: Option<String>,
    /// The most threads; by default the CPUs that this process may use.
    pub threads: usize,
    /// Instruction set of the kernels; by default the best that the machine has.
    pub isa: Isa,
    /// Runs only cases with one of these words in their names; empty: all.
    pub only: Vec<String>,
}

impl Options {
    /// Ends the process if an argument is unknown.
    pub fn parse(target: &str) -> Self {
        let (options, files) = Self::with_files(target);
        if let Some(file) = files.first() {
            eprintln!("cargo dev {target}: what is {file}?");
            std::process::exit(2)
        }
        options
    }

    /// Also returns the arguments that are not options.
    pub fn with_files(target: &str) -> (Self, Vec<String>) {
        let mut files = Vec::new();
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let mut options =
            Self { quick: false, turns: false, json: None, threads, isa: isa(), only: Vec::new() };
        let mut args = std::env::args().skip(1);
        let usage = || -> ! {
            eprintln!(
                "cargo dev {target} -- [--quick] [--json FILE] [--threads N] [--only WORD]... [--isa NAME]"
            );
            std::process::exit(2)
        };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => options.quick = true,
                "--turns" if target == "kernels" => options.turns = true,
                "--json" => options.json = Some(args.next().unwrap_or_else(|| usage())),
                "--only" => options.only.push(args.next().unwrap_or_else(|| usage())),
                "--isa" => match args.next().and_then(|name| Isa::named(&name)) {
                    Some(isa) if available().contains(&isa) => options.isa = isa,
                    _ => {
                        let names: Vec<_> = available().iter().map(|isa| isa.name()).collect();
                        eprintln!("--isa: this machine has {}", names.join(", "));
                        std::process::exit(2)
                    }
                },
                "--threads" => match args.next().and_then(|n| n.parse().ok()) {
                    Some(n @ 1..=256) => options.threads = n,
                    _ => usage(),
                },
                file if !file.starts_with('-') => files.push(file.to_owned()),
                _ => usage(),
            }
        }
        (options, files)
    }

    pub fn rounds(&self) -> usize {
        if self.quick { 5 } else { 11 }
    }

    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word.as_str()))
    }

    /// Writes the results to the file of `--json`, if it was given.
    pub fn write(&self, value: &serde_json::Value) {
        let Some(path) = &self.json else { return };
        if let Err(error) = std::fs::write(path, format!("{value:#}\n")) {
            eprintln!("{path}: {error}");
            std::process::exit(1);
        }
    }
}

/// The median; for an even number of values the upper one, for none 0.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Seconds that `work` takes.
pub fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Seconds of CPU time that this process has used. With one thread a busy machine does not change them much.
pub fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Names of the instruction set and the machine, for the head of a report.
pub fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or(std::env::consts::ARCH, |(_, name)| name).trim().into()
}

/// Vigna's SplitMix64.
pub struct SplitMix(pub u64);

impl SplitMix {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.draw() % 4096) as f32 / 2048.0 - 1.0
    }
}
