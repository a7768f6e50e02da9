//! Models with recurrent layers in an engine: the same bits in any company, from snapshots, after preemption, with drafts
//! and in sessions.

use crate::common::{load_file, load_source, root};
use crate::engine_goldens::*;
use crate::engine_support::*;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::model::{LoadOptions, Source};

const MODEL: &str = "tests/golden/models/qwen35";
/// Gated DeltaNet; short convolutions with a mixture of experts, and beside windows; Mamba-2 beside attention, and between it.
const MODELS: [&str; 5] = [
    MODEL,
    "tests/golden/models/lfm2moe",
    "tests/golden/models/lfm3",
    "tests/golden/models/falcon-h1",
    "tests/golden/models/granitemoehybrid",
];

fn hybrid(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    hybrid_of(MODEL, change)
}

fn hybrid_of(model: &str, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    engine(model, |config| {
        config.snapshot_interval = 32;
        change(config);
    })
}

/// The answer's tokens and the bits of their log probabilities, from an engine of one sequence.
fn alone(ids: &[u32], new: u32) -> (Vec<u32>, Vec<(u32, u32)>) {
    alone_of(MODEL, ids, new)
}

fn alone_of(model: &str, ids: &[u32], new: u32) -> (Vec<u32>, Vec<(u32, u32)>) {
    let engine = hybrid_of(model, |config| (config.max_batch_size, config.threads) = (1, 1));
    outcome(&ask(&engine, request(ids, new)))
}

#[test]
fn any_company_and_chunks_give_the_bits_of_a_sequence_alone() {
    let prompts: Vec<_> = (0..9).map(|n| prompt(0, 5 + 13 * n, n)).collect();
    for model in MODELS {
        let want: Vec<_> = prompts.iter().map(|ids| alone_of(model, ids, 12)).collect();
        for (batch, tokens) in [(4, 7), (8, 64), (16, 512)] {
            let sizes = |config: &mut EngineConfig| {
                (config.max_batch_size, config.max_batch_tokens) = (batch, tokens);
            };
            let engine = hybrid_of(model, sizes);
            let ids = engine.submit(prompts.iter().map(|ids| request(ids, 12)).collect()).unwrap();
            let answers = collect(&engine, prompts.len());
            for (id, want) in ids.iter().zip(&want) {
                assert_eq!(outcome(&answers[id]), *want, "{model}, batch {batch}, {tokens} tokens a step");
            }
        }
    }
}

#[test]
fn a_common_prefix_is_computed_once() {
    MODELS.into_iter().for_each(a_common_prefix_is_computed_once_by);
}

fn a_common_prefix_is_computed_once_by(model: &str) {
    let (engine, alone) = (hybrid_of(model, |_| ()), |ids: &[u32], new| alone_of(model, ids, new));
    let prompts: Vec<_> = (1..5).map(|n| prompt(70, 100, n)).collect();
    let answers: Vec<_> = prompts.iter().map(|ids| ask(&engine, request(ids, 4))).collect();
    let cached: Vec<_> = answers.iter().map(|answer| answer.usage.cached_tokens).collect();
    // The others continue from the regular snapshot at 64, which the first makes.
    assert_eq!(cached, [0, 64, 64, 64]);
    for (answer, ids) in answers.iter().zip(&prompts) {
        assert_eq!(outcome(answer), alone(ids, 4));
    }
    // The whole prompt except its last token is reused, and a chat's next turn continues from the end of the
    // last one.
    let again = ask(&engine, request(&prompts[0], 4));
    assert_eq!((again.usage.cached_tokens, outcome(&again)), (99, outcome(&answers[0])));
    let turn = [&prompts[0][..], &answers[0].tokens, &prompt(0, 9, 3)].concat();
    let next = ask(&engine, request(&turn, 4));
    assert_eq!((next.usage.cached_tokens, outcome(&next)), (103, alone(&turn, 4)));
}

#[test]
fn prompts_are_seen_to_part() {
    let engine = hybrid(|config| config.snapshot_interval = 0);
    let cached = |ids: &[u32]| ask(&engine, request(ids, 1)).usage.cached_tokens;
    let prompts: Vec<_> = (1..4).map(|n| prompt(70, 100, n)).collect();
    // The second one computes everything, and makes a snapshot where it diverges from the first, rounded to
    // whole blocks.
    assert_eq!(prompts.iter().map(|ids| cached(ids)).collect::<Vec<_>>(), [0, 0, 64]);
    // A follower waits for the one that computes its prefix.
    let engine = hybrid(|config| config.snapshot_interval = 0);
    let ids = engine.submit(prompts.iter().map(|ids| request(ids, 3)).collect()).unwrap();
    let answers = collect(&engine, 3);
    assert_eq!(ids.iter().map(|id| answers[id].usage.cached_tokens).collect::<Vec<_>>(), [0, 64, 64]);
    ids.iter().zip(&prompts).for_each(|(id, ids)| assert_eq!(outcome(&answers[id]), alone(ids, 3)));
}

