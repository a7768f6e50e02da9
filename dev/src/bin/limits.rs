//! The machine's limits with 1 to all threads: reading, int8 multiply-adds, f32 multiply-adds.
//!
//!   cargo dev limits -- [--quick] [--json FILE] [--threads N] [--isa NAME]

use bn_dev::limits::{Memory, rate};
use bn_dev::units::{Kind, of_kernels, units};
use bn_dev::{Options, machine, median};
use bn_engine::kernels::Pool;
use serde_json::json;

fn main() {
    let options = Options::parse("limits");
    let (memory, units) = (Memory::of_machine(), units());
    println!("{}; kernels use {}; {} MiB are read", machine(), options.isa.name(), memory.bytes() >> 20);
    println!("\n{:>7} {:>10} {:>13} {:<22} {:>14}", "threads", "what", "instructions", "", "a second");
    let mut results = Vec::new();
    for threads in counts(options.threads) {
        let pool = Pool::new(threads).expect("a pool");
        let (mut reads, mut rates) = (Vec::new(), vec![Vec::new(); units.len()]);
        for _ in 0..options.rounds() {
            reads.push(memory.read(&pool) / 1e9);
            for (unit, rates) in units.iter().zip(&mut rates) {
                rates.push(rate(&pool, unit) / 1e9);
            }
        }
        let read = median(reads);
        println!("{threads:>7} {:>10} {:>13} {:<22} {read:>10.1} GB", "read", "", "");
        let mut rows = Vec::new();
        for (unit, rates) in units.iter().zip(rates) {
            let rate = median(rates);
            let (kind, flops) = (unit.kind, if unit.kind == Kind::F32 { 2.0 } else { 1.0 });
            let word = if kind == Kind::F32 { "GFLOP" } else { "G MAC" };
            let used = of_kernels(options.isa, kind).isa == unit.isa;
            println!(
                "{threads:>7} {:>10} {:>13} {:<22} {:>10.1} {word}{}",
                kind.name(),
                unit.isa,
                unit.instructions,
                rate * flops,
                if used { " *" } else { "" }
            );
            rows.push(json!({"kind": kind.name(), "isa": unit.isa, "instructions": unit.instructions,
                "gmac_per_s": rate, "of_kernels": used}));
        }
        results.push(json!({"threads": threads, "read_gb_per_s": read, "rates": rows}));
    }
    println!("\n* what this library's kernels are built of on this machine");
    options.write(&json!({"machine": machine(), "kernels": options.isa.name(), "limits": results}));
}

/// 1, 2, 4 and so on, and `most`.
fn counts(most: usize) -> Vec<usize> {
    let powers = (0..).map(|n| 1 << n).take_while(|n| *n < most);
    powers.chain([most]).collect()
}
