//! Constrained outputs match, in any batch; an impossible constraint is refused, and costs only its own
//! request.

#[path = "constrained/schemas.rs"]
mod schemas;

use crate::engine_support::*;
use bn_engine::base::Status;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::sample::SamplingParams;
use schemas::{Random, fault, schema};
use serde_json::Value;
use std::sync::Arc;

fn constrained<'a>(kind: ConstraintKind, of: &'a str, prompt: &'a str, seed: u64) -> RequestParams<'a> {
    RequestParams {
        constraint: Some(Constraint { kind, text: of.into(), json: JsonOptions::default() }),
        sampling: SamplingParams { temperature: 1.0, seed, ..Default::default() },
        ..text(prompt, 200)
    }
}

fn refused(engine: &Engine, kind: ConstraintKind, of: &str) -> (Status, String) {
    let error = engine.submit(vec![constrained(kind, of, "x", 0)]).unwrap_err();
    (error.status, error.message)
}

/// Biases that make a model without knowledge of JSON write few spaces and digits, and end soon.
fn hasty(engine: &Engine) -> LogitsHook {
    let tokenizer = engine.loaded().tokenizer.clone().unwrap();
    let only = |all: &[u8]| -> Vec<usize> {
        let made = |id: &u32| tokenizer.token_bytes(*id).is_some_and(|b| b.iter().all(|b| all.contains(b)));
        (0..tokenizer.vocab_size() as u32).filter(made).map(|id| id as usize).collect()
    };
    let (endless, ends) = (only(b" \t\r\n0123456789"), only(b"\"}]"));
    LogitsHook(Arc::new(move |row| {
        endless.iter().for_each(|&token| row.logits[token] -= 16.0);
        if row.output.len() > 30 {
            ends.iter().for_each(|&end| row.logits[end] += 8.0);
        }
        0
    }))
}

#[test]
fn a_thousand_random_schemas_are_kept() {
    let engine = demo(|config| {
        (config.context_length, config.max_batch_size, config.threads) = (512, 64, 2);
    });
    let mut random = Random(1);
    let schemas: Vec<Value> = (0..1000).map(|_| schema(&mut random)).collect();
    let texts: Vec<String> = schemas.iter().map(Value::to_string).collect();
    let hook = hasty(&engine);
    let requests = texts.iter().enumerate().map(|(i, text)| RequestParams {
        on_logits: Some(hook.clone()),
        ..constrained(ConstraintKind::JsonSchema, text, "A value: ", i as u64)
    });
    let ids = engine.submit(requests.collect()).unwrap();
    let answers = collect(&engine, ids.len());
    let (mut whole, mut cut) = (0, 0);
    for (schema, id) in schemas.iter().zip(&ids) {
        let answer = &answers[id];
        let value: Result<Value, _> = serde_json::from_str(&answer.text);
        match value {
            Ok(value) if answer.finish == FinishReason::Stop as i32 => {
                assert_eq!(fault(&value, schema, schema), None, "{schema}");
                whole += 1;
            }
            Err(error) if answer.finish == FinishReason::Length as i32 => {
                assert!(error.is_eof(), "{schema}: {}: {error}", answer.text);
                cut += 1;
            }
            // White space may follow, so the end may not have come in time.
            Ok(_) if answer.finish == FinishReason::Length as i32 => cut += 1,
            _ => panic!("{schema}: {:?} ends with {} {}", answer.text, answer.finish, answer.message),
        }
    }
    assert!(whole > 950, "{cut} are cut");
}

/// One constraint of each kind.
fn mixed(i: usize) -> (ConstraintKind, String) {
    let mut random = Random(i as u64);
    match i % 5 {
        0 => (ConstraintKind::JsonObject, String::new()),
        1 => (ConstraintKind::Regex, format!("([a-z]{{1,{}}} )*[A-Z]+\\.", 2 + i % 7)),
        2 => (
            ConstraintKind::Lark,
            format!("start: \"<\" item (\",\" item)* \">\"\nitem: /[0-9]{{{}}}/ | start", 1 + i % 4),
        ),
        3 => (ConstraintKind::Gbnf, "root ::= (\"yes\" | \"no\") \" \" [a-m]{1,9} root?".into()),
        _ => (ConstraintKind::JsonSchema, schema(&mut random).to_string()),
    }
}