#[test]
fn preempted_sequences_go_on_from_their_state() {
    MODELS.into_iter().for_each(preempted_sequences_of);
}

fn preempted_sequences_of(model: &str) {
    // Seven blocks of 16 tokens for four sequences of up to 60.
    let prompts: Vec<_> = (0..6).map(|n| prompt(0, 20 + n, n)).collect();
    let engine = hybrid_of(model, |config| {
        (config.context_length, config.kv_cache_bytes) = (80, 1);
        let blocks = 7;
        let shape = config.model.as_ref().unwrap().model.kv_shape();
        config.kv_cache_bytes = blocks
            * bn_engine::cache::bytes_per_block(shape, KvType::F32, config.kv_block_size as usize).unwrap();
    });
    let ids = engine.submit(prompts.iter().map(|ids| request(ids, 40)).collect()).unwrap();
    let answers = collect(&engine, prompts.len());
    for (id, ids) in ids.iter().zip(&prompts) {
        assert_eq!(outcome(&answers[id]), alone_of(model, ids, 40));
    }
    let stats = engine.stats();
    assert!(stats.preemptions > 0, "{stats:?}");
}

#[test]
fn drafts_leave_no_trace() {
    MODELS.into_iter().for_each(drafts_leave_no_trace_in);
}

fn drafts_leave_no_trace_in(model: &str) {
    let prompts: Vec<_> = (0..3).map(|n| prompt(0, 30 + 20 * n, n)).collect();
    // Answers of two tokens, which look-up often predicts.
    let request = |ids: &[u32], new| {
        let mut request = request(ids, new);
        (request.sampling.temperature, request.sampling.seed) = (1.0, 5);
        request.sampling.logit_bias = vec![(7, 100.0), (9, 100.0)];
        request
    };
    let alone = |ids: &[u32]| {
        let engine = hybrid_of(model, |config| config.speculation = Some(Speculation::Off));
        outcome(&ask(&engine, request(ids, 60)))
    };
    let engine = hybrid_of(model, |config| {
        (config.speculation, config.draft_always) = (Some(Speculation::Lookup), true);
    });
    let ids = engine.submit(prompts.iter().map(|ids| request(ids, 60)).collect()).unwrap();
    let answers = collect(&engine, prompts.len());
    for (id, ids) in ids.iter().zip(&prompts) {
        assert_eq!(outcome(&answers[id]), alone(ids));
    }
    let stats = engine.stats();
    assert!(stats.drafted_tokens > stats.accepted_tokens && stats.accepted_tokens > 0, "{stats:?}");
}

#[test]
fn several_samples_share_one_prompt() {
    let ids = prompt(0, 90, 5);
    let engine = hybrid(|_| ());
    let sample = |seed: u64| {
        let mut request = request(&ids, 6);
        (request.sampling.temperature, request.sampling.seed) = (1.0, seed);
        request
    };
    let alone: Vec<_> = (0..4).map(|seed| outcome(&ask(&hybrid(|_| ()), sample(seed)))).collect();
    let requests = engine.submit((0..4).map(sample).collect()).unwrap();
    let answers = collect(&engine, 4);
    for (id, want) in requests.iter().zip(&alone) {
        assert_eq!(outcome(&answers[id]), *want);
    }
    let cached: u32 = requests.iter().map(|id| answers[id].usage.cached_tokens).sum();
    assert_eq!(cached, 3 * 89);
}

#[test]
fn sessions_are_saved_and_restored_with_their_state() {
    MODELS.into_iter().for_each(sessions_of);
}

