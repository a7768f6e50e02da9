//! Invariant 3 through the engine: the same bytes and bitwise the same log probabilities, whatever else runs.

use crate::engine_support::*;
use bn_engine::engine::api::*;
use bn_engine::kernels::available;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

fn prompts() -> Vec<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/demo_prompts.json");
    let list: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let field = |p: &serde_json::Value, name: &str| p[name].as_str().unwrap().to_string();
    let of_kind = |kind: &'static str| {
        list.as_array()
            .unwrap()
            .iter()
            .filter(move |p| p["kind"] == kind)
            .map(|p| (field(p, "prompt"), field(p, "answer")))
            .take(32)
    };
    let all: Vec<_> = of_kind("sum").chain(of_kind("recall")).collect();
    assert_eq!(all.len(), 64, "32 sums and 32 recalls");
    all
}

fn request(prompt: &str) -> RequestParams<'_> {
    with_logprobs(text(prompt, 8))
}

/// One at a time, on one thread: the reference for every other way.
fn alone(prompts: &[(String, String)]) -> HashMap<String, Answer> {
    let engine = demo(|config| (config.max_batch_size, config.max_batch_tokens) = (1, 512));
    prompts.iter().map(|(prompt, _)| (prompt.clone(), ask(&engine, request(prompt)))).collect()
}

#[test]
fn sums_and_recalls_from_eight_threads_are_bitwise_what_they_are_alone() {
    let prompts = prompts();
    let expected = alone(&prompts);
    for (prompt, answer) in &prompts {
        assert_eq!(&expected[prompt].text, answer, "{prompt}");
    }
    for threads in [1, 2] {
        for (batch, tokens) in [(1, 1), (7, 7), (64, 64), (64, 512)] {
            let engine = demo(|config| {
                (config.threads, config.max_batch_size, config.max_batch_tokens) = (threads, batch, tokens);
                // The first step waits for all 64, however late a thread submits.
                config.max_wait_us = if batch == 64 { 1_000_000 } else { 0 };
            });
            let ids = Mutex::new(HashMap::new());
            let answers = std::thread::scope(|scope| {
                for part in prompts.chunks(8) {
                    let (engine, ids) = (&engine, &ids);
                    scope.spawn(move || {
                        for (prompt, _) in part {
                            let id = engine.submit(vec![request(prompt)]).unwrap()[0];
                            ids.lock().unwrap().insert(id, prompt.clone());
                        }
                    });
                }
                collect(&engine, prompts.len())
            });
            let what = format!("{threads} threads, batch {batch}, {tokens} tokens a step");
            for (id, prompt) in ids.into_inner().unwrap() {
                let (got, want) = (&answers[&id], &expected[&prompt]);
                assert_eq!(got.text, want.text, "{prompt}: {what}");
                assert_eq!(got.tokens, want.tokens, "{prompt}: {what}");
                assert_eq!(got.logprob_bits, want.logprob_bits, "{prompt}: {what}");
            }
            if batch == 64 {
                assert!(
                    engine.stats().mean_batch_size() > 4.0,
                    "they ran together: {}",
                    engine.stats().mean_batch_size()
                );
            }
        }
    }
}

#[test]
fn pinned_instructions_are_used_and_change_no_bit() {
    let prompts = &prompts()[..8];
    let expected = alone(prompts);
    for &isa in available() {
        let said = Arc::new(Mutex::new(String::new()));
        let log = said.clone();
        let engine = demo(|config| {
            config.instructions = Some(isa);
            config.log_level = LOG_INFO;
            config.log = Some(Arc::new(move |_, line| *log.lock().unwrap() += &format!("{line}\n")));
        });
        assert!(said.lock().unwrap().contains(&format!("instructions: {}\n", isa.name())), "{isa:?}");
        for (prompt, _) in prompts {
            let got = ask(&engine, request(prompt));
            assert_eq!(got.logprob_bits, expected[prompt].logprob_bits, "{prompt}: {isa:?}");
        }
    }
}

#[test]
fn a_seed_gives_the_same_text_alone_and_in_company() {
    let engine = demo(|config| config.max_batch_size = 16);
    let story = |seed: u64| {
        let mut request = text("Once upon a time", 24);
        request.sampling.temperature = 0.9;
        request.sampling.seed = seed;
        request
    };
    let alone: Vec<_> = (0..8).map(|seed| ask(&engine, story(seed)).text).collect();
    let ids = engine.submit((0..8).map(story).collect()).unwrap();
    let together = collect(&engine, 8);
    for (id, text) in ids.iter().zip(&alone) {
        assert_eq!(&together[id].text, text);
    }
    assert!(alone.iter().any(|text| text != &alone[0]), "seeds differ");
}

/// K and V in each type: the size of a block, how many fit one limit, and the answers' bits in any batch.
#[test]
fn every_kv_type_is_counted_and_keeps_its_bits() {
    let engine = |kind, limit| demo(|config| (config.kv_type, config.memory_limit_bytes) = (kind, limit));
    let (facts, stats) = {
        let engine = engine(KvType::F32, 0);
        (engine.loaded().model.facts().clone(), engine.stats())
    };
    // Room for 100 blocks of f32, less the requests' share.
    let limit = stats.memory_used_bytes - stats.kv_bytes + 100 * (stats.kv_bytes / stats.kv_blocks_total);
    let mut fitting = Vec::new();
    for (kind, row) in [
        (KvType::F32, 4 * facts.head_dim),
        (KvType::F16, 2 * facts.head_dim),
        (KvType::Int8, facts.head_dim + 2),
        (KvType::Int4, facts.head_dim / 2 + 2 * facts.head_dim.div_ceil(32)),
    ] {
        let limited = engine(kind, limit);
        let stats = limited.stats();
        let block = 2 * facts.layers * facts.kv_heads * 32 * row;
        assert_eq!(stats.kv_bytes, stats.kv_blocks_total * block as u64, "{kind:?}");
        assert!(stats.memory_used_bytes <= limit, "{kind:?}");
        fitting.push(stats.kv_blocks_total);
        let prompts: Vec<_> = prompts().into_iter().step_by(8).map(|(prompt, _)| prompt).collect();
        let alone = demo(|config| (config.kv_type, config.max_batch_size) = (kind, 1));
        let alone: Vec<_> = prompts.iter().map(|prompt| ask(&alone, request(prompt))).collect();
        let ids = limited.submit(prompts.iter().map(|prompt| request(prompt)).collect()).unwrap();
        let mut together = collect(&limited, ids.len());
        for (id, alone) in ids.iter().zip(&alone) {
            let got = together.remove(id).unwrap();
            assert_eq!((&got.text, &got.logprob_bits), (&alone.text, &alone.logprob_bits), "{kind:?}");
        }
    }
    assert!(fitting[1] >= 2 * fitting[0] - 2 && fitting[2] > fitting[1], "{fitting:?}");
}
