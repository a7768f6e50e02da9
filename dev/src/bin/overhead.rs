//! Greedy decoding at batch 1, through the engine or as bare forward passes. For dev/overhead.sh, which counts instructions.
//!
//!   overhead bare|engine TOKENS [model.gguf]
//!
//! Without a file it runs the embedded model. It uses one compute thread, so that no thread spins.

use bn_engine::base::{Error, Result};
use bn_engine::engine::Engine;
use bn_engine::engine::api::{EngineConfig, FinishReason, Prompt, RequestParams, Which};
use bn_engine::kernels::Pool;
use bn_engine::model::{LoadOptions, Outputs, Source, load};
use bn_engine::ops::{CpuOps, HostMemory, MemoryLayout, RaggedBatch, SeqRows};

const BLOCK: usize = 32;
const PROMPT: [u32; 4] = [3, 5, 7, 11];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let tokens = args.get(1).and_then(|n| n.parse().ok()).filter(|n| *n > 0);
    let model = args.get(2).map(String::as_str);
    let done = match (args.first().map(String::as_str), tokens) {
        (Some("bare"), Some(tokens)) => bare(tokens, model),
        (Some("engine"), Some(tokens)) => engine(tokens, model),
        // Lets a plain `cargo bench` skip this program.
        (None, None) => return println!("run dev/overhead.sh"),
        _ => {
            eprintln!("overhead bare|engine TOKENS [model.gguf]");
            std::process::exit(2)
        }
    };
    if let Err(error) = done {
        eprintln!("overhead: {error}");
        std::process::exit(1);
    }
}

/// The prompt in one pass, then a row a pass.
fn bare(tokens: usize, path: Option<&str>) -> Result<()> {
    let pool = Pool::new(1)?;
    let loaded = load(&Source::parse(path)?, &LoadOptions::default(), &pool, &|_, _| (), &mut |_, _| false)?;
    let (model, ops) = (loaded.model, CpuOps::new(pool));
    let blocks = (PROMPT.len() + tokens).div_ceil(BLOCK);
    let kv = model.kv_shape().layout(EngineConfig::default().kv_type, blocks, BLOCK);
    let mut memory = HostMemory::new(MemoryLayout::of(kv))?;
    let (mut batch, mut out) = (RaggedBatch::default(), Outputs::default());
    for step in 0..tokens {
        let (tokens, first) = match step {
            0 => (&PROMPT[..], 0),
            _ => (&PROMPT[..1], PROMPT.len() + step - 1),
        };
        batch.clear();
        batch.tokens.extend(tokens);
        batch.positions.extend((first..first + tokens.len()).map(|p| p as u32));
        batch.block_tables.extend(0..blocks as u32);
        let rows = tokens.len() as u32;
        batch.seqs.push(SeqRows { row: 0, rows, table: 0, table_len: blocks as u32 });
        batch.logits_rows.push(rows - 1);
        model.forward(&ops, &batch, &mut memory, &mut || false, &mut out)?;
    }
    Ok(())
}

/// The same number of passes, each token streamed to a poll.
fn engine(tokens: usize, path: Option<&str>) -> Result<()> {
    let engine = Engine::create(EngineConfig {
        model_path: path.map(String::from),
        threads: 1,
        max_batch_size: 1,
        context_length: (PROMPT.len() + tokens) as u32,
        ..EngineConfig::default()
    })?;
    let mut request = RequestParams {
        prompt: Prompt::Tokens(PROMPT[..].into()),
        max_new_tokens: tokens as u32,
        ignore_eos: true,
        ..RequestParams::default()
    };
    request.sampling.temperature = 0.0;
    let id = engine.submit(vec![request])?[0];
    let (mut given, mut finish) = (0, FinishReason::None);
    while finish == FinishReason::None {
        let mut polled = 0;
        engine.poll(Which::Any, 64, None, &mut |lease, event| {
            given += event.tokens.len();
            (finish, polled) = (event.finish, lease);
        })?;
        engine.give_back(&mut [(id, polled)].into_iter());
    }
    if finish != FinishReason::Length || given != tokens {
        return Err(Error::internal(format!("{given} tokens of {tokens}, and {finish:?}")));
    }
    engine.destroy()
}
