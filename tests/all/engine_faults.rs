//! A model that fails on purpose: the affected requests get an error, and all others are undisturbed.

use crate::engine_support::*;
use bn_engine::base::{Error, Result, Status};
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::model::{Facts, KvShape, Loaded, Model, Outputs};
use bn_engine::ops::{Memory, OpSet, RaggedBatch};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

const VOCAB: usize = 16;
const PANIC: u32 = 10;
const FAIL: u32 = 11;
const NAN: u32 = 12;
/// The pass reports that it was stopped, as if a shutdown's command were still on its way.
const STOPPED: u32 = 13;
/// The pass goes on until it is stopped.
const SLOW: u32 = 14;
/// The token after this one is NAN.
const BEFORE_NAN: u32 = 9;

/// A model that counts upwards from the last token, below 8; some tokens make it fail. A hidden state holds 1
/// and the token.
struct Faulty {
    facts: Facts,
    /// Panics outside the guarded forward pass: kills the engine thread.
    die: Arc<AtomicBool>,
}

impl Model for Faulty {
    fn facts(&self) -> &Facts {
        let engine = std::thread::current().name() == Some("bn-engine");
        assert!(!(engine && self.die.load(Ordering::SeqCst)), "asked to die");
        &self.facts
    }
    fn kv_shape(&self) -> KvShape {
        KvShape { layers: 1, kv_heads: 1, head_dim: 2, ..KvShape::default() }
    }
    fn workspace_bytes(&self, _: &dyn OpSet, _: usize, _: usize) -> usize {
        0
    }
    fn forward(
        &self,
        _: &dyn OpSet,
        batch: &RaggedBatch,
        _: &mut dyn Memory,
        stop: &mut dyn FnMut() -> bool,
        out: &mut Outputs,
    ) -> Result<()> {
        if batch.tokens.contains(&SLOW) {
            while !stop() {
                std::thread::yield_now();
            }
            return Err(Error::new(Status::Cancelled, "stopped"));
        }
        if batch.tokens.contains(&PANIC) {
            panic!("a token that panics");
        }
        if batch.tokens.contains(&FAIL) {
            return Err(Error::internal("a token that fails"));
        }
        if batch.tokens.contains(&STOPPED) {
            return Err(Error::new(Status::Cancelled, "stopped"));
        }
        out.hidden.clear();
        for &row in &batch.hidden_rows {
            let token = batch.tokens[row as usize];
            out.hidden.extend([1.0, if token == NAN { f32::NAN } else { token as f32 }]);
        }
        let out = &mut out.logits;
        out.clear();
        for &row in &batch.logits_rows {
            let token = batch.tokens[row as usize];
            let fill = if token == NAN { f32::NAN } else { 0.0 };
            let start = out.len();
            out.resize(start + VOCAB, fill);
            let next = if token == BEFORE_NAN { NAN as usize } else { (token as usize + 1) % 8 };
            out[start + next] = if token == NAN { f32::NAN } else { 1.0 };
        }
        Ok(())
    }
}

fn engine(die: &Arc<AtomicBool>, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let facts = Facts { vocab_size: VOCAB, context_length: 64, hidden_size: 2, ..Facts::default() };
    of(facts, die, change)
}

fn of(facts: Facts, die: &Arc<AtomicBool>, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config = EngineConfig::default();
    change(&mut config);
    let model = Arc::new(Faulty { facts, die: die.clone() });
    config.model = Some(Loaded::of(model));
    Engine::create(config).unwrap()
}

fn ids(prompt: &[u32], new: u32) -> RequestParams<'_> {
    RequestParams { prompt: Prompt::Tokens(prompt.into()), ..text("", new) }
}

#[test]
fn a_request_that_fails_takes_nobody_with_it() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let sink = log.clone();
    let engine = engine(&Arc::default(), |config| {
        config.log = Some(Arc::new(move |_, message: &str| sink.lock().unwrap().push(message.to_string())));
    });
    let prompts: [&[u32]; 6] = [&[1], &[PANIC], &[2], &[FAIL], &[NAN], &[3, 4]];
    let requests = engine.submit(prompts.iter().map(|p| ids(p, 3)).collect()).unwrap();
    let answers = collect(&engine, 6);
    let of = |i: usize| &answers[&requests[i]];
    assert_eq!(
        (of(0).tokens.as_slice(), of(2).tokens.as_slice(), of(5).tokens.as_slice()),
        ([2, 3, 4].as_slice(), [3, 4, 5].as_slice(), [5, 6, 7].as_slice())
    );
    for (i, says) in [(1, "a token that panics"), (3, "a token that fails"), (4, "NaN")] {
        assert_eq!(of(i).finish, FinishReason::Failed as i32);
        assert!(of(i).message.contains(says), "{}", of(i).message);
    }
    assert!(log.lock().unwrap().iter().any(|line| line.contains("a token that panics")));
    let stats = engine.stats();
    assert_eq!((stats.completed_failed, stats.completed_length, stats.kv_blocks_used), (3, 3, 0));
    assert_eq!(ask(&engine, ids(&[5], 2)).tokens, [6, 7], "and it goes on");
}

