//! EAGLE-3 heads in an engine: the same bits as without drafts, in any company, after preemption and in sessions.

use crate::common::{load_source, root};
use crate::eagle_support::{Head, models};
use crate::engine_goldens::*;
use crate::engine_support::*;
use crate::model_drafters::Saved;
use bn_engine::base::Bytes;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::kernels::attention::KvType;
use bn_engine::model::{LoadOptions, Source};

/// Three recurrent layers and one of attention.
const MODEL: &str = "tests/golden/models/qwen35";

/// A head for `MODEL`: with K and V like those of its layers, or of another shape.
fn head(apart: bool) -> Head {
    Head {
        hidden: 48,
        heads: if apart { 4 } else { 3 },
        kv_heads: if apart { 2 } else { 1 },
        head_dim: 32,
        width: 48,
        vocab: 64,
        taps: [0, 1, 3],
        every: 2,
        ..Head::new()
    }
}

fn without(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    engine(MODEL, |config| {
        config.snapshot_interval = 32;
        change(config);
    })
}

fn with(apart: bool, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let path = root().join(MODEL).to_string_lossy().into_owned();
    let file = Saved::new(&head(apart).file().bytes());
    let options = LoadOptions { drafter: Some(file.path()), ..LoadOptions::default() };
    let model = load_source(&Source::File(path), &options, 1).unwrap().loaded;
    without(|config| {
        (config.model, config.draft_always) = (Some(model), true);
        change(config);
    })
}

/// A request whose answer uses only two tokens, which the head has too, so that drafts are often accepted.
fn two_words(ids: &[u32], new: u32) -> RequestParams<'static> {
    let mut request = request(ids, new);
    request.sampling.logit_bias = vec![(8, 100.0), (10, 100.0)];
    request
}

fn undrafted(request: RequestParams) -> (Vec<u32>, Vec<(u32, u32)>) {
    let engine = without(|config| (config.max_batch_size, config.threads) = (1, 1));
    outcome(&ask(&engine, request))
}

#[test]
fn a_head_drafts_and_changes_no_bit() {
    let prompts: Vec<_> = (0..6).map(|n| prompt(0, 1 + 17 * n, n)).collect();
    let want: Vec<_> = prompts.iter().map(|ids| undrafted(two_words(ids, 40))).collect();
    for (tokens, depth, apart) in [(512, 15, false), (512, 1, true), (7, 3, false), (7, 3, true)] {
        let engine = with(apart, |config| {
            (config.max_batch_tokens, config.draft_tokens) = (tokens, depth);
        });
        let ids = engine.submit(prompts.iter().map(|ids| two_words(ids, 40)).collect()).unwrap();
        let answers = collect(&engine, prompts.len());
        for (id, want) in ids.iter().zip(&want) {
            assert_eq!(outcome(&answers[id]), *want, "{tokens} tokens a step, {depth} drafts");
        }
        let stats = engine.stats();
        assert!(stats.drafted_tokens > stats.accepted_tokens && stats.accepted_tokens > 20, "{stats:?}");
        assert!(stats.drafting_ns > 0);
    }
}

/// Answers of tokens that the head has not: it drafts, and none of it stands.
#[test]
fn a_head_without_the_answers_tokens_is_never_right() {
    let ids = prompt(0, 20, 3);
    let odd = || {
        let mut request = request(&ids, 20);
        request.sampling.logit_bias = vec![(7, 100.0), (9, 100.0)];
        request
    };
    let engine = with(false, |_| ());
    let answer = ask(&engine, odd());
    assert_eq!(outcome(&answer), undrafted(odd()));
    assert!(answer.usage.drafted_tokens > 0 && answer.usage.accepted_tokens == 0, "{:?}", answer.usage);
    // Nothing that the request permits is a token of the head's, so that nothing can be drafted.
    let none = || {
        let mut request = request(&ids, 20);
        request.sampling.logit_bias = (0..64).step_by(2).map(|token| (token, f32::NEG_INFINITY)).collect();
        request
    };
    let answer = ask(&engine, none());
    assert_eq!((outcome(&answer), answer.usage.drafted_tokens), (undrafted(none()), 0));
}