/// With preemption, and with prefixes from the cache: some requests begin alike, and some differ only in
/// their seeds.
#[test]
fn any_batch_gives_the_same_bits_as_each_alone() {
    let grammars: Vec<_> = (0..32).map(|i| mixed(i / 2)).collect();
    let prompts: Vec<_> = (0..32).map(|i| format!("Once upon a time there was {}", i % 3)).collect();
    let request = |i: usize| {
        let mut request = with_logprobs(constrained(grammars[i].0, &grammars[i].1, &prompts[i], i as u64));
        request.max_new_tokens = 60;
        if i.is_multiple_of(3) {
            (request.sampling.temperature, request.sampling.chain_logprobs) = (0.7, true);
            request.sampling.repetition_penalty = 1.3;
        }
        request
    };
    let alone = demo(|config| config.max_batch_size = 1);
    let expected: Vec<_> = (0..32).map(|i| ask(&alone, request(i))).collect();
    let one = demo(|config| config.kv_block_size = 16).stats();
    let engine = demo(|config| {
        (config.max_batch_size, config.kv_block_size, config.threads) = (32, 16, 2);
        config.kv_cache_bytes = one.kv_bytes / one.kv_blocks_total * 40;
    });
    for round in 0..2 {
        let ids = engine.submit((0..32).map(request).collect()).unwrap();
        let answers = collect(&engine, 32);
        for (i, (id, want)) in ids.iter().zip(&expected).enumerate() {
            let got = &answers[id];
            assert_eq!((got.finish, &got.message), (want.finish, &want.message), "{i} in round {round}");
            assert_eq!((&got.text, &got.tokens), (&want.text, &want.tokens), "{i} in round {round}");
            assert_eq!(got.logprob_bits, want.logprob_bits, "{i} in round {round}");
            let ends = [FinishReason::Stop as i32, FinishReason::Length as i32];
            assert!(ends.contains(&got.finish), "{i}: {}", got.message);
        }
    }
    let stats = engine.stats();
    assert!(stats.preemptions > 0 && stats.cached_tokens > 0 && stats.mean_batch_size() > 4.0, "{stats:?}");
    assert!(stats.grammars_compiled <= 14 && stats.grammars_reused >= 50, "{stats:?}");
    assert!(stats.masks > 0 && stats.mask_ns > 0 && stats.grammar_compile_ns > 0);
}

#[test]
fn what_is_complete_ends_whatever_else_is_asked_for() {
    let engine = demo(|_| ());
    let request = || constrained(ConstraintKind::Regex, "abc|abd", "x", 1);
    let answer = ask(&engine, request());
    assert!(["abc", "abd"].contains(&answer.text.as_str()) && answer.finish == FinishReason::Stop as i32);
    let mut longer = request();
    longer.sampling.min_new_tokens = 50;
    longer.ignore_eos = true;
    assert_eq!(ask(&engine, longer).text, answer.text);
    let mut stopped = request();
    stopped.stop_strings = vec!["b".into()];
    let stopped = ask(&engine, stopped);
    assert_eq!((stopped.text.as_str(), stopped.finish), ("a", FinishReason::StopString as i32));
    // If an end is allowed but not required, it comes no sooner than requested.
    let mut open = constrained(ConstraintKind::Regex, "[ab]*", "x", 1);
    (open.sampling.min_new_tokens, open.max_new_tokens) = (20, 24);
    assert!(ask(&engine, open).tokens.len() >= 20);
}

#[test]
fn a_request_that_leaves_no_token_fails_alone() {
    let engine = demo(|_| ());
    let ends = engine.loaded().end_tokens.clone();
    let mut endless = constrained(ConstraintKind::Regex, "a", "x", 1);
    endless.sampling.logit_bias = ends.iter().map(|&end| (end, f32::NEG_INFINITY)).collect();
    let good = || constrained(ConstraintKind::Regex, "a", "x", 1);
    let ids = engine.submit(vec![good(), endless, good()]).unwrap();
    let answers = collect(&engine, 3);
    assert_eq!(answers[&ids[1]].finish, FinishReason::Failed as i32);
    assert!(answers[&ids[1]].message.contains("of those that the constraint allows"));
    for id in [ids[0], ids[2]] {
        assert_eq!((answers[&id].text.as_str(), answers[&id].finish), ("a", FinishReason::Stop as i32));
    }
}

