//! Closures that the library calls.
use crate::support::{ECHO, SLOW, STORY, demo, endless, eventually, generate, open, wants};
use bn::{
    Engine, EngineOptions, ErrorKind, FinishReason, LogLevel, OnLogits, Request, Shutdown, SpanKind, Trace,
};
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use std::thread;

#[test]
fn on_logits_changes_the_output() {
    let engine = demo();
    thread::scope(|scope| {
        for token in 20..36u32 {
            let engine = &engine;
            scope.spawn(move || {
                let rows = Arc::new(Mutex::new(Vec::new()));
                let kept = rows.clone();
                let force: OnLogits = Arc::new(move |row| {
                    row.logits[token as usize + row.output_tokens.len()] = 1e6;
                    kept.lock().unwrap().push((
                        row.user_data,
                        row.prompt_tokens.len(),
                        row.output_tokens.to_vec(),
                    ));
                    ControlFlow::Continue(())
                });
                let request = Request {
                    max_new_tokens: 3,
                    ignore_eos: true,
                    user_data: u64::from(token),
                    on_logits: Some(force),
                    ..Request::prompt(STORY)
                };
                let answer = generate(engine, &request);
                assert_eq!(
                    (answer.tokens.as_slice(), answer.user_data),
                    (&[token, token + 1, token + 2][..], token.into())
                );
                let rows = rows.lock().unwrap();
                assert_eq!((rows.len(), rows[2].0, &rows[2].2[..]), (3, token.into(), &answer.tokens[..2]));
                assert!(rows[0].1 > 0);
            });
        }
    });
}

#[test]
fn a_panic_in_on_logits_ends_its_request_alone() {
    let engine = demo();
    let at_third = |end: fn() -> ControlFlow<()>| -> OnLogits {
        Arc::new(move |row| if row.output_tokens.len() == 2 { end() } else { ControlFlow::Continue(()) })
    };
    let other = engine.submit(&Request { max_new_tokens: 40, ..Request::prompt(STORY) }).unwrap();
    for (end, message) in [
        (at_third(|| ControlFlow::Break(())), ""),
        (at_third(|| resume_unwind(Box::new("it is caught"))), "on_logits panicked"),
    ] {
        let request = Request { on_logits: Some(end), ..Request::prompt(STORY) };
        let answer = engine.submit(&request).unwrap().answer();
        let error = answer.finish.error.unwrap();
        assert_eq!((answer.finish.reason, error.kind()), (FinishReason::Failed, ErrorKind::Cancelled));
        assert!(error.message().contains(message) && answer.tokens.len() == 2, "{error}");
        wants(engine.generate(&request), ErrorKind::Cancelled, message);
    }
    assert_eq!(other.answer().finish.usage.generated_tokens, 40);
    assert_eq!(generate(&engine, &Request::prompt("17+25=")).text, "42");
}

#[test]
fn spans_of_traced_requests_come() {
    let spans = Arc::new(Mutex::new(Vec::new()));
    let to = spans.clone();
    let options = EngineOptions {
        model_path: Some(ECHO.into()),
        on_span: Some(Arc::new(move |span| to.lock().unwrap().push(span.clone()))),
        ..EngineOptions::default()
    };
    let engine = Engine::new(options).unwrap();
    let trace = Trace { trace_id: [7; 16], parent_id: [9; 8] };
    let stream = engine.submit(&Request { trace: Some(trace), ..Request::prompt("abc") }).unwrap();
    let id = stream.id();
    let usage = stream.answer().finish.usage;
    generate(&engine, &Request::prompt("has no trace"));
    engine.close().unwrap(); // after which none comes
    let spans = spans.lock().unwrap();
    let kinds: Vec<_> = spans.iter().map(|span| span.kind).collect();
    assert_eq!(kinds, [SpanKind::Queued, SpanKind::Prefill, SpanKind::Decode]);
    assert!(spans.iter().all(|span| span.request == id && span.trace == trace && span.start <= span.end));
    assert_eq!((spans[0].tokens, spans[2].tokens), (usage.prompt_tokens, usage.generated_tokens));
    assert_eq!(spans[2].finish_reason, FinishReason::Stop);
}

#[test]
fn the_log_is_heard_and_may_panic() {
    let lines = Arc::new(AtomicUsize::new(0));
    let counted = lines.clone();
    let options = EngineOptions {
        log_level: LogLevel::Debug,
        log: Some(Arc::new(move |level, line| {
            assert!(level <= LogLevel::Debug && !line.is_empty());
            counted.fetch_add(1, Ordering::Relaxed);
            resume_unwind(Box::new("it is caught"));
        })),
        ..EngineOptions::default()
    };
    let engine = Engine::new(options).unwrap();
    assert_eq!(generate(&engine, &Request::prompt("17+25=")).text, "42");
    engine.close().unwrap();
    assert!(lines.load(Ordering::Relaxed) > 0);
}

#[test]
fn waiting_in_a_closure_is_refused() {
    let engine = open(ECHO);
    let results = Arc::new(Mutex::new(Vec::new()));
    let (inner, to) = (engine.clone(), results.clone());
    let once = OnceLock::new();
    let waits: OnLogits = Arc::new(move |_| {
        once.get_or_init(|| {
            let mut to = to.lock().unwrap();
            to.push(inner.generate(&Request::prompt("x")).map(drop));
            to.push(inner.embed(&Request::prompt("x")).map(drop));
            to.push(inner.pause());
            to.push(inner.set_threads(1));
            to.push(inner.cache_clear());
            inner.stats().unwrap(); // needs not wait
        });
        ControlFlow::Continue(())
    });
    let answer = generate(&engine, &Request { on_logits: Some(waits), ..Request::prompt("abc") });
    assert_eq!(answer.text, "abc");
    let results = std::mem::take(&mut *results.lock().unwrap());
    assert_eq!(results.len(), 5);
    for result in results {
        wants(result, ErrorKind::Reentrant, "");
    }
    eventually(|| engine.stats().unwrap().unreleased == 0); // those that were begun there are cancelled
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("it is caught"));
    }
}

#[test]
fn a_waker_may_panic() {
    let engine = open(SLOW);
    let mut stream = engine.submit(&endless()).unwrap();
    let waker = Waker::from(Arc::new(Panics));
    for _ in 0..4 {
        let polled = futures_core::Stream::poll_next(
            std::pin::Pin::new(&mut stream),
            &mut Context::from_waker(&waker),
        );
        assert!(!matches!(polled, std::task::Poll::Ready(None)));
        stream.recv().unwrap();
    }
    assert_eq!(generate(&engine, &Request::prompt("go on")).text, "go on");
    engine.shutdown(Shutdown::Cancel).unwrap();
    assert_eq!(stream.answer().finish.reason, FinishReason::Cancelled);
}
