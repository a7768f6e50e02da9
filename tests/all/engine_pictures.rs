//! Pictures in prompts: the model's answers are transformers', and those of a request alone in any company.

use crate::engine_goldens::*;
use crate::engine_support::*;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::kernels::attention::KvType;
use bn_engine::sample::SamplingParams;
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    model: String,
    sequences: Vec<Case>,
    tolerance: f64,
}

#[derive(Deserialize)]
struct Case {
    ids: Vec<u32>,
    /// Width and height.
    pictures: Vec<[u32; 2]>,
    positions: usize,
}

const VOCAB: usize = 64;

fn golden() -> Golden {
    let bytes = std::fs::read("tests/golden/towers/seeing.json").unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn engine_of(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    engine(&golden().model, |config| {
        (config.kv_type, config.context_length) = (KvType::F32, 128);
        change(config);
    })
}

/// The `n`-th picture of the golden values.
fn picture([width, height]: [u32; 2], n: u32) -> Picture<'static> {
    let byte = |i: u32| {
        let value = i.wrapping_mul(2_654_435_761).wrapping_add(n * 40503);
        (value ^ (value >> 15)) as u8
    };
    Picture::Pixels { width, height, rgb: (0..width * height * 3).map(byte).collect::<Vec<u8>>().into() }
}

/// A request for each sequence.
fn requests(golden: &Golden) -> Vec<RequestParams<'static>> {
    let mut n = 0;
    let mut made = Vec::new();
    for case in &golden.sequences {
        let pictures = case.pictures.iter().map(|size| {
            n += 1;
            picture(*size, n - 1)
        });
        made.push(RequestParams {
            prompt: Prompt::Tokens(case.ids.clone().into()),
            pictures: pictures.collect(),
            max_new_tokens: 12,
            ignore_eos: true,
            sampling: SamplingParams { temperature: 0.0, logprobs: true, ..Default::default() },
            ..Default::default()
        });
    }
    made
}

#[test]
fn log_probabilities_are_those_of_transformers() {
    let golden = golden();
    let values: Vec<f32> = std::fs::read("tests/golden/towers/seeing.f32")
        .unwrap()
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    let engine = engine_of(|_| ());
    let mut rows = values.chunks_exact(VOCAB);
    for (case, request) in golden.sequences.iter().zip(requests(&golden)) {
        let scores = Some(ScoreParams { from: 0, generates: false });
        let answer = ask(&engine, RequestParams { scores, ..request });
        assert_eq!(answer.tokens.len(), case.positions);
        let mut expected = rows.by_ref().take(case.positions);
        let mut next = answer.logprob_bits.iter().skip(1);
        for _ in 1..case.positions {
            let row = expected.next().unwrap();
            let (token, bits) = *next.next().unwrap();
            let max = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = row.iter().map(|x| f64::from(x - max).exp()).sum();
            let want = f64::from(row[token as usize] - max) - sum.ln();
            let got = f64::from(f32::from_bits(bits));
            assert!((got - want).abs() <= golden.tolerance * want.abs().max(1.0), "{got} for {want}");
        }
        expected.next();
    }
}

#[test]
fn answers_are_the_same_in_any_company() {
    let golden = golden();
    let alone = |change: fn(&mut EngineConfig)| -> Vec<_> {
        let engine = engine_of(change);
        requests(&golden).into_iter().map(|request| outcome(&ask(&engine, request))).collect()
    };
    let want = alone(|_| ());
    assert_eq!(alone(|config| (config.max_batch_tokens, config.threads) = (5, 1)), want, "in chunks");
    let engine = engine_of(|config| config.max_batch_size = 17);
    let cached = |engine: &Engine| engine.stats().cached_tokens;
    for round in 0..2 {
        let all: Vec<_> = (0..17).flat_map(|_| requests(&golden)).take(17).collect();
        let ids = engine.submit(all).unwrap();
        let answers = collect(&engine, ids.len());
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(outcome(&answers[id]), want[at % want.len()], "request {at} of round {round}");
        }
    }
    assert!(cached(&engine) > 0, "{}", cached(&engine));
}