/// The head's state takes part in snapshots, preemption and sessions.
#[test]
fn drafts_of_a_head_go_on_as_their_sequence_does() {
    let prompts: Vec<_> = (0..6).map(|n| prompt(0, 20 + n, n)).collect();
    let tight = with(true, |config| {
        config.context_length = 80;
        let shape = config.model.as_ref().unwrap().model.kv_shape();
        config.kv_cache_bytes = 5 * bn_engine::cache::bytes_per_block(shape, KvType::F32, 16).unwrap();
    });
    let ids = tight.submit(prompts.iter().map(|ids| two_words(ids, 40)).collect()).unwrap();
    let answers = collect(&tight, prompts.len());
    for (id, ids) in ids.iter().zip(&prompts) {
        assert_eq!(outcome(&answers[id]), undrafted(two_words(ids, 40)));
    }
    let stats = tight.stats();
    assert!(stats.preemptions > 0 && stats.accepted_tokens > 0, "{stats:?}");

    // Each turn of a chat, and one from a saved session, drafts what a sequence drafts that computed everything.
    let counted =
        |answer: &Answer| (outcome(answer), answer.usage.drafted_tokens, answer.usage.accepted_tokens);
    let one_draft = || with(false, |config| config.draft_tokens = 1);
    let fresh = |ids: &[u32]| counted(&ask(&one_draft(), two_words(ids, 20)));
    let session = |ids: &[u32]| RequestParams { session: Some("chat".into()), ..two_words(ids, 20) };
    let engine = one_draft();
    let mut turn = prompt(0, 45, 1);
    let answer = ask(&engine, session(&turn));
    turn = [&turn[..], &answer.tokens, &prompt(0, 9, 3)].concat();
    let answer = ask(&engine, session(&turn));
    assert!(answer.usage.cached_tokens as usize > turn.len() - 12);
    assert_eq!(counted(&answer), fresh(&turn));
    let other = one_draft();
    let saved = engine.save_session("chat").unwrap();
    other.restore_session("chat", &saved).unwrap();
    let turn = [&turn[..], &answer.tokens, &prompt(0, 9, 9)].concat();
    assert_eq!(counted(&ask(&other, session(&turn))), fresh(&turn));
    // A model without the head has other states.
    assert!(without(|_| ()).restore_session("chat", &saved).is_err());
}

/// Sampled answers, and a cache in f16.
#[test]
fn drawn_answers_are_those_without_a_head() {
    let drawn = |n: usize| {
        let mut request = two_words(&prompt(0, 30 + n, n), 30);
        (request.sampling.temperature, request.sampling.seed) = (0.9, 7 + n as u64);
        request
    };
    let engine = with(true, |config| config.kv_type = KvType::F16);
    let plain = without(|config| config.kv_type = KvType::F16);
    for n in 0..3 {
        assert_eq!(outcome(&ask(&engine, drawn(n))), outcome(&ask(&plain, drawn(n))));
    }
    assert!(engine.stats().accepted_tokens > 0);
}

/// A model of attention alone has a state with a head, which prefixes need too.
#[test]
fn a_head_of_a_model_without_recurrent_layers() {
    let [model, _] = models();
    let source = Source::Memory { bytes: Bytes::new(model.bytes()), what: "test file".into() };
    let file = Saved::new(&Head { every: 2, ..Head::new() }.file().bytes());
    let load = |drafter| {
        let options = LoadOptions { drafter, ..LoadOptions::default() };
        load_source(&source, &options, 1).unwrap().loaded
    };
    let start = |drafter: Option<String>| {
        without(|config| {
            (config.model, config.draft_always, config.draft_tokens) = (Some(load(drafter)), true, 4);
        })
    };
    let (engine, plain) = (start(Some(file.path())), start(None));
    let ids = |n: usize| -> Vec<u32> { prompt(20, 33, n).iter().map(|id| id % 40).collect() };
    let requests = || (0..5).map(|n| two_words(&ids(n), 12)).collect::<Vec<_>>();
    for _ in 0..2 {
        let started = engine.submit(requests()).unwrap();
        let answers = collect(&engine, started.len());
        for (id, request) in started.iter().zip(requests()) {
            assert_eq!(outcome(&answers[id]), outcome(&ask(&plain, request)));
        }
    }
    let stats = engine.stats();
    assert!(stats.accepted_tokens > 20 && stats.cached_tokens > 0, "{stats:?}");
}