#[test]
fn mistakes_are_refused_with_the_reason() {
    use ConstraintKind::*;
    let engine = demo(|_| ());
    for (kind, of, what) in [
        (JsonSchema, "{", "not a JSON schema"),
        (JsonSchema, r#"{"type": "thing"}"#, "thing"),
        (JsonSchema, r#"{"contains": {"type": "string"}}"#, "contains"),
        (JsonSchema, r##"{"$ref": "#/$defs/a"}"##, "#/$defs/a"),
        (JsonSchema, r#"{"$ref": "https://example.com/a.json"}"#, "https://example.com/a.json"),
        (JsonSchema, "false", "nothing is valid"),
        (JsonObject, "{}", "takes no text"),
        (Regex, "a(", "invalid regex: unclosed group"),
        (Regex, "(?=a)b", "look"),
        (Lark, "start: nothing", "nothing"),
        (Lark, "begin: \"a\"", "start"),
        (Gbnf, "root ::= x", "line 1: there is no rule named x"),
    ] {
        let (status, message) = refused(&engine, kind, of);
        assert_eq!(status, Status::InvalidArgument);
        assert!(message.starts_with("constraint: ") && message.contains(what), "{of}: {message}");
    }
    let mut embedding = embedding("x", None, true);
    embedding.constraint =
        Some(Constraint { kind: JsonObject, text: "".into(), json: JsonOptions::default() });
    assert!(engine.submit(vec![embedding]).unwrap_err().message.contains("constraint is set"));
    assert_eq!(engine.stats().grammars_compiled, 0);
}

fn hook(call: impl Fn(&mut LogitsRow) -> i32 + Send + Sync + 'static) -> Option<LogitsHook> {
    Some(LogitsHook(Arc::new(call)))
}

#[test]
fn a_hook_sees_the_tokens_so_far_and_has_the_first_word() {
    let engine = demo(|_| ());
    let plain = ask(&engine, text("Once upon a time", 12));
    let (first, prompt_tokens) = (plain.tokens[0], plain.usage.prompt_tokens as usize);
    let mut request = with_logprobs(text("Once upon a time", 12));
    request.user_data = 77;
    request.on_logits = hook(move |row| {
        assert_eq!((row.user_data, row.prompt.len()), (77, prompt_tokens));
        assert!(row.output.iter().all(|&token| token != first));
        row.logits[first as usize] = f32::NEG_INFINITY;
        0
    });
    let changed = ask(&engine, request);
    assert!(!changed.tokens.contains(&first) && changed.tokens.len() == 12, "{}", changed.message);
    assert!(changed.logprob_bits.iter().all(|(token, _)| *token != first));
}

/// The hook leaves one token, which another option forbids: the error names the options involved, and no
/// others.
#[test]
fn who_leaves_no_token_is_named() {
    let engine = demo(|_| ());
    let all = engine.facts().vocab_size as u32;
    let token = ask(&engine, text("Once upon a time", 1)).tokens[0];
    let request = |change: &dyn Fn(&mut RequestParams)| {
        let mut request = text("Once upon a time", 12);
        change(&mut request);
        let answer = ask(&engine, request);
        assert_eq!(answer.finish, FinishReason::Failed as i32);
        answer.message
    };
    let leave_one = |request: &mut RequestParams| {
        request.on_logits = hook(move |row| {
            let of_it = row.logits[token as usize];
            row.logits.fill(f32::NEG_INFINITY);
            row.logits[token as usize] = of_it;
            0
        });
    };
    let digits = |request: &mut RequestParams| {
        request.constraint = constrained(ConstraintKind::Regex, "[0-9]+", "", 0).constraint
    };
    let bias = |request: &mut RequestParams| {
        request.sampling.logit_bias = (0..all).map(|token| (token, f32::NEG_INFINITY)).collect();
    };
    let message = request(&|request| (leave_one(request), digits(request)).0);
    assert_eq!(message, "on_logits leaves no token of those that the constraint allows");
    assert_eq!(request(&bias), "logit_bias leaves no token that could be sampled");
    let message = request(&|request| {
        leave_one(request);
        digits(request);
        request.sampling.bad_words.push(vec![token]);
        request.sampling.min_new_tokens = 3;
    });
    assert_eq!(
        message,
        "on_logits, bad_words and min_new_tokens leave no token of those that the constraint allows"
    );
}

#[test]
fn a_hook_that_fails_ends_its_request_alone() {
    let engine = demo(|config| config.threads = 2);
    let request = |i: u32| {
        let mut request = text("Once upon a time", 12);
        request.on_logits = hook(move |row| match (i, row.output.len()) {
            (3, 5) => 9,
            (4, 5) => panic!("oh"),
            (5, 5) => {
                row.logits[0] = f32::NAN;
                0
            }
            (6, 5) => {
                row.logits.fill(f32::NEG_INFINITY);
                0
            }
            _ => 0,
        });
        request
    };
    let alone = ask(&engine, text("Once upon a time", 12));
    let ids = engine.submit((0..8).map(request).collect()).unwrap();
    let answers = collect(&engine, 8);
    for (i, id) in ids.iter().enumerate() {
        let why = [
            (3, "on_logits returned 9"),
            (4, "oh"),
            (5, "on_logits left logits that hold NaN:"),
            (6, "on_logits left logits that are all -infinity:"),
        ];
        let answer = &answers[id];
        match why.iter().find(|(of, _)| *of == i) {
            Some((_, why)) => {
                assert_eq!(
                    (answer.finish, &answer.tokens[..]),
                    (FinishReason::Failed as i32, &alone.tokens[..5])
                );
                assert!(answer.message.contains(why), "{}", answer.message);
            }
            None => assert_eq!((answer.finish, &answer.tokens), (alone.finish, &alone.tokens)),
        }
    }
}

fn plain(kind: ConstraintKind, text: String) -> Constraint<'static> {
    Constraint { kind, text: text.into(), json: JsonOptions::default() }
}

#[test]
fn grammars_that_are_kept_count() {
    let engine = demo(|config| config.memory_limit_bytes = 96 << 20);
    let used = |engine: &Engine| engine.stats().memory_used_bytes;
    let before = used(&engine);
    let regex = |n: usize| format!("[a-z]{{{n}}}");
    engine.check_constraint(&plain(ConstraintKind::Regex, regex(1))).unwrap();
    let one = used(&engine) - before;
    assert!(one > 64 << 10, "{one} bytes");
    engine.check_constraint(&plain(ConstraintKind::Regex, regex(1))).unwrap();
    assert_eq!(used(&engine) - before, one, "it is kept once");
    for n in 2..80 {
        engine.check_constraint(&plain(ConstraintKind::Regex, regex(n))).unwrap();
        assert!(used(&engine) - before <= 12 << 20 && used(&engine) <= 96 << 20);
    }
    assert!(used(&engine) - before > 4 * one, "several are kept");
}

/// Sixteen slow grammars do not delay a small one, and destroying the engine waits for none of them.
#[test]
fn a_small_grammar_passes_large_ones() {
    let engine = demo(|_| ());
    let large = |n: usize| {
        let patterns = (0..100).map(|i| (format!("^(a|b)*x{n}y{i}$"), Value::Bool(true)));
        serde_json::json!({"patternProperties": Value::Object(patterns.collect())}).to_string()
    };
    let check = |kind, text: String| engine.check_constraint(&plain(kind, text));
    std::thread::scope(|scope| {
        let others: Vec<_> =
            (0..16).map(|n| scope.spawn(move || check(ConstraintKind::JsonSchema, large(n)))).collect();
        while engine.stats().grammars_compiled == 0 && others.iter().all(|one| !one.is_finished()) {
            std::thread::yield_now();
        }
        check(ConstraintKind::Regex, "[a-z]+".into()).unwrap();
        let left = others.iter().filter(|one| !one.is_finished()).count();
        assert!(left > 0, "it came before the last of them");
        engine.destroy().unwrap();
        let ends: Vec<_> = others.into_iter().map(|one| one.join().unwrap()).collect();
        assert!(ends.iter().flatten().count() < 16);
        for error in ends.into_iter().filter_map(Result::err) {
            // If reading a clock is slow, as under Wine, the limit on CPU time may be reached first.
            let slow = error.message.contains("takes too long");
            assert!(slow || [Status::Shutdown, Status::TimedOut].contains(&error.status), "{error}");
        }
    });
}
