//! Draft models with recurrent layers: their drafts are exactly those that they make of the text alone, after
//! rejections, preemption and hits in the prefix cache too, and no bit of an output changes.

use crate::common::load_file;
use crate::engine_goldens::*;
use crate::engine_support::*;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::schedule::Acceptance;

const ATTENTION: &str = "tests/golden/models/qwen3";
/// Gated DeltaNet; short convolutions, with experts and beside windows; Mamba-2 beside attention, and between it.
const MODELS: [&str; 7] = [
    "tests/golden/models/qwen35",
    "tests/golden/models/qwen3next",
    "tests/golden/models/lfm2",
    "tests/golden/models/lfm2moe",
    "tests/golden/models/lfm3",
    "tests/golden/models/falcon-h1",
    "tests/golden/models/granitemoehybrid",
];

/// An engine of `model` that always runs the drafts of `draft`, or has no drafts.
fn drafted(model: &str, draft: Option<&str>, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    engine(model, |config| {
        config.draft_model = draft.map(|draft| load_file(draft, 1).unwrap().loaded);
        (config.draft_always, config.snapshot_interval) = (true, 32);
        config.speculation = draft.is_none().then_some(Speculation::Off);
        change(config);
    })
}

/// A request whose answer has few different tokens, so that other models often draft it right.
fn few_words(ids: &[u32], new: u32) -> RequestParams<'static> {
    let mut request = request(ids, new);
    request.sampling.logit_bias = vec![(7, 100.0), (9, 100.0), (23, 100.0)];
    request
}

fn counts(answer: &Answer) -> (u32, u32) {
    (answer.usage.drafted_tokens, answer.usage.accepted_tokens)
}

/// The drafts of a first request and the accepted ones, if an engine of the draft model alone makes them, from the
/// text of each step anew. Without what a rate of acceptance forbids.
fn expected(draft: &Engine, ids: &[u32], answer: &[u32], depth: usize) -> (u32, u32) {
    let (mut rate, mut known, mut counts) = (Acceptance::default(), 1, (0, 0));
    while known < answer.len() {
        let most = depth.min(answer.len() - known - 1);
        // The scheduler's bound for drafts that are too seldom right.
        let likely = rate.stands().iter().take(most).take_while(|stands| **stands > 0.1).count();
        let text = [ids, &answer[..known]].concat();
        let drafts = match likely {
            0 => Vec::new(),
            n => ask(draft, few_words(&text, n as u32)).tokens,
        };
        let accepted =
            drafts.iter().zip(&answer[known..]).take_while(|(draft, token)| draft == token).count();
        known += accepted + 1;
        rate.verified(likely as u32, accepted as u32, known >= answer.len());
        counts = (counts.0 + likely as u32, counts.1 + accepted as u32);
    }
    counts
}

#[test]
fn drafts_are_those_of_the_text_after_any_number_of_rejections() {
    let ids = prompt(0, 37, 1);
    let (mut all, mut stood) = (0, 0);
    for (target, draft) in MODELS.map(|draft| (ATTENTION, draft)).into_iter().chain([(MODELS[0], MODELS[4])])
    {
        let want = ask(&drafted(target, None, |_| ()), few_words(&ids, 50));
        let alone = drafted(draft, None, |_| ());
        for depth in [1, 2, 5] {
            let engine = drafted(target, Some(draft), |config| config.draft_tokens = depth);
            let answer = ask(&engine, few_words(&ids, 50));
            assert_eq!(outcome(&answer), outcome(&want), "{target} with {draft}");
            let own = expected(&alone, &ids, &want.tokens, depth as usize);
            assert_eq!(counts(&answer), own, "{target} with {draft}, {depth} drafts");
            (all, stood) = (all + own.0, stood + own.1);
        }
    }
    assert!(stood > 100 && all > stood + 100, "{stood} of {all}");
}

#[test]
fn a_recurrent_model_drafts_for_itself_without_a_mistake() {
    let prompts: Vec<_> = (0..6).map(|n| prompt(0, 1 + 17 * n, n)).collect();
    for model in MODELS {
        let plain = drafted(model, None, |config| config.max_batch_size = 1);
        let want: Vec<_> = prompts.iter().map(|ids| outcome(&ask(&plain, request(ids, 40)))).collect();
        for (tokens, depth) in [(512, 7), (70, 3)] {
            let engine = drafted(model, Some(model), |config| {
                (config.max_batch_tokens, config.draft_tokens) = (tokens, depth);
            });
            let ids = engine.submit(prompts.iter().map(|ids| request(ids, 40)).collect()).unwrap();
            let answers = collect(&engine, prompts.len());
            for (id, want) in ids.iter().zip(&want) {
                assert_eq!(outcome(&answers[id]), *want, "{model}, {tokens} tokens a step, {depth} drafts");
                let (all, stood) = counts(&answers[id]);
                assert!(stood == all && stood >= 25, "{model}: {stood} of {all}");
            }
        }
    }
}

