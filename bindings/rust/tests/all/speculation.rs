//! Drafts change no token, and are counted.
use crate::support::{ECHO, STORY, generate, open_with, wants};
use bn::{Engine, EngineOptions, ErrorKind, Model, Request, Sampling, Speculation};

#[test]
fn looked_up_drafts_are_counted() {
    // 15
    let engine =
        open_with(ECHO, |options| (options.speculation, options.draft_tokens) = (Speculation::Lookup, 1));
    let request = Request::prompt("one two three one two three one two three one two three "); // which the answer repeats
    let drafted = generate(&engine, &request);
    let plain = generate(&engine, &Request { speculation: Speculation::Off, ..request });
    assert_eq!((&drafted.text, plain.finish.usage.drafted_tokens), (&plain.text, 0));
    let usage = drafted.finish.usage;
    assert!(usage.accepted_tokens > 0);
    let stats = engine.stats().unwrap();
    assert_eq!(stats.drafted_tokens, u64::from(usage.drafted_tokens));
    assert_eq!(stats.accepted_tokens, u64::from(usage.accepted_tokens));
    let options = EngineOptions { draft_tokens: 16, ..EngineOptions::default() };
    wants(Engine::new(options), ErrorKind::InvalidArgument, "draft_tokens");
}

#[test]
fn a_draft_model_changes_no_token() {
    let model = Model::builtin().unwrap();
    let options =
        EngineOptions { model: Some(model.clone()), draft_model: Some(model), ..EngineOptions::default() };
    let engine = Engine::new(options).unwrap(); // it drafts for itself
    let sampling = Sampling { temperature: 0.8, ..Sampling::default() };
    let request =
        Request { max_new_tokens: 40, sampling, speculation: Speculation::Draft, ..Request::prompt(STORY) };
    let drafted = generate(&engine, &request);
    let plain = generate(&engine, &Request { speculation: Speculation::Off, ..request });
    assert_eq!(drafted.text, plain.text);
    assert_eq!(drafted.finish.usage.accepted_tokens, drafted.finish.usage.drafted_tokens);
    let options = EngineOptions { speculation: Speculation::Draft, ..EngineOptions::default() };
    wants(Engine::new(options), ErrorKind::InvalidArgument, "draft_model");
}
