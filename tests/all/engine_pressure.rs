//! More work than fits: preemption, prefix reuse, priorities and deadlines; answers do not change.

use crate::engine_support::*;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::sample::SamplingParams;
use std::collections::HashMap;

/// A demo engine with `blocks` KV blocks of 16 tokens.
fn narrow(blocks: u64, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let one = demo(|config| config.kv_block_size = 16).stats();
    let engine = demo(|config| {
        config.kv_block_size = 16;
        config.kv_cache_bytes = one.kv_bytes / one.kv_blocks_total * blocks;
        change(config);
    });
    assert_eq!(engine.stats().kv_blocks_total, blocks);
    engine
}

const STORY: &str = "Once upon a time there was a small machine that could only count to three. ";

/// Prompts of which many begin alike, some are equal, and some are unique; greedy and sampled.
fn requests() -> Vec<RequestParams<'static>> {
    let texts: Vec<String> = (0..200)
        .map(|i| match i % 5 {
            0 => STORY.repeat(1 + i % 2),
            1 => format!("{STORY}It met number {}.", i % 7),
            2 => format!("{}What is {i}+{}?", &STORY[..i % 60], i * 3),
            3 => STORY[..20 + i % 50].to_owned(),
            _ => format!("{i}: {}", &STORY[..i % 30]),
        })
        .collect();
    texts
        .into_iter()
        .enumerate()
        .map(|(i, prompt)| RequestParams {
            prompt: Prompt::Text(prompt.into()),
            max_new_tokens: 4 + (i as u32 * 7) % 110,
            ignore_eos: true,
            stream: i % 3 > 0,
            priority: (i * 37 % 256) as u8,
            cache: i % 11 > 0,
            cache_salt: (i % 13 / 12) as u64,
            sampling: SamplingParams {
                temperature: (i % 2) as f32,
                seed: i as u64,
                logprobs: true,
                top_logprobs: 2,
                ..Default::default()
            },
            ..Default::default()
        })
        .collect()
}

#[test]
fn two_hundred_requests_under_pressure_are_bitwise_what_they_are_alone() {
    let requests = requests();
    let alone: Vec<Answer> = {
        let engine = demo(|config| config.max_batch_size = 1);
        requests.iter().map(|r| ask(&engine, RequestParams { cache: false, ..r.clone() })).collect()
    };
    for (batch, tokens, threads) in [(16, 64, 2), (5, 512, 1)] {
        let engine = narrow(22, |config| {
            (config.max_batch_size, config.max_batch_tokens, config.threads) = (batch, tokens, threads);
        });
        let ids = engine.submit(requests.clone()).unwrap();
        let answers = collect(&engine, requests.len());
        for ((id, alone), i) in ids.iter().zip(&alone).zip(0..) {
            let answer = &answers[id];
            assert_eq!(answer.finish, FinishReason::Length as i32, "{i}: {}", answer.message);
            assert_eq!(answer.text, alone.text, "request {i}");
            assert_eq!(answer.tokens, alone.tokens, "request {i}");
            assert_eq!(answer.logprob_bits, alone.logprob_bits, "request {i}");
        }
        let stats = engine.stats();
        assert!(stats.preemptions > 5, "{} preemptions", stats.preemptions);
        assert!(stats.cached_tokens > 1000, "{} cached tokens", stats.cached_tokens);
        assert!(stats.recomputed_tokens > 0 && stats.kv_blocks_used == 0);
    }
}

#[test]
fn all_that_fit_by_what_they_use_run_at_once() {
    // If their blocks were reserved to the end, three would run.
    let engine = narrow(48, |config| config.max_batch_size = 16);
    let open = |i: usize| RequestParams {
        prompt: Prompt::Text(format!("Request {i}").into()),
        max_new_tokens: 0,
        ignore_eos: true,
        ..Default::default()
    };
    let ids = engine.submit((0..16).map(open).collect()).unwrap();
    let answers = collect(&engine, 16);
    let stats = engine.stats();
    assert!(stats.mean_batch_size() > 4.0, "{} at a time", stats.mean_batch_size());
    for id in ids {
        let usage = answers[&id].usage;
        assert_eq!(
            usage.prompt_tokens + usage.generated_tokens,
            256,
            "an open length ends with the sequence"
        );
        assert_eq!(answers[&id].finish, FinishReason::Length as i32);
    }
}

