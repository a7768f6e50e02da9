//! Outputs that must match: they do, in any batch; what cannot be kept is refused, and costs its own request alone.

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
        constraint: Some(Constraint { kind, text: of.into() }),
        sampling: SamplingParams { temperature: 1.0, seed, ..Default::default() },
        ..text(prompt, 200)
    }
}

fn refused(engine: &Engine, kind: ConstraintKind, of: &str) -> (Status, String) {
    let error = engine.submit(vec![constrained(kind, of, "x", 0)]).unwrap_err();
    (error.status, error.message)
}

/// A model that knows no JSON is asked to write few spaces, and to come to an end.
fn hasty(engine: &Engine) -> LogitsHook {
    let tokenizer = engine.loaded().tokenizer.clone().unwrap();
    let only = |all: &[u8]| -> Vec<usize> {
        let made = |id: &u32| tokenizer.token_bytes(*id).is_some_and(|b| b.iter().all(|b| all.contains(b)));
        (0..tokenizer.vocab_size() as u32).filter(made).map(|id| id as usize).collect()
    };
    let (spaces, ends) = (only(b" \t\r\n"), only(b"\"}]"));
    LogitsHook(Arc::new(move |row| {
        spaces.iter().for_each(|&space| row.logits[space] -= 8.0);
        if row.output.len() > 30 {
            ends.iter().for_each(|&end| row.logits[end] += 8.0);
        }
        0
    }))
}

#[test]
fn a_thousand_random_schemas_are_kept() {
    let engine = demo(|config| {
        (config.max_sequence_length, config.max_batch_size, config.threads) = (512, 64, 2);
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
                if cut % 20 == 0 { eprintln!("CUT {schema}\n  {}", answer.text); }
                cut += 1;
            }
            // White space may follow, and the end did not come in time.
            Ok(_) if answer.finish == FinishReason::Length as i32 => cut += 1,
            _ => panic!("{schema}: {:?} ends with {} {}", answer.text, answer.finish, answer.message),
        }
    }
    println!("{whole} whole, {cut} cut; {:?}", engine.stats().masks);
    assert!(whole > 900, "{cut} are cut");
}