/// Preemption, samples of one prompt, and a request that goes while it drafts.
#[test]
fn drafts_of_recurrent_models_go_on_in_little_memory() {
    for model in MODELS {
        let mut requests: Vec<_> = (0..4).map(|n| request(&prompt(0, 20 + n, n), 40)).collect();
        requests.extend((0..3).map(|seed| {
            let mut sample = request(&prompt(0, 40, 5), 30);
            (sample.sampling.temperature, sample.sampling.seed) = (1.0, seed);
            sample
        }));
        let plain = drafted(model, None, |config| config.max_batch_size = 1);
        let want: Vec<_> = requests.iter().map(|request| outcome(&ask(&plain, request.clone()))).collect();
        let engine = drafted(model, Some(model), |config| {
            config.context_length = 80;
            let shape = config.model.as_ref().unwrap().model.kv_shape();
            // 9 blocks of both models.
            config.kv_cache_bytes = 18
                * bn_engine::cache::bytes_per_block(shape, KvType::F32, config.kv_block_size as usize)
                    .unwrap();
        });
        for _ in 0..2 {
            let gone = engine.submit(vec![request(&prompt(0, 30, 9), 40)]).unwrap()[0];
            let ids = engine.submit(requests.clone()).unwrap();
            engine.cancel(Which::One(gone)).unwrap();
            let answers = collect(&engine, requests.len() + 1);
            ids.iter().zip(&want).for_each(|(id, want)| assert_eq!(outcome(&answers[id]), *want, "{model}"));
            for id in &ids {
                let (all, stood) = counts(&answers[id]);
                assert_eq!(stood, all, "{model}");
            }
        }
        let stats = engine.stats();
        assert!(stats.preemptions > 0 && stats.cached_tokens > 0 && stats.accepted_tokens > 100, "{stats:?}");
    }
}

/// A later turn of a chat goes on from the states of the turn before: with few rows a step, computing the text again
/// would leave the first steps without drafts. A restored session has no such states, and computes them.
#[test]
fn a_turn_goes_on_from_the_states_of_the_last_one() {
    for draft in MODELS {
        let few = |config: &mut EngineConfig| (config.draft_tokens, config.max_batch_tokens) = (1, 16);
        let (plain, alone) = (drafted(ATTENTION, None, |_| ()), drafted(draft, None, |_| ()));
        let engine = drafted(ATTENTION, Some(draft), few);
        let session = |ids: &[u32]| RequestParams { session: Some("chat".into()), ..few_words(ids, 16) };
        let mut text = prompt(0, 30, 1);
        for turn in 0..3 {
            let answer = ask(&engine, session(&text));
            assert_eq!(outcome(&answer), outcome(&ask(&plain, few_words(&text, 16))));
            if turn > 0 {
                assert!(answer.usage.cached_tokens as usize > text.len() - 12);
                assert_eq!(counts(&answer), expected(&alone, &text, &answer.tokens, 1), "{draft}, {turn}");
            }
            text = [&text[..], &answer.tokens, &prompt(0, 5, 3 + turn)].concat();
        }
        let saved = engine.save_session("chat").unwrap();
        let other = drafted(ATTENTION, Some(draft), few);
        other.restore_session("chat", &saved).unwrap();
        let answer = ask(&other, session(&text));
        assert_eq!(outcome(&answer), outcome(&ask(&plain, few_words(&text, 16))));
        let (all, most) = (counts(&answer).0, expected(&alone, &text, &answer.tokens, 1).0);
        assert!(answer.usage.cached_tokens > 80 && 0 < all && all < most, "{draft}: {all} of {most}");
    }
}

#[test]
fn states_of_a_draft_model_are_counted_and_refused_with_both_numbers() {
    let draft = MODELS[0];
    let own = load_file(draft, 1).unwrap();
    let slot = own.model.state_shape().slot_bytes().unwrap() as u64;
    let (rows, positions) = (64, 80);
    let used = |batch| {
        let size = |config: &mut EngineConfig| {
            (config.max_batch_size, config.max_batch_tokens, config.threads) = (batch, rows, 1);
            config.context_length = positions;
        };
        let stats = [Some(draft), None].map(|draft| drafted(ATTENTION, draft, size).stats());
        stats.map(|stats| stats.memory_used_bytes - stats.kv_bytes)
    };
    let more = |batch| {
        let [with, without] = used(batch);
        with - without
    };
    // The workspace and the logits of a pass, and a byte for each block.
    let pass = |batch: usize| {
        let workspace = own.model.workspace_bytes(&*own.ops, rows as usize, batch);
        (workspace + batch * (64 * 4 + positions as usize / 16)) as u64
    };
    assert_eq!(more(9) - more(1), 8 * 2 * slot + pass(9) - pass(1));
    let [all, _] = used(4);
    let config = EngineConfig {
        model: Some(load_file(ATTENTION, 1).unwrap().loaded),
        draft_model: Some(load_file(draft, 1).unwrap().loaded),
        threads: 1,
        // The states of four sequences were counted, and the bookkeeping of blocks.
        memory_limit_bytes: all - 10 * slot,
        kv_type: KvType::F32,
        kv_block_size: 16,
        max_batch_size: 4,
        max_batch_tokens: rows,
        context_length: positions,
        ..Default::default()
    };
    let error = Engine::create(config).err().unwrap();
    assert_eq!(error.status, Status::MemoryLimit);
    let says = format!("the draft model's states of one sequence take {} bytes", 2 * slot);
    assert!(error.message.contains(&says), "{error}");
}