#[test]
fn a_prompt_that_was_seen_is_not_computed_again() {
    let engine = demo(|_| ());
    let request = |cache_salt, cache| RequestParams { cache_salt, cache, ..text(STORY, 8) };
    let first = ask(&engine, request(0, true));
    assert_eq!(first.usage.cached_tokens, 0);
    for (salt, cache, hit) in [(0, true, true), (7, true, false), (0, false, false), (7, true, true)] {
        let answer = ask(&engine, request(salt, cache));
        let expected = if hit { first.usage.prompt_tokens - 1 } else { 0 };
        assert_eq!(answer.usage.cached_tokens, expected, "salt {salt}, cache {cache}");
        assert_eq!((&answer.text, &answer.tokens), (&first.text, &first.tokens));
    }
}

#[test]
fn samples_of_one_prompt_compute_it_once() {
    let engine = demo(|_| ());
    let sample = |seed| RequestParams {
        sampling: SamplingParams { temperature: 1.0, seed, ..Default::default() },
        ..text(STORY, 8)
    };
    engine.submit((0..8).map(sample).collect()).unwrap();
    let answers = collect(&engine, 8);
    let prompt = answers.values().next().unwrap().usage.prompt_tokens;
    let cached: u32 = answers.values().map(|a| a.usage.cached_tokens).sum();
    assert_eq!(cached, 7 * (prompt - 1));
    assert_eq!(engine.stats().prompt_tokens, u64::from(prompt + 7));
}

/// Each turn's prompt is the conversation so far: its earlier part is in the cache, token by token.
#[test]
fn a_chat_of_ten_turns_computes_only_what_is_new() {
    let engine = demo(|config| config.context_length = 0);
    let mut tokens: Vec<u32> = vec![1];
    for turn in 0..10u32 {
        let new = 5 + turn;
        tokens.extend((0..new).map(|i| 40 + (turn * 31 + i * 7) % 60));
        let request = RequestParams {
            prompt: Prompt::Tokens(tokens.clone().into()),
            max_new_tokens: 6,
            ignore_eos: true,
            ..Default::default()
        };
        let answer = ask(&engine, request);
        let computed = answer.usage.prompt_tokens - answer.usage.cached_tokens;
        // The last answer's last token was sampled and never run.
        assert!(
            computed <= new + 1,
            "turn {turn}: {computed} of {} tokens computed, {new} are new",
            tokens.len()
        );
        tokens.extend(&answer.tokens);
    }
}

#[test]
fn an_urgent_request_does_not_wait_for_the_batch() {
    let engine = demo(|config| config.max_batch_size = 2);
    let long = |i: usize| RequestParams { ignore_eos: true, user_data: i as u64, ..text("Once", 0) };
    let ids = engine.submit((0..2).map(long).collect()).unwrap();
    while ids.iter().any(|&id| engine.stage(id).unwrap() != Stage::Running) {
        std::thread::yield_now();
    }
    let urgent = RequestParams { priority: 255, poll_by_id: true, ..text("1+1=", 4) };
    let event = engine.generate(urgent).unwrap();
    assert!(ids.iter().all(|&id| engine.stage(id).unwrap() != Stage::Finished), "it came first");
    assert!(event.usage.total_ns > 0);
    let answers: HashMap<_, _> = collect(&engine, 2);
    assert!(ids.iter().all(|id| answers[id].finish == FinishReason::Length as i32));
    assert_eq!(engine.stats().preemptions, 1);
}

#[test]
fn a_request_may_say_how_long_it_waits() {
    let engine = echo(|config| {
        config.max_batch_size = 1;
        config.model_path = Some("builtin:echo?us_per_token=2000".into());
    });
    let long = RequestParams { ignore_eos: true, ..text("a long one", 200) };
    let waits = RequestParams { queue_timeout_ms: 30, ..text("short", 4) };
    let ids = engine.submit(vec![long, waits.clone()]).unwrap();
    let answers = collect(&engine, 2);
    let late = &answers[&ids[1]];
    assert_eq!((late.finish, late.usage.generated_tokens), (FinishReason::TimedOut as i32, 0));
    assert!(late.message.contains("queue_timeout_ms"), "{}", late.message);
    assert!(late.usage.total_ns < answers[&ids[0]].usage.total_ns);
    let alone = ask(&engine, RequestParams { queue_timeout_ms: 60_000, ..waits });
    assert_eq!(alone.text, "shor");
    // A prompt of 200 rows of 2 ms cannot be answered within 50 ms, as the engine has learned.
    let hopeless = "x".repeat(200);
    let request = |drop_late| RequestParams { queue_timeout_ms: 50, drop_late, ..text(&hopeless, 1) };
    assert_eq!(ask(&engine, request(false)).finish, FinishReason::Length as i32, "it was admitted at once");
    let dropped = ask(&engine, RequestParams { cache: false, ..request(true) });
    assert_eq!(dropped.finish, FinishReason::TimedOut as i32);
    assert!(dropped.message.contains("given up"), "{}", dropped.message);
}

