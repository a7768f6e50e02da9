//! What it costs to sample a token: microseconds a row of logits on one thread, for each sampler and whole chains.
//!
//! `cargo dev sampler -- [--quick] [--only WORD] [--json FILE]`
//!
//! The vocabulary is BitNet 2B-4T's. Logits are random with a few likely ones, as a language model's are; 512 tokens of
//! prompt and 512 of output are known.

use bn_dev::{Options, SplitMix, machine, median, seconds};
use bn_engine::sample::{Known, Sampler, SamplerState, SamplingParams};
use serde_json::json;

const VOCAB: usize = 128_256;
const KNOWN: usize = 512;
/// Rows, more than caches hold.
const ROWS: usize = 32;

type Set = fn(&mut SamplingParams);

const CASES: [(&str, Set); 19] = [
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
];

/// Sums of uniform numbers, which are close to normal, and some tokens that stand out.
fn logits(random: &mut SplitMix) -> Vec<f32> {
    let mut normal = || (0..6).map(|_| random.unit()).sum::<f32>() * 1.4;
    let mut row: Vec<f32> = (0..VOCAB).map(|_| normal()).collect();
    (0..20).for_each(|i| row[6007 * i] = 11.0 + normal());
    row
}

fn main() {
    let options = Options::parse("sampler");
    println!("{}; medians of {}; {VOCAB} tokens, one thread", machine(), options.rounds());
    println!("{:<52} {:>10}", "sampler", "us/token");
    let mut random = SplitMix(5);
    let mut rows: Vec<Vec<f32>> = (0..ROWS).map(|_| logits(&mut random)).collect();
    let prompt: Vec<u32> = (0..KNOWN).map(|_| (random.draw() % 200) as u32).collect();
    let output: Vec<u32> = (0..KNOWN).map(|_| (random.draw() % 200) as u32).collect();
    let known = Known { prompt: &prompt, output: &output, ends: &[], ..Default::default() };
    let mut sampler = Sampler::new(VOCAB, 2 * KNOWN, options.isa).expect("room");
    let mut report = Vec::new();
    for (name, set) in CASES.into_iter().filter(|(name, _)| options.wants(name)) {
        let mut params = SamplingParams { temperature: 0.8, seed: 1, ..Default::default() };
        set(&mut params);
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
        report.push(json!({ "sampler": name, "microseconds": microseconds }));
    }
    options.write(&json!({ "machine": machine(), "samplers": report }));
}
