//! Speculation changes the number of steps of an output, and not a bit of it.

use crate::engine_support::{self, *};
use bn_engine::constrain::{Constraint, ConstraintKind, JsonOptions};
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::sample::{Dry, SamplingParams};

/// An engine that always runs its drafts, whatever their predicted cost.
fn demo(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    engine_support::demo(|config| {
        config.draft_always = true;
        change(config);
    })
}

fn echo(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    engine_support::echo(|config| {
        config.draft_always = true;
        change(config);
    })
}

/// Texts that repeat themselves, so that there is something to look up.
const TEXTS: [&str; 4] = [
    "Remember: the code is 4821. The code is 4821. The code is 4821. The code is",
    "one two three one two three one two three one two",
    "Once upon a time there was a cat. The cat sat. The cat",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// All kinds of sampling options.
fn ways() -> Vec<SamplingParams> {
    let base = || SamplingParams { logprobs: true, top_logprobs: 2, seed: 7, ..Default::default() };
    let warm = |temperature| SamplingParams { temperature, ..base() };
    vec![
        base(),
        warm(0.4),
        warm(1.0),
        SamplingParams { top_k: 5, top_p: 0.9, min_p: 0.05, ..warm(1.5) },
        SamplingParams { mirostat_tau: 3.0, ..warm(0.9) },
        SamplingParams {
            repetition_penalty: 1.1,
            frequency_penalty: 0.3,
            presence_penalty: 0.2,
            ..warm(0.7)
        },
        SamplingParams { dry: Dry { multiplier: 0.8, ..Dry::default() }, ..warm(0.7) },
        SamplingParams { chain_logprobs: true, min_new_tokens: 20, ..warm(0.8) },
    ]
}

fn requests() -> Vec<RequestParams<'static>> {
    let mut requests = Vec::new();
    for (n, sampling) in ways().into_iter().enumerate() {
        for prompt in TEXTS {
            let mut request = RequestParams { sampling: sampling.clone(), ..text(prompt, 48) };
            request.ignore_eos = n % 2 == 0;
            requests.push(request);
        }
    }
    let stops = ["the c", "two three one", "aaaa", "at sat"];
    for (prompt, stop) in TEXTS.into_iter().zip(stops) {
        requests.push(RequestParams {
            stop_strings: vec![stop.into()],
            ignore_eos: true,
            ..text(prompt, 48)
        });
        let schema = r#"{"type":"array","items":{"type":"object","properties":{"a":{"type":"boolean"},"b":{"enum":
            ["cat","dog"]}},"required":["a","b"],"additionalProperties":false}}"#;
        for (kind, of) in
            [(ConstraintKind::JsonSchema, schema), (ConstraintKind::Regex, "((the|cat|sat) )*\\.")]
        {
            let constraint = Some(Constraint { kind, text: of.into(), json: JsonOptions::default() });
            let sampling = SamplingParams { temperature: 0.6, logprobs: true, seed: 3, ..Default::default() };
            requests.push(RequestParams { sampling, constraint, ..text(prompt, 48) });
        }
    }
    requests
}

fn of(speculation: Speculation) -> Vec<RequestParams<'static>> {
    requests()
        .into_iter()
        .map(|request| RequestParams { speculation: Some(speculation), ..request })
        .collect()
}

/// Answers one after the other, without drafts.
fn expected(kv_type: KvType) -> Vec<Answer> {
    let engine = demo(|config| (config.max_batch_size, config.kv_type) = (1, kv_type));
    of(Speculation::Off).into_iter().map(|request| ask(&engine, request)).collect()
}

fn same(got: &Answer, want: &Answer, what: &str) {
    assert_eq!(got.tokens, want.tokens, "{what}");
    assert_eq!(
        (&got.text, got.finish, got.stop, &got.logprob_bits),
        (&want.text, want.finish, want.stop, &want.logprob_bits),
        "{what}"
    );
    assert_eq!((want.usage.drafted_tokens, want.usage.accepted_tokens), (0, 0));
}

/// The requests' counts add up to the engine's; returns the accepted drafts.
fn accepted(engine: &Engine, answers: &[Answer]) -> u64 {
    let sum = |count: fn(&Usage) -> u32| answers.iter().map(|a| u64::from(count(&a.usage))).sum::<u64>();
    let stats = engine.stats();
    let totals = (stats.drafted_tokens, stats.accepted_tokens, stats.generated_tokens);
    assert_eq!(totals, (sum(|u| u.drafted_tokens), sum(|u| u.accepted_tokens), sum(|u| u.generated_tokens)));
    assert!(stats.accepted_tokens <= stats.drafted_tokens);
    stats.accepted_tokens
}

fn together(engine: &Engine, requests: Vec<RequestParams>) -> Vec<Answer> {
    let ids = engine.submit(requests).unwrap();
    let mut answers = collect(engine, ids.len());
    ids.iter().map(|id| answers.remove(id).unwrap()).collect()
}

