//! Latent attention in an engine: a sequence has the same bits alone and in any batch and chunks, from the prefix
//! cache, after preemption, with drafts and in sessions. The cache has one row for each position.

use crate::engine_goldens::*;
use crate::engine_support::*;
use bn_engine::engine::api::*;

/// Without a latent of queries; with one, as a folder and as GGUF, and experts in groups.
const MODELS: [&str; 3] = [
    "tests/golden/models/deepseek-v2-lite",
    "tests/golden/models/deepseek-v3",
    "tests/golden/models/glm4-moe-lite.gguf",
];

fn alone(model: &str, kind: KvType, ids: &[u32], new: u32) -> (Vec<u32>, Vec<(u32, u32)>) {
    let engine = engine(model, |config| {
        (config.max_batch_size, config.threads, config.kv_type) = (1, 1, kind);
    });
    outcome(&ask(&engine, request(ids, new)))
}

#[test]
fn any_company_and_chunks_give_the_bits_of_a_sequence_alone() {
    let prompts: Vec<_> = (0..7).map(|n| prompt(0, 5 + 15 * n, n)).collect();
    for (model, kind) in MODELS.into_iter().cycle().zip(KvType::ALL) {
        let want: Vec<_> = prompts.iter().map(|ids| alone(model, kind, ids, 10)).collect();
        for (batch, tokens) in [(4, 7), (8, 64), (16, 512)] {
            let engine = engine(model, |config| {
                (config.max_batch_size, config.max_batch_tokens, config.kv_type) = (batch, tokens, kind);
            });
            let ids = engine.submit(prompts.iter().map(|ids| request(ids, 10)).collect()).unwrap();
            let answers = collect(&engine, prompts.len());
            for (id, want) in ids.iter().zip(&want) {
                assert_eq!(outcome(&answers[id]), *want, "{model}, batch {batch}, {tokens} tokens a step");
            }
        }
    }
}

#[test]
fn a_common_prefix_is_computed_once() {
    for model in MODELS {
        let engine = engine(model, |_| ());
        let prompts: Vec<_> = (1..4).map(|n| prompt(70, 100, n)).collect();
        let answers: Vec<_> = prompts.iter().map(|ids| ask(&engine, request(ids, 4))).collect();
        assert!(answers[1..].iter().all(|answer| answer.usage.cached_tokens >= 64), "{model}");
        for (answer, ids) in answers.iter().zip(&prompts) {
            assert_eq!(outcome(answer), alone(model, KvType::F32, ids, 4), "{model}");
        }
    }
}

#[test]
fn preempted_sequences_go_on() {
    let prompts: Vec<_> = (0..6).map(|n| prompt(0, 20 + n, n)).collect();
    for model in MODELS {
        // Seven blocks of 16 tokens for four sequences of up to 60.
        let engine = engine(model, |config| {
            config.context_length = 80;
            let shape = config.model.as_ref().unwrap().model.kv_shape();
            config.kv_cache_bytes = 7 * bn_engine::cache::bytes_per_block(shape, KvType::F32, 16).unwrap();
        });
        let ids = engine.submit(prompts.iter().map(|ids| request(ids, 40)).collect()).unwrap();
        let answers = collect(&engine, prompts.len());
        for (id, ids) in ids.iter().zip(&prompts) {
            assert_eq!(outcome(&answers[id]), alone(model, KvType::F32, ids, 40), "{model}");
        }
        assert!(engine.stats().preemptions > 0, "{model}");
    }
}

#[test]
fn drafts_change_nothing() {
    // Answers of two tokens, which look-up often predicts.
    let request = |ids: &[u32]| {
        let mut request = request(ids, 50);
        (request.sampling.temperature, request.sampling.seed) = (1.0, 5);
        request.sampling.logit_bias = vec![(7, 100.0), (9, 100.0)];
        request
    };
    for model in MODELS {
        let ids = prompt(0, 40, 3);
        let off = engine(model, |config| config.speculation = Some(Speculation::Off));
        let drafted = engine(model, |config| {
            (config.speculation, config.draft_always) = (Some(Speculation::Lookup), true);
        });
        assert_eq!(outcome(&ask(&drafted, request(&ids))), outcome(&ask(&off, request(&ids))), "{model}");
        assert!(drafted.stats().accepted_tokens > 0, "{model}");
    }
}

#[test]
fn sessions_are_saved_and_restored() {
    for model in MODELS {
        let first = prompt(0, 45, 1);
        let session = |ids: &[u32]| RequestParams { session: Some("chat".into()), ..request(ids, 5) };
        let one = engine(model, |_| ());
        let answer = ask(&one, session(&first));
        let turn = [&first[..], &answer.tokens, &prompt(0, 8, 2)].concat();
        let saved = one.save_session("chat").unwrap();
        let other = engine(model, |_| ());
        other.restore_session("chat", &saved).unwrap();
        let next = ask(&other, session(&turn));
        assert!(next.usage.cached_tokens >= 48, "{model}: {}", next.usage.cached_tokens);
        assert_eq!(outcome(&next), alone(model, KvType::F32, &turn, 5), "{model}");
    }
}

/// A position has the rotated part of its key and the latent, once.
#[test]
fn blocks_hold_one_row_of_a_position() {
    const ROW: usize = 8 + 24;
    for model in MODELS {
        for (kind, bytes) in [
            (KvType::F32, 4 * ROW),
            (KvType::F16, 2 * ROW),
            (KvType::Int8, ROW + 2),
            (KvType::Int4, ROW / 2 + 2),
        ] {
            let stats = engine(model, |config| config.kv_type = kind).stats();
            let block = 3 * 16 * bytes as u64;
            assert_eq!(stats.kv_bytes, stats.kv_blocks_total * block, "{model}, {kind:?}");
        }
    }
}
