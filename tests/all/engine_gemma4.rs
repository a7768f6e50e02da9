//! Layers whose heads differ, and layers that share K and V, in an engine: a sequence has the same bits alone and in
//! any batch, chunks and sessions, and K and V are counted by layer. Mixtures with equal layers are also tested in
//! batches.

use crate::engine_goldens::*;
use crate::engine_support::*;
use bn_engine::engine::api::*;

/// The last two of four layers share K and V, so a prompt's early rows end at the second.
const SHARED: &str = "tests/golden/models/gemma4-inputs";
const MODELS: [&str; 3] = ["tests/golden/models/gemma4", SHARED, "tests/golden/models/gemma4-experts.gguf"];
/// A router with biases beside sinks and windows; one without them.
const MIXTURES: [&str; 2] = ["tests/golden/models/gpt-oss-mxfp4", "tests/golden/models/granitemoeshared"];

fn alone(model: &str, ids: &[u32]) -> (Vec<u32>, Vec<(u32, u32)>) {
    let engine = engine(model, |config| (config.max_batch_size, config.threads) = (1, 1));
    outcome(&ask(&engine, request(ids, 10)))
}

#[test]
fn any_company_and_chunks_give_the_bits_of_a_sequence_alone() {
    let prompts: Vec<_> = (0..6).map(|n| prompt(0, 5 + 15 * n, n)).collect();
    for model in MODELS.into_iter().chain(MIXTURES) {
        let want: Vec<_> = prompts.iter().map(|ids| alone(model, ids)).collect();
        for (batch, tokens) in [(4, 7), (8, 512)] {
            let engine = engine(model, |config| {
                (config.max_batch_size, config.max_batch_tokens) = (batch, tokens);
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
fn sessions_are_saved_and_restored() {
    for model in MODELS {
        let (first, session) = (prompt(0, 45, 1), |ids: &[u32]| RequestParams {
            session: Some("chat".into()),
            ..request(ids, 10)
        });
        let one = engine(model, |_| ());
        let answer = ask(&one, session(&first));
        let turn = [&first[..], &answer.tokens, &prompt(0, 8, 2)].concat();
        let saved = one.save_session("chat").unwrap();
        let other = engine(model, |_| ());
        other.restore_session("chat", &saved).unwrap();
        let next = ask(&other, session(&turn));
        assert!(next.usage.cached_tokens >= 48, "{model}: {}", next.usage.cached_tokens);
        assert_eq!(outcome(&next), alone(model, &turn), "{model}");
    }
}

/// A block has the K and V of those layers that have any, each with heads of its own.
#[test]
fn blocks_are_counted_by_layer() {
    for (model, elements) in [
        // Two layers of two heads of 8, and one of one head of 16.
        (MODELS[0], 2 * 2 * 8 + 16),
        // Two of four layers have K and V: one with two heads of 8, one with two heads of 16.
        (SHARED, 2 * 8 + 2 * 16),
        (MODELS[2], 2 * 8 + 16),
    ] {
        for (kind, bytes) in [(KvType::F32, 4), (KvType::F16, 2)] {
            let stats = engine(model, |config| config.kv_type = kind).stats();
            let block = 2 * 16 * elements * bytes;
            assert_eq!(stats.kv_bytes, stats.kv_blocks_total * block as u64, "{model}, {kind:?}");
        }
    }
}
