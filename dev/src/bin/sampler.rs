//! Measures the cost of sampling a token: microseconds per row of logits on one thread, for each sampler and whole
//! chains.
//!
//! `cargo dev sampler -- [--quick] [--only WORD] [--json FILE] [model.gguf]`
//!
//! With a model, also measures the cost in a step of 32 sequences: greedy and each of `CHAINS` decode in turns.
//!
//! The vocabulary is BitNet 2B-4T's; `CHAINS` also run with those of Qwen 3 and Gemma 3. Logits are random with a few
//! likely ones, as a language model's are; 512 tokens of prompt and 512 of output are known.

use bn_dev::decode::finish;
use bn_dev::{Options, SplitMix, machine, median, seconds};
use bn_engine::base::Result;
use bn_engine::engine::Engine;
use bn_engine::engine::api::{EngineConfig, Prompt, RequestParams};
use bn_engine::kernels::Pool;
use bn_engine::model::{LoadOptions, Source, load};
use bn_engine::sample::{Known, Sampler, SamplerState, SamplingParams};
use serde_json::json;

const VOCABS: [usize; 3] = [128_256, 151_936, 262_144];
const KNOWN: usize = 512;
/// Rows, more than caches hold.
const ROWS: usize = 32;

type Set = fn(&mut SamplingParams);

const CASES: [(&str, Set); 21] = [
    ("greedy", |p| p.temperature = 0.0),
    ("greedy, 5 log probabilities", |p| (p.temperature, p.top_logprobs) = (0.0, 5)),
    ("temperature alone", |_| {}),
    ("top_k 40", |p| p.top_k = 40),
    ("top_p 0.95", |p| p.top_p = 0.95),
    ("min_p 0.05", |p| p.min_p = 0.05),
    ("typical_p 0.95", |p| p.typical_p = 0.95),
    ("top_n_sigma 1", |p| p.top_n_sigma = 1.0),
    ("xtc", |p| p.xtc_probability = 1.0),
    ("temperature_range 0.5", |p| p.temperature_range = 0.5),
    ("mirostat", |p| p.mirostat_tau = 5.0),
    ("penalties", |p| (p.temperature, p.repetition_penalty, p.presence_penalty) = (0.0, 1.1, 0.5)),
    ("dry", |p| (p.temperature, p.dry.multiplier) = (0.0, 0.8)),
    ("300 logit_bias", |p| (p.temperature, p.logit_bias) = (0.0, (0..300).map(|i| (i * 400, 1.0)).collect())),
    ("top_k 40, top_p 0.95, min_p 0.05", |p| (p.top_k, p.top_p, p.min_p) = (40, 0.95, 0.05)),
    ("top_p 0.95, 5 log probabilities", |p| (p.top_p, p.top_logprobs) = (0.95, 5)),
    ("all filters, top_k 40", |p| {
        (p.top_k, p.top_p, p.min_p, p.typical_p) = (40, 0.95, 0.05, 0.95);
        (p.top_n_sigma, p.xtc_probability, p.temperature_range) = (3.0, 0.5, 0.5);
    }),
    ("all filters but top_k", |p| {
        (p.top_p, p.min_p, p.typical_p) = (0.95, 0.05, 0.95);
        (p.top_n_sigma, p.xtc_probability, p.temperature_range) = (3.0, 0.5, 0.5);
    }),
    ("all filters, penalties, DRY, 5 log probabilities", |p| {
        (p.top_k, p.top_p, p.min_p, p.typical_p) = (40, 0.95, 0.05, 0.95);
        (p.top_n_sigma, p.xtc_probability, p.temperature_range) = (3.0, 0.5, 0.5);
        (p.repetition_penalty, p.presence_penalty, p.dry.multiplier, p.top_logprobs) = (1.1, 0.5, 0.8, 5);
    }),
    // Most of the vocabulary is likely.
    ("temperature 3, top_p 0.95", |p| (p.temperature, p.top_p) = (3.0, 0.95)),
    ("temperature 3, typical_p 0.95, top_p 0.95", |p| {
        (p.temperature, p.typical_p, p.top_p) = (3.0, 0.95, 0.95);
    }),
];

/// Names from `CASES` that are also measured in decoding.
const CHAINS: [&str; 5] = [
    "greedy",
    "top_k 40, top_p 0.95, min_p 0.05",
    "all filters but top_k",
    "all filters, penalties, DRY, 5 log probabilities",
    "temperature 3, typical_p 0.95, top_p 0.95",
];

/// Sums of uniform numbers, which are close to normal, and some tokens that stand out.
fn logits(random: &mut SplitMix, vocab: usize) -> Vec<f32> {
    let mut normal = || (0..6).map(|_| random.unit()).sum::<f32>() * 1.4;
    let mut row: Vec<f32> = (0..vocab).map(|_| normal()).collect();
    (0..20).for_each(|i| row[6007 * i] = 11.0 + normal());
    row
}