/// A demo engine whose limit leaves requests only their minimum: room for a queue of short ones, and for 32
/// tokens of each in the batch.
fn poor() -> Engine {
    let small = |config: &mut EngineConfig| (config.queue_capacity, config.max_batch_size) = (24, 24);
    let free = demo(small).stats();
    let limited = |more: u64| {
        demo(|config| {
            small(config);
            config.memory_limit_bytes = free.memory_used_bytes + more;
        })
    };
    // Requests get their share first, and KV the rest, so requests get no more than they need while KV lacks
    // memory.
    let mut engines = (0..).map(|n| limited(n << 14));
    let engine = engines.find(|engine| 2 * engine.stats().kv_blocks_total > free.kv_blocks_total).unwrap();
    assert!(engine.stats().kv_blocks_total < free.kv_blocks_total);
    engine
}

#[test]
fn short_of_memory_for_outputs_requests_wait_and_are_whole() {
    let whole = |i: usize| RequestParams {
        ignore_eos: true,
        stream: false,
        user_data: i as u64,
        ..with_logprobs(text(["Once", "1+1=", "The machine"][i % 3], 0))
    };
    let plenty = demo(|_| ());
    let ids = plenty.submit((0..24).map(whole).collect()).unwrap();
    let expected = collect(&plenty, 24);
    let expected: Vec<_> = ids.iter().map(|id| &expected[id]).collect();
    let engine = poor();
    let ids = engine.submit((0..24).map(whole).collect()).unwrap();
    let mut answers = HashMap::new();
    while answers.len() < 24 {
        // Released at once: a finished request's memory is not available to others.
        let mut ended = Vec::new();
        engine
            .poll(Which::Any, 1, Some(std::time::Duration::from_secs(60)), &mut |_, event| {
                ended.push(event.request);
                let mut answer = Answer::default();
                answer.add(event);
                answers.insert(event.request, answer);
            })
            .unwrap();
        assert!(!ended.is_empty(), "{} of 24 ended, and no more", answers.len());
        ended.iter().for_each(|&id| engine.release(id).unwrap());
    }
    for (id, expected) in ids.iter().zip(expected) {
        assert_eq!((&answers[id].text, &answers[id].tokens), (&expected.text, &expected.tokens));
    }
    let stats = engine.stats();
    assert!(stats.pauses > 0 && stats.paused == 0, "{stats:?}");
    assert!(stats.memory_peak_bytes <= stats.memory_limit_bytes);
    let huge = RequestParams { stop_strings: vec!["x".repeat(60_000).into(); 2], ..whole(0) };
    let error = engine.submit(vec![huge]).unwrap_err();
    assert_eq!(error.status, bn_engine::base::Status::MemoryLimit);
    assert!(error.message.contains("does not fit even alone"), "{error}");
}

#[test]
fn who_does_not_poll_waits_and_the_others_go_on() {
    let engine = demo(|config| config.max_unread_bytes = 4000);
    let long =
        |end_unread| RequestParams { ignore_eos: true, end_unread, poll_by_id: true, ..text("Once", 0) };
    let ids = engine.submit(vec![long(false), long(true)]).unwrap();
    for i in 0..20 {
        let other = ask(&engine, RequestParams { user_data: i, ignore_eos: true, ..text("Twice", 60) });
        assert_eq!(other.usage.generated_tokens, 60);
    }
    assert_eq!(engine.stats().paused, 1);
    let mut answers = [Answer::default(), Answer::default()];
    for (id, answer) in ids.iter().zip(&mut answers) {
        while answer.finish == 0 {
            let mut leases = Vec::new();
            engine
                .poll(Which::One(*id), 1, Some(std::time::Duration::from_secs(60)), &mut |lease, event| {
                    leases.push((*id, lease));
                    answer.add(event);
                })
                .unwrap();
            assert_eq!(leases.len(), 1);
            engine.give_back(&mut leases.into_iter());
        }
    }
    assert_eq!(answers[0].finish, FinishReason::Length as i32);
    assert_eq!(answers[1].finish, FinishReason::Cancelled as i32);
    assert!(answers[1].message.contains("max_unread_bytes"), "{}", answers[1].message);
    assert!(answers[0].tokens.starts_with(&answers[1].tokens) && answers[1].tokens.len() > 5);
}

