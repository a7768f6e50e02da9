//! Everything that changes an output, in one batch: adapters, constraints, a logits hook, every sampler,
//! drafts. Even if preempted or served from the prefix cache, each request has the bytes that it has alone.

use crate::engine_support::*;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::formats::gguf::writer::{Meta, write_file};
use bn_engine::kernels::DType;
use bn_engine::sample::{Dry, SamplingParams};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A random adapter of every layer's q and down projection.
fn adapter(engine: &Engine, seed: u32) -> Adapted {
    let facts = engine.facts();
    let products = [
        ("attn_q", facts.heads * facts.head_dim, facts.hidden_size),
        ("ffn_down", facts.hidden_size, facts.ffn_size),
    ];
    random_adapter(engine, &engine.facts().architecture, seed, &products)
}

/// A random adapter of products of every layer: names, rows and columns. `architecture`: GGUF's name.
pub fn random_adapter(
    engine: &Engine,
    architecture: &str,
    seed: u32,
    products: &[(&str, usize, usize)],
) -> Adapted {
    let facts = engine.facts();
    let mut tensors = Vec::new();
    for layer in 0..facts.layers {
        for &(name, rows, cols) in products {
            let name = |part| format!("blk.{layer}.{name}.weight.lora_{part}");
            tensors.push((name("a"), vec![cols as u64, 4]));
            tensors.push((name("b"), vec![4, rows as u64]));
        }
    }
    let pairs: [(String, Meta); 4] = [
        ("general.architecture".into(), architecture.into()),
        ("general.type".into(), "adapter".into()),
        ("adapter.type".into(), "lora".into()),
        ("adapter.lora.alpha".into(), Meta::F32(4.0)),
    ];
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("bn-everything-{}-{n}.gguf", std::process::id()));
    let mut state = seed;
    let data = |index: usize, out: &mut dyn std::io::Write| {
        for _ in 0..tensors[index].1.iter().product::<u64>() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
            out.write_all(&(0.2 * number).to_le_bytes()).unwrap();
        }
        Ok(DType::F32 as u32)
    };
    write_file(&path, &pairs, &tensors, data, |_| Ok(())).unwrap();
    let adapter = engine.open_adapter(path.to_str().unwrap());
    std::fs::remove_file(&path).unwrap();
    Adapted { adapter: Arc::new(adapter.unwrap()), scale: 1.0 }
}

/// Makes every third token less likely; which ones depends on the number of tokens so far.
fn hook() -> LogitsHook {
    LogitsHook(Arc::new(|row| {
        let skip = row.output.len() % 3;
        row.logits.iter_mut().skip(skip).step_by(3).for_each(|logit| *logit -= 2.0);
        0
    }))
}

const SCHEMA: &str = r#"{"type":"object","properties":{"name":{"type":"string","maxLength":12},
    "n":{"type":"integer"}},"required":["name","n"],"additionalProperties":false}"#;

/// Each kind of request, with and without each adapter; many begin alike.
fn requests(engine: &Engine) -> Vec<RequestParams<'static>> {
    let adapters = [None, Some(adapter(engine, 1)), Some(adapter(engine, 2))];
    let story = "Once upon a time there was a cat. The cat sat. The cat sat on the mat. The cat";
    let kinds = 7;
    let one = |i: usize| {
        let (kind, n) = (i % kinds, i / kinds);
        let sampling = SamplingParams {
            temperature: if n % 4 == 0 { 0.0 } else { 0.8 },
            seed: i as u64,
            logprobs: true,
            top_logprobs: 2,
            ..Default::default()
        };
        let mut request = RequestParams {
            prompt: Prompt::Text(
                format!("{}{}", &story[..40 + n % 3 * 15], if n % 2 == 0 { "" } else { " and" }).into(),
            ),
            max_new_tokens: 30 + (i % 5) as u32 * 9,
            ignore_eos: kind != 3,
            stream: !i.is_multiple_of(3),
            cache: !i.is_multiple_of(9),
            adapter: adapters[i % 3].clone(),
            speculation: Some(if i.is_multiple_of(2) { Speculation::Lookup } else { Speculation::Off }),
            sampling,
            ..Default::default()
        };
        match kind {
            1 => {
                request.constraint = Some(Constraint {
                    kind: ConstraintKind::JsonSchema,
                    text: SCHEMA.into(),
                    json: JsonOptions::default(),
                })
            }
            2 => {
                request.constraint = Some(Constraint {
                    kind: ConstraintKind::Regex,
                    text: "([a-c]{3} )+".into(),
                    json: JsonOptions::default(),
                })
            }
            3 => request.stop_strings = vec!["cat".into(), "the m".into()],
            4 => {
                request.sampling.dry = Dry { multiplier: 0.8, ..Dry::default() };
                request.sampling.min_new_tokens = 10;
                request.bad_words = vec!["mat".into()];
            }
            5 => (request.sampling.mirostat_tau, request.sampling.temperature) = (3.0, 1.0),
            6 => request.on_logits = Some(hook()),
            _ => {}
        }
        request
    };
    (0..kinds * 12).map(one).collect()
}

#[test]
fn everything_together_is_bitwise_what_it_is_alone() {
    let alone: Vec<Answer> = {
        let engine = demo(|config| (config.max_batch_size, config.threads) = (1, 1));
        let plain = |r: &RequestParams<'static>| RequestParams {
            cache: false,
            speculation: Some(Speculation::Off),
            ..r.clone()
        };
        requests(&engine).iter().map(|r| ask(&engine, plain(r))).collect()
    };
    let one = demo(|config| config.kv_block_size = 16).stats();
    for (batch, tokens, threads, blocks) in [(32, 512, 2, 24), (6, 24, 1, 16)] {
        let engine = demo(|config| {
            (config.kv_block_size, config.draft_always) = (16, true);
            config.kv_cache_bytes = one.kv_bytes / one.kv_blocks_total * blocks;
            (config.max_batch_size, config.max_batch_tokens, config.threads) = (batch, tokens, threads);
        });
        let requests = requests(&engine);
        let ids = engine.submit(requests.clone()).unwrap();
        let answers = collect(&engine, requests.len());
        for ((id, alone), i) in ids.iter().zip(&alone).zip(0..) {
            let answer = &answers[id];
            let what = format!("request {i} in a batch of {batch}: {}", answer.message);
            assert_eq!((answer.finish, &answer.tokens), (alone.finish, &alone.tokens), "{what}");
            assert_eq!((&answer.text, &answer.logprob_bits), (&alone.text, &alone.logprob_bits), "{what}");
            assert!([1, 2, 3].contains(&answer.finish), "{what}");
        }
        let stats = engine.stats();
        assert!(stats.preemptions > 0 && stats.cached_tokens > 200, "{} preemptions", stats.preemptions);
        assert!(stats.drafted_tokens > 0 && stats.accepted_tokens > 0, "{} drafted", stats.drafted_tokens);
        assert_eq!(stats.kv_blocks_used, 0);
    }
}