fn params(set: Set) -> SamplingParams {
    let mut params = SamplingParams { temperature: 0.8, seed: 1, ..Default::default() };
    set(&mut params);
    params
}

fn main() {
    let (options, files) = Options::with_files("sampler");
    println!("{}; medians of {}, one thread", machine(), options.rounds());
    let report: Vec<_> = VOCABS.into_iter().flat_map(|vocab| rows(vocab, &options)).collect();
    let steps = files.first().map(|path| steps(path, &options)).transpose().unwrap_or_else(|error| {
        eprintln!("sampler: {error}");
        std::process::exit(1)
    });
    options.write(&json!({ "machine": machine(), "samplers": report, "steps": steps }));
}

/// Microseconds of a row of `vocab` logits: all cases with the first vocabulary, `CHAINS` with others.
fn rows(vocab: usize, options: &Options) -> Vec<serde_json::Value> {
    println!("{:<52} {:>10}", format!("sampler, {vocab} tokens"), "us/token");
    let mut random = SplitMix(5);
    let mut rows: Vec<Vec<f32>> = (0..ROWS).map(|_| logits(&mut random, vocab)).collect();
    let prompt: Vec<u32> = (0..KNOWN).map(|_| (random.draw() % 200) as u32).collect();
    let output: Vec<u32> = (0..KNOWN).map(|_| (random.draw() % 200) as u32).collect();
    let known = Known { prompt: &prompt, output: &output, ends: &[], ..Default::default() };
    let mut sampler = Sampler::new(vocab, 2 * KNOWN, options.isa).expect("room");
    let mut report = Vec::new();
    let wanted = |name: &str| options.wants(name) && (vocab == VOCABS[0] || CHAINS.contains(&name));
    for (name, set) in CASES.into_iter().filter(|(name, _)| wanted(name)) {
        let params = params(set);
        params.validate().expect("valid parameters");
        let mut round = || {
            let mut out = Vec::with_capacity(64);
            seconds(|| {
                for row in &mut rows {
                    let mut state = SamplerState::new(&params).expect("room");
                    state.read(&prompt, &output, &|_| b"token");
                    out.clear();
                    sampler.sample(&params, &mut state, row, &known, &mut out).expect("a token");
                }
            }) / ROWS as f64
        };
        round();
        let microseconds = 1e6 * median((0..options.rounds()).map(|_| round()).collect());
        println!("{name:<52} {microseconds:>10.1}");
        report.push(json!({ "vocabulary": vocab, "sampler": name, "microseconds": microseconds }));
    }
    report
}

/// Microseconds of a step of 32 sequences with each of `CHAINS`, and its time over that of the first in the same round.
fn steps(path: &str, options: &Options) -> Result<Vec<serde_json::Value>> {
    let pool = Pool::new(options.threads)?;
    let source = Source::parse(Some(path))?;
    let model = Some(load(&source, &LoadOptions::default(), &pool, &|_, _| (), &mut |_, _| false)?);
    let config =
        EngineConfig { model, threads: options.threads as u32, context_length: 512, ..Default::default() };
    let engine = Engine::create(config)?;
    let sampling = |name: &str| CASES.iter().find(|(case, _)| *case == name).map(|(_, set)| params(*set));
    let decode = |name: &str, tokens: usize| -> Result<f64> {
        let request = |seed| RequestParams {
            prompt: Prompt::Text("A".into()),
            max_new_tokens: tokens as u32,
            sampling: SamplingParams { seed, ..sampling(name).unwrap_or_default() },
            ignore_eos: true,
            ..Default::default()
        };
        let mut done = Ok(());
        let requests = (0..ROWS as u64).map(request).collect();
        let took = seconds(|| done = engine.submit(requests).and_then(|_| finish(&engine, ROWS)));
        done.map(|()| took)
    };
    // Without the prompts' time.
    const TOKENS: usize = 12;
    let step = |name| Ok((decode(name, TOKENS + 1)? - decode(name, 1)?) / TOKENS as f64);
    let mut rounds: Vec<[f64; CHAINS.len()]> = Vec::new();
    step(CHAINS[0])?;
    for _ in 0..options.rounds() {
        let mut round = [0.0; CHAINS.len()];
        for (time, name) in round.iter_mut().zip(CHAINS) {
            *time = step(name)?;
        }
        rounds.push(round);
    }
    println!("{:<52} {:>10} {:>10}", "step of 32 sequences", "ms", "of greedy");
    let report = CHAINS.iter().enumerate().map(|(n, name)| {
        let time = 1e3 * median(rounds.iter().map(|round| round[n]).collect());
        let ratio = median(rounds.iter().map(|round| round[n] / round[0]).collect());
        println!("{name:<52} {time:>10.1} {ratio:>10.3}");
        json!({ "sampler": name, "milliseconds": time, "of_greedy": ratio })
    });
    let report = report.collect();
    engine.destroy()?;
    Ok(report)
}