fn chat<'a>(tokens: &[u32], session: &'a str) -> RequestParams<'a> {
    RequestParams {
        prompt: Prompt::Tokens(tokens.to_vec().into()),
        max_new_tokens: 6,
        ignore_eos: true,
        session: Some(session.into()),
        ..Default::default()
    }
}

/// Fills the cache with other prefixes, several times over.
fn crowd(engine: &Engine) {
    let other = |i: usize| RequestParams { ignore_eos: true, ..text(&STORY[..10 + i], 200) };
    for round in 0..4 {
        engine.submit((0..8).map(|i| other(8 * round + i)).collect()).unwrap();
        collect(engine, 8);
    }
}

#[test]
fn a_session_outlives_the_crowd_and_moves_to_another_engine() {
    let engine = narrow(24, |config| config.max_batch_size = 4);
    let mut tokens: Vec<u32> = (0..60).map(|i| 40 + i * 7 % 60).collect();
    let first = ask(&engine, chat(&tokens, "anna"));
    tokens.extend(&first.tokens);
    assert_eq!((engine.stats().sessions, engine.stats().session_blocks), (1, 5));
    crowd(&engine);
    assert!(engine.stats().kv_evictions > 24);
    let saved = engine.save_session("anna").unwrap();
    assert_eq!(engine.save_session("bert").unwrap_err().status, bn_engine::base::Status::NotFound);
    tokens.extend([50, 51, 52]);
    let (expected, plain) = (ask(&engine, chat(&tokens, "anna")), ask(&demo(|_| ()), chat(&tokens, "anna")));
    assert_eq!(
        expected.usage.prompt_tokens - expected.usage.cached_tokens,
        4,
        "the last answer's end, and what is new"
    );
    assert_eq!((&expected.text, &expected.tokens), (&plain.text, &plain.tokens));
    // Restores the saved turn on another engine, and on one that must refuse it.
    let other = narrow(24, |_| ());
    other.restore_session("carl", &saved).unwrap();
    let moved = ask(&other, chat(&tokens, "carl"));
    assert_eq!((moved.usage.cached_tokens, moved.tokens), (expected.usage.cached_tokens, expected.tokens));
    let wrong = |engine: &Engine, bytes: &[u8], says: &str| {
        let error = engine.restore_session("dora", bytes).unwrap_err();
        assert!(error.message.contains(says), "{error} should say {says}");
    };
    wrong(&other, &saved[..saved.len() - 1], "damaged");
    let int8 = demo(|config| (config.kv_type, config.kv_block_size) = (KvType::Int8, 16));
    wrong(&int8, &saved, "its KV cache has ");
    wrong(&echo(|config| config.kv_block_size = 16), &saved, "its KV cache has ");
    engine.drop_session("anna").unwrap();
    assert!(engine.drop_session("anna").is_err());
    assert_eq!((engine.stats().sessions, engine.stats().session_blocks), (0, 0));
    engine.clear_cache().unwrap();
    assert_eq!(engine.stats().kv_blocks_cached, 0);
}

/// The fingerprint in a saved session is computed in steps as small as the engine's.
#[test]
fn a_session_of_small_steps_is_the_same() {
    let tokens: Vec<u32> = (0..20).map(|i| 40 + i).collect();
    let saved = [512, 7, 1].map(|rows| {
        let engine = demo(|config| (config.max_batch_size, config.max_batch_tokens) = (1, rows));
        ask(&engine, chat(&tokens, "anna"));
        assert_eq!(engine.session_size("anna").unwrap(), engine.save_session("anna").unwrap().len());
        engine.save_session("anna").unwrap()
    });
    assert!(saved[0] == saved[1] && saved[1] == saved[2]);
}

