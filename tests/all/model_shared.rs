//! One model shared by several engines: passes at the same time, each with its own operations.

use crate::common::{Running, Session, bits, load_source, root};
use bn_engine::kernels::{Pool, available};
use bn_engine::model::{LoadOptions, Source, WeightType};
use bn_engine::ops::CpuOps;
use std::sync::{Arc, Barrier};

fn sequences(from: u32) -> Vec<Vec<u32>> {
    (0..3).map(|s| (0..40 + 9 * s).map(|i| (from + 7 * i + 3 * s) % 60).collect()).collect()
}

fn run(model: &Running, sequences: &[Vec<u32>], chunk: usize) -> Vec<Vec<u32>> {
    let mut session = Session::new(model, sequences, 16, chunk as u64);
    session.interleave(chunk);
    bits(&session.logits)
}

/// Mapped weights, packed ones, and requantized ones.
#[test]
fn passes_at_the_same_time_give_the_bits_of_each_alone() {
    let q8 = LoadOptions { weights: WeightType::Q8_0, ..LoadOptions::default() };
    for (path, options) in [
        ("models/bn-demo.gguf", LoadOptions::default()),
        ("tests/golden/models/qwen2.gguf", LoadOptions::default()),
        ("tests/golden/models/gemma3.gguf", q8),
    ] {
        let source = Source::File(root().join(path).to_string_lossy().into_owned());
        let first = load_source(&source, &options, 1).expect(path);
        let prompts = [sequences(1), sequences(30), sequences(11)];
        let alone: Vec<_> = prompts.iter().map(|prompts| run(&first, prompts, 5)).collect();
        let start = Barrier::new(prompts.len());
        std::thread::scope(|scope| {
            for (n, (prompts, alone)) in prompts.iter().zip(&alone).enumerate() {
                let (loaded, start) = (first.loaded.clone(), &start);
                assert!(Arc::ptr_eq(&loaded.model, &first.model), "the weights are shared");
                let isa = available()[n % available().len()];
                let ops = CpuOps::with_isa(Pool::new(1 + n).unwrap(), isa).unwrap();
                let own = Running { loaded, ops: Arc::new(ops) };
                scope.spawn(move || {
                    start.wait();
                    for chunk in [3, 8] {
                        assert!(run(&own, prompts, chunk) == *alone, "{path}: on {} threads", n + 1);
                    }
                });
            }
        });
    }
}