fn sessions_of(model: &str) {
    let hybrid = |change: fn(&mut EngineConfig)| hybrid_of(model, change);
    let alone = |ids: &[u32], new| alone_of(model, ids, new);
    let (first, more) = (prompt(0, 45, 1), prompt(0, 8, 2));
    let session = |ids: &[u32]| RequestParams { session: Some("chat".into()), ..request(ids, 5) };
    let engine = hybrid(|_| ());
    let answer = ask(&engine, session(&first));
    let turn = [&first[..], &answer.tokens, &more].concat();
    let want = alone(&turn, 5);
    let saved = engine.save_session("chat").unwrap();
    // The last token was never run.
    let known = first.len() as u32 + 4;
    let next = ask(&engine, session(&turn));
    assert_eq!((next.usage.cached_tokens, outcome(&next)), (known, want.clone()));
    let other = hybrid(|_| ());
    other.restore_session("chat", &saved).unwrap();
    let next = ask(&other, session(&turn));
    assert_eq!((next.usage.cached_tokens, outcome(&next)), (known, want));
    // Every snapshot except the session's is evicted.
    let turn = [&turn[..], &next.tokens, &more].concat();
    let known = (turn.len() - more.len()) as u32 - 1;
    (0..40).for_each(|n| drop(ask(&other, request(&prompt(0, 70, 10 + n), 1))));
    assert_eq!(ask(&other, session(&turn)).usage.cached_tokens, known);
    other.clear_cache().unwrap();
    other.drop_session("chat").unwrap();
}

#[test]
fn memory_is_counted_and_too_little_is_refused_with_both_numbers() {
    let shape = load_file(MODEL, 1).unwrap().model.state_shape();
    let slot = shape.slot_bytes().unwrap() as u64;
    let (small, large) = (hybrid(|config| config.snapshots = 1), hybrid(|config| config.snapshots = 101));
    let used = |engine: &Engine| engine.stats().memory_used_bytes;
    assert_eq!(used(&large) - used(&small), 100 * slot);
    let model = load_file(MODEL, 1).unwrap().loaded;
    let config = EngineConfig {
        model: Some(model),
        threads: 2,
        // This is less than drafted rows and the bookkeeping take.
        memory_limit_bytes: used(&small) - small.stats().kv_bytes - 5 * slot - 100 * shape.row_bytes() as u64,
        kv_type: KvType::F32,
        kv_block_size: 16,
        max_batch_size: 4,
        ..Default::default()
    };
    let error = Engine::create(config).err().unwrap();
    assert_eq!(error.status, Status::MemoryLimit);
    assert!(error.message.contains(&format!("the state of one sequence takes {slot} bytes")), "{error}");
}

/// An engine whose model drafts for itself.
fn with_mtp(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    with_block("mtp/qwen35", LoadOptions { mtp: true, ..LoadOptions::default() }, change)
}

/// An engine whose model drafts with a block in a file of its own.
fn with_drafter(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let path = root().join("tests/golden/mtp/qwen35.gguf").to_string_lossy().into_owned();
    with_block("models/qwen35", LoadOptions { drafter: Some(path), ..LoadOptions::default() }, change)
}

fn with_block(model: &str, options: LoadOptions, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let path = root().join("tests/golden").join(model).to_string_lossy().into_owned();
    let model = load_source(&Source::File(path), &options, 1).unwrap().loaded;
    hybrid(|config| {
        (config.model, config.draft_always) = (Some(model), true);
        change(config);
    })
}

/// A request whose answer uses only two tokens, so that drafts of a random model are often accepted.
fn two_words(ids: &[u32], new: u32) -> RequestParams<'static> {
    let mut request = request(ids, new);
    request.sampling.logit_bias = vec![(7, 100.0), (9, 100.0)];
    request
}

/// Like `alone`, without drafts. The model is the same, without its block.
fn undrafted(ids: &[u32], new: u32) -> (Vec<u32>, Vec<(u32, u32)>) {
    let engine = hybrid(|config| (config.max_batch_size, config.threads) = (1, 1));
    outcome(&ask(&engine, two_words(ids, new)))
}

