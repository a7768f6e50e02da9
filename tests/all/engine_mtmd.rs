//! Whole models that see, in two GGUF files, beside llama.cpp's mtmd (tools/golden/mtmd.py).

use crate::common::load_source;
use crate::engine_pictures::picture;
use crate::engine_support::*;
use bn_engine::engine::api::*;
use bn_engine::model::{LoadOptions, Source};
use bn_engine::sample::SamplingParams;
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    model: String,
    tower: String,
    /// The id of soft tokens.
    soft: u32,
    tolerance: f64,
    sequences: Vec<Sequence>,
}

#[derive(Deserialize)]
struct Sequence {
    text: String,
    /// Width and height.
    pictures: Vec<[u32; 2]>,
    positions: usize,
    /// Tokens of text whose predecessor is text.
    tokens: Vec<u32>,
    logprobs: Vec<f64>,
}

#[test]
fn log_probabilities_are_those_of_llama_cpp() {
    let bytes = std::fs::read("tests/golden/mtmd/index.json").unwrap();
    let golden: Golden = serde_json::from_slice(&bytes).unwrap();
    for case in &golden.cases {
        let options = LoadOptions { pictures: Some(case.tower.clone()), ..Default::default() };
        let model = load_source(&Source::File(case.model.clone()), &options, 1).unwrap().loaded;
        let engine = create(EngineConfig {
            model: Some(model),
            kv_type: KvType::F32,
            context_length: 128,
            max_batch_size: 1,
            ..Default::default()
        })
        .unwrap();
        let mut number = 0;
        for sequence in &case.sequences {
            let pictures = sequence.pictures.iter().map(|size| {
                number += 1;
                picture(*size, number - 1)
            });
            let answer = ask(
                &engine,
                RequestParams {
                    prompt: Prompt::Text(sequence.text.clone().into()),
                    parse_special: true,
                    pictures: pictures.collect(),
                    scores: Some(ScoreParams { from: 0, generates: false }),
                    sampling: SamplingParams { logprobs: true, ..Default::default() },
                    ..Default::default()
                },
            );
            assert_eq!(answer.message, "");
            assert_eq!(answer.tokens.len(), sequence.positions, "{}: {}", case.model, sequence.text);
            let follows = |at: &usize| ![at - 1, *at].iter().any(|at| answer.tokens[*at] == case.soft);
            let scored: Vec<usize> = (1..answer.tokens.len()).filter(follows).collect();
            let tokens: Vec<u32> = scored.iter().map(|at| answer.tokens[*at]).collect();
            assert_eq!(tokens, sequence.tokens, "{}: {}", case.model, sequence.text);
            assert_eq!(scored.len(), sequence.logprobs.len());
            for (at, want) in scored.iter().zip(&sequence.logprobs) {
                let got = f64::from(f32::from_bits(answer.logprob_bits[*at].1));
                let off = (got - want).abs() / want.abs().max(1.0);
                assert!(off <= case.tolerance, "{} at {at}: {got} for {want}", case.model);
            }
        }
    }
}
