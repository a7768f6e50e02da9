//! Helpers that the tests share.
use bn::{Answer, Engine, EngineOptions, Error, ErrorKind, Request, Stream};
use serde_json::Value;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// A model whose requests do not end by themselves while a test runs.
pub const SLOW: &str = "builtin:echo?us_per_token=2000";
pub const ECHO: &str = "builtin:echo";
pub const STORY: &str = "Once upon a time";

pub fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(path)
}

pub fn json(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(path)).unwrap()).unwrap()
}

/// An engine of the embedded model.
pub fn demo() -> Engine {
    Engine::new(EngineOptions::default()).unwrap()
}

/// An engine of another model.
pub fn open(model: impl Into<PathBuf>) -> Engine {
    open_with(model, |_| ())
}

pub fn open_with(model: impl Into<PathBuf>, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let mut options = EngineOptions { model_path: Some(model.into()), ..EngineOptions::default() };
    change(&mut options);
    Engine::new(options).unwrap()
}

pub fn endless() -> Request {
    Request { max_new_tokens: 0, ignore_eos: true, ..Request::prompt("wait") }
}

pub fn generate(engine: &Engine, request: &Request) -> Answer {
    engine.generate(request).unwrap()
}

/// Reads a stream to its end.
pub fn read(mut stream: Stream) -> (String, Vec<u32>) {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    while let Some(event) = stream.recv() {
        text.push_str(&event.text);
        tokens.extend(event.tokens);
    }
    (text, tokens)
}

#[track_caller]
pub fn wants<T>(result: Result<T, Error>, kind: ErrorKind, part: &str) {
    let error = result.err().expect("it is an error");
    assert!(error.kind() == kind && error.message().contains(part), "{error:?}, not {kind:?} with {part}");
}

/// Waits until a condition holds.
#[track_caller]
pub fn eventually(is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it does not come");
        thread::sleep(Duration::from_millis(1));
    }
}
