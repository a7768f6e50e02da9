//! Engines of models with recurrent layers: the CPU's bits on a device in any company, from snapshots, after preemption,
//! with drafts, in sessions and from graphs.

use super::*;
use crate::engine_goldens::{engine as golden, outcome, prompt, request};
use bn_engine::cache::bytes_per_block;

/// Gated DeltaNet, with experts too; short convolutions, with and without experts; Mamba-2 beside attention, and between it;
/// and what has the same bits: weights in F32 have the CPU's.
const MODELS: [(&str, &str); 7] = [
    ("qwen35", DEVICE),
    ("qwen35-rotated", "cpu"),
    ("qwen35moe", DEVICE),
    ("lfm2", DEVICE),
    ("lfm2moe", DEVICE),
    ("falcon-h1", "cpu"),
    ("granitemoehybrid", DEVICE),
];
const DEVICE: &str = "cuda:0";

type Outcome = (Vec<u32>, Vec<(u32, u32)>);

fn hybrid(model: &str, device: &str, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    golden(&format!("tests/golden/models/{model}.gguf"), |config| {
        (config.device, config.max_batch_size, config.max_batch_tokens) = (device.into(), 16, 24);
        (config.snapshot_interval, config.snapshots) = (32, 64);
        change(config);
    })
}

/// The answers one at a time, without graphs for several rows or drafts.
fn alone((model, like): (&str, &str), requests: &[RequestParams<'static>]) -> Vec<Outcome> {
    let engine = hybrid(model, like, |config| {
        (config.max_batch_size, config.speculation) = (1, Some(Speculation::Off));
    });
    requests.iter().map(|request| outcome(&ask(&engine, request.clone()))).collect()
}

fn together(engine: &Engine, requests: &[RequestParams<'static>]) -> Vec<Outcome> {
    let ids = engine.submit(requests.to_vec()).unwrap();
    let answers = collect(engine, ids.len());
    ids.iter().map(|id| outcome(&answers[id])).collect()
}

#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn hybrids_have_the_same_answers_in_any_company() {
    let driver = Emulated::new();
    let graphs = || if driver.is_emulated() { driver.launches()[1] } else { 0 };
    for (model, like) in MODELS {
        // More than 8 rows are padded.
        let requests: Vec<_> = (0..11).map(|n| request(&prompt(0, 5 + 4 * n, n), 14)).collect();
        let want = alone((model, like), &requests);
        let (engine, before) = (hybrid(model, DEVICE, |_| ()), graphs());
        assert_eq!(together(&engine, &requests), want, "{model}");
        // A second time from snapshots.
        assert_eq!(together(&engine, &requests), want, "{model}");
        assert!(engine.stats().cached_tokens > 0);
        assert!(!driver.is_emulated() || graphs() > before + 3, "{model}: {before}, {}", graphs());
        // Six sequences of up to 60 tokens in nine blocks of 16.
        let tight = hybrid(model, DEVICE, |config| {
            let shape = config.model.as_ref().unwrap().model.kv_shape();
            (config.context_length, config.max_batch_size) = (80, 4);
            config.kv_cache_bytes = 9 * bytes_per_block(shape, KvType::F32, 16).unwrap();
        });
        let requests: Vec<_> = (0..6).map(|n| request(&prompt(0, 20 + n, n), 30)).collect();
        assert_eq!(together(&tight, &requests), alone((model, like), &requests), "{model}");
        assert!(tight.stats().preemptions > 0, "{model}");
    }
}

#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn drafts_leave_no_trace_in_states_on_a_device() {
    let _driver = Emulated::new();
    let mut rejected = 0;
    for (model, like) in MODELS {
        // Answers of two tokens, which look-up often predicts.
        let of = |n: usize| {
            let mut request = request(&prompt(0, 10 + 9 * n, n), 40);
            request.sampling.logit_bias = vec![(7, 100.0), (9, 100.0)];
            request
        };
        let requests: Vec<_> = (0..3).map(of).collect();
        let engine = hybrid(model, DEVICE, |config| {
            (config.speculation, config.draft_always) = (Some(Speculation::Lookup), true);
        });
        assert_eq!(together(&engine, &requests), alone((model, like), &requests), "{model}");
        let stats = engine.stats();
        assert!(stats.accepted_tokens > 0, "{model}: {stats:?}");
        rejected += stats.drafted_tokens - stats.accepted_tokens;
    }
    assert!(rejected > 0);
}

/// The draft model's states go along with its own sequences, and are copied and restored beside rejected drafts.
#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn a_draft_model_may_have_states_on_a_device() {
    let _driver = Emulated::new();
    let of = |n: usize| {
        let mut request = request(&prompt(0, 10 + 9 * n, n), 30);
        request.sampling.logit_bias = vec![(7, 100.0), (9, 100.0)];
        request
    };
    let requests: Vec<_> = (0..3).map(of).collect();
    let target = |draft: Option<&str>| {
        golden("tests/golden/models/qwen3", |config| {
            (config.device, config.max_batch_tokens, config.draft_always) = (DEVICE.into(), 24, true);
            config.speculation = draft.is_none().then_some(Speculation::Off);
            config.draft_model = draft.map(|draft| load_file(draft, 1).unwrap().loaded);
        })
    };
    let want = together(&target(None), &requests);
    for (model, _) in [MODELS[1], MODELS[3], MODELS[5]] {
        let engine = target(Some(&format!("tests/golden/models/{model}.gguf")));
        assert_eq!(together(&engine, &requests), want, "{model}");
        let stats = engine.stats();
        assert!(
            stats.drafted_tokens > stats.accepted_tokens && stats.accepted_tokens > 0,
            "{model}: {stats:?}"
        );
    }
}

#[test]
#[ignore = "needs a device, or the emulated driver: make test-cuda"]
fn sessions_move_between_a_device_and_what_has_its_bits() {
    let _driver = Emulated::new();
    for (model, like) in MODELS {
        let session = |ids: &[u32]| RequestParams { session: Some("chat".into()), ..request(ids, 5) };
        let engines = || [DEVICE, like].map(|device| hybrid(model, device, |_| ()));
        let first = prompt(0, 45, 1);
        let saved = engines().map(|engine| {
            let answer = ask(&engine, session(&first));
            (answer.tokens, engine.save_session("chat").unwrap())
        });
        let turn = [&first[..], &saved[0].0, &prompt(0, 8, 2)].concat();
        let want = alone((model, like), &[request(&turn, 5)]);
        for (engine, (_, saved)) in engines().iter().zip(saved.iter().rev()) {
            engine.restore_session("chat", saved).unwrap();
            let answer = ask(engine, session(&turn));
            assert_eq!((answer.usage.cached_tokens, outcome(&answer)), (49, want[0].clone()), "{model}");
        }
    }
}