#[test]
fn sessions_take_half_of_the_cache_and_give_way_to_one_that_needs_all() {
    let engine = narrow(24, |config| config.max_batch_size = 4);
    let tokens = |who: u32| (0..60).map(|i| 40 + (i * 7 + who) % 60).collect::<Vec<u32>>();
    for (who, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        ask(&engine, chat(&tokens(who as u32), name));
    }
    let stats = engine.stats();
    assert_eq!((stats.sessions, stats.session_blocks), (2, 10), "5 blocks each, 12 at most");
    assert!(engine.save_session("a").is_err() && engine.save_session("d").is_ok());
    let all = ask(&engine, RequestParams { ignore_eos: true, ..text("Once", 0) });
    assert_eq!(all.usage.prompt_tokens + all.usage.generated_tokens, 256);
    assert_eq!(engine.stats().sessions, 1, "16 blocks beside 8 free and cached ones");
}

#[test]
fn a_router_hears_of_each_block_by_its_hash() {
    let engine = narrow(24, |config| config.kv_events_capacity = 100);
    let tokens: Vec<u32> = (0..40).map(|i| 40 + i * 7 % 60).collect();
    let salt = 5;
    ask(&engine, RequestParams { cache_salt: salt, session: None, ..chat(&tokens, "") });
    let heard = |engine: &Engine| {
        let mut events = Vec::new();
        engine.kv_events(1000, &mut |event| events.push(event)).unwrap();
        events
    };
    let first = bn_engine::cache::chain(salt, &tokens[..16]);
    let second = bn_engine::cache::chain(first, &tokens[16..32]);
    let stored = |key, parent_key| CacheEvent::Stored { key, parent_key };
    assert_eq!(heard(&engine), [stored(first, salt), stored(second, first)]);
    assert_eq!(heard(&engine), []);
    crowd(&engine);
    let events = heard(&engine);
    let removed = |key| events.iter().position(|&event| event == CacheEvent::Removed { key });
    let told_anew = events.first() == Some(&CacheEvent::Cleared);
    assert!(told_anew || removed(second) < removed(first), "a leaf goes before its parent");
    engine.clear_cache().unwrap();
    assert_eq!(heard(&engine).last(), Some(&CacheEvent::Cleared));
    assert!(demo(|_| ()).kv_events(1, &mut |_| ()).is_err());
}

#[test]
fn blocks_that_sessions_share_count_once() {
    let engine = narrow(24, |config| config.max_batch_size = 4);
    let tokens: Vec<u32> = (0..60).map(|i| 40 + i * 7 % 60).collect();
    for name in ["a", "b"] {
        ask(&engine, chat(&tokens, name));
    }
    let stats = engine.stats();
    assert!(stats.sessions == 2 && stats.session_blocks > 5, "{stats:?}");
    // Whole blocks are shared; each session has its own last block.
    assert_eq!(stats.kv_blocks_used, 6);
}

#[test]
fn requests_released_while_they_run_make_room_for_those_that_wait() {
    let engine = poor();
    let whole = || RequestParams {
        ignore_eos: true,
        stream: false,
        poll_by_id: true,
        ..with_logprobs(text("Once", 0))
    };
    let ids = engine.submit((0..24).map(|_| whole()).collect()).unwrap();
    while engine.stats().paused < 3 {
        std::thread::yield_now();
    }
    ids[..23].iter().for_each(|&id| engine.release(id).unwrap());
    let wait = Some(std::time::Duration::from_secs(60));
    assert_eq!(engine.poll(Which::One(ids[23]), 1, wait, &mut |_, _| ()).unwrap(), 1);
}

#[test]
fn calls_while_the_engine_ends_come_back() {
    for round in 0..100 {
        let engine = std::sync::Arc::new(echo(|_| ()));
        let (done, all_done) = std::sync::mpsc::channel();
        for _ in 0..2 {
            let (engine, done) = (engine.clone(), done.clone());
            std::thread::spawn(move || {
                while engine.clear_cache().is_ok() {}
                done.send(()).unwrap();
            });
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
        engine.shutdown(ShutdownMode::Drain).unwrap();
        for _ in 0..2 {
            let back = all_done.recv_timeout(std::time::Duration::from_secs(60));
            back.unwrap_or_else(|_| panic!("a call hangs in round {round}"));
        }
    }
}
