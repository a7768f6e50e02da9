//! Statistics, pauses, shutdowns.
use crate::support::{ECHO, SLOW, endless, generate, open, open_with, wants};
use bn::{Engine, EngineOptions, ErrorKind, FinishReason, Latency, Lengths, Request, Shutdown, State};

#[test]
fn statistics_count_what_was_done() {
    // 9
    let engine =
        open_with(ECHO, |options| (options.queue_capacity, options.model_name) = (7, Some("parrot".into())));
    let answer = generate(&engine, &Request::prompt("count this"));
    crate::support::eventually(|| engine.stats().unwrap().unreleased == 0);
    let stats = engine.stats().unwrap();
    assert_eq!((stats.accepted, stats.completed_stop, stats.running + stats.queued), (1, 1, 0));
    assert_eq!((stats.queue_capacity, stats.end_to_end.count), (7, 1));
    assert_eq!(stats.generated_tokens, u64::from(answer.finish.usage.generated_tokens));
    assert!(stats.end_to_end.p50_ns > 0 && answer.finish.times.total >= answer.finish.times.first_token);
    assert_eq!(stats.prompt_lengths.buckets.iter().sum::<u64>(), 1);
    assert!(engine.metrics().unwrap().contains(r#""parrot""#));
    assert!(!engine.report().unwrap().is_empty());
    assert_eq!(engine.state().unwrap(), State::Running);
    assert_eq!((Latency::bound_ns(0), Latency::bound_ns(23)), (10_000, u64::MAX));
    assert_eq!((Lengths::bound(0), Lengths::bound(19)), (1, u64::MAX));
}

#[test]
fn a_paused_engine_runs_nothing_and_goes_on() {
    // 17
    let engine = Engine::new(EngineOptions { threads: 2, ..EngineOptions::default() }).unwrap();
    engine.pause().unwrap();
    let stream = engine.submit(&Request::prompt("17+25=")).unwrap();
    let late = generate(&engine, &Request { timeout_ms: 1, ..Request::prompt("17+25=") });
    assert_eq!(late.finish.reason, FinishReason::TimedOut);
    let stats = engine.stats().unwrap();
    assert_eq!((stats.engine_paused, stats.queued, stats.steps, stats.threads), (1, 1, 0, 2));
    engine.set_threads(1).unwrap();
    wants(engine.set_threads(3), ErrorKind::InvalidArgument, "threads = 3");
    engine.resume().unwrap();
    assert_eq!(stream.answer().text, "42");
    let stats = engine.stats().unwrap();
    assert_eq!((stats.engine_paused, stats.threads), (0, 1));
}

#[test]
fn a_drain_finishes_what_was_accepted() {
    let engine = open(ECHO);
    let stream = engine.submit(&Request::prompt("is finished before the engine")).unwrap();
    engine.shutdown(Shutdown::Drain).unwrap();
    wants(engine.submit(&Request::prompt("x")), ErrorKind::Shutdown, "");
    assert_eq!(stream.answer().text, "is finished before the engine");
    crate::support::eventually(|| engine.state().unwrap() == State::Drained);
    let engine = open(SLOW);
    let stream = engine.submit(&endless()).unwrap();
    engine.shutdown(Shutdown::Drain).unwrap();
    assert_eq!(engine.state().unwrap(), State::Draining);
    engine.shutdown(Shutdown::Cancel).unwrap();
    assert_eq!(stream.answer().finish.reason, FinishReason::Cancelled);
}

#[test]
fn all_requests_are_cancelled_at_once() {
    let engine = open(SLOW);
    let streams: Vec<_> = (0..8).map(|_| engine.submit(&endless()).unwrap()).collect();
    engine.cancel_all().unwrap();
    for stream in streams {
        assert_eq!(stream.answer().finish.reason, FinishReason::Cancelled);
    }
    assert_eq!(generate(&engine, &Request::prompt("goes on")).text, "goes on");
}

/// A request that waits for the only place is overtaken by an urgent one.
#[test]
fn an_urgent_request_comes_first() {
    let engine = open_with(SLOW, |options| options.max_batch_size = 1);
    let urgent = bn::PRIORITY_MAX;
    let mut first = engine.submit(&Request { priority: urgent, ..endless() }).unwrap();
    first.recv().unwrap();
    let mut second = engine.submit(&endless()).unwrap();
    let third = engine.submit(&Request { priority: urgent, ..Request::prompt("is urgent") }).unwrap();
    drop(first);
    assert_eq!(third.answer().text, "is urgent");
    assert!(second.try_recv().is_none_or(|event| event.finish.is_none()));
}
