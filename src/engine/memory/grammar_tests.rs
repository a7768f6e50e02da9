//! Kept grammars are evicted for requests and adapters, and for nothing else.

use crate::base::Status;
use crate::constrain::{Constraint, ConstraintKind, JsonOptions};
use crate::engine::Engine;
use crate::engine::api::*;
use crate::sample::SamplingParams;
use std::time::Duration;

fn echo(limit: u64) -> Engine {
    Engine::create(EngineConfig {
        model_path: Some("builtin:echo".into()),
        threads: 1,
        max_batch_size: 2,
        context_length: 4096,
        queue_capacity: 8,
        memory_limit_bytes: limit,
        ..EngineConfig::default()
    })
    .unwrap()
}

/// An engine with 4 MiB for requests.
fn small() -> Engine {
    let fixed = echo(0).stats().memory_used_bytes;
    echo(fixed + (4 << 20))
}

fn room(engine: &Engine) -> u64 {
    let stats = engine.stats();
    stats.memory_limit_bytes - stats.memory_used_bytes
}

/// Compiles a grammar, or reuses the cached one. Returns the number of compilations so far.
fn compile(engine: &Engine) -> u64 {
    let constraint =
        Constraint { kind: ConstraintKind::Regex, text: "[a-z]{3}".into(), json: JsonOptions::default() };
    engine.check_constraint(&constraint).unwrap();
    engine.stats().grammars_compiled
}

/// Requests whose output is held until they end.
fn heavy() -> Vec<RequestParams<'static>> {
    let mut prompt = vec![97; 1000];
    prompt.push(257);
    let request = RequestParams {
        prompt: Prompt::Tokens(prompt.into()),
        max_new_tokens: 1000,
        stream: false,
        speculation: Some(Speculation::Off),
        sampling: SamplingParams { logprobs: true, top_logprobs: 20, ..Default::default() },
        ..RequestParams::default()
    };
    vec![request; 2]
}

fn run(engine: &Engine, requests: Vec<RequestParams>) {
    let mut ids = engine.submit(requests).unwrap();
    while !ids.is_empty() {
        let mut ended = Vec::new();
        let wait = Some(Duration::from_secs(60));
        engine
            .poll(Which::Any, 8, wait, &mut |_, event| {
                assert_eq!(event.finish, FinishReason::Length, "{}", event.message);
                ended.push(event.request);
            })
            .unwrap();
        assert!(!ended.is_empty(), "{} do not end", ids.len());
        ids.retain(|id| !ended.contains(id));
        ended.into_iter().for_each(|id| engine.release(id).unwrap());
    }
}

/// Two requests have room for their whole output if the grammar is evicted.
#[test]
fn a_grant_that_was_refused_gets_the_bytes_of_grammars() {
    let engine = small();
    let before = room(&engine);
    run(&engine, heavy());
    let stats = engine.stats();
    let both = stats.memory_peak_bytes - stats.memory_used_bytes;
    assert_eq!(compile(&engine), 1);
    let kept = before - room(&engine);
    assert!(kept > 100 << 10 && both > 2 * kept, "{kept} bytes are kept, {both} needed");
    let _others = engine.hub().set_aside(before - both - kept / 2).unwrap();
    run(&engine, heavy());
    assert_eq!(engine.stats().pauses, 0, "nobody has to wait");
    assert_eq!(compile(&engine), 2, "the grammar went");
}

#[test]
fn an_adapter_gets_the_bytes_of_grammars() {
    let engine = small();
    let before = room(&engine);
    assert_eq!(compile(&engine), 1);
    let _others = engine.hub().set_aside(room(&engine) - 1).unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/adapters/llama");
    let error = engine.open_adapter(path).err().unwrap();
    assert_ne!(error.status, Status::MemoryLimit, "{error}");
    assert!(room(&engine) < before && compile(&engine) == 2, "the grammar went");
}

/// A request that is refused with and without kept grammars does not evict them.
#[test]
fn grammars_stay_if_a_request_is_refused_anyway() {
    let engine = small();
    assert_eq!(compile(&engine), 1);
    let refused = |request, why: &str| {
        let error = engine.submit(vec![request]).unwrap_err();
        assert!(error.message.contains(why), "{error}");
        assert_eq!(compile(&engine), 1, "{error}");
    };
    let [plain, huge] = heavy().try_into().unwrap();
    refused(
        RequestParams { stop_strings: vec!["x".repeat(60_000).into(); 16], ..huge },
        "not fit even alone",
    );
    let others = engine.hub().set_aside(room(&engine) - 1).unwrap();
    refused(plain, "does not fit now");
    drop(others);
    run(&engine, heavy());
    assert_eq!(compile(&engine), 1);
}