#[test]
fn a_model_that_drafts_for_itself_gives_the_same_bits() {
    let prompts: Vec<_> = (0..6).map(|n| prompt(0, 1 + 17 * n, n)).collect();
    let want: Vec<_> = prompts.iter().map(|ids| undrafted(ids, 40)).collect();
    for (tokens, depth) in [(512, 15), (512, 1), (7, 3)] {
        let engine = with_mtp(|config| (config.max_batch_tokens, config.draft_tokens) = (tokens, depth));
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

#[test]
fn a_block_in_a_file_of_its_own_drafts_what_it_drafts_in_the_models() {
    let prompts: Vec<_> = (0..4).map(|n| prompt(0, 20 + 9 * n, n)).collect();
    // One request at a time and a fixed depth: no time that is measured decides on drafts.
    let fixed = |config: &mut EngineConfig| (config.draft_tokens, config.max_batch_size) = (3, 1);
    let [one, two] = [with_mtp(fixed), with_drafter(fixed)];
    for ids in &prompts {
        let [one, two] = [&one, &two].map(|engine| {
            let answer = ask(engine, two_words(ids, 30));
            (outcome(&answer), answer.usage.drafted_tokens, answer.usage.accepted_tokens)
        });
        assert_eq!(one, two);
        assert_eq!(two.0, undrafted(ids, 30));
        assert!(two.2 > 0);
    }
    let counts = |engine: &Engine| {
        let stats = engine.stats();
        (stats.drafted_tokens, stats.accepted_tokens, stats.prompt_tokens, stats.generated_tokens)
    };
    assert_eq!(counts(&one), counts(&two));
}

/// The block's hidden state takes part in snapshots, preemption, sessions and look-ups.
#[test]
fn drafts_of_a_block_go_on_as_their_sequence_does() {
    let prompts: Vec<_> = (0..6).map(|n| prompt(0, 20 + n, n)).collect();
    let tight = with_mtp(|config| {
        config.context_length = 80;
        let shape = config.model.as_ref().unwrap().model.kv_shape();
        config.kv_cache_bytes = 7 * bn_engine::cache::bytes_per_block(shape, KvType::F32, 16).unwrap();
    });
    let ids = tight.submit(prompts.iter().map(|ids| two_words(ids, 40)).collect()).unwrap();
    let answers = collect(&tight, prompts.len());
    ids.iter().zip(&prompts).for_each(|(id, ids)| assert_eq!(outcome(&answers[id]), undrafted(ids, 40)));
    let stats = tight.stats();
    assert!(stats.preemptions > 0 && stats.accepted_tokens > 0, "{stats:?}");

    // A chat: each turn continues from its snapshot, then from a saved session. With one draft in each step, the
    // accepted drafts are those of a sequence that computed everything.
    let accepted =
        |answer: &Answer| (outcome(answer), answer.usage.drafted_tokens, answer.usage.accepted_tokens);
    let one_draft = || with_mtp(|config| config.draft_tokens = 1);
    let fresh = |ids: &[u32]| accepted(&ask(&one_draft(), two_words(ids, 20)));
    let session = |ids: &[u32]| RequestParams { session: Some("chat".into()), ..two_words(ids, 20) };
    let engine = one_draft();
    let mut turn = prompt(0, 45, 1);
    let mut answer = ask(&engine, session(&turn));
    for n in 0..2 {
        turn = [&turn[..], &answer.tokens, &prompt(0, 9, 3 + n)].concat();
        answer = ask(&engine, session(&turn));
        assert!(answer.usage.cached_tokens as usize > turn.len() - 12);
        assert_eq!(accepted(&answer), fresh(&turn));
    }
    let other = one_draft();
    other.restore_session("chat", &engine.save_session("chat").unwrap()).unwrap();
    let turn = [&turn[..], &answer.tokens, &prompt(0, 9, 9)].concat();
    assert_eq!(accepted(&ask(&other, session(&turn))), fresh(&turn));
    // A model without the block has other states.
    let saved = engine.save_session("chat").unwrap();
    assert!(hybrid(|_| ()).restore_session("chat", &saved).is_err());

    // The request's setting takes precedence.
    let looked_up = RequestParams { speculation: Some(Speculation::Lookup), ..two_words(&prompts[0], 40) };
    let off = RequestParams { speculation: Some(Speculation::Off), ..two_words(&prompts[0], 40) };
    for request in [looked_up, off] {
        let answer = ask(&engine, request);
        assert_eq!(outcome(&answer), undrafted(&prompts[0], 40));
    }
}

#[test]
fn one_thing_drafts() {
    let path = root().join("tests/golden/mtp/qwen35").to_string_lossy().into_owned();
    let load = |mtp| {
        let options = LoadOptions { mtp, ..LoadOptions::default() };
        load_source(&Source::File(path.clone()), &options, 1).unwrap().loaded
    };
    let refused = |model, draft_model| {
        let config = EngineConfig { model: Some(model), draft_model, threads: 1, ..Default::default() };
        Engine::create(config).err().unwrap().message
    };
    assert!(refused(load(true), Some(load(false))).contains("choose one"));
    assert!(refused(load(false), Some(load(true))).contains("draft_model was opened with mtp"));
}
