//! Engines and requests for the engine's tests.
#![allow(dead_code)]

use bn_engine::base::Result;
use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::sample::SamplingParams;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub fn echo(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config =
        EngineConfig { model_path: Some("builtin:echo".into()), threads: 1, ..Default::default() };
    config.context_length = 512;
    change(&mut config);
    create(config).expect("echo engine")
}

pub fn demo(change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config = EngineConfig { threads: 1, context_length: 256, ..Default::default() };
    change(&mut config);
    create(config).expect("demo engine")
}

/// An engine. With `BN_TEST_CACHE_PATH`, it keeps its prefixes in a folder of its own there, unless it is an encoder:
/// answers must be the same. `make test-rust` runs it so, without the tests that count memory or accepted drafts.
pub fn create(config: EngineConfig) -> Result<Engine> {
    let path = std::env::var("BN_TEST_CACHE_PATH").ok();
    let encodes = config.model.as_ref().is_some_and(|loaded| loaded.model.facts().encodes);
    match path.filter(|_| config.cache_path.is_none() && !encodes) {
        Some(path) => {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let own = format!("{path}/{}", COUNT.fetch_add(1, Ordering::Relaxed));
            Engine::create(EngineConfig { cache_path: Some(own), ..config })
        }
        None => Engine::create(config),
    }
}

pub fn text(prompt: &str, max_new_tokens: u32) -> RequestParams<'_> {
    RequestParams { prompt: Prompt::Text(prompt.into()), max_new_tokens, ..Default::default() }
}

pub fn with_logprobs(mut request: RequestParams) -> RequestParams {
    request.sampling = SamplingParams { logprobs: true, top_logprobs: 3, ..request.sampling };
    request
}

pub fn embedding(prompt: &str, pooling: Option<Pooling>, normalize: bool) -> RequestParams<'_> {
    let embedding = Some(EmbeddingParams { pooling, normalize: Some(normalize), score: false });
    RequestParams { embedding, ..text(prompt, 0) }
}

/// All output of a request, and its terminal event's fields.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub text: String,
    pub tokens: Vec<u32>,
    pub logprob_bits: Vec<(u32, u32)>,
    pub finish: i32,
    pub events: usize,
    pub message: String,
    pub usage: Usage,
    pub stop: Option<u32>,
    pub vector: Vec<f32>,
    pub pooling: Option<Pooling>,
    pub decisions: Decisions,
}

impl Answer {
    pub fn add(&mut self, event: &Event) {
        assert_eq!(self.finish, 0, "invariant 2: an event after the terminal one");
        self.events += 1;
        self.text.push_str(&event.text);
        self.tokens.extend(&event.tokens);
        self.logprob_bits.extend(event.logprobs.iter().map(|l| (l.token, l.logprob.to_bits())));
        self.finish = event.finish as i32;
        self.message = event.message.clone();
        self.usage = event.usage;
        self.stop = event.stop;
        self.decisions = event.decisions.clone();
        assert_eq!(event.embedding.is_some(), event.finish == FinishReason::Embedding);
        if let Some(embedding) = &event.embedding {
            (self.vector, self.pooling) = (embedding.values.clone(), Some(embedding.pooling));
        }
    }
}

/// Polls until `n` requests have ended, releases them, and returns their answers.
pub fn collect(engine: &Engine, n: usize) -> HashMap<RequestId, Answer> {
    let mut answers: HashMap<RequestId, Answer> = HashMap::new();
    let mut done = Vec::new();
    while done.len() < n {
        let mut leases = Vec::new();
        let got = engine
            .poll(Which::Any, 64, Some(Duration::from_secs(60)), &mut |lease, event| {
                leases.push((event.request, lease));
                answers.entry(event.request).or_default().add(event);
                if event.finish != FinishReason::None {
                    done.push(event.request);
                }
            })
            .expect("poll");
        engine.give_back(&mut leases.into_iter());
        assert!(got > 0, "nothing for a minute; {} of {n} ended: {:?}", done.len(), engine.stats());
    }
    for &id in &done {
        engine.release(id).expect("release");
    }
    answers
}

/// One request, alone.
pub fn ask(engine: &Engine, request: RequestParams) -> Answer {
    let id = engine.submit(vec![request]).expect("submit")[0];
    collect(engine, 1).remove(&id).expect("its answer")
}

/// The score of a pair of texts.
pub fn score(prompt: Prompt) -> RequestParams {
    let embedding = EmbeddingParams { pooling: None, normalize: None, score: true };
    RequestParams { prompt, embedding: Some(embedding), ..RequestParams::default() }
}

/// Asserts that the engine refuses a request with such a message.
pub fn refused(engine: &Engine, request: RequestParams, status: bn_engine::base::Status, says: &str) {
    let error = engine.submit(vec![request]).unwrap_err();
    assert_eq!(error.status, status, "{error}");
    assert!(error.message.contains(says), "{error} should say {says}");
}
