//! Measures the cost of LoRA adapters: a batch with several of them, against the same batch without, in
//! turns.
//!
//!   adapters MODEL.gguf [ROUNDS]
//!
//! 8 adapters of rank 8 in F16, for every linear layer, in a batch of 32; then one for all 32, and one
//! request alone. The time is from the first token of the slowest request to its last.

use bn_dev::{SplitMix, machine, median};
use bn_engine::base::Result;
use bn_engine::engine::Engine;
use bn_engine::engine::api::{Adapted, Adapter, EngineConfig, FinishReason, Prompt, RequestParams, Which};
use bn_engine::formats::gguf::writer::{Meta, write_file};
use bn_engine::kernels::DType;
use bn_engine::model::Facts;
use half::f16;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

const RANK: usize = 8;
const NEW: u32 = 16;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rounds = args.get(1).and_then(|n| n.parse().ok()).unwrap_or(5);
    let Some(model) = args.first().filter(|model| !model.starts_with("--")) else {
        // Lets a plain `cargo bench` skip this program.
        return println!("adapters MODEL.gguf [ROUNDS]");
    };
    if let Err(error) = run(model, rounds) {
        eprintln!("adapters: {error}");
        std::process::exit(1);
    }
}

fn run(model: &str, rounds: usize) -> Result<()> {
    println!("{}; {model}", machine());
    let engine = Engine::create(EngineConfig {
        model_path: Some(model.into()),
        context_length: 64,
        ..Default::default()
    })?;
    let path = std::env::temp_dir().join(format!("bn-adapter-{}.gguf", std::process::id()));
    let adapters = (0..8)
        .map(|n| {
            write(&path, engine.facts(), n)?;
            engine.open_adapter(&path.to_string_lossy()).map(Arc::new)
        })
        .collect::<Result<Vec<_>>>();
    let _ = std::fs::remove_file(&path);
    let adapters = adapters?;
    println!("{} MB for each adapter", adapters[0].bytes / 1_000_000);
    for (what, batch, some) in [
        ("8 adapters in 32", 32, &adapters[..]),
        ("1 adapter in 32", 32, &adapters[..1]),
        ("1 request", 1, &adapters[..1]),
    ] {
        time(&engine, batch, some)?;
        let mut ratios = Vec::new();
        for _ in 0..rounds {
            let without = time(&engine, batch, &[])?;
            ratios.push(without / time(&engine, batch, some)?);
        }
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        println!("{what}: {:.3} of the speed without (lowest {least:.3})", median(ratios));
    }
    Ok(())
}

/// The seconds that a batch decodes.
fn time(engine: &Engine, batch: usize, adapters: &[Arc<Adapter>]) -> Result<f64> {
    let request = |n: usize| RequestParams {
        prompt: Prompt::Tokens((0..8).map(|i| (n * 8 + i) as u32 % 1000 + 1).collect()),
        max_new_tokens: NEW,
        ignore_eos: true,
        stream: false,
        cache: false,
        adapter: (!adapters.is_empty())
            .then(|| Adapted { adapter: adapters[n % adapters.len()].clone(), scale: 1.0 }),
        ..Default::default()
    };
    let mut left = engine.submit((0..batch).map(request).collect())?.len();
    let mut slowest = 0;
    while left > 0 {
        let mut done = Vec::new();
        engine.poll(Which::Any, batch, None, &mut |lease, event| {
            assert_eq!(event.finish, FinishReason::Length, "{}", event.message);
            slowest = slowest.max(event.usage.decode_ns);
            done.push((event.request, lease));
        })?;
        left -= done.len();
        engine.give_back(&mut done.iter().copied());
        for (id, _) in done {
            engine.release(id)?;
        }
    }
    Ok(slowest as f64 / 1e9)
}

/// A random adapter, small enough not to change the model's numbers noticeably.
fn write(path: &Path, facts: &Facts, seed: u64) -> Result<()> {
    let (q, kv) = (facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim);
    let (hidden, ffn) = (facts.hidden_size, facts.ffn_size);
    let products = [
        ("attn_q", q, hidden),
        ("attn_k", kv, hidden),
        ("attn_v", kv, hidden),
        ("attn_output", hidden, q),
        ("ffn_gate", ffn, hidden),
        ("ffn_up", ffn, hidden),
        ("ffn_down", hidden, ffn),
    ];
    let pairs: [(String, Meta); 4] = [
        ("general.architecture".into(), facts.architecture.as_str().into()),
        ("general.type".into(), "adapter".into()),
        ("adapter.type".into(), "lora".into()),
        ("adapter.lora.alpha".into(), Meta::F32(0.01)),
    ];
    let mut tensors = Vec::new();
    for layer in 0..facts.layers {
        for (name, rows, cols) in products {
            let name = |part| format!("blk.{layer}.{name}.weight.lora_{part}");
            tensors.push((name("a"), vec![cols as u64, RANK as u64]));
            tensors.push((name("b"), vec![RANK as u64, rows as u64]));
        }
    }
    let mut random = SplitMix(seed);
    let data = |index: usize, out: &mut dyn Write| {
        let elements = tensors[index].1.iter().product::<u64>();
        let numbers = (0..elements).flat_map(|_| f16::from_f32(random.unit() - 0.5).to_le_bytes());
        out.write_all(&numbers.collect::<Vec<u8>>()).expect("a temporary file");
        Ok(DType::F16 as u32)
    };
    write_file(path, &pairs, &tensors, data, |_| Ok(()))
}