#[test]
fn an_embedding_counts_no_row_twice_when_a_step_fails_beside_it() {
    let engine = engine(&Arc::default(), |config| config.max_batch_tokens = 32);
    let vector = |prompt: &[u32]| RequestParams {
        prompt: Prompt::Tokens(prompt.to_vec().into()),
        ..embedding("", Some(Pooling::Mean), false)
    };
    // The first step has the first two and a part of the third.
    let requests = vec![ids(&[PANIC], 1), vector(&[1, 2, 3, 6]), vector(&[4; 60]), vector(&[3, NAN])];
    let requests = engine.submit(requests).unwrap();
    let answers = collect(&engine, 4);
    assert_eq!(answers[&requests[0]].finish, FinishReason::Failed as i32);
    assert_eq!(answers[&requests[1]].vector, [1.0, 3.0]);
    assert_eq!(answers[&requests[2]].vector, [1.0, 4.0]);
    let nan = &answers[&requests[3]];
    assert_eq!((nan.finish, nan.vector.len()), (FinishReason::Failed as i32, 0));
    assert!(nan.message.contains("NaN"), "{}", nan.message);
}

#[test]
fn a_model_without_hidden_states_makes_no_embeddings() {
    let facts = Facts { vocab_size: VOCAB, context_length: 64, ..Facts::default() };
    let engine = of(facts, &Arc::default(), |_| ());
    let request = RequestParams { prompt: Prompt::Tokens(vec![1].into()), ..embedding("", None, true) };
    let error = engine.submit(vec![request]).unwrap_err();
    assert!(error.status == Status::Unsupported && error.message.contains("hidden states"), "{error}");
    assert_eq!(ask(&engine, ids(&[1], 2)).tokens, [2, 3]);
}

#[test]
fn a_dead_engine_ends_every_request_and_says_so() {
    let die = Arc::new(AtomicBool::new(false));
    let engine = engine(&die, |_| ());
    assert_eq!(ask(&engine, ids(&[1], 2)).tokens, [2, 3]);
    die.store(true, Ordering::SeqCst);
    let requests = engine.submit(vec![ids(&[1], 8), ids(&[2], 8)]).unwrap();
    let answers = collect(&engine, 2);
    for id in requests {
        assert_eq!(answers[&id].finish, FinishReason::Failed as i32);
        assert!(answers[&id].message.contains("asked to die"), "{}", answers[&id].message);
    }
    assert_eq!(engine.poll(Which::Any, 1, None, &mut |_, _| ()).unwrap_err().status, Status::EngineDead);
    assert_eq!(engine.submit(vec![ids(&[1], 1)]).unwrap_err().status, Status::EngineDead);
    assert_eq!(engine.cancel(Which::Any).unwrap_err().status, Status::EngineDead);
    assert_eq!(engine.shutdown(ShutdownMode::Drain).unwrap_err().status, Status::EngineDead);
    let stats = engine.stats();
    assert_eq!((stats.accepted, stats.completed_failed, stats.queued, stats.running), (3, 2, 0, 0));
    engine.destroy().unwrap();
}

#[test]
fn a_pass_that_stops_unasked_fails_its_request_and_no_more() {
    let engine = engine(&Arc::default(), |_| ());
    let stopped = ask(&engine, ids(&[STOPPED], 5));
    assert_eq!(stopped.finish, FinishReason::Failed as i32);
    assert_eq!(ask(&engine, ids(&[1], 2)).tokens, [2, 3]);
}

/// A pass with `SLOW` in it ends only when it is stopped.
#[test]
fn a_pass_stops_once_everybody_in_it_has_ended() {
    let engine = engine(&Arc::default(), |_| ());
    let all = |reason: FinishReason, n: usize| {
        let answers = collect(&engine, n);
        assert!(answers.values().all(|answer| answer.finish == reason as i32), "{answers:?}");
        assert_eq!(engine.stats().kv_blocks_used, 0);
    };
    let two = || engine.submit(vec![ids(&[SLOW], 5), ids(&[SLOW, 1], 5)]).unwrap();
    let requests = two();
    for id in requests {
        engine.cancel(Which::One(id)).unwrap();
    }
    all(FinishReason::Cancelled, 2);
    two();
    engine.cancel(Which::Any).unwrap();
    all(FinishReason::Cancelled, 2);
    let slow = || RequestParams { timeout_ms: 20, ..ids(&[SLOW], 5) };
    engine.submit(vec![slow(), slow()]).unwrap();
    all(FinishReason::TimedOut, 2);
    for id in two() {
        engine.release(id).unwrap();
    }
    assert_eq!(ask(&engine, ids(&[1], 2)).tokens, [2, 3], "released ones hold nobody up");
    assert_eq!(engine.stats().steps, 2, "a stopped pass counts for nothing");
    two();
    engine.destroy().unwrap();
}

#[test]
fn a_request_that_fails_late_keeps_what_it_had() {
    let engine = engine(&Arc::default(), |_| ());
    let request = RequestParams { stream: false, echo_prompt: true, ..ids(&[BEFORE_NAN], 5) };
    let answer = ask(&engine, request);
    assert_eq!(
        (answer.finish, answer.tokens.as_slice()),
        (FinishReason::Failed as i32, [BEFORE_NAN, NAN].as_slice())
    );
}

#[test]
fn a_model_without_a_tokenizer_takes_ids_only() {
    let engine = engine(&Arc::default(), |_| ());
    let error = engine.submit(vec![text("words", 3)]).unwrap_err();
    assert_eq!(error.status, Status::Unsupported);
    let mut request = ids(&[1], 3);
    request.stop_strings = vec!["x".into()];
    assert_eq!(engine.submit(vec![request]).unwrap_err().status, Status::Unsupported);
    assert_eq!(ask(&engine, ids(&[1], 3)).text, "");
}
