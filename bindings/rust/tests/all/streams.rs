//! Streams, in threads and tasks.
use crate::support::{ECHO, SLOW, endless, eventually, open, open_with, read};
use bn::{ErrorKind, FinishReason, Request, Stage};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::thread;
use std::time::Duration;

fn places(engine: &bn::Engine) -> u64 {
    engine.stats().unwrap().unreleased
}

#[test]
fn cancelling_frees_the_place_and_others_go_on() {
    // 4
    let engine = open_with(SLOW, |options| (options.queue_capacity, options.max_batch_size) = (2, 2));
    let other = engine.submit(&Request::prompt("goes on to its end")).unwrap();
    let mut stream = engine.submit(&endless()).unwrap();
    stream.recv().unwrap();
    stream.cancel();
    let finish = stream.answer().finish;
    assert_eq!(finish.reason, FinishReason::Cancelled);
    assert_eq!(finish.error.unwrap().kind(), ErrorKind::Cancelled);
    assert!(finish.usage.generated_tokens > 0);
    eventually(|| places(&engine) < 2);
    let last = engine.submit(&endless()).unwrap(); // in its place
    let canceller = last.canceller();
    let thread = thread::spawn(move || last.answer());
    canceller.cancel();
    canceller.cancel();
    assert_eq!(thread.join().unwrap().finish.reason, FinishReason::Cancelled);
    canceller.cancel(); // of a request that is gone
    assert_eq!(read(other).0, "goes on to its end");
}

#[test]
fn dropping_a_stream_frees_its_place() {
    let engine = open_with(SLOW, |options| options.queue_capacity = 1);
    for _ in 0..8 {
        let mut stream = engine.submit(&endless()).unwrap();
        stream.recv().unwrap();
        drop(stream);
        eventually(|| places(&engine) == 0);
    }
    let stats = engine.stats().unwrap();
    assert_eq!((stats.completed_cancelled, stats.running), (8, 0));
}

#[test]
fn a_task_that_is_dropped_cancels() {
    let engine = open_with(SLOW, |options| options.queue_capacity = 1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let mut stream = engine.submit(&endless()).unwrap();
    let task = runtime.spawn(async move {
        while stream.next().await.is_some() {}
        unreachable!("it has no end");
    });
    eventually(|| engine.stats().unwrap().generated_tokens > 0);
    task.abort();
    eventually(|| places(&engine) == 0);
    assert!(runtime.block_on(task).unwrap_err().is_cancelled());
}

#[test]
fn what_nobody_takes_becomes_one_event() {
    let engine = open(ECHO);
    let request = Request { logprobs: true, user_data: 7, ..Request::prompt("all of this at once") };
    let mut stream = engine.submit(&request).unwrap();
    eventually(|| places(&engine) == 0);
    assert!(!stream.is_over() && stream.info().unwrap().stage == Stage::Finished);
    let event = stream.try_recv().unwrap();
    assert_eq!((event.text.as_str(), event.user_data), ("all of this at once", 7));
    assert_eq!((event.tokens.len(), event.logprobs.len(), event.logprobs_per_token), (20, 20, 1)); // and an end token
    assert_eq!(event.finish.unwrap().reason, FinishReason::Stop);
    assert!(stream.is_over());
    assert_eq!((stream.try_recv(), stream.recv(), stream.recv_timeout(Duration::ZERO)), (None, None, None));
    assert_eq!(stream.answer().finish.error.unwrap().kind(), ErrorKind::Finished);
}

#[test]
fn unread_output_is_bounded() {
    let engine = open(SLOW);
    let mut stream = engine.submit(&Request { max_unread_bytes: Some(40), ..endless() }).unwrap();
    eventually(|| places(&engine) == 0);
    let finish = stream.recv().unwrap().finish.unwrap();
    let error = finish.error.unwrap();
    assert_eq!((finish.reason, error.kind()), (FinishReason::Cancelled, ErrorKind::Cancelled));
    assert!(error.message().contains("max_unread_bytes = 40"), "{error}");
    // A stream that is read goes on.
    let mut stream =
        engine.submit(&Request { max_unread_bytes: Some(40), ..Request::prompt("x".repeat(40)) }).unwrap();
    let mut text = String::new();
    while let Some(event) = stream.recv() {
        text += &event.text;
    }
    assert!(!text.is_empty());
}

#[test]
fn tasks_and_threads_read_the_same() {
    let engine = open(ECHO);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let request = Request::prompt("the same to all");
    let submit = || engine.submit(&request).unwrap();
    let by_next = runtime.block_on(async {
        let (mut stream, mut text) = (submit(), String::new());
        while let Some(event) = stream.next().await {
            text += &event.text;
        }
        text
    });
    let by_poll = runtime.block_on(async {
        let (mut stream, mut text) = (submit(), String::new());
        poll_fn(|context| {
            loop {
                match futures_core::Stream::poll_next(Pin::new(&mut stream), context) {
                    Poll::Ready(Some(event)) => text += &event.text,
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
        text
    });
    let mut by_time = String::new();
    let mut stream = submit();
    while !stream.is_over() {
        by_time += &stream.recv_timeout(Duration::from_secs(60)).unwrap().text;
    }
    let finished = runtime.block_on(submit().finish());
    assert_eq!(finished.finish.reason, FinishReason::Stop);
    let texts = [by_next, by_poll, by_time, finished.text, submit().answer().text, read(submit()).0];
    assert!(texts.iter().all(|text| text == "the same to all"), "{texts:?}");
}

#[test]
fn a_queued_request_knows_its_place() {
    let engine = open_with(SLOW, |options| options.max_batch_size = 1);
    let mut first = engine.submit(&endless()).unwrap();
    first.recv().unwrap();
    assert_eq!(first.info().unwrap().stage, Stage::Running);
    let waiting: Vec<_> = (0..3).map(|_| engine.submit(&endless()).unwrap()).collect();
    for (position, stream) in waiting.iter().enumerate() {
        let info = stream.info().unwrap();
        assert_eq!((info.stage, info.queue_position), (Stage::Queued, position as u64));
    }
}

#[test]
fn waiting_for_a_time_loses_nothing() {
    let engine = open_with(SLOW, |options| options.max_batch_size = 1);
    let mut running = engine.submit(&endless()).unwrap();
    running.recv().unwrap();
    let mut queued = engine.submit(&Request::prompt("its turn comes")).unwrap();
    assert_eq!(queued.recv_timeout(Duration::from_millis(1)), None);
    assert!(!queued.is_over());
    drop(running);
    assert_eq!(queued.answer().text, "its turn comes");
}

#[test]
fn a_batch_is_submitted_as_a_whole() {
    let engine = open_with(ECHO, |options| options.queue_capacity = 4);
    let texts = ["one", "two", "three", "four"];
    let requests: Vec<_> = texts.iter().map(|text| Request::prompt(*text)).collect();
    let streams = engine.submit_batch(&requests).unwrap();
    let answers: Vec<_> = streams.into_iter().map(|stream| stream.answer().text).collect();
    assert_eq!(answers, texts);
    let mut wrong = requests.clone();
    wrong[2].sampling.temperature = -1.0;
    crate::support::wants(engine.submit_batch(&wrong), ErrorKind::InvalidArgument, "2");
    crate::support::wants(engine.submit_batch(&[]), ErrorKind::InvalidArgument, "");
    let many: Vec<_> = requests.iter().chain(&requests).cloned().collect();
    assert!(engine.submit_batch(&many).is_err());
    eventually(|| places(&engine) == 0);
}
