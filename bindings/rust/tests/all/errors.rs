//! Errors have a kind, and name the mistake.
use crate::support::{SLOW, endless, open, open_with, wants};
use bn::{Engine, EngineOptions, ErrorKind, FinishReason, Model, Request, Sampling};

#[test]
fn mistakes_are_errors_with_words() {
    // 5
    const NOWHERE: &str = "/nowhere/model.gguf";
    let options = EngineOptions { model_path: Some(NOWHERE.into()), ..EngineOptions::default() };
    wants(Engine::new(options), ErrorKind::Io, NOWHERE);
    wants(Model::open(NOWHERE), ErrorKind::Io, NOWHERE);
    let engine = open_with(SLOW, |options| options.queue_capacity = 1);
    let cold = Sampling { temperature: -1.0, ..Sampling::default() };
    let wrong = Request { sampling: cold, ..Request::prompt("x") };
    wants(engine.generate(&wrong), ErrorKind::InvalidArgument, "temperature");
    wants(
        engine.submit(&Request::prompt(Vec::<u32>::new())),
        ErrorKind::InvalidArgument,
        "the prompt is empty",
    );
    assert!(engine.model().chat_tokenize(&Vec::new().into()).is_ok()); // the template decides
    wants(Model::open(""), ErrorKind::InvalidArgument, "the path is empty");
    let _stream = engine.submit(&endless()).unwrap();
    wants(engine.submit(&endless()), ErrorKind::QueueFull, "1");
}

#[test]
#[cfg(unix)]
fn a_path_that_is_not_utf8_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::OsStr::from_bytes(b"/\xff");
    wants(Model::open(path), ErrorKind::InvalidArgument, "UTF-8");
    wants(Model::open("/a\0b"), ErrorKind::Io, "NUL");
}

#[test]
fn errors_are_the_librarys() {
    let error = Model::open("/nowhere").unwrap_err();
    assert_eq!(error.to_string(), error.message());
    assert_eq!((error.kind().name(), error.kind().status()), ("BN_ERR_IO", -8));
    assert!(!error.kind().meaning().is_empty());
    let _: &dyn std::error::Error = &error;
    assert_eq!(ErrorKind::Unknown(-77).name(), "BN_ERR_UNKNOWN");
    assert_eq!(FinishReason::StopString.to_string(), "stop_string");
    assert_eq!(FinishReason::Unknown(77).to_string(), "unknown");
}

#[test]
fn time_runs_out() {
    let engine = open(SLOW);
    let answer = engine.generate(&Request { timeout_ms: 1, ..endless() }).unwrap();
    assert_eq!(answer.finish.reason, FinishReason::TimedOut);
    assert_eq!(answer.finish.error.unwrap().kind(), ErrorKind::TimedOut);
}
