//! No order of dropping, closing and forgetting leaks, hangs or loses an end.
use crate::support::{ECHO, SLOW, endless, eventually, open, open_with, wants};
use bn::{Engine, EngineOptions, ErrorKind, FinishReason, Log, Request, Stream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Wake, Waker};
use std::{mem, thread};

/// A closure of an engine's.
type Freed = Weak<dyn Fn(bn::LogLevel, &str) + Send + Sync>;

/// An engine, and a weak reference that is dead once the engine is freed.
fn watched(model: &str) -> (Engine, Freed) {
    let log: Log = Arc::new(|_, _| ());
    let weak = Arc::downgrade(&log);
    let options =
        EngineOptions { model_path: Some(model.into()), log: Some(log), ..EngineOptions::default() };
    (Engine::new(options).unwrap(), weak)
}

#[test]
fn closing_ends_what_is_under_way() {
    // 8
    let engine = open_with(SLOW, |options| options.max_batch_size = 4);
    let mut streams: Vec<Stream> = (0..16).map(|_| engine.submit(&endless()).unwrap()).collect();
    let mut first = streams.remove(0);
    let readers: Vec<_> =
        streams.into_iter().map(|stream| thread::spawn(|| stream.answer().finish)).collect();
    let closers: Vec<_> = (0..2)
        .map(|_| {
            let engine = engine.clone();
            thread::spawn(|| engine.close().unwrap())
        })
        .collect();
    for reader in readers {
        let finish = reader.join().unwrap();
        assert_eq!(
            (finish.reason, finish.error.unwrap().kind()),
            (FinishReason::Cancelled, ErrorKind::Cancelled)
        );
    }
    closers.into_iter().for_each(|closer| closer.join().unwrap());
    while let Some(event) = first.recv() {
        assert!(event.finish.is_none_or(|finish| finish.reason == FinishReason::Cancelled));
    }
    wants(engine.generate(&endless()), ErrorKind::Shutdown, "closed");
    wants(engine.submit_batch(&[endless()]), ErrorKind::Shutdown, "closed");
    wants(engine.stats(), ErrorKind::Shutdown, "closed");
    wants(engine.state(), ErrorKind::Shutdown, "closed");
    wants(engine.session_save("s"), ErrorKind::Shutdown, "closed");
    engine.close().unwrap();
    drop(first);
}

#[test]
fn streams_keep_their_engine() {
    let (engine, freed) = watched(ECHO);
    let stream = engine.submit(&Request::prompt("goes on without the others")).unwrap();
    drop(engine);
    assert_eq!(stream.answer().text, "goes on without the others");
    assert!(freed.upgrade().is_none());
}

#[test]
fn an_engine_is_freed_with_its_last_stream() {
    let (engine, freed) = watched(SLOW);
    let streams: Vec<_> = (0..8).map(|_| engine.submit(&endless()).unwrap()).collect();
    drop(engine);
    assert!(freed.upgrade().is_some());
    drop(streams); // all are live
    assert!(freed.upgrade().is_none());
}

#[test]
fn a_forgotten_stream_harms_nobody() {
    let (engine, freed) = watched(SLOW);
    mem::forget(engine.submit(&endless()).unwrap());
    engine.clone().close().unwrap();
    wants(engine.stats(), ErrorKind::Shutdown, "closed");
    assert!(freed.upgrade().is_some()); // forgotten, with the engine's closures
}

/// Drops on the delivery thread what it gets from a test.
struct Dropper(Mutex<Receiver<Box<dyn Send>>>);

impl Dropper {
    fn make() -> (Sender<Box<dyn Send>>, Waker) {
        let (sender, receiver) = channel();
        (sender, Waker::from(Arc::new(Self(Mutex::new(receiver)))))
    }
}

impl Wake for Dropper {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().recv());
    }
}

fn poll(stream: &mut Stream, waker: &Waker) {
    // An event is waiting already; the next one wakes the task.
    while futures_core::Stream::poll_next(std::pin::Pin::new(stream), &mut Context::from_waker(waker))
        .is_ready()
    {}
}

#[test]
fn the_delivery_thread_may_drop_the_engine() {
    let (engine, freed) = watched(SLOW);
    let mut stream = engine.submit(&endless()).unwrap();
    drop(engine);
    let (sender, waker) = Dropper::make();
    poll(&mut stream, &waker);
    sender.send(Box::new(stream)).unwrap(); // the last that has the engine
    eventually(|| freed.upgrade().is_none());
}

#[test]
fn the_delivery_thread_may_close_the_engine() {
    struct Close(Option<Engine>);
    impl Drop for Close {
        fn drop(&mut self) {
            self.0.take().unwrap().close().unwrap();
        }
    }
    let (engine, freed) = watched(SLOW);
    let mut stream = engine.submit(&endless()).unwrap();
    let (sender, waker) = Dropper::make();
    poll(&mut stream, &waker);
    sender.send(Box::new(Close(Some(engine.clone())))).unwrap();
    assert_eq!(stream.answer().finish.reason, FinishReason::Cancelled);
    wants(engine.stats(), ErrorKind::Shutdown, "closed");
    drop(engine);
    eventually(|| freed.upgrade().is_none());
}

#[test]
fn a_closure_is_dropped_after_the_last_event() {
    let engine = open(ECHO);
    let kept: bn::OnLogits = Arc::new(|_| std::ops::ControlFlow::Continue(()));
    let weak = Arc::downgrade(&kept);
    let stream = engine.submit(&Request { on_logits: Some(kept), ..Request::prompt("abc") }).unwrap();
    assert_eq!(stream.answer().text, "abc");
    eventually(|| weak.upgrade().is_none());
    let kept: bn::OnLogits = Arc::new(|_| std::ops::ControlFlow::Continue(()));
    let weak = Arc::downgrade(&kept);
    let wrong = Request { on_logits: Some(kept), ..Request::prompt(Vec::<u32>::new()) };
    wants(engine.submit(&wrong), ErrorKind::InvalidArgument, "prompt");
    wants(engine.submit_batch(&[wrong.clone(), wrong]), ErrorKind::InvalidArgument, "prompt");
    assert!(weak.upgrade().is_none());
}

#[test]
fn engines_come_and_go_under_load() {
    let (mut texts, mut cancelled) = (0, 0);
    for round in 0..16 {
        let engine = open(ECHO);
        let streams: Vec<_> =
            (0..32).map(|_| engine.submit(&Request::prompt("some text")).unwrap()).collect();
        let closer = thread::spawn(move || {
            if round % 2 == 0 {
                engine.close().unwrap();
            }
        });
        for stream in streams {
            let answer = stream.answer();
            match answer.finish.reason {
                FinishReason::Stop => texts += usize::from(answer.text == "some text"),
                FinishReason::Cancelled => cancelled += 1,
                other => panic!("{other}"),
            }
        }
        closer.join().unwrap();
    }
    assert_eq!(texts + cancelled, 16 * 32);
}
