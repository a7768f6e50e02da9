//! Drafts from a model that is always right, or sometimes.

use super::*;
use bn_engine::base::Status;
use bn_engine::engine::open_model;
use bn_engine::model::Loaded;
use std::cell::OnceCell;

thread_local! {
    static MODELS: OnceCell<[Loaded; 2]> = const { OnceCell::new() };
}

fn open(source: Option<&str>, options: LoadOptions) -> Loaded {
    let source = Source::parse(source).unwrap();
    open_model(ModelConfig { source, options, threads: 1, ..ModelConfig::default() }).unwrap()
}

/// The demo model, and a copy with some weights rounded to 4 bits.
fn models() -> [Loaded; 2] {
    let rounded =
        || LoadOptions { embedding: WeightType::Q4_0, head: WeightType::Q4_0, ..LoadOptions::default() };
    MODELS.with(|models| {
        models.get_or_init(|| [open(None, LoadOptions::default()), open(None, rounded())]).clone()
    })
}

fn drafting(draft: &Loaded, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    demo(|config| {
        config.draft_model = Some(draft.clone());
        change(config);
    })
}

#[test]
fn drafts_of_a_model_change_no_bit_at_any_temperature_alone_and_together() {
    let want = expected(KvType::F16);
    let [same_model, rounded] = models();
    for (draft, batch, draft_tokens, threads) in
        [(&same_model, 1, 3, 1), (&same_model, 32, 0, 2), (&rounded, 1, 0, 1), (&rounded, 5, 4, 2)]
    {
        let engine = drafting(draft, |config| {
            (config.max_batch_size, config.draft_tokens, config.threads) = (batch, draft_tokens, threads);
        });
        let got = together(&engine, of(Speculation::Model));
        for (n, (got, want)) in got.iter().zip(&want).enumerate() {
            same(got, want, &format!("request {n}, batch {batch}, {draft_tokens} drafts"));
        }
        let (stood, drafted) = (accepted(&engine, &got), engine.stats().drafted_tokens);
        assert!(stood * 2 > drafted, "batch {batch}: {stood} of {drafted}");
        assert!(engine.stats().drafting_ns > 0);
    }
}

/// The model as its own draft model is always right, except for options that drafts ignore (DRY, a drifting
/// bound), and for tokens after the end.
#[test]
fn a_model_drafts_for_itself_without_a_mistake() {
    let [model, _] = models();
    let engine = drafting(&model, |config| config.max_batch_size = 8);
    for temperature in [0.0, 0.8, 2.0] {
        let mut request = RequestParams { ignore_eos: true, ..text(TEXTS[2], 65) };
        (request.sampling.temperature, request.sampling.seed, request.draft_tokens) = (temperature, 3, 7);
        let usage = ask(&engine, request).usage;
        // Grants cover 16 tokens, and drafts never cross their ends.
        assert!(usage.accepted_tokens == usage.drafted_tokens && usage.accepted_tokens > 40, "{usage:?}");
    }
}

/// A draft model's K and V of a prefix serve later requests with that prefix; missing positions are computed
/// then.
#[test]
fn a_draft_model_keeps_up_with_prefixes_preemption_and_sessions() {
    let want = expected(KvType::F16);
    let [model, _] = models();
    let one = drafting(&model, |config| config.kv_block_size = 16).stats();
    let engine = drafting(&model, |config| {
        (config.kv_block_size, config.max_batch_size, config.max_batch_tokens) = (16, 12, 40);
        config.kv_cache_bytes = 24 * one.kv_bytes / one.kv_blocks_total;
    });
    for (round, how) in [Speculation::Model, Speculation::Off, Speculation::Model].into_iter().enumerate() {
        let got = together(&engine, of(how));
        got.iter().zip(&want).for_each(|(got, want)| same(got, want, &format!("round {round}")));
    }
    let stats = engine.stats();
    assert!(stats.preemptions > 0 && stats.cached_tokens > 0, "{stats:?}");
    assert!(stats.accepted_tokens * 2 > stats.drafted_tokens, "{stats:?}");
    let turn = |prompt: &str, speculation| {
        let session = Some("a".into());
        ask(&engine, RequestParams { session, speculation, ignore_eos: true, ..text(prompt, 40) })
    };
    let first = turn(TEXTS[0], Some(Speculation::Off)).text;
    let saved = engine.save_session("a").unwrap();
    engine.drop_session("a").unwrap();
    engine.clear_cache().unwrap();
    engine.restore_session("a", &saved).unwrap();
    let usage = turn(&format!("{}{first}", TEXTS[0]), None).usage;
    assert!(usage.cached_tokens > 0 && usage.accepted_tokens == usage.drafted_tokens, "{usage:?}");
    assert!(usage.accepted_tokens > 0, "{usage:?}");
}

#[test]
fn a_draft_model_counts_in_the_memory_plan() {
    let [model, _] = models();
    let of = |engine: Engine| (engine.stats().kv_bytes, engine.stats().memory_used_bytes);
    let set = |config: &mut EngineConfig| config.max_batch_size = 4;
    let (plain, with) = (of(demo(set)), of(drafting(&model, set)));
    assert_eq!(with.0, 2 * plain.0, "a block is one of each model");
    assert!(with.1 > plain.1 + plain.0, "and a pass has a workspace");
}

#[test]
fn a_model_that_cannot_draft_is_refused() {
    let [model, _] = models();
    let echo = open(Some("builtin:echo"), LoadOptions::default());
    let create = |draft: Option<&Loaded>, speculation| {
        let config =
            EngineConfig { draft_model: draft.cloned(), speculation, threads: 1, ..Default::default() };
        Engine::create(config).map(drop).unwrap_err()
    };
    let error = create(Some(&echo), None);
    assert_eq!(error.status, Status::InvalidArgument);
    let n = model.model.facts().vocab_size;
    let sizes = format!("draft_model has a vocabulary of 258 tokens, and the model one of {n}");
    assert_eq!(error.message, sizes);
    let none = "speculation is BN_SPECULATION_DRAFT, and the engine has no draft_model, nor a \
                model opened with mtp or drafter_path";
    assert_eq!(create(None, Some(Speculation::Model)).message, none);
    let engine = demo(|_| ());
    let request = RequestParams { speculation: Some(Speculation::Model), ..text("a", 9) };
    assert_eq!(engine.submit(vec![request]).unwrap_err().message, none);
}