#[test]
fn drafts_change_no_bit_at_any_temperature_alone_and_together() {
    let want = expected(KvType::F16);
    for (batch, draft_tokens, threads) in [(1, 0, 1), (1, 1, 1), (32, 0, 2), (5, 4, 1)] {
        let engine = demo(|config| {
            (config.max_batch_size, config.draft_tokens, config.threads) = (batch, draft_tokens, threads);
        });
        let got = together(&engine, of(Speculation::Lookup));
        for (n, (got, want)) in got.iter().zip(&want).enumerate() {
            same(got, want, &format!("request {n}, batch {batch}, {draft_tokens} drafts"));
        }
        let stood = accepted(&engine, &got);
        assert!(stood > 0, "batch {batch}");
    }
}

#[test]
fn drafts_change_no_bit_of_any_kv_type() {
    for kv_type in [KvType::F32, KvType::Int8, KvType::Int4] {
        let want = expected(kv_type);
        let engine = demo(|config| config.kv_type = kv_type);
        let got = together(&engine, of(Speculation::Lookup));
        got.iter().zip(&want).for_each(|(got, want)| same(got, want, &format!("{kv_type:?}")));
        assert!(accepted(&engine, &got) > 0);
    }
}

/// With few blocks, requests are preempted, find prefixes of others, and continue in their blocks.
#[test]
fn drafts_change_no_bit_where_blocks_are_short() {
    let want = expected(KvType::F16);
    let blocks = |n: u64| {
        let one = demo(|config| config.kv_block_size = 16).stats();
        n * one.kv_bytes / one.kv_blocks_total
    };
    let engine = demo(|config| {
        (config.kv_block_size, config.kv_cache_bytes, config.max_batch_size) = (16, blocks(24), 12);
    });
    for round in 0..2 {
        let got = together(&engine, of(Speculation::Lookup));
        got.iter().zip(&want).for_each(|(got, want)| same(got, want, &format!("round {round}")));
    }
    let stats = engine.stats();
    assert!(stats.preemptions > 0 && stats.cached_tokens > 0, "{stats:?}");
    assert!(stats.accepted_tokens > 0);
}

#[test]
fn a_session_goes_on_as_without_drafts() {
    let run = |speculation| {
        let engine = demo(|config| (config.kv_block_size, config.speculation) = (16, Some(speculation)));
        let mut turns = Vec::new();
        let mut known = TEXTS[0].to_owned();
        for _ in 0..3 {
            let request = RequestParams { session: Some("a".into()), ignore_eos: true, ..text(&known, 30) };
            let answer = ask(&engine, request);
            known.push_str(&answer.text);
            turns.push(answer);
        }
        (turns, engine.stats().accepted_tokens)
    };
    let (want, none) = run(Speculation::Off);
    let (got, some) = run(Speculation::Lookup);
    got.iter().zip(&want).for_each(|(got, want)| same(got, want, "a turn"));
    assert!(want[2].usage.cached_tokens > 0 && got[2].usage.cached_tokens > 0);
    assert!(none == 0 && some > 0, "{some} drafts stood");
}

/// The reply repeats the prompt, so that drafts are found.
#[test]
fn a_reply_that_copies_its_prompt_takes_fewer_steps() {
    let prompt: String = (0..200u32).map(|n| char::from(b'a' + (n * n % 23) as u8)).collect();
    let run = |speculation| {
        let engine = echo(|config| config.speculation = Some(speculation));
        let answer = ask(&engine, text(&prompt, 0));
        (answer, engine.stats())
    };
    let ((got, drafted), (want, plain)) = (run(Speculation::Lookup), run(Speculation::Off));
    same(&got, &want, "a copy");
    assert_eq!(got.text, prompt);
    assert!(drafted.steps < plain.steps && drafted.accepted_tokens > 0, "{} steps", drafted.steps);
    assert_eq!(drafted.inter_token.count, plain.inter_token.count);
}

#[test]
fn a_request_decides_for_itself() {
    let engine = echo(|config| config.speculation = Some(Speculation::Off));
    let ask = |speculation, draft_tokens| {
        let request = RequestParams { speculation, draft_tokens, ..text("abababababababababababab", 0) };
        ask(&engine, request).usage
    };
    assert_eq!(ask(None, 3).drafted_tokens, 0);
    assert_eq!(ask(Some(Speculation::Off), 0).drafted_tokens, 0);
    assert!(ask(Some(Speculation::Lookup), 2).accepted_tokens > 0);
    let request = RequestParams { draft_tokens: 16, ..text("a", 1) };
    let error = engine.submit(vec![request]).unwrap_err();
    assert_eq!(error.message, "draft_tokens = 16 is out of range: 0 to 15");
}

#[path = "engine_draft_models.rs"]
mod models;
