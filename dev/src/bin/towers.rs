//! A vision tower alone: the time that it takes for a square picture.
//!
//!   towers MMPROJ.gguf [--side PIXELS] [--threads N] [--rounds N] [--isa NAME] [--turns] [--write FILE]
//!
//! Prints the median seconds of a run, from prepared patches to soft tokens, and how many of them attention takes.
//! --write names a file for the soft tokens, in f32. --turns is for `dev/peers/towers.py`: a run for each line on standard input.

use bn_dev::median;
use bn_engine::base::Result;
use bn_engine::kernels::{Isa, Pool};
use bn_engine::model::{Source, Tower, load_tower};
use bn_engine::ops::CpuOps;
use bn_engine::picture::{Grid, Pixels};
use std::time::Instant;

struct Options {
    file: String,
    side: u32,
    threads: usize,
    rounds: usize,
    isa: Option<Isa>,
    turns: bool,
    write: Option<String>,
}

fn parse() -> Option<Options> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (turns, write) = (false, None);
    let (file, isa) = (String::new(), None);
    let mut options = Options { file, side: 1024, threads, rounds: 3, isa, turns, write };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next()?.parse().ok().filter(|n: &u32| *n > 0);
        match arg.as_str() {
            "--side" => options.side = number()?,
            "--threads" => options.threads = number()? as usize,
            "--rounds" => options.rounds = number()? as usize,
            "--isa" => options.isa = Some(Isa::named(&args.next()?)?),
            "--turns" => options.turns = true,
            "--write" => options.write = Some(args.next()?),
            _ if !arg.starts_with('-') => options.file = arg,
            _ => return None,
        }
    }
    (!options.file.is_empty()).then_some(options)
}

fn main() {
    let Some(options) = parse() else {
        eprintln!(
            "towers MMPROJ.gguf [--side PIXELS] [--threads N] [--rounds N] [--isa NAME] [--turns] \
             [--write FILE]"
        );
        std::process::exit(2);
    };
    if let Err(error) = run(&options) {
        eprintln!("towers: {error}");
        std::process::exit(1);
    }
}

/// A tower with a picture's patches.
struct Bench {
    tower: Tower,
    ops: CpuOps,
    rows: Vec<f32>,
    grids: Vec<Grid>,
}

fn run(options: &Options) -> Result<()> {
    let pool = Pool::new(options.threads)?;
    let source = Source::File(options.file.clone());
    let tower = load_tower(&source, 0, &pool, &|_, _| (), &mut |_, _| false)?.expect("an mmproj file");
    let ops = match options.isa {
        Some(isa) => CpuOps::with_isa(pool, isa)?,
        None => CpuOps::new(pool),
    };
    // The same picture as dev/peers/towers.py has.
    let rgb = (0..options.side * options.side * 3).map(|i| (i * 37 % 251) as u8).collect();
    let pixels = Pixels::new(options.side, options.side, rgb)?;
    let plan = tower.processor().plan(options.side, options.side)?;
    let mut rows = Vec::new();
    tower.processor().prepare(&pixels, &plan, &mut rows)?;
    let bench = Bench { tower, ops, rows, grids: plan.grids };
    let (_, out) = bench.run()?;
    if let Some(path) = &options.write {
        let bytes: Vec<u8> = out.iter().flat_map(|x| x.to_le_bytes()).collect();
        std::fs::write(path, bytes).expect("a file for the soft tokens");
    }
    if options.turns {
        println!("ready");
        for _ in std::io::stdin().lines() {
            println!("{:.6}", bench.run()?.0.iter().sum::<f64>());
        }
        return Ok(());
    }
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        rounds.push(bench.run()?.0);
    }
    let of = |part: &dyn Fn(&[f64]) -> f64| median(rounds.iter().map(|round| part(round)).collect());
    let patches: u32 = bench.grids.iter().map(|grid| grid.rows * grid.cols).sum();
    let (all, attention) = (of(&|round| round.iter().sum()), of(&|round| round[1]));
    println!("{patches} patches, {}: {all:.3} s, attention {attention:.3} s", bench.ops.isa().name());
    Ok(())
}

impl Bench {
    /// The seconds of products and of attention, and the soft tokens.
    fn run(&self) -> Result<([f64; 2], Vec<f32>)> {
        let (mut seconds, mut out) = ([0.0; 2], Vec::new());
        let mut run = self.tower.begin(&[(&self.rows, &self.grids)])?;
        loop {
            let (start, attends) = (Instant::now(), self.tower.attends_next(&run));
            let more = self.tower.advance(&mut run, &self.ops, u64::MAX, &mut || false)? > 0;
            seconds[usize::from(attends)] += start.elapsed().as_secs_f64();
            if !more {
                break;
            }
        }
        self.tower.append(run, &mut out)?;
        Ok((seconds, out))
    }
}
